/* What the host passes to kernels and gets back. Pointers are to the device's memory. */
#ifndef DW_CUDA_JOBS_H
#define DW_CUDA_JOBS_H

#include "kernel/digest_sum.h"

#define DW_CUDA_WORDS (DW_DIGEST_CHUNK / 4)
#define DW_CUDA_POWERS                                                                   \
    520 /* one for each chunk that a block of 2 MiB can touch, and more */

/* On the device once for each handle. */
typedef struct dw_cuda_constants {
    uint64_t coefficients[DW_CUDA_WORDS];
    uint64_t powers[DW_CUDA_POWERS]; /* g^0, g^1, ... */
} dw_cuda_constants;

/* ---- digest.cuh: one block of threads for each piece ---- */

#define DW_CUDA_PIECE_BYTES (1u << 20)

typedef struct dw_cuda_piece {
    const uint8_t *data;
    uint64_t n_bytes;    /* at most DW_CUDA_PIECE_BYTES */
    uint64_t first_byte; /* in the tensor */
    uint64_t sum;        /* out: the share without the power of the first chunk */
} dw_cuda_piece;

typedef struct dw_cuda_digest_job {
    const dw_cuda_constants *constants;
    dw_cuda_piece *pieces;
} dw_cuda_digest_job;

#endif
