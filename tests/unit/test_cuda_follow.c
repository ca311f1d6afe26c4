/* labels: single */
/* Following into the memory of emulated devices: versions, anchors, damage, and every
 * call of the driver made to fail. */
#include "cuda/follow_suite.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_driver.h"
#include "cuda/fake.h"

static int open_devices(void **state)
{
    dw_error err;
    return fake_open(state) == 0 &&
                   dw_cuda_device_open(&devices[0], 0, &fake_image, &err) == DW_OK &&
                   dw_cuda_device_open(&devices[1], 1, &fake_image, &err) == DW_OK
               ? 0
               : -1;
}

static int close_devices(void **state)
{
    (void)state;
    dw_device_close(devices[0]);
    dw_device_close(devices[1]);
    return fake.held() == 0 ? 0 : -1;
}

typedef struct cuda_fault {
    int result;
    int lost;
} cuda_fault;

static const cuda_fault faults[] = {{CU_OUT_OF_MEMORY, 0}, {700, 1}};

/* Follows from version FROM of memory that holds it, or from nothing, to version 3. Call
 * AT of the driver fails. Whatever happens, the follower's version is what the memory
 * holds, and once the fault is gone it arrives. Returns the number of calls; *FAILED: one
 * of the library's failed. */
static int64_t follow_with_fault(fixture *x, uint64_t from, const cuda_fault *fault,
                                 int64_t at, bool *failed)
{
    model start = model_copy(&x->at[from == DW_NO_VERSION ? 0 : from], false);
    if (from == DW_NO_VERSION)
        model_fill(&start);
    placed p = place_model(&start, 7);
    dw_follow_options options = follow_into(&p);
    options.at = from;
    options.tensors_empty = from == DW_NO_VERSION && at % 2 == 0;
    options.sweep_every = 2;
    dw_follower *f = NULL;
    dw_error err = {0};
    fake.fail_at(at, fault->result, fault->lost);
    dw_status status = dw_follower_open(&f, x->store, &options, &err);
    if (status == DW_OK)
        status = dw_follower_sync(f, 3, NULL, NULL, &err);
    const int64_t n_calls = fake.calls();
    fake.fail_at(-1, 0, 0);
    *failed = status != DW_OK;
    if (status != DW_OK) {
        assert_int_equal(err.code, status);
        assert_int_equal(status, fault->lost ? DW_IO : DW_NO_MEMORY);
        assert_non_null(strstr(err.text, "CUDA_ERROR"));
    } else {
        assert_int_equal(dw_follower_version(f), 3);
    }
    if (!f) {
        assert_true(placed_is(&p, &start));
        assert_fine(x, dw_follower_open(&f, x->store, &options, &x->err));
    }
    const uint64_t version = dw_follower_version(f);
    if (version != DW_NO_VERSION && dw_target_update(f->weights) < DW_UPDATE_APPLIED)
        assert_true(placed_is(&p, &x->at[version]));
    assert_fine(x, dw_follower_sync(f, 3, NULL, NULL, &x->err));
    assert_int_equal(dw_follower_version(f), 3);
    assert_true(placed_is(&p, &x->at[3]));
    dw_follower_close(f);
    placed_free(&p);
    model_free(&start);
    return n_calls;
}

static void follow_with_faults(fixture *x, uint64_t from)
{
    const int64_t held = fake.held();
    for (size_t k = 0; k < sizeof faults / sizeof faults[0]; k++) {
        unsigned n_failed = 0;
        bool failed;
        const int64_t n_calls = follow_with_fault(x, from, &faults[k], -2, &failed);
        assert_false(failed);
        for (int64_t at = 0; at < n_calls; at++) {
            follow_with_fault(x, from, &faults[k], at, &failed);
            n_failed += failed;
            assert_int_equal(fake.held(), held);
        }
        assert_true(n_failed > n_calls / 2);
    }
}

static void test_faults(void **state)
{
    (void)state;
    fixture x;
    make_stream(&x, 3, 2);
    follow_with_faults(&x, 1);
    follow_with_faults(&x, DW_NO_VERSION);
    fixture_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions), cmocka_unit_test(test_anchors),
        cmocka_unit_test(test_mismatch), cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_damage),   cmocka_unit_test(test_parts),
        cmocka_unit_test(test_deltas),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
