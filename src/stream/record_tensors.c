/* The table of a stream's tensors.
 *
 *     arena: dims of all tensors | names
 */
#include "stream/record_parts.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"

#define MAX_NAME 1024 /* as in deltas */

/* The free rest of the arena. */
typedef struct cursor {
    uint64_t *dims;
    char *text;
} cursor;

/* A slice is written as "...[12:34]". */
static bool is_slice_name(const char *name)
{
    static const char digits[] = "0123456789";
    const char *bracket = strrchr(name, '[');
    if (!bracket)
        return false;
    size_t n_first = strspn(bracket + 1, digits);
    const char *at = bracket + 1 + n_first;
    if (n_first == 0 || *at != ':')
        return false;
    size_t n_end = strspn(at + 1, digits);
    return n_end > 0 && strcmp(at + 1 + n_end, "]") == 0;
}

/* Takes the three parts of an entry, of whatever kind; false if it has not three. */
static bool split(const dw_json *entry, const dw_json **name, const dw_json **dtype,
                  const dw_json **shape)
{
    if (!dw_json_is_array(entry) || dw_json_size(entry) != 3)
        return false;
    *name = dw_json_first(entry);
    *dtype = dw_json_next(entry, *name);
    *shape = dw_json_next(entry, *dtype);
    return true;
}

/* Entries are not checked yet: what is not of the expected kind counts as empty. The sums
 * count parts of a record of at most 64 MiB. */
static bool allocate(dw_stream_record *out, cursor *rest, const dw_json *list, size_t n)
{
    size_t n_dims = 0, n_text = 0;
    for (const dw_json *it = dw_json_first(list); it; it = dw_json_next(list, it)) {
        const dw_json *name, *dtype, *shape;
        if (!split(it, &name, &dtype, &shape))
            continue;
        n_text += dw_json_string(name) ? strlen(dw_json_string(name)) + 1 : 0;
        n_dims += dw_json_size(shape);
    }
    out->tensors = dw_alloc_zeroed(n, sizeof *out->tensors);
    out->arena = dw_alloc(n_dims * sizeof(uint64_t) + n_text);
    if (!out->tensors || !out->arena)
        return false;
    rest->dims = out->arena;
    rest->text = (char *)(rest->dims + n_dims);
    return true;
}

static const char *read_name(dw_tensor *out, cursor *rest, const dw_json *value)
{
    const char *name = dw_json_string(value);
    if (!name)
        return "has no string for a name";
    size_t n = strlen(name);
    if (n > MAX_NAME)
        return "has a name over the limit of 1024 bytes";
    memcpy(rest->text, name, n + 1);
    out->name = rest->text;
    rest->text += n + 1;
    if (strcmp(name, "__metadata__") == 0)
        return "has the name '__metadata__', which safetensors keeps for itself";
    if (is_slice_name(out->name))
        return "has a name that ends as those of slices do, in [DIGITS:DIGITS]";
    return NULL;
}

static const char *read_shape(dw_tensor *out, cursor *rest, const dw_json *shape)
{
    if (!dw_json_is_array(shape))
        return "has a shape that is no array";
    size_t n_dims = dw_json_size(shape);
    if (n_dims > DW_MAX_DIMS)
        return "has more than 64 dimensions";
    out->dims = rest->dims;
    out->n_dims = (uint32_t)n_dims;
    for (const dw_json *it = dw_json_first(shape); it; it = dw_json_next(shape, it))
        if (!dw_json_number(rest->dims++, it))
            return "has a dimension that is no integer from 0 to 2^53 - 1";
    uint64_t n_elems;
    if (!dw_shape_size(out->dtype, out->n_dims, out->dims, &n_elems, &out->n_bytes))
        return "has a shape that overflows or does not fill whole bytes";
    if (n_elems >= DW_NUMBER_END)
        return "has 2^53 elements or more";
    return NULL;
}

/* The fault, or NULL. */
static const char *read_tensor(dw_tensor *out, cursor *rest, const dw_json *entry,
                               dw_status *code)
{
    *code = DW_CORRUPT;
    const dw_json *name, *type, *shape;
    if (!split(entry, &name, &type, &shape))
        return "is not [name, dtype, [dims]]";
    const char *fault = read_name(out, rest, name);
    if (fault)
        return fault;
    const char *dtype = dw_json_string(type);
    if (!dtype)
        return "has no string for a dtype";
    if (!dw_dtype_from_name(&out->dtype, dtype)) {
        *code = DW_UNSUPPORTED;
        return "has a dtype that is not known here";
    }
    return read_shape(out, rest, shape);
}

static void read_tensors(dw_fields *f, const char *member, void *record)
{
    dw_stream_record *out = record;
    size_t n;
    const dw_json *list = dw_field_list(f, member, DW_MAX_TENSORS, &n);
    cursor rest = {0};
    if (n == 0)
        dw_fields_fail(f, DW_CORRUPT, member, "is empty");
    if (f->status != DW_OK)
        return;
    if (!allocate(out, &rest, list, n)) {
        dw_fields_fail_memory(f);
        return;
    }
    uint64_t total = 0;
    const dw_json *item = dw_json_first(list);
    for (size_t i = 0; item && f->status == DW_OK; i++, item = dw_json_next(list, item)) {
        dw_tensor *t = &out->tensors[i];
        dw_status code;
        const char *fault = read_tensor(t, &rest, item, &code);
        char entry[40];
        snprintf(entry, sizeof entry, "tensors[%zu]", i);
        if (fault)
            dw_fields_fail(f, code, entry, "%s", fault);
        else if (i > 0 && strcmp(t[-1].name, t->name) >= 0)
            dw_fields_fail(f, DW_CORRUPT, entry,
                           "has a name that does not come behind the one before");
        else if (__builtin_add_overflow(total, t->n_bytes, &total))
            dw_fields_fail(f, DW_CORRUPT, entry, "makes the model overflow 64 bits");
    }
    if (f->status == DW_OK)
        out->n_tensors = n;
}

static void write_tensors(dw_writer *out, const void *record)
{
    const dw_stream_record *r = record;
    dw_write_u8(out, '[');
    for (size_t i = 0; i < r->n_tensors; i++) {
        const dw_tensor *t = &r->tensors[i];
        dw_write_text(out, i ? ",[" : "[");
        dw_write_json_string(out, t->name);
        dw_write_format(out, ",\"%s\",[", dw_dtype_name(t->dtype));
        for (uint32_t d = 0; d < t->n_dims; d++)
            dw_write_format(out, "%s%" PRIu64, d ? "," : "", t->dims[d]);
        dw_write_text(out, "]]");
    }
    dw_write_u8(out, ']');
}

static void release_tensors(void *record)
{
    dw_stream_record *r = record;
    dw_free(r->tensors);
    dw_free(r->arena);
}

const dw_member_own dw_tensors_member = {read_tensors, write_tensors, release_tensors,
                                         NULL};
