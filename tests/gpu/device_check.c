/* The tests of tests/cuda on a real device, and larger weights: `make test-gpu`.
 *
 *     device_check [DEVICE [PATTERN]]
 *
 * PATTERN selects tests by name, with * and ?.
 *
 * Exit status 77: there is no device.
 */
#include <stdio.h>

#include "cuda/cuda_digest.h"
#include "cuda/stage_suite.h"
#include "cuda/cuda.h"

static void vary_order(uint64_t seed)
{
    (void)seed; /* a device has its own */
}

/* Enough blocks to fill a device, of every width, with what a training step changes.
 * DW_SMALL leaves them out. */
static void test_large(void **state)
{
    (void)state;
    if (getenv("DW_SMALL"))
        skip();
    const device_case cases[] = {
        {.dtype = DW_BF16, .n = 100u << 20, .per_mille = 11},
        {.dtype = DW_BF16, .n = (64u << 20) + 4097, .per_mille = 11, .is_rounded = true},
        {.dtype = DW_F8_E4M3, .n = 32u << 20, .per_mille = 20},
        {.dtype = DW_F32, .n = 16u << 20, .per_mille = 100},
        {.dtype = DW_F64, .n = 4u << 20, .per_mille = 5},
        {.dtype = DW_BF16, .n = 4u << 20, .is_noise = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dw_cuda_encode_call encoder = {0};
        check(&cases[i], 1, &encoder);
    }
}

static void test_digests(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 50; round++) {
        const bool is_small = round < 40 || getenv("DW_SMALL");
        const uint64_t n = random_below(is_small ? 100000 : 50000000);
        uint8_t *bytes = malloc(n + 1);
        for (uint64_t i = 0; i < n; i++)
            bytes[i] = (uint8_t)random64();
        const unsigned offset = (unsigned)random_below(20);
        cu_pointer block;
        dw_tensor t = {
            .name = "t", .dtype = DW_U8, .n_dims = 1, .dims = &n, .n_bytes = n};
        t.data = device_copy(cuda, bytes, n, offset, &block);
        dw_digest digest;
        dw_error err;
        assert_int_equal(dw_cuda_digest_tensors(&digest, cuda, &t, 1, &err), DW_OK);
        assert_true(digest == dw_digest_bytes(bytes, n));
        device_free(cuda, &block);
        free(bytes);
    }
}

int main(int argc, char **argv)
{
    dw_cuda_report report;
    dw_error err;
    dw_cuda_look(&report);
    if (report.n_devices == 0) {
        fprintf(stderr, "no CUDA device: %s\n", report.fault);
        return 77;
    }
    if (dw_cuda_open(&cuda, argc > 1 ? (uint32_t)atoi(argv[1]) : 0, NULL, &err) !=
        DW_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digests),   cmocka_unit_test(test_types_and_lengths),
        cmocka_unit_test(test_densities), cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_rounding),  cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_put_off),   cmocka_unit_test(test_versions),
        cmocka_unit_test(test_mismatch),  cmocka_unit_test(test_damage),
        cmocka_unit_test(test_trace),     cmocka_unit_test(test_large),
        cmocka_unit_test(test_crowded),
    };
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    const struct CMUnitTest encoding[] = {
        cmocka_unit_test(test_types_and_lengths),
        cmocka_unit_test(test_densities),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_put_off),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_large),
    };
    base_on_host = true;
    n_failed +=
        cmocka_run_group_tests_name("old weights on the host", encoding, NULL, NULL);
    dw_cuda_close(cuda);
    return n_failed;
}
