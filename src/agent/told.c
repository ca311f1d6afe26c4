#include "agent/told.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* ---- shared blocks ---- */

typedef struct owners {
    _Alignas(max_align_t) atomic_uint n;
} owners;

void *dw_shared_new(size_t n_bytes)
{
    owners *block =
        n_bytes < SIZE_MAX - sizeof(owners) ? dw_alloc(sizeof *block + n_bytes) : NULL;
    if (!block)
        return NULL;
    atomic_init(&block->n, 1);
    return block + 1;
}

static owners *owners_of(const void *block)
{
    return (owners *)block - 1;
}

const void *dw_shared_keep(const void *block)
{
    if (block)
        atomic_fetch_add(&owners_of(block)->n, 1);
    return block;
}

void dw_shared_drop(const void *block)
{
    if (block && atomic_fetch_sub(&owners_of(block)->n, 1) == 1)
        dw_free(owners_of(block));
}

/* ---- all of it ---- */

bool dw_told_init(dw_told *told, bool stream_only, size_t n_history)
{
    memset(told, 0, sizeof *told);
    told->stream_only = stream_only;
    told->started_ms = dw_wall_clock_ms();
    told->head = told->version = DW_NO_VERSION;
    told->phase_version = told->pinned = DW_NO_VERSION;
    return dw_history_init(&told->history, n_history);
}

static void drop_blocks(dw_told *told)
{
    dw_shared_drop(told->identity);
    dw_shared_drop(told->head_step);
    dw_shared_drop(told->followers);
}

void dw_told_release(dw_told *told)
{
    drop_blocks(told);
    dw_history_release(&told->history);
    memset(told, 0, sizeof *told);
}

void dw_told_copy(dw_told *to, const dw_told *from)
{
    dw_history history = to->history;
    drop_blocks(to);
    /* up to the engines, of which most are not there */
    memcpy(to, from, offsetof(dw_told, engines));
    to->n_engines = from->n_engines;
    memcpy(to->engines, from->engines, from->n_engines * sizeof *from->engines);
    dw_shared_keep(to->identity);
    dw_shared_keep(to->head_step);
    dw_shared_keep(to->followers);
    to->history = history;
    dw_history_copy(&to->history, &from->history);
}
