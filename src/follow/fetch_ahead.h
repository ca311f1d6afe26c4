/* The records and objects of one step, fetched now or ahead of time by a thread. */
#ifndef DW_FOLLOW_FETCH_AHEAD_H
#define DW_FOLLOW_FETCH_AHEAD_H

#include <pthread.h>

#include "stream/stream.h"
#include "stream/transfer.h"

typedef struct dw_fetched {
    dw_route_step step;
    dw_blob *blobs;   /* [step.objects.n], for deltas */
    uint64_t n_bytes; /* fetched */
    uint64_t t_ms;    /* how long it took */
} dw_fetched;

/* Reads the records behind EDGE and, for a delta, its objects. COMMIT is as in
 * dw_route_step_read. */
dw_status dw_fetch_step(dw_fetched *out, dw_stream *stream, const dw_edge *edge,
                        dw_commit_record *commit, const char *spool_dir,
                        const dw_progress *progress, dw_error *err);
void dw_fetched_release(dw_fetched *fetched);

/* One fetch that runs ahead. The stream must outlive it and is only read. */
typedef struct dw_fetch_ahead {
    bool running;
    pthread_t thread;
    dw_stream *stream;
    dw_edge edge;
    dw_commit_record *commit; /* or NULL */
    const char *spool_dir;
    dw_fetched fetched;
    dw_status status;
    dw_error error;
} dw_fetch_ahead;

/* Takes COMMIT, which may be NULL. */
void dw_fetch_ahead_begin(dw_fetch_ahead *ahead, dw_stream *stream, const dw_edge *edge,
                          dw_commit_record *commit, const char *spool_dir);

/* Takes the result of the fetch for EDGE, or fetches it now. A fetch for another edge, or
 * one that failed, is dropped. Takes COMMIT, which may be NULL. */
dw_status dw_fetch_ahead_take(dw_fetch_ahead *ahead, dw_fetched *out, dw_stream *stream,
                              const dw_edge *edge, dw_commit_record *commit,
                              const char *spool_dir, const dw_progress *progress,
                              dw_error *err);

/* Waits for the fetch that runs, and drops it. */
void dw_fetch_ahead_end(dw_fetch_ahead *ahead);

#endif
