/* Our container: a safetensors file of two byte tensors and string metadata.
 *
 *     __metadata__   format, versions, digests of the whole model, counts, seal
 *     index          for each changed tensor, names ascending:
 *                      varint bytes shared with the name before | varint n | n bytes
 *                      u8 dtype | varint n_dims | varint dims...
 *                      varint n_changed
 *                      u64 base digest | u64 new digest | u64 XXH64 of its blocks
 *                      varint base of the class map
 *                      for each block: varint (n_bytes * 4 + mode)
 *     blocks         the blocks' bytes, one after the other
 *
 * The seal (seal.h) protects header and index, and the index holds the hashes of the
 * blocks. Only the header's length is not protected, and a wrong length breaks the JSON.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/json.h"
#include "codec/delta.h"
#include "codec/seal.h"
#include "deltawire/base.h"
#include "kernel/kernel.h"

#define FORMAT    "deltawire/1"
#define FAMILY    "deltawire/"
#define MAX_NAME  1024 /* with front coding a small index could produce huge names */
#define MIN_ENTRY 31   /* the bytes of the shortest entry in the index */

/* ---- writing ---- */

static size_t shared_prefix(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

static void write_entry(dw_writer *w, const dw_delta_entry *e, const char *previous)
{
    const dw_tensor *t = &e->shape;
    size_t shared = shared_prefix(previous, t->name);
    size_t n_rest = strlen(t->name + shared);
    dw_write_varint(w, shared);
    dw_write_varint(w, n_rest);
    dw_write_bytes(w, t->name + shared, n_rest);
    dw_write_u8(w, (uint8_t)t->dtype);
    dw_write_varint(w, t->n_dims);
    for (uint32_t d = 0; d < t->n_dims; d++)
        dw_write_varint(w, t->dims[d]);
    dw_write_varint(w, e->n_changed);
    dw_write_u64(w, e->base_digest);
    dw_write_u64(w, e->new_digest);
    dw_write_u64(w, e->checksum);
    dw_write_varint(w, e->map.base);
    for (uint64_t b = 0; b < e->n_blocks; b++)
        dw_write_varint(w, (uint64_t)e->blocks[b].n_bytes << 2 | e->blocks[b].mode);
}

static dw_status write_header(dw_delta *delta, uint64_t n_block_bytes, dw_error *err)
{
    const dw_delta_info *info = &delta->info;
    char base_version[24], new_version[24], base_digest[24], new_digest[24];
    char changed[24], elements[24], tensors[24];
    snprintf(base_version, sizeof base_version, "%" PRIu64, info->base_version);
    snprintf(new_version, sizeof new_version, "%" PRIu64, info->new_version);
    snprintf(base_digest, sizeof base_digest, "%016" PRIx64, info->base_state);
    snprintf(new_digest, sizeof new_digest, "%016" PRIx64, info->new_state);
    snprintf(changed, sizeof changed, "%" PRIu64, info->n_changed);
    snprintf(elements, sizeof elements, "%" PRIu64, info->n_model_elems);
    snprintf(tensors, sizeof tensors, "%" PRIu64, info->n_model_tensors);
    const dw_pair metadata[] = {
        {"format", FORMAT},           {"base_version", base_version},
        {"new_version", new_version}, {"base_digest", base_digest},
        {"new_digest", new_digest},   {"changed", changed},
        {"elements", elements},       {"tensors", tensors},
        {"seal", DW_SEAL_BLANK},
    };
    const uint64_t n_index = delta->index.n_bytes;
    const dw_tensor parts[] = {
        {"index", DW_U8, 1, &n_index, n_index, NULL, 0, NULL},
        {"blocks", DW_U8, 1, &n_block_bytes, n_block_bytes, NULL, 0, NULL},
    };
    dw_status status =
        dw_safetensors_header(&delta->header, parts, 2, metadata,
                              sizeof metadata / sizeof metadata[0], delta->label, err);
    if (status == DW_OK)
        dw_seal_set(delta->header.bytes + 8, delta->header.n_bytes - 8,
                    delta->index.bytes, delta->index.n_bytes);
    return status;
}

dw_status dw_container_write(dw_delta *delta, dw_error *err)
{
    const char *previous = "";
    size_t n_pieces = 2;
    uint64_t n_block_bytes = 0;
    for (size_t i = 0; i < delta->info.n_tensors; i++) {
        const dw_delta_entry *e = &delta->entries[i];
        if (strlen(e->shape.name) > MAX_NAME)
            return dw_fail_tensor(err, DW_UNSUPPORTED, delta->label, e->shape.name,
                                  "the name is longer than %d bytes", MAX_NAME);
        write_entry(&delta->index, e, previous);
        previous = e->shape.name;
        n_pieces += (size_t)e->n_blocks;
        for (uint64_t b = 0; b < e->n_blocks; b++)
            n_block_bytes += e->blocks[b].n_bytes;
    }
    dw_status status = delta->index.failed ? dw_fail_memory(err, delta->label)
                                           : write_header(delta, n_block_bytes, err);
    if (status != DW_OK)
        return status;

    dw_piece *pieces = dw_delta_alloc(delta, n_pieces, sizeof *pieces, err);
    if (!pieces)
        return DW_NO_MEMORY;
    size_t n = 0;
    pieces[n++] = (dw_piece){delta->header.bytes, delta->header.n_bytes, 0};
    pieces[n++] = (dw_piece){delta->index.bytes, delta->index.n_bytes, 0};
    for (size_t i = 0; i < delta->info.n_tensors; i++)
        for (uint64_t b = 0; b < delta->entries[i].n_blocks; b++)
            pieces[n++] = (dw_piece){delta->entries[i].blocks[b].bytes,
                                     delta->entries[i].blocks[b].n_bytes, 0};
    dw_delta_set_pieces(delta, pieces, n);
    return DW_OK;
}

/* ---- reading ---- */

bool dw_container_detect(const dw_safetensors *file)
{
    const char *format = dw_safetensors_metadata(file, "format");
    return format && strncmp(format, FAMILY, sizeof FAMILY - 1) == 0;
}

static dw_status read_metadata(dw_delta *delta, dw_error *err)
{
    dw_delta_info *info = &delta->info;
    const struct {
        const char *key;
        int radix;
        uint64_t *out;
    } fields[] = {
        {"base_version", 10, &info->base_version},
        {"new_version", 10, &info->new_version},
        {"base_digest", 16, &info->base_state},
        {"new_digest", 16, &info->new_state},
        {"changed", 10, &info->n_changed},
        {"elements", 10, &info->n_model_elems},
        {"tensors", 10, &info->n_model_tensors},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (!dw_safetensors_number(&delta->file, fields[i].key, fields[i].radix,
                                   fields[i].out))
            return dw_fail(err, DW_CORRUPT, delta->label,
                           "metadata '%s' is missing, or not a number of 64 bits",
                           fields[i].key);
    }
    info->codec = DW_CODEC_CLASS;
    info->has_digests = true;
    return DW_OK;
}

static const dw_tensor *find_part(const dw_safetensors *file, const char *name)
{
    for (size_t i = 0; i < file->n_tensors; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return file->tensors[i].dtype == DW_U8 && file->tensors[i].n_dims == 1
                       ? &file->tensors[i]
                       : NULL;
    return NULL;
}

static dw_status check_seal(const dw_delta *delta, const dw_tensor *index, dw_error *err)
{
    const uint8_t *json = (const uint8_t *)delta->pieces[0].bytes + 8;
    size_t n_json = (size_t)delta->file.data_start - 8;
    if (dw_seal_good(json, n_json, index->data, (size_t)index->n_bytes))
        return DW_OK;
    return dw_fail(err, DW_CORRUPT, delta->label,
                   "the header or index was altered: its seal does not match");
}

/* Undoes the front coding; names must ascend from the one BEFORE, NULL for the first. */
static dw_status read_name(const char **out, dw_delta *delta, dw_reader *r,
                           const char *before, dw_error *err)
{
    const char *previous = before ? before : "";
    uint64_t shared = dw_read_varint(r), n_rest = dw_read_varint(r);
    const uint8_t *rest = dw_read_bytes(r, n_rest);
    if (!rest || shared > strlen(previous) || n_rest > MAX_NAME - shared ||
        memchr(rest, 0, (size_t)n_rest))
        return dw_fail(err, DW_CORRUPT, delta->label, "index: malformed name after '%s'",
                       previous);
    char *name = dw_delta_alloc(delta, (size_t)(shared + n_rest) + 1, 1, err);
    if (!name)
        return DW_NO_MEMORY;
    memcpy(name, previous, (size_t)shared);
    memcpy(name + shared, rest, (size_t)n_rest);
    if (!dw_utf8_valid(name)) /* it could not be shown */
        return dw_fail(err, DW_CORRUPT, delta->label,
                       "index: the name after '%s' is not UTF-8", previous);
    if (before && strcmp(before, name) >= 0)
        return dw_fail(err, DW_CORRUPT, delta->label, "index: name '%s' is out of order",
                       name);
    *out = name;
    return DW_OK;
}

static dw_status read_shape(dw_delta *delta, dw_delta_entry *e, dw_reader *r,
                            dw_error *err)
{
    uint8_t dtype = dw_read_u8(r);
    uint64_t n_dims = dw_read_varint(r);
    if (r->failed || dtype >= DW_DTYPE_COUNT || n_dims > DW_MAX_DIMS)
        return dw_fail_tensor(err, DW_CORRUPT, delta->label, e->shape.name,
                              "unknown dtype or shape");
    uint64_t *dims = dw_delta_alloc(delta, (size_t)n_dims, sizeof *dims, err);
    if (!dims)
        return DW_NO_MEMORY;
    for (uint64_t d = 0; d < n_dims; d++)
        dims[d] = dw_read_varint(r);
    e->shape.dtype = (dw_dtype)dtype;
    e->shape.n_dims = (uint32_t)n_dims;
    e->shape.dims = dims;
    e->element = dw_dtype_element(e->shape.dtype);
    if (r->failed ||
        !dw_shape_size(e->shape.dtype, e->shape.n_dims, dims, NULL, &e->shape.n_bytes))
        return dw_fail_tensor(err, DW_CORRUPT, delta->label, e->shape.name,
                              "impossible shape");
    e->has_shape = true;
    return DW_OK;
}

static dw_status read_blocks(dw_delta *delta, dw_delta_entry *e, dw_reader *r,
                             dw_reader *data, dw_error *err)
{
    /* a block has at least a byte in the index, so this bounds the allocation */
    e->n_blocks = dw_block_count(dw_entry_units(e), e->element.width);
    if (e->n_blocks > dw_reader_left(r))
        return dw_fail_tensor(err, DW_CORRUPT, delta->label, e->shape.name,
                              "the index ends inside the list of its blocks");
    e->blocks = dw_delta_alloc(delta, (size_t)e->n_blocks, sizeof *e->blocks, err);
    if (!e->blocks)
        return DW_NO_MEMORY;
    const uint8_t *start = data->at;
    for (uint64_t b = 0; b < e->n_blocks; b++) {
        uint64_t head = dw_read_varint(r), n_bytes = head >> 2;
        dw_block_mode mode = (dw_block_mode)(head & 3);
        const uint8_t *bytes = dw_read_bytes(data, n_bytes);
        if (r->failed || !bytes || n_bytes > UINT32_MAX ||
            (mode == DW_BLOCK_SAME) != (n_bytes == 0))
            return dw_fail_tensor(err, DW_CORRUPT, delta->label, e->shape.name,
                                  "block %" PRIu64 " is outside the file", b);
        e->blocks[b] = (dw_delta_block){bytes, (uint32_t)n_bytes, mode};
    }
    if (XXH64(start, (size_t)(data->at - start), 0) != e->checksum)
        return dw_fail_tensor(err, DW_CORRUPT, delta->label, e->shape.name,
                              "its blocks were altered: the checksum does not match");
    return DW_OK;
}

static dw_status read_entry(dw_delta *delta, dw_delta_entry *e, const char *previous,
                            dw_reader *r, dw_reader *data, dw_error *err)
{
    dw_status status = read_name(&e->shape.name, delta, r, previous, err);
    if (status == DW_OK)
        status = read_shape(delta, e, r, err);
    if (status != DW_OK)
        return status;
    e->n_changed = dw_read_varint(r);
    e->base_digest = dw_read_u64(r);
    e->new_digest = dw_read_u64(r);
    e->checksum = dw_read_u64(r);
    uint64_t base = dw_read_varint(r);
    e->map = dw_class_map_make(e->element, 0);
    if (r->failed || base > e->map.magnitude >> e->map.shift)
        return dw_fail_tensor(err, DW_CORRUPT, delta->label, e->shape.name,
                              "the index entry is malformed");
    e->map.base = e->element.is_float ? (uint32_t)base : 0;
    if (e->n_changed == 0 || e->n_changed > dw_entry_units(e) ||
        e->base_digest >= DW_DIGEST_PRIME || e->new_digest >= DW_DIGEST_PRIME)
        return dw_fail_tensor(err, DW_CORRUPT, delta->label, e->shape.name,
                              "impossible count or digest");
    return read_blocks(delta, e, r, data, err);
}

dw_status dw_container_read(dw_delta *delta, dw_error *err)
{
    const char *format = dw_safetensors_metadata(&delta->file, "format");
    if (strcmp(format, FORMAT) != 0)
        return dw_fail(err, DW_UNSUPPORTED, delta->label,
                       "format '%s' is not known to deltawire %s, which reads '%s'",
                       format, DW_VERSION_STRING, FORMAT);
    const dw_tensor *index = find_part(&delta->file, "index");
    const dw_tensor *blocks = find_part(&delta->file, "blocks");
    if (!index || !blocks || delta->file.n_tensors != 2)
        return dw_fail(
            err, DW_CORRUPT, delta->label,
            "a delta holds the byte tensors 'index' and 'blocks', and no other");
    dw_status status = check_seal(delta, index, err);
    if (status == DW_OK)
        status = read_metadata(delta, err);
    if (status != DW_OK)
        return status;

    size_t n_most = (size_t)index->n_bytes / MIN_ENTRY;
    delta->entries = dw_delta_alloc(delta, n_most, sizeof *delta->entries, err);
    if (!delta->entries)
        return DW_NO_MEMORY;
    dw_reader r = dw_reader_of(index->data, (size_t)index->n_bytes);
    dw_reader data = dw_reader_of(blocks->data, (size_t)blocks->n_bytes);
    const char *previous = NULL;
    uint64_t n_changed = 0;
    size_t n = 0;
    for (; dw_reader_left(&r) > 0 && n < n_most; n++) {
        dw_delta_entry *e = &delta->entries[n];
        status = read_entry(delta, e, previous, &r, &data, err);
        if (status != DW_OK)
            return status;
        previous = e->shape.name;
        n_changed += e->n_changed;
    }
    delta->info.n_tensors = n;
    if (dw_reader_left(&r) > 0 || dw_reader_left(&data) > 0 ||
        n_changed != delta->info.n_changed)
        return dw_fail(err, DW_CORRUPT, delta->label,
                       "index, blocks and counts do not agree");
    return DW_OK;
}
