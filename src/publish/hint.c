/* latest.json, the hint for readers: the newest version, and the edges that lead to it.
 * It may be old or missing: readers then look at the stream itself. */
#include "publish/hint.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"

/* ---- the lock is held ---- */

/* A repair, or another process, may have added the edge already. */
static dw_status add_edge(dw_hint *h, dw_edge edge, dw_error *err)
{
    return dw_graph_has(&h->graph, edge.from, edge.to)
               ? DW_OK
               : dw_graph_add(&h->graph, edge, err);
}

/* Removes the edges from versions before the newest anchor. */
static void prune(dw_hint *h)
{
    const uint64_t anchor = dw_graph_newest_anchor(&h->graph);
    size_t kept = 0;
    for (size_t i = 0; i < h->graph.n; i++) {
        const dw_edge e = h->graph.edges[i];
        bool useful = e.from == DW_NO_VERSION
                          ? e.to == anchor
                          : anchor == DW_NO_VERSION || e.from >= anchor;
        if (useful)
            h->graph.edges[kept++] = e;
    }
    h->graph.n = kept;
}

/* Keeps the edges of the hint that is there. A collection takes none that begins at the
 * newest anchor or above, so all that are not pruned are still good. Releases the lock
 * while the store works. */
static void refresh(dw_hint *h, dw_stream *s)
{
    dw_latest_record found;
    pthread_mutex_unlock(&h->lock);
    const bool is_there = dw_stream_read_latest(s, &found, NULL) == DW_OK;
    pthread_mutex_lock(&h->lock);
    if (!is_there)
        return;
    for (size_t i = 0; i < found.n_edges; i++)
        if (found.edges[i].to <= h->head)
            (void)add_edge(h, found.edges[i], NULL);
    prune(h);
    dw_latest_record_release(&found);
}

/* Releases the lock while the store works. */
static dw_status put_once(dw_hint *h, dw_stream *s, dw_error *err)
{
    refresh(h, s);
    size_t skip = h->graph.n > DW_MAX_EDGES ? h->graph.n - DW_MAX_EDGES : 0;
    if (skip > 0) /* the oldest are left out */
        qsort(h->graph.edges, h->graph.n, sizeof *h->graph.edges, dw_edge_compare);
    dw_latest_record latest = {
        .version = h->head,
        .edges = h->graph.edges + skip,
        .n_edges = h->graph.n - skip,
    };
    memcpy(latest.stream, s->record.stream, sizeof latest.stream);
    dw_writer bytes = {0};
    dw_status status = dw_latest_record_write(&bytes, &latest, err);
    pthread_mutex_unlock(&h->lock);
    if (status == DW_OK)
        status = dw_store_put_bytes(s->store, DW_KEY_LATEST, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_REPLACE, err);
    dw_writer_release(&bytes);
    pthread_mutex_lock(&h->lock);
    return status;
}

/* If another thread is putting the hint, that thread puts it once more. Nobody waits. */
static dw_status put(dw_hint *h, dw_stream *s, dw_error *err)
{
    dw_status status = DW_OK;
    h->is_stale = true;
    if (h->is_put)
        return DW_OK;
    for (h->is_put = true; h->is_stale;) {
        h->is_stale = false;
        status = put_once(h, s, err);
    }
    h->is_put = false;
    return status;
}

/* ---- all threads ---- */

void dw_hint_init(dw_hint *h)
{
    *h = (dw_hint){.head = DW_NO_VERSION};
    pthread_mutex_init(&h->lock, NULL);
}

void dw_hint_release(dw_hint *h)
{
    dw_graph_release(&h->graph);
    pthread_mutex_destroy(&h->lock);
}

dw_status dw_hint_load(dw_hint *h, dw_stream *s, uint64_t head, dw_error *err)
{
    dw_graph graph = {0};
    dw_status status = dw_graph_load(&graph, s, DW_NO_VERSION, head, NULL, err);
    pthread_mutex_lock(&h->lock);
    h->head = head;
    if (status == DW_OK) { /* otherwise the old edges stay */
        dw_graph_release(&h->graph);
        h->graph = graph;
    } else {
        dw_graph_release(&graph);
    }
    prune(h);
    pthread_mutex_unlock(&h->lock);
    return status;
}

void dw_hint_refresh(dw_hint *h, dw_stream *s)
{
    pthread_mutex_lock(&h->lock);
    refresh(h, s);
    pthread_mutex_unlock(&h->lock);
}

dw_status dw_hint_put(dw_hint *h, dw_stream *s, dw_error *err)
{
    pthread_mutex_lock(&h->lock);
    dw_status status = put(h, s, err);
    pthread_mutex_unlock(&h->lock);
    return status;
}

dw_status dw_hint_commit(dw_hint *h, dw_stream *s, uint64_t head, uint64_t n_bytes,
                         uint64_t n_objects, dw_error *err)
{
    pthread_mutex_lock(&h->lock);
    h->head = head;
    dw_status status = add_edge(h, (dw_edge){head - 1, head, n_bytes, n_objects}, err);
    if (status == DW_OK)
        status = put(h, s, err);
    pthread_mutex_unlock(&h->lock);
    return status;
}

dw_status dw_hint_add(dw_hint *h, dw_stream *s, dw_edge edge, dw_error *err)
{
    pthread_mutex_lock(&h->lock);
    const bool was_there = dw_graph_has(&h->graph, edge.from, edge.to);
    dw_status status = add_edge(h, edge, err);
    prune(h);
    if (status == DW_OK && !was_there && dw_graph_has(&h->graph, edge.from, edge.to))
        status = put(h, s, err);
    pthread_mutex_unlock(&h->lock);
    return status;
}

uint64_t dw_hint_newest(dw_hint *h, uint64_t *head)
{
    pthread_mutex_lock(&h->lock);
    const uint64_t newest = dw_graph_newest_anchor(&h->graph);
    *head = h->head;
    pthread_mutex_unlock(&h->lock);
    return newest;
}

/* ---- what is due ---- */

/* The bytes of the cheapest route from FROM to the head. False if none is known. */
static bool find_cost(const dw_hint *h, uint64_t from, uint64_t *n_bytes)
{
    dw_edge *route;
    size_t n;
    if (dw_graph_plan_from(&route, &n, n_bytes, &h->graph, from, h->head, NULL) != DW_OK)
        return false;
    dw_free(route);
    return true;
}

static bool anchor_due(const dw_hint *h, const dw_due_rule *rule, uint64_t start)
{
    uint64_t n_bytes;
    if (start >= h->head)
        return false;
    if (rule->anchor_every > 0 && h->head - start >= rule->anchor_every)
        return true;
    return rule->anchor_factor > 0 &&
           (!find_cost(h, start, &n_bytes) ||
            (double)n_bytes > rule->anchor_factor * (double)rule->model_bytes);
}

bool dw_hint_due(dw_hint *h, const dw_due_rule *rule, dw_edge *due)
{
    bool is_due = false;
    pthread_mutex_lock(&h->lock);
    if (h->head != DW_NO_VERSION) {
        const uint64_t anchor = dw_graph_newest_anchor(&h->graph);
        uint64_t start = anchor == DW_NO_VERSION ? 0 : anchor;
        *due = (dw_edge){.from = DW_NO_VERSION, .to = h->head};
        is_due = anchor_due(h, rule, start);
        if (!is_due && rule->fold_every > 0) {
            while (dw_graph_has(&h->graph, start, start + rule->fold_every))
                start += rule->fold_every;
            *due = (dw_edge){.from = start, .to = start + rule->fold_every};
            is_due = due->to <= h->head;
        }
    }
    pthread_mutex_unlock(&h->lock);
    return is_due;
}
