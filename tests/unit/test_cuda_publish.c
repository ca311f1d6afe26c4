/* labels: single */
/* Publishing weights on devices, over a fake driver. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda/fake.h"
#include "cuda/publish_suite.h"
#include "publish/publisher.h"
#include "store/fault_store.h"
#include "inner.h"

static void assert_status(dw_status status, const dw_error *err)
{
    if (status != DW_OK)
        fail_msg("%s: %s", err->where, err->text);
}

static void stores_open(suite *s)
{
    static unsigned n_stores;
    dw_error err = {0};
    for (unsigned i = 0; i < 2; i++) {
        char url[128];
        snprintf(url, sizeof url, "mem:%s-%u", s->name, n_stores++);
        assert_status(dw_store_open(&s->stores[i], url, NULL, &err), &err);
    }
    s->used = s->stores[0];
}

static void stores_close(suite *s)
{
    dw_store_close(s->stores[0]);
    dw_store_close(s->stores[1]);
}

/* Three versions and version 0, at several densities, with folds, anchors and sweeps. */
static void test_versions(void **state)
{
    (void)state;
    static const unsigned densities[] = {0, 11, 1, 300, 1000};
    for (size_t k = 0; k < sizeof densities / sizeof densities[0]; k++) {
        const uint32_t n_devices = 1 + k % 2;
        suite s;
        dw_error err = {0};
        dw_publish_report report, expected;
        suite_make(&s, n_devices, &fake_image, 20011, "versions");
        stores_open(&s);
        fake.seed(k);
        fake.eager(k % 2);
        assert_status(suite_open(&s, &err), &err);
        assert_status(suite_commit_truth(&s, &expected, &err), &err);
        assert_true(suite_same_objects(&s, 0));
        for (uint64_t v = 1; v <= 3; v++) {
            suite_change(&s, densities[k]);
            assert_status(suite_commit(&s, &report, &err), &err);
            assert_status(suite_commit_truth(&s, &expected, &err), &err);
            assert_int_equal(report.version, v);
            assert_true(report.n_changed == expected.n_changed);
            assert_true(report.state == expected.state);
            assert_true(suite_same_objects(&s, v));
            assert_true(suite_follows(&s));
        }
        assert_status(dw_publisher_drain(s.publishers[0], &err), &err);
        suite_close(&s);
        assert_int_equal(fake.held(), 0);
        suite_free(&s);
        stores_close(&s);
    }
}

/* A publisher that resumes a stream reads its baseline back to the device. */
static void test_resume(void **state)
{
    (void)state;
    suite s;
    dw_error err = {0};
    dw_publish_report report;
    bool is_current = false;
    suite_make(&s, 2, &fake_image, 5003, "resume");
    stores_open(&s);
    for (uint64_t v = 1; v <= 4; v++) {
        assert_status(suite_open(&s, &err), &err);
        assert_status(dw_publisher_is_current(s.publishers[0], &is_current, &err), &err);
        assert_true(is_current);
        suite_change(&s, 20);
        assert_status(suite_commit(&s, &report, &err), &err);
        assert_int_equal(report.version, v);
        assert_true(suite_follows(&s));
        suite_close(&s);
    }
    suite_free(&s);
    stores_close(&s);
}

/* ---- faults ---- */

typedef struct outage {
    _Atomic bool is_on;
} outage;

static store_fault fail_puts(void *context, uint64_t n, const char *operation,
                             const char *key)
{
    const outage *o = context;
    (void)n;
    (void)key;
    return o->is_on && strcmp(operation, "put") == 0 ? STORE_FAULT_FAIL
                                                     : STORE_FAULT_NONE;
}

/* The store fails for a version: the next one covers it. */
static void test_store_fails(void **state)
{
    (void)state;
    suite s;
    dw_error err = {0};
    dw_publish_report report;
    outage o = {false};
    suite_make(&s, 2, &fake_image, 5003, "outage");
    stores_open(&s);
    const store_fault_plan plan = {fail_puts, &o, 0};
    assert_status(fault_store_new(&s.used, s.stores[0], &plan, &err), &err);
    assert_status(suite_open(&s, &err), &err);
    for (uint64_t v = 1; v <= 3; v++) {
        suite_change(&s, 20);
        o.is_on = true;
        assert_int_not_equal(suite_commit(&s, &report, &err), DW_OK);
        assert_status(suite_wait(&s, &err), &err); /* nothing is held */
        o.is_on = false;
        suite_change(&s, 20);
        assert_status(suite_commit(&s, &report, &err), &err);
        assert_int_equal(report.version, v);
        assert_true(suite_follows(&s));
    }
    suite_close(&s);
    dw_store_close(s.used);
    suite_free(&s);
    stores_close(&s);
}

/* One version while every call of the driver fails in turn, once (OUT OF MEMORY) or from
 * there on (LOST). Returns false once there are no more calls. */
static bool run_fault(int64_t at, bool lost)
{
    suite s;
    dw_error err = {0};
    dw_publish_report report;
    uint64_t ticket;
    bool captured = false;
    suite_make(&s, 1, &fake_image, 90, "faults");
    stores_open(&s);
    fake.fail_at(-1, 0, 0);
    assert_status(suite_open(&s, &err), &err);
    suite_change(&s, 30);
    fake.fail_at(at, lost ? 700 : CU_OUT_OF_MEMORY, lost);
    for (unsigned i = 0; i < 2; i++) {
        dw_status status = suite_publish(&s, &ticket, &err);
        if (status == DW_OK) {
            assert_int_equal(
                dw_publisher_captured(s.publishers[0], ticket, UINT_MAX, &captured, &err),
                DW_OK);
            assert_true(captured);
            status =
                dw_publisher_wait(s.publishers[0], ticket, UINT_MAX, NULL, &report, &err);
        }
        if (status != DW_OK)
            assert_non_null(*err.text ? err.text : NULL);
        (void)suite_wait(&s, NULL); /* nothing is held */
        suite_change(&s, 30);
    }
    dw_publisher_drained(s.publishers[0], UINT_MAX);
    const bool more = fake.calls() > at;
    fake.fail_at(-1, 0, 0);
    if (lost) { /* another process goes on */
        suite_close(&s);
        assert_status(suite_open(&s, &err), &err);
    }
    assert_status(suite_commit(&s, &report, &err), &err);
    assert_true(suite_follows(&s));
    suite_close(&s);
    assert_int_equal(fake.held(), 0);
    suite_free(&s);
    stores_close(&s);
    return more;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (int64_t at = 0; run_fault(at, false); at++)
        ;
}

static void test_lost(void **state)
{
    (void)state;
    for (int64_t at = 0; run_fault(at, true); at++)
        ;
}

/* Opening fails at every call: nothing is left behind. */
static void test_open_faults(void **state)
{
    (void)state;
    dw_error err = {0};
    int64_t n_calls = 1;
    for (int64_t at = 0; at < n_calls; at += 5) {
        suite s;
        suite_make(&s, 2, &fake_image, 90, "open");
        stores_open(&s);
        fake.fail_at(at, CU_OUT_OF_MEMORY, 0);
        (void)suite_open(&s, &err);
        n_calls = fake.calls() > n_calls ? fake.calls() : n_calls;
        fake.fail_at(-1, 0, 0);
        suite_close(&s);
        assert_int_equal(fake.held(), 0);
        assert_status(suite_open(&s, &err), &err);
        suite_close(&s);
        suite_free(&s);
        stores_close(&s);
    }
}

/* ---- the baseline ---- */

/* The memory of the device that a publisher takes before its first version. */
static uint64_t memory_with(dw_baseline_memory baseline, uint64_t *n_baseline)
{
    suite s;
    dw_error err = {0};
    suite_make(&s, 1, &fake_image, 3000001, "memory");
    s.baseline = baseline;
    *n_baseline = 0;
    for (size_t i = 0; i < SUITE_TENSORS; i++)
        if (suite_place(&s, i) >= 0)
            *n_baseline += s.truth[i].n_bytes / (s.as_bf16[i] ? 2 : 1);
    stores_open(&s);
    fake.fail_at(-1, 0, 0);
    assert_status(suite_open(&s, &err), &err);
    suite_close(&s);
    suite_free(&s);
    stores_close(&s);
    return fake.peak();
}

/* A baseline in memory of the host takes two windows of the device's, here of a block. */
static void test_memory(void **state)
{
    (void)state;
    const uint64_t n_windows = 2 * (2 << 20), n_tables = 64 << 10;
    uint64_t n_baseline;
    const uint64_t on_device = memory_with(DW_BASELINE_DEVICE, &n_baseline);
    const uint64_t on_host = memory_with(DW_BASELINE_HOST, &n_baseline);
    assert_true(n_baseline > 2 * n_windows);
    assert_true(on_host + n_baseline < on_device + n_windows + n_tables);
}

/* A hold gives work to the device and returns, wherever the old weights are. */
static void test_hold_does_not_wait(void **state)
{
    (void)state;
    suite s;
    dw_error err = {0};
    dw_device_capture *capture;
    const bool is_pinned = suite_baseline == DW_BASELINE_HOST;
    suite_make(&s, 1, &fake_image, 9001, "hold");
    fake.eager(false);
    assert_status(suite_place_all(&s, &err), &err);
    dw_device *d = s.devices[0];
    dw_tensor base = s.live[0];
    const dw_tensor *truth = &s.truth[0];
    base.device = is_pinned ? NULL : d;
    assert_status((is_pinned ? d->ops->pin : d->ops->alloc)(&base.data, d, base.n_bytes,
                                                            "a test", &err),
                  &err);
    memcpy(base.data, truth->data, base.n_bytes); /* its memory is the host's */
    assert_status(suite_write(&s, false, &err), &err);
    assert_status(d->ops->capture_open(&capture, d, &base, &s.live[0], 1, &err), &err);
    for (unsigned i = 0; i < 3; i++) {
        suite_change(&s, 10);
        assert_status(suite_write(&s, false, &err), &err);
        assert_status(d->ops->capture_hold(capture, s.handles[0]->stream, false, &err),
                      &err);
        const bool is_written = memcmp(s.live[0].data, truth->data, truth->n_bytes) == 0;
        assert_int_equal(is_written, i == 0); /* the first one is careful */
        assert_status(d->ops->capture_wait(capture, &err), &err);
        assert_memory_equal(s.live[0].data, truth->data, truth->n_bytes);
        d->ops->capture_end(capture);
    }
    d->ops->capture_close(capture);
    (is_pinned ? d->ops->unpin : d->ops->free)(d, base.data);
    suite_close(&s);
    assert_int_equal(fake.held(), 0);
    suite_free(&s);
}

/* ---- a baseline that breaks while a publish is under way ---- */

static const dw_device_ops *true_ops;
static dw_publisher *losing;

/* The baseline is lost right after the weights were held. */
static dw_status hold_and_lose(dw_device_capture *capture, void *stream, bool is_careful,
                                dw_error *err)
{
    dw_status status = true_ops->capture_hold(capture, stream, is_careful, err);
    dw_baseline_lose(losing); /* its owner is the thread that holds */
    return status;
}

static void damage_baseline(dw_publisher *p, const char *name)
{
    for (size_t t = 0; t < p->pieces.n_table; t++)
        if (strcmp(p->pieces.table[t].name, name) == 0)
            ((uint8_t *)p->baseline.data[t])[2 * 50 + 1] ^= 0x40; /* an exponent */
}

/* A version does not decode, which is noticed when the next publish has returned. That
 * one must not become a restart: it would read weights that the trainer writes. */
static void test_broken_after_hold(void **state)
{
    (void)state;
    suite s;
    dw_error err = {0};
    dw_publish_report report;
    suite_make(&s, 1, &fake_image, 9001, "broken");
    stores_open(&s);
    dw_publish_options options = suite_options(&s);
    options.sweep_every = options.fold_every = options.anchor_every = 0;
    options.anchor_factor = 0;
    assert_status(suite_place_all(&s, &err), &err);
    assert_status(suite_write(&s, false, &err), &err);
    assert_status(suite_wait(&s, &err), &err);
    assert_status(dw_publisher_open(&s.publishers[0], s.used, s.live, SUITE_TENSORS,
                                    &options, &err),
                  &err);
    suite_change(&s, 10);
    assert_status(suite_commit(&s, &report, &err), &err);
    assert_status(dw_publisher_drain(s.publishers[0], &err), &err);
    damage_baseline(s.publishers[0], s.truth[0].name);
    suite_change(&s, 10);
    assert_status(suite_commit(&s, &report, &err), &err); /* does not decode */
    assert_status(dw_publisher_drain(s.publishers[0], &err), &err);

    dw_device_ops ops = *s.devices[0]->ops;
    true_ops = s.devices[0]->ops;
    losing = s.publishers[0];
    ops.capture_hold = hold_and_lose;
    s.devices[0]->ops = &ops;
    suite_change(&s, 10);
    assert_int_equal(suite_commit(&s, &report, &err), DW_STALE);
    s.devices[0]->ops = true_ops;
    assert_status(suite_commit(&s, &report, &err), &err);
    assert_true(report.restarted);
    assert_true(suite_follows(&s));
    suite_change(&s, 10);
    assert_status(suite_commit(&s, &report, &err), &err);
    assert_false(report.restarted);
    assert_true(suite_follows(&s));
    suite_close(&s);
    suite_free(&s);
    stores_close(&s);
}

/* The memory cannot be had: the driver's words, and what to do. */
static void test_no_memory(void **state)
{
    (void)state;
    const bool is_pinned = suite_baseline == DW_BASELINE_HOST;
    bool is_found = false;
    for (int64_t at = 0; !is_found; at++) {
        suite s;
        dw_error err = {0};
        suite_make(&s, 1, &fake_image, 90, "no-memory");
        stores_open(&s);
        fake.fail_at(at, CU_OUT_OF_MEMORY, 0);
        const dw_status status = suite_open(&s, &err);
        assert_int_not_equal(status, DW_OK); /* each call before it fails too */
        is_found = strstr(err.text, "for the baseline:");
        fake.fail_at(-1, 0, 0);
        if (is_found) {
            assert_int_equal(status, DW_NO_MEMORY);
            assert_string_equal(err.where, "cuda:0");
            assert_non_null(strstr(err.text, "CUDA_ERROR_OUT_OF_MEMORY"));
            assert_int_equal(is_pinned, strstr(err.text, "pinned memory") != NULL);
            assert_non_null(
                strstr(err.text, is_pinned ? "DW_BASELINE_DEVICE" : "DW_BASELINE_HOST"));
        }
        suite_close(&s);
        suite_free(&s);
        stores_close(&s);
    }
}

/* ---- what is refused ---- */

static void test_refusals(void **state)
{
    (void)state;
    suite s;
    dw_error err = {0};
    dw_publisher *p;
    suite_make(&s, 1, &fake_image, 100, "refusals");
    stores_open(&s);
    assert_status(suite_place_all(&s, &err), &err);
    dw_publish_options options = suite_options(&s);
    options.baseline_dir = "/nowhere";
    assert_int_equal(dw_publisher_open(&p, s.used, s.live, SUITE_TENSORS, &options, &err),
                     DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "a baseline in a directory"));
    options = suite_options(&s);
    options.as_bf16 = NULL;
    options.quantize = &(dw_quant_options){.struct_bytes = sizeof(dw_quant_options),
                                           .scheme = DW_QUANT_INT8_ROW};
    assert_int_equal(dw_publisher_open(&p, s.used, s.live, SUITE_TENSORS, &options, &err),
                     DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "quantise"));
    options = suite_options(&s);
    options.baseline_memory = (dw_baseline_memory)2;
    assert_int_equal(dw_publisher_open(&p, s.used, s.live, SUITE_TENSORS, &options, &err),
                     DW_INVALID);
    assert_non_null(strstr(err.text, "baseline_memory"));
    suite_close(&s);
    suite_free(&s);
    stores_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_store_fails),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_open_faults),
        cmocka_unit_test(test_hold_does_not_wait),
        cmocka_unit_test(test_broken_after_hold),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_refusals),
    };
    const struct CMUnitTest once[] = {cmocka_unit_test(test_memory)};
    int n_failed = cmocka_run_group_tests(once, fake_open, NULL);
    for (unsigned i = 0; i < 2; i++) {
        suite_baseline = i ? DW_BASELINE_HOST : DW_BASELINE_DEVICE;
        n_failed += cmocka_run_group_tests_name(i ? "a baseline on the host"
                                                  : "a baseline on the device",
                                                tests, fake_open, NULL);
    }
    return n_failed;
}
