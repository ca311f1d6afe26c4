/* The hot loops, compiled once for each instruction set: qwen_kernels.inc. */
#ifndef WORDLE_QWEN_KERNELS_H
#define WORDLE_QWEN_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float qwen_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

typedef struct qwen_adamw_factors {
    float keep;       /* of a master: 1 - lr * weight_decay */
    float grad_scale; /* cuts long gradients */
    float beta1, beta2;
    float step;         /* lr / (1 - beta1^t) */
    float inv_v_spread; /* 1 / sqrt(1 - beta2^t) */
    float eps;
} qwen_adamw_factors;

typedef struct qwen_kernels {
    const char *name;

    /* ---- matrix products: tiles of tile_rows x tile_cols held in registers */
    size_t tile_rows, tile_cols;

    /* C[r][c] = or += sum over p of A[r][p] * B[p][c]. Element A[r][p] is
     * a[r * a_row + p * a_col]; B is packed: n_sum rows of tile_cols floats. */
    void (*tile)(float *c, size_t c_row, size_t n_rows, size_t n_cols, size_t n_sum,
                 const float *a, size_t a_row, size_t a_col, const float *b, bool add);

    /* Packs for `tile`: out[p][c] = b[p * b_row + c * b_col], 0 beyond n_cols. */
    void (*pack_bf16)(float *out, const uint16_t *b, size_t b_row, size_t b_col,
                      size_t n_sum, size_t n_cols);
    void (*pack_f32)(float *out, const float *b, size_t b_row, size_t b_col, size_t n_sum,
                     size_t n_cols);

    float (*dot_bf16)(const float *x, const uint16_t *w, size_t n);

    /* ---- vectors */
    /* out[r] = x . rows[r]; out += sum of amounts[r] * rows[r]; rows[r] += amounts[r] *
     * x. Rows are WIDTH floats, STRIDE apart */
    void (*dots)(float *out, const float *x, const float *rows, size_t stride,
                 size_t n_rows, size_t width);
    void (*mix)(float *out, const float *amounts, const float *rows, size_t stride,
                size_t n_rows, size_t width);
    void (*spread)(float *rows, size_t stride, const float *amounts, const float *x,
                   size_t n_rows, size_t width);

    /* x := exp(scale * x - shift); returns the sum */
    float (*exp_sum)(float *x, size_t n, float scale, float shift);
    float (*max)(const float *x, size_t n);

    /* y = x / rms(x) * w; returns 1 / rms(x). y is not x */
    float (*rms_norm)(float *y, const float *x, const uint16_t *w, size_t n, float eps);

    /* gradients of rms_norm from dy: dx += that of x, dw += that of w */
    void (*rms_norm_back)(float *dx, float *dw, const float *dy, const float *x,
                          const uint16_t *w, size_t n, float inv_rms);

    void (*times_silu)(float *x, const float *gate, size_t n); /* x *= silu(gate) */

    /* gate, up := the gradients of both, and out := silu(gate) * up, given d_out */
    void (*swiglu_back)(float *out, float *gate, float *up, const float *d_out, size_t n);

    /* One step of AdamW: see qwen_adamw.c, which names the factors. */
    void (*adamw)(float *master, float *m, float *v, const float *grad, size_t n,
                  const qwen_adamw_factors *f);
} qwen_kernels;

/* The best set that this machine runs. QWEN_KERNELS=plain|avx2|avx512 in the environment
 * asks for another one. */
const qwen_kernels *qwen_kernels_get(void);

/* The set of that name, or NULL if this machine does not support it. */
const qwen_kernels *qwen_kernels_find(const char *name);

#endif
