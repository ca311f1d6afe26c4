/* latest.json, the hint for readers: the newest version, and the edges that lead to it.
 * It may be old or missing: readers then look at the stream itself. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "publish/publisher.h"
#include "store/store.h"

/* ---- the lock is held ---- */

/* Removes the edges from versions before the newest anchor. */
static void prune(dw_hint *h)
{
    h->anchor = dw_graph_newest_anchor(&h->graph);
    size_t kept = 0;
    for (size_t i = 0; i < h->graph.n; i++) {
        const dw_edge e = h->graph.edges[i];
        bool useful = e.from == DW_NO_VERSION
                          ? e.to == h->anchor
                          : h->anchor == DW_NO_VERSION || e.from >= h->anchor;
        if (useful)
            h->graph.edges[kept++] = e;
    }
    h->graph.n = kept;
}

/* Releases the lock while the store works. */
static dw_status put_once(dw_publisher *p, dw_error *err)
{
    dw_hint *h = &p->hint;
    size_t skip = h->graph.n > DW_MAX_EDGES ? h->graph.n - DW_MAX_EDGES : 0;
    dw_latest_record latest = {
        .version = h->head,
        .edges = h->graph.edges + skip,
        .n_edges = h->graph.n - skip,
        .upkeep_dropped = dw_upkeep_dropped(p),
    };
    memcpy(latest.stream, p->stream->record.stream, sizeof latest.stream);
    dw_writer bytes = {0};
    dw_status status = dw_latest_record_write(&bytes, &latest, err);
    pthread_mutex_unlock(&h->lock);
    if (status == DW_OK)
        status = dw_store_put_bytes(p->store, DW_KEY_LATEST, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_REPLACE, err);
    dw_writer_release(&bytes);
    pthread_mutex_lock(&h->lock);
    return status;
}

/* If another thread is putting the hint, that thread puts it once more. Nobody waits. */
static dw_status put(dw_publisher *p, dw_error *err)
{
    dw_hint *h = &p->hint;
    dw_status status = DW_OK;
    h->is_stale = true;
    if (h->is_put)
        return DW_OK;
    for (h->is_put = true; h->is_stale;) {
        h->is_stale = false;
        status = put_once(p, err);
    }
    h->is_put = false;
    return status;
}

/* ---- all threads ---- */

void dw_hint_init(dw_hint *h)
{
    *h = (dw_hint){.anchor = DW_NO_VERSION, .head = DW_NO_VERSION};
    pthread_mutex_init(&h->lock, NULL);
}

void dw_hint_release(dw_hint *h)
{
    dw_graph_release(&h->graph);
    pthread_mutex_destroy(&h->lock);
}

dw_status dw_hint_load(dw_publisher *p, dw_error *err)
{
    dw_hint *h = &p->hint;
    dw_graph graph = {0};
    dw_status status = dw_graph_load(&graph, p->stream, DW_NO_VERSION,
                                     p->commits.head.version, NULL, err);
    pthread_mutex_lock(&h->lock);
    h->head = p->commits.head.version;
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

dw_status dw_hint_put(dw_publisher *p, dw_error *err)
{
    pthread_mutex_lock(&p->hint.lock);
    dw_status status = put(p, err);
    pthread_mutex_unlock(&p->hint.lock);
    return status;
}

/* A repair may have read the edge from the stream already. */
static dw_status add_edge(dw_hint *h, dw_edge edge, dw_error *err)
{
    return dw_graph_has(&h->graph, edge.from, edge.to)
               ? DW_OK
               : dw_graph_add(&h->graph, edge, err);
}

dw_status dw_hint_commit(dw_publisher *p, uint64_t n_bytes, uint64_t n_objects,
                         dw_error *err)
{
    dw_hint *h = &p->hint;
    const dw_edge edge = {p->commits.head.version - 1, p->commits.head.version, n_bytes,
                          n_objects};
    pthread_mutex_lock(&h->lock);
    h->head = p->commits.head.version;
    dw_status status = add_edge(h, edge, err);
    if (status == DW_OK)
        status = put(p, err);
    pthread_mutex_unlock(&h->lock);
    return status;
}

dw_status dw_hint_add(dw_hint *h, dw_edge edge, dw_error *err)
{
    pthread_mutex_lock(&h->lock);
    dw_status status = add_edge(h, edge, err);
    if (edge.from == DW_NO_VERSION)
        prune(h);
    pthread_mutex_unlock(&h->lock);
    return status;
}

uint64_t dw_hint_head(dw_hint *h)
{
    pthread_mutex_lock(&h->lock);
    const uint64_t head = h->head;
    pthread_mutex_unlock(&h->lock);
    return head;
}

uint64_t dw_hint_anchor(dw_hint *h)
{
    pthread_mutex_lock(&h->lock);
    const uint64_t anchor = h->anchor;
    pthread_mutex_unlock(&h->lock);
    return anchor;
}

bool dw_hint_cost(dw_hint *h, uint64_t from, uint64_t to, uint64_t *n_bytes)
{
    dw_edge *route;
    size_t n;
    pthread_mutex_lock(&h->lock);
    const bool found =
        dw_graph_plan_from(&route, &n, n_bytes, &h->graph, from, to, NULL) == DW_OK;
    pthread_mutex_unlock(&h->lock);
    if (found)
        dw_free(route);
    return found;
}
