#include "codec/trl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"
#include "codec/patch.h"
#include "tensor/tensor_list.h"

#define FORMAT "sparse_weight_patch"

/* The two spellings. */
typedef struct spelling {
    const char *index;
    const char *values;
} spelling;

static const spelling v1 = {".indices", ".values"};
static const spelling v3 = {".idx", ".val"};

static spelling spelling_of(const dw_delta *delta)
{
    return delta->info.trl_layout == 1 ? v1 : v3;
}

/* ---- reading ---- */

bool dw_trl_detect(const dw_safetensors *file)
{
    const char *format = dw_safetensors_metadata(file, "format");
    return format && strcmp(format, FORMAT) == 0;
}

static dw_status read_layout(dw_delta *delta, dw_error *err)
{
    const char *sparse = dw_safetensors_metadata(&delta->file, "sparse");
    const char *encoding = dw_safetensors_metadata(&delta->file, "encoding");
    if (!sparse || strcmp(sparse, "True") != 0)
        return dw_fail(err, DW_UNSUPPORTED, delta->label,
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

static bool read_number(const dw_delta *delta, const char *key, int radix, uint64_t *out)
{
    const char *text = dw_safetensors_metadata(&delta->file, key);
    char *end = NULL;
    if (text && text[0] >= '0')
        *out = strtoull(text, &end, radix);
    return end && *end == '\0';
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
        fault = "it has not as many values as indices";
    if (!fault && values->dims[0] != e->n_changed)
        fault = "values of that type cannot be told apart as elements";
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
    size_t i = n > 0 && (size_t)n < sizeof name ? dw_name_index_find(names, name) : SIZE_MAX;
    return i == SIZE_MAX ? NULL : &names->tensors[i];
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const dw_delta_entry *)a)->shape.name,
                  ((const dw_delta_entry *)b)->shape.name);
}

static dw_status read_entries(dw_delta *delta, const dw_name_index *names, dw_error *err)
{
    const dw_safetensors *file = &delta->file;
    const spelling s = spelling_of(delta);
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
                       "%zu tensors are not pairs of '%s' and '%s'", file->n_tensors - 2 * n,
                       s.index + 1, s.values + 1);
    delta->info.n_tensors = n;
    if (n > 0)
        qsort(delta->entries, n, sizeof *delta->entries, compare_entries);
    return DW_OK;
}

/* One entry of `changed`: what TRL's own files lack. */
static bool read_extra(dw_delta *delta, dw_delta_entry *e, const json_t *all, dw_error *err)
{
    const char *dtype, *base, *next;
    json_t *shape, *extra = json_object_get(all, e->shape.name);
    if (json_unpack(extra, "{s:s, s:o, s:s, s:s}", "dtype", &dtype, "shape", &shape, "base",
                    &base, "new", &next) != 0 ||
        !json_is_array(shape) || json_array_size(shape) > DW_MAX_DIMS ||
        strcmp(dtype, dw_dtype_name(e->shape.dtype)) != 0)
        return false;
    uint64_t *dims = dw_delta_alloc(delta, json_array_size(shape), sizeof *dims, err);
    if (!dims)
        return false;
    for (size_t d = 0; d < json_array_size(shape); d++) {
        json_int_t v = json_integer_value(json_array_get(shape, d));
        if (v < 0)
            return false;
        dims[d] = (uint64_t)v;
    }
    char *base_end, *next_end;
    e->base_digest = strtoull(base, &base_end, 16);
    e->new_digest = strtoull(next, &next_end, 16);
    e->shape.dims = dims;
    e->shape.n_dims = (uint32_t)json_array_size(shape);
    e->has_shape =
        dw_shape_size(e->shape.dtype, e->shape.n_dims, dims, NULL, &e->shape.n_bytes);
    return e->has_shape && *base_end == '\0' && *next_end == '\0';
}

/* Files of ours carry digests and shapes; others do without. */
static dw_status read_extras(dw_delta *delta, dw_error *err)
{
    dw_delta_info *info = &delta->info;
    const char *changed = dw_safetensors_metadata(&delta->file, "changed");
    if (!changed)
        return DW_OK;
    json_t *all;
    dw_status status = dw_json_parse_object(&all, changed, strlen(changed),
                                            "metadata 'changed'", delta->label, err);
    if (status != DW_OK)
        return status;
    bool good = read_number(delta, "base_version", 10, &info->base_version) &&
                read_number(delta, "base_digest", 16, &info->base_state) &&
                read_number(delta, "new_digest", 16, &info->new_state) &&
                read_number(delta, "elements", 10, &info->n_model_elems) &&
                read_number(delta, "tensors", 10, &info->n_model_tensors);
    for (size_t i = 0; good && i < info->n_tensors; i++)
        good = read_extra(delta, &delta->entries[i], all, err);
    json_decref(all);
    if (!good)
        return dw_fail(err, DW_CORRUPT, delta->label,
                       "the metadata that deltawire added is incomplete or altered");
    info->has_digests = true;
    return DW_OK;
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
    if (read_number(delta, "model_version", 10, &delta->info.new_version))
        delta->info.base_version = delta->info.new_version ? delta->info.new_version - 1 : 0;
    return read_extras(delta, err);
}

/* ---- decoding ---- */

/* Position of change K, given that of the one before; UINT64_MAX on a descent. */
static uint64_t next_position(const dw_delta_entry *e, uint64_t k, uint64_t previous)
{
    uint64_t after = previous + 1; /* 0 before the first: previous is then -1 */
    if (e->index_kind == DW_TRL_GAP16)
        return after + dw_load16(e->indices + 2 * k);
    if (e->index_kind == DW_TRL_GAP32)
        return after + dw_load32(e->indices + 4 * k);
    int32_t at = (int32_t)dw_load32(e->indices + 4 * k);
    return at < 0 || (uint64_t)at < after ? UINT64_MAX : (uint64_t)at;
}

dw_status dw_trl_walk(const dw_delta *delta, const dw_delta_entry *e, uint64_t n_units,
                      dw_trl_take take, void *context, dw_error *err)
{
    const unsigned width = e->element.width;
    const uint64_t n_block = dw_block_elems(width);
    uint32_t *positions = dw_alloc_array((size_t)n_block, sizeof *positions);
    if (!positions)
        return dw_fail_memory(err, delta->label);
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
    dw_free(positions);
    return status;
}

/* ---- writing ---- */

/* The changes of one tensor: patch segments [begin, end). */
typedef struct range {
    const dw_patch *patch;
    size_t begin, end;
} range;

static uint64_t count_changes(const range *r)
{
    uint64_t n = 0;
    for (size_t i = r->begin; i < r->end; i++)
        n += r->patch->segments[i].n;
    return n;
}

static uint64_t largest_gap(const range *r)
{
    uint64_t largest = 0, after = 0;
    for (size_t i = r->begin; i < r->end; i++) {
        const dw_segment *s = &r->patch->segments[i];
        for (uint32_t k = 0; k < s->n; k++) {
            uint64_t at = s->first + s->positions[k];
            largest = at - after > largest ? at - after : largest;
            after = at + 1;
        }
    }
    return largest;
}

static void write_indices(uint8_t *to, dw_trl_index kind, const range *r)
{
    uint64_t after = 0;
    for (size_t i = r->begin; i < r->end; i++) {
        const dw_segment *s = &r->patch->segments[i];
        for (uint32_t k = 0; k < s->n; k++) {
            uint64_t at = s->first + s->positions[k];
            uint64_t v = kind == DW_TRL_I32 ? at : at - after;
            after = at + 1;
            if (kind == DW_TRL_GAP16) {
                dw_store16(to, (uint16_t)v);
                to += 2;
            } else {
                dw_store32(to, (uint32_t)v);
                to += 4;
            }
        }
    }
}

static dw_status fill_entry(dw_delta *delta, dw_delta_entry *e, const range *r,
                            dw_error *err)
{
    const dw_tensor *t = &r->patch->tensors[r->patch->segments[r->begin].tensor];
    uint64_t n_elems;
    e->shape = *t; /* name and dims are copied below: the patch goes away */
    e->has_shape = true;
    e->element = dw_dtype_element(t->dtype);
    e->n_changed = count_changes(r);
    if (!dw_shape_size(t->dtype, t->n_dims, t->dims, &n_elems, NULL) ||
        n_elems != dw_tensor_units(t))
        return dw_fail_tensor(err, DW_UNSUPPORTED, delta->label, t->name,
                              "%s has no place in TRL's layout: use codec class",
                              dw_dtype_name(t->dtype));
    e->index_kind = DW_TRL_I32;
    if (delta->info.codec == DW_CODEC_GAP) {
        uint64_t gap = largest_gap(r);
        e->index_kind = gap <= UINT16_MAX ? DW_TRL_GAP16 : DW_TRL_GAP32;
        if (gap > UINT32_MAX)
            return dw_fail_tensor(err, DW_UNSUPPORTED, delta->label, t->name,
                                  "a gap passes 32 bits: use codec class");
    } else if (n_elems > INT32_MAX) {
        return dw_fail_tensor(err, DW_UNSUPPORTED, delta->label, t->name,
                              "positions pass 31 bits: use codec class or gap");
    }
    const unsigned width = e->element.width;
    uint8_t *indices = dw_delta_alloc(delta, (size_t)e->n_changed, 4, err);
    uint8_t *values =
        indices ? dw_delta_alloc(delta, (size_t)e->n_changed, width, err) : NULL;
    char *name = values ? dw_delta_alloc(delta, strlen(t->name) + 1, 1, err) : NULL;
    uint64_t *dims =
        name ? dw_delta_alloc(delta, t->n_dims, sizeof *dims, err) : NULL;
    if (!dims)
        return DW_NO_MEMORY;
    write_indices(indices, e->index_kind, r);
    e->indices = indices;
    e->values = values;
    for (size_t i = r->begin; i < r->end; i++) {
        const dw_segment *s = &r->patch->segments[i];
        memcpy(values, s->values, (size_t)s->n * width);
        values += (size_t)s->n * width;
    }
    e->shape.name = strcpy(name, t->name);
    if (t->n_dims > 0)
        memcpy(dims, t->dims, t->n_dims * sizeof *dims);
    e->shape.dims = dims;
    return DW_OK;
}

/* A double as Python's str() spells it: the shortest digits that read back the same. */
static void python_float(char *out, size_t size, double v)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            break;
    }
    if (!strpbrk(out, ".en"))
        strncat(out, ".0", size - strlen(out) - 1);
}

static void write_changed_params(dw_writer *w, const dw_delta *delta)
{
    for (size_t i = 0; i < delta->info.n_tensors; i++) {
        dw_write_text(w, i ? ", " : "[");
        dw_write_json_string(w, delta->entries[i].shape.name);
    }
    dw_write_text(w, delta->info.n_tensors ? "]" : "[]");
    dw_write_u8(w, 0);
}

static void write_changed(dw_writer *w, const dw_delta *delta)
{
    for (size_t i = 0; i < delta->info.n_tensors; i++) {
        const dw_delta_entry *e = &delta->entries[i];
        dw_write_u8(w, i ? ',' : '{');
        dw_write_json_string(w, e->shape.name);
        dw_write_format(w, ":{\"dtype\":\"%s\",\"shape\":[", dw_dtype_name(e->shape.dtype));
        for (uint32_t d = 0; d < e->shape.n_dims; d++)
            dw_write_format(w, "%s%" PRIu64, d ? "," : "", e->shape.dims[d]);
        dw_write_format(w, "],\"base\":\"%016" PRIx64 "\",\"new\":\"%016" PRIx64 "\"}",
                        e->base_digest, e->new_digest);
    }
    dw_write_text(w, delta->info.n_tensors ? "}" : "{}");
    dw_write_u8(w, 0);
}

static dw_status write_header(dw_delta *delta, const dw_tensor *parts, size_t n_parts,
                              dw_error *err)
{
    const dw_delta_info *info = &delta->info;
    char version[24], n_params[24], n_changed[24], n_elems[24], sparsity[40];
    char base_version[24], base_digest[24], new_digest[24], elements[24], tensors[24];
    uint64_t total = 0;
    for (size_t i = 0; i < info->n_tensors; i++)
        total += dw_entry_units(&delta->entries[i]);
    snprintf(version, sizeof version, "%" PRIu64, info->new_version);
    snprintf(n_params, sizeof n_params, "%zu", info->n_tensors);
    snprintf(n_changed, sizeof n_changed, "%" PRIu64, info->n_changed);
    snprintf(n_elems, sizeof n_elems, "%" PRIu64, total);
    python_float(sparsity, sizeof sparsity,
                 total ? 1.0 - (double)info->n_changed / (double)total : 1.0);
    snprintf(base_version, sizeof base_version, "%" PRIu64, info->base_version);
    snprintf(base_digest, sizeof base_digest, "%016" PRIx64, info->base_state);
    snprintf(new_digest, sizeof new_digest, "%016" PRIx64, info->new_state);
    snprintf(elements, sizeof elements, "%" PRIu64, info->n_model_elems);
    snprintf(tensors, sizeof tensors, "%" PRIu64, info->n_model_tensors);

    dw_writer params = {0}, changed = {0};
    write_changed_params(&params, delta);
    write_changed(&changed, delta);
    bool v1_layout = info->trl_layout == 1;
    const dw_pair metadata[] = {
        {"format", FORMAT},
        {"version", "1"},
        {"sparse", "True"},
        {"model_version", version},
        {"num_changed_params", n_params},
        v1_layout ? (dw_pair){"changed_params", (const char *)params.bytes}
                  : (dw_pair){"encoding",
                              info->codec == DW_CODEC_GAP ? "gap_delta" : "raw"},
        {"total_changed_elements", n_changed},
        {"total_elements", n_elems},
        {"sparsity", sparsity},
        {"base_version", base_version},
        {"base_digest", base_digest},
        {"new_digest", new_digest},
        {"elements", elements},
        {"tensors", tensors},
        {"changed", (const char *)changed.bytes},
    };
    size_t n_metadata = sizeof metadata / sizeof metadata[0];
    dw_status status = params.failed || changed.failed
                           ? dw_fail_memory(err, delta->label)
                           : dw_safetensors_header(&delta->header, parts, n_parts, metadata,
                                                   n_metadata, delta->label, err);
    dw_writer_release(&params);
    dw_writer_release(&changed);
    return status;
}

static char *suffixed(dw_delta *delta, const char *name, const char *suffix, dw_error *err)
{
    char *text = dw_delta_alloc(delta, strlen(name) + strlen(suffix) + 1, 1, err);
    return text ? strcat(strcpy(text, name), suffix) : NULL;
}

/* Two tensors for each entry, in the order the stock library would write. */
static dw_status write_pieces(dw_delta *delta, dw_error *err)
{
    static const dw_dtype index_dtype[] = {DW_I32, DW_U16, DW_U32};
    const spelling s = spelling_of(delta);
    const size_t n_parts = 2 * delta->info.n_tensors;
    dw_tensor *parts = dw_delta_alloc(delta, n_parts, sizeof *parts, err);
    dw_piece *pieces =
        parts ? dw_delta_alloc(delta, n_parts + 1, sizeof *pieces, err) : NULL;
    if (!pieces)
        return DW_NO_MEMORY;
    for (size_t i = 0; i < delta->info.n_tensors; i++) {
        const dw_delta_entry *e = &delta->entries[i];
        char *index_name = suffixed(delta, e->shape.name, s.index, err);
        char *values_name = suffixed(delta, e->shape.name, s.values, err);
        if (!index_name || !values_name)
            return DW_NO_MEMORY;
        unsigned index_width = e->index_kind == DW_TRL_GAP16 ? 2 : 4;
        parts[2 * i] = (dw_tensor){index_name, index_dtype[e->index_kind], 1, &e->n_changed,
                                   e->n_changed * index_width, (void *)e->indices};
        parts[2 * i + 1] = (dw_tensor){values_name, e->shape.dtype, 1, &e->n_changed,
                                       e->n_changed * e->element.width, (void *)e->values};
    }
    if (n_parts > 0)
        qsort(parts, n_parts, sizeof *parts, dw_safetensors_compare);
    dw_status status = write_header(delta, parts, n_parts, err);
    if (status != DW_OK)
        return status;
    pieces[0] = (dw_piece){delta->header.bytes, delta->header.n_bytes};
    delta->info.n_bytes = delta->header.n_bytes;
    for (size_t i = 0; i < n_parts; i++) {
        pieces[i + 1] = (dw_piece){parts[i].data, (size_t)parts[i].n_bytes};
        delta->info.n_bytes += parts[i].n_bytes;
    }
    delta->pieces = pieces;
    delta->n_pieces = n_parts + 1;
    return DW_OK;
}

dw_status dw_trl_write(dw_delta *delta, const dw_patch *patch, dw_trl_digests digests,
                       dw_error *err)
{
    delta->entries = dw_delta_alloc(delta, patch->n_tensors, sizeof *delta->entries, err);
    if (!delta->entries)
        return DW_NO_MEMORY;
    size_t n = 0;
    for (size_t begin = 0, end; begin < patch->n_segments; begin = end) {
        size_t tensor = patch->segments[begin].tensor;
        for (end = begin; end < patch->n_segments; end++)
            if (patch->segments[end].tensor != tensor)
                break;
        range r = {patch, begin, end};
        dw_delta_entry *e = &delta->entries[n++];
        dw_status status = fill_entry(delta, e, &r, err);
        if (status != DW_OK)
            return status;
        e->base_digest = digests.base[tensor];
        e->new_digest = digests.next[tensor];
    }
    if (n > 0)
        qsort(delta->entries, n, sizeof *delta->entries, compare_entries);
    delta->info.n_tensors = n;
    delta->info.n_changed = patch->n_changed;
    delta->info.has_digests = true;
    return write_pieces(delta, err);
}
