/* Patches through a layout. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "codec/digest.h"
#include "codec/element.h"
#include "codec/layout.h"
#include "codec/patch.h"
#include "tensor/tensor_list.h"

enum { BATCH = 512 };

typedef struct job {
    const dw_layout *layout;
    dw_patch *patch;
    const char *path;
    size_t *number;     /* [patch tensors] in the layout */
    uint64_t *weight;   /* [patch tensors] in the model's digest */
    dw_digest *moved;   /* [segments] */
    uint64_t *n_stored; /* [segments] */
    dw_layout_stores *lists;
} job;

/* Places of a target that changes of a segment belong to. */
typedef struct batch {
    const job *job;
    const dw_segment *segment;
    size_t segment_number;
    size_t target;
    unsigned width;
    size_t n;
    uint64_t places[BATCH];  /* in the target */
    uint32_t changes[BATCH]; /* numbers in the segment */
} batch;

typedef dw_status (*batch_fn)(batch *b, dw_error *err);

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

static dw_status walk_lane(batch *b, const dw_layout_lane *lane, batch_fn fn,
                           dw_error *err)
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
            if (b->n == BATCH) {
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

static dw_status walk_segment(const job *j, size_t i, batch_fn fn, dw_error *err)
{
    const dw_layout *l = j->layout;
    const dw_segment *s = &j->patch->segments[i];
    const size_t t = j->number[s->tensor];
    if (l->forgotten[t])
        return DW_OK;
    batch b = {.job = j,
               .segment = s,
               .segment_number = i,
               .width = dw_dtype_element(l->tensors[t].dtype).width};
    dw_status status = DW_OK;
    for (size_t lane = l->lane_of[t]; status == DW_OK && lane < l->lane_of[t + 1]; lane++)
        status = walk_lane(&b, &l->lanes[lane], fn, err);
    return status;
}

/* ---- what is done at the places ---- */

static const char *tensor_name(const batch *b)
{
    return b->job->patch->tensors[b->segment->tensor].name;
}

/* The number of the first change whose place does not hold what VALUES say; n: none. */
static size_t find_other(const batch *b, const void *values)
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

static dw_status check_batch(batch *b, dw_error *err)
{
    const size_t i = find_other(b, b->segment->old_values);
    if (i == b->n)
        return DW_OK;
    return dw_fail_tensor(err, DW_STALE, b->job->path, tensor_name(b),
                          "element %" PRIu64 " is not what the patch replaces: these are "
                          "not the weights that it was made for. Load them whole",
                          b->segment->first + b->segment->positions[b->changes[i]]);
}

static dw_status store_batch(batch *b, dw_error *err)
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

static dw_status confirm_batch(batch *b, dw_error *err)
{
    const size_t i = find_other(b, b->segment->values);
    if (i == b->n)
        return DW_OK;
    return dw_fail_tensor(err, DW_CORRUPT, b->job->path, tensor_name(b),
                          "element %" PRIu64 " does not hold what was stored",
                          b->segment->first + b->segment->positions[b->changes[i]]);
}

static dw_status count_batch(batch *b, dw_error *err)
{
    (void)err;
    b->job->lists[b->target].n += b->n;
    return DW_OK;
}

static dw_status list_batch(batch *b, dw_error *err)
{
    (void)err;
    dw_layout_stores *list = &b->job->lists[b->target];
    for (size_t i = 0; i < b->n; i++, list->n++) {
        const uint32_t k = b->changes[i];
        list->places[list->n] = (int64_t)b->places[i];
        dw_element_store(list->old_values, list->n, b->width,
                         dw_element_load(b->segment->old_values, k, b->width));
        dw_element_store(list->values, list->n, b->width,
                         dw_element_load(b->segment->values, k, b->width));
    }
    b->job->n_stored[b->segment_number] += b->n;
    return DW_OK;
}

/* ---- the passes over the segments ---- */

static dw_status check_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    return walk_segment(context, i, check_batch, err);
}

static dw_status store_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    return walk_segment(context, i, store_batch, err);
}

/* And what its changes do to the digest. */
static dw_status confirm_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const job *j = context;
    const dw_segment *s = &j->patch->segments[i];
    const unsigned width = dw_dtype_element(j->patch->tensors[s->tensor].dtype).width;
    dw_digest_moves moves = dw_digest_moves_from((s->first + s->positions[0]) * width);
    for (uint32_t k = 0; k < s->n; k++)
        dw_digest_move(&moves, (s->first + s->positions[k]) * width,
                       dw_element_load(s->old_values, k, width),
                       dw_element_load(s->values, k, width), width);
    j->moved[i] = dw_digest_scale(j->weight[s->tensor], dw_digest_moves_sum(&moves));
    return j->lists ? DW_OK : walk_segment(j, i, confirm_batch, err);
}

static dw_status for_segments(job *j, unsigned n_threads, dw_item_fn fn, dw_error *err)
{
    const size_t n = j->patch->n_segments;
    return dw_parallel(dw_worker_count(n_threads, n), n, fn, j, NULL, err);
}

/* ---- opening ---- */

static void release(job *j)
{
    dw_patch_free(j->patch);
    dw_free(j->number);
    dw_free(j->weight);
    dw_free(j->moved);
    dw_free(j->n_stored);
}

static dw_status bind(job *j, dw_error *err)
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

static dw_status open_job(job *j, const dw_layout *l, const char *path,
                          dw_layout_report *report, dw_error *err)
{
    dw_patch_goal goal;
    *j = (job){.layout = l, .path = path};
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

static void sum_up(const job *j, dw_layout_report *report, bool *forgotten)
{
    for (size_t t = 0; forgotten && t < j->layout->n_tensors; t++)
        forgotten[t] = false;
    size_t before = SIZE_MAX; /* segments are sorted by tensor */
    for (size_t i = 0; i < j->patch->n_segments; i++) {
        const size_t t = j->number[j->patch->segments[i].tensor];
        report->moved = dw_digest_add(report->moved, j->moved[i]);
        report->n_stored += j->n_stored[i];
        if (t == before || !j->layout->forgotten[t])
            continue;
        before = t;
        report->n_forgotten++;
        if (forgotten)
            forgotten[t] = true;
    }
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
    job j;
    dw_status status = open_job(&j, l, path, report, err);
    if (status == DW_OK)
        status = check_memory(l, err);
    if (status == DW_OK)
        status = for_segments(&j, n_threads, check_segment, err);
    if (status == DW_OK)
        status = for_segments(&j, n_threads, store_segment, err);
    if (status == DW_OK)
        status = for_segments(&j, n_threads, confirm_segment, err);
    if (status == DW_OK)
        sum_up(&j, report, forgotten);
    release(&j);
    return status;
}

/* ---- lists ---- */

static bool allocate_lists(const dw_layout *l, dw_layout_stores *lists)
{
    for (size_t i = 0; i < l->n_targets; i++) {
        const unsigned width = dw_dtype_element(l->targets[i].dtype).width;
        lists[i].places = dw_alloc_array(lists[i].n, sizeof *lists[i].places);
        lists[i].old_values = dw_alloc_array(lists[i].n, width);
        lists[i].values = dw_alloc_array(lists[i].n, width);
        if (!lists[i].places || !lists[i].old_values || !lists[i].values)
            return false;
        lists[i].n = 0;
        lists[i].width = width;
    }
    return true;
}

dw_status dw_layout_list(const dw_layout *l, const char *path, dw_layout_stores *lists,
                         dw_layout_report *report, bool *forgotten, dw_error *err)
{
    job j;
    memset(lists, 0, l->n_targets * sizeof *lists);
    dw_status status = open_job(&j, l, path, report, err);
    j.lists = lists;
    for (size_t i = 0; status == DW_OK && i < j.patch->n_segments; i++)
        status = walk_segment(&j, i, count_batch, err);
    if (status == DW_OK && !allocate_lists(l, lists))
        status = dw_fail_memory(err, path);
    for (size_t i = 0; status == DW_OK && i < j.patch->n_segments; i++)
        status = walk_segment(&j, i, list_batch, err);
    if (status == DW_OK)
        status = for_segments(&j, 0, confirm_segment, err);
    if (status == DW_OK)
        sum_up(&j, report, forgotten);
    else
        dw_layout_stores_free(lists, l->n_targets);
    release(&j);
    return status;
}

void dw_layout_stores_free(dw_layout_stores *lists, size_t n_targets)
{
    for (size_t i = 0; i < n_targets; i++) {
        dw_free(lists[i].places);
        dw_free(lists[i].old_values);
        dw_free(lists[i].values);
        lists[i] = (dw_layout_stores){0};
    }
}
