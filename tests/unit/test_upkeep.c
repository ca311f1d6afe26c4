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

/* Objects with PART in their names are slow. The baseline is in DIR, or in memory. */
static void open_scene(scene *x, const char *part, const char *dir)
{
    *x = (scene){.slow = {.inner = kit_mem_store(), .part = part}};
    kit_make(&x->k);
    x->store = slow_open(&x->slow);
    x->options = kit_plain_options(temp_dir);
    if (dir)
        x->options.baseline_dir = dir;
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

static void remove_dir(const char *name)
{
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", temp_path(name));
    assert_int_equal(system(command), 0);
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

/* An anchor or a fold is uploaded at 1 MB/s, and ends only after 30 further versions are
 * committed. It is of the version at which it was begun. */
static void test_publish_meanwhile(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        scene x;
        const bool folds = i & 2;
        open_scene(&x, folds ? "-fold-" : "-anchor-", i & 1 ? temp_path("kept") : NULL);
        x.options.anchor_every = folds ? 0 : 8;
        x.options.fold_every = folds ? 8 : 0;
        x.p = kit_open(&x.k, x.store, &x.options);
        x.slow.is_shut = true;
        publish(&x, 8);
        slow_wait_begun(&x.slow, 1);
        publish(&x, 30);
        assert_int_equal(x.slow.n_done, 0);
        assert_int_equal(x.report.upkeep_behind, 30);
        assert_false(dw_publisher_drained(x.p, 1));
        assert_int_equal(kit_find(x.slow.inner, "ways/", "", NULL), 0);
        x.slow.is_shut = false;
        assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
        if (folds) {
            assert_true(has_way(&x, 0, 8) && has_way(&x, 8, 16) && has_way(&x, 16, 24) &&
                        has_way(&x, 24, 32));
        } else { /* of what became due meanwhile only the newest is made; the last
                    commit may not have told upkeep yet */
            const uint64_t newest = has_way(&x, DW_NO_VERSION, 38) ? 38 : 37;
            assert_true(has_way(&x, DW_NO_VERSION, 8));
            assert_true(has_way(&x, DW_NO_VERSION, newest));
            check_anchor(&x, 8);
            check_anchor(&x, newest);
        }
        assert_int_equal(kit_find(x.slow.inner, "ways/", "", NULL), folds ? 4 : 2);
        publish(&x, 1);
        assert_int_equal(x.report.upkeep_behind, 0);
        close_scene(&x);
        remove_dir("kept");
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

/* The disk of the scratch model is full, read-only or, here, away. Versions are
 * published; the reports say for how long something has been due, and a drain says why.
 * Once there is room, it is made. */
static void test_no_room(void **state)
{
    (void)state;
    enum { N = 10 << 20 }; /* weights: too many for memory */
    const uint64_t dims[] = {N};
    uint16_t *live = calloc(N, 2);
    const dw_tensor tensor = {"t", DW_BF16, 1, dims, 2ull * N, live, 0, NULL};
    dw_store *store = kit_mem_store();
    dw_publish_options options = kit_plain_options(NULL);
    char spool[128];
    snprintf(spool, sizeof spool, "%s", temp_path("spool"));
    options.spool_dir = spool;
    options.anchor_every = 2;
    dw_error err = {0};
    dw_publisher *p;
    dw_publish_report report = {0};
    assert_ok(dw_publisher_open(&p, store, &tensor, 1, &options, &err), &err);
    for (uint64_t v = 1; v <= 6; v++) {
        uint64_t ticket;
        if (v == 6)
            assert_int_equal(mkdir(spool, 0777), 0);
        live[v * 1000] = (uint16_t)v;
        assert_ok(dw_publisher_publish(p, &ticket, NULL, &err), &err);
        assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err), &err);
        assert_int_equal(report.version, v);
        assert_int_equal(report.upkeep_behind, v > 2 ? v - 2 : 0);
        if (v == 1 || v == 6)
            assert_ok(dw_publisher_drain(p, &err), &err);
        else
            assert_fails(dw_publisher_drain(p, &err), DW_NOT_FOUND, &err);
    }
    assert_int_equal(kit_find(store, "ways/", "-anchor", NULL), 1);
    dw_publisher_close(p);
    dw_store_close(store);
    free(live);
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

/* Nobody but the publisher has the base: the first anchor comes from its baseline, also
 * after a restart. Then a follower needs no base. */
static void test_base(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        scene x;
        open_scene(&x, "", i ? temp_path("base") : NULL);
        x.options.first = DW_FIRST_BASE;
        x.options.base_name = "the-base-model";
        x.options.anchor_every = 4;
        x.p = kit_open(&x.k, x.store, &x.options);
        if (i) {
            publish(&x, 2);
            dw_publisher_close(x.p);
            x.p = kit_open(&x.k, x.store, &x.options);
        }
        publish(&x, i ? 2 : 4);
        assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
        assert_true(has_way(&x, DW_NO_VERSION, 4));
        check_anchor(&x, 4);
        publish(&x, 4);
        assert_ok(dw_publisher_drain(x.p, &x.err), &x.err);
        check_anchor(&x, 8);
        dw_publisher_close(x.p);
        dw_store_close(x.store);
        dw_store_close(x.slow.inner);
        kit_free(&x.k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_publish_meanwhile),
        cmocka_unit_test(test_close_during_anchor),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_failure),
        cmocka_unit_test(test_base),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
