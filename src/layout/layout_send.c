#include "layout/layout_send.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/element.h"

enum {
    GROUP_STORES = 1 << 20, /* that are computed and copied at a time */
    WINDOW_SHIFT = 31,      /* places of a part are below 2^31 */
};

struct dw_layout_send {
    dw_device *device;
    dw_stores_counts *counts; /* [segments] */

    /* a group of segments from FIRST on */
    size_t first;
    dw_stores_counts *at; /* [segments] where the next part of each goes */
    dw_stores_part *parts;
    uint32_t *places;
    uint8_t *olds, *news;
};

typedef struct dw_layout_send send;

static void add_counts(dw_stores_counts *to, const dw_stores_counts *n)
{
    to->n_parts += n->n_parts;
    to->n_stores += n->n_stores;
    to->n_value_bytes += n->n_value_bytes;
}

static dw_stores_counts count_of(size_t n, unsigned width)
{
    return (dw_stores_counts){1, n, (n * width + 7) / 8 * 8};
}

/* The end of the part of the batch that begins at I. */
static size_t part_end(const dw_layout_batch *b, size_t i)
{
    const uint64_t window = b->places[i] >> WINDOW_SHIFT;
    while (i < b->n && b->places[i] >> WINDOW_SHIFT == window)
        i++;
    return i;
}

static bool is_elsewhere(const dw_layout_batch *b)
{
    return b->job->layout->targets[b->target].device != b->job->send->device;
}

static dw_status count_batch(dw_layout_batch *b, dw_error *err)
{
    (void)err;
    if (is_elsewhere(b))
        return DW_OK;
    for (size_t i = 0, end; i < b->n; i = end) {
        end = part_end(b, i);
        const dw_stores_counts n = count_of(end - i, b->width);
        add_counts(&b->job->send->counts[b->segment_number], &n);
    }
    return DW_OK;
}

static dw_status fill_batch(dw_layout_batch *b, dw_error *err)
{
    (void)err;
    if (is_elsewhere(b))
        return DW_OK;
    send *s = b->job->send;
    dw_stores_counts *at = &s->at[b->segment_number];
    uint8_t *data = b->job->layout->targets[b->target].data;
    for (size_t i = 0, end; i < b->n; i = end) {
        end = part_end(b, i);
        const uint64_t start = b->places[i] >> WINDOW_SHIFT << WINDOW_SHIFT;
        const dw_stores_counts n = count_of(end - i, b->width);
        uint8_t *olds = s->olds + at->n_value_bytes, *news = s->news + at->n_value_bytes;
        uint32_t *places = s->places + at->n_stores;
        s->parts[at->n_parts] = (dw_stores_part){.data = data + start * b->width,
                                                 .first = at->n_stores,
                                                 .values = at->n_value_bytes,
                                                 .n = (uint32_t)(end - i),
                                                 .width = b->width,
                                                 .tensor = (uint32_t)b->target};
        for (size_t k = i; k < end; k++) {
            places[k - i] = (uint32_t)(b->places[k] - start);
            dw_element_store(
                olds, k - i, b->width,
                dw_element_load(b->segment->old_values, b->changes[k], b->width));
            dw_element_store(
                news, k - i, b->width,
                dw_element_load(b->segment->values, b->changes[k], b->width));
        }
        add_counts(at, &n);
    }
    return DW_OK;
}

static dw_status count_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    return dw_layout_walk(context, i, count_batch, err);
}

static dw_status fill_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const dw_layout_job *j = context;
    return dw_layout_walk(j, j->send->first + i, fill_batch, err);
}

/* The end of the group that begins at segment FIRST, and its counts. */
static size_t group_end(const dw_layout_job *j, size_t first, dw_stores_counts *n)
{
    size_t i = first;
    *n = (dw_stores_counts){0};
    for (; i < j->patch->n_segments; i++) {
        const dw_stores_counts *next = &j->send->counts[i];
        if (i > first && n->n_stores + next->n_stores > GROUP_STORES)
            break;
        add_counts(n, next);
    }
    return i;
}

static dw_status make_room(send *s, const dw_layout_job *j, dw_error *err)
{
    dw_stores_counts most = {0}, n;
    for (size_t i = 0; i < j->patch->n_segments;) {
        i = group_end(j, i, &n);
        most.n_parts = n.n_parts > most.n_parts ? n.n_parts : most.n_parts;
        most.n_stores = n.n_stores > most.n_stores ? n.n_stores : most.n_stores;
        most.n_value_bytes =
            n.n_value_bytes > most.n_value_bytes ? n.n_value_bytes : most.n_value_bytes;
    }
    s->at = dw_alloc_zeroed(j->patch->n_segments, sizeof *s->at);
    s->parts = dw_alloc_array((size_t)most.n_parts, sizeof *s->parts);
    s->places = dw_alloc_array((size_t)most.n_stores, sizeof *s->places);
    s->olds = dw_alloc_zeroed((size_t)most.n_value_bytes, 1);
    s->news = dw_alloc_zeroed((size_t)most.n_value_bytes, 1);
    return s->at && s->parts && s->places && s->olds && s->news
               ? DW_OK
               : dw_fail_memory(err, j->path);
}

static dw_status send_group(dw_device_stores *out, dw_layout_job *j, size_t end,
                            const dw_stores_counts *n, unsigned n_threads, dw_error *err)
{
    send *s = j->send;
    dw_stores_counts at = {0};
    for (size_t i = s->first; i < end; i++) {
        s->at[i] = at;
        add_counts(&at, &s->counts[i]);
    }
    const size_t n_segments = end - s->first;
    dw_status status = dw_parallel(dw_worker_count(n_threads, n_segments), n_segments,
                                   fill_segment, j, NULL, err);
    const dw_stores_lists lists = {*n, s->parts, s->places, s->olds, s->news};
    return status == DW_OK && n->n_stores > 0
               ? s->device->ops->stores_add(out, &lists, err)
               : status;
}

static dw_status send_all(dw_device_stores **out, uint64_t *n_stored, dw_layout_job *j,
                          unsigned n_threads, dw_error *err)
{
    send *s = j->send;
    dw_stores_counts all = {0}, n;
    dw_status status = dw_layout_for_segments(j, n_threads, count_segment, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; i < j->patch->n_segments; i++)
        add_counts(&all, &s->counts[i]);
    *n_stored = all.n_stores;
    if (all.n_stores == 0)
        return DW_OK;
    status = make_room(s, j, err);
    if (status == DW_OK)
        status = s->device->ops->stores_new(out, s->device, &all, err);
    for (size_t end; status == DW_OK && s->first < j->patch->n_segments; s->first = end) {
        end = group_end(j, s->first, &n);
        status = send_group(*out, j, end, &n, n_threads, err);
    }
    if (status != DW_OK) {
        s->device->ops->stores_free(*out);
        *out = NULL;
    }
    return status;
}

dw_status dw_layout_send(dw_device_stores **out, uint64_t *n_stored, dw_layout_job *j,
                         dw_device *device, unsigned n_threads, dw_error *err)
{
    send s = {.device = device};
    *out = NULL;
    *n_stored = 0;
    s.counts = dw_alloc_zeroed(j->patch->n_segments, sizeof *s.counts);
    if (!s.counts)
        return dw_fail_memory(err, j->path);
    j->send = &s;
    dw_status status = send_all(out, n_stored, j, n_threads, err);
    j->send = NULL;
    dw_free(s.counts);
    dw_free(s.at);
    dw_free(s.parts);
    dw_free(s.places);
    dw_free(s.olds);
    dw_free(s.news);
    return status;
}
