/* labels: single */
/* Decoding and storing on an emulated device: what goes wrong, and the real trace.
 * test_cuda_encode.c has all types, lengths and densities. */
#include "cuda/stage_suite.h"
#include "cuda/fake.h"

static void vary_order(uint64_t seed)
{
    fake.seed(seed);
}

static int open_cuda(void **state)
{
    dw_error err;
    return fake_open(state) == 0 && dw_cuda_open(&cuda, 0, &fake_image, &err) == DW_OK
               ? 0
               : -1;
}

static int close_cuda(void **state)
{
    (void)state;
    dw_cuda_close(cuda);
    return fake.held() == 0 ? 0 : -1;
}

/* Every call of the driver fails in turn; the weights are old or, after the last wait,
 * new. */
static void test_faults(void **state)
{
    (void)state;
    const device_case cases[] = {{.dtype = DW_BF16, .n = 3000, .per_mille = 50},
                                 {.dtype = DW_U8, .n = 600, .is_noise = true}};
    step s = step_make(cases, 2);
    device_copies d = copies_make(cuda, s.old, 2);
    dw_apply_options options;
    dw_apply_options_init(&options);
    dw_cuda_trim(cuda);
    const int64_t held = fake.held();
    int64_t n_calls = 1;
    unsigned n_failed = 0;
    for (int64_t at = 0; at < n_calls; at++) {
        dw_error err;
        dw_cuda_stage *stage;
        dw_stage_result result;
        fake.fail_at(at, CU_OUT_OF_MEMORY, 0);
        dw_status status = dw_cuda_stage_open(&stage, &result, cuda, s.delta, d.tensors,
                                              2, &options, &err);
        if (status != DW_OK) {
            assert_null(stage);
            assert_int_equal(status, DW_NO_MEMORY);
            assert_non_null(strstr(err.text, "CUDA_ERROR_OUT_OF_MEMORY"));
            n_failed++;
        }
        n_calls = fake.calls() > n_calls ? fake.calls() : n_calls;
        dw_cuda_stage_close(stage);
        fake.fail_at(-1, 0, 0);
        assert_on_device(cuda, &d, s.old);
        dw_cuda_trim(cuda);
        assert_int_equal(fake.held(), held);
    }
    assert_true(n_failed > 20);
    copies_free(cuda, &d);
    step_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mismatch), cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_damage),   cmocka_unit_test(test_faults),
        cmocka_unit_test(test_trace),
    };
    return cmocka_run_group_tests(tests, open_cuda, close_cuda);
}
