/* The inside of a follower: a stream, weights, and the route between them. */
#ifndef DW_FOLLOW_FOLLOWER_H
#define DW_FOLLOW_FOLLOWER_H

#include "base/clock.h"
#include "deltawire/follow.h"
#include "follow/fetch_ahead.h"
#include "follow/follow_files.h"
#include "stream/graph.h"
#include "weights/target.h"

struct dw_follower {
    dw_stream *stream;
    dw_target *weights;
    dw_follow_options options; /* strings are copies */
    dw_store *fork_store;      /* borrowed: used in place of opening the fork's URL */
    unsigned depth;            /* how many forks lie between it and its caller's */
    const char *follows;       /* that stream's id; NULL: it is this one */

    /* the route that was planned */
    dw_edge *route;
    size_t n_route;
    size_t i_route; /* the next edge */
    uint64_t goal;
    dw_graph avoid;      /* edges that turned out to lead nowhere */
    uint64_t tried_goal; /* the goal of `furthest` */
    uint64_t furthest;   /* the newest version on routes to it; DW_NO_VERSION: none */
    dw_fetch_ahead ahead;
    dw_follow_files files;

    dw_position highest; /* that was used, if the weights went back since */
    bool is_own;         /* as in dw_follower_open_as */
    bool lost; /* the files are not those that are open: the next stage starts over */
    uint64_t undecodable; /* the newest version whose delta arrived whole, starts from the
                             weights, and does not lead to what its commit names; 0: none
                             was seen */
    bool rewritten;       /* history was rewritten: no other route helps */
    uint64_t epoch;       /* of the version the weights are at, as far as known */
    uint64_t next_epoch;
    uint64_t seen_ms;       /* when the stream was last known to be there; 0: never */
    uint64_t n_private;     /* files of earlier weights that were links (start_over) */
    uint64_t damaged_ms;    /* when the weights were last found damaged; 0: never */
    uint64_t heal_after_ms; /* they are not fetched again before */
    uint64_t heal_wait_ms;  /* the wait after the last time */
    uint64_t t_found_us;    /* when a poll first found ... */
    uint64_t found;         /* ... this version, which is newer than the weights */
    dw_times times; /* dw_follow_moment of the newest update, since it was found */
    dw_follow_report tally; /* since it was opened */
};

/* MOMENT of the update was at T_US, by dw_clock_us. */
static inline void dw_follower_mark_at(dw_follower *f, dw_follow_moment moment,
                                       uint64_t t_us)
{
    f->times.us[moment] = t_us > f->t_found_us ? t_us - f->t_found_us : 0;
}

static inline void dw_follower_mark(dw_follower *f, dw_follow_moment moment)
{
    dw_follower_mark_at(f, moment, dw_clock_us());
}

/* Whether another route may avoid a fault of this kind. */
static inline bool dw_follower_may_detour(dw_status status)
{
    return dw_stream_passes_over(status) || status == DW_STALE;
}

/* As dw_follower_open. IS_OWN: the directory belongs to this process; if it is damaged,
 * it is filled again from the stream. */
dw_status dw_follower_open_as(dw_follower **out, dw_store *store,
                              const dw_follow_options *options, bool is_own,
                              dw_error *err);

/* A version newer than the weights is known: its time line begins, unless it has. */
void dw_follower_found(dw_follower *f, uint64_t newest);

/* ---- the files (follow_open.c) ---- */

/* Compares the directory and its files with those that are open. DW_CONFLICT if somebody
 * replaced or removed them, DW_IO if one shrank: then the follower has no version until
 * it has started over. */
dw_status dw_follower_check_files(dw_follower *f, dw_error *err);

/* The files are not to be used any more: the next stage starts over with what is there.
 */
void dw_follower_lose(dw_follower *f);

/* The same as check_files, at the start of a call. For a directory that belongs to this
 * process it is no error: the call starts over at once. */
static inline dw_status dw_follower_attend(dw_follower *f, dw_error *err)
{
    dw_status status = dw_follower_check_files(f, err);
    return f->is_own ? DW_OK : status;
}

/* Opens the files that are there now, after the open ones were replaced. */
dw_status dw_follower_start_over(dw_follower *f, dw_error *err);

/* ---- which version the weights are (follow_open.c) ---- */

/* Compares weights that no record names the version of with likely versions. */
dw_status dw_follower_recognise(dw_follower *f, dw_error *err);

/* The stream must still have the version that the weights are, and the highest that they
 * were. */
dw_status dw_follower_check_history(dw_follower *f, dw_error *err);

/* Whether the next stage writes to memory of the caller's, which was declared empty. */
static inline bool dw_follower_stage_fills(const dw_follower *f)
{
    return !dw_target_dir(f->weights) && dw_target_is_empty(f->weights);
}

/* ---- versions that were used (follow_history.c) ---- */

/* DW_UNAVAILABLE if the stream is not there any more. */
dw_status dw_stream_check_presence(dw_stream *stream, dw_error *err);

/* Reads the commit of version AT, which HOLDER, for messages, used. DW_UNTRUSTED unless
 * the stream still has the very same one. */
dw_status dw_position_check(const dw_position *at, dw_stream *stream, const char *holder,
                            dw_commit_record *commit, dw_error *err);

/* The highest version of the stream that the weights ever were; dw_nowhere: none. */
const dw_position *dw_follower_highest(const dw_follower *f);

/* Reads the highest version from the directory. */
dw_status dw_follower_load_highest(dw_follower *f, dw_error *err);

/* Writes it to the directory, before the weights go back to an older version. */
dw_status dw_follower_keep_highest(dw_follower *f, dw_error *err);

/* The same for WAS, if it is higher. */
dw_status dw_follower_keep_used(dw_follower *f, const dw_position *was, dw_error *err);

/* ---- damaged weights (follow_heal.c) ---- */

/* The weights of the directory, which were version WAS, are damaged: the next stage
 * fetches them again. WAS stays known as a version that was used. */
dw_status dw_follower_note_damage(dw_follower *f, const dw_position *was, dw_error *err);

/* Reads all weights of the directory. If they are damaged, they are no version any more.
 */
bool dw_follower_is_damaged(dw_follower *f);

/* DW_CORRUPT if weights that were fetched again were damaged again, and the wait is not
 * over: whatever damages them must not make the follower fetch models for ever. */
dw_status dw_follower_may_heal(dw_follower *f, dw_error *err);

/* After a verb failed with STATUS: whether the weights of the directory turned out to be
 * damaged, so that another stage fetches them again. TRIES has what happened before. */
typedef struct dw_heal_tries {
    uint64_t n_healed;
    bool was_lost;
} dw_heal_tries;

bool dw_follower_heals(const dw_follower *f, dw_status status, dw_heal_tries *tries);

/* ---- companion files (follow_files.c) ---- */

/* COMMIT is that of the weights' version, and names files that may be missing. */
dw_status dw_follower_note_files(dw_follower *f, const dw_commit_record *commit,
                                 dw_error *err);

/* Fetches the files of GOAL that the directory lacks into temporary files. */
dw_status dw_follower_fetch_files(dw_follower *f, uint64_t goal,
                                  const dw_progress *progress, dw_error *err);

/* Installs what was fetched. Does nothing if that is done. */
dw_status dw_follower_install_files(dw_follower *f, dw_error *err);

/* Both for the version of the weights. */
dw_status dw_follower_complete_files(dw_follower *f, const dw_progress *progress,
                                     dw_error *err);

/* The commit of VERSION, if its files were read from it: the step to it need not read it
 * again. Else NULL. The caller releases it and frees it with dw_free. */
dw_commit_record *dw_follower_take_commit(dw_follower *f, uint64_t version);

void dw_follower_forget_files(dw_follower *f);

/* Fetches and stages one edge (follow_step.c). */
dw_status dw_follower_stage_step(dw_follower *f, const dw_edge *edge,
                                 const dw_progress *progress, dw_error *err);

/* DW_INVALID for a goal that is DW_NO_VERSION. */
dw_status dw_follower_refuse_none(uint64_t goal, dw_error *err);

#endif
