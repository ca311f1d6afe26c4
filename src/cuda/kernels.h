/* The kernels: name, threads of a block, type of the argument. Both compilers read this.
 */
#ifndef DW_CUDA_KERNELS_H
#define DW_CUDA_KERNELS_H

#include "cuda/jobs.h"

/* X(constant, name, threads, argument) */
#define DW_CUDA_EACH_KERNEL(X) X(DW_CUDA_DIGEST, dw_cuda_digest, 256, dw_cuda_digest_job)

typedef enum dw_cuda_kernel {
#define DW_CUDA_NAME(constant, name, threads, argument) constant,
    DW_CUDA_EACH_KERNEL(DW_CUDA_NAME)
#undef DW_CUDA_NAME
        DW_CUDA_KERNELS
} dw_cuda_kernel;

#endif
