/* Loading the edges that lead to a version. What is read depends on what is needed, in
 * this order: the commit of the next version; the hint; the names of the shortcuts, and
 * the records on one route along them; and everything, if something is damaged or
 * missing.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "stream/graph.h"

#define MAX_WALK 64   /* commits that are read one by one after the hint */
#define WINDOW   1024 /* versions whose shortcuts are listed first; then twice as many */
#define MAX_LOOK 4096 /* versions behind: from there on an anchor is taken, if any */

/* ---- single edges ---- */

/* The edge that a version's own commit is: from the version before, or, for version 0,
 * from nothing. A restart has none: its anchor leads to it. */
static dw_status add_commit(dw_graph *graph, dw_stream *s, uint64_t version,
                            dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(s, version, &c, err);
    if (status != DW_OK)
        return status;
    dw_edge edge = {.from = version > 0 ? version - 1 : DW_NO_VERSION,
                    .to = version,
                    .n_bytes = dw_objects_bytes(&c.objects),
                    .n_objects = c.objects.n};
    const bool restart = c.restart;
    dw_commit_record_release(&c);
    return restart ? DW_OK : dw_graph_add(graph, edge, err);
}

static void leave_out(dw_graph *graph, const dw_graph *avoid)
{
    for (size_t i = 0; avoid && i < avoid->n; i++)
        dw_graph_remove(graph, avoid->edges[i].from, avoid->edges[i].to);
}

static bool leads_there(const dw_graph *graph, uint64_t at, uint64_t goal)
{
    dw_edge *route;
    size_t n;
    bool leads = dw_graph_plan(&route, &n, NULL, graph, at, goal, NULL) == DW_OK;
    dw_free(route);
    return leads;
}

/* ---- the hint ---- */

static dw_status load_hint(dw_graph *graph, dw_stream *s, uint64_t goal, dw_error *err)
{
    dw_latest_record latest;
    dw_status status = dw_stream_read_latest(s, &latest, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; status == DW_OK && i < latest.n_edges; i++)
        if (latest.edges[i].to <= goal)
            status = dw_graph_add(graph, latest.edges[i], err);
    uint64_t known = latest.version;
    dw_latest_record_release(&latest);
    if (known == DW_NO_VERSION || known >= goal || goal - known > MAX_WALK)
        return status;
    for (uint64_t v = known + 1; status == DW_OK && v <= goal; v++)
        status = add_commit(graph, s, v, err);
    return status;
}

/* A hint may lack edges, for instance if the writer lost the one before. A follower that
 * has a version then must not fetch an anchor instead of a few deltas. */
static bool hint_is_enough(const dw_graph *hint, uint64_t at, uint64_t goal)
{
    if (at >= goal)
        return leads_there(hint, at, goal);
    dw_edge *route;
    size_t n;
    bool leads = dw_graph_plan_from(&route, &n, NULL, hint, at, goal, NULL) == DW_OK;
    dw_free(route);
    return leads;
}

/* ---- the shortcuts ---- */

typedef struct shortcut_list {
    dw_graph *found;
    uint64_t last;
    bool stopped;
} shortcut_list;

static dw_status visit_shortcut(void *context, const dw_store_entry *entry, dw_error *err)
{
    shortcut_list *list = context;
    dw_edge edge = {0};
    if (!dw_key_is_shortcut(entry->key, &edge.to, &edge.from))
        return DW_OK;
    list->stopped = edge.to > list->last;
    return list->stopped ? DW_CANCELLED : dw_graph_add(list->found, edge, err);
}

/* Adds the shortcuts to versions FIRST to LAST by their names, so without their sizes. */
static dw_status list_shortcuts(dw_graph *out, dw_stream *s, uint64_t first,
                                uint64_t last, dw_error *err)
{
    char after[DW_KEY_TEXT];
    shortcut_list list = {.found = out, .last = last};
    dw_key_before_shortcuts(after, first);
    dw_status status =
        dw_store_list(s->store, "ways/", after, visit_shortcut, &list, err);
    return list.stopped ? DW_OK : status;
}

/* Adds the shortcut that EDGE names, with its size. */
static dw_status add_shortcut(dw_graph *graph, dw_stream *s, dw_edge edge, dw_error *err)
{
    dw_shortcut_record shortcut;
    dw_status status = dw_stream_read_shortcut(s, edge.to, edge.from, &shortcut, err);
    if (status != DW_OK)
        return status;
    edge.n_bytes = dw_objects_bytes(&shortcut.objects);
    edge.n_objects = shortcut.objects.n;
    dw_shortcut_record_release(&shortcut);
    return dw_graph_add(graph, edge, err);
}

dw_status dw_graph_load_shortcuts(dw_graph *out, dw_stream *s, uint64_t first,
                                  uint64_t last, dw_error *err)
{
    dw_graph found = {0};
    dw_status status = list_shortcuts(&found, s, first, last, err);
    for (size_t i = 0; status == DW_OK && i < found.n; i++) {
        status = add_shortcut(out, s, found.edges[i], err);
        if (dw_stream_passes_over(status))
            status =
                DW_OK; /* collected meanwhile, or of no use: there are other routes */
    }
    dw_graph_release(&found);
    return status;
}

/* ---- one route ---- */

/* The names of the shortcuts to the versions from FIRST up to the goal. */
typedef struct near_shortcuts {
    dw_stream *stream;
    const dw_graph *avoid;
    uint64_t goal;
    uint64_t first;
    dw_graph list; /* sorted */
} near_shortcuts;

/* Lists on, downwards to LEAST. Stops earlier if there is an anchor, but not before
 * N_LEAST versions are listed. */
static dw_status list_down(near_shortcuts *w, uint64_t least, uint64_t n_least,
                           dw_error *err)
{
    dw_status status = DW_OK;
    while (status == DW_OK && w->first > least) {
        const uint64_t last = w->first - 1, n_listed = w->goal - last;
        if (n_listed >= n_least && dw_graph_newest_anchor(&w->list) != DW_NO_VERSION)
            break;
        const uint64_t n = n_listed < WINDOW ? WINDOW : n_listed; /* twice as many */
        w->first = last - least < n ? least : last - n + 1;
        status = list_shortcuts(&w->list, w->stream, w->first, last, err);
        leave_out(&w->list, w->avoid);
    }
    if (w->list.n > 0)
        qsort(w->list.edges, w->list.n, sizeof *w->list.edges, dw_edge_compare);
    return status;
}

/* The shortcut to VERSION that begins furthest below it but not below LEAST, or the
 * commit if there is none. A fold is hardly ever larger than what it folds. */
static dw_edge longest_shortcut(const dw_graph *shortcuts, uint64_t version,
                                uint64_t least)
{
    dw_edge longest = {.from = version - 1, .to = version};
    for (size_t i = dw_edges_find(shortcuts->edges, shortcuts->n, version);
         i < shortcuts->n && shortcuts->edges[i].to == version; i++) {
        const uint64_t from = shortcuts->edges[i].from;
        if (from >= least && from < longest.from)
            longest.from = from;
    }
    return longest;
}

/* Adds the edges of a route from LEAST to the goal. If a commit on it is missing or bad,
 * the route ends there, and the caller finds that it does not lead on. */
static dw_status add_path(dw_graph *graph, near_shortcuts *w, uint64_t least,
                          dw_error *err)
{
    dw_status status = DW_OK;
    for (uint64_t version = w->goal; status == DW_OK && version > least;) {
        const dw_edge edge = longest_shortcut(&w->list, version, least);
        const bool is_commit = edge.from + 1 == version;
        if (is_commit && w->avoid && dw_graph_has(w->avoid, edge.from, version))
            break;
        if (!dw_graph_has(graph, edge.from, version))
            status = is_commit ? add_commit(graph, w->stream, version, err)
                               : add_shortcut(graph, w->stream, edge, err);
        if (!dw_stream_passes_over(status)) {
            version = edge.from;
        } else {
            status = DW_OK;
            if (is_commit)
                break;
            dw_graph_remove(&w->list, edge.from, version);
        }
    }
    return status;
}

/* Adds a route from the newest anchor that is good or, if there is none, from version 0.
 */
static dw_status add_path_from_nothing(dw_graph *graph, near_shortcuts *w, dw_error *err)
{
    for (;;) {
        dw_edge edge = {.from = DW_NO_VERSION};
        dw_status status = list_down(w, 0, 0, err);
        if (status != DW_OK)
            return status;
        edge.to = dw_graph_newest_anchor(&w->list);
        const bool has_anchor = edge.to != DW_NO_VERSION;
        if (!has_anchor)
            edge.to = 0;
        status = has_anchor ? add_shortcut(graph, w->stream, edge, err)
                            : add_commit(graph, w->stream, 0, err);
        if (!dw_stream_passes_over(status))
            return status == DW_OK ? add_path(graph, w, edge.to, err) : status;
        if (!has_anchor)
            return DW_OK;
        dw_graph_remove(&w->list, DW_NO_VERSION, edge.to);
    }
}

/* Whether the graph leads from AT to GOAL for less than the whole model. */
static bool is_cheap(const dw_graph *graph, const dw_stream *s, uint64_t at,
                     uint64_t goal)
{
    dw_edge *route;
    size_t n;
    uint64_t n_bytes, model_bytes = 0;
    if (dw_graph_plan_from(&route, &n, &n_bytes, graph, at, goal, NULL) != DW_OK)
        return false;
    dw_free(route);
    for (size_t i = 0; i < s->record.n_tensors; i++)
        model_bytes += s->record.tensors[i].n_bytes;
    return n_bytes + n * DW_REQUEST_BYTES < model_bytes;
}

/* A route from AT and, unless that is cheap, one from nothing. The cheapest route is the
 * one or the other. */
static dw_status load_paths(dw_graph *graph, dw_stream *s, uint64_t at, uint64_t goal,
                            const dw_graph *avoid, dw_error *err)
{
    near_shortcuts w = {.stream = s, .avoid = avoid, .goal = goal, .first = goal + 1};
    dw_status status = DW_OK;
    if (at < goal) { /* DW_NO_VERSION is the highest number */
        status = list_down(&w, at + 1, MAX_LOOK, err);
        if (status == DW_OK && w.first == at + 1)
            status = add_path(graph, &w, at, err);
    }
    if (status == DW_OK && !(at < goal && is_cheap(graph, s, at, goal)))
        status = add_path_from_nothing(graph, &w, err);
    leave_out(graph, avoid);
    dw_graph_release(&w.list);
    return status;
}

/* ---- everything ---- */

/* Adds the commits [BEGIN, END). The fault of the first that is not good is kept in
 * FAULT. */
static dw_status add_commits(dw_graph *graph, dw_stream *s, uint64_t begin, uint64_t end,
                             dw_error *fault, dw_error *err)
{
    dw_status status = DW_OK;
    for (uint64_t v = begin; status == DW_OK && v < end; v++) {
        dw_error error = {0};
        status = add_commit(graph, s, v, &error);
        if (status == DW_NOT_FOUND)
            status = dw_stream_fail_hole(
                s, v, s->head != DW_NO_VERSION && s->head > v ? s->head : end, &error);
        if (dw_stream_passes_over(status)) {
            if (fault->code == DW_OK)
                *fault = error;
            status = DW_OK;
        } else if (status != DW_OK && err) {
            *err = error;
        }
    }
    return status;
}

/* The first commit that is needed below version END: the one after the newest anchor
 * there, or 0. */
static uint64_t begin_below(const dw_graph *graph, uint64_t end)
{
    uint64_t begin = 0;
    for (size_t i = 0; i < graph->n; i++)
        if (graph->edges[i].from == DW_NO_VERSION && graph->edges[i].to + 1 < end &&
            graph->edges[i].to + 1 > begin)
            begin = graph->edges[i].to + 1;
    return begin;
}

/* The first commit whose objects may be there. floor.json is a hint: it is believed if
 * it has its anchor. */
static uint64_t find_lowest(const dw_graph *graph, dw_stream *s, uint64_t at)
{
    uint64_t floor = 0;
    if (dw_stream_floor(s, &floor, NULL) != DW_OK ||
        !dw_graph_has(graph, DW_NO_VERSION, floor))
        return 0;
    return at != DW_NO_VERSION && at < floor ? at + 1 : floor + 1;
}

/* Commits are read from the newest anchor on, or from AT if that is near; if that
 * does not lead there, for something on the way is broken or to be avoided, from the
 * anchor before, and so on. */
static dw_status load_all(dw_graph *graph, dw_stream *s, uint64_t at, uint64_t goal,
                          const dw_graph *avoid, dw_error *err)
{
    dw_status status = dw_graph_load_shortcuts(graph, s, 0, DW_NO_VERSION, err);
    if (status != DW_OK)
        return status;
    leave_out(graph, avoid);
    const uint64_t lowest = find_lowest(graph, s, at);
    uint64_t end = goal + 1, begin = begin_below(graph, end + 1);
    if (at < begin && begin - at <= MAX_WALK)
        begin = at + 1;
    dw_error fault = {0};
    bool leads = false;
    for (;;) {
        status = add_commits(graph, s, begin, end, &fault, err);
        leave_out(graph, avoid);
        leads = status == DW_OK && leads_there(graph, at, goal);
        if (status != DW_OK || leads || begin <= lowest)
            break;
        end = begin;
        begin = begin_below(graph, end);
        begin = begin < lowest ? lowest : begin;
    }
    if (status == DW_OK && !leads && fault.code != DW_OK) {
        if (err)
            *err = fault;
        status = fault.code;
    }
    return status;
}

/* ---- all of it ---- */

dw_status dw_graph_load(dw_graph *out, dw_stream *s, uint64_t at, uint64_t goal,
                        const dw_graph *avoid, dw_error *err)
{
    *out = (dw_graph){0};
    dw_status status = DW_OK;
    const bool full = avoid && avoid->n > 0;
    if (at != DW_NO_VERSION && at < goal && goal - at == 1 && !full) {
        status = add_commit(out, s, goal, err);
        if (!dw_stream_passes_over(status) && (status != DW_OK || out->n > 0))
            return status; /* the ordinary step: nothing else to read */
    } else if (!full) {
        status = load_hint(out, s, goal, err);
        if (status == DW_OK && hint_is_enough(out, at, goal))
            return DW_OK;
    }
    dw_graph_release(out);
    if (status == DW_OK || dw_stream_passes_over(status))
        status = load_paths(out, s, at, goal, avoid, err);
    if (status == DW_OK && leads_there(out, at, goal))
        return DW_OK;
    dw_graph_release(out);
    if (status == DW_OK)
        status = load_all(out, s, at, goal, avoid, err);
    if (status != DW_OK)
        dw_graph_release(out);
    return status;
}
