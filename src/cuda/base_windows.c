#include "cuda/base_windows.h"

#include "base/error.h"
#include "base/mem.h"
#include "cuda/encoder.h"

/* A buffer has room for this share of the old weights. More windows would take less
 * memory, but each takes six calls of the driver, and those are made in a publish. */
#define WINDOWS 32

/* Blocks that are so near to each other in the host's memory are copied at once. */
#define NEAR_BYTES 256u

/* Addresses in a buffer are those of the host, modulo this. */
#define ALIGNMENT 256u

static dw_status check(const dw_cuda *c, cu_result result, const char *doing,
                       dw_error *err)
{
    return dw_cuda_check(c->driver, result, c->where, doing, err);
}

static uint64_t align(uint64_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- opening ---- */

static dw_status make_events(cu_event events[2], dw_cuda *c, dw_error *err)
{
    dw_status status = DW_OK;
    for (unsigned i = 0; status == DW_OK && i < 2; i++) {
        status = check(c, c->driver->event_create(&events[i], CU_EVENT_DISABLE_TIMING),
                       "create an event", err);
        if (status != DW_OK)
            events[i] = NULL;
    }
    return status;
}

static dw_status take_memory(dw_cuda_windows *w, dw_cuda *c, size_t n_blocks,
                             dw_error *err)
{
    dw_status status =
        dw_cuda_alloc(&w->memory, c, 2 * w->n_bytes, "two windows of the baseline", err);
    if (status == DW_OK)
        status =
            dw_cuda_alloc(&w->blocks, c, n_blocks * sizeof *w->listed, "tables", err);
    if (status == DW_OK)
        status = dw_cuda_alloc_pinned(&w->pinned, c, n_blocks * sizeof *w->listed,
                                      "tables", err);
    w->listed = w->pinned;
    return status;
}

dw_status dw_cuda_windows_open(dw_cuda_windows *w, dw_cuda *c, size_t n_blocks,
                               uint64_t n_base, uint64_t n_most, dw_error *err)
{
    const uint64_t share = n_base / WINDOWS, n = share > n_most ? share : n_most;
    *w = (dw_cuda_windows){.n_bytes = align(n + ALIGNMENT)};
    w->items = dw_alloc_array(n_blocks, sizeof *w->items);
    if (!w->items)
        return dw_fail_memory(err, c->where);
    dw_status status = dw_cuda_make_stream(&w->stream, c, err);
    if (status == DW_OK)
        status = make_events(w->copied, c, err);
    if (status == DW_OK)
        status = make_events(w->compared, c, err);
    return status == DW_OK ? take_memory(w, c, n_blocks, err) : status;
}

void dw_cuda_windows_close(dw_cuda_windows *w, dw_cuda *c)
{
    if (w->stream) {
        (void)c->driver->stream_wait(w->stream);
        (void)c->driver->stream_destroy(w->stream);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (w->copied[i])
            (void)c->driver->event_destroy(w->copied[i]);
        if (w->compared[i])
            (void)c->driver->event_destroy(w->compared[i]);
    }
    dw_cuda_free(c, &w->memory);
    dw_cuda_free(c, &w->blocks);
    dw_cuda_free_pinned(c, w->pinned);
    *w = (dw_cuda_windows){.items = w->items};
}

uint64_t dw_cuda_windows_bytes(const dw_cuda_windows *w, size_t n_blocks)
{
    return 2 * w->n_bytes + n_blocks * sizeof *w->listed;
}

/* ---- the list ---- */

static uint64_t bytes_of(const dw_cuda_block *b)
{
    return (uint64_t)b->n * b->width;
}

/* How far AFTER begins behind the end of BEFORE, in the host's memory. */
static uintptr_t gap_between(const dw_cuda_block *before, const dw_cuda_block *after)
{
    return (uintptr_t)after->old - ((uintptr_t)before->old + bytes_of(before));
}

/* Where a block begins in an empty buffer. */
static uint64_t first_place(const dw_cuda_block *block)
{
    return (uintptr_t)block->old % ALIGNMENT;
}

/* Where BLOCK begins if the block BEFORE it ends at END: if they are near, as far behind
 * it as in the host's memory, so that one copy takes both. */
static uint64_t place_after(const dw_cuda_block *before, uint64_t end,
                            const dw_cuda_block *block)
{
    const uintptr_t gap = gap_between(before, block);
    return gap <= NEAR_BYTES ? end + gap : align(end) + first_place(block);
}

void dw_cuda_windows_list(dw_cuda_windows *w, const dw_cuda_block *blocks, size_t n)
{
    dw_cuda_window *now = NULL;
    uint64_t end = 0;
    w->n = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t at = now ? place_after(&blocks[i - 1], end, &blocks[i]) : 0;
        if (!now || at + bytes_of(&blocks[i]) > w->n_bytes) {
            at = first_place(&blocks[i]);
            now = &w->items[w->n++];
            *now =
                (dw_cuda_window){.first_block = i, .first_strip = blocks[i].first_strip};
        }
        w->listed[i] = blocks[i];
        w->listed[i].old = dw_cuda_address(w->memory + (w->n - 1) % 2 * w->n_bytes + at);
        w->listed[i].first_strip = blocks[i].first_strip - (uint32_t)now->first_strip;
        now->n_blocks++;
        now->n_strips += dw_cuda_strips_of(&blocks[i]);
        end = at + bytes_of(&blocks[i]);
    }
}

dw_status dw_cuda_windows_upload(dw_cuda_windows *w, dw_cuda *c, size_t n, dw_error *err)
{
    return dw_cuda_up(c, w->blocks, w->listed, n * sizeof *w->listed, err);
}

/* ---- a round ---- */

/* Copies the blocks of a window to its buffer. */
static dw_status copy_window(const dw_cuda_windows *w, dw_cuda *c,
                             const dw_cuda_window *window, const dw_cuda_block *blocks,
                             dw_error *err)
{
    const size_t last = window->first_block + window->n_blocks - 1;
    dw_status status = DW_OK;
    for (size_t first = window->first_block, i = first; status == DW_OK && i <= last;
         i++) {
        if (i < last && gap_between(&blocks[i], &blocks[i + 1]) <= NEAR_BYTES)
            continue;
        const uint64_t n_bytes =
            (uint64_t)(blocks[i].old - blocks[first].old) + bytes_of(&blocks[i]);
        status = check(c,
                       c->driver->copy_up((cu_pointer)(uintptr_t)w->listed[first].old,
                                          blocks[first].old, n_bytes, w->stream),
                       "copy the baseline to the device", err);
        first = i + 1;
    }
    return status;
}

/* Lets STREAM wait for EVENT. */
static dw_status wait_for(dw_cuda *c, cu_stream stream, cu_event event, dw_error *err)
{
    return check(c, c->driver->stream_wait_event(stream, event, 0), "wait for an event",
                 err);
}

static dw_status record(dw_cuda *c, cu_event event, cu_stream stream, dw_error *err)
{
    return check(c, c->driver->event_record(event, stream), "record an event", err);
}

static dw_status compare_window(dw_cuda_windows *w, dw_cuda *c, size_t number,
                                const dw_cuda_block *blocks,
                                const dw_cuda_encode_job *job, dw_error *err)
{
    const dw_cuda_window *window = &w->items[number];
    const unsigned slot = number % 2;
    dw_cuda_encode_job mine = *job;
    mine.blocks = dw_cuda_address(w->blocks);
    mine.block_of += window->first_strip;
    mine.strips += window->first_strip;
    dw_status status = wait_for(c, w->stream, w->compared[slot], err);
    if (status == DW_OK)
        status = copy_window(w, c, window, blocks, err);
    if (status == DW_OK)
        status = record(c, w->copied[slot], w->stream, err);
    if (status == DW_OK)
        status = wait_for(c, c->stream, w->copied[slot], err);
    if (status == DW_OK)
        status = dw_cuda_launch(c, DW_CUDA_COMPARE, window->n_strips, &mine, err);
    return status == DW_OK ? record(c, w->compared[slot], c->stream, err) : status;
}

dw_status dw_cuda_windows_compare(dw_cuda_windows *w, dw_cuda *c,
                                  const dw_cuda_block *blocks,
                                  const dw_cuda_encode_job *job, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < w->n; i++)
        status = compare_window(w, c, i, blocks, job, err);
    return status;
}

void dw_cuda_windows_drain(dw_cuda_windows *w, dw_cuda *c, dw_status status)
{
    if (status != DW_OK && w->stream)
        (void)c->driver->stream_wait(w->stream);
}
