#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "codec/seal.h"
#include "codec/trl_delta.h"
#include "tensor/tensor_list.h"

bool dw_trl_detect(const dw_safetensors *file)
{
    const char *format = dw_safetensors_metadata(file, "format");
    return format && strcmp(format, DW_TRL_FORMAT) == 0;
}

static dw_status read_layout(dw_delta *delta, dw_error *err)
{
    const char *sparse = dw_safetensors_metadata(&delta->file, "sparse");
    const char *encoding = dw_safetensors_metadata(&delta->file, "encoding");
    if (!sparse || strcmp(sparse, "True") != 0)
        return dw_fail(
            err, DW_UNSUPPORTED, delta->label,
            "a TRL anchor: whole weights, not a delta; open it as a checkpoint");
    delta->info.trl_layout = encoding ? 3 : 1;
    if (!encoding || strcmp(encoding, "raw") == 0)
        delta->info.codec = DW_CODEC_RAW;
    else if (strcmp(encoding, "gap_delta") == 0)
        delta->info.codec = DW_CODEC_GAP;
    else
        return dw_fail(err, DW_UNSUPPORTED, delta->label,
                       "TRL encoding '%s' is not supported; 'raw' and 'gap_delta' are",
                       encoding);
    return DW_OK;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n > n_end && strcmp(text + n - n_end, end) == 0;
}

static dw_status read_pair(dw_delta *delta, dw_delta_entry *e, const dw_tensor *index,
                           const dw_tensor *values, dw_error *err)
{
    const char *fault = NULL;
    e->shape.dtype = values->dtype;
    e->element = dw_dtype_element(values->dtype);
    e->n_changed = dw_tensor_units(values);
    e->indices = index->data;
    e->values = values->data;
    if (delta->info.codec == DW_CODEC_RAW && index->dtype == DW_I32)
        e->index_kind = DW_TRL_I32;
    else if (delta->info.codec == DW_CODEC_GAP && index->dtype == DW_U16)
        e->index_kind = DW_TRL_GAP16;
    else if (delta->info.codec == DW_CODEC_GAP && index->dtype == DW_U32)
        e->index_kind = DW_TRL_GAP32;
    else
        fault = "the indices have a type that its encoding does not use";
    if (!fault && (index->n_dims != 1 || values->n_dims != 1))
        fault = "indices and values must have one dimension";
    if (!fault && index->dims[0] != values->dims[0])
        fault = "the numbers of values and indices differ";
    if (!fault && values->dims[0] != e->n_changed)
        fault = "values of that type are smaller than a byte";
    if (fault)
        return dw_fail_tensor(err, DW_CORRUPT, delta->label, e->shape.name, "%s", fault);
    delta->info.n_changed += e->n_changed;
    return DW_OK;
}

static const dw_tensor *find_tensor(const dw_name_index *names, const char *base,
                                    const char *suffix)
{
    char name[2048];
    int n = snprintf(name, sizeof name, "%s%s", base, suffix);
    size_t i =
        n > 0 && (size_t)n < sizeof name ? dw_name_index_find(names, name) : SIZE_MAX;
    return i == SIZE_MAX ? NULL : &names->tensors[i];
}

static dw_status read_entries(dw_delta *delta, const dw_name_index *names, dw_error *err)
{
    const dw_safetensors *file = &delta->file;
    const dw_trl_spelling s = dw_trl_spelling_of(delta);
    delta->entries = dw_delta_alloc(delta, file->n_tensors, sizeof *delta->entries, err);
    if (!delta->entries)
        return DW_NO_MEMORY;
    size_t n = 0;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const dw_tensor *index = &file->tensors[i];
        if (!ends_with(index->name, s.index))
            continue;
        size_t n_name = strlen(index->name) - strlen(s.index);
        char *name = dw_delta_alloc(delta, n_name + 1, 1, err);
        if (!name)
            return DW_NO_MEMORY;
        memcpy(name, index->name, n_name);
        dw_delta_entry *e = &delta->entries[n++];
        e->shape.name = name;
        const dw_tensor *values = find_tensor(names, name, s.values);
        if (!values)
            return dw_fail_tensor(err, DW_CORRUPT, delta->label, name,
                                  "it has indices but no '%s'", s.values + 1);
        dw_status status = read_pair(delta, e, index, values, err);
        if (status != DW_OK)
            return status;
    }
    if (2 * n != file->n_tensors)
        return dw_fail(err, DW_CORRUPT, delta->label,
                       "%zu tensors are not pairs of '%s' and '%s'",
                       file->n_tensors - 2 * n, s.index + 1, s.values + 1);
    delta->info.n_tensors = n;
    if (n > 0)
        qsort(delta->entries, n, sizeof *delta->entries, dw_entry_compare);
    return DW_OK;
}

static dw_status fail_extras(const dw_delta *delta, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, delta->label,
                   "the metadata that deltawire added is incomplete or altered");
}

static dw_delta_entry *find_entry(const dw_delta *delta, const char *name)
{
    const dw_delta_entry wanted = {.shape.name = name};
    return delta->info.n_tensors ? bsearch(&wanted, delta->entries, delta->info.n_tensors,
                                           sizeof wanted, dw_entry_compare)
                                 : NULL;
}

/* One entry of `changed`, which TRL's own files lack. */
static dw_status read_extra(dw_delta *delta, dw_delta_entry *e, const dw_json *extra,
                            dw_error *err)
{
    const char *dtype = dw_json_string(dw_json_get(extra, "dtype"));
    const char *base = dw_json_string(dw_json_get(extra, "base"));
    const char *next = dw_json_string(dw_json_get(extra, "new"));
    const dw_json *shape = dw_json_get(extra, "shape");
    size_t n_dims = dw_json_size(shape);
    if (!dtype || !base || !next || !dw_json_is_array(shape) || n_dims > DW_MAX_DIMS ||
        strcmp(dtype, dw_dtype_name(e->shape.dtype)) != 0)
        return fail_extras(delta, err);
    uint64_t *dims = dw_delta_alloc(delta, n_dims, sizeof *dims, err);
    if (!dims)
        return DW_NO_MEMORY;
    e->shape.dims = dims;
    e->shape.n_dims = (uint32_t)n_dims;
    for (const dw_json *it = dw_json_first(shape); it; it = dw_json_next(shape, it))
        if (!dw_json_unsigned(it, dims++))
            return fail_extras(delta, err);
    e->has_shape = dw_shape_size(e->shape.dtype, e->shape.n_dims, e->shape.dims, NULL,
                                 &e->shape.n_bytes);
    return e->has_shape && dw_parse_number(base, 16, &e->base_digest) &&
                   dw_parse_number(next, 16, &e->new_digest)
               ? DW_OK
               : fail_extras(delta, err);
}

/* Files that deltawire wrote have digests and shapes for all tensors; others have none of
 * these keys. */
static dw_status read_extras(dw_delta *delta, dw_error *err)
{
    dw_delta_info *info = &delta->info;
    static const char *const keys[] = {"seal", "changed", "base_version", "base_digest",
                                       "new_digest"};
    bool ours = false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        ours = ours || dw_safetensors_metadata(&delta->file, keys[i]);
    if (!ours)
        return DW_OK;
    const uint8_t *json = (const uint8_t *)delta->pieces[0].bytes + 8;
    if (!dw_seal_good(json, (size_t)delta->file.data_start - 8, NULL, 0))
        return dw_fail(err, DW_CORRUPT, delta->label,
                       "the header was altered: its seal does not match");
    const char *changed = dw_safetensors_metadata(&delta->file, "changed");
    if (!changed)
        return fail_extras(delta, err);
    dw_json *all;
    dw_status status = dw_json_read(&all, changed, strlen(changed), "metadata 'changed'",
                                    delta->label, err);
    if (status != DW_OK)
        return status;
    if (!dw_safetensors_number(&delta->file, "base_version", 10, &info->base_version) ||
        !dw_safetensors_number(&delta->file, "base_digest", 16, &info->base_state) ||
        !dw_safetensors_number(&delta->file, "new_digest", 16, &info->new_state) ||
        !dw_safetensors_number(&delta->file, "elements", 10, &info->n_model_elems) ||
        !dw_safetensors_number(&delta->file, "tensors", 10, &info->n_model_tensors))
        status = fail_extras(delta, err);
    size_t n_found = 0;
    for (const dw_json *k = dw_json_first(all); status == DW_OK && k;
         k = dw_json_next(all, k)) {
        dw_delta_entry *e = find_entry(delta, dw_json_string(k));
        if (e)
            status = read_extra(delta, e, dw_json_value(k), err);
        n_found += e != NULL;
    }
    if (status == DW_OK && n_found != info->n_tensors) /* keys are unique */
        status = fail_extras(delta, err);
    dw_json_free(all);
    info->has_digests = status == DW_OK;
    return status;
}

dw_status dw_trl_read(dw_delta *delta, dw_error *err)
{
    dw_status status = read_layout(delta, err);
    if (status != DW_OK)
        return status;
    dw_name_index names;
    status = dw_name_index_init(&names, delta->file.tensors, delta->file.n_tensors, err);
    if (status != DW_OK)
        return status;
    status = read_entries(delta, &names, err);
    dw_name_index_release(&names);
    if (status != DW_OK)
        return status;
    /* TRL's version counts syncs from 1, each on top of the one before */
    if (dw_safetensors_number(&delta->file, "model_version", 10,
                              &delta->info.new_version))
        delta->info.base_version =
            delta->info.new_version ? delta->info.new_version - 1 : 0;
    return read_extras(delta, err);
}

/* ---- decoding ---- */

/* The position of change K, given the one before; UINT64_MAX if it does not ascend. */
static uint64_t next_position(const dw_delta_entry *e, uint64_t k, uint64_t previous)
{
    uint64_t after = previous + 1; /* 0 for the first change, when previous is -1 */
    if (e->index_kind == DW_TRL_GAP16)
        return after + dw_load16(e->indices + 2 * k);
    if (e->index_kind == DW_TRL_GAP32)
        return after + dw_load32(e->indices + 4 * k);
    int32_t at = (int32_t)dw_load32(e->indices + 4 * k);
    return at < 0 || (uint64_t)at < after ? UINT64_MAX : (uint64_t)at;
}

dw_status dw_trl_walk(const dw_delta *delta, const dw_delta_entry *e, uint64_t n_units,
                      uint32_t *positions, dw_trl_take take, void *context, dw_error *err)
{
    const unsigned width = e->element.width;
    const uint64_t n_block = dw_block_elems(width);
    dw_status status = DW_OK;
    uint64_t previous = UINT64_MAX, block = 0, n_done = 0;
    size_t n = 0;
    for (uint64_t k = 0; status == DW_OK && k <= e->n_changed; k++) {
        uint64_t at = k < e->n_changed ? next_position(e, k, previous) : n_units;
        if (k < e->n_changed && at >= n_units) {
            status = dw_fail_tensor(err, DW_CORRUPT, delta->label, e->shape.name,
                                    "index %" PRIu64
                                    " does not ascend or passes its %" PRIu64 " elements",
                                    k, n_units);
            break;
        }
        if (n > 0 && (k == e->n_changed || at / n_block != block)) {
            dw_decoded d = {positions, e->values + n_done * width, n};
            status = take(context, block * n_block, &d, err);
            n_done += n;
            n = 0;
        }
        if (k == e->n_changed)
            break;
        block = at / n_block;
        positions[n++] = (uint32_t)(at - block * n_block);
        previous = at;
    }
    return status;
}
