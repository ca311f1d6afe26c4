/* labels: slow */
/* What a writer keeps by itself: anchors and folds go when newer ones supersede them,
 * every version stays reachable, and nobody who follows at the same time is harmed. */
#define FIXTURE_VERSIONS 320
#define FIXTURE_ROWS     600

#include "store/fault_store.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"
#include "inner.h"

typedef struct sizes {
    uint64_t whole;  /* version 0 and anchors */
    uint64_t deltas; /* of commits */
    uint64_t folds;
    unsigned n_anchors;
} sizes;

static dw_status add_size(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    sizes *s = context;
    uint64_t version;
    bool of_shortcut;
    assert_true(dw_key_is_object(entry->key, &version, &of_shortcut));
    if (strstr(entry->key, "-fold-"))
        s->folds += entry->n_bytes;
    else if (of_shortcut || version == 0)
        s->whole += entry->n_bytes;
    else
        s->deltas += entry->n_bytes;
    s->n_anchors += strstr(entry->key, "-anchor-0000.") != NULL;
    return DW_OK;
}

static sizes sizes_of(fixture *x, dw_store *store)
{
    sizes s = {0};
    assert_fine(x, dw_store_list(store, "objects/", NULL, add_size, &s, &x->err));
    return s;
}

/* Without the deltas: less than four models. */
static void assert_bound(fixture *x, dw_store *store)
{
    const sizes s = sizes_of(x, store);
    assert_true(s.whole + s.folds < 4 * model_bytes(&x->live));
}

/* The hint names only edges that are there. */
static void assert_hint(fixture *x)
{
    dw_stream *s;
    dw_latest_record latest;
    assert_fine(x, dw_stream_open(&s, x->store, NULL, &x->err));
    assert_fine(x, dw_stream_read_latest(s, &latest, &x->err));
    for (size_t i = 0; i < latest.n_edges; i++) {
        dw_route_step step;
        assert_fine(x, dw_route_step_read(&step, s, &latest.edges[i], NULL, &x->err));
        for (size_t k = 0; k < step.objects.n; k++)
            assert_true(fixture_has(x, step.objects.items[k].key));
        dw_route_step_release(&step);
    }
    dw_latest_record_release(&latest);
    dw_stream_close(s);
}

/* Nothing is missing or left over. */
static void assert_whole(fixture *x, dw_store *store)
{
    dw_verify_report found;
    fixture_verify(x, store, &found);
    assert_int_equal(found.n_faults, 0);
    assert_int_equal(found.n_unnamed, 0);
}

static dw_publish_options writing(unsigned anchor_every)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = temp_dir;
    options.n_threads = 1;
    options.anchor_every = anchor_every;
    if (anchor_every > 0)
        options.anchor_factor = 0;
    return options;
}

static void publish(fixture *x, unsigned n)
{
    while (n-- > 0)
        fixture_publish(x);
}

/* ---- a long stream ---- */

/* At each put of an object: what is stored just then. */
static store_fault look(void *context, uint64_t n, const char *operation, const char *key)
{
    (void)n;
    fixture *x = context;
    if (strcmp(operation, "put") == 0 && strstr(key, "ways/"))
        assert_bound(x, x->store);
    return STORE_FAULT_NONE;
}

/* The defaults: also while an anchor is stored beside the older ones, there are less than
 * four models besides the deltas. */
TEST(test_long)
{
    fixture x;
    dw_store *watched;
    dw_publish_options options = writing(0);
    fixture_open(&x, "mem:retain-long", &options);
    dw_publisher_close(x.publisher);
    const store_fault_plan plan = {.choose = look, .context = &x};
    assert_fine(&x, fault_store_new(&watched, x.store, &plan, &x.err));
    assert_fine(&x, dw_publisher_open(&x.publisher, watched, x.live.tensors, x.live.n,
                                      &options, &x.err));
    unsigned n_seen = 0;
    for (unsigned i = 0; i < 300; i++) {
        publish(&x, 1);
        const sizes s = sizes_of(&x, x.store);
        assert_bound(&x, x.store);
        assert_true(s.n_anchors <= 2);
        n_seen += s.n_anchors == 2;
        if (i % 60 == 59)
            assert_hint(&x);
    }
    assert_true(n_seen > 200);
    assert_whole(&x, x.store);
    dw_follow_report report;
    for (uint64_t v = 0; v < x.n; v += v % 50 < 3 ? 1 : 7)
        assert_fine(&x, fixture_pull(&x, x.store, v, &report));
    assert_fine(&x, fixture_pull(&x, x.store, x.n - 1, &report));
    assert_true(report.n_steps < 20);
    assert_int_equal(count_files(temp_dir), 0);
    dw_publisher_close(x.publisher);
    x.publisher = NULL;
    dw_store_close(watched);
    fixture_close(&x);
}

/* Each version has a process of its own, which knows nothing of the one before. */
TEST(test_processes)
{
    fixture x;
    dw_publish_options options = writing(0);
    fixture_open(&x, "mem:retain-processes", &options);
    for (unsigned i = 0; i < 40; i++) {
        dw_publisher_close(x.publisher);
        assert_fine(&x, dw_publisher_open(&x.publisher, x.store, x.live.tensors, x.live.n,
                                          &options, &x.err));
        publish(&x, 1);
        const sizes s = sizes_of(&x, x.store);
        assert_bound(&x, x.store);
        assert_true(s.n_anchors <= 2);
    }
    for (uint64_t v = 0; v < x.n; v++)
        assert_fine(&x, fixture_pull(&x, x.store, v, NULL));
    assert_whole(&x, x.store);
    fixture_close(&x);
}

/* Without version 0 in the stream the first anchor stays, and so does that of a restart:
 * nothing else leads to the versions after it. */
TEST(test_needed)
{
    fixture x;
    dw_publish_options options = writing(4);
    options.first = DW_FIRST_BASE;
    options.base_name = "base";
    fixture_open(&x, "mem:retain-needed", &options);
    publish(&x, 21);
    dw_publisher_close(x.publisher);
    dw_repair_report repaired;
    model_change(&x.live, 300);
    assert_fine(
        &x, dw_stream_repair(x.store, x.live.tensors, x.live.n, NULL, &repaired, &x.err));
    assert_int_equal(repaired.version, x.n);
    x.at[x.n++] = model_copy(&x.live, false);
    assert_fine(&x, dw_publisher_open(&x.publisher, x.store, x.live.tensors, x.live.n,
                                      &options, &x.err));
    publish(&x, 20);
    assert_int_equal(sizes_of(&x, x.store).n_anchors, 4);
    for (uint64_t v = 4; v < x.n; v++)
        assert_fine(&x, fixture_pull(&x, x.store, v, NULL));
    assert_whole(&x, x.store);
    fixture_close(&x);
}

/* ---- others at the same time ---- */

typedef struct meanwhile {
    fixture *x;
    dw_store *store;
    const char *part; /* of the keys that count; NULL: all */
    uint64_t at, n;
    unsigned n_left; /* how often it happens */
    void (*happen)(struct meanwhile *);
    store_fault kind;
    uint64_t n_keep;    /* of the other collection; 0: it removes what is superseded */
    bool loses_replies; /* to removals of anchors' records */
} meanwhile;

static store_fault choose(void *context, uint64_t n, const char *operation,
                          const char *key)
{
    (void)n;
    meanwhile *m = context;
    if (m->part && (strcmp(operation, "get") != 0 || !strstr(key, m->part)))
        return STORE_FAULT_NONE;
    if (m->n++ < m->at)
        return STORE_FAULT_NONE;
    if (m->n_left > 0) {
        m->n_left--;
        if (m->happen)
            m->happen(m);
        return m->happen ? STORE_FAULT_NONE : m->kind;
    }
    return m->loses_replies && strcmp(operation, "remove") == 0 && strstr(key, "-anchor.")
               ? STORE_FAULT_LOST
               : STORE_FAULT_NONE;
}

static dw_store *amid(meanwhile *m)
{
    dw_store *store;
    const store_fault_plan plan = {.choose = choose, .context = m};
    m->n = 0;
    assert_fine(m->x, fault_store_new(&store, m->store, &plan, &m->x->err));
    return store;
}

static void publish_meanwhile(meanwhile *m)
{
    publish(m->x, 12); /* three anchors */
}

/* While a joiner reads an anchor, newer ones come and that one goes; and the next one
 * that it takes, too. It arrives, from nothing or from a version far behind. */
TEST(test_slow_joiner)
{
    for (unsigned i = 0; i < 2; i++) {
        fixture x;
        char url[64];
        const dw_publish_options options = writing(4);
        snprintf(url, sizeof url, "mem:retain-joiner-%u", i);
        fixture_open(&x, url, &options);
        publish(&x, 30);
        meanwhile m = {.x = &x,
                       .store = x.store,
                       .part = "-anchor-",
                       .n_left = 1,
                       .happen = publish_meanwhile};
        dw_store *store = amid(&m);
        model memory = model_copy(&x.at[1], false);
        dw_follow_options follow;
        dw_follow_options_init(&follow);
        follow.tensors = memory.tensors;
        follow.n_tensors = memory.n;
        follow.tensors_empty = i % 2 == 0;
        follow.at = i % 2 == 0 ? DW_NO_VERSION : 1;
        follow.n_threads = 1;
        dw_follower *f = NULL;
        dw_follow_report report;
        assert_fine(&x, dw_follower_open(&f, store, &follow, &x.err));
        assert_fine(&x, dw_follower_sync(f, 30, NULL, &report, &x.err));
        assert_int_equal(m.n_left, i % 2 == 0 ? 0 : m.n_left);
        assert_true(model_equal(&memory, &x.at[30]));
        assert_fine(&x, dw_follower_sync(f, DW_NEWEST, NULL, &report, &x.err));
        assert_true(model_equal(&memory, &x.at[x.n - 1]));
        dw_follower_close(f);
        model_free(&memory);
        dw_store_close(store);
        fixture_close(&x);
    }
}

static void collect(fixture *x, dw_store *store, uint64_t n_keep, unsigned n_anchors,
                    dw_status *status, dw_collect_report *report)
{
    dw_stream *s;
    const dw_collect_options options = {.struct_bytes = sizeof options,
                                        .n_keep = n_keep > 0 ? n_keep : UINT64_MAX,
                                        .n_anchors = n_anchors,
                                        .shortcuts_only = n_keep == 0};
    *status = dw_stream_open(&s, store, NULL, &x->err);
    if (*status == DW_OK)
        *status = dw_stream_collect(s, &options, report, &x->err);
    report->held_by = NULL;
    dw_stream_close(s);
}

static void other_meanwhile(meanwhile *m)
{
    dw_status status;
    dw_collect_report report;
    collect(m->x, m->store, m->n_keep, 1, &status, &report);
    assert_fine(m->x, status);
}

/* One collection drops old versions, and another one removes superseded anchors, one of
 * which is the floor that the first has picked. The reply to a removal may be lost. */
TEST(test_two_collections)
{
    static const struct {
        uint64_t n_keep, other;
        bool loses_replies;
    } cases[] = {{5, 0, false}, {0, 5, false}, {5, 9, false}, {0, 5, true}};
    fixture x;
    fixture_make(&x, "mem:retain-two", 14, 4, 2); /* anchors of 4, 8, 12; folds */
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        meanwhile m = {.x = &x,
                       .happen = other_meanwhile,
                       .n_keep = cases[i].other,
                       .loses_replies = cases[i].loses_replies};
        do {
            dw_status status;
            dw_collect_report report;
            uint64_t floor;
            dw_stream *s;
            m.store = fixture_clone(&x);
            m.n_left = 1;
            dw_store *store = amid(&m);
            collect(&x, store, cases[i].n_keep, 1, &status, &report);
            if (status != DW_UNAVAILABLE || !m.loses_replies)
                assert_fine(&x, status);
            dw_store_close(store);
            assert_fine(&x, dw_stream_open(&s, m.store, NULL, &x.err));
            assert_fine(&x, dw_stream_floor(s, &floor, &x.err));
            dw_stream_close(s);
            assert_true(floor <= 8 && floor % 4 == 0);
            for (uint64_t v = floor; v < x.n; v++)
                assert_fine(&x, fixture_pull(&x, m.store, v, NULL));
            dw_store_close(m.store);
            m.at++;
        } while (m.n_left == 0);
        assert_true(m.at > 15);
    }
    fixture_close(&x);
}

/* Verify finds no fault if what it reads goes meanwhile: as superseded, or because a
 * floor has passed it. */
TEST(test_verify)
{
    fixture x;
    fixture_make(&x, "mem:retain-verify", 14, 4, 2);
    for (unsigned i = 0; i < 4; i++) {
        meanwhile m = {.x = &x, .happen = other_meanwhile, .n_keep = i % 2 ? 5 : 0};
        do {
            dw_verify_report found;
            dw_replay_options replay;
            dw_replay_report replayed;
            dw_replay_options_init(&replay);
            m.store = fixture_clone(&x);
            m.n_left = 1;
            dw_store *store = amid(&m);
            if (i < 2)
                fixture_verify(&x, store, &found);
            else
                assert_fine(&x, dw_stream_replay(store, NULL, &replay, NULL, NULL,
                                                 &replayed, &x.err));
            dw_store_close(store);
            dw_store_close(m.store);
            m.at++;
        } while (m.n_left == 0);
        assert_true(m.at > 15);
    }
    fixture_close(&x);
}

/* A compactor that is killed at any instant, while it makes an anchor and removes what is
 * superseded: all versions are there, and the next one leaves nothing over. */
TEST(test_killed)
{
    fixture x;
    fixture_make(&x, "mem:retain-killed", 14, 4, 2);
    const store_fault kinds[] = {STORE_FAULT_FAIL, STORE_FAULT_LOST};
    for (unsigned i = 0; i < 2; i++) {
        meanwhile m = {.x = &x, .kind = kinds[i]};
        for (bool is_over = false; !is_over; m.at++) {
            dw_compactor *c;
            dw_edge made = {0};
            dw_compact_options options;
            dw_compact_options_init(&options);
            options.work_dir = temp_dir;
            options.anchor_factor = 0;
            options.anchor_every = 2;
            options.n_threads = 1;
            m.store = fixture_clone(&x);
            m.n_left = UINT_MAX; /* it never comes back */
            for (unsigned next = 0; next < 2; next++) {
                dw_store *store = next ? m.store : amid(&m);
                dw_status status = dw_compactor_open(&c, store, &options, &x.err);
                if (status == DW_OK)
                    status = dw_compactor_step(c, NULL, &made, &x.err);
                dw_compactor_close(c);
                if (!next)
                    dw_store_close(store);
                is_over = m.n_left == UINT_MAX;
                if (next)
                    assert_fine(&x, status);
                for (uint64_t v = 0; v < x.n; v += next ? 1 : 3)
                    assert_fine(&x, fixture_pull(&x, m.store, v, NULL));
                options.anchor_every = 1;
            }
            /* the anchor may have been made before the kill: then only the next one that
             * is made removes the rest */
            dw_status status;
            dw_collect_report report;
            collect(&x, m.store, 0, 2, &status, &report);
            assert_fine(&x, status);
            /* only what was in the middle of it is left over */
            assert_true(sizes_of(&x, m.store).n_anchors <= 4);
            for (uint64_t v = 0; v < x.n; v++)
                assert_fine(&x, fixture_pull(&x, m.store, v, NULL));
            dw_store_close(m.store);
        }
        assert_true(m.at > 30);
    }
    fixture_close(&x);
}

/* ---- old versions ---- */

/* The newest N stay, and at most about three times as many are stored; a follower behind
 * the floor joins again by an anchor. */
TEST(test_keep)
{
    static const unsigned keeps[] = {1, 5, 12, 30};
    for (unsigned i = 0; i < sizeof keeps / sizeof *keeps; i++) {
        fixture x;
        char url[64];
        dw_publish_options options = writing(4);
        options.n_keep = keeps[i];
        snprintf(url, sizeof url, "mem:retain-keep-%u", keeps[i]);
        fixture_open(&x, url, &options);
        model memory = model_copy(&x.at[0], false);
        dw_follow_options follow;
        dw_follow_options_init(&follow);
        follow.tensors = memory.tensors;
        follow.n_tensors = memory.n;
        follow.at = 0;
        follow.n_threads = 1;
        dw_follower *f = NULL;
        dw_follow_report report;
        assert_fine(&x, dw_follower_open(&f, x.store, &follow, &x.err));
        publish(&x, 100);
        dw_stream *s;
        uint64_t floor;
        assert_fine(&x, dw_stream_open(&s, x.store, NULL, &x.err));
        assert_fine(&x, dw_stream_floor(s, &floor, &x.err));
        dw_stream_close(s);
        assert_in_range(floor, 100 - 2 * keeps[i] - 10, 100 + 1 - keeps[i]);
        assert_int_equal(fixture_pull(&x, x.store, floor - 1, NULL), DW_NOT_FOUND);
        for (uint64_t v = floor; v < x.n; v++)
            assert_fine(&x, fixture_pull(&x, x.store, v, NULL));
        assert_true(sizes_of(&x, x.store).n_anchors <= 3);
        assert_whole(&x, x.store);
        assert_fine(&x, dw_follower_sync(f, DW_NEWEST, NULL, &report, &x.err));
        assert_true(model_equal(&memory, &x.at[100]));
        dw_follower_close(f);
        model_free(&memory);
        fixture_close(&x);
    }
}

TEST(test_keep_needs_anchors)
{
    fixture x;
    dw_publish_options options = writing(4);
    fixture_open(&x, "mem:retain-needs", &options);
    dw_publisher_close(x.publisher);
    options.n_keep = 3;
    options.anchor_every = 0;
    assert_int_equal(dw_publisher_open(&x.publisher, x.store, x.live.tensors, x.live.n,
                                       &options, &x.err),
                     DW_INVALID);
    fixture_close(&x);
}

/* ---- a store that lets nobody remove ---- */

static store_fault deny(void *context, uint64_t n, const char *operation, const char *key)
{
    (void)n;
    (void)key;
    unsigned *n_asked = context;
    if (strcmp(operation, "remove") != 0)
        return STORE_FAULT_NONE;
    ++*n_asked;
    return STORE_FAULT_DENY;
}

TEST(test_denied)
{
    fixture x;
    dw_store *store;
    unsigned n_asked = 0;
    const dw_publish_options options = writing(4);
    fixture_open(&x, "mem:retain-denied", &options);
    dw_publisher_close(x.publisher);
    const store_fault_plan plan = {.choose = deny, .context = &n_asked};
    assert_fine(&x, fault_store_new(&store, x.store, &plan, &x.err));
    assert_fine(&x, dw_publisher_open(&x.publisher, store, x.live.tensors, x.live.n,
                                      &options, &x.err));
    assert_fine(&x, dw_publisher_check_removal(x.publisher, &x.err));
    publish(&x, 40); /* a drain does not fail */
    assert_int_equal(sizes_of(&x, x.store).n_anchors, 10);
    assert_int_equal(n_asked, 1);
    assert_int_equal(dw_publisher_check_removal(x.publisher, &x.err), DW_DENIED);
    assert_non_null(strstr(x.err.text, "STORES.md"));
    assert_fine(&x, dw_publisher_check_removal(x.publisher, &x.err));
    uint64_t ticket;
    dw_publish_report report;
    assert_fine(&x, dw_publisher_publish(x.publisher, &ticket, NULL, &x.err));
    assert_fine(&x,
                dw_publisher_wait(x.publisher, ticket, UINT_MAX, NULL, &report, &x.err));
    assert_true(report.removal_denied);
    /* who may, does it later */
    dw_status status;
    dw_collect_report collected;
    collect(&x, x.store, 0, 2, &status, &collected);
    assert_fine(&x, status);
    assert_int_equal(sizes_of(&x, x.store).n_anchors, 2);
    for (uint64_t v = 0; v < x.n; v++)
        assert_fine(&x, fixture_pull(&x, x.store, v, NULL));
    dw_publisher_close(x.publisher);
    x.publisher = NULL;
    dw_store_close(store);
    fixture_close(&x);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
