/* Upkeep: a publish never waits for folds and anchors, however long they take. */
/* labels: threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/fault_store.h"
#include "unit/slow_store.h"
#include "unit/temp_dir.h"
#include "inner.h"

typedef struct scene {
    kit k;
    slow_store slow;
    dw_store *store;
    dw_publish_options options;
    dw_publisher *p;
    uint64_t version;
    dw_publish_report report; /* of the newest version */
    dw_error err;
} scene;

/* Objects with PART in their names are slow. IN_DIR: the baseline is in directory DIR of
 * its own. */
static void open_scene(scene *x, const char *part, const char *dir)
{
    *x = (scene){.slow = {.inner = kit_mem_store(), .part = part}};
    kit_make(&x->k);
    x->store = slow_open(&x->slow);
    x->options = kit_plain_options(temp_dir);
    if (dir)
        x->options.baseline_dir = temp_path(dir);
}

static void close_scene(scene *x)
{
    assert_false(x->slow.was_late);
    dw_publisher_close(x->p);
    kit_check_stream(&x->k, x->slow.inner, NULL);
    dw_store_close(x->store);
    dw_store_close(x->slow.inner);
    kit_free(&x->k);
}

static void publish(scene *x, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        kit_step(&x->k, 5);
        assert_ok(kit_try(&x->k, x->p, &x->report, &x->err), &x->err);
        assert_int_equal(x->report.version, ++x->version);
    }
}

static bool has_way(const scene *x, uint64_t from, uint64_t to)
{
    char key[128];
    if (from == DW_NO_VERSION)
        snprintf(key, sizeof key, "%020llu-anchor", (unsigned long long)to);
    else
        snprintf(key, sizeof key, "%020llu-from-%020llu", (unsigned long long)to,
                 (unsigned long long)from);
    return kit_find(x->slow.inner, "ways/", key, NULL) == 1;
}

/* The number of dropped folds and anchors that readers of the stream see. */
static uint64_t shown_dropped(scene *x)
{
    dw_stream *stream;
    uint64_t head;
    assert_ok(dw_stream_open(&stream, x->slow.inner, NULL, &x->err), &x->err);
    assert_int_equal(dw_stream_upkeep_dropped(stream), 0); /* nothing was read yet */
    assert_ok(dw_stream_head(stream, &head, &x->err), &x->err);
    const uint64_t n = dw_stream_upkeep_dropped(stream);
    dw_stream_close(stream);
    return n;
}

/* Pulls VERSION from nothing; by its anchor this is one step. */
static void check_anchor(scene *x, uint64_t version)
{
    dw_tensor tensors[KIT_TENSORS];
    uint8_t *bytes = kit_room(&x->k, tensors);
    size_t log[KIT_COPIES];
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = tensors;
    options.n_tensors = KIT_TENSORS;
    dw_follower *f;
    dw_follow_report report;
    kit_read_log(&x->k, x->slow.inner, log);
    assert_ok(dw_follower_open(&f, x->slow.inner, &options, &x->err), &x->err);
    assert_ok(dw_follower_sync(f, version, NULL, &report, &x->err), &x->err);
    assert_int_equal(report.n_steps, 1);
    kit_check_follower(&x->k, f, log);
    dw_follower_close(f);
    free(bytes);
}

/* An anchor is uploaded at 1 MB/s, and ends only after 30 further versions are committed.
 * It holds the version at which it was begun. */
static void test_publish_during_anchor(void **state)
{
    (void)state;
    for (int in_dir = 0; in_dir < 2; in_dir++) {
        scene x;
        open_scene(&x, "-anchor-", in_dir ? "anchored" : NULL);
        x.options.anchor_every = 8;
        x.p = kit_open(&x.k, x.store, &x.options);
        x.slow.is_shut = true;
        publish(&x, 8);
        slow_wait_begun(&x.slow, 1);
        publish(&x, 30);
        assert_int_equal(x.slow.n_done, 0);
        assert_int_equal(x.report.upkeep_behind, 30);
        assert_false(dw_publisher_drained(x.p, 1));
        assert_true(dw_publisher_idle(x.p, UINT_MAX));
        assert_false(has_way(&x, DW_NO_VERSION, 8));
        assert_int_equal(shown_dropped(&x), 0);
        x.slow.is_shut = false;
        assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
        assert_true(has_way(&x, DW_NO_VERSION, 8));
        check_anchor(&x, 8);
        /* those of 16, 24 and 32 were dropped for one of the newest version */
        assert_true(has_way(&x, DW_NO_VERSION, 38));
        check_anchor(&x, 38);
        assert_int_equal(kit_find(x.slow.inner, "ways/", "-anchor", NULL), 2);
        assert_int_equal(shown_dropped(&x), 3);
        publish(&x, 1);
        assert_int_equal(x.report.upkeep_dropped, 3);
        assert_int_equal(x.report.upkeep_behind, 0);
        close_scene(&x);
    }
}

/* The same for folds. When the slow fold is done, the copy for folds moves to a version
 * that the baseline has left. A restarted publisher goes on from there. */
static void test_publish_during_fold(void **state)
{
    (void)state;
    for (int in_dir = 0; in_dir < 2; in_dir++) {
        scene x;
        open_scene(&x, "-fold-", in_dir ? "folded" : NULL);
        x.options.folds[0] = 2;
        x.options.folds[1] = 4;
        x.options.max_object_bytes = 2048; /* several groups */
        x.p = kit_open(&x.k, x.store, &x.options);
        publish(&x, 2);
        assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
        publish(&x, 1);
        assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
        const unsigned n_begun = x.slow.n_begun, n_done = x.slow.n_done;
        x.slow.is_shut = true;
        publish(&x, 1);
        slow_wait_begun(&x.slow, n_begun + 1);
        publish(&x, 9);
        assert_int_equal(x.slow.n_done, n_done);
        x.slow.is_shut = false;
        assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
        assert_true(has_way(&x, 0, 2) && has_way(&x, 2, 4) && has_way(&x, 0, 4));
        assert_true(has_way(&x, 4, 13)); /* those of 6, 8, 10 and 12 were dropped */
        publish(&x, 1);
        assert_int_equal(x.report.upkeep_dropped, 4);
        assert_int_equal(shown_dropped(&x), 4);
        if (in_dir) {
            dw_publisher_close(x.p);
            x.p = kit_open(&x.k, x.store, &x.options);
            assert_int_equal(shown_dropped(&x), 0); /* another publisher's count */
        }
        publish(&x, 1);
        assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
        assert_true(has_way(&x, 13, 15));
        assert_int_equal(kit_find(x.slow.inner, "ways/", "-from-", NULL), 5);
        close_scene(&x);
    }
}

/* Closing cancels an anchor that takes long. A later publisher makes one. */
static void test_close_during_anchor(void **state)
{
    (void)state;
    scene x;
    open_scene(&x, "-anchor-", NULL);
    x.options.anchor_every = 2;
    x.p = kit_open(&x.k, x.store, &x.options);
    x.slow.is_shut = true;
    publish(&x, 2);
    slow_wait_begun(&x.slow, 1);
    publish(&x, 1);
    dw_publisher_close(x.p);
    assert_int_equal(x.slow.n_done, 0);
    assert_int_equal(kit_find(x.slow.inner, "ways/", "-anchor", NULL), 0);
    x.slow.is_shut = false;
    x.p = kit_open(&x.k, x.store, &x.options);
    publish(&x, 1);
    assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
    assert_true(has_way(&x, DW_NO_VERSION, 4));
    close_scene(&x);
}

/* If there is no room for a copy of the version that an anchor is made of, the anchor is
 * dropped, and reported. The versions are not affected; a later one makes an anchor. */
static void test_no_room(void **state)
{
    (void)state;
    scene x;
    open_scene(&x, "-anchor-", NULL);
    char spool[128];
    snprintf(spool, sizeof spool, "%s", temp_path("spool"));
    assert_int_equal(mkdir(spool, 0777), 0);
    x.options.spool_dir = spool;
    x.options.anchor_every = 2;
    x.p = kit_open(&x.k, x.store, &x.options);
    x.slow.is_shut = true;
    publish(&x, 2);
    slow_wait_begun(&x.slow, 1);
    assert_int_equal(rmdir(spool), 0);
    publish(&x, 1);
    assert_true(dw_publisher_idle(x.p, UINT_MAX));
    publish(&x, 1); /* by now the copy has failed */
    x.slow.is_shut = false;
    assert_fails(dw_publisher_drain(x.p, &x.err), DW_NOT_FOUND, &x.err);
    assert_non_null(strstr(x.err.text, "version 2 were given up"));
    assert_false(has_way(&x, DW_NO_VERSION, 2));
    publish(&x, 1);
    assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
    assert_true(kit_find(x.slow.inner, "ways/", "-anchor", NULL) > 0);
    close_scene(&x);
}

/* Upkeep that fails is reported once, and tried again at the next version. */
static void test_failure(void **state)
{
    (void)state;
    scene x;
    open_scene(&x, NULL, NULL);
    kit_faults faults = {
        .kind = STORE_FAULT_DENY, .operation = "put", .part = "-anchor-", .n = 1};
    dw_store *faulty;
    const store_fault_plan plan = {kit_choose, &faults, 0};
    assert_ok(fault_store_new(&faulty, x.store, &plan, &x.err), &x.err);
    x.options.anchor_every = 2;
    x.p = kit_open(&x.k, faulty, &x.options);
    faults.on = true;
    publish(&x, 2);
    assert_fails(dw_publisher_drain(x.p, &x.err), DW_DENIED, &x.err);
    assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
    publish(&x, 1);
    assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
    assert_true(has_way(&x, DW_NO_VERSION, 3));
    dw_publisher_close(x.p);
    dw_store_close(faulty);
    x.p = NULL;
    close_scene(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_publish_during_anchor),
        cmocka_unit_test(test_publish_during_fold),
        cmocka_unit_test(test_close_during_anchor),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_failure),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
