#include "publish/live_quant.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"

#define TASK_ELEMS  (1u << 18) /* of a thread's share, rounded up to whole units */
#define MAX_WORKERS 4096

dw_quantized dw_live_quant_describe(const dw_quant_options *options)
{
    dw_quantized out = {0};
    if (options && options->scheme != DW_QUANT_NONE) {
        snprintf(out.scheme, sizeof out.scheme, "%s",
                 dw_quant_scheme_name(options->scheme));
        snprintf(out.rounded, sizeof out.rounded, "%s",
                 options->from_f32 ? "none" : "bf16");
    }
    return out;
}

/* ---- the plan ---- */

bool dw_live_quant_makes(const dw_live_quant *q, size_t t)
{
    return q->plan && q->plan->entries[t].role != DW_QUANT_COPY;
}

/* A weight may be cut where a unit of rows ends; a matrix of a stack ends a unit. */
static dw_grain grain_of(const dw_quant_plan *plan, size_t t)
{
    const dw_quant_entry *e = &plan->entries[t];
    if (e->role != DW_QUANT_WEIGHT || e->tensor.n_bytes == 0)
        return (dw_grain){0};
    return (dw_grain){dw_quant_unit_rows(plan, t) * e->n_columns,
                      e->n_rows * e->n_columns};
}

static size_t elems_of(const dw_quant_entry *scale)
{
    return (size_t)(scale->tensor.n_bytes / sizeof(float));
}

/* The scales of all tensors are in one array. */
static dw_status make_scales(dw_live_quant *q, dw_error *err)
{
    const dw_quant_entry *entries = q->plan->entries;
    const size_t n_entries = q->plan->n_entries;
    size_t n = 0;
    for (size_t t = 0; t < n_entries; t++)
        if (entries[t].role == DW_QUANT_SCALE)
            n += elems_of(&entries[t]);
    q->scales = dw_alloc_zeroed(n_entries, sizeof *q->scales);
    q->scale_room = dw_alloc_array(n + 1, sizeof *q->scale_room);
    if (!q->scales || !q->scale_room)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < n; i++)
        q->scale_room[i] = 1; /* rows without elements keep it */
    float *at = q->scale_room;
    for (size_t t = 0; t < n_entries; t++) {
        if (entries[t].role != DW_QUANT_SCALE)
            continue;
        q->scales[t] = q->scales[entries[t].partner] = at;
        at += elems_of(&entries[t]);
    }
    return DW_OK;
}

dw_status dw_live_quant_plan(dw_live_quant *out, const dw_tensor *tensors,
                             size_t n_tensors, const dw_publish_options *options,
                             dw_error *err)
{
    *out = (dw_live_quant){0};
    if (!options->quantize || options->quantize->scheme == DW_QUANT_NONE)
        return DW_OK;
    dw_status status = dw_quant_plan_make(&out->plan, tensors, n_tensors,
                                          options->as_bf16, options->quantize, err);
    if (status != DW_OK)
        return status;
    out->grains = dw_alloc_array(out->plan->n_entries, sizeof *out->grains);
    if (!out->grains)
        return dw_fail_memory(err, NULL);
    for (size_t t = 0; t < out->plan->n_entries; t++)
        out->grains[t] = grain_of(out->plan, t);
    out->n_workers = dw_worker_count(options->n_threads, MAX_WORKERS);
    out->loans = dw_alloc_zeroed(out->n_workers, sizeof *out->loans);
    return out->loans ? make_scales(out, err) : dw_fail_memory(err, NULL);
}

dw_slice dw_live_quant_scales(const dw_live_quant *q, const dw_slice *slice)
{
    const size_t t = slice->tensor;
    const dw_quant_entry *e = &q->plan->entries[t];
    if (q->grains[t].unit == 0) /* no elements */
        return (dw_slice){e->partner, 0, elems_of(&q->plan->entries[e->partner])};
    const uint64_t first = dw_quant_scales_begun(q->plan, t, slice->first);
    return (dw_slice){e->partner, first,
                      dw_quant_scales_begun(q->plan, t, slice->first + slice->n) - first};
}

void dw_live_quant_ends(dw_unit_ends *out, const dw_live_quant *q, const dw_slice *slice)
{
    const dw_grain *grain = &q->grains[slice->tensor];
    const uint64_t first = slice->first, end = slice->first + slice->n;
    *out = (dw_unit_ends){first, end};
    if (grain->unit == 0 || slice->n == 0)
        return;
    if (dw_grain_edge(grain, first, false) != first)
        out->head = dw_grain_edge(grain, first, true);
    out->tail = dw_grain_edge(grain, end, false);
    if (out->head >= end || out->tail < out->head)
        out->head = out->tail = end;
}

dw_status dw_live_quant_open(dw_live_quant *q, const dw_pieces *pieces, dw_error *err)
{
    if (!q->plan)
        return DW_OK;
    q->scratch = dw_alloc((size_t)dw_pieces_group_room(pieces));
    return q->scratch ? DW_OK : dw_fail_memory(err, NULL);
}

void dw_live_quant_close(dw_live_quant *q)
{
    for (unsigned i = 0; q->loans && i < q->n_workers; i++)
        dw_loan_release(&q->loans[i]);
    dw_free(q->loans);
    dw_free(q->scratch);
    dw_free(q->tasks);
    dw_free(q->scales);
    dw_free(q->scale_room);
    dw_free(q->grains);
    dw_quant_plan_free(q->plan);
    *q = (dw_live_quant){0};
}

/* ---- making pieces ---- */

static dw_status add_task(dw_live_quant *q, dw_quant_task task, dw_error *err)
{
    if (!dw_grow_array((void **)&q->tasks, &q->n_task_room, q->n_tasks, sizeof task)) {
        q->n_tasks = 0;
        return dw_fail_memory(err, NULL);
    }
    q->tasks[q->n_tasks++] = task;
    return DW_OK;
}

/* Adds elements [FIRST, END) of SLICE: a part of one unit, or whole units. */
static dw_status add_run(dw_live_quant *q, const dw_slice *slice, uint64_t first,
                         uint64_t end, bool is_part, const uint8_t *from, uint8_t *into,
                         dw_error *err)
{
    const dw_grain *grain = &q->grains[slice->tensor];
    const unsigned width =
        dw_dtype_bits(q->plan->entries[slice->tensor].source_dtype) / 8;
    dw_status status = DW_OK;
    for (uint64_t at = first, next; status == DW_OK && at < end; at = next) {
        next = !is_part && end - at > TASK_ELEMS
                   ? dw_grain_edge(grain, at + TASK_ELEMS - 1, true)
                   : end;
        next = next < end ? next : end;
        const uint64_t done = at - slice->first;
        status = add_task(q,
                          (dw_quant_task){slice->tensor, is_part, at, next - at,
                                          from + done * width, into + done},
                          err);
    }
    return status;
}

dw_status dw_live_quant_add(dw_live_quant *q, const dw_slice *slice, const void *from,
                            void *into, dw_error *err)
{
    const size_t t = slice->tensor;
    if (q->plan->entries[t].role == DW_QUANT_SCALE || q->grains[t].unit == 0)
        return add_task(q, (dw_quant_task){t, false, slice->first, slice->n, from, into},
                        err);
    dw_unit_ends ends;
    dw_live_quant_ends(&ends, q, slice);
    dw_status status = add_run(q, slice, slice->first, ends.head, true, from, into, err);
    if (status == DW_OK)
        status = add_run(q, slice, ends.head, ends.tail, false, from, into, err);
    return status == DW_OK ? add_run(q, slice, ends.tail, slice->first + slice->n, true,
                                     from, into, err)
                           : status;
}

static dw_status make_task(void *quant, size_t i, unsigned worker, dw_error *err)
{
    const dw_live_quant *q = quant;
    const dw_quant_task *task = &q->tasks[i];
    const size_t t = task->tensor;
    const dw_quant_entry *e = &q->plan->entries[t];
    if (e->role != DW_QUANT_WEIGHT || task->n == 0)
        return DW_OK; /* scales come afterwards */
    const void *from;
    const size_t n_bytes = (size_t)(task->n * dw_dtype_bits(e->source_dtype) / 8);
    dw_status status = dw_map_read(&from, &q->loans[worker], task->from, n_bytes, err);
    if (status != DW_OK)
        return status;
    const uint64_t row = task->first / e->n_columns;
    if (task->is_part) {
        const uint64_t end = dw_quant_unit_end(q->plan, t, row);
        const float *known = q->scales[t] + dw_quant_scales_before(q->plan, t, end) -
                             dw_quant_unit_scales(q->plan, t);
        return dw_quant_part(q->plan, t, from, task->first, task->n, task->into, known,
                             err);
    }
    const uint64_t n_rows = task->n / e->n_columns;
    float *scales = q->scales[t] + dw_quant_scales_before(q->plan, t, row);
    return dw_quant_rows(q->plan, t, from, row, n_rows, task->into, scales, err);
}

dw_status dw_live_quant_make(dw_live_quant *q, dw_error *err)
{
    const size_t n = q->n_tasks;
    const unsigned n_workers = q->n_workers < n ? q->n_workers : n > 0 ? (unsigned)n : 1;
    dw_status status = dw_parallel(n_workers, n, make_task, q, NULL, err);
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        const dw_quant_task *task = &q->tasks[i];
        if (q->plan->entries[task->tensor].role == DW_QUANT_SCALE && task->n > 0)
            status = dw_map_copy(task->into, q->scales[task->tensor] + task->first,
                                 (size_t)task->n * sizeof(float), err);
    }
    q->n_tasks = 0;
    return status;
}

/* ---- checking ---- */

static dw_status check_task(void *quant, size_t i, unsigned worker, dw_error *err)
{
    const dw_live_quant *q = quant;
    const dw_quant_task *task = &q->tasks[i];
    const unsigned width = dw_dtype_bits(q->plan->entries[task->tensor].source_dtype) / 8;
    const void *from;
    dw_status status =
        dw_map_read(&from, &q->loans[worker], task->from, (size_t)task->n * width, err);
    return status == DW_OK
               ? dw_quant_check(q->plan, task->tensor, from, task->first, task->n, err)
               : status;
}

dw_status dw_live_quant_check(dw_live_quant *q, const dw_tensor *tensors, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t t = 0; t < q->plan->n_entries; t++) {
        const dw_quant_entry *e = &q->plan->entries[t];
        const uint8_t *from = tensors[e->source].data;
        const unsigned width = dw_dtype_bits(e->source_dtype) / 8;
        const uint64_t n = e->tensor.n_bytes; /* an element has one byte */
        for (uint64_t at = 0;
             status == DW_OK && e->role == DW_QUANT_WEIGHT && from && at < n;
             at += TASK_ELEMS)
            status = add_task(q,
                              (dw_quant_task){t, false, at,
                                              n - at < TASK_ELEMS ? n - at : TASK_ELEMS,
                                              from + at * width, NULL},
                              err);
    }
    const size_t n = q->n_tasks;
    if (status == DW_OK && n > 0)
        status = dw_parallel(q->n_workers < n ? q->n_workers : (unsigned)n, n, check_task,
                             q, NULL, err);
    q->n_tasks = 0;
    return status;
}
