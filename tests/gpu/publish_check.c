/* Publishes weights on a real device, into a directory: `make test-gpu`.
 *
 *     publish_check [DIR]
 *
 * Each version must have the bytes that a publisher of the same weights on the host
 * writes, and a follower on the host must get the weights as they were when they were
 * published. DIR is for the streams; it must not exist. Exit status 77: there is no
 * device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/publish_suite.h"
#include "cuda/cuda.h"

static char directory[256];

/* DW_SMALL is for sanitizers, under which everything takes far longer. */
static uint64_t size_of(uint64_t n_elems, uint64_t n_small)
{
    return getenv("DW_SMALL") ? n_small : n_elems;
}

static void assert_status(dw_status status, const dw_error *err)
{
    if (status != DW_OK)
        fail_msg("%s: %s", err->where, err->text);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void stores_open(suite *s)
{
    dw_error err = {0};
    for (unsigned i = 0; i < 2; i++) {
        char url[512];
        snprintf(url, sizeof url, "%s/%s-%u-%u", directory, s->name, s->baseline, i);
        assert_status(dw_store_open(&s->stores[i], url, NULL, &err), &err);
    }
    s->used = s->stores[0];
}

static void finish(suite *s)
{
    dw_error err = {0};
    assert_status(dw_publisher_drain(s->publishers[0], &err), &err);
    suite_close(s);
    suite_free(s);
    dw_store_close(s->stores[0]);
    dw_store_close(s->stores[1]);
}

/* Prints how long a publish took: the call, until the trainer's stream went on, until the
 * commit. */
static void timed_commit(suite *s, dw_publish_report *report)
{
    dw_error err = {0};
    uint64_t ticket;
    assert_status(suite_wait(s, &err), &err);
    assert_status(suite_write(s, false, &err), &err);
    assert_status(suite_wait(s, &err), &err);
    dw_device_stream stream = {s->devices[0], s->handles[0]->stream};
    dw_publish_note note;
    dw_publish_note_init(&note);
    note.streams = &stream;
    note.n_streams = 1;
    const double start = now_ms();
    assert_status(dw_publisher_publish(s->publishers[0], &ticket, &note, &err), &err);
    const double called = now_ms();
    assert_status(suite_wait(s, &err), &err);
    const double passed = now_ms();
    assert_status(
        dw_publisher_wait(s->publishers[0], ticket, UINT_MAX, NULL, report, &err), &err);
    printf("  publish() %.3f ms, stream held %.3f ms, committed after %.1f ms, "
           "%llu changes, %llu bytes\n",
           called - start, passed - start, now_ms() - start,
           (unsigned long long)report->n_changed, (unsigned long long)report->n_bytes);
}

static void run(const char *name, uint64_t n_elems, bool on_default_stream, bool is_timed)
{
    static const unsigned densities[] = {11, 11, 0, 200, 1000, 1};
    suite s;
    dw_error err = {0};
    dw_publish_report report, expected;
    suite_make(&s, 1, NULL, n_elems, name);
    stores_open(&s);
    assert_status(suite_open(&s, &err), &err);
    cu_stream own = s.handles[0]->stream;
    if (on_default_stream)
        s.handles[0]->stream = NULL;
    assert_status(suite_commit_truth(&s, &expected, &err), &err);
    assert_true(suite_same_objects(&s, 0));
    for (uint64_t v = 1; v <= (is_timed ? 3 : 6); v++) {
        suite_change(&s, densities[v - 1]);
        if (is_timed)
            timed_commit(&s, &report);
        else
            assert_status(suite_commit(&s, &report, &err), &err);
        assert_status(suite_commit_truth(&s, &expected, &err), &err);
        assert_int_equal(report.version, v);
        assert_true(report.n_changed == expected.n_changed);
        assert_true(suite_same_objects(&s, v));
        assert_true(suite_follows(&s));
    }
    assert_status(suite_wait(&s, &err), &err);
    s.handles[0]->stream = own;
    finish(&s);
}

static void test_small(void **state)
{
    (void)state;
    run("small", 3001, false, false);
}

static void test_default_stream(void **state)
{
    (void)state;
    run("default", 300007, true, false);
}

static void test_several_blocks(void **state)
{
    (void)state;
    run("blocks", size_of(2500003, 1100003), false, false);
}

static void test_large(void **state)
{
    (void)state;
    if (getenv("DW_SMALL"))
        skip();
    run("large", 30000001, false, true);
}

/* While its stream is held, a trainer gives memory back: that waits for the stream, and
 * must not keep the publisher from letting it go on. */
static void free_while_held(const char *name, unsigned per_mille)
{
    suite s;
    dw_error err = {0};
    dw_publish_report report;
    uint64_t ticket;
    void *memory;
    suite_make(&s, 1, NULL, size_of(2500003, 300007), name);
    stores_open(&s);
    assert_status(suite_open(&s, &err), &err);
    alarm(600); /* ends a program that hangs */
    for (unsigned i = 0; i < 3; i++) {
        dw_device *d = s.devices[0];
        suite_change(&s, per_mille);
        assert_status(d->ops->alloc(&memory, d, 64 << 20, "a test", &err), &err);
        assert_status(suite_publish(&s, &ticket, &err), &err);
        d->ops->free(d, memory);
        const dw_status status =
            dw_publisher_wait(s.publishers[0], ticket, UINT_MAX, NULL, NULL, &err);
        printf("  %u of 1000 changed: %s\n", per_mille,
               status == DW_OK ? "published" : err.text);
        if (status != DW_UNAVAILABLE || per_mille < 20)
            assert_status(status, &err);
        else /* the next version covers it */
            assert_status(suite_commit(&s, &report, &err), &err);
        assert_true(suite_follows(&s));
    }
    alarm(0);
    finish(&s);
}

static void test_free_while_held(void **state)
{
    (void)state;
    free_while_held("free", 11);
}

static void test_free_while_many_change(void **state)
{
    (void)state;
    free_while_held("free-many", 400);
}

int main(int argc, char **argv)
{
    dw_cuda_report report;
    dw_cuda_look(&report);
    if (report.n_devices == 0) {
        fprintf(stderr, "publish_check: no device: %s\n", report.fault);
        return 77;
    }
    if (argc > 1) {
        snprintf(directory, sizeof directory, "%s", argv[1]);
    } else {
        snprintf(directory, sizeof directory, "/tmp/deltawire-publish-XXXXXX");
        if (!mkdtemp(directory))
            return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_default_stream),
        cmocka_unit_test(test_several_blocks),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_free_while_held),
        cmocka_unit_test(test_free_while_many_change),
    };
    int n_failed = 0;
    for (unsigned i = 0; i < 2; i++) {
        suite_baseline = i ? DW_BASELINE_HOST : DW_BASELINE_DEVICE;
        n_failed += cmocka_run_group_tests_name(
            i ? "a baseline on the host" : "a baseline on the device", tests, NULL, NULL);
    }
    return n_failed;
}
