/* The sources of the versions that `deltawire stats` walks over. */
#ifndef CLI_STATS_SOURCE_H
#define CLI_STATS_SOURCE_H

#include <deltawire/follow.h>

#include "checkpoint_read.h"
#include "stats.h"
#include "stream_open.h"

/* ---- a stream ---- */

typedef struct stats_stream {
    cli_stream stream; /* the caller sets url, options and keys */
    const char *base;  /* the checkpoint behind a version 0 that was not uploaded */
    const char *work_dir;
    uint64_t from, to; /* DW_NO_VERSION: the last 16 steps */
    unsigned n_threads;
    cli_fork_opener fork_opener;
    dw_follower *follower;
    uint64_t at;
} stats_stream;

/* Opens the stream and finds the versions to walk. Returns 0, or the exit code of the
 * error it reported. */
int stats_stream_open(stats_source *out, stats_stream *self, const cli_session *s);
void stats_stream_close(stats_stream *self);

/* The shortcuts of the stream between the versions that were walked. */
dw_status stats_stream_shortcuts(stats_report *report, stats_stream *self, dw_error *err);

/* ---- deltas on disk ---- */

typedef struct stats_delta {
    dw_delta *delta;
} stats_delta;

typedef struct stats_deltas {
    const char *base; /* a checkpoint; never written */
    char **paths;
    size_t n_paths;
    unsigned n_threads;
    cli_weights weights;
    stats_delta *deltas; /* [n_paths] */
    size_t at;
} stats_deltas;

/* Opens the base and all deltas, which checks them before the first step. */
int stats_deltas_open(stats_source *out, stats_deltas *self, const cli_session *s);
void stats_deltas_close(stats_deltas *self);

#endif
