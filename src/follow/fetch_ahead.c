#include "follow/fetch_ahead.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/progress.h"

static dw_status fetch_objects(dw_fetched *f, dw_stream *stream, const char *spool_dir,
                               const dw_progress *progress, dw_error *err)
{
    const dw_objects *objects = &f->step.objects;
    f->blobs = dw_alloc_zeroed(objects->n, sizeof *f->blobs);
    if (!f->blobs)
        return dw_fail_memory(err, NULL);
    dw_share share = {progress, 0, dw_objects_bytes(objects)};
    const dw_progress hook = dw_share_hook(&share);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < objects->n; i++) {
        status = dw_object_fetch(&f->blobs[i], stream->store, &objects->items[i],
                                 spool_dir, &hook, err);
        share.before += objects->items[i].n_bytes;
    }
    f->n_bytes = share.before;
    return status;
}

dw_status dw_fetch_step(dw_fetched *out, dw_stream *stream, const dw_edge *edge,
                        dw_commit_record *commit, const char *spool_dir,
                        const dw_progress *progress, dw_error *err)
{
    *out = (dw_fetched){0};
    uint64_t start = dw_clock_ms();
    dw_status status = dw_route_step_read(&out->step, stream, edge, commit, err);
    if (status == DW_OK && out->step.content == DW_CONTENT_DELTA)
        status = fetch_objects(out, stream, spool_dir, progress, err);
    out->t_ms = dw_clock_ms() - start;
    if (status != DW_OK)
        dw_fetched_release(out);
    return status;
}

void dw_fetched_release(dw_fetched *f)
{
    for (size_t i = 0; f->blobs && i < f->step.objects.n; i++)
        dw_blob_release(&f->blobs[i]);
    dw_free(f->blobs);
    dw_route_step_release(&f->step);
    *f = (dw_fetched){0};
}

static void free_commit(dw_commit_record *commit)
{
    if (commit)
        dw_commit_record_release(commit);
    dw_free(commit);
}

static void *run_ahead(void *context)
{
    dw_fetch_ahead *a = context;
    a->status = dw_fetch_step(&a->fetched, a->stream, &a->edge, a->commit, a->spool_dir,
                              NULL, &a->error);
    return NULL;
}

void dw_fetch_ahead_begin(dw_fetch_ahead *a, dw_stream *stream, const dw_edge *edge,
                          dw_commit_record *commit, const char *spool_dir)
{
    dw_fetch_ahead_end(a);
    *a = (dw_fetch_ahead){
        .stream = stream, .edge = *edge, .commit = commit, .spool_dir = spool_dir};
    a->running = pthread_create(&a->thread, NULL, run_ahead, a) == 0;
}

dw_status dw_fetch_ahead_take(dw_fetch_ahead *a, dw_fetched *out, dw_stream *stream,
                              const dw_edge *edge, dw_commit_record *commit,
                              const char *spool_dir, const dw_progress *progress,
                              dw_error *err)
{
    if (a->running && a->stream == stream && a->edge.from == edge->from &&
        a->edge.to == edge->to) {
        pthread_join(a->thread, NULL);
        a->running = false;
        if (a->status == DW_OK) {
            *out = a->fetched;
            a->fetched = (dw_fetched){0};
            free_commit(commit);
            return DW_OK;
        }
    }
    dw_fetch_ahead_end(a);
    dw_status status = dw_fetch_step(out, stream, edge, commit, spool_dir, progress, err);
    free_commit(commit);
    return status;
}

void dw_fetch_ahead_end(dw_fetch_ahead *a)
{
    if (a->running)
        pthread_join(a->thread, NULL);
    a->running = false;
    dw_fetched_release(&a->fetched);
    free_commit(a->commit);
    a->commit = NULL;
}
