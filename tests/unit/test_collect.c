/* A collection removes only what nobody needs, also while others work on the stream.
 */
#include "store/fault_store.h"
#include "unit/stream_fixture.h"

#define HEAD 12

static dw_status collect(fixture *x, dw_store *store, uint64_t n_keep, bool dry_run,
                         dw_collect_report *report)
{
    dw_stream *s;
    const dw_collect_options options = {
        .struct_bytes = sizeof options, .n_keep = n_keep, .dry_run = dry_run};
    dw_status status = dw_stream_open(&s, store, NULL, &x->err);
    if (status == DW_OK)
        status = dw_stream_collect(s, &options, report, &x->err);
    /* it lives as long as the stream */
    report->held_by = NULL;
    dw_stream_close(s);
    return status;
}

static void list_follower(fixture *x, dw_store *store, uint64_t version)
{
    dw_store *own = x->store;
    x->store = store;
    fixture_list_follower(x, "f", version);
    x->store = own;
}

/* A follower at VERSION reaches the head with what is left. */
static void assert_goes_on(fixture *x, dw_store *store, uint64_t version)
{
    model memory = model_copy(&x->at[version], false);
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = memory.tensors;
    options.n_tensors = memory.n;
    options.at = version;
    options.n_threads = 1;
    dw_follower *f = NULL;
    dw_follow_report report;
    assert_fine(x, dw_follower_open(&f, store, &options, &x->err));
    assert_int_equal(dw_follower_version(f), version);
    /* step by step: each commit above a reported version exists */
    for (uint64_t v = version; v < x->n; v++)
        assert_fine(x, dw_follower_sync(f, v, NULL, &report, &x->err));
    assert_true(model_equal(&memory, &x->at[x->n - 1]));
    dw_follower_close(f);
    model_free(&memory);
}

static void assert_kept(fixture *x, dw_store *store, uint64_t floor)
{
    dw_follow_report report;
    dw_verify_report found;
    for (uint64_t v = floor; v < x->n; v++)
        assert_fine(x, fixture_pull(x, store, v, &report));
    fixture_verify(x, store, &found);
}

static void test_every_floor(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:collect", HEAD, 4, 2);
    for (uint64_t n_keep = 1; n_keep <= HEAD + 2; n_keep += 2)
        for (uint64_t at = 0; at <= HEAD + 1; at++) {
            dw_store *store = fixture_clone(&x);
            list_follower(&x, store, at <= HEAD ? at : DW_NO_VERSION);
            dw_collect_report report, again;
            assert_fine(&x, collect(&x, store, n_keep, false, &report));
            uint64_t keep = n_keep <= HEAD ? HEAD + 1 - n_keep : 0;
            uint64_t limit = at < keep ? at : keep;
            assert_int_equal(report.floor, limit / 4 * 4);
            assert_int_equal(report.old_floor, 0);
            assert_kept(&x, store, report.floor);
            if (at <= HEAD)
                assert_goes_on(&x, store, at);
            if (report.floor > 0) {
                dw_follow_report pulled;
                assert_true(report.n_objects > 0);
                assert_int_equal(fixture_pull(&x, store, report.floor - 1, &pulled),
                                 DW_NOT_FOUND);
            }
            /* nothing is left to do; a larger n_keep does not lower the floor */
            assert_fine(&x, collect(&x, store, n_keep, false, &again));
            assert_int_equal(again.n_objects, 0);
            assert_int_equal(again.old_floor, report.floor);
            assert_fine(&x, collect(&x, store, HEAD + 5, false, &again));
            assert_int_equal(again.n_objects, 0);
            assert_int_equal(again.floor, report.floor);
            dw_store_close(store);
        }
    fixture_close(&x);
}

typedef struct removed_tally {
    uint64_t n;
    uint64_t n_bytes;
} removed_tally;

static void take_removed(void *context, const char *key, uint64_t n_bytes)
{
    removed_tally *t = context;
    assert_non_null(key);
    t->n++;
    t->n_bytes += n_bytes;
}

static void test_dry_run(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:collect-dry", HEAD, 4, 2);
    dw_stream *s;
    size_t n_before = fixture_count(&x, x.store, "");
    removed_tally dry = {0}, real = {0};
    dw_collect_options options = {.struct_bytes = sizeof options,
                                  .n_keep = 3,
                                  .dry_run = true,
                                  .removed = take_removed,
                                  .context = &dry};
    dw_collect_report report;
    assert_fine(&x, dw_stream_open(&s, x.store, NULL, &x.err));
    assert_fine(&x, dw_stream_collect(s, &options, &report, &x.err));
    assert_int_equal(fixture_count(&x, x.store, ""), n_before);
    assert_false(fixture_has(&x, DW_KEY_FLOOR));
    assert_int_equal(report.floor, 8);
    assert_true(report.n_objects > 0);
    assert_int_equal(dry.n, report.n_objects);
    assert_int_equal(dry.n_bytes, report.n_bytes);
    options.dry_run = false;
    options.context = &real;
    assert_fine(&x, dw_stream_collect(s, &options, &report, &x.err));
    assert_memory_equal(&dry, &real, sizeof dry);
    assert_int_equal(fixture_count(&x, x.store, ""), n_before - real.n + 1);
    options.n_keep = 0;
    assert_int_equal(dw_stream_collect(s, &options, &report, &x.err), DW_INVALID);
    dw_stream_close(s);
    fixture_close(&x);
}

static void assert_held_by(fixture *x, uint64_t n_keep, const char *wanted)
{
    dw_stream *s;
    const dw_collect_options options = {
        .struct_bytes = sizeof options, .n_keep = n_keep, .dry_run = true};
    dw_collect_report report;
    assert_fine(x, dw_stream_open(&s, x->store, NULL, &x->err));
    assert_fine(x, dw_stream_collect(s, &options, &report, &x->err));
    assert_string_equal(report.held_by, wanted);
    dw_stream_close(s);
}

static void test_held_by(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:collect-held", 10, 4, 0);
    assert_held_by(&x, 3, "keep");   /* the anchor is at 8 */
    assert_held_by(&x, 4, "keep");   /* there is one at 8, but 7 must be kept */
    assert_held_by(&x, 1, "anchor"); /* none is above 8 */
    assert_held_by(&x, 99, "keep");
    fixture_list_follower(&x, "slow", 5);
    fixture_list_follower(&x, "quick", 9);
    fixture_list_follower(&x, "new", DW_NO_VERSION);
    assert_held_by(&x, 1, "follower slow");
    fixture_close(&x);
}

static void test_leftovers(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:collect-left", 6, 4, 0);
    static const char id[] = "00112233445566778899aabbccddeeff";
    const struct {
        uint64_t version;
        const char *purpose;
        bool goes;
    } cases[] = {
        {0, NULL, true},      {3, NULL, true},
        {6, NULL, true},      {7, NULL, false}, /* it may be about to be committed */
        {3, "fold", true},    {3, "anchor", true},
        {4, "anchor", false}, /* its record may be about to be written */
        {6, "fold", false},
    };
    enum { N = sizeof cases / sizeof *cases };
    char keys[N][DW_KEY_TEXT], receipts[2][DW_KEY_TEXT];
    for (size_t i = 0; i < N; i++) {
        dw_key_object(keys[i], cases[i].version, id, cases[i].purpose, 0);
        fixture_put(&x, keys[i], "rubbish", 7);
    }
    for (unsigned i = 0; i < 2; i++) {
        dw_key_receipt(receipts[i], i, 3); /* the versions are of epoch 1 */
        fixture_put(&x, receipts[i], "rubbish", 7);
    }
    fixture_put(&x, "objects/README", "not ours", 8);
    dw_collect_report report;
    assert_fine(&x, collect(&x, x.store, 3, false, &report));
    assert_int_equal(report.floor, 4);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(fixture_has(&x, keys[i]), !cases[i].goes);
    assert_false(fixture_has(&x, receipts[0]));
    assert_true(fixture_has(&x, receipts[1]));
    assert_true(fixture_has(&x, "objects/README"));
    assert_kept(&x, x.store, 4);
    fixture_close(&x);
}

/* Neither a wrong floor nor a damaged anchor loses anything. */
static void test_hints_are_not_believed(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:collect-hint", 10, 4, 0);
    dw_floor_record floor = {.version = 1ull << 50};
    snprintf(floor.stream, sizeof floor.stream, "%s",
             dw_publisher_stream_id(x.publisher));
    dw_writer bytes = {0};
    assert_fine(&x, dw_floor_record_write(&bytes, &floor, &x.err));
    fixture_put(&x, DW_KEY_FLOOR, bytes.bytes, bytes.n_bytes);
    dw_writer_release(&bytes);
    dw_collect_report report;
    assert_fine(&x, collect(&x, x.store, 5, false, &report));
    dw_follow_report pulled;
    for (uint64_t v = 6; v <= 10; v++)
        assert_fine(&x, fixture_pull(&x, x.store, v, &pulled));
    fixture_close(&x);

    fixture_make(&x, "mem:collect-damaged", 10, 4, 0);
    dw_stream *s;
    dw_shortcut_record shortcut;
    assert_fine(&x, dw_stream_open(&s, x.store, NULL, &x.err));
    assert_fine(&x, dw_stream_read_shortcut(s, 8, DW_NO_VERSION, &shortcut, &x.err));
    fixture_put(&x, shortcut.objects.items[0].key, "short", 5);
    dw_shortcut_record_release(&shortcut);
    dw_stream_close(s);
    assert_fine(&x, collect(&x, x.store, 1, false, &report));
    assert_int_equal(report.floor, 4);
    for (uint64_t v = 4; v <= 10; v++)
        assert_fine(&x, fixture_pull(&x, x.store, v, &pulled));
    /* an unreadable commit does not show which of two attempts it is */
    char key[DW_KEY_TEXT];
    dw_key_object(key, 9, "00000000000000000000000000000000", NULL, 0);
    fixture_put(&x, key, "other", 5);
    dw_key_commit(key, 9);
    fixture_put(&x, key, "{}", 2);
    size_t n_before = fixture_count(&x, x.store, "");
    assert_int_equal(collect(&x, x.store, 1, false, &report), DW_CORRUPT);
    assert_int_equal(fixture_count(&x, x.store, ""), n_before);
    fixture_close(&x);
}

/* Whoever may write followers' records cannot stop a collection with them, and no record
 * speaks for another follower. */
static void test_forged_followers(void **state)
{
    (void)state;
    fixture x;
    dw_collect_report report;
    const dw_collect_options options = {.struct_bytes = sizeof options, .n_keep = 1};
    fixture_make(&x, "mem:collect-forged", 10, 4, 0);
    fixture_list_follower(&x, "honest", 9);
    dw_writer bytes = {0}; /* another's name, at version 0 */
    dw_follower_record r = {.id = "honest",
                            .version = 0,
                            .host = "",
                            .status = "following",
                            .message = "",
                            .time = "2026-11-15T05:20:59.123Z"};
    snprintf(r.stream, sizeof r.stream, "%s", dw_publisher_stream_id(x.publisher));
    assert_fine(&x, dw_follower_record_write(&bytes, &r, &x.err));
    fixture_put(&x, "followers/forged.json", bytes.bytes, bytes.n_bytes);
    dw_writer_release(&bytes);
    fixture_put(&x, "followers/rubbish.json", "{", 1);
    fixture_list_follower(&x, "ahead", 1ull << 50);
    fixture_list_follower(&x, "less", 11);
    const size_t n_objects = fixture_count(&x, x.store, "objects/");
    dw_stream *s;
    assert_fine(&x, dw_stream_open(&s, x.store, NULL, &x.err));
    assert_fine(&x, dw_stream_collect(s, &options, &report, &x.err));
    assert_int_equal(report.floor, 8);
    assert_true(fixture_count(&x, x.store, "objects/") < n_objects);
    assert_string_equal(report.ahead, "followers/ahead.json");
    assert_int_equal(report.ahead_version, 1ull << 50);
    assert_fine(&x, dw_stream_forget_follower(s, "ahead", &x.err));
    assert_fine(&x, dw_stream_collect(s, &options, &report, &x.err));
    assert_string_equal(report.ahead, "followers/less.json");
    fixture_publish(&x); /* version 11 */
    assert_fine(&x, dw_stream_collect(s, &options, &report, &x.err));
    assert_null(report.ahead);
    dw_stream_close(s);
    assert_kept(&x, x.store, 8);
    fixture_close(&x);
}

/* ---- others at the same time ---- */

typedef struct meanwhile {
    fixture *x;
    dw_store *store;
    uint64_t at; /* it happens before this call */
    bool happened;
    void (*happen)(struct meanwhile *);
    store_fault kind;
} meanwhile;

static store_fault choose(void *context, uint64_t n, const char *operation,
                          const char *key)
{
    (void)operation;
    (void)key;
    meanwhile *m = context;
    if (n < m->at || (m->happened && m->kind == STORE_FAULT_NONE))
        return STORE_FAULT_NONE;
    m->happened = true;
    if (m->happen)
        m->happen(m);
    return m->kind;
}

static dw_status collect_amid(meanwhile *m, uint64_t n_keep, dw_collect_report *report)
{
    dw_store *store;
    const store_fault_plan plan = {.choose = choose, .context = m};
    m->happened = false;
    assert_fine(m->x, fault_store_new(&store, m->store, &plan, &m->x->err));
    dw_status status = collect(m->x, store, n_keep, false, report);
    dw_store_close(store);
    return status;
}

static void publish_meanwhile(meanwhile *m)
{
    fixture_publish(m->x);
}

static void test_beside_a_publisher(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:collect-beside", 5, 3, 2);
    meanwhile m = {.x = &x, .store = x.store, .happen = publish_meanwhile};
    do {
        dw_collect_report report;
        dw_follow_report pulled;
        dw_verify_report found;
        assert_fine(&x, collect_amid(&m, 4, &report));
        for (uint64_t v = report.floor; v < x.n; v++)
            assert_fine(&x, fixture_pull(&x, x.store, v, &pulled));
        fixture_verify(&x, x.store, &found);
        m.at++;
    } while (m.happened && x.n < FIXTURE_VERSIONS - 2);
    assert_true(m.at > 15);
    fixture_close(&x);
}

static void collect_more(meanwhile *m)
{
    dw_collect_report report;
    assert_fine(m->x, collect(m->x, m->store, 2, false, &report));
    assert_int_equal(report.floor, 8);
}

static void test_two_collectors(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:collect-two", 10, 4, 2);
    meanwhile m = {.x = &x, .happen = collect_more};
    do {
        m.store = fixture_clone(&x);
        dw_collect_report report;
        dw_status status = collect_amid(&m, 6, &report);
        if (status != DW_OK)
            print_error("%lu: %s\n", (unsigned long)m.at, x.err.text);
        assert_int_equal(status, DW_OK);
        if (m.happened) {
            assert_kept(&x, m.store, 8);
            dw_stream *s;
            uint64_t floor;
            assert_fine(&x, collect(&x, m.store, 6, false, &report));
            assert_fine(&x, dw_stream_open(&s, m.store, NULL, &x.err));
            assert_fine(&x, dw_stream_floor(s, &floor, &x.err));
            assert_int_equal(floor, 8);
            dw_stream_close(s);
        }
        dw_store_close(m.store);
        m.at++;
    } while (m.happened);
    assert_true(m.at > 15);
    fixture_close(&x);
}

/* Killed or disconnected at any call: nothing is lost, and the next one continues. */
static void test_cut_off(void **state)
{
    (void)state;
    const store_fault kinds[] = {STORE_FAULT_FAIL, STORE_FAULT_LOST};
    fixture x;
    fixture_make(&x, "mem:collect-cut", 10, 4, 2);
    for (size_t i = 0; i < 2; i++) {
        meanwhile m = {.x = &x, .kind = kinds[i]};
        do {
            m.store = fixture_clone(&x);
            dw_collect_report report;
            dw_status status = collect_amid(&m, 2, &report);
            assert_int_equal(status, m.happened ? DW_UNAVAILABLE : DW_OK);
            dw_follow_report pulled;
            for (uint64_t v = 8; v <= 10; v++)
                assert_fine(&x, fixture_pull(&x, m.store, v, &pulled));
            assert_fine(&x, collect(&x, m.store, 2, false, &report));
            assert_int_equal(report.floor, 8);
            assert_kept(&x, m.store, 8);
            dw_store_close(m.store);
            m.at++;
        } while (m.happened);
        assert_true(m.at > 15);
    }
    fixture_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_floor),
        cmocka_unit_test(test_dry_run),
        cmocka_unit_test(test_held_by),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_hints_are_not_believed),
        cmocka_unit_test(test_forged_followers),
        cmocka_unit_test(test_beside_a_publisher),
        cmocka_unit_test(test_two_collectors),
        cmocka_unit_test(test_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
