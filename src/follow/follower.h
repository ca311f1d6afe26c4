/* The inside of a follower: a stream, weights, and the way between them. */
#ifndef DW_FOLLOW_FOLLOWER_H
#define DW_FOLLOW_FOLLOWER_H

#include "deltawire/follow.h"
#include "follow/fetch_ahead.h"
#include "stream/graph.h"
#include "weights/weights.h"

struct dw_follower {
    dw_stream *stream;
    dw_weights *weights;
    dw_follow_options options; /* strings are copies */
    dw_store *fork_store;      /* borrowed: used in place of opening the fork's URL */
    unsigned depth;            /* how many forks lie between it and its caller's */
    const char *follows;       /* that stream's id; NULL: it is this one */

    /* the way that was planned */
    dw_edge *route;
    size_t n_route;
    size_t i_route; /* the next edge */
    uint64_t goal;
    dw_graph avoid;      /* edges that turned out to lead nowhere */
    uint64_t tried_goal; /* what `furthest` is about */
    uint64_t furthest;   /* the newest version on the way to it; DW_NO_VERSION: none */
    dw_fetch_ahead ahead;

    dw_position highest; /* that was used, if the weights went back since */
    bool is_own;         /* as dw_follower_open_as was told */
    bool lost; /* the files are not those that are open: the next stage starts over */
    uint64_t undecodable; /* the newest version whose delta arrived whole, starts from the
                             weights, and does not lead to what its commit names; 0: none
                             was seen */
    bool rewritten;       /* history is not what it was: no other way makes that good */
    uint64_t epoch;       /* of the version the weights are at, as far as known */
    uint64_t next_epoch;
    bool arrived;     /* the last step was filled in place: nothing is left to apply */
    uint64_t seen_ms; /* when the stream was last known to be there; 0: never */
    dw_follow_report tally; /* since it was opened */
};

/* A version or way that is not good may be gone around. */
static inline bool dw_follower_may_detour(dw_status status)
{
    return dw_stream_passes_over(status) || status == DW_STALE;
}

/* As dw_follower_open. IS_OWN: whatever is wrong with the directory, it is this process's
 * own, and is filled anew from the stream. */
dw_status dw_follower_open_as(dw_follower **out, dw_store *store,
                              const dw_follow_options *options, bool is_own,
                              dw_error *err);

/* ---- the files (follow_open.c) ---- */

/* Compares the directory and its files with what is open. DW_CONFLICT if somebody
 * replaced or removed them, DW_IO if one shrank: then the follower has no version until
 * it has started over. */
dw_status dw_follower_check_files(dw_follower *f, dw_error *err);

/* The same at the start of a call. What happened to a directory of this process's own is
 * no error: it starts over at once. */
static inline dw_status dw_follower_attend(dw_follower *f, dw_error *err)
{
    dw_status status = dw_follower_check_files(f, err);
    return f->is_own ? DW_OK : status;
}

/* Opens what is there now, after files were lost. */
dw_status dw_follower_start_over(dw_follower *f, dw_error *err);

/* ---- which version the weights are (follow_open.c) ---- */

/* Weights that no record says the version of: are they one that is likely? */
dw_status dw_follower_recognise(dw_follower *f, dw_error *err);

/* The version that the weights are, and the highest that they were, must still be those
 * in the stream. */
dw_status dw_follower_check_history(dw_follower *f, dw_error *err);

/* ---- without the stream (follow_recover.c) ---- */

/* Finishes what a killed run left half done in the directory that OPTIONS name, and makes
 * two copies the same. */
dw_status dw_follower_recover(const dw_follow_options *options, dw_error *err);

/* Which version the directory is that OPTIONS name, by its record, and in *DIR, to be
 * freed with dw_free, where its weights are. */
dw_status dw_follower_recovered(dw_position *at, char **dir,
                                const dw_follow_options *options, dw_error *err);

/* Whether the next stage writes to memory of the caller's, which was declared empty. */
static inline bool dw_follower_stage_fills(const dw_follower *f)
{
    const dw_replica *r = f->weights->now;
    return !r->dir && dw_replica_is_empty(r);
}

/* ---- what was used before (history.c) ---- */

/* DW_UNAVAILABLE if the stream is not there any more. */
dw_status dw_stream_check_presence(dw_stream *stream, dw_error *err);

/* DW_UNTRUSTED unless the stream still has the very version AT, which HOLDER, for
 * messages, used. */
dw_status dw_position_check(const dw_position *at, dw_stream *stream, const char *holder,
                            uint64_t *epoch, dw_error *err);

/* The highest version of the stream that the weights ever were; dw_nowhere: none. */
const dw_position *dw_follower_highest(const dw_follower *f);

/* Reads what the directory remembers. */
dw_status dw_follower_load_highest(dw_follower *f, dw_error *err);

/* Makes the directory remember, before the weights go back to an older version. */
dw_status dw_follower_keep_highest(dw_follower *f, dw_error *err);

/* Fetches and stages one edge (follow_step.c). */
dw_status dw_follower_stage_step(dw_follower *f, const dw_edge *edge,
                                 const dw_progress *progress, dw_error *err);

#endif
