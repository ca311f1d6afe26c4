/* Compares every set of kernels of the machine with sums in double, for every tail
 * length. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "small_model.h"

static const char *const names[] = {"plain", "avx2", "avx512"};
enum { N_SETS = 3, MOST = 70 };

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(&seed);
}

static void fill_bf16(uint16_t *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        float value = random_float(&seed);
        dw_cast_bf16(&x[i], &value, 1);
    }
}

/* Matrices of every size around a tile, in both orders, bf16 and fp32. */
static void check_tiles(const qwen_kernels *k)
{
    static float a[MOST * MOST], b[MOST * MOST], packed[MOST * 64], c[MOST * MOST];
    static uint16_t narrow[MOST * MOST];
    fill(a, MOST * MOST, 1);
    fill(b, MOST * MOST, 2);
    fill_bf16(narrow, MOST * MOST, 3);
    for (int how = 0; how < 8; how++) {
        bool is_bf16 = how & 1, turn_b = how & 2, turn_a = how & 4;
        size_t a_row = turn_a ? 1 : MOST, a_col = turn_a ? MOST : 1;
        size_t b_row = turn_b ? 1 : MOST, b_col = turn_b ? MOST : 1;
        for (size_t rows = 1; rows <= k->tile_rows; rows++)
            for (size_t cols = 1; cols <= k->tile_cols; cols++) {
                size_t sum = 1 + (rows * 31 + cols * 7) % MOST;
                bool add = (rows + cols) % 2;
                if (is_bf16)
                    k->pack_bf16(packed, narrow, b_row, b_col, sum, cols);
                else
                    k->pack_f32(packed, b, b_row, b_col, sum, cols);
                for (size_t i = 0; i < MOST * MOST; i++)
                    c[i] = 3;
                k->tile(c, MOST, rows, cols, sum, a, a_row, a_col, packed, add);
                for (size_t r = 0; r < MOST; r++)
                    for (size_t j = 0; j < MOST; j++) {
                        double expected = 3;
                        if (r < rows && j < cols) {
                            expected = add ? 3 : 0;
                            for (size_t p = 0; p < sum; p++) {
                                size_t at = p * b_row + j * b_col;
                                float y = is_bf16 ? qwen_bf16(narrow[at]) : b[at];
                                expected += (double)a[r * a_row + p * a_col] * (double)y;
                            }
                        }
                        assert_true(fabs((double)c[r * MOST + j] - expected) < 1e-4);
                    }
            }
    }
}

static void check_vectors(const qwen_kernels *k)
{
    float x[MOST], y[MOST], out[MOST], rows[4 * MOST];
    uint16_t w[MOST];
    fill_bf16(w, MOST, 6);
    for (size_t n = 1; n <= MOST; n++) {
        fill(x, n, n);
        fill(rows, 4 * MOST, n + 100);
        double dots[4] = {0}, with_w = 0, squares = 0;
        for (size_t i = 0; i < n; i++) {
            for (size_t r = 0; r < 4; r++)
                dots[r] += (double)x[i] * (double)rows[r * MOST + i];
            with_w += (double)x[i] * (double)qwen_bf16(w[i]);
            squares += (double)x[i] * (double)x[i];
        }
        k->dots(out, x, rows, MOST, 4, n);
        for (size_t r = 0; r < 4; r++)
            assert_true(fabs((double)out[r] - dots[r]) < 1e-5);
        assert_true(fabs((double)k->dot_bf16(x, w, n) - with_w) < 1e-5);

        float inv_rms = k->rms_norm(y, x, w, n, 1e-6f);
        double expected = 1 / sqrt(squares / (double)n + 1e-6);
        assert_true(fabs((double)inv_rms - expected) < 1e-4 * expected);
        for (size_t i = 0; i < n; i++)
            assert_true(fabs((double)y[i] -
                             (double)x[i] * expected * (double)qwen_bf16(w[i])) < 1e-4);

        const float amounts[4] = {1, -2, 0.5f, 3};
        memset(y, 0, sizeof y);
        k->mix(y, amounts, rows, MOST, 4, n);
        for (size_t i = 0; i < n; i++) {
            float sum = 0;
            for (size_t r = 0; r < 4; r++)
                sum += amounts[r] * rows[r * MOST + i];
            assert_near(&y[i], &sum, 1, 1e-5f);
        }
        float before[4 * MOST];
        memcpy(before, rows, sizeof before);
        k->spread(rows, MOST, amounts, x, 4, n);
        for (size_t r = 0; r < 4; r++)
            for (size_t i = 0; i < MOST; i++) {
                float sum = before[r * MOST + i] + (i < n ? amounts[r] * x[i] : 0);
                assert_near(&rows[r * MOST + i], &sum, 1, 1e-5f);
            }
    }
}

static void check_exp(const qwen_kernels *k)
{
    for (float x = -100; x < 88; x += 0.037f) {
        float one = x;
        k->exp_sum(&one, 1, 1, 0);
        double expected = exp(x < -87 ? -87.0 : (double)x);
        assert_true(fabs((double)one - expected) < 8e-6 * expected);
    }
    float extreme[] = {-INFINITY, -1e30f, 1e30f, INFINITY};
    k->exp_sum(extreme, 4, 1, 0);
    for (size_t i = 0; i < 4; i++)
        assert_true(isfinite(extreme[i]));
    float gate[MOST], up[MOST], sum = 0, expected_sum = 0;
    for (size_t n = 1; n <= MOST; n++) {
        fill(gate, n, n);
        fill(up, n, n + 1);
        float x[MOST];
        memcpy(x, up, sizeof x);
        k->times_silu(x, gate, n);
        for (size_t i = 0; i < n; i++) {
            float g = gate[i], expected = up[i] * g / (1 + expf(-g));
            assert_near(&x[i], &expected, 1, 1e-6f);
            expected_sum += expf(2 * g - 1);
        }
        assert_true(k->max(gate, n) >= gate[n / 2] && k->max(gate, n) <= 1);
        sum += k->exp_sum(gate, n, 2, 1);
    }
    assert_near(&sum, &expected_sum, 1, 1e-5f * expected_sum);
}

static void test_kernels(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        const qwen_kernels *k = qwen_kernels_find(names[i]);
        if (k == NULL) {
            fprintf(stderr, "kernels %s: not on this machine\n", names[i]);
            continue;
        }
        fprintf(stderr, "kernels %s\n", k->name);
        assert_string_equal(k->name, names[i]);
        check_tiles(k);
        check_vectors(k);
        check_exp(k);
    }
    assert_non_null(qwen_kernels_find("plain"));
    assert_null(qwen_kernels_find("none"));
}

/* Products larger than a block in every dimension. */
static void test_matmul(void **state)
{
    (void)state;
    enum { ROWS = 500, COLS = 290, SUM = 270 };
    float *a = malloc(sizeof(float) * ROWS * SUM),
          *c = malloc(sizeof(float) * ROWS * COLS);
    uint16_t *w = malloc(sizeof(uint16_t) * COLS * SUM);
    fill(a, ROWS * SUM, 1);
    fill_bf16(w, COLS * SUM, 2);
    static const size_t n_rows[] = {1, 4, 5, ROWS};
    for (size_t i = 0; i < 4; i++) {
        qwen_pool *pool;
        dw_error err;
        assert_ok(qwen_pool_new(&pool, 2, qwen_matmul_scratch_bytes(), &err), err);
        for (size_t e = 0; e < ROWS * COLS; e++)
            c[e] = 1;
        qwen_linear(pool, c, a, w, n_rows[i], COLS, SUM, true);
        for (size_t r = 0; r < n_rows[i]; r += 1 + r / 8)
            for (size_t j = 0; j < COLS; j += 3) {
                double expected = 1;
                for (size_t p = 0; p < SUM; p++)
                    expected +=
                        (double)a[r * SUM + p] * (double)qwen_bf16(w[j * SUM + p]);
                assert_true(fabs((double)c[r * COLS + j] - expected) < 1e-4);
            }
        for (size_t e = n_rows[i] * COLS; e < ROWS * COLS; e++)
            assert_true(c[e] == 1);
        qwen_pool_free(pool);
    }
    free(a);
    free(c);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_matmul),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
