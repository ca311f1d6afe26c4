/* After a commit: the hint, anchors, and what publish_folds.c folds. All of it can fail
 * or be missing without harm to any version. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "publish/publisher.h"

/* ---- the graph near the head ---- */

/* Edges from before the newest anchor are of no use to the hint. */
static void prune(dw_publisher *p)
{
    p->anchor = dw_graph_newest_anchor(&p->graph);
    size_t kept = 0;
    for (size_t i = 0; i < p->graph.n; i++) {
        const dw_edge e = p->graph.edges[i];
        bool useful = e.from == DW_NO_VERSION
                          ? e.to == p->anchor
                          : p->anchor == DW_NO_VERSION || e.from >= p->anchor;
        if (useful)
            p->graph.edges[kept++] = e;
    }
    p->graph.n = kept;
}

static dw_status put_latest(dw_publisher *p, dw_error *err)
{
    size_t skip = p->graph.n > DW_MAX_EDGES ? p->graph.n - DW_MAX_EDGES : 0;
    dw_latest_record latest = {.version = p->head.version,
                               .edges = p->graph.edges + skip,
                               .n_edges = p->graph.n - skip};
    memcpy(latest.stream, p->stream->record.stream, sizeof latest.stream);
    dw_writer bytes = {0};
    dw_status status = dw_latest_record_write(&bytes, &latest, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(p->store, DW_KEY_LATEST, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_REPLACE, err);
    dw_writer_release(&bytes);
    return status;
}

/* A way that is there already is as good, and stays. */
dw_status dw_publisher_add_way(dw_publisher *p, const dw_position *from,
                               const dw_objects *objects, dw_error *err)
{
    dw_status status =
        dw_way_create(p->stream, from, &p->head, objects, p->options.sign_key, err);
    if (status != DW_OK && status != DW_CONFLICT)
        return status;
    const dw_edge edge = {from ? from->version : DW_NO_VERSION, p->head.version,
                          dw_objects_bytes(objects), objects->n};
    return dw_graph_add(&p->graph, edge, err);
}

/* ---- anchors ---- */

static bool anchor_due(const dw_publisher *p)
{
    if (p->sharded || p->anchor == p->head.version)
        return false;
    const uint64_t start = p->anchor == DW_NO_VERSION ? 0 : p->anchor;
    if (p->options.anchor_every > 0 && p->head.version - start >= p->options.anchor_every)
        return true;
    if (!(p->options.anchor_factor > 0))
        return false;
    dw_edge *path;
    size_t n;
    uint64_t n_bytes;
    if (dw_graph_plan_from(&path, &n, &n_bytes, &p->graph, start, p->head.version,
                           NULL) != DW_OK)
        return true; /* nothing leads from there to here any more */
    dw_free(path);
    return (double)n_bytes > p->options.anchor_factor * (double)p->model_bytes;
}

/* A fork with an anchor of its own holds its source back no more. Where the source may
 * not be written, the operator forgets it there. */
static void unpin_source(dw_publisher *p)
{
    char id[65], key[DW_KEY_TEXT];
    if (p->options.first != DW_FIRST_FORK || !p->options.fork_store)
        return;
    dw_fork_follower_id(id, p);
    dw_key_follower(key, id);
    (void)dw_store_remove(p->options.fork_store, key, NULL);
}

static dw_status put_anchor(dw_publisher *p, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    dw_objects objects = {0};
    const dw_progress stop = {dw_publisher_stop, p};
    dw_status status = dw_random_id(write_id, err);
    if (status == DW_OK)
        status = dw_anchor_upload(
            &objects, p->store, p->pieces.table, p->pieces.n_table, &p->pieces.owned,
            p->base_data,
            dw_whole_share(p->pieces.table, p->pieces.n_table, p->head.state),
            p->head.version, true, write_id, p->options.max_anchor_bytes, &stop, err);
    if (status == DW_OK)
        status = dw_publisher_add_way(p, NULL, &objects, err);
    if (status == DW_OK)
        unpin_source(p);
    dw_objects_release(&objects);
    return status;
}

/* ---- all of it ---- */

void dw_after_catch_up(dw_publisher *p)
{
    dw_graph graph;
    if (p->options.rank != 0 || dw_graph_load(&graph, p->stream, DW_NO_VERSION,
                                              p->head.version, NULL, NULL) != DW_OK)
        return; /* the hint then lacks an edge or two, which only costs */
    dw_graph_release(&p->graph);
    p->graph = graph;
    prune(p);
}

void dw_after_restart(dw_publisher *p)
{
    dw_after_catch_up(p);
    (void)put_latest(p, NULL); /* a hint: readers do without it */
}

dw_status dw_after_open(dw_publisher *p, dw_error *err)
{
    if (p->options.rank != 0)
        return DW_OK;
    dw_graph_release(&p->graph);
    dw_status status =
        dw_graph_load(&p->graph, p->stream, DW_NO_VERSION, p->head.version, NULL, err);
    if (dw_stream_stops(status))
        return status;
    prune(p); /* of a log with damage nothing is known, and an anchor is due */
    p->after_status = dw_folds_open(p, &p->after_error); /* versions need no folds */
    dw_status hint = put_latest(p, NULL);
    (void)hint; /* the next commit puts it again */
    return DW_OK;
}

void dw_after_close(dw_publisher *p)
{
    dw_folds_close(p);
    dw_graph_release(&p->graph);
}

/* A fold or an anchor was not made, because the baseline is not the version it should be.
 * It is repaired; what was not made is made at a later version. */
static dw_status examine(dw_publisher *p, dw_status fault, dw_error *err)
{
    bool damaged;
    dw_error found = {0};
    dw_status status = dw_sweep_all(p, &damaged, &found);
    if (status == DW_OK)
        return damaged ? DW_OK : fault;
    if (err)
        *err = found;
    return status;
}

dw_status dw_after_commit(dw_publisher *p, uint64_t n_bytes, uint64_t n_objects,
                          dw_error *err)
{
    dw_status status = dw_graph_add(
        &p->graph, (dw_edge){p->head.version - 1, p->head.version, n_bytes, n_objects},
        err);
    if (status == DW_OK)
        status = put_latest(p, err);
    if (p->baseline_lost)
        return status; /* folds and anchors are made from it */
    bool made = false;
    dw_status folded = dw_folds_make(p, &made, status == DW_OK ? err : NULL);
    if (folded == DW_CORRUPT)
        folded = examine(p, folded, status == DW_OK ? err : NULL);
    status = status == DW_OK ? folded : status;
    if (!p->baseline_lost && anchor_due(p)) {
        dw_status anchored = put_anchor(p, status == DW_OK ? err : NULL);
        if (anchored == DW_CORRUPT)
            anchored = examine(p, anchored, status == DW_OK ? err : NULL);
        made = made || anchored == DW_OK;
        status = status == DW_OK ? anchored : status;
        prune(p);
    }
    if (made) {
        dw_status hint = put_latest(p, status == DW_OK ? err : NULL);
        status = status == DW_OK ? hint : status;
    }
    return status;
}
