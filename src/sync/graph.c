#include "sync/graph.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

/* More than that is not walked commit by commit: the store is listed. */
#define MAX_WALK 64

void dw_graph_release(dw_graph *graph)
{
    dw_free(graph->edges);
    *graph = (dw_graph){0};
}

dw_status dw_graph_add(dw_graph *graph, dw_edge edge, dw_error *err)
{
    if (!dw_grow_array((void **)&graph->edges, &graph->n_room, graph->n, sizeof edge))
        return dw_fail_memory(err, NULL);
    graph->edges[graph->n++] = edge;
    return DW_OK;
}

bool dw_graph_has(const dw_graph *graph, uint64_t from, uint64_t to)
{
    for (size_t i = 0; i < graph->n; i++)
        if (graph->edges[i].from == from && graph->edges[i].to == to)
            return true;
    return false;
}

void dw_graph_remove(dw_graph *graph, uint64_t from, uint64_t to)
{
    size_t kept = 0;
    for (size_t i = 0; i < graph->n; i++)
        if (graph->edges[i].from != from || graph->edges[i].to != to)
            graph->edges[kept++] = graph->edges[i];
    graph->n = kept;
}

/* ---- loading ---- */

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

static dw_status visit_way(void *context, const dw_store_entry *entry, dw_error *err)
{
    dw_graph *found = context;
    dw_edge edge = {0};
    if (!dw_key_is_way(entry->key, &edge.to, &edge.from))
        return DW_OK;
    return dw_graph_add(found, edge, err);
}

dw_status dw_graph_load_ways(dw_graph *out, dw_stream *s, dw_error *err)
{
    dw_graph found = {0};
    dw_status status = dw_store_list(s->store, "ways/", NULL, visit_way, &found, err);
    for (size_t i = 0; status == DW_OK && i < found.n; i++) {
        dw_edge edge = found.edges[i];
        dw_way_record way;
        status = dw_stream_read_way(s, edge.to, edge.from, &way, err);
        if (dw_stream_passes_over(status)) {
            status = DW_OK; /* collected meanwhile, or of no use: there are other ways */
            continue;
        }
        if (status != DW_OK)
            break;
        edge.n_bytes = dw_objects_bytes(&way.objects);
        edge.n_objects = way.objects.n;
        dw_way_record_release(&way);
        status = dw_graph_add(out, edge, err);
    }
    dw_graph_release(&found);
    return status;
}

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

static void leave_out(dw_graph *graph, const dw_graph *avoid)
{
    for (size_t i = 0; avoid && i < avoid->n; i++)
        dw_graph_remove(graph, avoid->edges[i].from, avoid->edges[i].to);
}

static bool leads_there(const dw_graph *graph, uint64_t at, uint64_t goal)
{
    dw_edge *path;
    size_t n;
    bool leads = dw_graph_plan(&path, &n, NULL, graph, at, goal, NULL) == DW_OK;
    dw_free(path);
    return leads;
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

/* The first commit whose objects may be there. floor.json is a hint: it is believed where
 * it has its anchor. */
static uint64_t find_lowest(const dw_graph *graph, dw_stream *s, uint64_t at)
{
    uint64_t floor = 0;
    if (dw_stream_read_floor(s, &floor, NULL) != DW_OK ||
        !dw_graph_has(graph, DW_NO_VERSION, floor))
        return 0;
    return at != DW_NO_VERSION && at < floor ? at + 1 : floor + 1;
}

/* Commits are read from the newest anchor on, or from AT where that is near; where that
 * does not lead there, for something on the way is broken or to be avoided, from the
 * anchor before, and so on. */
static dw_status load_all(dw_graph *graph, dw_stream *s, uint64_t at, uint64_t goal,
                          const dw_graph *avoid, dw_error *err)
{
    dw_status status = dw_graph_load_ways(graph, s, err);
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
        if (status == DW_OK && leads_there(out, at, goal))
            return DW_OK;
    }
    dw_graph_release(out);
    if (status == DW_OK || dw_stream_passes_over(status))
        status = load_all(out, s, at, goal, avoid, err);
    if (status != DW_OK)
        dw_graph_release(out);
    return status;
}

/* ---- planning ---- */

int dw_edge_compare(const void *left, const void *right)
{
    const dw_edge *a = left, *b = right;
    return a->to != b->to ? (a->to > b->to) - (a->to < b->to)
                          : (a->from > b->from) - (a->from < b->from);
}

/* The best way found to an edge's end. */
typedef struct reach {
    uint64_t cost; /* UINT64_MAX: none */
    size_t before; /* the edge before, or SIZE_MAX */
} reach;

static uint64_t cost_of(const dw_edge *edge)
{
    uint64_t requests = edge->n_objects < 1u << 20 ? edge->n_objects + 1 : 1u << 20;
    return edge->n_bytes / 2 +
           requests * (DW_REQUEST_BYTES / 2); /* halves: no overflow */
}

/* The cheapest of the edges [0, n) that end at VERSION; they are sorted. SIZE_MAX: none.
 */
static size_t best_to(const dw_edge *edges, const reach *found, size_t n,
                      uint64_t version)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (edges[middle].to < version)
            low = middle + 1;
        else
            high = middle;
    }
    size_t best = SIZE_MAX;
    for (size_t i = low; i < n && edges[i].to == version; i++)
        if (found[i].cost != UINT64_MAX &&
            (best == SIZE_MAX || found[i].cost < found[best].cost))
            best = i;
    return best;
}

static dw_status plan(dw_edge **path, size_t *n, uint64_t *n_bytes, const dw_graph *graph,
                      uint64_t at, bool from_nothing, uint64_t goal, dw_error *err)
{
    *path = NULL;
    *n = 0;
    if (n_bytes)
        *n_bytes = 0;
    if (at == goal)
        return DW_OK;
    dw_edge *edges = dw_alloc_array(graph->n, sizeof *edges);
    reach *found = dw_alloc_array(graph->n, sizeof *found);
    dw_status status = edges && found ? DW_OK : dw_fail_memory(err, NULL);
    if (status != DW_OK)
        goto out;
    if (graph->n > 0)
        memcpy(edges, graph->edges, graph->n * sizeof *edges);
    qsort(edges, graph->n, sizeof *edges, dw_edge_compare);
    /* edges lead upwards, so their order by end is an order of travel */
    for (size_t i = 0; i < graph->n; i++) {
        const dw_edge *e = &edges[i];
        uint64_t own = cost_of(e);
        found[i] = (reach){UINT64_MAX, SIZE_MAX};
        if (e->from == DW_NO_VERSION ? from_nothing : e->from == at) {
            found[i].cost = own;
        } else if (e->from < e->to) {
            size_t before = best_to(edges, found, i, e->from);
            if (before != SIZE_MAX && found[before].cost < UINT64_MAX - own)
                found[i] = (reach){found[before].cost + own, before};
        }
    }
    size_t last = best_to(edges, found, graph->n, goal);
    if (last == SIZE_MAX) {
        status = dw_fail(err, DW_NOT_FOUND, NULL,
                         "no way leads to version %" PRIu64 ": it has neither an anchor "
                         "below it nor deltas from where the weights are",
                         goal);
        goto out;
    }
    for (size_t i = last; i != SIZE_MAX; i = found[i].before)
        (*n)++;
    *path = dw_alloc_array(*n, sizeof **path);
    if (!*path) {
        status = dw_fail_memory(err, NULL);
        goto out;
    }
    size_t place = *n;
    for (size_t i = last; i != SIZE_MAX; i = found[i].before) {
        (*path)[--place] = edges[i];
        if (n_bytes)
            *n_bytes += edges[i].n_bytes;
    }
out:
    dw_free(edges);
    dw_free(found);
    return status;
}

dw_status dw_graph_plan(dw_edge **path, size_t *n, uint64_t *n_bytes,
                        const dw_graph *graph, uint64_t at, uint64_t goal, dw_error *err)
{
    return plan(path, n, n_bytes, graph, at, true, goal, err);
}

dw_status dw_graph_plan_from(dw_edge **path, size_t *n, uint64_t *n_bytes,
                             const dw_graph *graph, uint64_t at, uint64_t goal,
                             dw_error *err)
{
    return plan(path, n, n_bytes, graph, at, false, goal, err);
}
