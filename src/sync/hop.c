/* Finding the newest version, and reading the records behind an edge. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "sync/graph.h"

/* ---- the head ---- */

static dw_status commit_exists(dw_stream *s, uint64_t version, bool *exists,
                               dw_error *err)
{
    char key[DW_KEY_TEXT];
    dw_key_commit(key, version);
    dw_status status = dw_store_stat(s->store, key, NULL, NULL, err);
    *exists = status == DW_OK;
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static dw_status visit_commit(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    uint64_t *newest = context, version;
    if (dw_key_is_commit(entry->key, &version) &&
        (*newest == DW_NO_VERSION || version > *newest))
        *newest = version;
    return DW_OK;
}

/* How far is walked one by one before the store is listed. */
#define MAX_STEPS 32

/* Asks for version after version. Sets *MORE where it gave up before the last. */
static dw_status walk_up(dw_stream *s, uint64_t *known, bool *more, dw_error *err)
{
    *more = true;
    dw_status status = DW_OK;
    for (unsigned steps = 0; status == DW_OK && *more && steps < MAX_STEPS; steps++) {
        uint64_t next = *known == DW_NO_VERSION ? 0 : *known + 1;
        status = commit_exists(s, next, more, err);
        if (status == DW_OK && *more)
            *known = next;
    }
    return status;
}

/* What the list shows above *KNOWN. It may be stale: the caller walks on from there. */
static dw_status jump_up(dw_stream *s, uint64_t *known, dw_error *err)
{
    char after[DW_KEY_TEXT];
    if (*known != DW_NO_VERSION)
        dw_key_commit(after, *known);
    return dw_store_list(s->store, "commits/", *known != DW_NO_VERSION ? after : NULL,
                         visit_commit, known, err);
}

/* The version that latest.json names, where it is there. */
static dw_status read_hint(dw_stream *s, uint64_t *known, dw_error *err)
{
    dw_latest_record latest;
    dw_status status = dw_stream_read_latest(s, &latest, err);
    if (status != DW_OK)
        return status;
    bool exists = false;
    if (latest.version != DW_NO_VERSION)
        status = commit_exists(s, latest.version, &exists, err);
    *known = exists ? latest.version : DW_NO_VERSION;
    dw_latest_record_release(&latest);
    return status;
}

dw_status dw_stream_find_head(dw_stream *s, uint64_t known, uint64_t *head, dw_error *err)
{
    dw_status status = DW_OK;
    if (known == DW_NO_VERSION)
        status = read_hint(s, &known, err);
    if (status == DW_OK && known == DW_NO_VERSION)
        status = jump_up(s, &known, err);
    bool more = true;
    while (status == DW_OK && more) {
        status = walk_up(s, &known, &more, err);
        if (status == DW_OK && more)
            status = jump_up(s, &known, err);
    }
    if (status != DW_OK)
        return status;
    if (known == DW_NO_VERSION)
        return dw_fail(err, DW_NOT_FOUND, dw_store_url(s->store),
                       "the stream has no version yet: its first publish was not "
                       "finished. Publish again");
    s->head = known;
    *head = known;
    return DW_OK;
}

/* ---- hops ---- */

static bool is_way(const dw_edge *edge)
{
    return edge->to != 0 && (edge->from == DW_NO_VERSION || edge->from + 1 != edge->to);
}

void dw_hop_release(dw_hop *hop)
{
    dw_objects_release(&hop->objects);
    dw_free(hop->fork.url);
    dw_free(hop->base);
    *hop = (dw_hop){0};
}

/* A way must lead to the very version that was committed. */
static dw_status check_way(dw_stream *s, const dw_way_record *way,
                           const dw_commit_record *commit, dw_error *err)
{
    if (dw_way_agrees(way, commit))
        return DW_OK;
    char key[DW_KEY_TEXT], where[DW_ERROR_WHERE_SIZE];
    dw_key_way(key, way->version, way->from);
    dw_store_where(s->store, key, where, sizeof where);
    return dw_fail(err, DW_UNTRUSTED, where,
                   "the way was not made for the version %" PRIu64 " that is committed",
                   way->version);
}

dw_status dw_hop_read(dw_hop *out, dw_stream *s, const dw_edge *edge, dw_error *err)
{
    *out = (dw_hop){.from = edge->from, .to = edge->to};
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(s, edge->to, &c, err);
    if (status != DW_OK)
        return status;
    out->state = c.state;
    out->epoch = c.epoch;
    memcpy(out->commit_sha256, c.seal.sha256, sizeof out->commit_sha256);
    if (is_way(edge)) {
        dw_way_record way;
        status = dw_stream_read_way(s, edge->to, edge->from, &way, err);
        if (status == DW_OK) {
            status = check_way(s, &way, &c, err);
            if (status == DW_OK) {
                memcpy(out->from_sha256, way.from_sha256, sizeof out->from_sha256);
                out->objects = way.objects;
                way.objects = (dw_objects){0};
            }
            dw_way_record_release(&way);
        }
        out->content = edge->from == DW_NO_VERSION ? DW_CONTENT_ANCHOR : DW_CONTENT_DELTA;
    } else {
        out->content = c.content;
        memcpy(out->from_sha256, c.parent_sha256, sizeof out->from_sha256);
        out->objects = c.objects;
        out->fork = c.fork;
        out->base = c.base;
        c.objects = (dw_objects){0};
        c.fork.url = NULL;
        c.base = NULL;
    }
    dw_commit_record_release(&c);
    if (status != DW_OK)
        dw_hop_release(out);
    return status;
}

/* ---- the ways, for people ---- */

dw_status dw_stream_ways(dw_stream *s, const dw_edge **ways, size_t *n_ways,
                         dw_error *err)
{
    dw_graph graph = {0};
    dw_status status = dw_graph_load_ways(&graph, s, err);
    if (status != DW_OK) {
        dw_graph_release(&graph);
        return status;
    }
    if (graph.n > 0)
        qsort(graph.edges, graph.n, sizeof *graph.edges, dw_edge_compare);
    dw_free(s->ways);
    s->ways = graph.edges;
    *ways = s->ways;
    *n_ways = graph.n;
    return DW_OK;
}
