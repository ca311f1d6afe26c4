#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "codec/patch.h"
#include "codec/seal.h"
#include "codec/trl_delta.h"

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
    e->shape =
        *t; /* name and dims are copied below, because the patch does not live as long */
    e->has_shape = true;
    e->element = dw_dtype_element(t->dtype);
    e->n_changed = count_changes(r);
    if (t->name[0] == '\0')
        return dw_fail(err, DW_UNSUPPORTED, delta->label,
                       "a tensor without a name has no place in TRL's layout");
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
    uint64_t *dims = name ? dw_delta_alloc(delta, t->n_dims, sizeof *dims, err) : NULL;
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
    char *comma = strchr(out, ','); /* the caller's locale may have one */
    if (comma)
        *comma = '.';
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
        dw_write_format(w, ":{\"dtype\":\"%s\",\"shape\":[",
                        dw_dtype_name(e->shape.dtype));
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
        {"format", DW_TRL_FORMAT},
        {"version", "1"},
        {"sparse", "True"},
        {"model_version", version},
        {"num_changed_params", n_params},
        v1_layout
            ? (dw_pair){"changed_params", (const char *)params.bytes}
            : (dw_pair){"encoding", info->codec == DW_CODEC_GAP ? "gap_delta" : "raw"},
        {"total_changed_elements", n_changed},
        {"total_elements", n_elems},
        {"sparsity", sparsity},
        {"base_version", base_version},
        {"base_digest", base_digest},
        {"new_digest", new_digest},
        {"elements", elements},
        {"tensors", tensors},
        {"changed", (const char *)changed.bytes},
        {"seal", DW_SEAL_BLANK},
    };
    size_t n_metadata = sizeof metadata / sizeof metadata[0];
    dw_status status =
        params.failed || changed.failed
            ? dw_fail_memory(err, delta->label)
            : dw_safetensors_header(&delta->header, parts, n_parts, metadata, n_metadata,
                                    delta->label, err);
    if (status == DW_OK)
        dw_seal_set(delta->header.bytes + 8, delta->header.n_bytes - 8, NULL, 0);
    dw_writer_release(&params);
    dw_writer_release(&changed);
    return status;
}

static char *suffixed(dw_delta *delta, const char *name, const char *suffix,
                      dw_error *err)
{
    char *text = dw_delta_alloc(delta, strlen(name) + strlen(suffix) + 1, 1, err);
    return text ? strcat(strcpy(text, name), suffix) : NULL;
}

/* Two tensors for each entry, in the order the stock library would write. */
static dw_status write_pieces(dw_delta *delta, dw_error *err)
{
    static const dw_dtype index_dtype[] = {DW_I32, DW_U16, DW_U32};
    const dw_trl_spelling s = dw_trl_spelling_of(delta);
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
        parts[2 * i] = (dw_tensor){index_name,
                                   index_dtype[e->index_kind],
                                   1,
                                   &e->n_changed,
                                   e->n_changed * index_width,
                                   (void *)e->indices,
                                   0,
                                   NULL};
        parts[2 * i + 1] = (dw_tensor){values_name,
                                       e->shape.dtype,
                                       1,
                                       &e->n_changed,
                                       e->n_changed * e->element.width,
                                       (void *)e->values,
                                       0,
                                       NULL};
    }
    if (n_parts > 0)
        qsort(parts, n_parts, sizeof *parts, dw_safetensors_compare);
    dw_status status = write_header(delta, parts, n_parts, err);
    if (status != DW_OK)
        return status;
    pieces[0] = (dw_piece){delta->header.bytes, delta->header.n_bytes, 0};
    for (size_t i = 0; i < n_parts; i++)
        pieces[i + 1] = (dw_piece){parts[i].data, (size_t)parts[i].n_bytes, 0};
    dw_delta_set_pieces(delta, pieces, n_parts + 1);
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
        qsort(delta->entries, n, sizeof *delta->entries, dw_entry_compare);
    delta->info.n_tensors = n;
    delta->info.n_changed = patch->n_changed;
    delta->info.has_digests = true;
    return write_pieces(delta, err);
}
