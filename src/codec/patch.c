#include "codec/patch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "codec/element.h"
#include "kernel/kernel.h"
#include "tensor/tensor_list.h"
#include "inner.h"

dw_status dw_patch_new(dw_patch **out, const dw_tensor *tensors, size_t n_tensors,
                       dw_error *err)
{
    *out = NULL;
    size_t n_dims = 0, n_text = 0;
    for (size_t i = 0; i < n_tensors; i++) {
        n_dims += tensors[i].n_dims;
        n_text += strlen(tensors[i].name) + 1;
    }
    dw_patch *patch = dw_alloc_zeroed(1, sizeof *patch);
    if (!patch)
        return dw_fail_memory(err, NULL);
    pthread_mutex_init(&patch->lock, NULL);
    patch->map.fd = -1;
    patch->tensors = dw_alloc_array(n_tensors, sizeof *patch->tensors);
    patch->arena = dw_alloc(n_dims * sizeof(uint64_t) + n_text);
    if (!patch->tensors || !patch->arena) {
        dw_patch_free(patch);
        return dw_fail_memory(err, NULL);
    }
    uint64_t *dims = patch->arena;
    char *text = (char *)(dims + n_dims);
    for (size_t i = 0; i < n_tensors; i++) {
        dw_tensor *t = &patch->tensors[i];
        *t = tensors[i];
        t->data = t->device ? t->data : NULL;
        t->dims = dims;
        if (t->n_dims > 0)
            memcpy(dims, tensors[i].dims, t->n_dims * sizeof *dims);
        dims += t->n_dims;
        t->name = strcpy(text, tensors[i].name);
        text += strlen(text) + 1;
    }
    patch->n_tensors = n_tensors;
    *out = patch;
    return DW_OK;
}

void dw_patch_free(dw_patch *patch)
{
    if (!patch)
        return;
    for (size_t i = 0; patch->in_heap && i < patch->n_segments; i++)
        dw_free((void *)patch->segments[i].positions);
    for (size_t i = 0; i < patch->n_kept; i++) {
        dw_kept_drop(patch->kept[i].items, patch->kept[i].n);
        dw_free(patch->kept[i].items);
        dw_free(patch->kept[i].tensor_of);
    }
    dw_free(patch->kept);
    dw_map_close(&patch->map);
    pthread_mutex_destroy(&patch->lock);
    dw_free(patch->segments);
    dw_free(patch->tensors);
    dw_free(patch->arena);
    dw_free(patch);
}

dw_status dw_patch_add(dw_patch *patch, const dw_segment *segment, dw_error *err)
{
    unsigned width = dw_dtype_element(patch->tensors[segment->tensor].dtype).width;
    pthread_mutex_lock(&patch->lock);
    bool room = dw_grow_array((void **)&patch->segments, &patch->n_room,
                              patch->n_segments, sizeof *patch->segments);
    if (room) {
        patch->segments[patch->n_segments++] = *segment;
        patch->n_changed += segment->n;
        patch->n_bytes += (uint64_t)segment->n * (sizeof(uint32_t) + width);
    }
    pthread_mutex_unlock(&patch->lock);
    return room ? DW_OK : dw_fail_memory(err, NULL);
}

dw_status dw_patch_take(void *context, size_t t, uint64_t first,
                        const dw_decoded *changes, dw_error *err)
{
    dw_patch *patch = context;
    const size_t n = changes->n_changes;
    const unsigned width = dw_dtype_element(patch->tensors[t].dtype).width;
    if (n == 0)
        return DW_OK;
    uint32_t *positions = dw_alloc_array(n, sizeof *positions + width);
    if (!positions)
        return dw_fail_memory(err, NULL);
    memcpy(positions, changes->positions, n * sizeof *positions);
    memcpy(positions + n, changes->values, n * width);
    dw_segment segment = {.tensor = t,
                          .first = first,
                          .n = (uint32_t)n,
                          .positions = positions,
                          .values = positions + n};
    dw_status status = dw_patch_add(patch, &segment, err);
    if (status != DW_OK)
        dw_free(positions);
    return status;
}

dw_status dw_patch_keep(dw_patch *patch, dw_stage *stage, size_t *tensor_of,
                        dw_error *err)
{
    if (!dw_grow_array((void **)&patch->kept, &patch->n_kept_room, patch->n_kept,
                       sizeof *patch->kept)) {
        dw_free(tensor_of);
        return dw_fail_memory(err, NULL);
    }
    dw_patch_kept *kept = &patch->kept[patch->n_kept++];
    *kept = (dw_patch_kept){.tensor_of = tensor_of};
    kept->n = dw_stage_take_kept(stage, &kept->items);
    for (size_t i = 0; i < kept->n; i++) {
        kept->items[i].tensor_of = tensor_of;
        patch->n_changed += kept->items[i].n_changed;
    }
    return DW_OK;
}

static int compare_segments(const void *a_, const void *b_)
{
    const dw_segment *a = a_, *b = b_;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

void dw_patch_sort(dw_patch *patch)
{
    if (patch->n_segments > 0)
        qsort(patch->segments, patch->n_segments, sizeof *patch->segments,
              compare_segments);
}

uint64_t dw_patch_changed(const dw_patch *patch)
{
    return patch->n_changed;
}

uint64_t dw_patch_bytes(const dw_patch *patch)
{
    return patch->n_bytes;
}

/* ---- applying ---- */

dw_status dw_patch_bind(dw_patch_binding *out, const dw_patch *patch,
                        const dw_tensor *tensors, size_t n_tensors, const char *where,
                        dw_error *err)
{
    *out = (dw_patch_binding){patch, tensors, NULL, where};
    dw_name_index names;
    dw_status status = dw_tensors_check_placed(tensors, n_tensors, err);
    if (status == DW_OK)
        status = dw_name_index_init(&names, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    out->target = dw_alloc_array(patch->n_tensors, sizeof *out->target);
    if (!out->target)
        status = dw_fail_memory(err, where);
    for (size_t i = 0; status == DW_OK && i < patch->n_segments; i++) {
        size_t number = patch->segments[i].tensor;
        if (i > 0 && patch->segments[i - 1].tensor == number)
            continue;
        const dw_tensor *wanted = &patch->tensors[number];
        out->target[number] = dw_name_index_find(&names, wanted->name);
        if (out->target[number] == SIZE_MAX)
            status = dw_fail_tensor(err, DW_MISMATCH, where, wanted->name,
                                    "the weights have no tensor of that name");
        else
            status =
                dw_tensor_same_shape(wanted, &tensors[out->target[number]], where, err);
    }
    dw_name_index_release(&names);
    if (status != DW_OK)
        dw_patch_unbind(out);
    return status;
}

void dw_patch_unbind(dw_patch_binding *b)
{
    dw_free(b->target);
    *b = (dw_patch_binding){0};
}

static dw_status for_segments(const dw_patch_binding *b, unsigned n_threads,
                              dw_item_fn fn, dw_error *err)
{
    size_t n = b->patch->n_segments;
    return dw_parallel(dw_worker_count(n_threads, n), n, fn, (void *)b, NULL, err);
}

/* One segment, and the tensor it is for. */
typedef struct work {
    dw_segment s; /* its bytes may be a copy of those in the patch file */
    const dw_tensor *t;
    unsigned width;
    uint8_t *elems;      /* element 0 of the positions */
    dw_loan patch_bytes; /* not used if the caller provides memory */
    dw_loan tensor_bytes;
} work;

dw_status dw_patch_fail_altered(const dw_segment *s, const char *tensor,
                                const char *where, dw_error *err)
{
    return dw_fail_tensor(err, DW_CORRUPT, where, tensor,
                          "the stores at element %" PRIu64 " were altered. Put a whole "
                          "checkpoint in place, then remove the patch file; a directory "
                          "that follows a stream can be removed whole",
                          s->first);
}

/* Copies the bytes of a file into ROOM and checks the hash of the copy. Somebody may
 * write to the file, and the stores must be the ones that were proven. */
static dw_status work_open(work *out, const dw_patch_binding *b, size_t i, dw_loan *room,
                           dw_error *err)
{
    const dw_segment *s = &b->patch->segments[i];
    const dw_tensor *t = &b->tensors[b->target[s->tensor]];
    const unsigned width = dw_dtype_element(t->dtype).width;
    *out = (work){*s, t, width, (uint8_t *)t->data + s->first * width, {0}, {0}};
    if (!s->old_values)
        return DW_OK; /* in memory */
    const uint8_t *begin = (const uint8_t *)s->positions;
    const size_t n_bytes = (size_t)s->n_bytes;
    if (!room)
        room = &out->patch_bytes;
    dw_status status = dw_loan_reserve(room, n_bytes, err);
    if (status == DW_OK)
        status = dw_map_copy(room->bytes, begin, n_bytes, err);
    if (status != DW_OK)
        return status;
    if (XXH64(room->bytes, n_bytes, 0) != s->hash)
        return dw_patch_fail_altered(s, t->name, b->where, err);
    out->s.positions = (const uint32_t *)(const void *)room->bytes;
    out->s.values = room->bytes + ((const uint8_t *)s->values - begin);
    out->s.old_values = room->bytes + ((const uint8_t *)s->old_values - begin);
    return DW_OK;
}

static void work_close(work *w)
{
    dw_loan_release(&w->patch_bytes);
    dw_loan_release(&w->tensor_bytes);
}

/* Sets *ELEMS to the elements at the segment's positions, readable. */
static dw_status work_read(const uint8_t **elems, work *w, dw_error *err)
{
    return dw_map_read_positions(elems, &w->tensor_bytes, w->elems, w->s.positions,
                                 w->s.n, w->width, err);
}

/* All memory is allocated before the first store, so that stores cannot stop half way. */
typedef struct scatter_job {
    const dw_patch_binding *b;
    dw_loan *rooms; /* [workers] for the bytes of any segment */
    unsigned n_rooms;
} scatter_job;

static dw_status scatter_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    const scatter_job *j = context;
    work w;
    dw_status status = work_open(&w, j->b, i, &j->rooms[worker], err);
    if (status == DW_OK)
        dw_kernels_get()->scatter[dw_width_index(w.width)](w.elems, w.s.positions,
                                                           w.s.values, w.s.n);
    return status;
}

static dw_status open_scatter(scatter_job *j, dw_error *err)
{
    size_t n_most = 0;
    const dw_patch *patch = j->b->patch;
    for (size_t i = 0; i < patch->n_segments; i++) {
        const dw_segment *s = &patch->segments[i];
        if (s->old_values && s->n_bytes > n_most)
            n_most = (size_t)s->n_bytes;
    }
    j->rooms = dw_alloc_zeroed(j->n_rooms, sizeof *j->rooms);
    dw_status status = j->rooms ? DW_OK : dw_fail_memory(err, NULL);
    for (unsigned i = 0; status == DW_OK && n_most > 0 && i < j->n_rooms; i++)
        status = dw_loan_reserve(&j->rooms[i], n_most, err);
    return status;
}

static void close_scatter(scatter_job *j)
{
    for (unsigned i = 0; j->rooms && i < j->n_rooms; i++)
        dw_loan_release(&j->rooms[i]);
    dw_free(j->rooms);
}

/* Finds the runs of pages that have stores. Other pages would be written to disk for
 * nothing. */
static dw_status prepare_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    work w;
    dw_status status = work_open(&w, context, i, NULL, err);
    if (status != DW_OK) {
        work_close(&w);
        return status;
    }
    const size_t page =
        4096; /* the smallest page size: with larger pages, runs are only cut finer */
    uint8_t *from = NULL, *to = NULL; /* the run so far */
    for (uint32_t k = 0; k < w.s.n; k++) {
        uint8_t *at = w.elems + (size_t)w.s.positions[k] * w.width;
        if (from && (uintptr_t)at / page <= (uintptr_t)to / page + 1) {
            to = at + w.width - 1;
            continue;
        }
        if (from)
            dw_pages_prepare(from, (size_t)(to - from) + 1, true);
        from = at;
        to = at + w.width - 1;
    }
    if (from)
        dw_pages_prepare(from, (size_t)(to - from) + 1, true);
    work_close(&w);
    return DW_OK;
}

dw_status dw_patch_prepare(const dw_patch_binding *b, unsigned n_threads, dw_error *err)
{
    dw_pages_prepare(b->patch->map.bytes, b->patch->map.n_bytes, false);
    return for_segments(b, n_threads, prepare_segment, err);
}

dw_status dw_patch_scatter(const dw_patch_binding *b, unsigned n_threads, dw_error *err)
{
    const size_t n = b->patch->n_segments;
    scatter_job j = {.b = b, .n_rooms = dw_worker_count(n_threads, n)};
    dw_status status = open_scatter(&j, err);
    if (status == DW_OK)
        status = dw_parallel(j.n_rooms, n, scatter_segment, &j, NULL, err);
    close_scatter(&j);
    return status;
}

/* ---- stores on devices ---- */

/* What a device keeps is for the very memory that was staged. */
static dw_status check_places(const dw_patch *patch, const dw_tensor *tensors,
                              size_t n_tensors, dw_error *err)
{
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; status == DW_OK && i < patch->n_tensors; i++) {
        const dw_tensor *t = &patch->tensors[i];
        const size_t found = t->device ? dw_name_index_find(&names, t->name) : SIZE_MAX;
        if (t->device && (found == SIZE_MAX || tensors[found].device != t->device ||
                          tensors[found].data != t->data))
            status = dw_fail_tensor(err, DW_INVALID, t->device->name, t->name,
                                    "the patch was staged for this tensor at another "
                                    "address of the device");
    }
    dw_name_index_release(&names);
    return status;
}

/* All that devices keep, as one list. */
static dw_status store_kept(const dw_patch *patch, bool *torn, dw_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < patch->n_kept; i++)
        n += patch->kept[i].n;
    dw_kept *all = dw_alloc_array(n, sizeof *all);
    if (!all)
        return dw_fail_memory(err, NULL);
    n = 0;
    for (size_t i = 0; i < patch->n_kept; i++)
        for (size_t k = 0; k < patch->kept[i].n; k++)
            all[n++] = patch->kept[i].items[k];
    dw_status status = dw_kept_store(all, n, patch->tensors, torn, err);
    dw_free(all);
    return status;
}

dw_status dw_patch_store(const dw_patch *patch, const dw_tensor *tensors,
                         size_t n_tensors, unsigned n_threads, bool *torn, dw_error *err)
{
    dw_patch_binding b;
    *torn = false;
    dw_status status = dw_patch_bind(&b, patch, tensors, n_tensors, NULL, err);
    if (status != DW_OK)
        return status;
    /* these may fail: the stores to plain memory, which cannot be taken back, are last */
    if (patch->n_kept > 0)
        status = check_places(patch, tensors, n_tensors, err);
    if (status == DW_OK && patch->n_kept > 0)
        status = store_kept(patch, torn, err);
    if (status == DW_OK) {
        status = dw_patch_scatter(&b, n_threads, err);
        *torn = status != DW_OK && patch->n_kept > 0;
    }
    dw_patch_unbind(&b);
    return status;
}

dw_status dw_patch_apply(const dw_patch *patch, const dw_tensor *tensors,
                         size_t n_tensors, unsigned n_threads, dw_error *err)
{
    bool torn;
    return dw_patch_store(patch, tensors, n_tensors, n_threads, &torn, err);
}

/* ---- comparing ---- */

/* Whether each byte of X is A's or B's. A crash may tear an element across two sectors.
 */
static bool is_mixture(uint64_t x, uint64_t a, uint64_t b)
{
    for (uint64_t byte = 0xff; byte; byte <<= 8)
        if ((x ^ a) & byte && (x ^ b) & byte)
            return false;
    return true;
}

static dw_status check_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const dw_patch_binding *b = context;
    work w;
    const uint8_t *elems;
    dw_status status = work_open(&w, b, i, NULL, err);
    if (status == DW_OK)
        status = work_read(&elems, &w, err);
    for (uint32_t k = 0; status == DW_OK && k < w.s.n; k++) {
        uint64_t x = dw_element_load(elems, w.s.positions[k], w.width);
        if (!is_mixture(x, dw_element_load(w.s.old_values, k, w.width),
                        dw_element_load(w.s.values, k, w.width)))
            status =
                dw_fail_tensor(err, DW_STALE, b->where, w.t->name,
                               "the weights are not those that an interrupted apply "
                               "left here: were they replaced? Then remove this file");
    }
    work_close(&w);
    return status;
}

dw_status dw_patch_check(const dw_patch *patch, const dw_tensor *tensors,
                         size_t n_tensors, unsigned n_threads, const char *where,
                         dw_error *err)
{
    dw_patch_binding b;
    dw_status status = dw_patch_bind(&b, patch, tensors, n_tensors, where, err);
    if (status != DW_OK)
        return status;
    status = for_segments(&b, n_threads, check_segment, err);
    dw_patch_unbind(&b);
    return status;
}

static dw_status confirm_segment(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const dw_patch_binding *b = context;
    work w;
    const uint8_t *elems;
    dw_status status = work_open(&w, b, i, NULL, err);
    if (status == DW_OK)
        status = work_read(&elems, &w, err);
    for (uint32_t k = 0; status == DW_OK && k < w.s.n; k++)
        if (dw_element_load(elems, w.s.positions[k], w.width) !=
            dw_element_load(w.s.values, k, w.width))
            status = dw_fail_tensor(err, DW_CORRUPT, b->where, w.t->name,
                                    "element %" PRIu64 " does not hold what was stored",
                                    w.s.first + w.s.positions[k]);
    work_close(&w);
    return status;
}

dw_status dw_patch_confirm(const dw_patch_binding *b, unsigned n_threads, dw_error *err)
{
    return for_segments(b, n_threads, confirm_segment, err);
}
