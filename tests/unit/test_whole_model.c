/* Room for a model whose table of tensors is hostile. */
#include "unit/suite.h"

#include "weights/whole_model.h"

static void check_refused(uint64_t n_first, uint64_t n_second)
{
    const dw_tensor table[] = {
        {.name = "a", .dtype = DW_U8, .n_dims = 1, .dims = &n_first, .n_bytes = n_first},
        {.name = "b",
         .dtype = DW_U8,
         .n_dims = 1,
         .dims = &n_second,
         .n_bytes = n_second},
    };
    dw_scratch_model model;
    dw_error err = {0};
    assert_int_equal(dw_scratch_model_make(&model, table, 2, NULL, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "tensor 'b'"));
    assert_null(model.tensors);
    assert_null(model.blob.bytes);
}

/* Each size fits in 64 bits, and so does their sum. With the padding it does not. */
TEST(test_padding_overflows)
{
    check_refused(1, UINT64_MAX - 1);
    check_refused(1, UINT64_MAX - 63);
    check_refused((1ull << 63) + 1, (1ull << 63) - 64);
}

TEST(test_small_model)
{
    const uint64_t dims[] = {65, 3};
    const dw_tensor table[] = {
        {.name = "a", .dtype = DW_U8, .n_dims = 1, .dims = &dims[0], .n_bytes = 65},
        {.name = "b", .dtype = DW_U8, .n_dims = 1, .dims = &dims[1], .n_bytes = 3},
    };
    dw_scratch_model model;
    dw_error err = {0};
    assert_int_equal(dw_scratch_model_make(&model, table, 2, NULL, &err), DW_OK);
    assert_ptr_equal((uint8_t *)model.tensors[0].data + 128, model.tensors[1].data);
    dw_scratch_model_release(&model);
}

RUN_TESTS(NULL, NULL)
