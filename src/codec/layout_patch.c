/* Patches into the targets of a layout. */
#include <inttypes.h>

#include "base/error.h"
#include "codec/element.h"
#include "codec/layout_walk.h"

/* ---- what is done at the places ---- */

static const char *tensor_name(const dw_layout_batch *b)
{
    return b->job->patch->tensors[b->segment->tensor].name;
}

/* The number of the first change whose place does not hold what VALUES say; n: none. */
static size_t find_other(const dw_layout_batch *b, const void *values)
{
    const void *data = b->job->layout->targets[b->target].data;
    size_t i = 0;
#define SCAN(width)                                                                      \
    while (i < b->n && dw_element_load(data, b->places[i], width) ==                     \
                           dw_element_load(values, b->changes[i], width))                \
        i++;
    switch (b->width) {
    case 1:
        SCAN(1) break;
    case 2:
        SCAN(2) break;
    case 4:
        SCAN(4) break;
    default:
        SCAN(8)
    }
#undef SCAN
    return i;
}

static dw_status check_batch(dw_layout_batch *b, dw_error *err)
{
    const size_t i = find_other(b, b->segment->old_values);
    if (i == b->n)
        return DW_OK;
    return dw_fail_tensor(err, DW_STALE, b->job->path, tensor_name(b),
                          "element %" PRIu64 " is not what the patch replaces: these are "
                          "not the weights that it was made for. Load them whole",
                          b->segment->first + b->segment->positions[b->changes[i]]);
}

static dw_status store_batch(dw_layout_batch *b, dw_error *err)
{
    (void)err;
    void *data = b->job->layout->targets[b->target].data;
    const void *values = b->segment->values;
#define STORE(width)                                                                     \
    for (size_t i = 0; i < b->n; i++)                                                    \
        dw_element_store(data, b->places[i], width,                                      \
                         dw_element_load(values, b->changes[i], width));
    switch (b->width) {
    case 1:
        STORE(1) break;
    case 2:
        STORE(2) break;
    case 4:
        STORE(4) break;
    default:
        STORE(8)
    }
#undef STORE
    b->job->n_stored[b->segment_number] += b->n;
    return DW_OK;
}

static dw_status confirm_batch(dw_layout_batch *b, dw_error *err)
{
    const size_t i = find_other(b, b->segment->values);
    if (i == b->n)
        return DW_OK;
    return dw_fail_tensor(err, DW_CORRUPT, b->job->path, tensor_name(b),
                          "element %" PRIu64 " does not hold what was stored",
                          b->segment->first + b->segment->positions[b->changes[i]]);
}

/* ---- the passes over the segments ---- */

static dw_status check_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    return dw_layout_walk(context, i, check_batch, err);
}

static dw_status store_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    return dw_layout_walk(context, i, store_batch, err);
}

static dw_status confirm_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    dw_status status = dw_layout_move_digest(context, i, worker, err);
    return status == DW_OK ? dw_layout_walk(context, i, confirm_batch, err) : status;
}

static dw_status check_memory(const dw_layout *l, dw_error *err)
{
    for (size_t i = 0; i < l->n_targets; i++)
        if (!l->targets[i].data && l->targets[i].n_bytes > 0)
            return dw_fail_tensor(err, DW_UNSUPPORTED, NULL, l->targets[i].name,
                                  "lies in memory that is not the CPU's");
    return DW_OK;
}

dw_status dw_layout_apply(const dw_layout *l, const char *path, unsigned n_threads,
                          dw_layout_report *report, bool *forgotten, dw_error *err)
{
    dw_layout_job j;
    dw_status status = dw_layout_job_open(&j, l, path, report, err);
    if (status == DW_OK)
        status = check_memory(l, err);
    if (status == DW_OK)
        status = dw_layout_for_segments(&j, n_threads, check_segment, err);
    if (status == DW_OK)
        status = dw_layout_for_segments(&j, n_threads, store_segment, err);
    if (status == DW_OK)
        status = dw_layout_for_segments(&j, n_threads, confirm_segment, err);
    if (status == DW_OK)
        dw_layout_job_sum(&j, report, forgotten);
    dw_layout_job_release(&j);
    return status;
}
