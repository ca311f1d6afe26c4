/* Following into the memory of a real device: the tests of tests/cuda/follow_suite.h, and
 * larger weights, which a publisher on the CPU puts into a directory.
 *
 *     follow_check [DEVICE]
 *
 * Exit status 77: there is no device.
 */
#include <stdio.h>

#include "base/clock.h"
#include "cuda/follow_suite.h"
#include "cuda/cuda.h"
#include "unit/temp_dir.h"

/* Layers of several types, 230 million elements: all of them on the device. DW_SMALL
 * leaves them out. */
static model large_model(void)
{
    model m = model_new(10);
    for (size_t i = 0; i < 8; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%zu.weight", i);
        model_set(&m, i, name, DW_BF16, 2, (const uint64_t[]){3584, 7168}, 0);
    }
    model_set(&m, 8, "embed", DW_F8_E4M3, 2, (const uint64_t[]){4096, 4096}, 0);
    model_set(&m, 9, "norm", DW_F32, 1, (const uint64_t[]){3000001}, 0);
    model_fill(&m);
    return m;
}

static void test_large(void **state)
{
    (void)state;
    if (getenv("DW_SMALL"))
        skip();
    enum { N = 3 };
    fixture x = {0};
    dw_publish_options publish;
    dw_publish_options_init(&publish);
    publish.fold_every = 0;
    publish.anchor_every = 2;
    publish.anchor_factor = 0;
    publish.spool_dir = "/tmp";
    assert_fine(&x, dw_store_open(&x.store, temp_path("stream"), NULL, &x.err));
    x.live = large_model();
    assert_fine(&x, dw_publisher_open(&x.publisher, x.store, x.live.tensors, x.live.n,
                                      &publish, &x.err));
    x.at[x.n++] = model_copy(&x.live, false);
    placed p = place_model(&x.live, ~0u);
    dw_follow_options options = follow_into(&p);
    options.n_threads = 0;
    dw_follower *f;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_int_equal(dw_follower_version(f), 0);
    for (uint64_t v = 1; v <= N; v++) {
        uint64_t ticket, staged;
        model_change(&x.live, v == 2 ? 500 : 11);
        assert_fine(&x, dw_publisher_publish(x.publisher, &ticket, NULL, &x.err));
        assert_fine(&x,
                    dw_publisher_wait(x.publisher, ticket, UINT_MAX, NULL, NULL, &x.err));
        assert_fine(&x, dw_publisher_drain(x.publisher, &x.err));
        const uint64_t start = dw_clock_us();
        assert_fine(&x, dw_follower_stage(f, v, &staged, NULL, &x.err));
        const uint64_t done = dw_clock_us();
        assert_int_equal(staged, v);
        assert_fine(&x, dw_follower_prepare(f, &x.err));
        const uint64_t paused = dw_clock_us();
        assert_fine(&x, dw_follower_apply(f, &x.err));
        const uint64_t resumed = dw_clock_us();
        assert_fine(&x, dw_follower_finish(f, &x.err));
        assert_true(placed_is(&p, &x.live));
        printf("version %llu: stage %.1f ms, apply %.2f ms\n", (unsigned long long)v,
               (double)(done - start) / 1e3, (double)(resumed - paused) / 1e3);
    }
    /* from an anchor into memory that holds nothing, and over weights in use */
    dw_follower_close(f);
    for (unsigned empty = 0; empty < 2; empty++) {
        placed_flip(&p, 0, 12345);
        options.tensors_empty = empty;
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        assert_true(dw_follower_version(f) == DW_NO_VERSION);
        const uint64_t start = dw_clock_us();
        assert_fine(&x, dw_follower_sync(f, N, NULL, NULL, &x.err));
        printf("from an anchor, %s: %.0f ms\n", empty ? "empty" : "in use",
               (double)(dw_clock_us() - start) / 1e3);
        assert_true(placed_is(&p, &x.live));
        dw_follower_close(f);
    }
    placed_free(&p);
    fixture_close(&x);
}

int main(int argc, char **argv)
{
    dw_cuda_report report;
    dw_error err;
    const char *name = argc > 1 ? argv[1] : "cuda:0";
    dw_cuda_look(&report);
    if (report.n_devices == 0) {
        fprintf(stderr, "no CUDA device: %s\n", report.fault);
        return 77;
    }
    /* two handles of one device know nothing of each other */
    if (dw_device_open(&devices[0], name, &err) != DW_OK ||
        dw_device_open(&devices[1], name, &err) != DW_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions), cmocka_unit_test(test_anchors),
        cmocka_unit_test(test_mismatch), cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_damage),   cmocka_unit_test(test_parts),
        cmocka_unit_test(test_deltas),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_large),
    };
    int status = cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
    dw_device_close(devices[0]);
    dw_device_close(devices[1]);
    return status;
}
