#include "cuda/cuda_stores.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"

/* Pinned memory: what goes to the device passes through it. */
#define PASS_BYTES (4u << 20)

struct dw_cuda_stores {
    dw_cuda *c;
    dw_stores_counts most, n; /* room, and what was added */
    cu_pointer parts, places, olds, news, counters;
    void *pinned;
    bool is_started; /* the kernel may have stored */
    uint64_t counts[DW_CUDA_STAGE_COUNTERS];
};

/* ---- memory ---- */

static void release(dw_cuda_stores *s)
{
    cu_pointer *const list[] = {&s->parts, &s->places, &s->olds, &s->news, &s->counters};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        dw_cuda_free(s->c, list[i]);
    dw_cuda_free_pinned(s->c, s->pinned);
    s->pinned = NULL;
}

static dw_status reserve(dw_cuda_stores *s, dw_error *err)
{
    const struct {
        cu_pointer *out;
        uint64_t n_bytes;
    } list[] = {{&s->parts, s->most.n_parts * sizeof(dw_cuda_store_part)},
                {&s->places, s->most.n_stores * sizeof(uint32_t)},
                {&s->olds, s->most.n_value_bytes},
                {&s->news, s->most.n_value_bytes},
                {&s->counters, sizeof s->counts}};
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < sizeof list / sizeof list[0]; i++)
        status =
            dw_cuda_alloc(list[i].out, s->c, list[i].n_bytes, "a patch's stores", err);
    return status == DW_OK
               ? dw_cuda_alloc_pinned(&s->pinned, s->c, PASS_BYTES, "stores", err)
               : status;
}

dw_status dw_cuda_stores_new(dw_cuda_stores **out, dw_cuda *c,
                             const dw_stores_counts *counts, dw_error *err)
{
    *out = NULL;
    dw_cuda_stores *s = dw_alloc_zeroed(1, sizeof *s);
    if (!s)
        return dw_fail_memory(err, c->where);
    s->c = c;
    s->most = *counts;
    dw_status status = dw_cuda_enter(c, err);
    if (status == DW_OK) {
        status = reserve(s, err);
        if (status != DW_OK)
            release(s);
        dw_cuda_leave(c);
    }
    if (status != DW_OK)
        dw_free(s);
    else
        *out = s;
    return status;
}

void dw_cuda_stores_free(dw_cuda_stores *s)
{
    if (!s)
        return;
    if (dw_cuda_enter(s->c, NULL) == DW_OK) {
        release(s);
        dw_cuda_leave(s->c);
    }
    dw_free(s);
}

/* ---- before the pause ---- */

static dw_status upload(dw_cuda_stores *s, cu_pointer to, const void *from,
                        uint64_t n_bytes, dw_error *err)
{
    dw_status status = DW_OK;
    for (uint64_t at = 0, n; status == DW_OK && at < n_bytes; at += n) {
        n = n_bytes - at < PASS_BYTES ? n_bytes - at : PASS_BYTES;
        memcpy(s->pinned, (const uint8_t *)from + at, (size_t)n);
        status = dw_cuda_up(s->c, to + at, s->pinned, n, err);
        if (status == DW_OK)
            status = dw_cuda_wait(s->c, err);
    }
    return status;
}

static dw_status upload_parts(dw_cuda_stores *s, const dw_stores_lists *lists,
                              dw_error *err)
{
    enum { MOST = PASS_BYTES / sizeof(dw_cuda_store_part) };
    dw_cuda_store_part *parts = s->pinned;
    dw_status status = DW_OK;
    for (size_t at = 0, n; status == DW_OK && at < lists->counts.n_parts; at += n) {
        n = lists->counts.n_parts - at < MOST ? (size_t)lists->counts.n_parts - at : MOST;
        for (size_t i = 0; i < n; i++) {
            const dw_stores_part *from = &lists->parts[at + i];
            parts[i] = (dw_cuda_store_part){.data = from->data,
                                            .first = s->n.n_stores + from->first,
                                            .values = s->n.n_value_bytes + from->values,
                                            .n = from->n,
                                            .width = from->width,
                                            .tensor = from->tensor};
        }
        status = dw_cuda_up(s->c, s->parts + (s->n.n_parts + at) * sizeof *parts, parts,
                            n * sizeof *parts, err);
        if (status == DW_OK)
            status = dw_cuda_wait(s->c, err);
    }
    return status;
}

dw_status dw_cuda_stores_add(dw_cuda_stores *s, const dw_stores_lists *lists,
                             dw_error *err)
{
    const dw_stores_counts *n = &lists->counts;
    if (n->n_parts > s->most.n_parts - s->n.n_parts ||
        n->n_stores > s->most.n_stores - s->n.n_stores ||
        n->n_value_bytes > s->most.n_value_bytes - s->n.n_value_bytes)
        return dw_fail(err, DW_INVALID, s->c->where, "more stores than were counted");
    dw_status status = dw_cuda_enter(s->c, err);
    if (status != DW_OK)
        return status;
    status = upload_parts(s, lists, err);
    if (status == DW_OK)
        status = upload(s, s->places + s->n.n_stores * sizeof(uint32_t), lists->places,
                        n->n_stores * sizeof(uint32_t), err);
    if (status == DW_OK)
        status = upload(s, s->olds + s->n.n_value_bytes, lists->old_values,
                        n->n_value_bytes, err);
    if (status == DW_OK)
        status =
            upload(s, s->news + s->n.n_value_bytes, lists->values, n->n_value_bytes, err);
    dw_cuda_drain(s->c, status);
    dw_cuda_leave(s->c);
    if (status == DW_OK) {
        s->n.n_parts += n->n_parts;
        s->n.n_stores += n->n_stores;
        s->n.n_value_bytes += n->n_value_bytes;
    }
    return status;
}

/* ---- the pause ---- */

static dw_cuda_store_job job_of(const dw_cuda_stores *s)
{
    return (dw_cuda_store_job){.parts = dw_cuda_address(s->parts),
                               .places = dw_cuda_address(s->places),
                               .olds = dw_cuda_address(s->olds),
                               .news = dw_cuda_address(s->news),
                               .counters = dw_cuda_address(s->counters)};
}

static dw_status launch(dw_cuda_stores *s, dw_error *err)
{
    const dw_cuda_store_job job = job_of(s);
    dw_status status = dw_cuda_zero(s->c, s->counters, sizeof s->counts, err);
    if (status == DW_OK)
        status = dw_cuda_launch(s->c, DW_CUDA_STORE, s->n.n_parts, &job, err);
    s->is_started = s->is_started || status == DW_OK;
    if (status == DW_OK)
        status = dw_cuda_down(s->c, s->counts, s->counters, sizeof s->counts, err);
    return status == DW_OK ? dw_cuda_wait(s->c, err) : status;
}

dw_status dw_cuda_stores_apply(dw_cuda_stores *s, uint64_t *n_wrong, size_t *tensor,
                               dw_error *err)
{
    *n_wrong = *tensor = 0;
    dw_status status = dw_cuda_enter(s->c, err);
    if (status != DW_OK)
        return status;
    status = launch(s, err);
    dw_cuda_drain(s->c, status);
    dw_cuda_leave(s->c);
    if (status == DW_OK) {
        *n_wrong = s->counts[DW_CUDA_MISMATCHES];
        *tensor = (size_t)s->counts[DW_CUDA_FAULT];
    }
    return status;
}

dw_status dw_cuda_stores_undo(dw_cuda_stores *s, dw_error *err)
{
    const dw_cuda_store_job job = job_of(s);
    if (!s->is_started)
        return DW_OK;
    dw_status status = dw_cuda_enter(s->c, err);
    if (status != DW_OK)
        return status;
    status = dw_cuda_launch(s->c, DW_CUDA_UNSTORE, s->n.n_parts, &job, err);
    if (status == DW_OK)
        status = dw_cuda_wait(s->c, err);
    dw_cuda_drain(s->c, status);
    dw_cuda_leave(s->c);
    return status;
}
