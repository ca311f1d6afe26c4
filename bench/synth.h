/* A synthetic RL run: weights that change like those of a model under AdamW.
 *
 * Each weight has an fp32 master and a momentum x, in units of the learning rate:
 *
 *     x      <- BETA x + noise         the direction lasts about ten steps
 *     master <- master - lr x
 *     weight <- master, rounded to nearest even
 *
 * All statistics of real deltas follow from this: a weight changes with probability
 * |update| / ulp, which halves with each exponent; most changes are by one ulp; elements
 * of small exponents change often, mostly in the same direction. Momenta have their
 * stationary distribution from the first step on.
 *
 * Noise is a hash of seed, step, tensor and index, so a run depends only on its options.
 */
#ifndef BENCH_SYNTH_H
#define BENCH_SYNTH_H

#include <stdint.h>

#include <deltawire/base.h>
#include <deltawire/delta.h>
#include <deltawire/tensor.h>

typedef struct synth_options {
    uint64_t n_params; /* about; SYNTH_MIN_PARAMS at least */
    uint64_t seed;
    double lr;
    dw_dtype dtype;       /* BF16 or F32 */
    unsigned n_threads;   /* 0: all cores */
    dw_progress progress; /* of each pass over the weights */
} synth_options;

typedef struct synth_run synth_run;

/* Counts of one step. */
typedef struct synth_step_stats {
    uint64_t n_changed;
    uint64_t n_one_ulp; /* changed by one ulp */
    uint64_t n_again;   /* also changed in the step before */
} synth_step_stats;

dw_status synth_run_new(synth_run **out, const synth_options *options, dw_error *err);
void synth_run_free(synth_run *run);

/* The weights now. The arrays live as long as the run, and their bytes change with each
 * step. */
const dw_tensor *synth_run_tensors(const synth_run *run, size_t *n_tensors);

/* The weights before the last step, in the same order; the base before the first. The
 * next step brings them up to date. */
const dw_tensor *synth_run_before(const synth_run *run);

dw_status synth_run_step(synth_run *run, synth_step_stats *out, dw_error *err);

#endif
