/* Walks over a patch with a layout: finds the positions of each change in the targets. */
#ifndef DW_LAYOUT_LAYOUT_WALK_H
#define DW_LAYOUT_LAYOUT_WALK_H

#include "base/parallel.h"
#include "layout/layout_int.h"
#include "codec/patch.h"

enum { DW_LAYOUT_BATCH = 512 };

struct dw_layout_send;

typedef struct dw_layout_job {
    const dw_layout *layout;
    dw_patch *patch;
    const char *path;
    size_t *number;     /* [patch tensors] in the layout */
    uint64_t *weight;   /* [patch tensors] in the model's digest */
    dw_digest *moved;   /* [segments] */
    uint64_t *n_stored; /* [segments] */
    dw_layout_stores *lists;
    bool is_moved;               /* MOVED is known */
    bool no_host;                /* no target is in the host's memory */
    struct dw_layout_send *send; /* layout_send.c */
} dw_layout_job;

/* Positions in a target of changes of a segment. */
typedef struct dw_layout_batch {
    const dw_layout_job *job;
    const dw_segment *segment;
    size_t segment_number;
    size_t target;
    unsigned width;
    size_t n;
    uint64_t places[DW_LAYOUT_BATCH];  /* in the target */
    uint32_t changes[DW_LAYOUT_BATCH]; /* numbers in the segment */
} dw_layout_batch;

typedef dw_status (*dw_layout_batch_fn)(dw_layout_batch *b, dw_error *err);

/* Opens the patch file PATH and finds its tensors. REPORT takes its version, state and
 * counts. Release the walk also after a failure. */
dw_status dw_layout_job_open(dw_layout_job *job, const dw_layout *layout,
                             const char *path, dw_layout_report *report, dw_error *err);
void dw_layout_job_release(dw_layout_job *job);

/* Calls FN for all positions of segment I's changes, a batch at a time. */
dw_status dw_layout_walk(const dw_layout_job *job, size_t i, dw_layout_batch_fn fn,
                         dw_error *err);

/* A dw_item_fn: computes the effect of segment I's changes on the model's digest. */
dw_status dw_layout_move_digest(void *job, size_t i, unsigned worker, dw_error *err);

dw_status dw_layout_for_segments(dw_layout_job *job, unsigned n_threads, dw_item_fn fn,
                                 dw_error *err);

/* Fills in the rest of the report; FORGOTTEN may be NULL. */
void dw_layout_job_sum(const dw_layout_job *job, dw_layout_report *report,
                       bool *forgotten);

#endif
