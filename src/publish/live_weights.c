/* Which of the caller's weights are read, and as which type. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "publish/publisher.h"

static dw_status check_masters(const dw_publisher *p, const dw_tensor *tensors,
                               size_t n_tensors, dw_error *err)
{
    const bool *as_bf16 = p->options.as_bf16;
    for (size_t i = 0; as_bf16 && i < n_tensors; i++)
        if (as_bf16[i] && tensors[i].dtype != DW_F32)
            return dw_fail_tensor(err, DW_INVALID, NULL, tensors[i].name,
                                  "only F32 can be published as BF16");
    return DW_OK;
}

dw_status dw_live_quantize(dw_publisher *p, const dw_tensor **tensors, size_t *n_tensors,
                           dw_error *err)
{
    dw_quantizer *q = &p->live.quant;
    dw_status status = check_masters(p, *tensors, *n_tensors, err);
    if (status != DW_OK || !p->options.quantize ||
        p->options.quantize->scheme == DW_QUANT_NONE)
        return status;
    status = dw_quantizer_open(q, *tensors, *n_tensors, &p->options, err);
    if (status != DW_OK)
        return status;
    p->live.source =
        (dw_weight_source){NULL, dw_quantizer_read, q, q->grains}; /* see dw_live_meet */
    p->options.as_bf16 = NULL;
    if (p->sharded) {
        p->options.shards = q->shards;
        p->options.n_shards = q->n_shards;
    }
    *tensors = q->tensors;
    *n_tensors = q->plan->n_entries;
    return DW_OK;
}

dw_status dw_live_shapes(dw_tensor **out, const dw_publisher *p, const dw_tensor *tensors,
                         size_t n_tensors, dw_error *err)
{
    const bool *as_bf16 = p->options.as_bf16;
    *out = NULL;
    if (p->options.baseline_dir && !p->sharded) {
        dw_status status = dw_tensors_need_host(
            tensors, n_tensors, "compare it with a baseline in a directory", err);
        if (status != DW_OK)
            return status;
    }
    *out = dw_alloc_array(n_tensors, sizeof **out);
    if (!*out)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < n_tensors; i++) {
        dw_tensor *t = &(*out)[i];
        *t = tensors[i];
        t->device = NULL; /* only names, types and shapes */
        if (as_bf16 && as_bf16[i]) {
            t->dtype = DW_BF16;
            t->n_bytes /= 2;
        }
    }
    return DW_OK;
}

/* Whether the weights are pulled from a source. */
static bool is_pulled(const dw_publisher *p)
{
    return p->live.source.read != NULL;
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
        const dw_tensor *mine = &tensors[dw_name_index_find(&names, s->tensors[t].name)];
        p->live.data[t] = mine->data;
        p->live.devices[t] = mine->device;
        if (!mine->data && mine->n_bytes > 0 && !is_pulled(p))
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
    owned_shard *list = dw_alloc_array(n, sizeof *list);
    p->live.data = dw_alloc_zeroed(n, sizeof *p->live.data);
    p->live.devices = dw_alloc_zeroed(n, sizeof *p->live.devices);
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
        if (shard->tensor >= n_tensors ||
            (!shard->data && shard->n_elems > 0 && !is_pulled(p))) {
            status = dw_fail(err, DW_INVALID, NULL,
                             "shard %zu names no tensor of the list, or has no data", i);
            break;
        }
        size_t t = dw_name_index_find(&names, tensors[shard->tensor].name);
        const dw_slice slice = {t, shard->first, shard->n_elems};
        /* after an uneven split some ranks own nothing of a tensor */
        if (slice.n > 0 || dw_slice_is_whole(s->tensors, &slice))
            list[n_taken++] = (owned_shard){slice, is_pulled(p) ? NULL : shard->data,
                                            tensors[shard->tensor].device};
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
    live->pulled = dw_alloc_array(p->pieces.cut.n, sizeof *live->pulled);
    if (is_pulled(p))
        live->scratch = dw_alloc((size_t)dw_pieces_group_room(&p->pieces));
    if (!live->types || !live->number || !live->is_known || !live->views ||
        !live->chosen || !live->pulled || (is_pulled(p) && !live->scratch))
        return dw_fail_memory(err, NULL);
    for (size_t t = 0; t < n; t++) {
        const size_t number = dw_name_index_find(names, p->pieces.table[t].name);
        live->number[t] =
            is_pulled(p) ? live->quant.plan->entries[number].source : number;
        live->types[t] = names->tensors[number].dtype;
    }
    dw_pieces_view_as(&p->pieces, live->views, live->data, live->types);
    dw_pieces_place(&p->pieces, live->views, live->devices);
    return DW_OK;
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
    dw_free(live->pulled);
    dw_free(live->scratch);
    dw_quantizer_close(&live->quant);
}

dw_status dw_live_meet(dw_publisher *p, dw_status so_far, dw_error *err)
{
    bool is_needed;
    if (!is_pulled(p))
        return so_far;
    const bool has_failed = so_far != DW_OK;
    dw_status status = dw_quantizer_meet(&p->live.quant, has_failed, &is_needed,
                                         has_failed ? NULL : err);
    p->live.source.begin = is_needed ? dw_quantizer_begin : NULL;
    return has_failed ? so_far : status;
}

dw_status dw_live_begin(dw_publisher *p, uint64_t turn, const bool *unchanged,
                        dw_status so_far, dw_error *err)
{
    const dw_weight_source *s = &p->live.source;
    if (!s->begin)
        return so_far;
    for (size_t t = 0; unchanged && t < p->pieces.n_table; t++)
        p->live.is_known[t] = p->live.is_known[t] && unchanged[p->live.number[t]];
    const dw_weight_turn begun = {turn, so_far != DW_OK, !unchanged, p->live.is_known};
    dw_status status = s->begin(s->context, &begun, so_far == DW_OK ? err : NULL);
    return so_far == DW_OK ? status : so_far;
}

dw_status dw_live_confirm(const dw_publisher *p, dw_error *err)
{
    const dw_publish_options *o = &p->options;
    return o->confirm ? o->confirm(o->confirm_context, err) : DW_OK;
}

static bool is_master(const dw_publisher *p, size_t t)
{
    return p->live.types[t] != p->pieces.table[t].dtype;
}

dw_status dw_live_read(dw_publisher *p, size_t k, dw_place into, dw_error *err)
{
    const dw_slice *s = &p->pieces.owned.items[k];
    const uint64_t n = dw_slice_bytes(p->pieces.table, s);
    const dw_place from = {p->live.devices[k], p->live.data[k]};
    const dw_weight_piece piece = {s->tensor, s->first, s->n, into.data};
    return is_pulled(p) ? p->live.source.read(p->live.source.context, &piece, 1, err)
           : is_master(p, s->tensor) ? dw_place_round(into, from, n / 2, err)
                                     : dw_place_copy(into, from, n, err);
}

static dw_status make_group(dw_publisher *p, const dw_piece_group *group, bool with_known,
                            dw_error *err)
{
    dw_live *live = &p->live;
    uint8_t *at = live->scratch;
    size_t n = 0;
    for (size_t i = group->first; i < group->first + group->n; i++) {
        const dw_slice *s = &p->pieces.cut.items[i];
        if (live->is_known[s->tensor] && !with_known)
            continue;
        live->chosen[i] = p->pieces.shapes.tensors[i];
        live->chosen[i].data = at;
        live->pulled[n++] = (dw_weight_piece){s->tensor, s->first, s->n, at};
        at += dw_padded(live->chosen[i].n_bytes);
    }
    return live->source.read(live->source.context, live->pulled, n, err);
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
    return is_pulled(p) || is_master(p, t);
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
