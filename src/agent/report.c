#include "agent/report.h"

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

static void add_owner(const void *block)
{
    if (block)
        atomic_fetch_add(&owners_of(block)->n, 1);
}

void dw_shared_drop(const void *block)
{
    if (block && atomic_fetch_sub(&owners_of(block)->n, 1) == 1)
        dw_free(owners_of(block));
}

/* ---- all of it ---- */

bool dw_report_init(dw_report *report, bool stream_only, size_t n_history)
{
    memset(report, 0, sizeof *report);
    report->stream_only = stream_only;
    report->started_ms = dw_wall_clock_ms();
    report->head = report->version = DW_NO_VERSION;
    report->phase_version = report->pinned = DW_NO_VERSION;
    return dw_history_init(&report->history, n_history);
}

static void drop_blocks(dw_report *report)
{
    dw_shared_drop(report->identity);
    dw_shared_drop(report->head_step);
    dw_shared_drop(report->followers);
}

void dw_report_release(dw_report *report)
{
    drop_blocks(report);
    dw_history_release(&report->history);
    memset(report, 0, sizeof *report);
}

void dw_report_copy(dw_report *to, const dw_report *from)
{
    dw_history history = to->history;
    drop_blocks(to);
    /* only as many engines as there are: the array is large */
    memcpy(to, from, offsetof(dw_report, engines));
    to->n_engines = from->n_engines;
    memcpy(to->engines, from->engines, from->n_engines * sizeof *from->engines);
    add_owner(to->identity);
    add_owner(to->head_step);
    add_owner(to->followers);
    to->history = history;
    dw_history_copy(&to->history, &from->history);
}
