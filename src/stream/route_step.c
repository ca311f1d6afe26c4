/* Reading the records behind an edge. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "stream/graph.h"
#include "inner.h"

static bool is_shortcut(const dw_edge *edge)
{
    return edge->to != 0 && (edge->from == DW_NO_VERSION || edge->from + 1 != edge->to);
}

void dw_route_step_release(dw_route_step *step)
{
    dw_objects_release(&step->objects);
    dw_free(step->fork.url);
    dw_free(step->base);
    *step = (dw_route_step){0};
}

/* A shortcut must lead to the very version that was committed. */
static dw_status check_shortcut(dw_stream *s, const dw_shortcut_record *shortcut,
                                const dw_commit_record *commit, dw_error *err)
{
    if (dw_shortcut_agrees(shortcut, commit))
        return DW_OK;
    char key[DW_KEY_TEXT], where[DW_ERROR_WHERE_SIZE];
    dw_key_shortcut(key, shortcut->version, shortcut->from);
    dw_store_where(s->store, key, where, sizeof where);
    return dw_fail(err, DW_UNTRUSTED, where,
                   "the shortcut was not made for the version %" PRIu64
                   " that is committed",
                   shortcut->version);
}

/* The step of EDGE, which leads to the version of C. Moves parts of C. */
static dw_status read_step(dw_route_step *out, dw_stream *s, const dw_edge *edge,
                           dw_commit_record *c, dw_error *err)
{
    dw_status status = DW_OK;
    *out = (dw_route_step){.from = edge->from, .to = edge->to};
    out->state = c->state;
    out->epoch = c->epoch;
    memcpy(out->commit_sha256, c->seal.sha256, sizeof out->commit_sha256);
    if (is_shortcut(edge)) {
        dw_shortcut_record shortcut;
        status = dw_stream_read_shortcut(s, edge->to, edge->from, &shortcut, err);
        if (status == DW_OK) {
            status = check_shortcut(s, &shortcut, c, err);
            if (status == DW_OK) {
                memcpy(out->from_sha256, shortcut.from_sha256, sizeof out->from_sha256);
                out->objects = shortcut.objects;
                shortcut.objects = (dw_objects){0};
            }
            dw_shortcut_record_release(&shortcut);
        }
        out->content = edge->from == DW_NO_VERSION ? DW_CONTENT_ANCHOR : DW_CONTENT_DELTA;
    } else if (c->restart) {
        status = dw_fail(err, DW_CORRUPT, dw_store_url(s->store),
                         "version %" PRIu64 " restarts the stream: no delta leads to it",
                         edge->to);
    } else {
        out->content = c->content;
        memcpy(out->from_sha256, c->parent_sha256, sizeof out->from_sha256);
        out->objects = c->objects;
        out->fork = c->fork;
        out->base = c->base;
        memcpy(out->base_sha256, c->base_sha256, sizeof out->base_sha256);
        c->objects = (dw_objects){0};
        c->fork.url = NULL;
        c->base = NULL;
    }
    if (status != DW_OK)
        dw_route_step_release(out);
    return status;
}

dw_status dw_route_step_read(dw_route_step *out, dw_stream *s, const dw_edge *edge,
                             dw_commit_record *commit, dw_error *err)
{
    dw_commit_record c;
    if (commit)
        return read_step(out, s, edge, commit, err);
    *out = (dw_route_step){0};
    dw_status status = dw_stream_read_commit(s, edge->to, &c, err);
    if (status != DW_OK)
        return status;
    status = read_step(out, s, edge, &c, err);
    dw_commit_record_release(&c);
    return status;
}

/* ---- shortcuts and routes, for people ---- */

/* Lends the edges out. */
static void lend(dw_stream *s, dw_edge *edges, size_t n, const dw_edge **out,
                 size_t *n_out)
{
    dw_free(s->shortcuts);
    s->shortcuts = edges;
    *out = edges;
    *n_out = n;
}

dw_status dw_stream_shortcuts_to(dw_stream *s, uint64_t first, uint64_t last,
                                 const dw_edge **shortcuts, size_t *n_shortcuts,
                                 dw_error *err)
{
    dw_graph graph = {0};
    dw_status status = dw_graph_load_shortcuts(&graph, s, first, last, err);
    if (status != DW_OK) {
        dw_graph_release(&graph);
        return status;
    }
    if (graph.n > 0)
        qsort(graph.edges, graph.n, sizeof *graph.edges, dw_edge_compare);
    lend(s, graph.edges, graph.n, shortcuts, n_shortcuts);
    return DW_OK;
}

dw_status dw_stream_shortcuts(dw_stream *s, const dw_edge **shortcuts,
                              size_t *n_shortcuts, dw_error *err)
{
    return dw_stream_shortcuts_to(s, 0, DW_NO_VERSION, shortcuts, n_shortcuts, err);
}

dw_status dw_stream_route(dw_stream *s, uint64_t from, uint64_t to, const dw_edge **edges,
                          size_t *n_edges, dw_error *err)
{
    dw_graph graph;
    dw_edge *path = NULL;
    size_t n = 0;
    if (s->head == DW_NO_VERSION || to > s->head) {
        char key[DW_KEY_TEXT];
        dw_key_commit(key, to);
        dw_status missing = dw_store_stat(s->store, key, NULL, NULL, err);
        if (missing != DW_OK)
            return missing;
    }
    dw_status status = dw_graph_load(&graph, s, from, to, NULL, err);
    if (status == DW_OK)
        status = dw_graph_plan(&path, &n, NULL, &graph, from, to, err);
    dw_graph_release(&graph);
    if (status == DW_OK)
        lend(s, path, n, edges, n_edges);
    return status;
}
