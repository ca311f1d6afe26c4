/* The parser. It reads the header into a tree, measures it, and copies it into one
 * allocation while checking it. dw_safetensors_parse frees the tree.
 *
 *     arena: dw_tensor[n_tensors] | dw_pair[n_metadata] | dims | names, keys, values
 */
#include "tensor/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "base/mem.h"

#define METADATA_KEY "__metadata__"

/* The context of checking a tensor's entry. */
typedef struct source {
    const uint8_t *data; /* the tensor bytes */
    uint64_t n_data;
    const char *path;
    dw_error *err;
} source;

/* The free rest of the arena. */
typedef struct cursor {
    uint64_t *dims;
    char *text;
} cursor;

/* What people take for a safetensors file, by its first 8 bytes; NULL: something else. */
static const char *foreign_kind(const uint8_t *bytes)
{
    static const struct {
        const char *start, *kind;
    } kinds[] = {
        {"PK\003\004", "a file of PyTorch (or another ZIP archive). " DW_CONVERT_TORCH},
        {"\200\002", "a file of PyTorch (or another pickle). " DW_CONVERT_TORCH},
        {"GGUF", "a GGUF file. " DW_CONVERT_GGUF},
        {"version ", "a pointer of Git LFS: fetch the file with `git lfs pull`"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (memcmp(bytes, kinds[i].start, strlen(kinds[i].start)) == 0)
            return kinds[i].kind;
    return NULL;
}

static dw_status find_header(const uint8_t **header, size_t *n_header,
                             const uint8_t *bytes, size_t n_bytes, const char *path,
                             dw_error *err)
{
    dw_reader r = dw_reader_of(bytes, n_bytes);
    uint64_t n = dw_read_u64(&r);
    if (r.failed)
        return dw_fail(err, DW_CORRUPT, path,
                       "%zu bytes are too few for a safetensors file", n_bytes);
    /* a shorter header is one, whatever bytes its length has */
    const char *kind = n > DW_SAFETENSORS_MAX_HEADER ? foreign_kind(bytes) : NULL;
    if (kind)
        return dw_fail(err, DW_UNSUPPORTED, path, "not a safetensors file but %s", kind);
    if (n > DW_SAFETENSORS_MAX_HEADER)
        return dw_fail(err, DW_CORRUPT, path,
                       "a header of %" PRIu64 " bytes is over the limit of %u", n,
                       DW_SAFETENSORS_MAX_HEADER);
    *header = dw_read_bytes(&r, n);
    *n_header = (size_t)n;
    if (r.failed)
        return dw_fail(err, DW_CORRUPT, path,
                       "a header of %" PRIu64 " bytes does not fit a file of %zu", n,
                       n_bytes);
    /* JSON would allow white space here, but then the file could be of another kind too
     */
    if (n == 0 || (*header)[0] != '{')
        return dw_fail(err, DW_CORRUPT, path, "the header does not start with '{'");
    return DW_OK;
}

/* Computes the size of the arena and allocates it. Entries are not checked yet: a value
 * of the wrong kind counts as empty and is refused when it is read. The sums cannot
 * overflow, because the header is below 100 MB. */
static bool allocate_arena(dw_safetensors *out, cursor *rest, const dw_json *root)
{
    const dw_json *metadata = dw_json_get(root, METADATA_KEY);
    size_t n_tensors = dw_json_size(root) - (metadata ? 1 : 0);
    size_t n_metadata = dw_json_size(metadata);
    size_t n_dims = 0;
    size_t n_text = 0;
    for (const dw_json *k = dw_json_first(root); k; k = dw_json_next(root, k)) {
        n_dims += dw_json_size(dw_json_get(dw_json_value(k), "shape"));
        n_text += strlen(dw_json_string(k)) + 1;
    }
    if (!dw_json_is_object(metadata))
        n_metadata = 0;
    for (const dw_json *k = n_metadata ? dw_json_first(metadata) : NULL; k;
         k = dw_json_next(metadata, k)) {
        const char *value = dw_json_string(dw_json_value(k));
        n_text += strlen(dw_json_string(k)) + (value ? strlen(value) : 0) + 2;
    }

    size_t n_fixed = n_tensors * sizeof(dw_tensor) + n_metadata * sizeof(dw_pair);
    uint8_t *arena = dw_alloc(n_fixed + n_dims * sizeof(uint64_t) + n_text);
    if (!arena)
        return false;
    out->arena = arena;
    out->tensors = (dw_tensor *)arena;
    out->metadata = (dw_pair *)(arena + n_tensors * sizeof(dw_tensor));
    rest->dims = (uint64_t *)(arena + n_fixed);
    rest->text = (char *)(rest->dims + n_dims);
    return true;
}

static const char *copy_text(cursor *rest, const char *text)
{
    char *copy = rest->text;
    size_t n_bytes = strlen(text) + 1;
    memcpy(copy, text, n_bytes);
    rest->text += n_bytes;
    return copy;
}

static dw_status read_metadata(dw_safetensors *out, cursor *rest, const dw_json *metadata,
                               const source *from)
{
    if (!dw_json_is_object(metadata))
        return dw_fail(from->err, DW_CORRUPT, from->path,
                       METADATA_KEY " is not an object");
    for (const dw_json *k = dw_json_first(metadata); k; k = dw_json_next(metadata, k)) {
        const char *key = dw_json_string(k);
        const char *value = dw_json_string(dw_json_value(k));
        if (!value)
            return dw_fail(from->err, DW_CORRUPT, from->path,
                           METADATA_KEY " '%.200s' is not a string", key);
        dw_pair *pair = &out->metadata[out->n_metadata++];
        pair->key = copy_text(rest, key);
        pair->value = copy_text(rest, value);
    }
    return DW_OK;
}

static dw_status check_keys(const char *name, const dw_json *entry, const source *from)
{
    static const char *const wanted[] = {"dtype", "shape", "data_offsets"};
    enum { n_wanted = sizeof wanted / sizeof *wanted };

    if (!dw_json_is_object(entry))
        return dw_fail_tensor(from->err, DW_CORRUPT, from->path, name,
                              "its entry is not an object");
    for (size_t i = 0; i < n_wanted; i++)
        if (!dw_json_get(entry, wanted[i]))
            return dw_fail_tensor(from->err, DW_CORRUPT, from->path, name,
                                  "%s is missing", wanted[i]);
    if (dw_json_size(entry) > n_wanted)
        return dw_fail_tensor(from->err, DW_CORRUPT, from->path, name,
                              "it has keys other than dtype, shape and data_offsets");
    return DW_OK;
}

static dw_status read_dtype(dw_tensor *tensor, const dw_json *dtype, const source *from)
{
    const char *name = dw_json_string(dtype);
    if (!name)
        return dw_fail_tensor(from->err, DW_CORRUPT, from->path, tensor->name,
                              "dtype is not a string");
    if (!dw_dtype_from_name(&tensor->dtype, name))
        return dw_fail_tensor(from->err, DW_UNSUPPORTED, from->path, tensor->name,
                              "unknown dtype '%s'", name);
    return DW_OK;
}

static dw_status read_shape(dw_tensor *tensor, cursor *rest, const dw_json *shape,
                            const source *from)
{
    if (!dw_json_is_array(shape))
        return dw_fail_tensor(from->err, DW_CORRUPT, from->path, tensor->name,
                              "shape is not an array");
    size_t n_dims = dw_json_size(shape);
    if (n_dims > DW_MAX_DIMS)
        return dw_fail_tensor(from->err, DW_UNSUPPORTED, from->path, tensor->name,
                              "%zu dimensions are more than %d", n_dims, DW_MAX_DIMS);
    tensor->dims = rest->dims;
    tensor->n_dims = (uint32_t)n_dims;
    const dw_json *it = dw_json_first(shape);
    for (size_t i = 0; it; i++, it = dw_json_next(shape, it))
        if (!dw_json_unsigned(it, rest->dims++))
            return dw_fail_tensor(from->err, DW_CORRUPT, from->path, tensor->name,
                                  "shape[%zu] is not a non-negative integer", i);

    if (dw_shape_size(tensor->dtype, tensor->n_dims, tensor->dims, NULL, NULL))
        return DW_OK;
    bool fits_as_bytes = dw_shape_size(DW_U8, tensor->n_dims, tensor->dims, NULL, NULL);
    if (fits_as_bytes && dw_dtype_bits(tensor->dtype) < 8)
        return dw_fail_tensor(from->err, DW_CORRUPT, from->path, tensor->name,
                              "its %s elements do not fill whole bytes",
                              dw_dtype_name(tensor->dtype));
    return dw_fail_tensor(from->err, DW_CORRUPT, from->path, tensor->name,
                          "its shape overflows 64 bits");
}

static dw_status read_offsets(dw_tensor *tensor, const dw_json *offsets,
                              const source *from)
{
    uint64_t begin, end;
    bool is_pair = dw_json_is_array(offsets) && dw_json_size(offsets) == 2;
    const dw_json *first = is_pair ? dw_json_first(offsets) : NULL;
    if (!is_pair || !dw_json_unsigned(first, &begin) ||
        !dw_json_unsigned(dw_json_next(offsets, first), &end))
        return dw_fail_tensor(from->err, DW_CORRUPT, from->path, tensor->name,
                              "data_offsets is not a pair of non-negative integers");
    if (begin > end)
        return dw_fail_tensor(
            from->err, DW_CORRUPT, from->path, tensor->name,
            "data_offsets begin at %" PRIu64 ", after their end %" PRIu64, begin, end);
    uint64_t n_bytes;
    dw_shape_size(tensor->dtype, tensor->n_dims, tensor->dims, NULL, &n_bytes);
    if (end - begin != n_bytes)
        return dw_fail_tensor(from->err, DW_CORRUPT, from->path, tensor->name,
                              "shape needs %" PRIu64
                              " bytes but data_offsets span %" PRIu64,
                              n_bytes, end - begin);
    if (end > from->n_data)
        return dw_fail_tensor(from->err, DW_CORRUPT, from->path, tensor->name,
                              "data_offsets end at %" PRIu64
                              " but the file holds %" PRIu64 " bytes of data",
                              end, from->n_data);
    tensor->n_bytes = n_bytes;
    tensor->data =
        (void *)(uintptr_t)(from->data + begin); /* the map decides if it is writable */
    return DW_OK;
}

static dw_status read_tensor(dw_tensor *tensor, cursor *rest, const char *name,
                             const dw_json *entry, const source *from)
{
    *tensor = (dw_tensor){.name = copy_text(rest, name)};
    dw_status status = check_keys(name, entry, from);
    if (status == DW_OK)
        status = read_dtype(tensor, dw_json_get(entry, "dtype"), from);
    if (status == DW_OK)
        status = read_shape(tensor, rest, dw_json_get(entry, "shape"), from);
    if (status == DW_OK)
        status = read_offsets(tensor, dw_json_get(entry, "data_offsets"), from);
    return status;
}

static dw_status read_entries(dw_safetensors *out, cursor *rest, const dw_json *root,
                              const source *from)
{
    for (const dw_json *k = dw_json_first(root); k; k = dw_json_next(root, k)) {
        const char *name = dw_json_string(k);
        const dw_json *entry = dw_json_value(k);
        dw_status status;
        if (strcmp(name, METADATA_KEY) == 0)
            status = read_metadata(out, rest, entry, from);
        else
            status =
                read_tensor(&out->tensors[out->n_tensors++], rest, name, entry, from);
        if (status != DW_OK)
            return status;
    }
    return DW_OK;
}

/* Sorts by position in the file. Empty tensors come before the tensor that starts at the
 * same position, and are sorted by name. */
static int compare_places(const void *left, const void *right)
{
    const dw_tensor *a = left;
    const dw_tensor *b = right;
    if (a->data != b->data)
        return (const uint8_t *)a->data < (const uint8_t *)b->data ? -1 : 1;
    if (a->n_bytes != b->n_bytes)
        return a->n_bytes < b->n_bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Checks that every byte of data belongs to exactly one tensor. */
static dw_status check_cover(const dw_safetensors *file, const source *from)
{
    const uint8_t *expected = from->data;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const dw_tensor *tensor = &file->tensors[i];
        const uint8_t *begin = tensor->data;
        if (begin < expected)
            return dw_fail_tensor(from->err, DW_CORRUPT, from->path, tensor->name,
                                  "it overlaps tensor '%.120s'", tensor[-1].name);
        if (begin > expected)
            return dw_fail_tensor(from->err, DW_CORRUPT, from->path, tensor->name,
                                  "the %td bytes before it belong to no tensor",
                                  begin - expected);
        expected += tensor->n_bytes;
    }
    uint64_t n_left = (uint64_t)(from->data + from->n_data - expected);
    if (n_left > 0)
        return dw_fail(from->err, DW_CORRUPT, from->path,
                       "the last %" PRIu64 " bytes belong to no tensor", n_left);
    return DW_OK;
}

/* HEAD is a readable copy of the header, BYTES the file. */
static dw_status parse(dw_safetensors *out, const uint8_t *head, const uint8_t *bytes,
                       size_t n_bytes, const char *path, dw_error *err)
{
    *out = (dw_safetensors){0};
    const uint8_t *header = NULL;
    size_t n_header = 0;
    dw_status status = find_header(&header, &n_header, head, n_bytes, path, err);
    if (status != DW_OK)
        return status;
    dw_json *root = NULL;
    status = dw_json_read(&root, header, n_header, "header", path, err);
    if (status != DW_OK)
        return status;

    out->data_start = sizeof(uint64_t) + n_header;
    source from = {bytes + out->data_start, n_bytes - out->data_start, path, err};
    cursor rest;
    if (allocate_arena(out, &rest, root))
        status = read_entries(out, &rest, root, &from);
    else
        status = dw_fail_memory(err, path);
    dw_json_free(root);
    if (status == DW_OK) {
        qsort(out->tensors, out->n_tensors, sizeof *out->tensors, compare_places);
        status = check_cover(out, &from);
    }
    if (status != DW_OK)
        dw_safetensors_release(out);
    return status;
}

dw_status dw_safetensors_map(dw_safetensors *out, const dw_map *map, const char *path,
                             dw_error *err)
{
    const void *head = map->bytes;
    dw_loan loan = {0};
    size_t n_head = map->n_bytes < 8 ? map->n_bytes : 8;
    dw_status status = dw_map_read(&head, &loan, map->bytes, n_head, err);
    if (status == DW_OK && n_head == 8) {
        /* a header that is too long is refused when it is parsed */
        const uint64_t n = dw_load64(head);
        if (n <= DW_SAFETENSORS_MAX_HEADER && n <= map->n_bytes - 8)
            n_head += (size_t)n;
        status = dw_map_read(&head, &loan, map->bytes, n_head, err);
    }
    if (status == DW_OK)
        status = parse(out, head, map->bytes, map->n_bytes, path, err);
    dw_loan_release(&loan);
    return status;
}

dw_status dw_safetensors_parse(dw_safetensors *out, const uint8_t *bytes, size_t n_bytes,
                               const char *path, dw_error *err)
{
    return parse(out, bytes, bytes, n_bytes, path, err);
}

void dw_safetensors_release(dw_safetensors *file)
{
    dw_free(file->arena);
    *file = (dw_safetensors){0};
}

const char *dw_safetensors_metadata(const dw_safetensors *file, const char *key)
{
    for (size_t i = 0; i < file->n_metadata; i++)
        if (strcmp(file->metadata[i].key, key) == 0)
            return file->metadata[i].value;
    return NULL;
}

bool dw_parse_number(const char *text, int radix, uint64_t *out)
{
    size_t n = strlen(text);
    if (n == 0 || strspn(text, radix == 16 ? "0123456789abcdef" : "0123456789") != n)
        return false;
    errno = 0;
    *out = strtoull(text, NULL, radix);
    return errno == 0;
}

bool dw_safetensors_number(const dw_safetensors *file, const char *key, int radix,
                           uint64_t *out)
{
    const char *text = dw_safetensors_metadata(file, key);
    return text && dw_parse_number(text, radix, out);
}
