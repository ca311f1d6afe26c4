/* The edges of a stream, and the cheapest route along them. */
#ifndef DW_STREAM_GRAPH_H
#define DW_STREAM_GRAPH_H

#include "stream/stream.h"

typedef struct dw_graph {
    dw_edge *edges;
    size_t n;
    size_t n_room;
} dw_graph;

void dw_graph_release(dw_graph *graph);
dw_status dw_graph_add(dw_graph *graph, dw_edge edge, dw_error *err);

/* For qsort over dw_edge: by end, then by beginning. */
int dw_edge_compare(const void *left, const void *right);

/* In N edges sorted by dw_edge_compare: the index of the first that ends at VERSION or
 * above it. */
size_t dw_edges_find(const dw_edge *edges, size_t n, uint64_t version);

/* The newest version that an anchor leads to, or DW_NO_VERSION. */
uint64_t dw_graph_newest_anchor(const dw_graph *graph);

/* Whether the edge is there. */
bool dw_graph_has(const dw_graph *graph, uint64_t from, uint64_t to);

/* Takes the edge out, as one that turned out not to lead anywhere. */
void dw_graph_remove(dw_graph *graph, uint64_t from, uint64_t to);

/* Edges that lead from AT (DW_NO_VERSION: from nothing) to GOAL, which must be committed,
 * without those of AVOID, which may be NULL. The cheapest route is among them, if nothing
 * is damaged. The number of records that are read grows with the number of edges on that
 * shortcut. Only if something is damaged or missing, the records of all edges are read.
 */
dw_status dw_graph_load(dw_graph *out, dw_stream *stream, uint64_t at, uint64_t goal,
                        const dw_graph *avoid, dw_error *err);

/* The shortcuts to versions FIRST to LAST, with their sizes: folded deltas and anchors.
 */
dw_status dw_graph_load_shortcuts(dw_graph *out, dw_stream *stream, uint64_t first,
                                  uint64_t last, dw_error *err);

/* A request costs as much as so many bytes: keeps many tiny objects from being
 * preferred to one that is a little larger. */
#define DW_REQUEST_BYTES (64u << 10)

/* The cheapest route from AT to GOAL in bytes. Sets *ROUTE to edges of the graph in the
 * order of travel, dw_free; *N is 0 and *ROUTE NULL if AT is GOAL. DW_NOT_FOUND if
 * no route leads there. A route from nothing is considered too, whatever AT is. */
dw_status dw_graph_plan(dw_edge **route, size_t *n, uint64_t *n_bytes,
                        const dw_graph *graph, uint64_t at, uint64_t goal, dw_error *err);

/* The same without routes from nothing. */
dw_status dw_graph_plan_from(dw_edge **route, size_t *n, uint64_t *n_bytes,
                             const dw_graph *graph, uint64_t at, uint64_t goal,
                             dw_error *err);

#endif
