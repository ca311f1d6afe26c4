/* Quantised rows against a second definition of the rounding: the nearest of all values
 * of the type, found by a search. */
#include <fenv.h>
#include <float.h>

#include "unit/suite.h"

#include "quant/quant.h"
#include "unit/every_kernel.h"

static uint64_t random_state = 1;

static uint64_t random64(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* M x 2^E. */
static double scaled(int m, int e)
{
    double v = m;
    for (; e > 0; e--)
        v *= 2;
    for (; e < 0; e++)
        v /= 2;
    return v;
}

static double magnitude_of(double v)
{
    return v < 0 ? -v : v;
}

static double fp8_value(unsigned code)
{
    const unsigned e = code >> 3 & 15, m = code & 7;
    const double magnitude =
        e ? scaled(8 + (int)m, (int)e - 10) : scaled((int)m, -9); /* bias 7, three bits */
    return code & 0x80 ? -magnitude : magnitude;
}

/* Nearest, then even; the largest is 448. Values ascend with their codes. */
static uint8_t nearest_fp8(float q)
{
    const double wanted = magnitude_of(q);
    unsigned low = 0, high = 0x7e;
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        *(fp8_value(middle) <= wanted ? &low : &high) = middle;
    }
    const double below = wanted - fp8_value(low), above = fp8_value(high) - wanted;
    const bool is_up = above < below || (above == below && high % 2 == 0);
    return (uint8_t)((is_up ? high : low) | (__builtin_signbit(q) ? 0x80 : 0));
}

static uint8_t nearest_int8(float q)
{
    int best = (int)q;
    for (int v = (int)q - 1; v <= (int)q + 1; v++) {
        const double here = magnitude_of(v - (double)q);
        const double there = magnitude_of(best - (double)q);
        if (here < there || (here == there && v % 2 == 0))
            best = v;
    }
    return (uint8_t)(best > 127 ? 127 : best < -127 ? -127 : best);
}

static float scale_of(float max, float largest)
{
    const float s = max / largest;
    return max == 0 ? 1 : s < FLT_MIN ? FLT_MIN : s;
}

typedef struct model {
    dw_tensor tensor;
    uint64_t dims[3];
    dw_quant_plan *plan;
    size_t weight;
    uint64_t n_rows, n_scales;
} model;

static void make(model *m, dw_quant_scheme scheme, dw_dtype dtype, bool from_f32,
                 uint64_t stack, uint64_t rows, uint64_t columns)
{
    dw_error err = {0};
    *m = (model){.dims = {stack, rows, columns}};
    m->tensor = (dw_tensor){.name = stack ? "experts.up" : "up.weight",
                            .dtype = dtype,
                            .n_dims = stack ? 3 : 2,
                            .dims = stack ? m->dims : m->dims + 1};
    assert_true(
        dw_shape_size(dtype, m->tensor.n_dims, m->tensor.dims, NULL, &m->tensor.n_bytes));
    dw_quant_options options;
    dw_quant_options_init(&options);
    options.scheme = scheme;
    options.from_f32 = from_f32;
    assert_int_equal(dw_quant_plan_make(&m->plan, &m->tensor, 1, NULL, &options, &err),
                     DW_OK);
    m->weight = m->plan->entries[0].role == DW_QUANT_WEIGHT ? 0 : 1;
    m->n_rows = (stack ? stack : 1) * rows;
    m->n_scales = dw_quant_scales_before(m->plan, m->weight, m->n_rows);
    assert_int_equal(m->plan->entries[1 - m->weight].tensor.n_bytes, 4 * m->n_scales);
}

static void release(model *m)
{
    dw_quant_plan_free(m->plan);
}

/* The value that is quantised, as F32. */
static float value_at(const void *data, dw_dtype dtype, bool from_f32, size_t i)
{
    uint16_t half;
    float full;
    memcpy(&half, (const uint8_t *)data + 2 * i, 2);
    if (dtype == DW_BF16)
        return float_of((uint32_t)half << 16);
    if (dtype == DW_F16) {
        const int e = half >> 10 & 31, m = half & 1023;
        const double v = e ? scaled(1024 + m, e - 25) : scaled(m, -24);
        return (float)(half & 0x8000 ? -v : v);
    }
    memcpy(&full, (const uint8_t *)data + 4 * i, 4);
    if (from_f32)
        return full;
    dw_cast_bf16(&half, &full, 1);
    return float_of((uint32_t)half << 16);
}

/* Quantises in calls of random size and compares with the definition. */
static void check(model *m, const void *data, dw_dtype dtype, bool from_f32)
{
    const bool is_int = m->plan->scheme == DW_QUANT_INT8_ROW;
    const bool by_block = m->plan->scheme == DW_QUANT_FP8_BLOCK;
    const dw_quant_entry *e = &m->plan->entries[m->weight];
    const size_t columns = (size_t)e->n_columns, width = dtype == DW_F32 ? 4 : 2;
    uint8_t *out = calloc(m->n_rows * columns, 1);
    float *scales = calloc(m->n_scales, sizeof *scales);
    dw_error err = {0};
    for (uint64_t row = 0, end; row < m->n_rows; row = end) {
        end = dw_quant_unit_end(m->plan, m->weight, row);
        while (end < m->n_rows && random64() % 3)
            end = dw_quant_unit_end(m->plan, m->weight, end);
        assert_int_equal(
            dw_quant_rows(m->plan, m->weight,
                          (const uint8_t *)data + row * columns * width, row, end - row,
                          out + row * columns,
                          scales + dw_quant_scales_before(m->plan, m->weight, row), &err),
            DW_OK);
    }
    const size_t across = by_block ? (columns + 127) / 128 : 1;
    for (uint64_t row = 0; row < m->n_rows; row++) {
        const uint64_t top =
            by_block ? row - row % e->n_rows % 128 : row; /* of the row's unit */
        const uint64_t end = dw_quant_unit_end(m->plan, m->weight, row);
        const size_t first = (size_t)dw_quant_scales_before(m->plan, m->weight, top);
        for (size_t b = 0; b < across; b++) {
            const size_t left = b * 128,
                         right = by_block && left + 128 < columns ? left + 128 : columns;
            float max = 0;
            for (uint64_t r = top; row == top && r < end; r++)
                for (size_t c = left; c < right; c++) {
                    const float v =
                        value_at(data, dtype, from_f32, (size_t)r * columns + c);
                    max = v > max ? v : -v > max ? -v : max;
                }
            const float s = scales[first + b];
            if (row == top)
                assert_true(s == scale_of(max, is_int ? 127.0f : 448.0f));
            for (size_t c = left; c < right; c++) {
                const size_t i = (size_t)row * columns + c;
                const float q = value_at(data, dtype, from_f32, i) / s;
                assert_int_equal(out[i], is_int ? nearest_int8(q) : nearest_fp8(q));
            }
        }
    }
    kernel_hash(out, m->n_rows * columns);
    kernel_hash(scales, m->n_scales * sizeof *scales);
    free(out);
    free(scales);
}

static const dw_quant_scheme schemes[] = {DW_QUANT_FP8_BLOCK, DW_QUANT_FP8_ROW,
                                          DW_QUANT_INT8_ROW};

/* Weights like those of a model, with zeros of both signs, tiny and large ones. */
static void fill(void *data, dw_dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t r = random64();
        uint32_t exponent = 100 + (uint32_t)(r >> 40) % 24;
        if (r % 50 == 0)
            exponent = (uint32_t)(r >> 32) % 3; /* with subnormal numbers */
        uint32_t bits = (uint32_t)(r & 0x80000000u) | exponent << 23 |
                        (uint32_t)(random64() & 0x7fffff);
        if (r % 50 == 1)
            bits &= 0x80000000u;
        const uint16_t half =
            dtype == DW_BF16
                ? (uint16_t)(bits >> 16)
                : (uint16_t)((random64() & 0x83ff) | (random64() % 31) << 10);
        if (dtype == DW_F32)
            memcpy((uint8_t *)data + 4 * i, &bits, 4);
        else
            memcpy((uint8_t *)data + 2 * i, &half, 2);
    }
}

static void try_shape(dw_quant_scheme scheme, dw_dtype dtype, bool from_f32,
                      uint64_t stack, uint64_t rows, uint64_t columns)
{
    model m;
    make(&m, scheme, dtype, from_f32, stack, rows, columns);
    const size_t n = (size_t)(m.n_rows * columns);
    /* not aligned, as tensors in a file may be */
    uint8_t *room = malloc(n * 4 + 1), *data = room + random64() % 2;
    fill(data, dtype, n);
    check(&m, data, dtype, from_f32);
    free(room);
    release(&m);
}

TEST(test_shapes)
{
    static const uint64_t shapes[][3] = {
        {0, 1, 1},     {0, 1, 129},  {0, 129, 1},  {0, 128, 128}, {0, 127, 255},
        {0, 256, 130}, {3, 130, 40}, {2, 128, 64}, {5, 1, 7},     {1, 300, 300},
    };
    for (size_t s = 0; s < 3; s++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            const uint64_t *d = shapes[i];
            try_shape(schemes[s], DW_BF16, false, d[0], d[1], d[2]);
            try_shape(schemes[s], DW_F16, false, d[0], d[1], d[2]);
            try_shape(schemes[s], DW_F32, false, d[0], d[1], d[2]);
            try_shape(schemes[s], DW_F32, true, d[0], d[1], d[2]);
        }
}

TEST(test_tails)
{
    for (uint64_t columns = 1; columns <= 140; columns++)
        for (size_t s = 0; s < 3; s++)
            try_shape(schemes[s], DW_BF16, false, 0, 2, columns);
}

/* Longer than the buffer of a block. */
TEST(test_long_rows)
{
    for (size_t s = 0; s < 3; s++) {
        try_shape(schemes[s], DW_BF16, false, 0, 2, 128 * 128 + 1);
        try_shape(schemes[s], DW_F32, true, 0, 2, 40000);
    }
}

/* Each finite BF16 number, beside each of several maxima. */
TEST(test_every_pattern)
{
    enum { COLUMNS = 65536 };
    static const uint16_t maxima[] = {0x7f7f, 0x4000, 0x3fe0, 0x3c01, 0x1234,
                                      0x0400, 0x0080, 0x0003, 0x0001};
    uint16_t *data = malloc(COLUMNS * sizeof *data);
    for (size_t s = 1; s < 3; s++)
        for (size_t i = 0; i < sizeof maxima / sizeof maxima[0]; i++) {
            model m;
            make(&m, schemes[s], DW_BF16, false, 0, 1, COLUMNS);
            for (uint32_t x = 0; x < COLUMNS; x++)
                data[x] = (uint16_t)((x & 0x7fff) <= maxima[i] ? x : maxima[i]);
            check(&m, data, DW_BF16, false);
            release(&m);
        }
    free(data);
}

TEST(test_zeros)
{
    for (size_t s = 0; s < 3; s++) {
        model m;
        make(&m, schemes[s], DW_BF16, false, 0, 130, 130);
        uint16_t *data = calloc(130 * 130, sizeof *data);
        uint8_t *out = malloc(130 * 130);
        float scales[130];
        dw_error err = {0};
        assert_int_equal(dw_quant_rows(m.plan, m.weight, data, 0, 130, out, scales, &err),
                         DW_OK);
        for (size_t i = 0; i < m.n_scales; i++)
            assert_true(scales[i] == 1.0f);
        for (size_t i = 0; i < 130 * 130; i++)
            assert_int_equal(out[i], 0);
        free(data);
        free(out);
        release(&m);
    }
}

/* Rounds upwards and, if the processor can, takes subnormal numbers for zero. */
static void enter_other_mode(void)
{
    fesetround(FE_UPWARD);
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
}

TEST(test_modes_of_the_caller)
{
    static const uint16_t maxima[] = {0x3f80, 0x0400, 0x0003};
    uint16_t data[130 * 130];
    uint8_t out[130 * 130], expected[130 * 130];
    float scales[130], expected_scales[130];
    for (size_t s = 0; s < 3; s++)
        for (size_t k = 0; k < sizeof maxima / sizeof maxima[0]; k++) {
            model m;
            make(&m, schemes[s], DW_BF16, false, 0, 130, 130);
            for (size_t i = 0; i < 130 * 130; i++)
                data[i] = (uint16_t)(random64() % (maxima[k] + 1u));
            assert_int_equal(dw_quant_rows(m.plan, m.weight, data, 0, 130, expected,
                                           expected_scales, NULL),
                             DW_OK);
            fenv_t before;
            fegetenv(&before);
            enter_other_mode();
            dw_status status =
                dw_quant_rows(m.plan, m.weight, data, 0, 130, out, scales, NULL);
            const int rounding = fegetround();
            fesetenv(&before);
            assert_int_equal(status, DW_OK);
            assert_int_equal(rounding, FE_UPWARD); /* the caller's mode stays */
            assert_memory_equal(out, expected, sizeof out);
            assert_memory_equal(scales, expected_scales, m.n_scales * sizeof *scales);
            release(&m);
        }
}

TEST(test_not_finite)
{
    static const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0, 0xff81};
    uint16_t data[130 * 131];
    uint8_t out[130 * 131];
    float scales[130];
    for (size_t s = 0; s < 3; s++)
        for (size_t i = 0; i < 4; i++) {
            model m;
            dw_error err = {0};
            make(&m, schemes[s], DW_BF16, false, 0, 130, 131);
            memset(data, 0, sizeof data);
            data[129 * 131 + 130] = bad[i];
            assert_int_equal(
                dw_quant_rows(m.plan, m.weight, data, 0, 130, out, scales, &err),
                DW_NOT_FINITE);
            assert_non_null(strstr(err.text, "tensor 'up.weight'"));
            assert_non_null(strstr(err.text, "element 17029 is"));
            assert_non_null(strstr(err.text, i < 2 ? "infinite" : "NaN"));
            release(&m);
        }
    /* F32 that is finite, but not as BF16 */
    model m;
    dw_error err = {0};
    float large[2] = {0, FLT_MAX};
    make(&m, DW_QUANT_FP8_ROW, DW_F32, false, 0, 1, 2);
    assert_int_equal(dw_quant_rows(m.plan, m.weight, large, 0, 1, out, scales, &err),
                     DW_NOT_FINITE);
    assert_non_null(strstr(err.text, "element 1 is infinite as BF16"));
    release(&m);
    make(&m, DW_QUANT_FP8_ROW, DW_F32, true, 0, 1, 2);
    assert_int_equal(dw_quant_rows(m.plan, m.weight, large, 0, 1, out, scales, &err),
                     DW_OK);
    assert_int_equal(out[1], 0x7e);
    release(&m);
}

TEST(test_parts_of_units)
{
    model m;
    dw_error err = {0};
    uint16_t data[4] = {0};
    uint8_t out[4];
    float scales[4];
    make(&m, DW_QUANT_FP8_BLOCK, DW_BF16, false, 2, 130, 1);
    assert_int_equal(dw_quant_unit_rows(m.plan, m.weight), 128);
    assert_int_equal(dw_quant_unit_end(m.plan, m.weight, 0), 128);
    assert_int_equal(dw_quant_unit_end(m.plan, m.weight, 129), 130);
    assert_int_equal(dw_quant_unit_end(m.plan, m.weight, 130), 258);
    assert_int_equal(dw_quant_scales_before(m.plan, m.weight, 130), 2);
    assert_int_equal(dw_quant_scales_before(m.plan, m.weight, 258), 3);
    assert_int_equal(dw_quant_scales_before(m.plan, m.weight, 260), 4);
    static const uint64_t bad[][2] = {{0, 1},     {1, 127}, {128, 1}, {128, 129},
                                      {130, 131}, {260, 1}, {261, 0}, {128, UINT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(dw_quant_rows(m.plan, m.weight, data, bad[i][0], bad[i][1], out,
                                       scales, &err),
                         DW_INVALID);
    assert_int_equal(dw_quant_rows(m.plan, m.weight, data, 128, 2, out, scales, &err),
                     DW_OK);
    assert_int_equal(dw_quant_rows(m.plan, 1 - m.weight, data, 0, 1, out, scales, &err),
                     DW_INVALID);
    release(&m);
}

static int run(void)
{
    return suite_run(NULL, NULL);
}

int main(int argc, char **argv)
{
    (void)argc;
    return under_every_kernel(argv, run);
}
