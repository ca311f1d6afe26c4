/* Shortcuts that are added later: refused if they are useless, used if not.
 */
#include "store/fault_store.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"

static dw_status squash(fixture *x, uint64_t from, uint64_t to, dw_edge *shortcut)
{
    dw_stream *s;
    const dw_squash_options options = {.struct_bytes = sizeof options,
                                       .from = from,
                                       .to = to,
                                       .work_dir = temp_dir,
                                       .n_threads = 1};
    dw_status status = dw_stream_open(&s, x->store, NULL, &x->err);
    if (status == DW_OK)
        status = dw_stream_squash(s, &options, shortcut, &x->err);
    dw_stream_close(s);
    return status;
}

static void test_fold(void **state)
{
    (void)state;
    fixture x;
    dw_edge shortcut;
    dw_follow_report before, after;
    dw_verify_report found;
    fixture_make(&x, "mem:squash-fold", 9, 0, 0);
    assert_fine(&x, fixture_pull(&x, x.store, 9, &before));
    assert_int_equal(before.n_steps, 10);
    assert_fine(&x, squash(&x, 0, DW_NEWEST, &shortcut));
    assert_int_equal(shortcut.from, 0);
    assert_int_equal(shortcut.to, 9);
    assert_true(shortcut.n_objects == 1 && shortcut.n_bytes > 0);
    assert_fine(&x, fixture_pull(&x, x.store, 9, &after));
    assert_int_equal(after.n_steps, 2);
    assert_true(after.n_bytes < before.n_bytes);
    /* the hint knows it, and without the hint it is found */
    assert_fine(&x, dw_store_remove(x.store, DW_KEY_LATEST, &x.err));
    assert_fine(&x, fixture_pull(&x, x.store, 9, &after));
    assert_int_equal(after.n_steps, 2);
    assert_fine(&x, squash(&x, 2, 7, NULL));
    for (uint64_t v = 0; v <= 9; v++)
        assert_fine(&x, fixture_pull(&x, x.store, v, &after));
    fixture_verify(&x, x.store, &found);
    assert_int_equal(found.n_shortcuts, 2);
    assert_int_equal(count_files(temp_dir), 0);
    fixture_close(&x);
}

static void test_anchor(void **state)
{
    (void)state;
    fixture x;
    dw_edge shortcut;
    dw_follow_report report;
    dw_verify_report found;
    fixture_make(&x, "mem:squash-anchor", 6, 0, 0);
    assert_fine(&x, squash(&x, DW_NO_VERSION, 4, &shortcut));
    assert_int_equal(shortcut.from, DW_NO_VERSION);
    assert_fine(&x, fixture_pull(&x, x.store, 6, &report));
    assert_int_equal(report.n_steps, 3);
    fixture_verify(&x, x.store, &found);
    assert_int_equal(found.n_shortcuts, 1);
    fixture_close(&x);
}

static void test_refused(void **state)
{
    (void)state;
    fixture x;
    dw_edge shortcut;
    fixture_make(&x, "mem:squash-refused", 5, 0, 0);
    size_t n_before = fixture_count(&x, x.store, "");
    assert_int_equal(squash(&x, 3, 3, &shortcut), DW_INVALID);
    assert_int_equal(squash(&x, 4, 2, &shortcut), DW_INVALID);
    assert_int_equal(squash(&x, 9, DW_NEWEST, &shortcut), DW_INVALID);
    assert_int_equal(squash(&x, 4, 5, &shortcut), DW_INVALID);
    assert_int_equal(squash(&x, DW_NO_VERSION, 0, &shortcut), DW_INVALID);
    assert_int_equal(squash(&x, 1, 6, &shortcut), DW_NOT_FOUND);
    assert_int_equal(squash(&x, DW_NO_VERSION, 6, &shortcut), DW_NOT_FOUND);
    assert_int_equal(fixture_count(&x, x.store, ""), n_before);
    assert_fine(&x, squash(&x, 1, 5, &shortcut));
    n_before = fixture_count(&x, x.store, "");
    assert_int_equal(squash(&x, 1, 5, &shortcut), DW_CONFLICT);
    assert_int_equal(squash(&x, 1, DW_NEWEST, &shortcut), DW_CONFLICT);
    assert_int_equal(fixture_count(&x, x.store, ""), n_before);
    fixture_close(&x);
}

/* ---- others at the same time ---- */

typedef struct meanwhile {
    fixture *x;
    bool happened;
    store_fault kind;
} meanwhile;

/* The record of the shortcut is about to be created. */
static store_fault choose(void *context, uint64_t n, const char *operation,
                          const char *key)
{
    (void)n;
    meanwhile *m = context;
    if (m->happened || strcmp(operation, "put") != 0 || strncmp(key, "ways/", 5) != 0)
        return STORE_FAULT_NONE;
    m->happened = true;
    if (m->kind == STORE_FAULT_NONE)
        assert_fine(m->x, squash(m->x, 1, 4, NULL));
    return m->kind;
}

static void test_races(void **state)
{
    (void)state;
    fixture x;
    dw_stream *s;
    dw_store *watched;
    dw_verify_report found;
    const dw_squash_options options = {
        .struct_bytes = sizeof options, .from = 1, .to = 4, .n_threads = 1};
    for (unsigned i = 0; i < 2; i++) {
        fixture_make(&x, i ? "mem:squash-lost" : "mem:squash-race", 5, 0, 0);
        meanwhile m = {.x = &x, .kind = i ? STORE_FAULT_LOST : STORE_FAULT_NONE};
        const store_fault_plan plan = {.choose = choose, .context = &m};
        assert_fine(&x, fault_store_new(&watched, x.store, &plan, &x.err));
        assert_fine(&x, dw_stream_open(&s, watched, NULL, &x.err));
        /* another one made it meanwhile; or this one did, and the reply was lost */
        assert_int_equal(dw_stream_squash(s, &options, NULL, &x.err),
                         i ? DW_OK : DW_CONFLICT);
        assert_true(m.happened);
        dw_stream_close(s);
        dw_store_close(watched);
        fixture_verify(&x, x.store, &found);
        assert_int_equal(found.n_shortcuts, 1);
        assert_int_equal(found.n_unnamed, 0);
        fixture_close(&x);
    }
}

static int stop(void *context, uint64_t n_done, uint64_t n_total)
{
    (void)n_done;
    (void)n_total;
    unsigned *left = context;
    return *left == 0 || --*left == 0;
}

static void test_cancel(void **state)
{
    (void)state;
    fixture x;
    dw_stream *s;
    fixture_make(&x, "mem:squash-cancel", 4, 0, 0);
    assert_fine(&x, dw_stream_open(&s, x.store, NULL, &x.err));
    dw_status status = DW_CANCELLED;
    for (unsigned n = 1; status == DW_CANCELLED; n++) {
        unsigned left = n;
        const dw_squash_options options = {.struct_bytes = sizeof options,
                                           .from = 0,
                                           .to = 3,
                                           .n_threads = 1,
                                           .progress = {stop, &left}};
        status = dw_stream_squash(s, &options, NULL, &x.err);
        assert_true(status == DW_OK || status == DW_CANCELLED);
        assert_true(n < 1000);
        if (n == 1)
            assert_int_equal(status, DW_CANCELLED);
    }
    dw_stream_close(s);
    dw_verify_report found;
    fixture_verify(&x, x.store, &found);
    assert_int_equal(found.n_shortcuts, 1);
    fixture_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fold),    cmocka_unit_test(test_anchor),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_races),
        cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
