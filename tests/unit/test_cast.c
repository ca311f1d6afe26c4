#include "unit/suite.h"

#include "deltawire/tensor.h"
#include "unit/every_kernel.h"

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t cast_one(uint32_t bits)
{
    uint16_t out;
    dw_cast_bf16(&out, &(float){float_of(bits)}, 1);
    return out;
}

TEST(test_rounding)
{
    assert_int_equal(cast_one(0x3f800000), 0x3f80);
    assert_int_equal(cast_one(0x3f808000), 0x3f80); /* halfway: to the even one */
    assert_int_equal(cast_one(0x3f818000), 0x3f82);
    assert_int_equal(cast_one(0x3f808001), 0x3f81);
    assert_int_equal(cast_one(0x3f807fff), 0x3f80);
    assert_int_equal(cast_one(0x80000000), 0x8000);
    assert_int_equal(cast_one(0x00000001), 0x0000); /* the smallest number */
    assert_int_equal(cast_one(0x00018000), 0x0002);
    assert_int_equal(cast_one(0x7f7fffff), 0x7f80); /* beyond the largest: infinity */
    assert_int_equal(cast_one(0xff800000), 0xff80);
    assert_int_equal(cast_one(0x7f800001), 0x7fc0);
    assert_int_equal(cast_one(0xffffffff), 0x7fc0);
}

/* Every result is the nearest: no neighbour is nearer, and none as near that is even. */
TEST(test_nearest)
{
    uint32_t x = 1;
    for (unsigned i = 0; i < 200000; i++) {
        x = x * 1664525u + 1013904223u;
        const uint32_t magnitude = x & 0x7fffffff;
        if (magnitude >= 0x7f000000)
            continue;
        const int64_t got = (int64_t)(cast_one(x) & 0x7fff) << 16;
        const int64_t distance = llabs(got - (int64_t)magnitude);
        assert_true(distance < 0x8000 || (distance == 0x8000 && (got >> 16) % 2 == 0));
        assert_int_equal(cast_one(x) >> 15, x >> 31);
    }
}

enum { N = 600001 }; /* several strips, and a tail */

TEST(test_tensors)
{
    float *masters = calloc(N, sizeof *masters);
    uint16_t *weights = calloc(N, sizeof *weights);
    uint8_t other[3] = {1, 2, 3}, copy[3] = {0};
    for (size_t i = 0; i < N; i++)
        masters[i] = (float)i * 1.0001f;
    const uint64_t dims[] = {N}, few[] = {3}, fewer[] = {2};
    const dw_tensor from[] = {{"w", DW_F32, 1, dims, N * 4, masters, 0, NULL},
                              {"i", DW_U8, 1, few, 3, other, 0, NULL}};
    dw_tensor into[] = {{"i", DW_U8, 1, few, 3, copy, 0, NULL},
                        {"w", DW_BF16, 1, dims, N * 2, weights, 0, NULL}};
    dw_error err = {0};
    assert_int_equal(dw_cast_tensors(into, from, 2, 3, &err), DW_OK);
    assert_memory_equal(copy, other, 3);
    kernel_hash(weights, N * sizeof *weights);
    for (size_t i = 0; i < N; i++) {
        uint16_t wanted;
        dw_cast_bf16(&wanted, &masters[i], 1);
        assert_int_equal(weights[i], wanted);
    }
    into[0].dims = fewer;
    into[0].n_bytes = 2;
    weights[0] = 7;
    assert_int_equal(dw_cast_tensors(into, from, 2, 1, &err), DW_MISMATCH);
    into[0] = (dw_tensor){"j", DW_U8, 1, few, 3, copy, 0, NULL};
    assert_int_equal(dw_cast_tensors(into, from, 2, 1, &err), DW_MISMATCH);
    into[0] = (dw_tensor){"i", DW_I8, 1, few, 3, copy, 0, NULL};
    assert_int_equal(dw_cast_tensors(into, from, 2, 1, &err), DW_MISMATCH);
    assert_int_equal(weights[0], 7); /* nothing was written */
    free(masters);
    free(weights);
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
