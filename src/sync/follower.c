#include "sync/follower.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "deltawire/delta.h"
#include "store/store.h"

#define T_PRESENCE_MS 10000 /* between two looks whether the stream is still there */
#define MAX_DETOURS   64    /* other ways that are tried when one is broken */

void dw_follow_options_init(dw_follow_options *options)
{
    *options = (dw_follow_options){
        .at = DW_NO_VERSION,
        .n_copies = 1,
        .reader_wait_ms = 10000,
        .sweep_every = 64,
        .max_ahead_bytes = 32u << 20,
    };
}

uint64_t dw_follower_version(const dw_follower *f)
{
    const dw_position *at = &f->weights->now->at;
    return strcmp(at->stream, f->stream->record.stream) == 0 ? at->version
                                                             : DW_NO_VERSION;
}

dw_stream *dw_follower_stream(dw_follower *f)
{
    return f->stream;
}

const dw_tensor *dw_follower_tensors(const dw_follower *f, size_t *n_tensors)
{
    *n_tensors = f->weights->now->n_tensors;
    return f->weights->now->tensors;
}

dw_digest dw_follower_state(const dw_follower *f)
{
    return dw_follower_version(f) != DW_NO_VERSION ? f->weights->now->at.state : 0;
}

const char *dw_follower_dir(const dw_follower *f)
{
    return f->weights->now->dir;
}

/* ---- opening ---- */

/* Of two copies that are not the same version the older one is written when they are
 * opened. */
static bool copies_differ(const char *into)
{
    dw_position at[2], next;
    bool exists[2] = {false, false};
    for (int i = 0; i < 2; i++) {
        char *dir = dw_join_path(into, i == 0 ? DW_COPY_NAME "0" : DW_COPY_NAME "1");
        if (!dir || dw_replica_state_read(&at[i], &next, &exists[i], dir, NULL) != DW_OK)
            exists[i] = false;
        dw_free(dir);
    }
    return exists[0] && exists[1] &&
           (at[0].version != at[1].version || strcmp(at[0].stream, at[1].stream) != 0);
}

dw_status dw_follower_pending(const char *into, bool *pending, dw_error *err)
{
    static const char *const names[] = {"", DW_COPY_NAME "0", DW_COPY_NAME "1"};
    *pending = false;
    for (size_t i = 0; !*pending && i < sizeof names / sizeof *names; i++) {
        char *dir = *names[i] ? dw_join_path(into, names[i]) : dw_copy_string(into);
        dw_error fault = {0};
        dw_status status = dir ? dw_checkpoint_pending(dir, pending, &fault)
                               : dw_fail_memory(&fault, into);
        dw_free(dir);
        if (status != DW_OK &&
            status != DW_NOT_FOUND) { /* no weights: nothing to write */
            if (err)
                *err = fault;
            return status;
        }
    }
    *pending = *pending || copies_differ(into);
    return DW_OK;
}

static bool is_worth_a_detour(dw_status status)
{
    return dw_stream_passes_over(status) || status == DW_STALE;
}

/* Where weights are that no record says the version of: are they one that is likely? */
static dw_status recognise(dw_follower *f, uint64_t version, bool *found, dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(f->stream, version, &c, err);
    if (status != DW_OK)
        return status == DW_NOT_FOUND ? DW_OK : status;
    if (c.state == f->weights->now->state) {
        const dw_position p = dw_position_of(&c);
        status = dw_weights_adopt(f->weights, &p, err);
        *found = true;
    }
    dw_commit_record_release(&c);
    return status;
}

static dw_status recognise_any(dw_follower *f, dw_error *err)
{
    uint64_t head;
    dw_status status = dw_stream_find_head(f->stream, DW_NO_VERSION, &head, err);
    if (status != DW_OK)
        return status == DW_NOT_FOUND ? DW_OK : status;
    const uint64_t likely[] = {f->options.at, 0, head};
    bool found = false;
    dw_error fault = {0}; /* a version that is not good is not the one that is here */
    for (size_t i = 0; status == DW_OK && !found && i < 3; i++) {
        dw_error error = {0};
        if (likely[i] != DW_NO_VERSION)
            status = recognise(f, likely[i], &found, &error);
        if (is_worth_a_detour(status)) {
            fault = error;
            status = DW_OK;
        } else if (status != DW_OK && err) {
            *err = error;
        }
    }
    if (status != DW_OK || found)
        return status;
    if (f->weights->now->dir && fault.code != DW_OK) {
        if (err)
            *err = fault;
        return fault.code;
    }
    if (f->weights->now->dir)
        return dw_fail(err, DW_CONFLICT, f->weights->now->dir,
                       "it holds weights that are neither version 0 nor version %" PRIu64
                       " of the stream, and no record of which they are. Name an empty "
                       "directory, or remove them",
                       head);
    f->weights->now->has_weights = false; /* the caller's memory, still to be filled */
    return DW_OK;
}

static const char *place_of(const dw_follower *f)
{
    return f->weights->now->dir ? f->weights->now->dir : "memory";
}

/* The version that the weights are must still be the one in the stream. */
static dw_status check_history(dw_follower *f, dw_error *err)
{
    const dw_position *at = &f->weights->now->at;
    const char *url = dw_store_url(f->stream->store);
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(f->stream, at->version, &c, err);
    if (status == DW_NOT_FOUND)
        return dw_fail(err, DW_UNTRUSTED, url,
                       "the weights in %s are version %" PRIu64 ", which the stream no "
                       "longer has: it was rolled back, or this is a copy that is behind",
                       place_of(f), at->version);
    if (status != DW_OK)
        return status;
    if (memcmp(c.seal.sha256, at->commit_sha256, DW_SHA256_BYTES) != 0)
        status = dw_fail(err, DW_UNTRUSTED, url,
                         "version %" PRIu64 " is not the one that the weights in %s came "
                         "from: history was rewritten",
                         at->version, place_of(f));
    f->epoch = c.epoch;
    if (f->stream->head == DW_NO_VERSION || f->stream->head < at->version)
        f->stream->head = at->version;
    f->rewritten = status != DW_OK;
    dw_commit_record_release(&c);
    return status;
}

static dw_status check_other_stream(dw_follower *f, dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(f->stream, 0, &c, err);
    if (status != DW_OK)
        return status;
    bool is_fork = c.content == DW_CONTENT_FORK &&
                   strcmp(c.fork.stream, f->weights->now->at.stream) == 0;
    dw_commit_record_release(&c);
    return is_fork
               ? DW_OK
               : dw_fail(err, DW_MISMATCH, f->weights->now->dir,
                         "the weights are version %" PRIu64 " of stream %s, but this is "
                         "stream %s. Name another directory",
                         f->weights->now->at.version, f->weights->now->at.stream,
                         f->stream->record.stream);
}

static dw_status find_start(dw_follower *f, dw_error *err)
{
    const dw_replica *r = f->weights->now;
    if (r->at.version == DW_NO_VERSION)
        return r->has_weights ? recognise_any(f, err) : DW_OK;
    return dw_follower_version(f) != DW_NO_VERSION ? check_history(f, err)
                                                   : check_other_stream(f, err);
}

static dw_status copy_strings(dw_follower *f, const dw_follow_options *options,
                              dw_error *err)
{
    f->options = *options;
    f->options.into = options->into ? dw_copy_string(options->into) : NULL;
    f->options.base = options->base ? dw_copy_string(options->base) : NULL;
    f->options.id = options->id ? dw_copy_string(options->id) : NULL;
    f->options.spool_dir = options->spool_dir ? dw_copy_string(options->spool_dir) : NULL;
    f->options.weights_dir = NULL; /* the weights' own */
    bool good = !options->into == !f->options.into &&
                !options->base == !f->options.base && !options->id == !f->options.id &&
                !options->spool_dir == !f->options.spool_dir;
    if (good && !f->options.spool_dir && f->options.into) {
        f->options.spool_dir = dw_copy_string(f->options.into);
        good = f->options.spool_dir != NULL;
    }
    return good ? DW_OK : dw_fail_memory(err, NULL);
}

dw_status dw_follower_open(dw_follower **out, dw_store *store,
                           const dw_follow_options *options, dw_error *err)
{
    *out = NULL;
    if (options->n_copies > 2)
        return dw_fail(err, DW_INVALID, NULL, "there can be one copy or two, not %u",
                       options->n_copies);
    if (!options->into == !options->tensors)
        return dw_fail(err, DW_INVALID, NULL,
                       "a follower needs either a directory or tensors in memory");
    if (options->id && !dw_follower_id_valid(options->id))
        return dw_fail(err, DW_INVALID, NULL, "'%s' cannot be the name of a follower",
                       options->id);
    dw_follower *f = dw_alloc_zeroed(1, sizeof *f);
    if (!f)
        return dw_fail_memory(err, NULL);
    dw_status status = copy_strings(f, options, err);
    if (status == DW_OK)
        status = dw_stream_open(&f->stream, store, &options->trust, err);
    if (status == DW_OK) {
        f->seen_ms = dw_clock_ms();
        const dw_stream_record *s = &f->stream->record;
        if (options->into)
            status = dw_weights_open_dir(&f->weights, s->tensors, s->n_tensors, s->stream,
                                         options, err);
        else if (options->n_tensors != s->n_tensors)
            status = dw_fail(err, DW_MISMATCH, dw_store_url(store),
                             "the stream's model has %zu tensors, the memory %zu",
                             s->n_tensors, options->n_tensors);
        else
            status = dw_weights_open_memory(&f->weights, s->tensors, s->n_tensors,
                                            options->tensors, options->n_threads, err);
    }
    if (status == DW_OK)
        status = find_start(f, err);
    if (status == DW_OK)
        status = dw_weights_accept(f->weights, err);
    if (status == DW_OK)
        status = dw_weights_align(f->weights, err);
    if (status == DW_OK)
        f->tally.from = dw_follower_version(f);
    if (status == DW_OK)
        *out = f;
    else
        dw_follower_close(f);
    return status;
}

void dw_follower_close(dw_follower *f)
{
    if (!f)
        return;
    dw_fetch_ahead_end(&f->ahead);
    dw_graph_release(&f->avoid);
    dw_free(f->path);
    dw_weights_close(f->weights);
    dw_stream_close(f->stream);
    dw_free((char *)f->options.into);
    dw_free((char *)f->options.base);
    dw_free((char *)f->options.id);
    dw_free((char *)f->options.spool_dir);
    dw_free(f);
}

/* ---- polling ---- */

/* A stream that was removed, or a store that is not where it was, looks like one in which
 * nothing is new: now and then it is looked for. */
static dw_status check_presence(dw_follower *f, dw_status found, dw_error *err)
{
    const uint64_t now = dw_clock_ms();
    if (f->seen_ms != 0 && now - f->seen_ms < T_PRESENCE_MS)
        return found;
    dw_error fault = {0};
    dw_status status = dw_store_stat(f->stream->store, DW_KEY_STREAM, NULL, NULL, &fault);
    if (status == DW_NOT_FOUND)
        return dw_fail(err, DW_UNAVAILABLE, dw_store_url(f->stream->store),
                       "the stream is not there any more: it was removed, or its place "
                       "cannot be reached");
    if (status != DW_OK) {
        if (err)
            *err = fault;
        return status;
    }
    f->seen_ms = now;
    return found;
}

dw_status dw_follower_poll(dw_follower *f, uint64_t *newest, dw_error *err)
{
    uint64_t known = f->stream->head, at = dw_follower_version(f);
    if (at != DW_NO_VERSION && (known == DW_NO_VERSION || at > known))
        known = at;
    dw_status status = dw_stream_find_head(f->stream, known, newest, err);
    if (status == DW_OK && (known == DW_NO_VERSION || *newest > known))
        f->seen_ms = dw_clock_ms();
    else if (status == DW_OK || status == DW_NOT_FOUND)
        status = check_presence(f, status, err);
    return status;
}

dw_status dw_follower_wait(dw_follower *f, uint64_t *newest, unsigned timeout_ms,
                           unsigned max_wait_ms, const dw_progress *progress,
                           dw_error *err)
{
    const uint64_t end = dw_clock_ms() + timeout_ms;
    uint64_t pause = 100;
    for (;;) {
        dw_status status = dw_follower_poll(f, newest, err);
        if (status != DW_OK && status != DW_NOT_FOUND)
            return status;
        uint64_t at = dw_follower_version(f), now = dw_clock_ms();
        if (status == DW_OK && (at == DW_NO_VERSION || *newest > at))
            return DW_OK;
        if (now >= end)
            return status;
        uint64_t until = now + pause < end ? now + pause : end;
        while ((now = dw_clock_ms()) < until) {
            dw_sleep_ms(until - now < 50 ? until - now : 50);
            status =
                dw_store_progress(progress, 0, 0, dw_store_url(f->stream->store), err);
            if (status != DW_OK)
                return status;
        }
        pause = pause * 2 < max_wait_ms ? pause * 2 : max_wait_ms;
        pause = pause > 0 ? pause : 1;
    }
}

/* ---- the way ---- */

static void forget_path(dw_follower *f)
{
    dw_free(f->path);
    f->path = NULL;
    f->n_path = f->i_path = 0;
}

/* Says so where the goal, which could not be found, was collected. */
static bool explain_collected(dw_follower *f, uint64_t goal, dw_error *err)
{
    uint64_t floor = 0;
    if (dw_stream_read_floor(f->stream, &floor, NULL) != DW_OK || goal >= floor)
        return false;
    dw_fail(err, DW_NOT_FOUND, dw_store_url(f->stream->store),
            "version %" PRIu64 " was collected: the stream keeps version %" PRIu64
            " and those after it",
            goal, floor);
    return true;
}

/* What lies behind a goal that no way leads to. */
static dw_status explain_no_way(dw_follower *f, uint64_t goal, dw_error *err)
{
    if (explain_collected(f, goal, err))
        return DW_NOT_FOUND;
    return dw_fail(err, DW_NOT_FOUND, dw_store_url(f->stream->store),
                   "no way leads to version %" PRIu64
                   ": there is neither an anchor below it "
                   "nor a chain of deltas from where the weights are. `deltawire squash "
                   "--anchor` makes one",
                   goal);
}

/* A version that is to be reached must be there. */
static dw_status check_goal(dw_follower *f, uint64_t goal, dw_error *err)
{
    uint64_t head = f->stream->head;
    if (head != DW_NO_VERSION && goal <= head)
        return DW_OK;
    dw_status status = dw_follower_poll(f, &head, err);
    if (status == DW_OK && goal > head)
        status = dw_fail(err, DW_NOT_FOUND, dw_store_url(f->stream->store),
                         "there is no version %" PRIu64 " yet: the newest is %" PRIu64,
                         goal, head);
    return status;
}

static dw_status plan(dw_follower *f, uint64_t goal, dw_error *err)
{
    forget_path(f);
    uint64_t at = dw_follower_version(f);
    dw_graph graph;
    dw_status status = check_goal(f, goal, err);
    if (status == DW_OK)
        status = dw_graph_load(&graph, f->stream, at, goal, &f->avoid, err);
    if (status != DW_OK)
        return status;
    status = dw_graph_plan(&f->path, &f->n_path, NULL, &graph, at, goal, err);
    dw_graph_release(&graph);
    f->goal = goal;
    return status == DW_NOT_FOUND ? explain_no_way(f, goal, err) : status;
}

static bool on_path(const dw_follower *f, uint64_t goal)
{
    if (f->goal != goal || f->i_path >= f->n_path)
        return false;
    uint64_t from = f->path[f->i_path].from;
    return from == DW_NO_VERSION || from == dw_follower_version(f);
}

static void begin_ahead(dw_follower *f)
{
    if (f->i_path + 1 < f->n_path &&
        f->path[f->i_path + 1].n_bytes <= f->options.max_ahead_bytes)
        dw_fetch_ahead_begin(&f->ahead, f->stream, &f->path[f->i_path + 1],
                             f->options.spool_dir);
}

dw_status dw_follower_stage(dw_follower *f, uint64_t goal, uint64_t *staged,
                            const dw_progress *progress, dw_error *err)
{
    dw_status status = DW_OK;
    if (goal == DW_LATEST)
        status = dw_follower_poll(f, &goal, err);
    if (status != DW_OK)
        return status;
    /* weights that were there before the stream had a version: are they one now? */
    const bool unknown =
        f->weights->now->at.version == DW_NO_VERSION && f->weights->now->has_weights;
    if (unknown)
        status = recognise_any(f, err);
    if (status != DW_OK)
        return status;
    *staged = dw_follower_version(f);
    if (unknown && *staged == goal)
        f->arrived = true; /* with nothing to store */
    if (dw_weights_is_committed(f->weights))
        return dw_fail(err, DW_INVALID, f->weights->now->dir,
                       "the version before is committed but not settled");
    if (*staged == goal)
        return DW_OK;
    if (!on_path(f, goal))
        status = plan(f, goal, err);
    dw_error first = {0}; /* the fault of the best way: others may only hide it */
    for (unsigned detours = 0; status == DW_OK; detours++) {
        const dw_edge edge = f->path[f->i_path];
        /* an anchor leaves the chain of hashes: what lies behind must be as it was */
        if (edge.from == DW_NO_VERSION && *staged != DW_NO_VERSION)
            status = check_history(f, err);
        if (status == DW_OK)
            status = dw_follower_hop(f, &edge, progress, err);
        if (status == DW_OK) {
            *staged = edge.to;
            begin_ahead(f);
            f->i_path++;
            dw_graph_release(&f->avoid); /* after a step forward all count again */
            break;
        }
        if (!is_worth_a_detour(status) || f->rewritten || detours == MAX_DETOURS)
            break;
        if (detours == 0 && err)
            first = *err;
        if (dw_graph_add(&f->avoid, edge, NULL) != DW_OK || plan(f, goal, NULL) != DW_OK)
            break;
        status = DW_OK;
    }
    if (status != DW_OK) {
        forget_path(f);
        dw_graph_release(&f->avoid); /* next time everything is looked at anew */
        dw_weights_discard(f->weights, NULL);
        if (first.code != DW_OK && is_worth_a_detour(status) && !f->rewritten) {
            status = first.code;
            *err = first;
        }
        if (status == DW_NOT_FOUND)
            explain_collected(f, goal, err);
    }
    return status;
}

const char *dw_follower_staged_path(const dw_follower *f)
{
    const dw_replica *r = dw_weights_list(f->weights);
    return r->staged && r->place ? dw_place_staged_path(r->place) : NULL;
}

bool dw_follower_staged(const dw_follower *f, uint64_t *version, dw_digest *state)
{
    const dw_replica *list = dw_weights_list(f->weights);
    if (!f->arrived && !list->staged)
        return false;
    const dw_position *p = f->arrived ? &f->weights->now->at : &list->next;
    if (version)
        *version = p->version;
    if (state)
        *state = p->state;
    return true;
}

static dw_status check_staged(const dw_follower *f, dw_error *err)
{
    return dw_weights_list(f->weights)->staged
               ? DW_OK
               : dw_fail(err, DW_INVALID, f->weights->now->dir, "nothing is staged");
}

/* Whether all weights are to be read and compared this time. */
static bool is_sweep_due(const dw_follower *f)
{
    return f->options.sweep_every > 0 && f->n_since_sweep + 1 >= f->options.sweep_every;
}

dw_status dw_follower_commit(dw_follower *f, dw_error *err)
{
    if (f->arrived)
        return DW_OK;
    dw_status status = check_staged(f, err);
    return status == DW_OK ? dw_weights_commit(f->weights, is_sweep_due(f), err) : status;
}

dw_status dw_follower_apply(dw_follower *f, dw_error *err)
{
    if (f->arrived)
        return DW_OK;
    dw_status status = check_staged(f, err);
    if (status != DW_OK)
        return status;
    uint64_t start = dw_clock_ms();
    status = dw_weights_apply(f->weights, is_sweep_due(f), err);
    f->tally.apply_ms += dw_clock_ms() - start;
    return status;
}

dw_status dw_follower_settle(dw_follower *f, dw_error *err)
{
    if (f->arrived) {
        f->arrived = false;
        f->tally.n_hops++;
        return DW_OK;
    }
    if (!dw_weights_is_applied(f->weights))
        return dw_fail(err, DW_INVALID, f->weights->now->dir, "nothing is applied");
    const uint64_t n_changed = dw_weights_list(f->weights)->n_changed;
    const bool sweep = is_sweep_due(f);
    dw_status status = dw_weights_settle(f->weights, sweep, err);
    if (status != DW_OK)
        return status;
    f->n_since_sweep = sweep ? 0 : f->n_since_sweep + 1;
    f->epoch = f->next_epoch;
    f->tally.n_hops++;
    f->tally.n_changed += n_changed;
    return DW_OK;
}

dw_status dw_follower_sync(dw_follower *f, uint64_t goal, const dw_progress *progress,
                           dw_follow_report *report, dw_error *err)
{
    const dw_follow_report before = f->tally;
    const uint64_t from = dw_follower_version(f);
    dw_status status = DW_OK;
    if (goal == DW_LATEST)
        status = dw_follower_poll(f, &goal, err);
    /* what an earlier call could not finish, or the caller began */
    if (status == DW_OK && dw_weights_is_committed(f->weights))
        status = dw_follower_apply(f, err);
    if (status == DW_OK && dw_weights_is_applied(f->weights))
        status = dw_follower_settle(f, err);
    if (status == DW_OK)
        status = dw_weights_align(f->weights, err);
    while (status == DW_OK && dw_follower_version(f) != goal) {
        uint64_t staged;
        status = dw_follower_stage(f, goal, &staged, progress, err);
        if (status == DW_OK && !dw_follower_staged(f, NULL, NULL))
            break; /* the weights turned out to be that version */
        if (status == DW_OK)
            status = dw_follower_apply(f, err);
        if (status == DW_OK)
            status = dw_follower_settle(f, err);
    }
    if (report)
        *report = (dw_follow_report){
            .from = from,
            .version = dw_follower_version(f),
            .n_hops = f->tally.n_hops - before.n_hops,
            .n_objects = f->tally.n_objects - before.n_objects,
            .n_bytes = f->tally.n_bytes - before.n_bytes,
            .n_changed = f->tally.n_changed - before.n_changed,
            .fetch_ms = f->tally.fetch_ms - before.fetch_ms,
            .stage_ms = f->tally.stage_ms - before.stage_ms,
            .apply_ms = f->tally.apply_ms - before.apply_ms,
        };
    return status;
}

void dw_follower_totals(const dw_follower *f, dw_follow_report *out)
{
    *out = f->tally;
    out->version = dw_follower_version(f);
}

/* ---- telling others ---- */

dw_status dw_follower_report(dw_follower *f, const char *status_word, const char *message,
                             dw_error *err)
{
    if (!f->options.id)
        return DW_OK;
    char host[256] = "?", key[DW_KEY_TEXT];
    gethostname(host, sizeof host - 1);
    dw_follower_record record = {.version = dw_follower_version(f),
                                 .host = host,
                                 .status = (char *)status_word,
                                 .message = (char *)(message ? message : "")};
    memcpy(record.stream, f->stream->record.stream, sizeof record.stream);
    memcpy(record.id, f->options.id, strlen(f->options.id) + 1);
    dw_time_format(record.time, dw_wall_clock_ms());
    dw_key_follower(key, f->options.id);
    dw_writer bytes = {0};
    dw_status status = dw_follower_record_write(&bytes, &record, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(f->stream->store, key, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_REPLACE, err);
    dw_writer_release(&bytes);
    return status;
}
