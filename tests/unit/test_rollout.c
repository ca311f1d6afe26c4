/* Rollout hosts: engines fail at every call in every way, and never run on a mix of two
 * versions. */
/* labels: threads */
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "unit/suite.h"

#include "base/clock.h"
#include "deltawire/checkpoint.h"
#include "engine/find_patch.h"
#include "engine/rollout.h"
#include "engine/engine_int.h"
#include "engine/rollout_int.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

#define LAST      4 /* version of the stream */
#define MAX_CALLS 400

typedef enum fault {
    NONE,
    SILENT,      /* does nothing and does not answer */
    ANSWER_LOST, /* does it, but the answer is lost */
    DIES,        /* and comes back as another process, which loads the directory */
    DIES_AFTER,  /* the same, after it has done it */
    REFUSES,
    HALF_DONE, /* this update and the next ones leave some weights new, some old */
} fault;

/* An engine that reads the directory in place, or keeps weights of its own. */
typedef struct toy {
    const char *dir;   /* from which it starts: the host's, or its link to a copy */
    char at[PATH_MAX]; /* the directory that it reads */
    bool own_copy;
    bool running;
    uint64_t version;       /* that it reports; DW_NO_VERSION after a start */
    dw_digest holds;        /* own copy: digest of its weights; 1: a mix */
    bool is_down;           /* until the next probe */
    const dw_digest *truth; /* [LAST + 1] */
    unsigned n_calls;
    unsigned fail_at; /* number of the call; from 1 */
    fault fault;
    unsigned n_half_done;
    unsigned n_updates, n_patches;
    _Atomic unsigned n_paused, n_resumed;
    _Atomic bool frozen;   /* it answers nothing */
    _Atomic bool hangs;    /* when it is asked to pause */
    _Atomic bool is_asked; /* it was asked to pause, and hangs */
    bool wakes;            /* after the hang: it pauses then */
    struct toy *other;     /* the first hang waits for its resume */
    bool is_alone;         /* the other one was not resumed */
    struct toy *faster;    /* its updates end only after this one's resume */
} toy;

static dw_digest digest_dir(const char *dir)
{
    dw_error err = {0};
    dw_checkpoint *ckpt;
    dw_digest digests[KIT_TENSORS], state;
    size_t n;
    assert_ok(dw_checkpoint_open(&ckpt, dir, DW_CHECKPOINT_READ, &err), &err);
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    assert_int_equal(n, KIT_TENSORS);
    assert_ok(dw_digest_tensors(digests, &state, tensors, n, 1, NULL, &err), &err);
    dw_checkpoint_close(ckpt);
    return state;
}

/* The digest of the weights that it serves from. */
static dw_digest look(const toy *t)
{
    return t->own_copy ? t->holds : digest_dir(t->at);
}

/* While it runs, its weights are one version's: of the version it names, if it names
 * one. */
static void assert_whole(const toy *t)
{
    bool known = false;
    if (!t->running || t->is_down)
        return;
    const dw_digest state = look(t);
    for (uint64_t v = 0; v <= LAST; v++)
        known = known || (t->truth[v] == state &&
                          (t->version == DW_NO_VERSION || t->version == v));
    assert_true(known);
}

static void start(toy *t)
{
    t->running = true;
    t->is_down = false;
    t->version = DW_NO_VERSION;
    assert_non_null(realpath(t->dir, t->at)); /* a link is followed once */
    t->holds = digest_dir(t->at);
}

static dw_status say(dw_error *err, dw_status code)
{
    *err = (dw_error){.code = code, .where = "toy", .text = "as planned"};
    return code;
}

/* The fault of this call. */
static fault draw(toy *t)
{
    assert_whole(t);
    return ++t->n_calls == t->fail_at ? t->fault : NONE;
}

static dw_status finish(toy *t, fault f, dw_error *err)
{
    if (f == DIES_AFTER)
        t->is_down = true;
    return f == ANSWER_LOST  ? say(err, DW_UNAVAILABLE)
           : f == DIES_AFTER ? say(err, DW_NOT_FOUND)
                             : DW_OK;
}

/* True if the call ends here. */
static bool fails_first(toy *t, fault f, dw_status *status, dw_error *err)
{
    const uint64_t start = dw_clock_ms();
    while (t->frozen) {
        dw_sleep_ms(10);
        if (dw_clock_ms() - start > DW_PAUSE_GRACE_MS) { /* its time limit */
            *status = say(err, DW_UNAVAILABLE);
            return true;
        }
    }
    if (f == DIES)
        t->is_down = true;
    if (t->is_down)
        *status = say(err, DW_NOT_FOUND);
    else if (f == SILENT)
        *status = say(err, DW_UNAVAILABLE);
    else if (f == REFUSES)
        *status = say(err, DW_CONFLICT);
    else
        return false;
    return true;
}

static dw_status toy_probe(void *self, dw_engine_info *out, dw_error *err)
{
    toy *t = self;
    dw_status status;
    const bool was_down = t->is_down;
    if (fails_first(t, draw(t), &status, err)) {
        if (was_down)
            start(t); /* it is back at the next call */
        return status;
    }
    out->version = t->version;
    return DW_OK;
}

/* Hangs until the other engine, which was paused meanwhile, runs again, or until HANGS is
 * cleared. */
static dw_status hang(toy *t, dw_error *err)
{
    const toy *other = t->other;
    t->other = NULL;
    const uint64_t start = dw_clock_ms();
    for (unsigned i = 0; i < 30000 && t->hangs; i++) {
        if (other && other->n_resumed > 0 && other->n_resumed == other->n_paused &&
            dw_clock_ms() - start > DW_PAUSE_GRACE_MS)
            return say(err, DW_UNAVAILABLE);
        t->is_asked = true;
        dw_sleep_ms(10);
    }
    t->is_alone = other != NULL;
    if (!t->wakes)
        return say(err, DW_UNAVAILABLE);
    t->running = false;
    return DW_OK;
}

static dw_status toy_pause(void *self, const dw_engine_update *update, dw_error *err)
{
    toy *t = self;
    dw_status status;
    fault f = draw(t);
    (void)update;
    if (t->hangs)
        return hang(t, err);
    t->n_paused++;
    if (fails_first(t, f, &status, err))
        return status;
    t->running = false;
    return finish(t, f, err);
}

static dw_status toy_apply(void *self, const dw_engine_update *update, bool *whole,
                           dw_error *err)
{
    toy *t = self;
    dw_status status;
    fault f = draw(t);
    if (fails_first(t, f, &status, err)) {
        *whole = f == REFUSES;
        return status;
    }
    assert_false(t->running);
    t->n_updates++;
    if (update->patch) {
        t->n_patches++;
        assert_int_equal(update->from, t->version);
        assert_int_equal(access(update->patch, R_OK), 0);
    }
    assert_true(update->dir[0] == '/');
    assert_true(digest_dir(update->dir) == t->truth[update->version]);
    assert_true(update->state == t->truth[update->version]);
    /* more often than one call retries */
    if (t->fault == HALF_DONE && t->n_calls >= t->fail_at && t->n_half_done < 5) {
        t->n_half_done++;
        t->holds = 1;
        return say(err, DW_CONFLICT);
    }
    for (unsigned i = 0; t->faster && t->faster->n_resumed < t->faster->n_paused; i++) {
        assert_true(i < 30000); /* it waits for the slower one */
        dw_sleep_ms(10);
    }
    t->holds = update->state;
    snprintf(t->at, sizeof t->at, "%s", update->dir);
    t->version = update->version;
    return finish(t, f, err);
}

static dw_status toy_resume(void *self, const dw_engine_update *update, dw_error *err)
{
    toy *t = self;
    dw_status status;
    fault f = draw(t);
    (void)update;
    if (fails_first(t, f, &status, err))
        return status;
    t->running = true;
    t->n_resumed++;
    assert_whole(t);
    return finish(t, f, err);
}

static const dw_engine_driver toy_driver = {"toy",     toy_probe,  toy_pause,
                                            toy_apply, toy_resume, NULL};

/* ---- a stream, a host, engines ---- */

typedef struct bed {
    kit k;
    dw_store *store;
    dw_digest truth[LAST + 1];
} bed;

static void bed_make(bed *b)
{
    dw_error err = {0};
    dw_publish_options options = kit_plain_options(temp_dir);
    kit_make(&b->k);
    b->store = kit_mem_store();
    dw_publisher *p = kit_open(&b->k, b->store, &options);
    for (uint64_t v = 1; v <= LAST; v++) {
        kit_step(&b->k, 200);
        kit_publish(&b->k, p, v);
        assert_ok(dw_publisher_drain(p, &err), &err);
    }
    dw_publisher_close(p);
    dw_stream *stream;
    assert_ok(dw_stream_open(&stream, b->store, NULL, &err), &err);
    for (uint64_t v = 0; v <= LAST; v++) {
        dw_version_info info;
        assert_ok(dw_stream_version(stream, v, &info, &err), &err);
        b->truth[v] = info.state;
    }
    dw_stream_close(stream);
}

static void bed_free(bed *b)
{
    dw_store_close(b->store);
    kit_free(&b->k);
}

static dw_follow_options follow_into(const char *dir)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = dir;
    options.n_threads = 1;
    return options;
}

/* A name that was not used before; to be freed. */
static char *new_dir(void)
{
    static unsigned n;
    char name[32];
    snprintf(name, sizeof name, "host-%u", n++);
    return strdup(temp_path(name));
}

/* Makes a directory at VERSION. */
static void pull(const bed *b, const char *dir, uint64_t version)
{
    dw_error err = {0};
    dw_follow_options options = follow_into(dir);
    dw_follower *f;
    assert_ok(dw_follower_open(&f, b->store, &options, &err), &err);
    assert_ok(dw_follower_sync(f, version, NULL, NULL, &err), &err);
    dw_follower_close(f);
}

static void pull_first(const bed *b, const char *dir)
{
    pull(b, dir, 0);
}

static void watch_engine(void *context, size_t i, const dw_engine_status *status)
{
    (void)i;
    assert_true(status->state != DW_ENGINE_SERVING || status->error.code == DW_OK);
    ++*(unsigned *)context;
}

/* Syncs to GOAL until all engines serve it, and retries whatever fails. */
static void follow_to(dw_rollout *r, uint64_t goal)
{
    dw_error err = {0};
    for (unsigned i = 0; i < 50; i++) {
        for (size_t e = 0; e < r->n_engines; e++)
            r->engines[e].try_at = 0; /* tests do not wait */
        if (dw_rollout_sync(r, goal, NULL, &err) == DW_OK &&
            dw_rollout_check(r, &err) == DW_OK && dw_rollout_is_serving(r))
            return;
    }
    fail_msg("it never gets to version %u", (unsigned)goal);
}

/* A host at version 0 with engines that read its directory. */
typedef struct host {
    char *dir;
    size_t n;
    toy toys[2], *t; /* the first */
    dw_engine *engines[2];
    dw_follow_options follow;
    dw_rollout_options options;
    dw_rollout *r;
} host;

static void host_make(host *h, const bed *b, size_t n, bool own_copy)
{
    dw_error err = {0};
    *h = (host){.dir = new_dir(), .n = n, .t = h->toys};
    pull_first(b, h->dir);
    for (size_t i = 0; i < n; i++) {
        h->toys[i] = (toy){.dir = h->dir, .own_copy = own_copy, .truth = b->truth};
        start(&h->toys[i]);
        assert_ok(dw_engine_new(&h->engines[i], &toy_driver, &h->toys[i],
                                i ? "here" : NULL, NULL, &err),
                  &err);
    }
    h->follow = follow_into(h->dir);
    h->options.engines = h->engines;
    h->options.n_engines = n;
}

static dw_rollout *host_open(host *h, const bed *b)
{
    dw_error err = {0};
    assert_ok(dw_rollout_open(&h->r, b->store, &h->follow, &h->options, &err), &err);
    return h->r;
}

/* The same, and its engines serve version 1. */
static dw_rollout *host_begin(host *h, const bed *b)
{
    follow_to(host_open(h, b), 1);
    return h->r;
}

/* Engines that say so get versions that they do not read in place. */
static void host_set_own_weights(host *h)
{
    for (size_t i = 0; i < h->n; i++)
        h->engines[i]->own_weights = true;
}

static void assert_at_last(const host *h, const bed *b)
{
    for (size_t i = 0; i < h->n; i++) {
        assert_true(h->toys[i].running);
        assert_int_equal(h->toys[i].version, LAST);
        assert_true(look(&h->toys[i]) == b->truth[LAST]);
    }
}

static void host_free(host *h)
{
    dw_rollout_close(h->r);
    for (size_t i = 0; i < h->n; i++)
        dw_engine_close(h->engines[i]);
    free(h->dir);
}

/* One run with a fault at call FAIL_AT; false if there were fewer calls. */
static bool run_with(const bed *b, unsigned fail_at, fault f, bool own_copy,
                     size_t n_toys, bool kill_host)
{
    host h;
    unsigned n_news = 0;
    host_make(&h, b, n_toys, own_copy);
    h.t->fail_at = fail_at;
    for (size_t i = 0; i < n_toys; i++)
        h.toys[i].fault = f;
    h.options.n_tries = 2;
    h.options.watch.engine = watch_engine;
    h.options.watch.context = &n_news;
    follow_to(host_begin(&h, b), 2);
    if (kill_host) {
        dw_rollout_close(h.r);
        host_open(&h, b);
    }
    follow_to(h.r, LAST);
    assert_true(n_news > 0);
    assert_at_last(&h, b);
    assert_true(digest_dir(h.dir) == b->truth[LAST]);
    const bool came = fail_at <= h.t->n_calls;
    host_free(&h);
    return came;
}

TEST(test_every_call_fails)
{
    bed b;
    bed_make(&b);
    for (fault f = SILENT; f <= HALF_DONE; f++)
        for (int own_copy = 0; own_copy < 2; own_copy++) {
            unsigned n = 1;
            while (run_with(&b, n, f, own_copy, 1, n % 2))
                assert_true(++n < MAX_CALLS);
            assert_true(n > 12); /* probes, pauses, updates, resumes of three versions */
        }
    bed_free(&b);
}

TEST(test_two_engines)
{
    bed b;
    bed_make(&b);
    for (fault f = NONE; f <= HALF_DONE; f++)
        for (unsigned n = 1; n < 12; n++)
            run_with(&b, n, f, n % 2, 2, false);
    bed_free(&b);
}

/* Without faults each version is a patch, except at the first contact. */
TEST(test_patches)
{
    bed b;
    dw_error err = {0};
    bed_make(&b);
    for (int starts_late = 0; starts_late < 2; starts_late++) { /* after the host */
        host h;
        host_make(&h, &b, 1, false);
        dw_rollout *r = host_open(&h, &b);
        if (starts_late) {
            h.t->is_down = true;
            assert_ok(dw_rollout_check(r, &err), &err);
            assert_int_equal(dw_rollout_engine(r, 0)->state, DW_ENGINE_AWAY);
            assert_false(h.t->is_down);
        }
        assert_ok(dw_rollout_check(r, &err), &err);
        assert_int_equal(h.t->n_updates, 1);
        for (uint64_t v = 1; v <= LAST; v++)
            assert_ok(dw_rollout_sync(r, v, NULL, &err), &err);
        assert_true(dw_rollout_is_serving(r));
        assert_int_equal(h.t->n_patches, LAST);
        assert_int_equal(h.t->n_updates, LAST + 1);
        assert_int_equal(dw_rollout_engine(r, 0)->version, LAST);
        host_free(&h);
    }
    bed_free(&b);
}

/* The engines' calls so far when a phase is announced. */
typedef struct phase_log {
    const host *h;
    unsigned n_announced[DW_PHASE_FINISH + 1];
} phase_log;

static void watch_phase(void *context, dw_phase phase, uint64_t version)
{
    phase_log *log = context;
    const uint64_t goal = 2;
    if (phase != DW_PHASE_IDLE)
        assert_int_equal(version, goal);
    log->n_announced[phase]++;
    for (size_t i = 0; i < log->h->n; i++) {
        const toy *t = &log->h->toys[i];
        const bool is_paused = phase == DW_PHASE_APPLY || phase == DW_PHASE_RESUME;
        assert_true(t->running == !is_paused);
        assert_int_equal(t->n_resumed, phase < DW_PHASE_FINISH && phase > 0 ? 0 : 1);
        if (phase == DW_PHASE_FETCH || phase == DW_PHASE_PAUSE)
            assert_int_equal(t->n_paused, 0);
        if (phase <= DW_PHASE_APPLY && phase > 0)
            assert_int_equal(t->version, goal - 1);
    }
    if (phase <= DW_PHASE_APPLY && phase > 0)
        assert_true(digest_dir(log->h->dir) == log->h->t->truth[goal - 1]);
}

/* Each phase is announced once, before any engine sees it. */
TEST(test_phases)
{
    bed b;
    dw_error err = {0};
    bed_make(&b);
    for (size_t n_toys = 1; n_toys <= 2; n_toys++) {
        host h;
        phase_log log = {&h, {0}};
        host_make(&h, &b, n_toys, true);
        h.options.watch.context = &log;
        dw_rollout *r = host_begin(&h, &b);
        for (size_t i = 0; i < n_toys; i++)
            h.toys[i].n_paused = h.toys[i].n_resumed = 0;
        r->options.watch.phase = watch_phase;
        assert_ok(dw_rollout_sync(r, 2, NULL, &err), &err);
        r->options.watch.phase = NULL;
        for (dw_phase phase = DW_PHASE_IDLE; phase <= DW_PHASE_FINISH; phase++)
            assert_int_equal(log.n_announced[phase], 1);
        assert_true(dw_rollout_is_serving(r));
        host_free(&h);
    }
    bed_free(&b);
}

/* An engine that has taken an update over is resumed while another one is still updating.
 */
TEST(test_slow_update)
{
    bed b;
    host h;
    dw_error err = {0};
    bed_make(&b);
    host_make(&h, &b, 2, false);
    dw_rollout *r = host_begin(&h, &b);
    h.toys[1].n_paused = h.toys[1].n_resumed = 0;
    h.t->faster = &h.toys[1];
    assert_ok(dw_rollout_sync(r, 2, NULL, &err), &err);
    assert_true(dw_rollout_is_serving(r));
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(h.toys[i].version, 2);
    host_free(&h);
    bed_free(&b);
}

/* A sync waits for an engine that is away, or leaves it out after a while. */
TEST(test_away)
{
    bed b;
    dw_error err = {0};
    bed_make(&b);
    for (int patient = 0; patient < 2; patient++) {
        host h;
        host_make(&h, &b, 1, false);
        h.options.patience_ms = patient ? 0 : 1;
        dw_rollout *r = host_begin(&h, &b);
        h.t->fail_at =
            h.t->n_calls + 1; /* the next probe; it is down for the pause too */
        h.t->fault = DIES;
        dw_status status = dw_rollout_sync(r, 2, NULL, &err);
        if (!patient && status != DW_OK) {
            dw_sleep_ms(2);
            h.t->is_down = true; /* still */
            status = dw_rollout_sync(r, 2, NULL, &err);
        }
        if (patient)
            assert_fails(status, DW_UNAVAILABLE, &err);
        else
            assert_ok(status, &err);
        assert_true(digest_dir(h.dir) == b.truth[patient ? 1 : 2]);
        assert_false(dw_rollout_is_serving(r));
        follow_to(r, LAST);
        assert_int_equal(h.t->version, LAST);
        host_free(&h);
    }
    bed_free(&b);
}

/* The resume of one engine is lost while the other one is away and a step is prepared.
 * The step cannot go on, but the engine that is there serves again. */
TEST(test_resume_lost)
{
    bed b;
    dw_error err = {0};
    bed_make(&b);
    for (int i_case = 0; i_case < 4; i_case++) {
        const bool own_copy = i_case & 1, by_check = i_case & 2;
        host h;
        host_make(&h, &b, 2, own_copy);
        dw_rollout *r = host_begin(&h, &b);
        h.toys[0].fail_at = h.toys[0].n_calls + 3; /* probe, pause, resume */
        h.toys[0].fault = SILENT;
        h.toys[1].fail_at = h.toys[1].n_calls + 2; /* probe, pause */
        h.toys[1].fault = DIES;
        assert_fails(dw_rollout_sync(r, 2, NULL, &err), DW_UNAVAILABLE, &err);
        assert_false(h.toys[0].running);
        h.toys[1].is_down = true; /* still */
        if (by_check)
            assert_ok(dw_rollout_check(r, &err), &err);
        else
            assert_fails(dw_rollout_sync(r, 2, NULL, &err), DW_UNAVAILABLE, &err);
        assert_true(h.toys[0].running);
        assert_int_equal(dw_rollout_engine(r, 0)->state, DW_ENGINE_BEHIND);
        assert_true(digest_dir(h.dir) == b.truth[1]);
        follow_to(r, LAST);
        host_free(&h);
    }
    bed_free(&b);
}

/* Like follow_to, with time between the tries. */
static void follow_patiently(dw_rollout *r, uint64_t goal)
{
    dw_error err = {0};
    for (unsigned i = 0; i < 30000; i++) {
        for (size_t e = 0; e < r->n_engines; e++)
            r->engines[e].try_at = 0;
        if (dw_rollout_sync(r, goal, NULL, &err) == DW_OK &&
            dw_rollout_check(r, &err) == DW_OK && dw_rollout_is_serving(r))
            return;
        dw_sleep_ms(10);
    }
    fail_msg("it never gets to version %u", (unsigned)goal);
}

/* The first of two engines hangs in a pause. The other one is not paused because of it.
 * If the first does not read the directory, the other gets its versions meanwhile;
 * otherwise it keeps the one it has. */
TEST(test_hang)
{
    bed b;
    dw_error err = {0};
    bed_make(&b);
    for (int own_copy = 0; own_copy < 2; own_copy++) {
        host h;
        host_make(&h, &b, 2, own_copy);
        toy *const toys = h.toys;
        if (own_copy)
            host_set_own_weights(&h);
        h.options.patience_ms = own_copy ? DW_PAUSE_GRACE_MS : 0;
        dw_rollout *r = host_begin(&h, &b);
        toys[0].other = &toys[1];
        toys[0].hangs = true;
        toys[1].n_paused = toys[1].n_resumed = 0;
        const dw_status expected = own_copy ? DW_OK : DW_UNAVAILABLE;
        assert_int_equal(dw_rollout_sync(r, 2, NULL, &err), expected);
        assert_false(toys[0].is_alone);
        assert_true(toys[0].hangs && toys[1].running);
        assert_true(toys[1].n_resumed > 0);
        assert_int_equal(toys[1].version, own_copy ? 2 : 1);
        assert_int_equal(dw_rollout_engine(r, 0)->state, DW_ENGINE_AWAY);

        r->engines[0].try_at = 0; /* it is asked again, without a wait */
        const unsigned n_paused = toys[1].n_paused;
        for (uint64_t v = own_copy ? 3 : 2; v <= 3; v++)
            assert_int_equal(dw_rollout_sync(r, v, NULL, &err), expected);
        assert_ok(dw_rollout_check(r, &err), &err);
        assert_true(r->engines[0].retry.running);
        assert_int_equal(toys[1].version, own_copy ? 3 : 1);
        assert_int_equal(toys[1].n_paused - n_paused, own_copy ? 1 : 0);
        assert_int_equal(toys[0].version, 1);
        assert_true(digest_dir(h.dir) == b.truth[own_copy ? 3 : 1]);

        toys[0].hangs = false;
        follow_patiently(r, LAST);
        assert_at_last(&h, &b);
        host_free(&h);
    }
    bed_free(&b);
}

/* An engine that reads the directory in place hangs for longer than patience_ms, and the
 * weights change. When it pauses at last, it may have a mix of two versions: it is not
 * resumed, not even by the close. */
TEST(test_hang_in_place)
{
    bed b;
    dw_error err = {0};
    bed_make(&b);
    for (int ends = 0; ends < 2; ends++) {
        host h;
        host_make(&h, &b, 1, false);
        h.options.patience_ms = 1;
        dw_rollout *r = host_begin(&h, &b);
        h.t->hangs = h.t->wakes = true;
        r->engines[0].state = DW_HOST_HUNG;
        r->engines[0].answered = true;
        r->engines[0].engine->away_at = 1;
        assert_ok(dw_rollout_check(r, &err), &err);
        assert_true(r->engines[0].retry.running);
        while (!h.t->is_asked)
            dw_sleep_ms(1);
        assert_ok(dw_rollout_sync(r, 2, NULL, &err), &err);
        assert_true(digest_dir(h.dir) == b.truth[2]);
        assert_int_equal(h.t->version, 1);

        const unsigned n_resumed = h.t->n_resumed;
        h.t->hangs = false;
        while (!r->engines[0].retry.done)
            dw_sleep_ms(1);
        assert_false(h.t->running);
        if (!ends) {
            follow_patiently(r, LAST);
            assert_at_last(&h, &b);
        }
        dw_rollout_close(r);
        h.r = NULL;
        if (ends)
            assert_int_equal(h.t->n_resumed, n_resumed);
        assert_true(h.t->running == !ends);
        host_free(&h);
    }
    bed_free(&b);
}

/* The first of two engines freezes. The other one gets its versions when the patience is
 * over, and then no version waits for the frozen one: it is asked apart from the others.
 * When it wakes, it loads the newest version whole. */
TEST(test_frozen)
{
    bed b;
    host h;
    dw_error err = {0};
    bed_make(&b);
    host_make(&h, &b, 2, true);
    toy *const toys = h.toys;
    host_set_own_weights(&h);
    dw_rollout *r = host_begin(&h, &b);
    const unsigned n_patches = toys[0].n_patches;
    toys[0].frozen = true;
    unsigned n_tries = 0;
    dw_status status;
    while ((status = dw_rollout_sync(r, 2, NULL, &err)) != DW_OK) {
        assert_fails(status, DW_UNAVAILABLE, &err);
        assert_true(toys[1].running);
        assert_true(++n_tries < 100);
    }
    assert_true(n_tries > 0); /* the default is more than one request */
    assert_int_equal(toys[1].version, 2);
    assert_int_equal(dw_rollout_engine(r, 0)->state, DW_ENGINE_AWAY);
    assert_int_equal(dw_rollout_engine(r, 1)->state, DW_ENGINE_SERVING);
    assert_ok(dw_rollout_sync(r, 3, NULL, &err), &err);
    assert_ok(dw_rollout_check(r, &err), &err);
    assert_int_equal(toys[1].version, 3);
    assert_true(dw_host_engine_hangs(&r->engines[0]));

    toys[0].frozen = false;
    follow_patiently(r, LAST);
    assert_at_last(&h, &b);
    assert_true(toys[0].n_patches <= n_patches + 1); /* at most that from 3 */
    host_free(&h);
    bed_free(&b);
}

/* An engine that was left out because it was frozen ends. The next process starts from
 * the directory, so that waits for it. */
TEST(test_left_out_ends)
{
    bed b;
    host h;
    dw_error err = {0};
    const dw_error ended = {.code = DW_NOT_FOUND};
    bed_make(&b);
    host_make(&h, &b, 1, true);
    host_set_own_weights(&h);
    dw_rollout *r = host_begin(&h, &b);
    dw_host_engine *e = &r->engines[0];
    e->state = DW_HOST_HUNG;
    e->part = DW_PART_LEFT_OUT;
    e->is_silent = true;
    h.engines[0]->away_at = 1;
    h.t->is_down = true;
    dw_host_engine_retried(e, DW_NOT_FOUND, &ended);
    assert_fails(dw_rollout_sync(r, 2, NULL, &err), DW_UNAVAILABLE, &err);
    assert_true(digest_dir(h.dir) == b.truth[1]);
    follow_patiently(r, LAST);
    assert_at_last(&h, &b);
    host_free(&h);
    bed_free(&b);
}

/* Leaves DIR like a process that was killed after it prepared VERSION. */
static void kill_after_commit(const bed *b, const char *dir, uint64_t version)
{
    int fate = 0;
    fflush(stdout);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dw_error err = {0};
        uint64_t at;
        dw_follow_options options = follow_into(dir);
        dw_follower *f;
        bool good = dw_follower_open(&f, b->store, &options, &err) == DW_OK &&
                    dw_follower_stage(f, version, &at, NULL, &err) == DW_OK &&
                    dw_follower_prepare(f, &err) == DW_OK;
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &fate, 0), pid);
    assert_int_equal(fate, 0);
}

/* Without the store, the step of a killed process is still finished, and the engines that
 * it left paused serve it. */
TEST(test_open_without_store)
{
    bed b;
    dw_error err = {0};
    bed_make(&b);
    for (int own_copy = 0; own_copy < 2; own_copy++) {
        host h;
        dw_rollout *r;
        bool pending = false;
        host_make(&h, &b, 1, own_copy);
        kill_after_commit(&b, h.dir, 1);
        h.t->running = false; /* it was paused */
        assert_ok(dw_follower_pending(h.dir, &pending, &err), &err);
        assert_true(pending);

        dw_store *away = kit_mem_store();
        assert_fails(dw_rollout_open(&r, away, &h.follow, &h.options, &err), DW_NOT_FOUND,
                     &err);
        dw_store_close(away);
        assert_ok(dw_follower_pending(h.dir, &pending, &err), &err);
        assert_false(pending);
        assert_true(digest_dir(h.dir) == b.truth[1]);
        assert_true(h.t->running);
        assert_int_equal(h.t->version, 1);
        assert_true(look(h.t) == b.truth[1]);

        follow_to(host_open(&h, &b), LAST);
        assert_int_equal(h.t->version, LAST);
        host_free(&h);
    }
    bed_free(&b);
}

/* ---- damaged patches ---- */

/* Fills or reads the file at PATH. */
static size_t exchange(const char *path, bool writes, uint8_t *bytes, size_t n)
{
    FILE *file = fopen(path, writes ? "wb" : "rb");
    assert_non_null(file);
    n = writes ? fwrite(bytes, 1, n, file) : fread(bytes, 1, n, file);
    assert_int_equal(fclose(file), 0);
    return n;
}

enum { GARBAGE, TRUNCATED, FLIPPED, EMPTY, OTHER_VERSION, UNREADABLE, N_DAMAGES };

/* Damages the patch of DIR, which leads from version 0 to 1. */
static void damage_patch(const bed *b, const char *dir, int damage)
{
    enum { ROOM = 1 << 20 };
    uint8_t *bytes = malloc(ROOM);
    char path[PATH_MAX];
    assert_non_null(bytes);
    assert_true(find_patch(path, dir));
    size_t n = exchange(path, false, bytes, ROOM);
    assert_true(n > 100 && n < ROOM);
    if (damage == GARBAGE)
        memset(bytes, 0x5a, n);
    else if (damage == TRUNCATED)
        n /= 2;
    else if (damage == FLIPPED)
        bytes[n / 2] ^= 1;
    else if (damage == EMPTY)
        n = 0;
    if (damage == OTHER_VERSION) {
        char *other = new_dir(), from[PATH_MAX];
        pull(b, other, 1);
        kill_after_commit(b, other, 2);
        assert_true(find_patch(from, other));
        n = exchange(from, false, bytes, ROOM);
        free(other);
    }
    if (damage == UNREADABLE) {
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0777), 0);
    } else {
        assert_true(exchange(path, true, bytes, n) == n);
    }
    free(bytes);
}

/* Flips a bit of the weights in DIR. */
static void spoil_weights(const char *dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    const int last = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    fputc(last ^ 1, file);
    assert_int_equal(fclose(file), 0);
}

/* A process was killed after it prepared a version, and its patch was damaged. No engine
 * is paused for it, and one that the killed process left paused is resumed if its weights
 * are whole: its own, or those of the directory. */
TEST(test_damaged_patch)
{
    bed b;
    dw_error err = {0};
    bed_make(&b);
    for (int i_case = 0; i_case < 8 * N_DAMAGES; i_case++) {
        const bool own_copy = i_case & 1, was_paused = i_case & 2, half = i_case & 4;
        const bool is_whole = own_copy || !half;
        host h;
        host_make(&h, &b, 1, own_copy);
        if (own_copy)
            host_set_own_weights(&h);
        kill_after_commit(&b, h.dir, 1);
        damage_patch(&b, h.dir, i_case / 8);
        if (half && !own_copy && !was_paused)
            h.t->is_down = true; /* nothing serves weights that are half written */
        if (half)
            spoil_weights(h.dir);
        h.t->running = !was_paused;

        dw_store *away = kit_mem_store();
        for (int is_there = 0; is_there < 2; is_there++) {
            dw_store *store = is_there ? b.store : away;
            const dw_status status =
                dw_rollout_open(&h.r, store, &h.follow, &h.options, &err);
            assert_true(is_there || status != DW_OK);
            if (status == DW_OK)
                dw_rollout_close(h.r); /* the directory was healed */
            h.r = NULL;
            assert_int_equal(h.t->n_paused, 0);
            if (!h.t->is_down)
                assert_true(h.t->running == (is_whole || !was_paused));
        }
        dw_store_close(away);
        h.t->running = false; /* the next test starts another one */
        host_free(&h);
    }
    bed_free(&b);
}

/* Hundreds of hosts sync their files at every step: in memory that is cheap. */
static int make_dir_in_memory(void **state)
{
    strcpy(temp_dir, "/dev/shm/deltawire-test-XXXXXX");
    return mkdtemp(temp_dir) ? 0 : temp_dir_make(state);
}

RUN_TESTS(make_dir_in_memory, temp_dir_remove)
