/* Digests of weights in a device's memory. */
#ifndef DW_CUDA_CUDA_DIGEST_H
#define DW_CUDA_CUDA_DIGEST_H

#include "cuda/cuda_context.h"
#include "deltawire/tensor.h"

/* The digest of each tensor. `data` of TENSORS are addresses of the device. Waits for the
 * result. */
dw_status dw_cuda_digest_tensors(dw_digest *out, dw_cuda *c, const dw_tensor *tensors,
                                 size_t n_tensors, dw_error *err);

#endif
