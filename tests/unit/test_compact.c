/* A compactor beside a stream: what it makes, and that nothing that happens to it or to
 * others at the same time does harm. */
#include <unistd.h>

#include "store/fault_store.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"

static dw_compact_options folding(unsigned fold, unsigned anchor)
{
    dw_compact_options options;
    dw_compact_options_init(&options);
    options.work_dir = temp_dir;
    options.fold_every = fold;
    options.anchor_every = anchor;
    options.anchor_factor = 0;
    options.n_threads = 1;
    return options;
}

/* Makes all that is due; returns how many. */
static unsigned compact(fixture *x, dw_store *store, const dw_compact_options *options,
                        dw_status *status)
{
    dw_compactor *c;
    dw_edge made = {0};
    unsigned n = 0;
    *status = dw_compactor_open(&c, store, options, &x->err);
    while (*status == DW_OK && made.to != DW_NO_VERSION) {
        *status = dw_compactor_step(c, NULL, &made, &x->err);
        n += made.to != DW_NO_VERSION;
    }
    dw_compactor_close(c);
    return n;
}

static void compact_all(fixture *x, const dw_compact_options *options, unsigned n)
{
    dw_status status;
    const unsigned n_made = compact(x, x->store, options, &status);
    assert_fine(x, status);
    assert_int_equal(n_made, n);
}

static bool has(fixture *x, uint64_t from, uint64_t to)
{
    char key[DW_KEY_TEXT];
    dw_key_shortcut(key, to, from);
    return fixture_has(x, key);
}

static void check(fixture *x, size_t n_shortcuts)
{
    dw_verify_report found;
    for (uint64_t v = 0; v < x->n; v++)
        assert_fine(x, fixture_pull(x, x->store, v, NULL));
    fixture_verify(x, x->store, &found);
    assert_int_equal(found.n_shortcuts, n_shortcuts);
    assert_int_equal(count_files(temp_dir), 0);
}

/* A chain of folds from version 0; after an anchor a chain from there. */
static void test_what_is_due(void **state)
{
    (void)state;
    fixture x;
    dw_follow_report report;
    dw_compact_options options = folding(4, 0);
    fixture_make(&x, "mem:compact-due", 9, 0, 0);
    compact_all(&x, &options, 2);
    assert_true(has(&x, 0, 4) && has(&x, 4, 8));
    compact_all(&x, &options, 0);
    assert_fine(&x, fixture_pull(&x, x.store, 9, &report));
    assert_int_equal(report.n_steps, 4);
    options.anchor_every = 10;
    compact_all(&x, &options, 0);
    fixture_publish(&x);
    compact_all(&x, &options, 1);
    assert_true(has(&x, DW_NO_VERSION, 10));
    for (unsigned i = 0; i < 5; i++)
        fixture_publish(&x);
    compact_all(&x, &options, 1);
    assert_true(has(&x, 10, 14));
    check(&x, 4);
    options.fold_every = 1;
    dw_status status;
    assert_int_equal(compact(&x, x.store, &options, &status), 0);
    assert_int_equal(status, DW_INVALID);
    fixture_close(&x);
}

/* The writer keeps the edges that it did not make, and so does another compactor. */
static void test_hint(void **state)
{
    (void)state;
    fixture x;
    dw_follow_report report;
    const dw_compact_options fold = folding(4, 0), anchor = folding(0, 6);
    fixture_make(&x, "mem:compact-hint", 5, 0, 0);
    compact_all(&x, &fold, 1);
    fixture_publish(&x);
    assert_fine(&x, fixture_pull(&x, x.store, 6, &report));
    assert_int_equal(report.n_steps, 4); /* version 0, the fold, two deltas */
    compact_all(&x, &anchor, 1);
    fixture_publish(&x);
    assert_fine(&x, fixture_pull(&x, x.store, 7, &report));
    assert_int_equal(report.n_steps, 2);
    /* a lost hint: what exists is found again, and nothing is made twice */
    assert_fine(&x, dw_store_remove(x.store, DW_KEY_LATEST, &x.err));
    compact_all(&x, &anchor, 0);
    check(&x, 2);
    fixture_close(&x);
}

/* ---- faults ---- */

typedef struct trouble {
    fixture *x;
    const char *part; /* of the key of a put; NULL: of any operation */
    unsigned at;      /* the one that fails, from 1 on; all later ones fail too */
    unsigned n;
    store_fault kind; /* STORE_FAULT_NONE: another compactor works first */
} trouble;

static store_fault choose(void *context, uint64_t n, const char *operation,
                          const char *key)
{
    (void)n;
    trouble *t = context;
    dw_status status;
    if (t->part && (strcmp(operation, "put") != 0 || !strstr(key, t->part)))
        return STORE_FAULT_NONE;
    if (++t->n < t->at || (t->part && t->n > t->at))
        return STORE_FAULT_NONE;
    if (t->kind == STORE_FAULT_NONE) {
        const dw_compact_options options = folding(4, 0);
        (void)compact(t->x, t->x->store, &options, &status);
        assert_fine(t->x, status);
    }
    return t->kind;
}

/* It is killed at any instant: from there on none of its requests arrives. The next one
 * makes the rest. */
static void test_killed(void **state)
{
    (void)state;
    const dw_compact_options options = folding(4, 9);
    bool is_over = false;
    for (unsigned at = 1; !is_over; at++) {
        fixture x;
        char url[64];
        dw_store *store;
        dw_status status;
        snprintf(url, sizeof url, "mem:compact-killed-%u", at);
        fixture_make(&x, url, 8, 0, 0);
        trouble t = {.x = &x, .at = at, .kind = STORE_FAULT_FAIL};
        const store_fault_plan plan = {.choose = choose, .context = &t};
        assert_fine(&x, fault_store_new(&store, x.store, &plan, &x.err));
        (void)compact(&x, store, &options, &status);
        is_over = t.n < at;
        dw_store_close(store);
        (void)compact(&x, x.store, &options, &status);
        assert_fine(&x, status);
        assert_true(has(&x, 0, 4) && has(&x, 4, 8));
        fixture_publish(&x);
        compact_all(&x, &options, 1);
        check(&x, 3);
        fixture_close(&x);
        assert_true(at < 500);
    }
}

/* Another one makes the shortcut meanwhile; or this one did, and the reply was lost. */
static void test_two(void **state)
{
    (void)state;
    static const store_fault kinds[] = {STORE_FAULT_NONE, STORE_FAULT_LOST};
    for (unsigned i = 0; i < 2; i++) {
        fixture x;
        dw_store *store;
        dw_status status;
        dw_verify_report found;
        const dw_compact_options options = folding(4, 0);
        fixture_make(&x, i ? "mem:compact-lost" : "mem:compact-two", 9, 0, 0);
        trouble t = {.x = &x, .part = "ways/", .at = 1, .kind = kinds[i]};
        const store_fault_plan plan = {.choose = choose, .context = &t};
        assert_fine(&x, fault_store_new(&store, x.store, &plan, &x.err));
        (void)compact(&x, store, &options, &status);
        assert_fine(&x, status);
        dw_store_close(store);
        check(&x, 2);
        fixture_verify(&x, x.store, &found);
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

/* Cancelled anywhere, the same compactor goes on. */
static void test_cancel(void **state)
{
    (void)state;
    fixture x;
    dw_compactor *c;
    dw_edge made = {0};
    const dw_compact_options options = folding(4, 0);
    fixture_make(&x, "mem:compact-cancel", 9, 0, 0);
    assert_fine(&x, dw_compactor_open(&c, x.store, &options, &x.err));
    unsigned n_cancelled = 0;
    for (unsigned n = 1; made.to != DW_NO_VERSION; n++) {
        unsigned left = n % 16;
        const dw_progress progress = {stop, &left};
        dw_status status = dw_compactor_step(c, n % 16 ? &progress : NULL, &made, &x.err);
        n_cancelled += status == DW_CANCELLED;
        if (status == DW_CANCELLED)
            made.to = 0;
        else
            assert_fine(&x, status);
    }
    assert_true(n_cancelled > 0);
    dw_compactor_close(c);
    check(&x, 2);
    fixture_close(&x);
}

/* ---- others at the same time ---- */

/* Collections keep as little as they can, after each version; and another compactor makes
 * anchors above what the first one has. It goes on from what is left. */
static void test_collected(void **state)
{
    (void)state;
    fixture x;
    dw_stream *stream;
    dw_compactor *c;
    dw_edge made;
    const dw_compact_options options = folding(3, 7), other = folding(0, 5);
    const dw_collect_options least = {.struct_bytes = sizeof least, .n_keep = 1};
    fixture_make(&x, "mem:compact-collected", 1, 0, 0);
    assert_fine(&x, dw_compactor_open(&c, x.store, &options, &x.err));
    assert_fine(&x, dw_stream_open(&stream, x.store, NULL, &x.err));
    unsigned n_made = 0;
    for (unsigned i = 2; i < 40; i++) {
        dw_status status;
        fixture_publish(&x);
        if (i >= 20) {
            (void)compact(&x, x.store, &other, &status);
            assert_fine(&x, status);
        }
        assert_fine(&x, dw_stream_collect(stream, &least, NULL, &x.err));
        assert_fine(&x, dw_compactor_step(c, NULL, &made, &x.err));
        n_made += made.to != DW_NO_VERSION;
        assert_fine(&x, dw_stream_collect(stream, &least, NULL, &x.err));
        assert_fine(&x, fixture_pull(&x, x.store, i, NULL));
    }
    assert_true(n_made > 10);
    dw_stream_close(stream);
    dw_compactor_close(c);
    fixture_close(&x);
}

/* ---- keys ---- */

static void test_signed(void **state)
{
    (void)state;
    fixture x;
    dw_sign_key *keys[2];
    uint8_t trusted[2][DW_PUBLIC_KEY_BYTES];
    dw_publish_options publish;
    dw_publish_options_init(&publish);
    publish.fold_every = 0;
    publish.anchor_factor = 0;
    char paths[2][160];
    for (unsigned i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/key-%u", temp_dir, i);
        char text[DW_PUBLIC_KEY_TEXT];
        assert_int_equal(dw_sign_key_create(paths[i], text, NULL), DW_OK);
        assert_int_equal(dw_sign_key_open(&keys[i], paths[i], NULL), DW_OK);
        dw_sign_key_public(keys[i], trusted[i]);
    }
    publish.sign_key = keys[0];
    fixture_open(&x, "mem:compact-signed", &publish);
    for (unsigned i = 0; i < 4; i++)
        fixture_publish(&x);
    dw_compact_options options = folding(4, 0);
    options.trust = (dw_trust){trusted, 1, NULL};
    options.sign_key = keys[0];
    compact_all(&x, &options, 1);
    dw_stream *stream;
    dw_shortcut_record found;
    assert_fine(&x, dw_stream_open(&stream, x.store, &options.trust, &x.err));
    assert_fine(&x, dw_stream_read_shortcut(stream, 4, 0, &found, &x.err));
    dw_shortcut_record_release(&found);
    dw_stream_close(stream);
    options.trust = (dw_trust){trusted + 1, 1, NULL};
    dw_status status;
    (void)compact(&x, x.store, &options, &status);
    assert_int_equal(status, DW_UNTRUSTED);
    fixture_close(&x);
    for (unsigned i = 0; i < 2; i++) {
        dw_sign_key_close(keys[i]);
        assert_int_equal(unlink(paths[i]), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_due), cmocka_unit_test(test_hint),
        cmocka_unit_test(test_killed),      cmocka_unit_test(test_two),
        cmocka_unit_test(test_cancel),      cmocka_unit_test(test_collected),
        cmocka_unit_test(test_signed),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
