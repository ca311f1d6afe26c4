/* Stores of single elements, computed by the host (tensor/device.h). */
#ifndef DW_CUDA_CUDA_STORES_H
#define DW_CUDA_CUDA_STORES_H

#include "cuda/cuda_context.h"
#include "tensor/device.h"

typedef struct dw_cuda_stores dw_cuda_stores;

dw_status dw_cuda_stores_new(dw_cuda_stores **out, dw_cuda *c,
                             const dw_stores_counts *counts, dw_error *err);
void dw_cuda_stores_free(dw_cuda_stores *s);
dw_status dw_cuda_stores_add(dw_cuda_stores *s, const dw_stores_lists *lists,
                             dw_error *err);
dw_status dw_cuda_stores_apply(dw_cuda_stores *s, uint64_t *n_wrong, size_t *tensor,
                               dw_error *err);
dw_status dw_cuda_stores_undo(dw_cuda_stores *s, dw_error *err);

#endif
