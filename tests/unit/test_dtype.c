#include "unit/suite.h"

#include "tensor/dtype.h"

TEST(test_names)
{
    for (unsigned i = 0; i < DW_DTYPE_COUNT; i++) {
        dw_dtype found = DW_DTYPE_COUNT;
        assert_true(dw_dtype_from_name(&found, dw_dtype_name((dw_dtype)i)));
        assert_int_equal(found, i);
    }
    dw_dtype unused;
    assert_false(dw_dtype_from_name(&unused, "bf16"));
    assert_false(dw_dtype_from_name(&unused, ""));
    assert_false(dw_dtype_from_name(&unused, "?"));
    assert_string_equal(dw_dtype_name(DW_BF16), "BF16");
    assert_string_equal(dw_dtype_name(DW_DTYPE_COUNT), "?");
    assert_string_equal(dw_dtype_name((dw_dtype)-1), "?");
    assert_int_equal(dw_dtype_bits(DW_DTYPE_COUNT), 0);
}

static void assert_element(dw_dtype dtype, unsigned bits, unsigned width, bool is_float,
                           unsigned exponent_shift)
{
    dw_element e = dw_dtype_element(dtype);
    assert_int_equal(dw_dtype_bits(dtype), bits);
    assert_int_equal(e.width, width);
    assert_int_equal(e.is_float, is_float);
    assert_int_equal(e.exponent_shift, exponent_shift);
}

TEST(test_elements)
{
    assert_element(DW_BOOL, 8, 1, false, 8);
    assert_element(DW_U8, 8, 1, false, 8);
    assert_element(DW_I8, 8, 1, false, 8);
    assert_element(DW_U16, 16, 2, false, 16);
    assert_element(DW_I16, 16, 2, false, 16);
    assert_element(DW_U32, 32, 4, false, 32);
    assert_element(DW_I32, 32, 4, false, 32);
    assert_element(DW_U64, 64, 8, false, 64);
    assert_element(DW_I64, 64, 8, false, 64);
    assert_element(DW_F16, 16, 2, true, 10);
    assert_element(DW_BF16, 16, 2, true, 7);
    assert_element(DW_F32, 32, 4, true, 23);
    assert_element(DW_F64, 64, 8, true, 52);
    assert_element(DW_F8_E4M3, 8, 1, true, 3);
    assert_element(DW_F8_E5M2, 8, 1, true, 2);
    assert_element(DW_F8_E8M0, 8, 1, false, 8);
    assert_element(DW_F8_E4M3FNUZ, 8, 1, true, 3);
    assert_element(DW_F8_E5M2FNUZ, 8, 1, true, 2);
    assert_element(DW_F6_E2M3, 6, 1, false, 8);
    assert_element(DW_F6_E3M2, 6, 1, false, 8);
    assert_element(DW_F4, 4, 1, false, 8);
    assert_element(DW_C64, 64, 4, true, 23);
}

TEST(test_ranks_are_a_permutation)
{
    unsigned seen = 0;
    for (unsigned i = 0; i < DW_DTYPE_COUNT; i++)
        seen |= 1u << dw_dtype_rank((dw_dtype)i);
    assert_int_equal(seen, (1u << DW_DTYPE_COUNT) - 1);
    assert_true(dw_dtype_rank(DW_U64) > dw_dtype_rank(DW_F64));
    assert_true(dw_dtype_rank(DW_F32) > dw_dtype_rank(DW_BF16));
}

static void assert_size(dw_dtype dtype, uint32_t n_dims, const uint64_t *dims,
                        uint64_t n_elems, uint64_t n_bytes)
{
    uint64_t elems, bytes;
    assert_true(dw_shape_size(dtype, n_dims, dims, &elems, &bytes));
    assert_true(elems == n_elems);
    assert_true(bytes == n_bytes);
}

TEST(test_shape_size)
{
    assert_size(DW_F32, 0, NULL, 1, 4);
    assert_size(DW_F32, 2, (uint64_t[]){3, 5}, 15, 60);
    assert_size(DW_F32, 3, (uint64_t[]){3, 0, 5}, 0, 0);
    assert_size(DW_C64, 1, (uint64_t[]){3}, 3, 24);
    assert_size(DW_F4, 1, (uint64_t[]){6}, 6, 3);
    assert_size(DW_F6_E2M3, 1, (uint64_t[]){4}, 4, 3);
    assert_size(DW_BF16, 2, (uint64_t[]){1ull << 20, 1ull << 20}, 1ull << 40, 1ull << 41);
    assert_size(DW_U8, 2, (uint64_t[]){0, UINT64_MAX}, 0, 0);
    assert_true(dw_shape_size(DW_U8, 0, NULL, NULL, NULL));

    assert_false(dw_shape_size(DW_F4, 1, (uint64_t[]){5}, NULL, NULL));
    assert_false(dw_shape_size(DW_F6_E3M2, 1, (uint64_t[]){2}, NULL, NULL));
    assert_false(
        dw_shape_size(DW_U8, 2, (uint64_t[]){1ull << 32, 1ull << 32}, NULL, NULL));
    assert_false(dw_shape_size(DW_U64, 1, (uint64_t[]){1ull << 58}, NULL, NULL));
    assert_false(dw_shape_size(DW_DTYPE_COUNT, 0, NULL, NULL, NULL));
    uint64_t ones[DW_MAX_DIMS + 1];
    for (size_t i = 0; i <= DW_MAX_DIMS; i++)
        ones[i] = 1;
    assert_size(DW_U8, DW_MAX_DIMS, ones, 1, 1);
    assert_false(dw_shape_size(DW_U8, DW_MAX_DIMS + 1, ones, NULL, NULL));
}

TEST(test_tensor_units)
{
    assert_int_equal(dw_tensor_units(&(dw_tensor){.dtype = DW_BF16, .n_bytes = 10}), 5);
    assert_int_equal(dw_tensor_units(&(dw_tensor){.dtype = DW_C64, .n_bytes = 24}), 6);
    assert_int_equal(dw_tensor_units(&(dw_tensor){.dtype = DW_F4, .n_bytes = 3}), 3);
    assert_int_equal(dw_tensor_units(&(dw_tensor){.dtype = DW_F64}), 0);
}

RUN_TESTS(NULL, NULL)
