/* Analytics of a run: the results of `deltawire stats`, and its parts.
 *
 *     stats_stream.c, stats_deltas.c   versions, from a stream or from files
 *     stats_walk.c                     the walk over them, step by step
 *     stats_count.c                    the pass over memory
 *     stats_text.c, stats_json.c, stats_html.c   the report
 */
#ifndef CLI_STATS_H
#define CLI_STATS_H

#include <jansson.h>

#include <deltawire/stream.h>

#include "command_line.h"
#include "progress_bar.h"
#include "stats_count.h"
#include "stats_model.h"

/* ---- the report ---- */

#define STATS_N_FOLDS 5 /* over 1, 2, 4, 8, 16 steps */

typedef struct stats_step {
    uint64_t from, to; /* versions */
    const char *path;  /* of the delta; NULL for streams */
    uint64_t n_bytes;  /* of its objects */
    uint64_t n_objects;
    stats_counts sum;
    uint64_t n_union[STATS_N_FOLDS]; /* changed at least once in the last 2^i steps; 0:
                                        the walk is shorter */
} stats_step;

/* A shortcut of a stream within the steps that were walked. */
typedef struct stats_shortcut {
    dw_edge edge;
    uint64_t n_deltas,
        n_delta_bytes; /* that it replaces; for an anchor: all deltas walked up to it */
} stats_shortcut;

typedef struct stats_report {
    const char *source;      /* URL, or the base checkpoint */
    const dw_stream *stream; /* or NULL: deltas on disk */
    const stats_model *model;
    stats_step *steps;
    size_t n_steps;
    stats_counts total;
    stats_counts *groups;                         /* [model->n_groups] over all steps */
    stats_exponents (*exponents)[DW_DTYPE_COUNT]; /* [kinds] by type, over all steps */
    stats_shortcut *shortcuts;
    size_t n_shortcuts;
} stats_report;

static inline double stats_bound_bits(const stats_counts *c)
{
    return c->mask_bits + c->move_bits;
}

/* Changes over a fold's steps, as a sum and as a union, added up over all windows of that
 * length. */
typedef struct stats_fold {
    unsigned n_steps;
    uint64_t n_windows, n_sum, n_union;
} stats_fold;

stats_fold stats_fold_of(const stats_report *report, unsigned i);

/* Bits for the direction of all changes: without and with knowledge of the history. */
void stats_direction_bits(const stats_counts *counts, double *plain, double *given);

/* Changes by direction, of all types. */
uint64_t stats_ups(const stats_counts *counts);

/* How often changed elements had changed before. The first step has no past and does not
 * count. */
typedef struct stats_recurrence {
    uint64_t n_changed;
    uint64_t n_again;     /* in the step before, or within 15 */
    double by_density;    /* expected by chance: given the density of those steps, */
    double by_exponent;   /* and given exponent and tensor */
    uint64_t n_same_sign; /* changed in the step before in the same direction */
} stats_recurrence;

stats_recurrence stats_recurrence_of(const stats_report *report, bool any);

/* Sums over the groups of a kind, or of a layer. */
stats_counts stats_sum_kind(const stats_report *report, stats_kind kind);
stats_counts stats_sum_layer(const stats_report *report, uint32_t layer);

/* ---- progress over many phases ---- */

typedef struct stats_bar {
    cli_progress bar;
    uint64_t done, share, total;
} stats_bar;

/* ---- versions ---- */

/* A source of versions. `first` brings `now` to the first version, `next` to the
 * following one, and describes the step. */
typedef struct stats_source {
    void *self;
    size_t n_steps;
    const dw_tensor *tensors; /* names and shapes */
    size_t n_tensors;
    dw_status (*first)(void *self, stats_model *model, const dw_progress *progress,
                       dw_error *err);
    dw_status (*next)(void *self, stats_model *model, const dw_digest *digests,
                      stats_step *step, const dw_progress *progress, dw_error *err);
} stats_source;

/* Walks all steps. Fills the report's steps and sums, also if it fails midway; release
 * the report in any case. */
dw_status stats_walk(stats_report *report, stats_model *model, const stats_source *source,
                     const char *work_dir, const cli_session *s, dw_error *err);
void stats_report_release(stats_report *report);

/* ---- output ---- */

void stats_print_text(const stats_report *report);
json_t *stats_report_json(const stats_report *report);

/* Writes one page that requests nothing from outside. It appears whole or not at all. */
dw_status stats_save_html(const json_t *report, const char *path, dw_error *err);

#endif
