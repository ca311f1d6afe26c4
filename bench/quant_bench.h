/* The measurements of `make bench-quantised`. */
#ifndef DW_BENCH_QUANT_BENCH_H
#define DW_BENCH_QUANT_BENCH_H

#include <deltawire/deltawire.h>

#include "quant_model.h"
#include "workload.h"

typedef struct quant_options {
    const char *trace; /* or NULL: synthetic weights */
    dw_quant_scheme scheme;
    uint64_t n_bytes; /* of the weights that speeds are measured on */
    unsigned n_threads;
    unsigned n_rounds;
} quant_options;

/* Bytes of one training step, of the tensors that are quantised. */
typedef struct quant_step {
    uint64_t n_elems, n_scales;
    uint64_t bf16_changed, bf16_bytes;
    uint64_t changed, bytes; /* quantised elements; the delta of elements and scales */
    uint64_t scales_changed;
} quant_step;

/* Seconds, the least of all rounds. */
typedef struct quant_timing {
    double wall, cpu;
} quant_timing;

quant_timing quant_start(void);
void quant_keep_better(quant_timing *best, quant_timing start);

/* Bytes of the source a second: of time, and of the processors' time, which other work on
 * the machine affects less. */
typedef struct quant_rate {
    double wall, cpu;
} quant_rate;

typedef struct quant_speed {
    quant_rate copy;       /* memcpy of the source on one thread */
    quant_rate quantise_1; /* quantising: one thread ... */
    quant_rate quantise;   /* ... and all threads */
    quant_rate encode;     /* quantising, comparing and encoding */
    quant_rate publish;    /* from the call of a publisher to the commit, in memory */
    quant_rate bf16;       /* comparing and encoding the source itself */
    uint64_t n_bytes;      /* of the source */
    const char *kind;
} quant_speed;

/* The tensors of MODEL that the scheme quantises, and a plan of only these. The caller
 * frees *SUBSET. */
dw_status quant_pick(dw_quant_plan **plan, dw_tensor **subset, size_t *n,
                     const dw_tensor *tensors, size_t n_tensors, dw_quant_scheme scheme,
                     dw_error *err);

/* Calls STEP with the figures of each step of the trace. */
dw_status quant_measure_steps(const quant_options *options,
                              void (*step)(void *context, unsigned i,
                                           const quant_step *figures),
                              void *context, dw_error *err);

/* TENSORS are those of W's base that the scheme quantises. */
dw_status quant_measure_publish(quant_timing *best, bench_workload *w,
                                const dw_tensor *tensors, size_t n,
                                const quant_options *options, dw_error *err);

dw_status quant_measure_speed(quant_speed *out, const quant_options *options,
                              dw_error *err);

#endif
