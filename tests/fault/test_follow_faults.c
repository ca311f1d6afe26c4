/* A follower of a store that fails at each of its calls in turn, in every way. After each
 * error the weights are exactly the version that the follower reports, and a retry
 * succeeds. */
/* labels: threads */
#include "unit/suite.h"

#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

#define HEAD 9

static const store_fault kinds[] = {
    STORE_FAULT_FAIL,    STORE_FAULT_LOST,  STORE_FAULT_DENY, STORE_FAULT_SHORT,
    STORE_FAULT_CORRUPT, STORE_FAULT_STALE, STORE_FAULT_DELAY};
#define N_KINDS (sizeof kinds / sizeof *kinds)

typedef struct world {
    kit k;
    dw_store *store;
    size_t log[KIT_COPIES];
} world;

static int make_world(void **state)
{
    static world w;
    temp_dir_make(state);
    kit_make(&w.k);
    w.store = kit_mem_store();
    kit_make_stream(&w.k, w.store, temp_dir, HEAD, 6, w.log);
    *state = &w;
    return 0;
}

static int remove_world(void **state)
{
    world *w = *state;
    kit_free(&w->k);
    dw_store_close(w->store);
    return temp_dir_remove(state);
}

/* The calls of one follower: to a version, forward and back. */
static const uint64_t goals[] = {3, 4, DW_NEWEST, 5, HEAD};

static dw_follower *open_follower(dw_store *store, const dw_follow_options *options,
                                  kit_faults *faults)
{
    dw_error err = {0};
    dw_follower *f;
    dw_status status = dw_follower_open(&f, store, options, &err);
    assert_told(status, &err);
    if (status == DW_OK)
        return f;
    assert_null(f);
    faults->on = false;
    assert_ok(dw_follower_open(&f, store, options, &err), &err);
    return f;
}

static void follow(world *w, dw_follower *f, kit_faults *faults)
{
    for (size_t i = 0; i < sizeof goals / sizeof *goals; i++) {
        dw_error err = {0};
        dw_follow_report report;
        dw_status status = dw_follower_sync(f, goals[i], NULL, &report, &err);
        assert_told(status, &err);
        kit_check_follower(&w->k, f, w->log);
        assert_true(report.version == dw_follower_version(f));
        if (status != DW_OK) {
            const bool was_on = faults->on;
            faults->on = false;
            assert_ok(dw_follower_sync(f, goals[i], NULL, NULL, &err), &err);
            faults->on = was_on;
        }
        uint64_t wanted = goals[i] == DW_NEWEST ? HEAD : goals[i];
        assert_int_equal(dw_follower_version(f), wanted);
        kit_check_follower(&w->k, f, w->log);
        assert_told(dw_follower_report(f, "following", NULL, &err), &err);
    }
}

static void run_one(world *w, kit_faults *faults, bool in_dir)
{
    char dir[128], command[160];
    snprintf(dir, sizeof dir, "%s/into", temp_dir);
    dw_store *store = kit_fault_store(w->store, faults);
    dw_tensor tensors[KIT_TENSORS];
    uint8_t *bytes = kit_room(&w->k, tensors);
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.n_threads = 1;
    options.id = "one";
    options.sweep_every = 2;
    options.into = in_dir ? dir : NULL;
    options.tensors = in_dir ? NULL : tensors;
    options.n_tensors = KIT_TENSORS;
    dw_follower *f = open_follower(store, &options, faults);
    follow(w, f, faults);
    dw_follower_close(f);
    f = open_follower(store, &options, faults); /* the position is remembered */
    /* memory whose version's record is damaged at every read counts as unknown */
    bool damages =
        faults->kind == STORE_FAULT_CORRUPT || faults->kind == STORE_FAULT_SHORT;
    if (in_dir || !damages || faults->n == 1)
        assert_int_equal(dw_follower_version(f), HEAD);
    kit_check_follower(&w->k, f, w->log);
    dw_follower_close(f);
    dw_store_close(store);
    free(bytes);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

static void run_all(world *w, bool in_dir, uint64_t span, unsigned every)
{
    kit_faults none = {.on = false};
    run_one(w, &none, in_dir);
    assert_true(none.n_seen > 20);
    every = kit_one_in(every, 4);
    unsigned turn = 0;
    for (uint64_t first = 0; first < none.n_seen; first++)
        for (size_t i = 0; i < N_KINDS; i++)
            if (turn++ % every == 0) {
                kit_faults faults = {
                    .on = true, .kind = kinds[i], .first = first, .n = span};
                run_one(w, &faults, in_dir);
            }
}

TEST(test_memory)
{
    run_all(*state, false, 1, 1);
    run_all(*state, false, 5, 1);
}

TEST(test_directory)
{
    run_all(*state, true, 1, 23);
    run_all(*state, true, 5, 37);
}

RUN_TESTS(make_world, remove_world)
