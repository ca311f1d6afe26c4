/* Products of matrices, in blocks that fit the cache, over the threads of a pool. */
#ifndef WORDLE_QWEN_MATMUL_H
#define WORDLE_QWEN_MATMUL_H

#include "qwen_kernels.h"
#include "qwen_threads.h"

/* Scratch that each thread of the pool must have. */
size_t qwen_matmul_scratch_bytes(void);

/* A matrix as it lies in memory: element [r][c] is data[r * row + c * col]. */
typedef struct qwen_matrix {
    const void *data;
    size_t row, col;
    bool bf16; /* or fp32 */
} qwen_matrix;

static inline qwen_matrix qwen_rows(const float *data, size_t width)
{
    return (qwen_matrix){.data = data, .row = width, .col = 1};
}

static inline qwen_matrix qwen_rows_bf16(const uint16_t *data, size_t width)
{
    return (qwen_matrix){.data = data, .row = width, .col = 1, .bf16 = true};
}

static inline qwen_matrix qwen_transposed(qwen_matrix m)
{
    return (qwen_matrix){.data = m.data, .row = m.col, .col = m.row, .bf16 = m.bf16};
}

/* C = A B, or C += A B: A is [n_rows][n_sum] and fp32, B [n_sum][n_cols], C
 * [n_rows][n_cols] with its rows one after the other. One of A's strides must be 1. */
void qwen_matmul(qwen_pool *pool, float *c, qwen_matrix a, qwen_matrix b, size_t n_rows,
                 size_t n_cols, size_t n_sum, bool add);

/* Y = X W^T, or Y += X W^T: a layer's matrix W is [n_out][n_in], X [n_rows][n_in]. */
void qwen_linear(qwen_pool *pool, float *y, const float *x, const uint16_t *w,
                 size_t n_rows, size_t n_out, size_t n_in, bool add);

#endif
