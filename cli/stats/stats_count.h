/* The pass over memory: counts the changes of one step, tensor by tensor on all threads.
 *
 * Each element belongs to a cell: the exponent of its old value, and the age of its
 * last change. The bound, recurrence and unions follow from the number of elements in
 * each cell and how many of them changed.
 */
#ifndef CLI_STATS_COUNT_H
#define CLI_STATS_COUNT_H

#include <deltawire/base.h>

#include "stats_model.h"

/* ---- ages ---- */

#define STATS_HISTORY_STEPS 15 /* the steps that are remembered */

/* Ages, by the time since the last change: 1 step, 2 to 3, 4 to 7, 8 to 15, longer. */
typedef enum stats_age {
    STATS_AGE_1,
    STATS_AGE_3,
    STATS_AGE_7,
    STATS_AGE_15,
    STATS_AGE_NONE,
    STATS_N_AGES
} stats_age;

/* ---- what is counted ---- */

#define STATS_N_ULPS 33 /* moves of 1, 2, 3-4, 5-8, ... ulps: up to 2^i */

enum { STATS_DOWN, STATS_UP };

/* Sums over tensors. */
typedef struct stats_counts {
    uint64_t n_elems, n_changed;
    double mask_bits, move_bits; /* order-0, by tensor and exponent of the old value */
    uint64_t n_class_bytes;      /* size of the changed tensors in the codec `class` */
    uint64_t n_trl_bytes;        /* size of index and value of each change */
    /* moves of floats */
    uint64_t ulps[STATS_N_ULPS][2];
    uint64_t n_across_zero;
    uint64_t n_special; /* from or to NaN or infinity */
    uint64_t n_no_ulps; /* changes of other types */
    uint64_t n_away;    /* changes in `ulps` that went away from zero */
    uint64_t
        n_with_past; /* changes in steps after the first; the counts below are of these */
    /* changes by the element's last change, and the number expected by chance */
    uint64_t n_by_age[STATS_N_AGES];
    double expected_by_age[STATS_N_AGES];
    uint64_t n_quiet[STATS_N_AGES]; /* elements not changed now, by their last change */
    uint64_t n_same_sign;           /* changed in the step before in the same direction */
    /* directions by age and last direction */
    uint64_t directions[STATS_N_AGES][2][2];
} stats_counts;

void stats_counts_add(stats_counts *to, const stats_counts *more);

static inline void stats_add(uint64_t *to, const uint64_t *more, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += more[i];
}

/* Elements and changes by exponent, over steps and tensors. */
typedef struct stats_exponents {
    uint64_t n_elems[STATS_MAX_EXPONENTS];
    uint64_t n_changed[STATS_MAX_EXPONENTS];
} stats_exponents;

/* The counts of one step. */
typedef struct stats_step_counts {
    stats_counts *groups;                         /* [n_groups] */
    stats_exponents (*exponents)[DW_DTYPE_COUNT]; /* [kinds] by type; added to */
} stats_step_counts;

/* Compares `now` with `then`, fills OUT, and brings `then` and
 * the history up to date. STEP counts from 0. CLASS_BYTES [n_tensors]. */
dw_status stats_count_step(stats_model *model, unsigned step, const uint64_t *class_bytes,
                           unsigned n_threads, const dw_progress *progress,
                           stats_step_counts *out, dw_error *err);

#endif
