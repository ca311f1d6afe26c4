/* After a commit: the hint, folded deltas, anchors. All of it can fail or be missing
 * without harm to any version. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"
#include "sync/publisher.h"

/* ---- the graph near the head ---- */

/* The newest version that can be had from nothing. */
static uint64_t newest_anchor(const dw_graph *graph)
{
    uint64_t newest = DW_NO_VERSION;
    for (size_t i = 0; i < graph->n; i++) {
        const dw_edge *e = &graph->edges[i];
        if (e->from == DW_NO_VERSION && (newest == DW_NO_VERSION || e->to > newest))
            newest = e->to;
    }
    return newest;
}

/* Edges from before the newest anchor are of no use to the hint. */
static void prune(dw_publisher *p)
{
    p->anchor = newest_anchor(&p->graph);
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
    enum { MAX_EDGES = 65536 };
    size_t skip = p->graph.n > MAX_EDGES ? p->graph.n - MAX_EDGES : 0;
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

/* ---- folds ---- */

static bool can_fold(const dw_publisher *p)
{
    return !p->sharded && (p->options.spool_dir || p->options.baseline_dir);
}

/* Makes the level a copy of the baseline as it is. */
static dw_status reset_level(dw_publisher *p, dw_fold_level *level, dw_error *err)
{
    for (size_t t = 0; t < p->pieces.n_table; t++)
        if (p->pieces.table[t].n_bytes > 0)
            memcpy(level->model.tensors[t].data, p->base_data[t],
                   (size_t)p->pieces.table[t].n_bytes);
    memcpy(level->digests, p->pieces.digests, p->pieces.cut.n * sizeof(dw_digest));
    level->at = p->head;
    (void)err;
    return DW_OK;
}

static dw_status open_level(dw_publisher *p, dw_fold_level *level, dw_error *err)
{
    dw_status status = dw_scratch_model_make(
        &level->model, p->pieces.table, p->pieces.n_table, p->options.spool_dir, err);
    if (status != DW_OK)
        return status;
    void **data = dw_alloc_array(p->pieces.n_table, sizeof *data);
    level->views = dw_alloc_array(p->pieces.cut.n, sizeof *level->views);
    level->digests = dw_alloc_array(p->pieces.cut.n, sizeof *level->digests);
    if (!data || !level->views || !level->digests) {
        dw_free(data);
        return dw_fail_memory(err, NULL);
    }
    for (size_t t = 0; t < p->pieces.n_table; t++)
        data[t] = level->model.tensors[t].data;
    dw_pieces_view(&p->pieces, level->views, data);
    dw_free(data);
    return reset_level(p, level, err);
}

/* Folds the versions since the level's into one delta; the level moves to the head. */
static dw_status fold(dw_publisher *p, dw_fold_level *level, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    dw_status status = dw_random_id(write_id, err);
    if (status != DW_OK)
        return status;
    const dw_position from = level->at;
    const dw_progress stop = {dw_publisher_stop, p};
    dw_uploaded uploaded;
    const dw_encode_version version = {
        .pieces = &p->pieces,
        .base = level->views,
        .next = p->base,
        .base_digests = level->digests,
        .next_digests = p->pieces.next,
        .update_base = true,
        .from = from.version,
        .to = p->head.version,
        .store = p->store,
        .purpose = "fold",
        .write_id = write_id,
        .max_object_bytes = p->options.max_object_bytes,
        .spool_dir = p->options.spool_dir,
        .n_threads = p->options.n_threads,
        .stop = &stop,
    };
    status = dw_encode_upload(&uploaded, &version, err);
    if (status == DW_OK)
        status = dw_way_create(p->stream, &from, &p->head, &uploaded.objects,
                               p->options.sign_key, err);
    if (status == DW_OK)
        status = dw_graph_add(&p->graph,
                              (dw_edge){from.version, p->head.version,
                                        dw_objects_bytes(&uploaded.objects),
                                        uploaded.objects.n},
                              err);
    dw_uploaded_release(&uploaded);
    /* where it failed half way, the copy is a mix: it starts anew from here */
    if (status == DW_OK) {
        memcpy(level->digests, p->pieces.digests, p->pieces.cut.n * sizeof(dw_digest));
        level->at = p->head;
    } else {
        reset_level(p, level, NULL);
    }
    return status;
}

static dw_status fold_due(dw_publisher *p, bool *made, dw_error *err)
{
    dw_status first = DW_OK;
    for (size_t i = 0; i < DW_MAX_FOLDS; i++) {
        dw_fold_level *level = &p->folds[i];
        if (level->span == 0 || p->head.version - level->at.version < level->span)
            continue;
        dw_status status = fold(p, level, first == DW_OK ? err : NULL);
        *made = *made || status == DW_OK;
        first = first == DW_OK ? status : first;
    }
    return first;
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

static dw_status put_anchor(dw_publisher *p, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    dw_objects objects = {0};
    const dw_progress stop = {dw_publisher_stop, p};
    dw_status status = dw_random_id(write_id, err);
    if (status == DW_OK)
        status = dw_anchor_upload(&objects, p->store, p->pieces.table, p->pieces.n_table,
                                  &p->pieces.owned, p->base_data, p->head.version, true,
                                  write_id, p->options.max_anchor_bytes, 0, &stop, err);
    if (status == DW_OK)
        status =
            dw_way_create(p->stream, NULL, &p->head, &objects, p->options.sign_key, err);
    if (status == DW_OK)
        status = dw_graph_add(&p->graph,
                              (dw_edge){DW_NO_VERSION, p->head.version,
                                        dw_objects_bytes(&objects), objects.n},
                              err);
    dw_objects_release(&objects);
    return status;
}

/* ---- all of it ---- */

dw_status dw_after_open(dw_publisher *p, dw_error *err)
{
    if (p->options.rank != 0)
        return DW_OK;
    dw_graph_release(&p->graph);
    dw_status status =
        dw_graph_load(&p->graph, p->stream, DW_NO_VERSION, p->head.version, NULL, err);
    if (status != DW_OK)
        return status;
    prune(p);
    for (size_t i = 0; status == DW_OK && can_fold(p) && i < DW_MAX_FOLDS; i++) {
        p->folds[i].span = p->options.folds[i];
        if (p->folds[i].span > 0)
            status = open_level(p, &p->folds[i], err);
    }
    dw_status hint = put_latest(p, NULL);
    (void)hint; /* the next commit puts it again */
    return status;
}

void dw_after_close(dw_publisher *p)
{
    for (size_t i = 0; i < DW_MAX_FOLDS; i++) {
        dw_scratch_model_release(&p->folds[i].model);
        dw_free(p->folds[i].views);
        dw_free(p->folds[i].digests);
    }
    dw_graph_release(&p->graph);
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
    dw_status folded = fold_due(p, &made, status == DW_OK ? err : NULL);
    status = status == DW_OK ? folded : status;
    if (anchor_due(p)) {
        dw_status anchored = put_anchor(p, status == DW_OK ? err : NULL);
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
