/* Which of the caller's weights are read, and as which type. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "publish/publisher.h"

dw_status dw_live_shapes(dw_tensor **out, size_t *n_out, dw_publisher *p,
                         const dw_tensor *tensors, size_t n_tensors, dw_error *err)
{
    const bool *as_bf16 = p->options.as_bf16;
    dw_live_quant *q = &p->live.quant;
    *out = NULL;
    dw_status status = DW_OK;
    if (p->options.quantize && p->options.quantize->scheme != DW_QUANT_NONE)
        status = dw_tensors_need_host(tensors, n_tensors, "quantise it", err);
    if (p->options.baseline_dir && !p->sharded && status == DW_OK)
        status = dw_tensors_need_host(tensors, n_tensors,
                                      "compare it with a baseline in a directory", err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; as_bf16 && i < n_tensors; i++)
        if (as_bf16[i] && tensors[i].dtype != DW_F32)
            return dw_fail_tensor(err, DW_INVALID, NULL, tensors[i].name,
                                  "only F32 can be published as BF16");
    status = dw_live_quant_plan(q, tensors, n_tensors, &p->options, err);
    if (status != DW_OK)
        return status;
    *n_out = q->plan ? q->plan->n_entries : n_tensors;
    *out = dw_alloc_array(*n_out, sizeof **out);
    if (!*out)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < *n_out; i++) {
        dw_tensor *t = &(*out)[i];
        *t = q->plan ? q->plan->entries[i].tensor : tensors[i];
        t->device = NULL; /* only names, types and shapes */
        if (!q->plan && as_bf16 && as_bf16[i]) {
            t->dtype = DW_BF16;
            t->n_bytes /= 2;
        }
    }
    return DW_OK;
}

/* The caller's tensor that tensor T of the table is made of. */
static size_t source_of(const dw_publisher *p, const dw_name_index *names, size_t t)
{
    const dw_live_quant *q = &p->live.quant;
    return q->plan ? q->plan->entries[t].source
                   : dw_name_index_find(names, p->stream->record.tensors[t].name);
}

static bool is_scale(const dw_publisher *p, size_t t)
{
    const dw_live_quant *q = &p->live.quant;
    return q->plan && q->plan->entries[t].role == DW_QUANT_SCALE;
}

/* ---- the caller's tensors or shards ---- */

/* All tensors, in the order of the table, and their data. */
static dw_status take_tensors(dw_publisher *p, const dw_tensor *tensors, size_t n_tensors,
                              dw_slices *owned, dw_error *err)
{
    const dw_stream_record *s = &p->stream->record;
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    status = dw_slices_of_covers(owned, NULL, 0, s->tensors, s->n_tensors, err);
    p->live.data = dw_alloc_zeroed(s->n_tensors, sizeof *p->live.data);
    p->live.devices = dw_alloc_zeroed(s->n_tensors, sizeof *p->live.devices);
    if (status == DW_OK && (!p->live.data || !p->live.devices))
        status = dw_fail_memory(err, NULL);
    for (size_t t = 0; status == DW_OK && t < s->n_tensors; t++) {
        const dw_tensor *mine = &tensors[source_of(p, &names, t)];
        p->live.data[t] = is_scale(p, t) ? NULL : mine->data;
        p->live.devices[t] = mine->device;
        if (!mine->data && mine->n_bytes > 0)
            status = dw_fail_tensor(err, DW_INVALID, NULL, mine->name, "it has no data");
    }
    dw_name_index_release(&names);
    return status;
}

typedef struct owned_shard {
    dw_slice slice;
    void *data;
    dw_device *device;
} owned_shard;

static int compare_shards(const void *left, const void *right)
{
    const dw_slice *a = &((const owned_shard *)left)->slice;
    const dw_slice *b = &((const owned_shard *)right)->slice;
    return a->tensor != b->tensor ? (a->tensor > b->tensor) - (a->tensor < b->tensor)
                                  : (a->first > b->first) - (a->first < b->first);
}

static dw_status take_shards(dw_publisher *p, const dw_tensor *tensors, size_t n_tensors,
                             dw_slices *owned, dw_error *err)
{
    const dw_stream_record *s = &p->stream->record;
    const size_t n = p->options.n_shards;
    size_t n_taken = 0;
    /* the scales of a shard are another one */
    owned_shard *list = dw_alloc_array(2 * n, sizeof *list);
    p->live.data = dw_alloc_zeroed(2 * n, sizeof *p->live.data);
    p->live.devices = dw_alloc_zeroed(2 * n, sizeof *p->live.devices);
    dw_name_index names;
    dw_status status =
        list && p->live.data && p->live.devices ? DW_OK : dw_fail_memory(err, NULL);
    if (status == DW_OK)
        status = dw_name_index_init(&names, s->tensors, s->n_tensors, err);
    if (status != DW_OK) {
        dw_free(list);
        return status;
    }
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        const dw_shard *shard = &p->options.shards[i];
        if (shard->tensor >= n_tensors || (!shard->data && shard->n_elems > 0)) {
            status = dw_fail(err, DW_INVALID, NULL,
                             "shard %zu names no tensor of the list, or has no data", i);
            break;
        }
        size_t t = dw_name_index_find(&names, tensors[shard->tensor].name);
        const dw_slice slice = {t, shard->first, shard->n_elems};
        /* after an uneven split some ranks own nothing of a tensor */
        if (slice.n > 0 || dw_slice_is_whole(s->tensors, &slice))
            list[n_taken++] =
                (owned_shard){slice, shard->data, tensors[shard->tensor].device};
        if (slice.n == 0 || !dw_live_quant_makes(&p->live.quant, t))
            continue;
        const dw_slice scales = dw_live_quant_scales(&p->live.quant, &slice);
        if (scales.n > 0 || dw_slice_is_whole(s->tensors, &scales))
            list[n_taken++] = (owned_shard){scales, NULL, NULL};
    }
    if (status == DW_OK && n_taken > 0)
        qsort(list, n_taken, sizeof *list, compare_shards);
    for (size_t i = 0; status == DW_OK && i < n_taken; i++) {
        p->live.data[i] = list[i].data;
        p->live.devices[i] = list[i].device;
        status = dw_slices_append(owned, list[i].slice, err);
    }
    dw_name_index_release(&names);
    dw_free(list);
    return status;
}

dw_status dw_live_take(dw_publisher *p, const dw_tensor *tensors, size_t n_tensors,
                       dw_slices *owned, dw_error *err)
{
    return p->sharded ? take_shards(p, tensors, n_tensors, owned, err)
                      : take_tensors(p, tensors, n_tensors, owned, err);
}

/* ---- opening and closing ---- */

dw_status dw_live_open(dw_publisher *p, const dw_name_index *names, dw_error *err)
{
    dw_live *live = &p->live;
    const size_t n = p->pieces.n_table;
    live->types = dw_alloc_array(n, sizeof *live->types);
    live->number = dw_alloc_array(n, sizeof *live->number);
    live->is_known = dw_alloc_zeroed(n, sizeof *live->is_known);
    live->views = dw_alloc_array(p->pieces.cut.n, sizeof *live->views);
    live->chosen = dw_alloc_array(p->pieces.cut.n, sizeof *live->chosen);
    if (!live->types || !live->number || !live->is_known || !live->views || !live->chosen)
        return dw_fail_memory(err, NULL);
    for (size_t t = 0; t < n; t++) {
        live->number[t] = source_of(p, names, t);
        live->types[t] = is_scale(p, t) ? DW_F32 : names->tensors[live->number[t]].dtype;
    }
    dw_pieces_view_as(&p->pieces, live->views, live->data, live->types);
    dw_pieces_place(&p->pieces, live->views, live->devices);
    dw_status status = dw_live_quant_open(&live->quant, &p->pieces, err);
    return status == DW_OK ? dw_shared_open(p, err) : status;
}

void dw_live_close(dw_live *live)
{
    dw_free(live->data);
    dw_free(live->devices);
    dw_free(live->views);
    dw_free(live->chosen);
    dw_free(live->types);
    dw_free(live->number);
    dw_free(live->is_known);
    dw_shared_close(&live->shared);
    dw_live_quant_close(&live->quant);
}

dw_status dw_live_confirm(const dw_publisher *p, dw_error *err)
{
    const dw_publish_options *o = &p->options;
    return o->confirm ? o->confirm(o->confirm_context, err) : DW_OK;
}

static bool is_master(const dw_publisher *p, size_t t)
{
    return !dw_live_quant_makes(&p->live.quant, t) &&
           p->live.types[t] != p->pieces.table[t].dtype;
}

dw_status dw_live_read(dw_publisher *p, size_t k, dw_place into, dw_error *err)
{
    const dw_slice *s = &p->pieces.owned.items[k];
    const uint64_t n = dw_slice_bytes(p->pieces.table, s);
    const dw_place from = {p->live.devices[k], p->live.data[k]};
    if (!dw_live_quant_makes(&p->live.quant, s->tensor))
        return is_master(p, s->tensor) ? dw_place_round(into, from, n / 2, err)
                                       : dw_place_copy(into, from, n, err);
    dw_status status =
        dw_live_quant_add(&p->live.quant, s, p->live.data[k], into.data, err);
    return status == DW_OK ? dw_live_quant_make(&p->live.quant, err) : status;
}

static dw_status make_group(dw_publisher *p, const dw_piece_group *group, bool with_known,
                            dw_error *err)
{
    dw_live *live = &p->live;
    uint8_t *at = live->quant.scratch;
    dw_status status = DW_OK;
    for (size_t i = group->first; status == DW_OK && i < group->first + group->n; i++) {
        const dw_slice *s = &p->pieces.cut.items[i];
        if (!dw_live_quant_makes(&live->quant, s->tensor) ||
            (live->is_known[s->tensor] && !with_known))
            continue;
        live->chosen[i] = p->pieces.shapes.tensors[i];
        live->chosen[i].data = at;
        status = dw_live_quant_add(&live->quant, s, live->views[i].data, at, err);
        at += dw_padded(live->chosen[i].n_bytes);
    }
    return status == DW_OK ? dw_live_quant_make(&live->quant, err) : status;
}

dw_status dw_live_load(void *publisher, const dw_piece_group *group, dw_error *err)
{
    return make_group(publisher, group, false, err);
}

dw_status dw_live_make_piece(dw_publisher *p, size_t i, dw_error *err)
{
    return make_group(p, &(dw_piece_group){i, 1}, true, err);
}

/* ---- all weights, as they are published ---- */

static bool is_made(const dw_publisher *p, size_t t)
{
    return is_master(p, t) || dw_live_quant_makes(&p->live.quant, t);
}

dw_status dw_live_whole(dw_publisher *p, dw_live_copy *out, dw_error *err)
{
    *out = (dw_live_copy){.data = dw_alloc_array(p->pieces.n_table, sizeof *out->data)};
    dw_tensor *made = dw_alloc_array(p->pieces.n_table, sizeof *made);
    size_t n = 0;
    dw_status status = out->data && made ? DW_OK : dw_fail_memory(err, NULL);
    for (size_t t = 0; status == DW_OK && t < p->pieces.n_table; t++) {
        /* a baseline in memory already holds a copy of what is published */
        out->data[t] = p->baseline.in_memory ? p->baseline.data[t] : p->live.data[t];
        if (!p->baseline.in_memory && is_made(p, t))
            made[n++] = p->pieces.table[t];
    }
    if (status == DW_OK && n > 0)
        status = dw_scratch_model_make(&out->made, made, n, p->options.spool_dir, err);
    for (size_t t = 0, k = 0; status == DW_OK && n > 0 && t < p->pieces.n_table; t++)
        if (is_made(p, t)) {
            out->data[t] = out->made.tensors[k++].data;
            status = dw_live_read(p, t, (dw_place){NULL, out->data[t]}, err);
        }
    dw_free(made);
    if (status != DW_OK)
        dw_live_copy_release(out);
    return status;
}

void dw_live_copy_release(dw_live_copy *copy)
{
    dw_scratch_model_release(&copy->made);
    dw_free(copy->data);
    *copy = (dw_live_copy){0};
}

/* ---- tensors that did not change ---- */

void dw_live_note_unchanged(dw_publisher *p, const bool *unchanged)
{
    for (size_t t = 0; t < p->pieces.n_table; t++)
        p->live.is_known[t] = p->live.is_known[t] && unchanged[t];
}

void dw_live_choose(dw_publisher *p)
{
    for (size_t i = 0; i < p->pieces.cut.n; i++) {
        const size_t t = p->pieces.cut.items[i].tensor;
        p->live.chosen[i] = p->live.is_known[t] ? p->baseline.views[i] : p->live.views[i];
    }
}

void dw_live_mark(dw_publisher *p, bool is_known)
{
    memset(p->live.is_known, is_known, p->pieces.n_table * sizeof *p->live.is_known);
}
