/* The data of the measurements: two versions of a model in memory. */
#ifndef DW_BENCH_WORKLOAD_H
#define DW_BENCH_WORKLOAD_H

#include <deltawire/deltawire.h>

/* A small model in memory that goes through a trace step by step. */
typedef struct bench_model {
    dw_checkpoint *ckpt; /* names and shapes */
    dw_tensor *tensors;
    size_t n_tensors;
} bench_model;

/* Steps of the trace: files from step_000001 up to the first that is missing. */
unsigned bench_trace_steps(const char *trace_dir);

/* Loads the base of the trace. */
dw_status bench_model_open(bench_model *out, const char *trace_dir, dw_error *err);

/* Applies the trace's file of that step. */
dw_status bench_model_step(bench_model *m, const char *trace_dir, unsigned step,
                           dw_error *err);

void bench_model_release(bench_model *m);

typedef struct bench_workload {
    dw_tensor *old;
    dw_tensor *new_;
    dw_tensor *base; /* starts as a copy of OLD; measurements write to it */
    size_t n_tensors;
    uint64_t n_bytes; /* of one version */
    const char *kind; /* a description of its source */
    char *names;
    bench_model model; /* owns the shapes of the tensors */
} bench_workload;

/* The real trace in DIR (base/, deltas/step_%06d.safetensors), its tensors repeated until
 * one version has at least N_BYTES; OLD and NEW_ are the weights before and after STEP.
 */
dw_status bench_workload_trace(bench_workload *out, const char *dir, unsigned step,
                               uint64_t n_bytes, dw_error *err);

/* Normally distributed weights and a step on them that changes about 1.1 %, for
 * machines without the trace. */
dw_status bench_workload_synthetic(bench_workload *out, uint64_t n_bytes, dw_error *err);

/* Makes BASE equal to OLD again. */
void bench_workload_reset(bench_workload *w);

void bench_workload_release(bench_workload *w);

#endif
