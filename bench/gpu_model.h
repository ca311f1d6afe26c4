/* Two versions of a model's weights in a device's memory. */
#ifndef DW_BENCH_GPU_MODEL_H
#define DW_BENCH_GPU_MODEL_H

#include "codec/encode.h"
#include "cuda/cuda_context.h"

typedef struct gpu_tensor_name {
    char text[48];
    uint64_t dims[2];
} gpu_tensor_name;

typedef struct gpu_model {
    dw_cuda *c;
    const char *name;
    size_t n_tensors;
    uint64_t n_elems;
    gpu_tensor_name *names;
    dw_tensor *base; /* bf16, on the device; names ascending */
    dw_tensor *next;
    cu_pointer memory[2];

    /* what both are made of, in pinned memory */
    uint64_t n_pool; /* elements */
    uint16_t *pool[2];
} gpu_model;

/* The models that there are, for the usage text. */
extern const char gpu_model_names[];

/* NAME is one of them. 1.1 % of the elements of `next` differ from `base` by one ulp, at
 * random places. DW_NOT_FOUND if there is no such model. */
dw_status gpu_model_open(gpu_model *out, dw_cuda *c, const char *name, dw_error *err);
void gpu_model_close(gpu_model *m);

/* Makes `base` what it was at first. */
dw_status gpu_model_refill(gpu_model *m, dw_error *err);

#endif
