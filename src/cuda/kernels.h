/* The kernels: name, threads of a block, type of the argument. Both compilers read this.
 */
#ifndef DW_CUDA_KERNELS_H
#define DW_CUDA_KERNELS_H

#include "cuda/jobs.h"

/* X(constant, name, threads, argument) */
#define DW_CUDA_EACH_KERNEL(X)                                                           \
    X(DW_CUDA_DIGEST, dw_cuda_digest, 256, dw_cuda_digest_job)                           \
    X(DW_CUDA_CHOOSE, dw_cuda_choose, 256, dw_cuda_encode_job)                           \
    X(DW_CUDA_COMPARE, dw_cuda_compare, 256, dw_cuda_encode_job)                         \
    X(DW_CUDA_REBUILD, dw_cuda_rebuild, 256, dw_cuda_encode_job)                         \
    X(DW_CUDA_MODEL, dw_cuda_model, 256, dw_cuda_encode_job)                             \
    X(DW_CUDA_ANS, dw_cuda_ans, 32, dw_cuda_encode_job)                                  \
    X(DW_CUDA_PACK, dw_cuda_pack, 256, dw_cuda_encode_job)                               \
    X(DW_CUDA_SPREAD, dw_cuda_spread, 128, dw_cuda_decode_job)                           \
    X(DW_CUDA_COUNT, dw_cuda_count, 256, dw_cuda_decode_job)                             \
    X(DW_CUDA_READ, dw_cuda_read, 32, dw_cuda_decode_job)                                \
    X(DW_CUDA_BOUNDS, dw_cuda_bounds, 256, dw_cuda_decode_job)                           \
    X(DW_CUDA_LOCATE, dw_cuda_locate, 256, dw_cuda_decode_job)                           \
    X(DW_CUDA_SCATTER, dw_cuda_scatter, 256, dw_cuda_scatter_job)                        \
    X(DW_CUDA_UNDO, dw_cuda_undo, 256, dw_cuda_scatter_job)                              \
    X(DW_CUDA_STORE, dw_cuda_store, 256, dw_cuda_store_job)                              \
    X(DW_CUDA_UNSTORE, dw_cuda_unstore, 256, dw_cuda_store_job)

typedef enum dw_cuda_kernel {
#define DW_CUDA_NAME(constant, name, threads, argument) constant,
    DW_CUDA_EACH_KERNEL(DW_CUDA_NAME)
#undef DW_CUDA_NAME
        DW_CUDA_KERNELS
} dw_cuda_kernel;

#endif
