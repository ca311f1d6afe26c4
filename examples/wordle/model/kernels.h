/* The hot loops, in fp32. Plain C: the compiler makes vectors of them, one set for each
 * instruction set (see LOOPS in kernels.c). */
#ifndef WORDLE_KERNELS_H
#define WORDLE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

/* C = A B, or C += A B: element A[r][p] is a[r * a_row + p * a_col], B is [n_sum][n_cols]
 * and C [n_rows][n_cols], row by row. n_cols is a multiple of 16. */
void kernel_matmul(float *c, const float *a, size_t a_row, size_t a_col, const float *b,
                   size_t n_rows, size_t n_sum, size_t n_cols, bool add);

/* y = x / rms(x) * w; returns 1 / rms(x). y is not x. */
float kernel_norm(float *y, const float *x, const float *w, size_t n);

/* From dy: dx += the gradient of x, dw += that of w. */
void kernel_norm_back(float *dx, float *dw, const float *dy, const float *x,
                      const float *w, size_t n, float inv_rms);

/* x := softmax of scale * x; returns the log of the sum of exponentials. */
float kernel_softmax(float *x, size_t n, float scale);

/* out[r] = x . rows[r]; out = sum of amounts[r] * rows[r]; rows[r] += amounts[r] * x.
 * Rows are WIDTH floats, STRIDE apart. */
void kernel_dots(float *out, const float *x, const float *rows, size_t stride,
                 size_t n_rows, size_t width);
void kernel_mix(float *out, const float *amounts, const float *rows, size_t stride,
                size_t n_rows, size_t width);
void kernel_spread(float *rows, size_t stride, const float *amounts, const float *x,
                   size_t n_rows, size_t width);

/* out = silu(gate) * up */
void kernel_swiglu(float *out, const float *gate, const float *up, size_t n);

/* gate, up := the gradients of both, given that of out. */
void kernel_swiglu_back(float *gate, float *up, const float *d_out, size_t n);

typedef struct kernel_adamw_factors {
    float grad_scale; /* cuts long gradients */
    float beta1, beta2, eps;
    float step;         /* lr / (1 - beta1^t) */
    float inv_v_spread; /* 1 / sqrt(1 - beta2^t) */
} kernel_adamw_factors;

void kernel_adamw(float *master, float *m, float *v, const float *grad, size_t n,
                  const kernel_adamw_factors *f);

#endif
