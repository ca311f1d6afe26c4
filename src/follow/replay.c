/* Decoding a stream from its first available version to its newest: finds versions whose
 * objects are whole but lead to other weights than their commit names. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "store/store.h"
#include "follow/follower.h"

typedef struct replay {
    dw_follower *follower; /* in scratch memory */
    dw_stream *stream;     /* the follower's */
    dw_graph shortcuts;
    uint64_t head;
    uint64_t restart; /* the newest; 0: none */
    const dw_progress *progress;
    dw_fault_fn fn;
    void *context;
    dw_replay_report report;
    dw_error first; /* fault */
} replay;

/* ---- one version ---- */

static dw_status go(replay *r, uint64_t from, uint64_t to, dw_error *err)
{
    if (from == DW_NO_VERSION)
        dw_target_forget(r->follower->weights); /* start from nothing */
    const dw_edge edge = {.from = from, .to = to};
    dw_status status = dw_follower_stage_step(r->follower, &edge, r->progress, err);
    if (status == DW_OK)
        status = dw_follower_apply(r->follower, err);
    if (status == DW_OK)
        status = dw_follower_finish(r->follower, err);
    r->report.n_decoded += status == DW_OK;
    return status;
}

/* Whether VERSION is a restart. */
static dw_status is_restart(replay *r, uint64_t version, bool *restart, dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(r->stream, version, &c, err);
    *restart = status == DW_OK && c.restart;
    if (status == DW_OK)
        dw_commit_record_release(&c);
    return status;
}

/* The lowest version from VERSION on that has an anchor of its own; DW_NO_VERSION: none.
 */
static uint64_t next_anchor(const replay *r, uint64_t version)
{
    uint64_t lowest = DW_NO_VERSION;
    for (size_t i = 0; i < r->shortcuts.n; i++) {
        const dw_edge *e = &r->shortcuts.edges[i];
        if (e->from == DW_NO_VERSION && e->to >= version && e->to <= r->head &&
            e->to < lowest)
            lowest = e->to;
    }
    return lowest;
}

/* ---- faults ---- */

static void report_fault(replay *r, uint64_t version, dw_status code,
                         const dw_error *found, uint64_t anchor)
{
    dw_error fault;
    const char *url = dw_store_url(r->stream->store);
    if (anchor == DW_NO_VERSION)
        dw_fail(&fault, code, url,
                "version %" PRIu64
                " cannot be rebuilt: %.400s. No follower gets past it. To "
                "go on, run: deltawire repair %s CHECKPOINT",
                version, found->text, url);
    else
        dw_fail(&fault, code, url,
                "version %" PRIu64 " cannot be rebuilt: %.400s. Followers pass it by the "
                "anchor of version %" PRIu64,
                version, found->text, anchor);
    if (r->report.n_faults++ == 0)
        r->first = fault;
    if (r->fn)
        r->fn(r->context, &fault);
}

/* The step to VERSION failed. Returns the version to go on with, or DW_NO_VERSION.
 * Versions before the newest restart are no fault. */
static uint64_t pass_over(replay *r, uint64_t from, uint64_t version, dw_status code,
                          const dw_error *found)
{
    const uint64_t next = next_anchor(r, from == DW_NO_VERSION ? version + 1 : version);
    if (version < r->restart && next != DW_NO_VERSION)
        r->report.n_left += next - version;
    else
        report_fault(r, version, code, found, next);
    return next;
}

/* Whether the step to VERSION failed because a floor has passed it; then *NEXT is the
 * version to go on with. */
static bool is_collected(replay *r, uint64_t from, uint64_t version, uint64_t *next)
{
    uint64_t floor;
    dw_graph now = {0};
    if (dw_stream_floor(r->stream, &floor, NULL) != DW_OK ||
        (from == DW_NO_VERSION ? version : from) >= floor ||
        dw_graph_load_shortcuts(&now, r->stream, floor, r->head, NULL) != DW_OK)
        return false;
    dw_graph_release(&r->shortcuts);
    r->shortcuts = now;
    *next = next_anchor(r, floor);
    return true;
}

/* ---- all of them ---- */

/* From the first version that can be rebuilt on. */
static dw_status run(replay *r, uint64_t floor, dw_error *err)
{
    uint64_t from = DW_NO_VERSION, to = floor;
    r->report.first = DW_NO_VERSION;
    while (to <= r->head) {
        dw_error found = {0};
        bool restart = false;
        dw_status status =
            from == DW_NO_VERSION ? DW_OK : is_restart(r, to, &restart, &found);
        if (restart)
            from = DW_NO_VERSION;
        if (status == DW_OK)
            status = go(r, from, to, &found);
        if (status == DW_OK) {
            if (r->report.first == DW_NO_VERSION)
                r->report.first = to;
            from = to++;
            continue;
        }
        if (dw_stream_stops(status)) {
            if (err)
                *err = found;
            return status;
        }
        uint64_t next;
        if (status == DW_NOT_FOUND && is_collected(r, from, to, &next))
            r->report.first = DW_NO_VERSION;
        else if (r->report.first == DW_NO_VERSION && status == DW_NOT_FOUND)
            next = next_anchor(r, to + 1); /* a base that is not at hand */
        else
            next = pass_over(r, from, to, status, &found);
        if (next == DW_NO_VERSION)
            break;
        from = DW_NO_VERSION;
        to = next;
    }
    return DW_OK;
}

dw_status dw_stream_replay(dw_store *store, const dw_trust *trust,
                           const dw_replay_options *given, dw_fault_fn fn, void *context,
                           dw_replay_report *report, dw_error *err)
{
    dw_replay_options options;
    replay r = {.progress = &options.progress, .fn = fn, .context = context};
    dw_scratch_model model = {0};
    dw_stream *stream = NULL;
    dw_status status = DW_OPTIONS_TAKE(dw_replay_options, &options, given, err);
    if (status == DW_OK)
        status = dw_stream_open(&stream, store, trust, err);
    if (status == DW_OK)
        status = dw_scratch_model_make(&model, stream->record.tensors,
                                       stream->record.n_tensors, options.spool_dir, err);
    if (status == DW_OK) {
        dw_follow_options follow;
        dw_follow_options_init(&follow);
        follow.tensors = model.tensors;
        follow.n_tensors = stream->record.n_tensors;
        follow.tensors_empty = true;
        follow.base = options.base;
        follow.spool_dir = options.spool_dir;
        follow.open_store = options.open_store;
        follow.open_context = options.open_context;
        if (trust)
            follow.trust = *trust;
        follow.n_threads = options.n_threads;
        status = dw_follower_open(&r.follower, store, &follow, err);
    }
    uint64_t floor = 0;
    if (status == DW_OK) {
        r.stream = r.follower->stream;
        status = dw_stream_find_head(r.stream, DW_NO_VERSION, &r.head, err);
    }
    if (status == DW_OK)
        status = dw_graph_load_shortcuts(&r.shortcuts, r.stream, 0, DW_NO_VERSION, err);
    if (status == DW_OK)
        status = dw_stream_find_restart(r.stream, 0, &r.restart, err);
    if (r.restart == DW_NO_VERSION)
        r.restart = 0;
    if (status == DW_OK && dw_stream_floor(r.stream, &floor, NULL) != DW_OK)
        floor = 0; /* a hint */
    if (status == DW_OK)
        status = run(&r, floor, err);
    if (status == DW_OK && r.report.n_faults > 0) {
        status = r.first.code;
        if (err)
            *err = r.first;
    }
    if (report)
        *report = r.report;
    dw_graph_release(&r.shortcuts);
    dw_follower_close(r.follower);
    dw_scratch_model_release(&model);
    dw_stream_close(stream);
    return status;
}
