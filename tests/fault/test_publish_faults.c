/* A publisher to a store that fails at each of its calls in turn, in every way.
 * Afterwards the log has every version once, bit for bit as published, and the next
 * publisher goes on. */
/* labels: threads */
#include "unit/suite.h"

#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

static const store_fault kinds[] = {
    STORE_FAULT_FAIL,    STORE_FAULT_LOST,  STORE_FAULT_DENY, STORE_FAULT_SHORT,
    STORE_FAULT_CORRUPT, STORE_FAULT_STALE, STORE_FAULT_DELAY};
#define N_KINDS (sizeof kinds / sizeof *kinds)

static dw_publish_options plain_options(const char *baseline_dir)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = temp_dir;
    options.baseline_dir = baseline_dir;
    options.fold_every = 2;
    options.anchor_every = 3;
    options.anchor_factor = 0;
    options.n_threads = 1;
    return options;
}

static void publish_some(kit *k, dw_publisher *p, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        dw_error err = {0};
        dw_publish_report report;
        kit_step(k, 20);
        (void)kit_try(k, p, &report, &err);
        dw_status status = dw_publisher_drain(p, &err);
        assert_told(status, &err);
    }
}

/* Opens, publishes three versions, opens again, publishes one. */
static void scenario(kit *k, dw_store *store, const dw_publish_options *options)
{
    static const unsigned counts[] = {3, 1};
    for (unsigned i = 0; i < 2; i++) {
        dw_error err = {0};
        dw_publisher *p;
        dw_status status =
            dw_publisher_open(&p, store, k->tensors, KIT_TENSORS, options, &err);
        assert_told(status, &err);
        if (status != DW_OK)
            assert_null(p);
        else
            publish_some(k, p, counts[i]);
        dw_publisher_close(p);
    }
}

/* No version ever has other weights than those that were published as it. */
static void check_damaged(const kit *k, dw_store *store)
{
    dw_error err = {0};
    dw_tensor tensors[KIT_TENSORS];
    uint8_t *bytes = kit_room(k, tensors);
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = tensors;
    options.n_tensors = KIT_TENSORS;
    dw_follower *f;
    dw_status status = dw_follower_open(&f, store, &options, &err);
    for (uint64_t v = 0; status == DW_OK && v < 6; v++) {
        dw_status synced = dw_follower_sync(f, v, NULL, NULL, &err);
        assert_told(synced, &err);
        if (synced == DW_OK) {
            size_t n, a = kit_attempt_of(dw_follower_stream(f), v);
            const dw_tensor *found = dw_follower_tensors(f, &n);
            assert_true(kit_same(k, found, n, k->copies[a]));
        }
    }
    dw_follower_close(f);
    free(bytes);
}

static void run_one(dw_store *inner, store_fault kind, uint64_t first, uint64_t n,
                    const char *baseline_dir, uint64_t *n_calls)
{
    kit k;
    kit_make(&k);
    kit_faults faults = {.on = true, .kind = kind, .first = first, .n = n};
    dw_store *store = kit_fault_store(inner, &faults);
    dw_publish_options options = plain_options(baseline_dir);
    options.take_over = true; /* a damaged epoch does not say that its writer is gone */
    scenario(&k, store, &options);
    *n_calls = faults.n_seen;
    dw_store_close(store);
    if (faults.lost) {
        check_damaged(&k, inner);
    } else {
        dw_error err = {0};
        dw_publisher *p;
        assert_ok(dw_publisher_open(&p, inner, k.tensors, KIT_TENSORS, &options, &err),
                  &err);
        uint64_t next = dw_publisher_version(p) + 1;
        kit_step(&k, 20);
        kit_publish(&k, p, next);
        assert_ok(dw_publisher_drain(p, &err), &err);
        dw_publisher_close(p);
        kit_check_versions(&k, inner, NULL);
        if (!faults.damaged)
            kit_verify(inner);
    }
    kit_free(&k);
}

static void remove_dir(const char *path)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

static dw_store *open_fresh(bool in_files, const char *root)
{
    dw_error err = {0};
    dw_store *store;
    if (!in_files)
        return kit_mem_store();
    assert_ok(dw_store_open(&store, root, NULL, &err), &err);
    return store;
}

/* SPAN faults from each call on, of each kind; only one run in EVERY. */
static void run_all(bool in_files, uint64_t span, unsigned every)
{
    char root[128], base[128];
    snprintf(root, sizeof root, "%s/store", temp_dir);
    snprintf(base, sizeof base, "%s/base", temp_dir);
    uint64_t n_calls = 1;
    every = kit_one_in(every, 4);
    unsigned turn = 0;
    for (uint64_t first = 0; first < n_calls; first++)
        for (size_t i = 0; i < N_KINDS; i++) {
            if (turn++ % every != 0)
                continue;
            dw_store *store = open_fresh(in_files, root);
            uint64_t seen;
            run_one(store, turn == 1 ? STORE_FAULT_NONE : kinds[i], first, span,
                    in_files ? base : NULL, &seen);
            if (turn == 1) /* nothing failed: there are no more calls */
                n_calls = seen;
            dw_store_close(store);
            if (in_files) {
                remove_dir(root);
                remove_dir(base);
            }
        }
    assert_true(n_calls > 20);
}

TEST(test_every_call_once)
{
    run_all(false, 1, 1);
}

TEST(test_five_calls_in_a_row)
{
    run_all(false, 5, 1);
}

TEST(test_directories)
{
    run_all(true, 1, 37);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
