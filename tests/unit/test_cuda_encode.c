/* labels: single */
/* Encoding on an emulated device: the same bytes as on the CPU. Each delta is also
 * decoded and applied there. */
#include "cuda/encode_suite.h"
#include "cuda/fake.h"

static void vary_order(uint64_t seed)
{
    fake.seed(seed);
    fake.eager(seed % 2);
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

/* Every call of the driver fails in turn: an error with its words, and nothing is kept.
 */
static void test_faults(void **state)
{
    (void)state;
    const device_case cases[] = {{.dtype = DW_BF16, .n = 3000, .per_mille = 50},
                                 {.dtype = DW_U8, .n = 600, .per_mille = 1000}};
    two_versions v = versions_make(cuda, cases, 2);
    dw_cuda_encode_call encoder = {.cuda = cuda, .base_on_host = base_on_host};
    const dw_encode_device device = {dw_cuda_encode, &encoder};
    dw_encode_job job = {.pairs = v.device, .n_pairs = 2, .device = &device};
    dw_diff_options options;
    dw_diff_options_init(&options);
    const int64_t held = fake.held();
    int64_t n_failed = 0, n_calls = 1;
    for (int64_t at = 0; at < n_calls; at++) {
        dw_delta *delta;
        dw_error err;
        fake.fail_at(at, CU_OUT_OF_MEMORY, 0);
        if (dw_encode(&delta, &job, &options, &err) == DW_OK) {
            dw_delta_close(delta);
        } else {
            assert_null(delta);
            assert_int_equal(err.code, DW_NO_MEMORY);
            assert_string_equal(err.where, "cuda:0");
            n_failed++;
        }
        assert_int_equal(fake.held(), held);
        n_calls = fake.calls() > n_calls ? fake.calls() : n_calls;
    }
    assert_true(n_failed > 20);
    fake.fail_at(-1, 0, 0);
    versions_free(cuda, &v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_and_lengths),
        cmocka_unit_test(test_densities),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_put_off),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_faults),
    };
    int n_failed = 0;
    for (unsigned i = 0; i < 2; i++) {
        base_on_host = i == 1;
        n_failed += cmocka_run_group_tests_name(base_on_host ? "old weights on the host"
                                                             : "all on the device",
                                                tests, open_cuda, close_cuda);
    }
    return n_failed;
}
