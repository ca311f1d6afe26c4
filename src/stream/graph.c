#include "stream/graph.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

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

uint64_t dw_graph_newest_anchor(const dw_graph *graph)
{
    uint64_t newest = DW_NO_VERSION;
    for (size_t i = 0; i < graph->n; i++) {
        const dw_edge *e = &graph->edges[i];
        if (e->from == DW_NO_VERSION && (newest == DW_NO_VERSION || e->to > newest))
            newest = e->to;
    }
    return newest;
}

/* ---- planning ---- */

int dw_edge_compare(const void *left, const void *right)
{
    const dw_edge *a = left, *b = right;
    return a->to != b->to ? (a->to > b->to) - (a->to < b->to)
                          : (a->from > b->from) - (a->from < b->from);
}

size_t dw_edges_find(const dw_edge *edges, size_t n, uint64_t version)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (edges[middle].to < version)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The cheapest route found to an edge's end. */
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
    size_t best = SIZE_MAX;
    for (size_t i = dw_edges_find(edges, n, version); i < n && edges[i].to == version;
         i++)
        if (found[i].cost != UINT64_MAX &&
            (best == SIZE_MAX || found[i].cost < found[best].cost))
            best = i;
    return best;
}

static dw_status plan(dw_edge **route, size_t *n, uint64_t *n_bytes,
                      const dw_graph *graph, uint64_t at, bool from_nothing,
                      uint64_t goal, dw_error *err)
{
    *route = NULL;
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
        status =
            dw_fail(err, DW_NOT_FOUND, NULL,
                    "no route leads to version %" PRIu64 ": it has neither an anchor "
                    "below it nor deltas from where the weights are",
                    goal);
        goto out;
    }
    for (size_t i = last; i != SIZE_MAX; i = found[i].before)
        (*n)++;
    *route = dw_alloc_array(*n, sizeof **route);
    if (!*route) {
        status = dw_fail_memory(err, NULL);
        goto out;
    }
    size_t left = *n;
    for (size_t i = last; i != SIZE_MAX; i = found[i].before) {
        (*route)[--left] = edges[i];
        if (n_bytes)
            *n_bytes += edges[i].n_bytes;
    }
out:
    dw_free(edges);
    dw_free(found);
    return status;
}

dw_status dw_graph_plan(dw_edge **route, size_t *n, uint64_t *n_bytes,
                        const dw_graph *graph, uint64_t at, uint64_t goal, dw_error *err)
{
    return plan(route, n, n_bytes, graph, at, true, goal, err);
}

dw_status dw_graph_plan_from(dw_edge **route, size_t *n, uint64_t *n_bytes,
                             const dw_graph *graph, uint64_t at, uint64_t goal,
                             dw_error *err)
{
    return plan(route, n, n_bytes, graph, at, false, goal, err);
}
