/* One process of a soak test:
 *
 *     soak_role ROLE URL SEED [NAME=VALUE...]
 *
 *     publish    n=VERSIONS pace=MS busy=0..2 baseline=DIR acked=FILE skip=1 ahead=STEPS
 *     follow     into=DIR id=ID until=VERSION pace=MS steps=1
 *     collect    keep=N pace=MS
 *     compact    work=DIR pace=MS
 *
 * and for all doom=PLAN slow=PERCENT slow_ms=MS (role.h) and spool=DIR. A publisher ends
 * when it has published; the others at SIGTERM, a follower also when it is at UNTIL. */
#include "role.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "deltawire/follow.h"
#include "deltawire/publish.h"
#include "truth.h"

static const char *url;
static uint64_t seed;
static char **settings;
static dw_store *store;
static dw_error err;
static uint64_t luck;
static volatile sig_atomic_t stopping;

static void stop(int signal)
{
    (void)signal;
    stopping = 1;
}

static const char *setting(const char *name)
{
    size_t n = strlen(name);
    for (char **s = settings; *s; s++)
        if (strncmp(*s, name, n) == 0 && (*s)[n] == '=')
            return *s + n + 1;
    return NULL;
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = setting(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void pause_ms(uint64_t ms)
{
    const struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static int fault(const char *what, dw_status status)
{
    soak_say(what, status, &err);
    return SOAK_FAULT;
}

/* The stream, once it exists. NULL if the process must end. */
static dw_stream *await_stream(dw_status *status)
{
    dw_stream *stream = NULL;
    *status = DW_OK;
    while (!stopping) {
        *status = dw_stream_open(&stream, store, NULL, &err);
        if (*status != DW_NOT_FOUND)
            break;
        *status = DW_OK;
        pause_ms(5);
    }
    return stream;
}

/* ---- publish ---- */

/* Written at once, so that it survives a kill: the driver checks that every acknowledged
 * version is committed. */
static void note_acked(uint64_t version, uint64_t step)
{
    char line[64];
    int n = snprintf(line, sizeof line, "%" PRIu64 " %" PRIu64 "\n", version, step);
    int fd = open(setting("acked"), O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        perror("acked");
    if (fd >= 0)
        close(fd);
}

static dw_status last_step(uint64_t *step)
{
    dw_stream *stream;
    dw_version_info info;
    dw_status status = dw_stream_open(&stream, store, NULL, &err);
    if (status != DW_OK)
        return status;
    uint64_t head;
    status = dw_stream_head(stream, &head, &err);
    if (status == DW_OK)
        status = dw_stream_version(stream, head, &info, &err);
    if (status == DW_OK && !soak_step_of(&info, step)) {
        fprintf(stderr, "version %" PRIu64 " has the step '%s'\n", head, info.step);
        status = DW_CORRUPT;
    }
    dw_stream_close(stream);
    return status;
}

static dw_status await_fate(dw_publisher *p, uint64_t ticket, uint64_t step)
{
    dw_publish_report report;
    dw_status status = dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err);
    if (status == DW_OK) {
        soak_event("committed");
        note_acked(report.version, step);
    }
    return status == DW_CANCELLED ? DW_OK : status;
}

static dw_status publish_step(dw_publisher *p, soak_model *model, uint64_t step,
                              uint64_t *ticket)
{
    char text[24];
    bool done;
    snprintf(text, sizeof text, "%" PRIu64, step);
    soak_model_set(model, seed, step);
    const dw_publish_note note = {
        .struct_bytes = sizeof note, .step = text, .notes = "soak"};
    dw_status status = dw_publisher_publish(p, ticket, &note, &err);
    if (status == DW_OK && *ticket != DW_TICKET_SKIPPED)
        status = dw_publisher_captured(p, *ticket, UINT_MAX, &done, &err);
    soak_event("captured");
    return status;
}

/* The collector takes the objects of a writer whose version another one has committed, so
 * it may find them gone before it finds out that it was fenced. */
static bool is_collected(dw_status status)
{
    return status == DW_UNAVAILABLE && strstr(err.text, "but not with its");
}

static dw_status publish_all(dw_publisher *p, soak_model *model, bool waits)
{
    enum { MOST = 64 }; /* tickets whose result is kept */
    uint64_t tickets[MOST], steps[MOST], step = 0;
    size_t n = (size_t)number("n", 5);
    n = n < MOST ? n : MOST;
    dw_status status = last_step(&step);
    step += number("ahead", 0);
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        step += setting("skip") && soak_below(&luck, 8) == 0 ? 2 : 1;
        steps[i] = step;
        status = publish_step(p, model, step, &tickets[i]);
        if (status == DW_OK && waits)
            status = await_fate(p, tickets[i], step);
        pause_ms(number("pace", 0));
    }
    for (size_t i = 0; status == DW_OK && !waits && i < n; i++)
        if (tickets[i] != DW_TICKET_SKIPPED)
            status = await_fate(p, tickets[i], steps[i]);
    return status;
}

static int publish(void)
{
    soak_model model;
    soak_model_make(&model);
    soak_model_set(&model, seed, 0); /* the start of a new stream */
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.take_over = true; /* from one that still lives, too */
    options.baseline_dir = setting("baseline");
    options.spool_dir = setting("spool");
    const uint64_t busy = number("busy", 0); /* wait, skip or fold */
    options.when_busy = busy == 2 ? DW_BUSY_FOLD : DW_BUSY_WAIT;
    if (busy == 1)
        options.max_wait_ms = 0;
    options.fold_every = 2;
    options.anchor_every = 5;
    options.anchor_factor = 0;
    options.max_object_bytes = 1500;
    options.max_anchor_bytes = 40000;
    options.n_threads = 2;
    dw_publisher *p;
    dw_status status =
        dw_publisher_open(&p, store, model.tensors, SOAK_TENSORS, &options, &err);
    if (status != DW_OK) {
        soak_say("publisher: open", status, &err);
        soak_model_free(&model);
        return status == DW_CONFLICT || is_collected(status) ? SOAK_FENCED : SOAK_FAULT;
    }
    soak_event("opened");
    status = publish_all(p, &model, busy == 0);
    if (status != DW_OK)
        soak_say("publisher: publish", status, &err);
    dw_error after = {0};
    dw_status drained = dw_publisher_drain(p, &after);
    if (drained != DW_OK)
        soak_say("publisher: afterwards", drained, &after);
    dw_publisher_close(p);
    soak_model_free(&model);
    if (status == DW_CONFLICT || is_collected(status))
        return SOAK_FENCED;
    /* an existing shortcut is no error: a compactor was faster */
    return status == DW_OK && (drained == DW_OK || drained == DW_CONFLICT) ? SOAK_FINE
                                                                           : SOAK_FAULT;
}

/* ---- follow ---- */

static dw_status step_by_step(dw_follower *f)
{
    for (;;) {
        uint64_t staged;
        dw_status status = dw_follower_stage(f, DW_NEWEST, &staged, NULL, &err);
        if (status != DW_OK || staged == dw_follower_version(f))
            return status;
        soak_event("staged");
        status = dw_follower_apply(f, &err);
        if (status != DW_OK)
            return status;
        soak_event("applied");
        status = dw_follower_finish(f, &err);
        if (status != DW_OK)
            return status;
        soak_event("finished");
    }
}

/* Checks that the weights are bit for bit those of the reported version. */
static bool is_true(dw_follower *f)
{
    dw_version_info info;
    size_t n;
    uint64_t step, version = dw_follower_version(f);
    const dw_tensor *tensors = dw_follower_tensors(f, &n);
    dw_status status = dw_stream_version(dw_follower_stream(f), version, &info, &err);
    if (status != DW_OK) {
        soak_say("follower: its own version", status, &err);
        return false;
    }
    if (soak_step_of(&info, &step) && soak_is_step(tensors, n, seed, step))
        return true;
    fprintf(stderr, "follower: the weights are not version %" PRIu64 "\n", version);
    return false;
}

static int follow_on(dw_follower *f)
{
    const uint64_t until = number("until", DW_NO_VERSION);
    uint64_t checked = DW_NO_VERSION;
    while (!stopping) {
        dw_status status = setting("steps")
                               ? step_by_step(f)
                               : dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err);
        if (status != DW_OK)
            soak_say("follower: sync", status, &err);
        /* collected meanwhile, or no version yet: it must succeed later */
        if (status != DW_OK && status != DW_NOT_FOUND && status != DW_UNAVAILABLE)
            return SOAK_FAULT;
        uint64_t version = dw_follower_version(f);
        if (version != checked && !is_true(f))
            return SOAK_FAULT;
        if (version != checked) {
            dw_status reported = dw_follower_report(f, "following", NULL, &err);
            if (reported != DW_OK)
                return fault("follower: report", reported);
            soak_event("reported");
        }
        checked = version;
        if (until != DW_NO_VERSION && version != DW_NO_VERSION && version >= until)
            return SOAK_FINE;
        pause_ms(number("pace", 5));
    }
    return SOAK_FINE;
}

static int follow(void)
{
    dw_status status;
    dw_stream *stream = await_stream(&status);
    if (!stream)
        return status == DW_OK ? SOAK_FINE : fault("follower: stream", status);
    dw_stream_close(stream);
    soak_model memory;
    soak_model_make(&memory);
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = setting("into");
    options.id = setting("id");
    options.spool_dir = setting("spool");
    options.n_threads = 1;
    options.sweep_every = 4;
    if (!options.into) {
        options.tensors = memory.tensors;
        options.n_tensors = SOAK_TENSORS;
    }
    dw_follower *f;
    status = dw_follower_open(&f, store, &options, &err);
    if (status != DW_OK)
        return fault("follower: open", status);
    soak_event("opened");
    int outcome = follow_on(f);
    dw_follower_close(f);
    soak_model_free(&memory);
    return outcome;
}

/* ---- collect, compact ---- */

static void on_removed(void *context, const char *key, uint64_t n_bytes)
{
    (void)context;
    (void)key;
    (void)n_bytes;
    soak_event("removed");
}

static dw_status collect_once(dw_stream *stream)
{
    const dw_collect_options options = {.struct_bytes = sizeof options,
                                        .n_keep = number("keep", 3),
                                        .removed = on_removed};
    dw_status status = dw_stream_collect(stream, &options, NULL, &err);
    soak_event("collected");
    return status;
}

/* Each time another compactor: it makes all that is due. */
static dw_status compact_once(dw_stream *stream)
{
    (void)stream;
    dw_compactor *c;
    dw_edge made = {0};
    dw_compact_options options;
    dw_compact_options_init(&options);
    options.work_dir = setting("work");
    options.fold_every = (unsigned)(2 + soak_below(&luck, 9));
    options.anchor_every = (unsigned)(1 + soak_below(&luck, 12));
    options.max_object_bytes = 1500;
    options.n_threads = 1;
    dw_status status = dw_compactor_open(&c, store, &options, &err);
    while (status == DW_OK && made.to != DW_NO_VERSION)
        status = dw_compactor_step(c, NULL, &made, &err);
    dw_compactor_close(c);
    soak_event("compacted");
    return status;
}

static int repeat(const char *name, dw_status (*once)(dw_stream *))
{
    dw_status status;
    dw_stream *stream = await_stream(&status);
    if (!stream)
        return status == DW_OK ? SOAK_FINE : fault(name, status);
    int outcome = SOAK_FINE;
    while (!stopping && outcome == SOAK_FINE) {
        status = once(stream);
        if (status != DW_OK)
            soak_say(name, status, &err);
        /* no version yet, or already gone; or others were first */
        if (status != DW_OK && status != DW_NOT_FOUND && status != DW_CONFLICT)
            outcome = SOAK_FAULT;
        pause_ms(number("pace", 10));
    }
    dw_stream_close(stream);
    return outcome;
}

static int play(const char *role)
{
    if (strcmp(role, "publish") == 0)
        return publish();
    if (strcmp(role, "follow") == 0)
        return follow();
    if (strcmp(role, "collect") == 0)
        return repeat("collector", collect_once);
    if (strcmp(role, "compact") == 0)
        return repeat("compactor", compact_once);
    fprintf(stderr, "no role '%s'\n", role);
    return SOAK_FAULT;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fputs("soak_role ROLE URL SEED [NAME=VALUE...]\n", stderr);
        return SOAK_FAULT;
    }
    url = argv[2];
    seed = strtoull(argv[3], NULL, 10);
    settings = argv + 4;
    luck = number("luck", 1);
    if (setting("doom") && !soak_doom(setting("doom"))) {
        fprintf(stderr, "no plan '%s'\n", setting("doom"));
        return SOAK_FAULT;
    }
    soak_slow(luck, number("slow", 0), 1000 * number("slow_ms", 30));
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    dw_store *inner;
    dw_status status = soak_store_open(&inner, url, &err);
    if (status == DW_OK)
        status = soak_doom_store(&store, inner, &err);
    if (status != DW_OK)
        return fault("store", status);
    int outcome = play(argv[1]);
    dw_store_close(store);
    dw_store_close(inner);
    return outcome;
}
