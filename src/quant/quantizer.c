#include "quant/quantizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "tensor/device.h"
#include "tensor/tensor_list.h"

#define TASK_ELEMS  (1u << 18) /* of a thread's share, rounded up to whole units */
#define MAX_WORKERS 4096

/* ---- the table ---- */

static size_t elems_of(const dw_quant_entry *scale)
{
    return (size_t)(scale->tensor.n_bytes / sizeof(float));
}

/* The scales of all tensors are in one array. */
static dw_status make_scales(dw_quantizer *q, dw_error *err)
{
    const dw_quant_entry *entries = q->plan->entries;
    const size_t n_entries = q->plan->n_entries;
    for (size_t t = 0; t < n_entries; t++)
        if (entries[t].role == DW_QUANT_SCALE)
            q->n_scales += elems_of(&entries[t]);
    q->scales = dw_alloc_zeroed(n_entries, sizeof *q->scales);
    q->scale_room = dw_alloc_zeroed(q->n_scales + 1, sizeof *q->scale_room);
    if (!q->scales || !q->scale_room)
        return dw_fail_memory(err, NULL);
    float *at = q->scale_room;
    for (size_t t = 0; t < n_entries; t++) {
        if (entries[t].role != DW_QUANT_SCALE)
            continue;
        q->scales[t] = q->scales[entries[t].partner] = at;
        at += elems_of(&entries[t]);
    }
    return DW_OK;
}

/* A weight may be cut where a unit of rows ends; a matrix of a stack ends a unit. */
static dw_status make_table(dw_quantizer *q, dw_error *err)
{
    const size_t n = q->plan->n_entries;
    q->tensors = dw_alloc_array(n, sizeof *q->tensors);
    q->grains = dw_alloc_zeroed(n, sizeof *q->grains);
    if (!q->tensors || !q->grains)
        return dw_fail_memory(err, NULL);
    for (size_t t = 0; t < n; t++) {
        const dw_quant_entry *e = &q->plan->entries[t];
        q->tensors[t] = e->tensor;
        if (e->role == DW_QUANT_WEIGHT)
            q->grains[t] = (dw_grain){dw_quant_unit_rows(q->plan, t) * e->n_columns,
                                      e->n_rows * e->n_columns};
    }
    return DW_OK;
}

/* ---- the caller's tensors or shards ---- */

static int compare_shards(const void *left, const void *right)
{
    const dw_shard *a = left, *b = right;
    return a->tensor != b->tensor ? (a->tensor > b->tensor) - (a->tensor < b->tensor)
                                  : (a->first > b->first) - (a->first < b->first);
}

/* Adds a shard of the caller's, and that of the scales that begin in it. */
static dw_status add_shard(dw_quantizer *q, const dw_shard *shard, size_t t,
                           dw_error *err)
{
    const dw_quant_entry *e = &q->plan->entries[t];
    const uint64_t first = shard->first, n = shard->n_elems;
    if (n > 0 && !shard->data)
        return dw_fail_tensor(err, DW_INVALID, NULL, e->tensor.name, "it has no data");
    if (n == 0 && e->tensor.n_bytes > 0)
        return DW_OK; /* after an uneven split some ranks own nothing of a tensor */
    q->shards[q->n_shards++] = (dw_shard){t, first, n, shard->data};
    if (e->role == DW_QUANT_COPY)
        return DW_OK;
    if (first > e->tensor.n_bytes || n > e->tensor.n_bytes - first)
        return dw_fail_tensor(err, DW_INVALID, NULL, e->tensor.name,
                              "a shard passes its end");
    const uint64_t begun = dw_quant_scales_begun(q->plan, t, first);
    const uint64_t n_begun = dw_quant_scales_begun(q->plan, t, first + n) - begun;
    if (n_begun > 0)
        q->shards[q->n_shards++] = (dw_shard){e->partner, begun, n_begun, NULL};
    return DW_OK;
}

static dw_status take_shards(dw_quantizer *q, const dw_tensor *tensors, size_t n_tensors,
                             const dw_publish_options *o, dw_error *err)
{
    const size_t n = o->shards ? o->n_shards : n_tensors;
    size_t *entries = dw_alloc_array(n_tensors, sizeof *entries);
    q->shards = dw_alloc_zeroed(2 * n, sizeof *q->shards);
    dw_status status = entries && q->shards ? DW_OK : dw_fail_memory(err, NULL);
    for (size_t t = 0; status == DW_OK && t < q->plan->n_entries; t++)
        if (q->plan->entries[t].role != DW_QUANT_SCALE)
            entries[q->plan->entries[t].source] = t;
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        dw_shard shard = {i, 0, 0, tensors[i < n_tensors ? i : 0].data};
        if (o->shards)
            shard = o->shards[i];
        if (shard.tensor >= n_tensors)
            status = dw_fail(err, DW_INVALID, NULL,
                             "shard %zu names no tensor of the list", i);
        else if (!o->shards)
            dw_shape_size(tensors[i].dtype, tensors[i].n_dims, tensors[i].dims,
                          &shard.n_elems, NULL);
        if (status == DW_OK)
            status = add_shard(q, &shard, entries[shard.tensor], err);
    }
    if (status == DW_OK && q->n_shards > 0)
        qsort(q->shards, q->n_shards, sizeof *q->shards, compare_shards);
    dw_free(entries);
    return status;
}

/* The shard that has elements from FIRST on of a tensor. */
static const dw_shard *shard_of(const dw_quantizer *q, size_t tensor, uint64_t first)
{
    size_t low = 0, high = q->n_shards;
    const dw_shard wanted = {.tensor = tensor, .first = first};
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (compare_shards(&q->shards[middle], &wanted) <= 0)
            low = middle;
        else
            high = middle;
    }
    return &q->shards[low];
}

/* ---- opening and closing ---- */

dw_status dw_quantizer_open(dw_quantizer *q, const dw_tensor *tensors, size_t n_tensors,
                            const dw_publish_options *o, dw_error *err)
{
    *q = (dw_quantizer){
        .n_ranks = o->n_ranks, .agree = o->agree, .agree_context = o->agree_context};
    dw_status status = dw_tensors_need_host(tensors, n_tensors, "quantise it", err);
    if (status == DW_OK)
        status = dw_quant_plan_make(&q->plan, tensors, n_tensors, o->as_bf16, o->quantize,
                                    err);
    if (status != DW_OK)
        return status;
    q->n_workers = dw_worker_count(o->n_threads, MAX_WORKERS);
    q->loans = dw_alloc_zeroed(q->n_workers, sizeof *q->loans);
    status = q->loans ? make_table(q, err) : dw_fail_memory(err, NULL);
    if (status == DW_OK)
        status = make_scales(q, err);
    if (status == DW_OK)
        status = take_shards(q, tensors, n_tensors, o, err);
    return status == DW_OK ? dw_quantizer_find_units(q, err) : status;
}

void dw_quantizer_close(dw_quantizer *q)
{
    for (unsigned i = 0; q->loans && i < q->n_workers; i++)
        dw_loan_release(&q->loans[i]);
    dw_free(q->loans);
    dw_free(q->tasks);
    dw_free(q->parts);
    dw_free(q->units);
    dw_free(q->own);
    dw_free(q->agreed);
    dw_free(q->scales);
    dw_free(q->scale_room);
    dw_free(q->shards);
    dw_free(q->grains);
    dw_free(q->tensors);
    dw_quant_plan_free(q->plan);
    *q = (dw_quantizer){0};
}

/* ---- reading pieces ---- */

static dw_status add_task(dw_quantizer *q, dw_quant_task task, dw_error *err)
{
    if (!dw_grow_array((void **)&q->tasks, &q->n_task_room, q->n_tasks, sizeof task))
        return dw_fail_memory(err, NULL);
    q->tasks[q->n_tasks++] = task;
    return DW_OK;
}

static uint64_t bytes_of(dw_dtype dtype, uint64_t n_elems)
{
    return n_elems * dw_dtype_bits(dtype) / 8;
}

/* Adds elements [FIRST, END) of PIECE: a part of one unit, or whole units. */
static dw_status add_run(dw_quantizer *q, const dw_weight_piece *piece, uint64_t first,
                         uint64_t end, bool is_part, dw_error *err)
{
    const size_t t = piece->tensor;
    const dw_quant_entry *e = &q->plan->entries[t];
    const dw_grain *grain = &q->grains[t];
    const dw_shard *shard = shard_of(q, t, first);
    dw_status status = DW_OK;
    for (uint64_t at = first, next; status == DW_OK && at < end; at = next) {
        next = is_part || end - at <= TASK_ELEMS ? end
               : grain->unit > 0 ? dw_grain_edge(grain, at + TASK_ELEMS - 1, true)
                                 : at + TASK_ELEMS;
        next = next < end ? next : end;
        const dw_quant_task task = {
            t,
            is_part,
            at,
            next - at,
            (const uint8_t *)shard->data + bytes_of(e->source_dtype, at - shard->first),
            (uint8_t *)piece->into + bytes_of(e->tensor.dtype, at - piece->first)};
        status = add_task(q, task, err);
    }
    return status;
}

/* PIECE may begin and end inside of a unit, if its shard does. */
static dw_status add_piece(dw_quantizer *q, const dw_weight_piece *piece, dw_error *err)
{
    const uint64_t end = piece->first + piece->n;
    const dw_grain *grain = &q->grains[piece->tensor];
    if (grain->unit == 0)
        return add_run(q, piece, piece->first, end, false, err);
    uint64_t head = piece->first, tail = dw_grain_edge(grain, end, false);
    if (dw_grain_edge(grain, head, false) != head)
        head = dw_grain_edge(grain, head, true);
    if (head >= end || tail < head)
        head = tail = end;
    dw_status status = add_run(q, piece, piece->first, head, true, err);
    if (status == DW_OK)
        status = add_run(q, piece, head, tail, false, err);
    return status == DW_OK ? add_run(q, piece, tail, end, true, err) : status;
}

static dw_status do_task(void *quantizer, size_t i, unsigned worker, dw_error *err)
{
    const dw_quantizer *q = quantizer;
    const dw_quant_task *task = &q->tasks[i];
    const size_t t = task->tensor;
    const dw_quant_entry *e = &q->plan->entries[t];
    const size_t n_bytes = (size_t)bytes_of(e->source_dtype, task->n);
    if (e->role == DW_QUANT_COPY)
        return e->tensor.dtype == e->source_dtype
                   ? dw_map_copy(task->into, task->from, n_bytes, err)
                   : dw_cast_copy((uint16_t *)(void *)task->into,
                                  (const float *)(const void *)task->from, task->n, err);
    const void *from;
    dw_status status = dw_map_read(&from, &q->loans[worker], task->from, n_bytes, err);
    if (status != DW_OK)
        return status;
    if (!task->into)
        return dw_quant_check(q->plan, t, from, task->first, task->n, err);
    const uint64_t row = task->first / e->n_columns;
    if (task->is_part) {
        const uint64_t end = dw_quant_unit_end(q->plan, t, row);
        const float *known = q->scales[t] + dw_quant_scales_before(q->plan, t, end) -
                             dw_quant_unit_scales(q->plan, t);
        return dw_quant_part(q->plan, t, from, task->first, task->n, task->into, known,
                             err);
    }
    return dw_quant_rows(q->plan, t, from, row, task->n / e->n_columns, task->into,
                         q->scales[t] + dw_quant_scales_before(q->plan, t, row), err);
}

static dw_status do_tasks(dw_quantizer *q, dw_error *err)
{
    return dw_parallel(dw_worker_count(q->n_workers, q->n_tasks), q->n_tasks, do_task, q,
                       NULL, err);
}

dw_status dw_quantizer_read(void *quantizer, const dw_weight_piece *pieces, size_t n,
                            dw_error *err)
{
    dw_quantizer *q = quantizer;
    dw_status status = DW_OK;
    q->n_tasks = 0;
    for (size_t i = 0; status == DW_OK && i < n; i++)
        if (q->plan->entries[pieces[i].tensor].role != DW_QUANT_SCALE && pieces[i].n > 0)
            status = add_piece(q, &pieces[i], err);
    if (status == DW_OK)
        status = do_tasks(q, err);
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        const dw_weight_piece *p = &pieces[i];
        if (q->plan->entries[p->tensor].role == DW_QUANT_SCALE && p->n > 0)
            status = dw_map_copy(p->into, q->scales[p->tensor] + p->first,
                                 (size_t)p->n * sizeof(float), err);
    }
    return status;
}

dw_status dw_quantizer_check(dw_quantizer *q, dw_error *err)
{
    dw_status status = DW_OK;
    q->n_tasks = 0;
    for (size_t k = 0; k < q->n_shards; k++) {
        const dw_shard *s = &q->shards[k];
        const dw_quant_entry *e = &q->plan->entries[s->tensor];
        for (uint64_t at = 0;
             status == DW_OK && e->role == DW_QUANT_WEIGHT && at < s->n_elems;
             at += TASK_ELEMS)
            status = add_task(
                q,
                (dw_quant_task){
                    .tensor = s->tensor,
                    .first = s->first + at,
                    .n = s->n_elems - at < TASK_ELEMS ? s->n_elems - at : TASK_ELEMS,
                    .from = (const uint8_t *)s->data + bytes_of(e->source_dtype, at)},
                err);
    }
    return status == DW_OK ? do_tasks(q, err) : status;
}
