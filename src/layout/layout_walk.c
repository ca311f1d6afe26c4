#include "layout/layout_walk.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "codec/element.h"
#include "tensor/tensor_list.h"

/* ---- finding places ---- */

static inline bool locate(const dw_layout_piece *p, uint64_t element, uint64_t *place)
{
    uint64_t left = element - p->from;
    int64_t to = (int64_t)p->to;
    for (unsigned k = 0; k < p->n_dims; k++) {
        const dw_layout_dim *d = &p->dims[k];
        const uint64_t stride = (uint64_t)d->from;
        const uint64_t c = stride == 1 ? left : left / stride;
        if (c >= d->n)
            return false; /* between two rows */
        left -= c * stride;
        to += (int64_t)c * d->to;
    }
    *place = (uint64_t)to;
    return left == 0;
}

/* The first piece of the lane that ends at ELEMENT or later. */
static size_t find_piece(const dw_layout *l, const dw_layout_lane *lane, uint64_t element)
{
    size_t low = 0, high = lane->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (l->pieces[lane->first + middle].last < element)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static dw_status walk_lane(dw_layout_batch *b, const dw_layout_lane *lane,
                           dw_layout_batch_fn fn, dw_error *err)
{
    const dw_layout *l = b->job->layout;
    const dw_segment *s = b->segment;
    size_t i = find_piece(l, lane, s->first + s->positions[0]);
    uint32_t k = 0;
    for (; i < lane->n && k < s->n; i++) {
        const dw_layout_piece *p = &l->pieces[lane->first + i];
        b->target = p->target;
        b->n = 0;
        for (; k < s->n; k++) {
            const uint64_t element = s->first + s->positions[k];
            if (element > p->last)
                break;
            if (element < p->from || !locate(p, element, &b->places[b->n]))
                continue;
            b->changes[b->n++] = k;
            if (b->n == DW_LAYOUT_BATCH) {
                dw_status status = fn(b, err);
                if (status != DW_OK)
                    return status;
                b->n = 0;
            }
        }
        dw_status status = b->n > 0 ? fn(b, err) : DW_OK;
        if (status != DW_OK)
            return status;
    }
    return DW_OK;
}

dw_status dw_layout_walk(const dw_layout_job *j, size_t i, dw_layout_batch_fn fn,
                         dw_error *err)
{
    const dw_layout *l = j->layout;
    const dw_segment *s = &j->patch->segments[i];
    const size_t t = j->number[s->tensor];
    if (l->forgotten[t])
        return DW_OK;
    dw_layout_batch b = {.job = j,
                         .segment = s,
                         .segment_number = i,
                         .width = dw_dtype_element(l->tensors[t].dtype).width};
    dw_status status = DW_OK;
    for (size_t lane = l->lane_of[t]; status == DW_OK && lane < l->lane_of[t + 1]; lane++)
        status = walk_lane(&b, &l->lanes[lane], fn, err);
    return status;
}

/* ---- opening ---- */

void dw_layout_job_release(dw_layout_job *j)
{
    dw_patch_free(j->patch);
    dw_free(j->number);
    dw_free(j->weight);
    dw_free(j->moved);
    dw_free(j->n_stored);
}

static dw_status bind(dw_layout_job *j, dw_error *err)
{
    const dw_layout *l = j->layout;
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, l->tensors, l->n_tensors, err);
    for (size_t i = 0; status == DW_OK && i < j->patch->n_tensors; i++) {
        const dw_tensor *t = &j->patch->tensors[i];
        j->number[i] = dw_name_index_find(&names, t->name);
        j->weight[i] = dw_digest_weight(t);
        if (j->number[i] == SIZE_MAX)
            status = dw_fail_tensor(err, DW_MISMATCH, j->path, t->name,
                                    "the layout has no tensor of that name");
        else
            status = dw_tensor_same_shape(t, &l->tensors[j->number[i]], j->path, err);
    }
    dw_name_index_release(&names);
    return status;
}

dw_status dw_layout_job_open(dw_layout_job *j, const dw_layout *l, const char *path,
                             dw_layout_report *report, dw_error *err)
{
    dw_patch_goal goal;
    *j = (dw_layout_job){.layout = l, .path = path};
    *report = (dw_layout_report){0};
    dw_status status = dw_layout_check_ended(l, err);
    if (status == DW_OK)
        status = dw_patch_open(&j->patch, &goal, path, err);
    if (status != DW_OK)
        return status;
    j->number = dw_alloc_array(j->patch->n_tensors, sizeof *j->number);
    j->weight = dw_alloc_array(j->patch->n_tensors, sizeof *j->weight);
    j->moved = dw_alloc_zeroed(j->patch->n_segments, sizeof *j->moved);
    j->n_stored = dw_alloc_zeroed(j->patch->n_segments, sizeof *j->n_stored);
    if (!j->number || !j->weight || !j->moved || !j->n_stored)
        return dw_fail_memory(err, path);
    report->version = goal.version;
    report->state = goal.has_digest ? goal.state : 0;
    report->n_changed = j->patch->n_changed;
    return bind(j, err);
}

void dw_layout_job_sum(const dw_layout_job *j, dw_layout_report *report, bool *forgotten)
{
    for (size_t t = 0; forgotten && t < j->layout->n_tensors; t++)
        forgotten[t] = false;
    size_t before = SIZE_MAX; /* segments are sorted by tensor */
    for (size_t i = 0; i < j->patch->n_segments; i++) {
        const size_t t = j->number[j->patch->segments[i].tensor];
        report->moved = dw_digest_plus(report->moved, j->moved[i]);
        report->n_stored += j->n_stored[i];
        if (t == before || !j->layout->forgotten[t])
            continue;
        before = t;
        report->n_forgotten++;
        if (forgotten)
            forgotten[t] = true;
    }
}

/* ---- segments ---- */

dw_status dw_layout_move_digest(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    (void)err;
    const dw_layout_job *j = context;
    const dw_segment *s = &j->patch->segments[i];
    const unsigned width = dw_dtype_element(j->patch->tensors[s->tensor].dtype).width;
    dw_digest_moves moves = dw_digest_moves_from((s->first + s->positions[0]) * width);
    for (uint32_t k = 0; k < s->n; k++)
        dw_digest_move(&moves, (s->first + s->positions[k]) * width,
                       dw_element_load(s->old_values, k, width),
                       dw_element_load(s->values, k, width), width);
    j->moved[i] = dw_digest_times(j->weight[s->tensor], dw_digest_moves_sum(&moves));
    return DW_OK;
}

dw_status dw_layout_for_segments(dw_layout_job *j, unsigned n_threads, dw_item_fn fn,
                                 dw_error *err)
{
    const size_t n = j->patch->n_segments;
    return dw_parallel(dw_worker_count(n_threads, n), n, fn, j, NULL, err);
}
