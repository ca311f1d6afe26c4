/* The tensors of a synthetic model: names and proportions of Qwen3, at any size. */
#ifndef BENCH_SYNTH_MODEL_H
#define BENCH_SYNTH_MODEL_H

#include <stdint.h>

#include <deltawire/base.h>
#include <deltawire/tensor.h>

#define SYNTH_MIN_PARAMS 100000

/* One tensor, and the distribution of its weights. */
typedef struct synth_tensor {
    char name[64];
    uint64_t dims[2];
    uint32_t n_dims;
    uint64_t n_elems;
    float mean;
    float sigma;
} synth_tensor;

typedef struct synth_model {
    synth_tensor *tensors;
    size_t n_tensors;
    uint64_t n_elems;
} synth_model;

/* About N_PARAMS parameters, which must be SYNTH_MIN_PARAMS at least. */
dw_status synth_model_init(synth_model *out, uint64_t n_params, dw_error *err);

void synth_model_release(synth_model *model);

#endif
