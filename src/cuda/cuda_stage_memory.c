#include "cuda/cuda_stage_memory.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"

#define BUFFER_BYTES (32u << 20)
#define MAX_COPIERS  8
#define COPIER_BYTES (1u << 20) /* for which a thread is worth it */

static void free_memory(dw_cuda *c, void *memory)
{
    dw_cuda_stage_memory *m = memory;
    dw_cuda_room *const rooms[] = {&m->blocks, &m->order, &m->decoded, &m->segments,
                                   &m->totals, &m->bases, &m->lows,    &m->ranks,
                                   &m->moves,  &m->input, &m->dense,   &m->positions,
                                   &m->olds,   &m->news,  &m->counters};
    dw_cuda_pinned *const pinned[] = {&m->host_blocks,   &m->host_order,
                                      &m->host_decoded,  &m->host_counters,
                                      &m->host_input[0], &m->host_input[1]};
    cu_event events[] = {m->copied[0], m->copied[1], m->arrived};
    if (m->stream)
        (void)c->driver->stream_wait(m->stream);
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++)
        dw_cuda_room_free(rooms[i], c);
    for (size_t i = 0; i < sizeof pinned / sizeof pinned[0]; i++)
        dw_cuda_pinned_free(pinned[i], c);
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (events[i])
            (void)c->driver->event_destroy(events[i]);
    if (m->stream)
        (void)c->driver->stream_destroy(m->stream);
    dw_free(m);
}

static dw_status open_stream(dw_cuda_stage_memory *m, dw_cuda *c, dw_error *err)
{
    int least = 0, greatest = 0;
    dw_status status =
        dw_cuda_check(c->driver, c->driver->stream_priorities(&least, &greatest),
                      c->where, "read the priorities of streams", err);
    if (status == DW_OK) {
        status = dw_cuda_check(
            c->driver,
            c->driver->stream_create(&m->stream, CU_STREAM_NON_BLOCKING, least), c->where,
            "create a stream", err);
        if (status != DW_OK)
            m->stream = NULL;
    }
    cu_event *const events[] = {&m->copied[0], &m->copied[1], &m->arrived};
    for (size_t i = 0; status == DW_OK && i < sizeof events / sizeof events[0]; i++) {
        status = dw_cuda_check(
            c->driver, c->driver->event_create(events[i], CU_EVENT_DISABLE_TIMING),
            c->where, "create an event", err);
        if (status != DW_OK)
            *events[i] = NULL;
    }
    return status;
}

dw_status dw_cuda_stage_memory_take(dw_cuda_stage_memory **out, dw_cuda *c, dw_error *err)
{
    *out = NULL;
    if (c->kept) {
        *out = c->kept;
        c->kept = NULL;
        return DW_OK;
    }
    dw_cuda_stage_memory *m = dw_alloc_zeroed(1, sizeof *m);
    if (!m)
        return dw_fail_memory(err, c->where);
    dw_status status = open_stream(m, c, err);
    if (status != DW_OK)
        free_memory(c, m);
    else
        *out = m;
    return status;
}

void dw_cuda_stage_memory_give(dw_cuda *c, dw_cuda_stage_memory *m)
{
    if (!m)
        return;
    if (c->kept) {
        free_memory(c, m);
        return;
    }
    c->kept = m;
    c->free_kept = free_memory;
}

/* ---- encoded bytes ---- */

typedef struct copying {
    const dw_stage_block *blocks;
    const uint32_t *list;
    const uint64_t *places; /* where each goes */
    uint8_t *to;
} copying;

static dw_status copy_block(void *context, size_t i, unsigned worker, dw_error *err)
{
    const copying *k = context;
    const dw_delta_block *block = k->blocks[k->list[i]].block;
    (void)worker;
    (void)err;
    if (block->mode == DW_BLOCK_CLASS)
        memcpy(k->to + k->places[i], block->bytes, block->n_bytes);
    return DW_OK;
}

/* Fills buffer HALF and sends it to byte AT of the input. */
static dw_status send_blocks(dw_cuda_stage_memory *m, dw_cuda *c, copying *k, size_t n,
                             uint64_t n_bytes, uint64_t at, int half, bool in_use,
                             dw_error *err)
{
    dw_status status = DW_OK;
    if (in_use)
        status = dw_cuda_check(c->driver, c->driver->event_wait(m->copied[half]),
                               c->where, "wait for the device", err);
    if (status == DW_OK)
        status = dw_cuda_pinned_reserve(&m->host_input[half], c, n_bytes, err);
    if (status != DW_OK)
        return status;
    k->to = m->host_input[half].at;
    unsigned n_threads = (unsigned)(n_bytes / COPIER_BYTES) + 1;
    n_threads = n_threads < MAX_COPIERS ? n_threads : MAX_COPIERS;
    const unsigned n_most = dw_worker_count(0, n);
    status =
        dw_parallel(n_threads < n_most ? n_threads : n_most, n, copy_block, k, NULL, err);
    if (status == DW_OK)
        status = dw_cuda_check(
            c->driver, c->driver->copy_up(m->input.at + at, k->to, n_bytes, m->stream),
            c->where, "copy to the device", err);
    if (status == DW_OK)
        status =
            dw_cuda_check(c->driver, c->driver->event_record(m->copied[half], m->stream),
                          c->where, "record an event", err);
    return status;
}

dw_status dw_cuda_stage_upload(dw_cuda_stage_memory *m, dw_cuda *c,
                               const dw_stage_block *blocks, const uint32_t *list,
                               size_t n, dw_error *err)
{
    uint64_t *places = dw_alloc_array(n, sizeof *places);
    dw_status status = places ? DW_OK : dw_fail_memory(err, c->where);
    uint64_t sent = 0;
    size_t n_sent = 0;
    for (unsigned turn = 0; status == DW_OK && n_sent < n; turn++) {
        uint64_t n_bytes = 0;
        size_t i = n_sent;
        for (; i < n; i++) {
            const dw_delta_block *block = blocks[list[i]].block;
            const uint64_t own = block->mode == DW_BLOCK_CLASS ? block->n_bytes : 0;
            if (n_bytes > 0 && n_bytes + own > BUFFER_BYTES)
                break;
            places[i] = n_bytes;
            n_bytes += own;
        }
        copying k = {blocks, list + n_sent, places + n_sent, NULL};
        if (n_bytes > 0)
            status = send_blocks(m, c, &k, i - n_sent, n_bytes, sent, turn % 2, turn >= 2,
                                 err);
        sent += n_bytes;
        n_sent = i;
    }
    if (status == DW_OK)
        status = dw_cuda_check(c->driver, c->driver->event_record(m->arrived, m->stream),
                               c->where, "record an event", err);
    if (status == DW_OK)
        status = dw_cuda_check(c->driver,
                               c->driver->stream_wait_event(c->stream, m->arrived, 0),
                               c->where, "wait for an event", err);
    if (status != DW_OK)
        (void)c->driver->stream_wait(m->stream);
    dw_free(places);
    return status;
}
