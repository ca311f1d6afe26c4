#include "layout/layout_patch.h"

#include <inttypes.h>

#include "base/error.h"
#include "codec/element.h"
#include "layout/layout_sums.h"
#include "tensor/device.h"

/* ---- comparing and storing ---- */

static const char *tensor_name(const dw_layout_batch *b)
{
    return b->job->patch->tensors[b->segment->tensor].name;
}

static bool is_on_device(const dw_layout_batch *b)
{
    return b->job->layout->targets[b->target].device != NULL;
}

/* The index of the first change whose position does not hold its value in VALUES; n if
 * there is none. */
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

static dw_status fail_at(const dw_layout_batch *b, size_t i, dw_status status,
                         const char *what, dw_error *err)
{
    return dw_fail_tensor(err, status, b->job->path, tensor_name(b),
                          "element %" PRIu64 " %s",
                          b->segment->first + b->segment->positions[b->changes[i]], what);
}

/* Stores VALUES at the first N positions. */
static void store(const dw_layout_batch *b, const void *values, size_t n)
{
    void *data = b->job->layout->targets[b->target].data;
#define STORE(width)                                                                     \
    for (size_t i = 0; i < n; i++)                                                       \
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
}

/* Asks for the memory of all changes at once, which are far apart. */
static void fetch(const dw_layout_batch *b)
{
    const uint8_t *data = b->job->layout->targets[b->target].data;
    for (size_t i = 0; i < b->n; i++)
        __builtin_prefetch(data + b->places[i] * b->width, 1);
}

/* Compares the old values, stores the new ones and reads them back while the lines are in
 * the cache. */
static dw_status patch_batch(dw_layout_batch *b, dw_error *err)
{
    if (is_on_device(b))
        return DW_OK;
    fetch(b);
    size_t i = find_other(b, b->segment->old_values);
    if (i < b->n)
        return fail_at(
            b, i, DW_STALE,
            "is not what the patch replaces: these are not the weights that it "
            "was made for. Load them whole",
            err);
    store(b, b->segment->values, b->n);
    dw_layout_move_sums(b, b->segment->old_values, b->segment->values, b->n);
    b->job->n_stored[b->segment_number] += b->n;
    i = find_other(b, b->segment->values);
    return i == b->n ? DW_OK
                     : fail_at(b, i, DW_CORRUPT, "does not hold what was stored", err);
}

/* A walk always has the same order, so the stored changes of a segment are its first
 * ones. */
static dw_status undo_batch(dw_layout_batch *b, dw_error *err)
{
    (void)err;
    if (is_on_device(b))
        return DW_OK;
    uint64_t *left = &b->job->n_stored[b->segment_number];
    const size_t n = *left < b->n ? (size_t)*left : b->n;
    store(b, b->segment->old_values, n);
    dw_layout_move_sums(b, b->segment->values, b->segment->old_values, n);
    *left -= n;
    return DW_OK;
}

/* ---- the passes over the segments ---- */

static dw_status patch_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    const dw_layout_job *j = context;
    dw_status status =
        j->is_moved ? DW_OK : dw_layout_move_digest(context, i, worker, err);
    return status == DW_OK ? dw_layout_walk(j, i, patch_batch, err) : status;
}

static dw_status undo_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    return dw_layout_walk(context, i, undo_batch, err);
}

dw_status dw_layout_check_memory(const dw_layout *l, dw_error *err)
{
    for (size_t i = 0; i < l->n_targets; i++) {
        const dw_tensor *t = &l->targets[i];
        if (!t->data && t->n_bytes > 0)
            return dw_fail_tensor(err, DW_UNSUPPORTED, NULL, t->name,
                                  "is in memory that the CPU cannot reach");
        if (t->device && l->sums[i].n_rows > 0)
            return dw_fail_tensor(err, DW_UNSUPPORTED, t->device->name, t->name,
                                  "has sums, which are only known in the memory of the "
                                  "host");
        if (!dw_layout_sums_aligned(l, i))
            return dw_fail_tensor(err, DW_INVALID, NULL, t->name,
                                  "has sums, but is not aligned to 4 bytes");
    }
    return DW_OK;
}

dw_status dw_layout_patch_host(dw_layout_job *j, unsigned n_threads, dw_error *err)
{
    if (j->no_host)
        return DW_OK;
    dw_status status = dw_layout_for_segments(j, n_threads, patch_segment, err);
    if (status != DW_OK)
        dw_layout_unpatch_host(j);
    return status;
}

void dw_layout_unpatch_host(dw_layout_job *j)
{
    if (!j->no_host)
        dw_layout_for_segments(j, 1, undo_segment, &(dw_error){0});
}
