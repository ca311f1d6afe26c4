/* Publishers: take-overs, lost and late commits, baselines, tickets, first versions,
 * folds and anchors. */
/* labels: threads */
#include <pthread.h>
#include <semaphore.h>

#include "unit/suite.h"

#include "deltawire/checkpoint.h"
#include "unit/late_store.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"
#include "unit/world.h"
#include "inner.h"

/* The next version, in which so many of a thousand weights are new. */
static void advance(dw_publisher *p, unsigned per_mille, uint64_t wanted)
{
    kit_step(&k, per_mille);
    kit_publish(&k, p, wanted);
}

static void remove_all(const char *name)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", temp_path(name));
    assert_int_equal(system(command), 0);
}

/* ---- two writers ---- */

TEST(test_take_over)
{
    begin();
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *first = kit_open(&k, store, &options);
    advance(first, 10, 1);
    dw_publisher *second = kit_open(&k, store, &options);
    for (unsigned i = 0; i < 3; i++) {
        dw_error err = {0};
        dw_publish_report report;
        kit_step(&k, 10);
        assert_fails(kit_try(&k, first, &report, &err), DW_CONFLICT, &err);
        assert_non_null(strstr(err.text, "another writer"));
        if (i == 0)
            assert_non_null(strstr(err.text, " on host "));
        kit_publish(&k, second, 2 + i);
    }
    dw_publisher_close(second); /* closed, but the first stays fenced */
    dw_error err = {0};
    assert_fails(kit_try(&k, first, &(dw_publish_report){0}, &err), DW_CONFLICT, &err);
    assert_int_equal(dw_publisher_version(first), 1);
    dw_publisher_close(first);
    check_and_end();
}

/* A bar reaches its end: first the weights, then the bytes of their objects. */
TEST(test_progress)
{
    begin();
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *publisher = kit_open(&k, store, &options);
    dw_publish_progress progress;
    for (unsigned i = 0; i < 2; i++) {
        kit_step(&k, 10 + i);
        dw_publish_report report;
        assert_int_equal(kit_try(&k, publisher, &report, NULL), DW_OK);
        dw_publisher_progress(publisher, &progress);
        assert_true(progress.n_weights > 0);
        assert_int_equal(progress.n_compared, progress.n_weights);
        assert_int_equal(progress.n_encoded, report.n_bytes);
    }
    dw_publisher_close(publisher);
    end();
}

/* Two writers with their own models that take the stream over from each other. */
TEST(test_alternating_writers)
{
    begin();
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *writers[2] = {kit_open(&k, store, &options), NULL};
    unsigned n_fenced = 0;
    for (unsigned i = 0; i < 60; i++) {
        const size_t w = random_below(2);
        dw_error err = {0};
        if (!writers[w] || random_below(6) == 0) {
            dw_publisher_close(writers[w]);
            writers[w] = kit_open(&k, store, &options);
        }
        kit_step(&k, 10);
        dw_publish_report report;
        dw_status status = kit_try(&k, writers[w], &report, &err);
        if (status != DW_OK) {
            assert_int_equal(status, DW_CONFLICT);
            n_fenced++;
            dw_publisher_close(writers[w]);
            writers[w] = NULL;
        }
    }
    assert_true(n_fenced > 3);
    dw_publisher_close(writers[0]);
    dw_publisher_close(writers[1]);
    check_and_end();
}

typedef struct racer {
    kit *k;
    dw_store *store;
    unsigned n_good;
} racer;

/* Opens and publishes as fast as it can, with its own weights. */
static void *race(void *context)
{
    racer *r = context;
    dw_publish_options options = kit_plain_options(temp_dir);
    for (unsigned i = 0; i < 12; i++) {
        dw_error err = {0};
        dw_publisher *p;
        if (dw_publisher_open(&p, r->store, r->k->tensors, KIT_TENSORS, &options, &err) !=
            DW_OK)
            continue;
        dw_publish_report report;
        for (unsigned n = 0; n < 3; n++) {
            kit_step(r->k, 10);
            if (kit_try(r->k, p, &report, &err) != DW_OK)
                break;
            r->n_good++;
        }
        dw_publisher_close(p);
    }
    return NULL;
}

TEST(test_racing_writers)
{
    kit kits[2];
    kit_make(&kits[0]);
    kit_make(&kits[1]);
    memcpy(kits[1].bytes, kits[0].bytes, kits[0].n_bytes); /* either may make version 0 */
    memcpy(kits[1].copies[0], kits[0].bytes, kits[0].n_bytes);
    store = kit_mem_store();
    racer racers[2] = {{&kits[0], store, 0}, {&kits[1], store, 0}};
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher_close(kit_open(&kits[0], store, &options));
    /* attempts of the second have other numbers */
    while (kits[1].n_copies < 200)
        kit_keep(&kits[1]);
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    for (size_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_true(racers[0].n_good + racers[1].n_good > 0);
    /* both share one history */
    while (kits[0].n_copies < 200)
        kit_keep(&kits[0]);
    for (size_t a = 200; a < kits[1].n_copies; a++) {
        size_t copy = kit_keep(&kits[0]);
        assert_int_equal(copy, a);
        memcpy(kits[0].copies[a], kits[1].copies[a], kits[0].n_bytes);
        kits[0].reported[a] = kits[1].reported[a];
    }
    kit_check_stream(&kits[0], store, NULL);
    dw_store_close(store);
    kit_free(&kits[0]);
    kit_free(&kits[1]);
}

/* ---- lost and late commits ---- */

/* The abandoned commit arrives before the next publish, in the middle of it, or after it,
 * when its number is taken. */
TEST(test_late_commits)
{
    for (unsigned when = 0; when < 3; when++)
        for (unsigned in_dir = 0; in_dir < 2; in_dir++) {
            begin();
            late_store late = {.inner = store};
            store = late_open(&late);
            dw_publish_options options = kit_plain_options(temp_dir);
            options.baseline_dir = in_dir ? temp_path("late-base") : NULL;
            dw_publisher *p = kit_open(&k, store, &options);
            advance(p, 10, 1);
            dw_error err = {0};
            dw_publish_report report;
            late.hold = true;
            kit_step(&k, 10);
            assert_fails(kit_try(&k, p, &report, &err), DW_UNAVAILABLE, &err);
            late.hold = false;
            assert_int_equal(dw_publisher_version(p), 1);
            kit_step(&k, 10);
            if (when == 0) {
                late_arrive(&late); /* found before the next one is made, so it is a
                                       separate version */
                kit_publish(&k, p, 3);
            } else if (when == 1) {
                /* two attempts in flight: the older arrives */
                late.hold = true;
                uint8_t *held = late.bytes;
                const size_t n_held = late.n_bytes;
                late.bytes = NULL;
                assert_fails(kit_try(&k, p, &report, &err), DW_UNAVAILABLE, &err);
                late.hold = false;
                free(late.bytes);
                late.bytes = held;
                late.n_bytes = n_held;
                late_arrive(&late);
                advance(p, 10, 3);
            } else {
                kit_publish(&k, p, 2);
                late_arrive(&late);
                advance(p, 10, 3);
            }
            dw_publisher_close(p);
            end_over(late.inner);
            remove_all("late-base");
        }
}

/* The commit exists, but all replies about it are lost for a while. */
TEST(test_lost_replies)
{
    for (uint64_t n = 1; n < 8; n++) {
        begin();
        dw_store *inner = store;
        kit_faults faults = {.kind = STORE_FAULT_LOST,
                             .part = "commits/00000000000000000001"};
        faults.n = n;
        store = kit_fault_store(inner, &faults);
        dw_publish_options options = kit_plain_options(temp_dir);
        dw_publisher *p = kit_open(&k, store, &options);
        faults.n_seen = 0;
        faults.on = true;
        unsigned n_failed = 0;
        for (unsigned i = 0; i < 5; i++) {
            dw_error err = {0};
            dw_publish_report report;
            kit_step(&k, 10);
            n_failed += kit_try(&k, p, &report, &err) != DW_OK;
        }
        assert_true(n_failed <= 2);
        dw_publisher_close(p);
        kit_check_stream(&k, inner, NULL);
        size_t log[KIT_COPIES];
        /* the attempt whose replies were lost became a version: nothing was lost */
        assert_true(kit_read_log(&k, inner, log) >= 4);
        end_over(inner);
    }
}

/* ---- the baseline in a directory ---- */

static void flip_bit(const char *path)
{
    size_t n;
    uint8_t *bytes = get_file(path, &n);
    bytes[n - 3] ^= 4;
    put_file(path, bytes, n);
    free(bytes);
}

TEST(test_baseline_dir)
{
    begin();
    dw_publish_options options = kit_plain_options(temp_dir);
    options.baseline_dir = temp_path("base");
    dw_error err = {0};
    dw_publisher *p = kit_open(&k, store, &options), *other;
    assert_fails(dw_publisher_open(&other, store, k.tensors, KIT_TENSORS, &options, &err),
                 DW_CONFLICT, &err); /* the directory is taken */
    assert_null(other);
    dw_publisher_close(p);
    for (uint64_t v = 1; v < 5; v++) {
        /* kept over restarts: nothing is read back */
        dw_store_counts before, after;
        dw_store_get_counts(store, &before);
        p = kit_open(&k, store, &options);
        dw_store_get_counts(store, &after);
        assert_true(after.bytes_read - before.bytes_read < 8000);
        advance(p, 10, v);
        dw_publisher_close(p);
    }
    /* another machine has published meanwhile: brought to the head */
    dw_publish_options in_memory = kit_plain_options(temp_dir);
    p = kit_open(&k, store, &in_memory);
    advance(p, 10, 5);
    dw_publisher_close(p);
    p = kit_open(&k, store, &options);
    advance(p, 10, 6);
    dw_publisher_close(p);
    /* a changed weight: the weights are restored from the stream */
    char path[256];
    snprintf(path, sizeof path, "%s/base/model.safetensors", temp_dir);
    flip_bit(path);
    p = kit_open(&k, store, &options);
    advance(p, 10, 7);
    dw_publisher_close(p);
    /* a damaged record of the version, and damaged weights */
    flip_bit(path);
    char record[256];
    snprintf(record, sizeof record, "%s/base/.deltawire/state.json", temp_dir);
    put_text(record, "{}");
    p = kit_open(&k, store, &options);
    advance(p, 10, 8);
    dw_publisher_close(p);
    /* without mark, record and control block they may be somebody's weights, so they stay
     */
    flip_bit(path);
    static const char *const known[] = {"state.json", "baseline", "control"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        snprintf(record, sizeof record, "%s/base/.deltawire/%s", temp_dir, known[i]);
        assert_int_equal(unlink(record), 0);
    }
    assert_fails(dw_publisher_open(&p, store, k.tensors, KIT_TENSORS, &options, &err),
                 DW_CONFLICT, &err);
    remove_all("base");
    p = kit_open(&k, store, &options);
    advance(p, 10, 9);
    dw_publisher_close(p);
    check_and_end();
}

/* ---- jobs and tickets ---- */

TEST(test_busy)
{
    static const struct {
        dw_when_busy when;
        unsigned max_wait_ms;
    } modes[] = {{DW_BUSY_WAIT, UINT_MAX}, {DW_BUSY_WAIT, 0}, {DW_BUSY_FOLD, UINT_MAX}};
    for (size_t mode = 0; mode < 3; mode++) {
        begin();
        dw_store *inner = store;
        kit_faults faults = {
            .kind = STORE_FAULT_DELAY, .operation = "put", .n = UINT64_MAX};
        const store_fault_plan plan = {kit_choose, &faults, 60};
        dw_error err = {0};
        assert_ok(fault_store_new(&store, inner, &plan, &err), &err);
        dw_publish_options options = kit_plain_options(temp_dir);
        options.when_busy = modes[mode].when;
        options.max_wait_ms = modes[mode].max_wait_ms;
        dw_publisher *p = kit_open(&k, store, &options);
        faults.on = true;
        uint64_t tickets[6];
        for (size_t i = 0; i < 6; i++) {
            char step[32];
            kit_step(&k, 10);
            snprintf(step, sizeof step, "%zu", kit_keep(&k));
            assert_ok(dw_publisher_publish(
                          p, &tickets[i],
                          &(dw_publish_note){.struct_bytes = sizeof(dw_publish_note),
                                             .step = step},
                          &err),
                      &err);
            if (tickets[i] == DW_TICKET_SKIPPED)
                continue;
            bool done = false;
            assert_ok(dw_publisher_captured(p, tickets[i], UINT_MAX, &done, &err), &err);
            assert_true(done);
        }
        unsigned n_good = 0, n_skipped = 0, n_folded = 0;
        uint64_t n_merged = 0;
        for (size_t i = 0; i < 6; i++) {
            if (tickets[i] == DW_TICKET_SKIPPED) {
                n_skipped++;
                continue;
            }
            dw_publish_report report;
            bool done = false;
            dw_status status =
                dw_publisher_wait(p, tickets[i], UINT_MAX, &done, &report, &err);
            assert_true(done);
            n_good += status == DW_OK;
            n_folded += status == DW_CANCELLED;
            assert_true(status == DW_OK || status == DW_CANCELLED);
            if (status == DW_OK) {
                k.reported[i + 1] = report.version + 1;
                n_merged += report.n_merged;
            }
        }
        assert_int_equal(n_good + n_skipped + n_folded, 6);
        if (mode == 0)
            assert_int_equal(n_good, 6);
        assert_true(n_skipped == 0 || mode == 1);
        assert_true(n_folded == 0 || mode == 2);
        /* those after the last version are merged into the next */
        assert_true(n_merged <= n_skipped + n_folded);
        faults.on = false;
        assert_ok(dw_publisher_drain(p, &err), &err);
        kit_publish(&k, p, n_good + 1); /* covers the skipped ones */
        dw_publisher_close(p);
        end_over(inner);
    }
}

/* The first put of a publish waits until the test releases it. */
typedef struct gate {
    _Atomic bool is_shut;
    sem_t reached, open;
} gate;

static store_fault pass_gate(void *context, uint64_t n, const char *operation,
                             const char *key)
{
    (void)n;
    (void)key;
    gate *g = context;
    if (strcmp(operation, "put") == 0 && g->is_shut) {
        g->is_shut = false;
        sem_post(&g->reached);
        sem_wait(&g->open);
    }
    return STORE_FAULT_NONE;
}

TEST(test_cancel)
{
    begin();
    dw_store *inner = store;
    gate g = {0};
    sem_init(&g.reached, 0, 0);
    sem_init(&g.open, 0, 0);
    dw_error err = {0};
    assert_ok(fault_store_new(&store, inner, &(store_fault_plan){pass_gate, &g, 0}, &err),
              &err);
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *p = kit_open(&k, store, &options);
    dw_publisher_cancel(p); /* nothing is in progress: the next one is not cancelled */
    kit_publish(&k, p, 1);
    assert_true(dw_publisher_drained(p, UINT_MAX)); /* the hint has been put */
    g.is_shut = true;
    kit_step(&k, 10);
    kit_keep(&k);
    uint64_t ticket;
    assert_ok(dw_publisher_publish(p, &ticket, NULL, &err), &err);
    sem_wait(&g.reached);
    assert_fails(dw_publisher_wait(p, ticket, 1, NULL, NULL, &err), DW_UNAVAILABLE, &err);
    dw_publisher_cancel(p);
    sem_post(&g.open);
    assert_fails(dw_publisher_wait(p, ticket, UINT_MAX, NULL, NULL, &err), DW_CANCELLED,
                 &err);
    assert_int_equal(dw_publisher_version(p), 1);
    kit_publish(&k, p, 2); /* covers the cancelled one */
    dw_publisher_close(p);
    sem_destroy(&g.reached);
    sem_destroy(&g.open);
    end_over(inner);
}

/* A publish that comes while a version is uploaded is covered by the next one. */
TEST(test_merged)
{
    begin();
    dw_store *inner = store;
    gate g = {0};
    sem_init(&g.reached, 0, 0);
    sem_init(&g.open, 0, 0);
    dw_error err = {0};
    assert_ok(fault_store_new(&store, inner, &(store_fault_plan){pass_gate, &g, 0}, &err),
              &err);
    dw_publish_options options = kit_plain_options(temp_dir);
    options.max_wait_ms = 0;
    dw_publisher *p = kit_open(&k, store, &options);
    assert_true(dw_publisher_drained(p, UINT_MAX));
    uint64_t first, second, third;
    dw_publish_report report;
    kit_step(&k, 10);
    g.is_shut = true;
    assert_ok(dw_publisher_publish(p, &first, NULL, &err), &err);
    sem_wait(&g.reached);
    assert_ok(dw_publisher_publish(p, &second, NULL, &err), &err);
    assert_int_equal(second, DW_TICKET_SKIPPED);
    sem_post(&g.open);
    assert_ok(dw_publisher_wait(p, first, UINT_MAX, NULL, &report, &err), &err);
    assert_int_equal(report.n_merged, 0);
    assert_true(dw_publisher_drained(p, UINT_MAX));
    assert_ok(dw_publisher_publish(p, &third, NULL, &err), &err);
    assert_ok(dw_publisher_wait(p, third, UINT_MAX, NULL, &report, &err), &err);
    assert_int_equal(report.n_merged, 1);
    dw_publisher_close(p);
    sem_destroy(&g.reached);
    sem_destroy(&g.open);
    dw_store_close(store);
    store = inner;
    end();
}

TEST(test_tickets)
{
    begin();
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *p = kit_open(&k, store, &options);
    dw_error err = {0};
    bool done = true;
    assert_fails(dw_publisher_wait(p, 0, 0, &done, NULL, &err), DW_INVALID, &err);
    assert_false(done);
    assert_fails(dw_publisher_wait(p, 1, 0, NULL, NULL, &err), DW_INVALID, &err);
    assert_fails(dw_publisher_captured(p, 7, 0, &done, &err), DW_INVALID, &err);
    uint64_t first, ticket = 0;
    dw_publish_report report;
    char step[32];
    snprintf(step, sizeof step, "%zu", kit_keep(&k));
    assert_ok(
        dw_publisher_publish(p, &first,
                             &(dw_publish_note){.struct_bytes = sizeof(dw_publish_note),
                                                .step = step,
                                                .notes = "notes"},
                             &err),
        &err);
    for (unsigned i = 0; i < 70; i++) {
        snprintf(step, sizeof step, "%zu", kit_keep(&k));
        assert_ok(
            dw_publisher_publish(
                p, &ticket,
                &(dw_publish_note){.struct_bytes = sizeof(dw_publish_note), .step = step},
                &err),
            &err);
        assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err), &err);
        assert_true(report.unchanged);
        assert_int_equal(report.n_objects, 0);
    }
    assert_ok(dw_publisher_wait(p, ticket - 63, 0, NULL, &report, &err), &err);
    assert_int_equal(report.version, ticket - 63);
    assert_fails(dw_publisher_wait(p, first, UINT_MAX, NULL, NULL, &err), DW_INVALID,
                 &err);
    dw_publisher_close(p);
    check_and_end();
}

/* Changes right after the weights were read are not in the version. */
TEST(test_captured)
{
    begin();
    dw_store *inner = store;
    kit_faults faults = {.kind = STORE_FAULT_DELAY, .n = UINT64_MAX};
    store = kit_fault_store(inner, &faults);
    dw_publish_options options = kit_plain_options(temp_dir);
    options.max_object_bytes = 1000; /* many objects, which take a while */
    dw_publisher *p = kit_open(&k, store, &options);
    faults.on = true;
    for (unsigned i = 0; i < 20; i++) {
        dw_error err = {0};
        uint64_t ticket;
        bool done;
        char step[32];
        kit_step(&k, i % 4 == 3 ? 1000 : 30);
        snprintf(step, sizeof step, "%zu", kit_keep(&k));
        assert_ok(
            dw_publisher_publish(
                p, &ticket,
                &(dw_publish_note){.struct_bytes = sizeof(dw_publish_note), .step = step},
                &err),
            &err);
        assert_ok(dw_publisher_captured(p, ticket, UINT_MAX, &done, &err), &err);
        assert_true(done);
        memset(k.bytes, (int)i, k.n_bytes);
        dw_publish_report report;
        assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err), &err);
        memcpy(k.bytes, k.copies[k.n_copies - 1], k.n_bytes);
    }
    dw_publisher_close(p);
    end_over(inner);
}

/* ---- first versions ---- */

TEST(test_first_base)
{
    begin();
    dw_error err = {0};
    char right[128], wrong[128];
    snprintf(right, sizeof right, "%s/right.safetensors", temp_dir);
    snprintf(wrong, sizeof wrong, "%s/wrong.safetensors", temp_dir);
    assert_ok(dw_checkpoint_write(right, k.tensors, KIT_TENSORS, NULL, &err), &err);
    dw_publish_options options = kit_plain_options(temp_dir);
    options.first = DW_FIRST_BASE;
    options.base_name = "the-base-model";
    dw_publisher *p = kit_open(&k, store, &options);
    assert_int_equal(kit_find(store, "objects/", "", NULL), 0);
    kit_step(&k, 10);
    assert_ok(dw_checkpoint_write(wrong, k.tensors, KIT_TENSORS, NULL, &err), &err);
    kit_publish(&k, p, 1);
    dw_publisher_close(p);
    /* continuing on another machine also needs the checkpoint */
    kit_step(&k, 10);
    assert_fails(dw_publisher_open(&p, store, k.tensors, KIT_TENSORS, &options, &err),
                 DW_NOT_FOUND, &err);
    assert_non_null(strstr(err.text, "the-base-model"));
    options.base = wrong;
    assert_fails(dw_publisher_open(&p, store, k.tensors, KIT_TENSORS, &options, &err),
                 DW_MISMATCH, &err);
    options.base = right;
    p = kit_open(&k, store, &options);
    kit_publish(&k, p, 2);
    dw_publisher_close(p);

    dw_tensor tensors[KIT_TENSORS];
    uint8_t *room = kit_room(&k, tensors);
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.tensors = tensors;
    follow.n_tensors = KIT_TENSORS;
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    assert_fails(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), DW_NOT_FOUND, &err);
    assert_non_null(strstr(err.text, "the-base-model"));
    dw_follower_close(f);
    follow.base = wrong;
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    assert_fails(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), DW_MISMATCH, &err);
    assert_int_equal(dw_follower_version(f), DW_NO_VERSION);
    dw_follower_close(f);
    follow.base = right;
    kit_check_stream(&k, store, &follow);
    /* memory that already holds it needs no file */
    follow.base = NULL;
    memcpy(room, k.copies[0], k.n_bytes);
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    assert_int_equal(dw_follower_version(f), 0);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), &err);
    assert_memory_equal(room, k.bytes, k.n_bytes);
    dw_follower_close(f);
    free(room);
    end();
}

/* The weights are the start of the fork: there is nothing to fetch. */
TEST(test_fork_of_same)
{
    begin();
    dw_store *source = kit_mem_store();
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher_close(kit_open(&k, source, &options));
    options.first = DW_FIRST_FORK;
    options.fork_store = source;
    dw_publisher *p = kit_open(&k, store, &options);
    advance(p, 10, 1);
    dw_publisher_close(p);
    check_and_end();
    dw_store_close(source);
}

TEST(test_first_fork)
{
    begin();
    dw_store *source = kit_mem_store();
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *p = kit_open(&k, source, &options);
    for (uint64_t v = 1; v < 4; v++) {
        advance(p, 10, v);
    }
    dw_publisher_close(p);
    /* version 0 of the fork is version 2 of the source */
    memcpy(k.copies[0], k.copies[2], k.n_bytes);
    memset(k.reported, 0, sizeof k.reported);
    options.first = DW_FIRST_FORK;
    dw_error err = {0};
    assert_fails(dw_publisher_open(&p, store, k.tensors, KIT_TENSORS, &options, &err),
                 DW_INVALID, &err); /* of what? */
    options.fork_store = source;
    options.fork_version = 9;
    assert_fails(dw_publisher_open(&p, store, k.tensors, KIT_TENSORS, &options, &err),
                 DW_NOT_FOUND, &err);
    options.fork_version = 2;
    options.anchor_every = 3;
    p = kit_open(&k, store, &options);
    assert_int_equal(kit_find(store, "objects/", "", NULL), 0);
    assert_int_equal(kit_find(source, "followers/", dw_publisher_stream_id(p), NULL), 1);
    kit_publish(&k, p, 1); /* the weights differ from that version: the first delta */
    advance(p, 10, 2);
    kit_check_stream(&k, store, NULL);
    assert_ok(dw_publisher_drain(p, &err), &err);
    dw_publisher_close(p);
    options.fork_store = NULL; /* opened by its URL */
    options.anchor_every = 0;
    p = kit_open(&k, store, &options);
    advance(p, 10, 3);
    dw_publisher_close(p);
    /* with its own anchor it no longer needs the source */
    options.fork_store = source;
    options.anchor_every = 3;
    p = kit_open(&k, store, &options);
    advance(p, 10, 4);
    assert_ok(dw_publisher_drain(p, &err), &err);
    dw_publisher_close(p);
    assert_int_equal(kit_find(store, "ways/", "-anchor", NULL), 1);
    assert_int_equal(kit_find(source, "followers/", "", NULL), 0);
    kit_check_stream(&k, store, NULL);

    /* into a directory, and back below the anchor */
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.into = temp_path("fork");
    dw_follower *f;
    size_t log[KIT_COPIES];
    kit_read_log(&k, store, log);
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    static const uint64_t goals[] = {0, 4, 1, 0, 2};
    for (size_t i = 0; i < 5; i++) {
        assert_ok(dw_follower_sync(f, goals[i], NULL, NULL, &err), &err);
        assert_int_equal(dw_follower_version(f), goals[i]);
        kit_check_follower(&k, f, log);
    }
    dw_follower_close(f);
    dw_store_close(source);
    end();
}

/* ---- shapes of versions ---- */

TEST(test_many_objects)
{
    static const uint64_t sizes[] = {1, 500, 2000, 5000};
    for (size_t i = 0; i < 4; i++) {
        begin();
        dw_publish_options options = kit_plain_options(temp_dir);
        options.max_object_bytes = options.max_anchor_bytes = sizes[i];
        options.anchor_every = 2;
        options.fold_every = 2;
        options.baseline_dir = i % 2 ? temp_path("many") : NULL;
        dw_publisher *p = kit_open(&k, store, &options);
        static const unsigned changes[] = {10, 1000, 0, 300};
        uint64_t most = 0;
        for (uint64_t v = 1; v < 9; v++) {
            dw_error err = {0};
            dw_publish_report report = {0};
            kit_step(&k, changes[v % 4]);
            assert_ok(kit_try(&k, p, &report, &err), &err);
            assert_ok(dw_publisher_drain(p, &err), &err);
            assert_int_equal(report.unchanged, v % 4 == 2);
            most = report.n_objects > most ? report.n_objects : most;
        }
        assert_true(most >= (sizes[i] < 1000 ? 4 : sizes[i] < 5000 ? 2 : 1));
        dw_publisher_close(p);
        p = kit_open(&k, store, &options);
        advance(p, 100, 9);
        dw_publisher_close(p);
        check_and_end();
        remove_all("many");
    }
}

/* A tensor that is larger than a group of the default size. */
TEST(test_large_tensor)
{
    enum { N = 20 << 20 };
    const uint64_t dims[] = {N};
    dw_error err = {0};
    uint16_t *live = calloc(N, 2), *room = calloc(N, 2);
    const dw_tensor tensor = {"t", DW_BF16, 1, dims, 2ull * N, live, 0, NULL};
    dw_tensor target = tensor;
    target.data = room;
    store = kit_mem_store();
    dw_publish_options options = kit_plain_options(temp_dir);
    options.max_object_bytes = 1 << 20;
    dw_publisher *p;
    assert_ok(dw_publisher_open(&p, store, &tensor, 1, &options, &err), &err);
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.tensors = &target;
    follow.n_tensors = 1;
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    for (uint64_t v = 1; v < 3; v++) {
        for (size_t i = 0; i < N; i += 1 + random_below(v == 1 ? 200 : 20000))
            live[i] = (uint16_t)random64();
        uint64_t ticket;
        dw_publish_report report;
        assert_ok(dw_publisher_publish(p, &ticket, NULL, &err), &err);
        assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err), &err);
        assert_ok(dw_follower_sync(f, v, NULL, NULL, &err), &err);
        assert_memory_equal(room, live, 2ull * N);
    }
    dw_follower_close(f);
    dw_publisher_close(p);
    dw_store_close(store);
    free(live);
    free(room);
}

/* ---- folds and anchors ---- */

TEST(test_folds_and_anchors)
{
    begin();
    dw_publish_options options = kit_plain_options(temp_dir);
    options.fold_every = 4;
    dw_error err = {0};
    dw_publisher *p = kit_open(&k, store, &options);
    for (uint64_t v = 1; v <= 19; v++) {
        advance(p, 5, v);
        assert_ok(dw_publisher_drain(p, &err), &err);
    }
    dw_publisher_close(p);
    assert_int_equal(kit_find(store, "ways/", "-from-", NULL), 4);
    dw_stream *stream;
    const dw_edge *shortcuts;
    size_t n_shortcuts;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_ok(dw_stream_shortcuts(stream, &shortcuts, &n_shortcuts, &err), &err);
    assert_int_equal(n_shortcuts, 4);
    static const uint64_t ends[][2] = {{0, 4}, {4, 8}, {8, 12}, {12, 16}};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(shortcuts[i].from, ends[i][0]);
        assert_int_equal(shortcuts[i].to, ends[i][1]);
    }
    dw_stream_close(stream);
    /* a late joiner: version 0, four folds, three commits */
    dw_tensor tensors[KIT_TENSORS];
    uint8_t *room = kit_room(&k, tensors);
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.tensors = tensors;
    follow.n_tensors = KIT_TENSORS;
    dw_follower *f;
    dw_follow_report report;
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, &report, &err), &err);
    assert_int_equal(report.n_steps, 8);
    assert_int_equal(report.n_objects, 8);
    assert_memory_equal(room, k.bytes, k.n_bytes);
    /* the same without the hint */
    assert_ok(dw_store_remove(store, "latest.json", &err), &err);
    assert_ok(dw_follower_sync(f, 3, NULL, &report, &err), &err);
    assert_ok(dw_follower_sync(f, 18, NULL, &report, &err), &err);
    assert_true(report.n_steps <= 7 && report.n_steps >= 1);
    dw_follower_close(f);
    kit_check_stream(&k, store, NULL);

    /* anchors by count */
    options.anchor_every = 3;
    p = kit_open(&k, store, &options);
    for (uint64_t v = 20; v <= 26; v++) {
        advance(p, 5, v);
        assert_ok(dw_publisher_drain(p, &err), &err);
    }
    dw_publisher_close(p);
    /* 20, for version 0 is more than three back; 23; 26, which supersedes 20 */
    assert_int_equal(kit_find(store, "ways/", "-anchor", NULL), 2);
    kit_check_stream(&k, store, NULL);
    memset(room, 0, k.n_bytes);
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, &report, &err), &err);
    assert_int_equal(report.n_steps, 1);
    dw_follower_close(f);
    free(room);
    dw_store_close(store);

    /* by factor: soon after the deltas have a tenth of the model's bytes */
    store = kit_mem_store();
    kit_free(&k);
    kit_make(&k);
    options = kit_plain_options(temp_dir);
    options.anchor_factor = 0.5;
    p = kit_open(&k, store, &options);
    uint64_t n_bytes = 0, v = 0;
    while (kit_find(store, "ways/", "-anchor", NULL) == 0) {
        dw_publish_report made;
        kit_step(&k, 20);
        assert_ok(kit_try(&k, p, &made, &err), &err);
        assert_ok(dw_publisher_drain(p, &err), &err);
        n_bytes += made.n_bytes;
        v = made.version;
        assert_true(v < 50);
    }
    assert_true(v > 1 || n_bytes > k.n_bytes / 2);
    assert_true(n_bytes > k.n_bytes / 3);
    dw_publisher_close(p);
    check_and_end();
}

/* ---- links ---- */

/* Makes NAME of the baseline a link. Both names then lead to the same file. */
static void make_link(const char *name, bool symbolic)
{
    char inner[64];
    snprintf(inner, sizeof inner, "linked/%s", name);
    const char *path = temp_path(inner), *others = temp_path("others");
    unlink(others);
    if (symbolic) {
        assert_int_equal(rename(path, others), 0);
        assert_int_equal(symlink(others, path), 0);
    } else {
        assert_int_equal(link(path, others), 0);
    }
}

/* Somebody replaces a file of the publisher with a link, while it runs or between two
 * runs. The target of the link is not changed. */
TEST(test_links)
{
    static const char *const names[] = {"model.safetensors", ".deltawire/control"};
    begin();
    dw_publish_options options = kit_plain_options(temp_dir);
    options.fold_every = 2;
    char dir[128];
    snprintf(dir, sizeof dir, "%s", temp_path("linked"));
    options.baseline_dir = dir;
    dw_error err = {0};
    uint64_t v = 0;
    dw_publisher *p = kit_open(&k, store, &options);
    for (unsigned round = 0; round < 8; round++) {
        const bool restarts = round & 1, symbolic = round & 2;
        for (unsigned i = 0; i < 3; i++) {
            advance(p, 5, ++v);
            assert_ok(dw_publisher_drain(p, &err), &err);
        }
        if (restarts)
            dw_publisher_close(p);
        make_link(names[round / 4], symbolic);
        size_t n_before, n_after;
        uint8_t *before = get_file(temp_path("others"), &n_before);
        if (restarts)
            p = kit_open(&k, store, &options);
        for (unsigned i = 0; i < 5; i++) {
            advance(p, 5, ++v);
            assert_ok(dw_publisher_drain(p, &err), &err);
        }
        uint8_t *after = get_file(temp_path("others"), &n_after);
        assert_int_equal(n_before, n_after);
        if (memcmp(before, after, n_before) != 0)
            fail_msg("round %u: %s was written through a link", round, names[round / 4]);
        free(before);
        free(after);
    }
    dw_publisher_close(p);
    check_and_end();
}

/* ---- options ---- */

TEST(test_bad_options)
{
    begin();
    dw_error err = {0};
    dw_publisher *p;
    for (unsigned i = 0; i < 4; i++) {
        dw_publish_options options = kit_plain_options(temp_dir);
        options.fold_every = i == 0 ? 1 : 0;
        options.n_ranks = i == 1 ? 2 : 1; /* without shards */
        options.rank = i == 2 ? 1 : 0;
        if (i == 3)
            k.tensors[1].data = NULL;
        assert_fails(dw_publisher_open(&p, store, k.tensors, KIT_TENSORS, &options, &err),
                     DW_INVALID, &err);
        assert_null(p);
    }
    end();
}

/* A first publish that the caller's own data makes impossible leaves nothing: the next
 * one may be of another model. */
TEST(test_bad_first_publish_leaves_nothing)
{
    char many[4098];
    memset(many, 'a', sizeof many - 1);
    many[sizeof many - 1] = '\0';
    const struct {
        const char *tensor, *step, *notes, *base;
    } cases[] = {
        {.tensor = "__metadata__"}, {.tensor = "a[1:2]"},
        {.tensor = many},           {.tensor = "\xff"},
        {.step = "\xff"},           {.step = many},
        {.notes = "\xff"},          {.notes = many},
        {.base = "\xff"},           {.base = many},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin();
        dw_publish_options options = kit_plain_options(temp_dir);
        options.first_step = cases[i].step;
        options.first_notes = cases[i].notes;
        options.base_name = cases[i].base;
        if (cases[i].base)
            options.first = DW_FIRST_BASE;
        dw_tensor tensors[KIT_TENSORS];
        memcpy(tensors, k.tensors, sizeof tensors);
        if (cases[i].tensor)
            tensors[1].name = cases[i].tensor;
        dw_error err = {0};
        dw_publisher *p;
        assert_fails(dw_publisher_open(&p, store, tensors, KIT_TENSORS, &options, &err),
                     DW_INVALID, &err);
        assert_int_equal(kit_find(store, "", "", NULL), 0);
        end();
    }
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
