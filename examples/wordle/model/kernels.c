#include "kernels.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The loader chooses among copies of these functions. Sanitizers do not run before it. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) &&                \
    !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&                             \
    !defined(__SANITIZE_THREAD__)
#define LOOPS                                                                            \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LOOPS
#endif
#define INLINE static inline __attribute__((always_inline))

/* ---- matrix products --------------------------------------------------------------- */

/* Six rows of sums stay in registers, with vectors of 8 floats and with those of 16. */
enum { LANES = 16, TILE_ROWS = 6, MAX_SUM = 256 };

typedef float vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));

/* N_ROWS is a constant wherever this is inlined: the loops over rows are unrolled. */
INLINE void tile(size_t n_rows, float *restrict c, size_t c_row, const float *restrict a,
                 size_t a_row, size_t a_col, const float *restrict b, size_t b_row,
                 size_t n_sum, bool add)
{
    vec sum[TILE_ROWS];
    for (size_t r = 0; r < n_rows; r++)
        sum[r] = add ? *(const vec *)(c + r * c_row) : (vec){0};
    for (size_t p = 0; p < n_sum; p++) {
        const vec row = *(const vec *)(b + p * b_row);
        for (size_t r = 0; r < n_rows; r++)
            sum[r] += a[r * a_row + p * a_col] * row;
    }
    for (size_t r = 0; r < n_rows; r++)
        *(vec *)(c + r * c_row) = sum[r];
}

LOOPS void kernel_matmul(float *c, const float *a, size_t a_row, size_t a_col,
                         const float *b, size_t n_rows, size_t n_sum, size_t n_cols,
                         bool add)
{
    for (size_t p = 0; p < n_sum; p += MAX_SUM, add = true) {
        const size_t n = n_sum - p < MAX_SUM ? n_sum - p : MAX_SUM;
        for (size_t col = 0; col < n_cols; col += LANES) {
            const float *b_at = b + p * n_cols + col;
            size_t r = 0;
            for (; r + TILE_ROWS <= n_rows; r += TILE_ROWS)
                tile(TILE_ROWS, c + r * n_cols + col, n_cols, a + r * a_row + p * a_col,
                     a_row, a_col, b_at, n_cols, n, add);
            for (; r < n_rows; r++)
                tile(1, c + r * n_cols + col, n_cols, a + r * a_row + p * a_col, a_row,
                     a_col, b_at, n_cols, n, add);
        }
    }
}

/* ---- vectors ----------------------------------------------------------------------- */

INLINE float dot(const float *restrict x, const float *restrict y, size_t n)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* e^x to some 1e-6 of itself, without branches: x = k ln 2 + r, a polynomial for e^r, and
 * k goes into the exponent. */
INLINE float fast_exp(float x)
{
    x = x > -87.0f ? x : -87.0f;
    x = x < 88.0f ? x : 88.0f;
    const int32_t k = (int32_t)(x * 1.44269504f + 127.5f) - 127;
    const float r = x - (float)k * 0.69314718f;
    float e = 1.9875691500e-4f;
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * r * r + r + 1.0f;
    const uint32_t bits = (uint32_t)(k + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return e * power;
}

LOOPS float kernel_norm(float *restrict y, const float *restrict x,
                        const float *restrict w, size_t n)
{
    const float inv_rms = 1.0f / sqrtf(dot(x, x, n) / (float)n + 1e-6f);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * inv_rms * w[i];
    return inv_rms;
}

/* With u = x / rms: dw = dy u, and dx = (dy w - u mean(dy w u)) / rms. */
LOOPS void kernel_norm_back(float *restrict dx, float *restrict dw,
                            const float *restrict dy, const float *restrict x,
                            const float *restrict w, size_t n, float inv_rms)
{
    float along = 0;
    for (size_t i = 0; i < n; i++) {
        dw[i] += dy[i] * x[i] * inv_rms;
        along += dy[i] * w[i] * x[i];
    }
    along *= inv_rms * inv_rms / (float)n;
    for (size_t i = 0; i < n; i++)
        dx[i] += inv_rms * (dy[i] * w[i] - x[i] * along);
}

LOOPS float kernel_softmax(float *restrict x, size_t n, float scale)
{
    float most = x[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (size_t i = 0; i < n; i++) {
        x[i] = fast_exp(scale * (x[i] - most));
        sum += x[i];
    }
    for (size_t i = 0; i < n; i++)
        x[i] *= 1 / sum;
    return scale * most + logf(sum);
}

LOOPS void kernel_dots(float *restrict out, const float *restrict x,
                       const float *restrict rows, size_t stride, size_t n_rows,
                       size_t width)
{
    for (size_t r = 0; r < n_rows; r++)
        out[r] = dot(x, rows + r * stride, width);
}

LOOPS void kernel_mix(float *restrict out, const float *restrict amounts,
                      const float *restrict rows, size_t stride, size_t n_rows,
                      size_t width)
{
    memset(out, 0, width * sizeof *out);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < width; i++)
            out[i] += amounts[r] * rows[r * stride + i];
}

LOOPS void kernel_spread(float *restrict rows, size_t stride,
                         const float *restrict amounts, const float *restrict x,
                         size_t n_rows, size_t width)
{
    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < width; i++)
            rows[r * stride + i] += amounts[r] * x[i];
}

LOOPS void kernel_swiglu(float *restrict out, const float *restrict gate,
                         const float *restrict up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = up[i] * gate[i] / (1.0f + fast_exp(-gate[i]));
}

LOOPS void kernel_swiglu_back(float *restrict gate, float *restrict up,
                              const float *restrict d_out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float g = gate[i], u = up[i], s = 1.0f / (1.0f + fast_exp(-g));
        gate[i] = d_out[i] * u * s * (1.0f + g * (1.0f - s));
        up[i] = d_out[i] * g * s;
    }
}

LOOPS void kernel_adamw(float *restrict master, float *restrict m, float *restrict v,
                        const float *restrict grad, size_t n,
                        const kernel_adamw_factors *f)
{
    for (size_t i = 0; i < n; i++) {
        const float g = grad[i] * f->grad_scale;
        m[i] += (1.0f - f->beta1) * (g - m[i]);
        v[i] = f->beta2 * v[i] + (1.0f - f->beta2) * g * g;
        master[i] -= f->step * m[i] / (sqrtf(v[i]) * f->inv_v_spread + f->eps);
    }
}
