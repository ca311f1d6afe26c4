/* The route of a follower to its goal: planned, followed step by step, and planned again
 * around missing or damaged objects. */
#include <inttypes.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "follow/follower.h"

#define MAX_DETOURS 64 /* other routes that are tried if one is broken */

static void forget_route(dw_follower *f)
{
    dw_free(f->route);
    f->route = NULL;
    f->n_route = f->i_route = 0;
}

/* If the goal was collected, sets ERR to say so. */
static bool explain_collected(dw_follower *f, uint64_t goal, dw_error *err)
{
    uint64_t floor = 0;
    if (dw_stream_floor(f->stream, &floor, NULL) != DW_OK || goal >= floor)
        return false;
    dw_fail(err, DW_NOT_FOUND, dw_store_url(f->stream->store),
            "version %" PRIu64 " was collected: the stream keeps version %" PRIu64
            " and those after it",
            goal, floor);
    return true;
}

/* Why no route leads to GOAL. */
static dw_status explain_no_route(dw_follower *f, uint64_t goal, dw_error *err)
{
    if (explain_collected(f, goal, err))
        return DW_NOT_FOUND;
    return dw_fail(err, DW_NOT_FOUND, dw_store_url(f->stream->store),
                   "no route leads to version %" PRIu64
                   ": there is neither an anchor below it nor a chain of deltas from "
                   "where the weights are. Restore the missing records from a copy "
                   "with `deltawire cp`, or go on from a checkpoint with: deltawire "
                   "repair %s CHECKPOINT",
                   goal, dw_store_url(f->stream->store));
}

/* A record or object of EDGE, on the route to GOAL, is missing. If it is the commit, the
 * log has a hole. */
static dw_status explain_missing(dw_follower *f, const dw_edge *edge, uint64_t goal,
                                 dw_error *err)
{
    const uint64_t head = f->stream->head;
    dw_commit_record c;
    if (explain_collected(f, goal, err) || head == DW_NO_VERSION || edge->to >= head)
        return DW_NOT_FOUND;
    dw_status status = dw_stream_read_commit(f->stream, edge->to, &c, NULL);
    if (status == DW_OK)
        dw_commit_record_release(&c);
    return status == DW_NOT_FOUND ? dw_stream_fail_hole(f->stream, edge->to, head, err)
                                  : DW_NOT_FOUND;
}

/* DW_NOT_FOUND if the stream has no version GOAL yet. */
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
    forget_route(f);
    uint64_t at = dw_follower_version(f);
    dw_graph graph;
    dw_status status = check_goal(f, goal, err);
    if (status == DW_OK)
        status = dw_graph_load(&graph, f->stream, at, goal, &f->avoid, err);
    if (status != DW_OK)
        return status;
    status = dw_graph_plan(&f->route, &f->n_route, NULL, &graph, at, goal, err);
    dw_graph_release(&graph);
    f->goal = goal;
    return status == DW_NOT_FOUND ? explain_no_route(f, goal, err) : status;
}

static bool on_route(const dw_follower *f, uint64_t goal)
{
    if (f->goal != goal || f->i_route >= f->n_route)
        return false;
    uint64_t from = f->route[f->i_route].from;
    return from == DW_NO_VERSION || from == dw_follower_version(f);
}

static void begin_ahead(dw_follower *f)
{
    if (f->i_route + 1 < f->n_route &&
        f->route[f->i_route + 1].n_bytes <= f->options.max_ahead_bytes)
        dw_fetch_ahead_begin(&f->ahead, f->stream, &f->route[f->i_route + 1],
                             dw_follower_take_commit(f, f->route[f->i_route + 1].to),
                             f->options.spool_dir);
}

/* After a step that leads further than any before, all edges may be tried again. After a
 * step back, to an anchor, they may not: the same broken edge would be tried forever. */
static void note_step(dw_follower *f, uint64_t goal, uint64_t from, uint64_t to)
{
    if (f->tried_goal != goal) {
        f->tried_goal = goal;
        f->furthest = from;
    }
    if (f->furthest != DW_NO_VERSION && to <= f->furthest)
        return;
    f->furthest = to;
    dw_graph_release(&f->avoid);
}

dw_status dw_follower_stage(dw_follower *f, uint64_t goal, uint64_t *staged,
                            const dw_progress *progress, dw_error *err)
{
    dw_status status = dw_follower_refuse_none(goal, err);
    if (status == DW_OK)
        status = dw_follower_attend(f, err);
    if (status == DW_OK && goal == DW_NEWEST)
        status = dw_follower_poll(f, &goal, err);
    if (status == DW_OK && f->lost)
        status = dw_follower_start_over(f, err);
    if (status != DW_OK)
        return status;
    /* weights that were there before the stream had a version: are they one now? */
    const bool unknown = dw_target_is_unknown(f->weights);
    if (unknown)
        status = dw_follower_recognise(f, err);
    if (status != DW_OK)
        return status;
    *staged = dw_follower_version(f);
    if (dw_target_update(f->weights) > DW_UPDATE_STAGED)
        return dw_fail(err, DW_INVALID, dw_target_dir(f->weights),
                       "the version before is prepared but not finished");
    if (unknown && *staged == goal)
        dw_target_arrive(f->weights);
    if (*staged == goal)
        return dw_follower_complete_files(f, progress, err);
    dw_follower_found(f, goal); /* a goal that no poll named */
    f->times = (dw_times){0};
    status = dw_follower_may_heal(f, err);
    if (status == DW_OK && !on_route(f, goal))
        status = plan(f, goal, err);
    const dw_edge best = status == DW_OK ? f->route[f->i_route] : (dw_edge){.to = goal};
    if (status == DW_OK)
        status = dw_follower_fetch_files(f, goal, progress, err);
    dw_error first = {0}; /* the fault of the best route: others may only hide it */
    for (unsigned detours = 0; status == DW_OK; detours++) {
        const dw_edge edge = f->route[f->i_route];
        /* an anchor leaves the chain of hashes: the versions that were used must be as
         * before */
        if (edge.from == DW_NO_VERSION &&
            dw_follower_highest(f)->version != DW_NO_VERSION)
            status = dw_follower_check_history(f, err);
        if (status == DW_OK && edge.from == DW_NO_VERSION && edge.to < *staged)
            status = dw_follower_keep_highest(f, err);
        if (status == DW_OK)
            status = dw_follower_stage_step(f, &edge, progress, err);
        if (status == DW_OK) {
            dw_follower_mark(f, DW_STAGED);
            note_step(f, goal, *staged, edge.to);
            *staged = edge.to;
            begin_ahead(f);
            f->i_route++;
            break;
        }
        if (!dw_follower_may_detour(status) || f->rewritten || detours == MAX_DETOURS)
            break;
        if (edge.from != DW_NO_VERSION && dw_follower_is_damaged(f)) {
            *staged = DW_NO_VERSION;
            first = (dw_error){0};
            dw_graph_release(&f->avoid);
            status = dw_follower_may_heal(f, err);
            if (status == DW_OK)
                status = plan(f, goal, err);
            continue;
        }
        if (detours == 0 && err)
            first = *err;
        if (dw_graph_add(&f->avoid, edge, NULL) != DW_OK || plan(f, goal, NULL) != DW_OK)
            break;
        status = DW_OK;
    }
    if (status != DW_OK) {
        forget_route(f);
        dw_graph_release(&f->avoid); /* the next call tries every edge again */
        dw_target_discard(f->weights, NULL);
        if (first.code != DW_OK && dw_follower_may_detour(status) && !f->rewritten) {
            status = first.code;
            *err = first;
        }
        if (status == DW_NOT_FOUND)
            status = explain_missing(f, &best, goal, err);
    }
    return status;
}
