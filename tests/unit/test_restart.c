/* A bit of an exponent flips in the baseline of a running publisher. The next version
 * does not decode, and followers stay at their version. The publisher notices it,
 * restarts the stream from the live weights, and followers cross over by themselves. */
/* labels: threads */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "publish/publisher.h"
#include "store/fault_store.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"

#define EVERY 4

static dw_publish_options options_with(const char *dir)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = 2;
    options.anchor_factor = 0;
    options.sweep_every = EVERY;
    options.max_object_bytes = 4096; /* many pieces */
    options.baseline_dir = dir;
    options.spool_dir = temp_dir;
    return options;
}

/* Flips a high bit of the exponent of one weight in the baseline. */
static void rot(dw_publisher *p)
{
    for (size_t t = 0; t < p->pieces.n_table; t++)
        if (strcmp(p->pieces.table[t].name, "layer.weight") == 0)
            ((uint8_t *)p->baseline.data[t])[2 * 50 + 1] ^= 0x40;
}

static dw_status publish(fixture *x, dw_publish_report *report)
{
    uint64_t ticket;
    *report = (dw_publish_report){0};
    model_change(&x->live, 30);
    dw_status status = dw_publisher_publish(x->publisher, &ticket, NULL, &x->err);
    if (status == DW_OK)
        status = dw_publisher_wait(x->publisher, ticket, UINT_MAX, NULL, report, &x->err);
    if (status == DW_OK) /* upkeep cannot follow a version that does not decode */
        (void)dw_publisher_drain(x->publisher, NULL);
    return status;
}

/* ---- followers ---- */

typedef struct followers {
    dw_follower *in_dir;
    dw_follower *in_memory;
    model memory;
    unsigned n_stuck; /* syncs that failed */
} followers;

static void followers_open(followers *c, fixture *x, const char *dir)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    *c = (followers){.memory = fixture_model()};
    options.into = dir;
    assert_fine(x, dw_follower_open(&c->in_dir, x->store, &options, &x->err));
    options.into = NULL;
    options.spool_dir = temp_dir;
    options.tensors = c->memory.tensors;
    options.n_tensors = c->memory.n;
    assert_fine(x, dw_follower_open(&c->in_memory, x->store, &options, &x->err));
}

static void followers_sync(followers *c)
{
    dw_error err;
    c->n_stuck += dw_follower_sync(c->in_dir, DW_NEWEST, NULL, NULL, &err) != DW_OK;
    c->n_stuck += dw_follower_sync(c->in_memory, DW_NEWEST, NULL, NULL, &err) != DW_OK;
}

static void assert_holds(dw_follower *f, const model *live)
{
    size_t n;
    const dw_tensor *found = dw_follower_tensors(f, &n);
    assert_int_equal(n, live->n);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            if (strcmp(found[i].name, live->tensors[k].name) == 0)
                assert_memory_equal(found[i].data, live->tensors[k].data,
                                    found[i].n_bytes);
}

/* The followers reach the live weights, without a failure from here on. */
static void followers_arrive(followers *c, fixture *x)
{
    const unsigned before = c->n_stuck;
    followers_sync(c);
    assert_int_equal(c->n_stuck, before);
    assert_holds(c->in_dir, &x->live);
    assert_holds(c->in_memory, &x->live);
}

static void followers_close(followers *c)
{
    dw_follower_close(c->in_dir);
    dw_follower_close(c->in_memory);
    model_free(&c->memory);
}

/* ---- a running publisher ---- */

/* Publishes until the stream has restarted. */
static void publish_on(fixture *x, followers *c, dw_publish_report *report)
{
    for (unsigned i = 0; i < EVERY + 2 && !report->restarted; i++) {
        assert_fine(x, publish(x, report));
        followers_sync(c);
    }
    assert_true(report->restarted);
    assert_false(report->unchanged);
}

static void goes_on(fixture *x, followers *c)
{
    dw_publish_report report;
    dw_verify_report found;
    followers_arrive(c, x);
    for (unsigned i = 0; i < 2 * EVERY; i++) {
        assert_fine(x, publish(x, &report));
        assert_false(report.restarted);
        assert_int_equal(report.suspect_from, 0);
        followers_arrive(c, x);
    }
    fixture_verify(x, x->store, &found);
    assert_int_equal(found.n_faults, 0);
}

static void recovers(const char *url, const char *baseline, const char *followed)
{
    fixture x;
    followers c;
    dw_publish_report report;
    const dw_publish_options options = options_with(baseline);
    fixture_open(&x, url, &options);
    followers_open(&c, &x, followed);
    for (unsigned i = 0; i < 3; i++) {
        assert_fine(&x, publish(&x, &report));
        followers_arrive(&c, &x);
    }
    const uint64_t good = report.version;
    rot(x.publisher);
    publish_on(&x, &c, &report);
    assert_true(c.n_stuck > 0);
    assert_in_range(report.suspect_from, 1, good + 1);
    dw_stream *s;
    dw_version_info info;
    assert_fine(&x, dw_stream_open(&s, x.store, NULL, &x.err));
    assert_fine(&x, dw_stream_version(s, report.version, &info, &x.err));
    assert_true(info.restart);
    assert_int_equal(info.suspect_from, report.suspect_from);
    dw_stream_close(s);
    goes_on(&x, &c);
    followers_close(&c);
    fixture_close(&x);
}

static void test_running(void **state)
{
    (void)state;
    recovers("mem:restart", NULL, temp_path("followed"));
    recovers("mem:restart-dir", temp_path("baseline"), temp_path("followed-dir"));
}

/* A newer version does not cancel a restart: its upload may take longer than a step. */
static void test_folding(void **state)
{
    (void)state;
    fixture x;
    dw_publish_report report;
    dw_publish_options options = options_with(NULL);
    options.when_busy = DW_BUSY_FOLD;
    fixture_open(&x, "mem:restart-fold", &options);
    rot(x.publisher);
    for (unsigned i = 0; i < EVERY + 1 && x.publisher->baseline.state != DW_BASE_BROKEN;
         i++)
        assert_fine(&x, publish(&x, &report));
    assert_int_equal(x.publisher->baseline.state, DW_BASE_BROKEN);
    uint64_t first, second;
    assert_fine(&x, dw_publisher_publish(x.publisher, &first, NULL, &x.err));
    assert_fine(&x, dw_publisher_captured(x.publisher, first, UINT_MAX, NULL, &x.err));
    assert_fine(&x, dw_publisher_publish(x.publisher, &second, NULL, &x.err));
    assert_fine(&x,
                dw_publisher_wait(x.publisher, first, UINT_MAX, NULL, &report, &x.err));
    assert_true(report.restarted);
    assert_fine(&x,
                dw_publisher_wait(x.publisher, second, UINT_MAX, NULL, &report, &x.err));
    assert_false(report.restarted);
    fixture_close(&x);
}

/* ---- killed during the restart ---- */

typedef enum moment { WHEN_NOTICED, BEFORE_ANCHOR_RECORD } moment;

/* The record of the anchor is about to be written, after the commit of the restart. */
static store_fault die_at_anchor(void *context, uint64_t n, const char *operation,
                                 const char *key)
{
    (void)context;
    (void)n;
    if (strcmp(operation, "put") == 0 && strncmp(key, "ways/", 5) == 0 &&
        strstr(key, "-anchor"))
        raise(SIGKILL);
    return STORE_FAULT_NONE;
}

/* In its own process: a publisher whose baseline is damaged, killed at MOMENT. */
static _Noreturn void publish_and_die(const char *url, const char *dir, moment when)
{
    fixture x;
    dw_store *plain;
    dw_publish_report report;
    const store_fault_plan plan = {die_at_anchor, NULL, 0};
    dw_publish_options options = options_with(dir);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    options.fold_every = 0;
    fixture_open(&x, url, &options);
    for (unsigned i = 0; i < 3; i++)
        assert_fine(&x, publish(&x, &report));
    if (when == BEFORE_ANCHOR_RECORD) {
        plain = x.store;
        assert_fine(&x, fault_store_new(&x.store, plain, &plan, &x.err));
        x.publisher->store = x.publisher->stream->store = x.store;
    }
    rot(x.publisher);
    for (unsigned i = 0; i < EVERY + 2; i++) {
        assert_fine(&x, publish(&x, &report));
        if (when == WHEN_NOTICED && x.publisher->baseline.state != DW_BASE_READY)
            raise(SIGKILL);
    }
    _exit(0); /* it was not noticed */
}

static void killed_and_opened(const char *url, const char *dir, const char *followed,
                              moment when)
{
    fixture x = {.live = fixture_model()};
    followers c;
    int ended;
    dw_publish_report report;
    const dw_publish_options options = options_with(dir);
    const pid_t child = fork();
    if (child == 0)
        publish_and_die(url, dir, when);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);

    assert_fine(&x, dw_store_open(&x.store, url, NULL, &x.err));
    followers_open(&c, &x, followed);
    followers_sync(&c);
    assert_true(c.n_stuck > 0);
    assert_fine(&x, dw_publisher_open(&x.publisher, x.store, x.live.tensors, x.live.n,
                                      &options, &x.err));
    assert_fine(&x, publish(&x, &report));
    assert_true(report.restarted);
    assert_in_range(report.suspect_from, 1, 4); /* version 4 does not decode */
    goes_on(&x, &c);
    followers_close(&c);
    fixture_close(&x);
}

static void test_killed(void **state)
{
    (void)state;
    for (moment when = WHEN_NOTICED; when <= BEFORE_ANCHOR_RECORD; when++)
        for (unsigned in_dir = 0; in_dir < 2; in_dir++) {
            char url[64], dir[64], followed[64];
            const unsigned number = 2 * when + in_dir;
            snprintf(url, sizeof url, "file://%.40s/s%u", temp_dir, number);
            snprintf(dir, sizeof dir, "%.40s/b%u", temp_dir, number);
            snprintf(followed, sizeof followed, "%.40s/f%u", temp_dir, number);
            killed_and_opened(url, in_dir ? dir : NULL, followed, when);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed), /* forks, so it comes before there are threads */
        cmocka_unit_test(test_running),
        cmocka_unit_test(test_folding),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
