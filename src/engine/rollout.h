/* A rollout: a follower with the engines that serve its weights.
 *
 * A sync has four phases. The engines are paused only in the third:
 *
 *     1  fetch     stage and prepare the version; the engines serve
 *     2  pause     each engine ends its work and confirms it
 *     3  apply     the stores; then each engine takes the new version
 *     4  resume
 *
 * Then, while they serve again, the version is finished: synced and read back.
 *
 * The weights in the directory change only while every engine is paused or away, also
 * when an apply of a killed process is finished.
 *
 * An engine gets a patch only if it serves the version that the patch starts from. Else
 * it loads the directory.
 *
 * An engine whose weights may be a mix is not resumed. It gets the version again, from
 * the patch and then from the directory, now and at every later call. An engine whose
 * weights are those of one version is always resumed, also after a failure.
 */
#ifndef DW_ENGINE_ROLLOUT_H
#define DW_ENGINE_ROLLOUT_H

#include <string.h>

#include "engine/engine.h"
#include "deltawire/follow.h"

typedef struct dw_rollout dw_rollout;

typedef enum dw_phase {
    DW_PHASE_IDLE = 0,
    DW_PHASE_FETCH,  /* and decode, and verify */
    DW_PHASE_PAUSE,  /* asked for */
    DW_PHASE_APPLY,  /* engines are paused */
    DW_PHASE_RESUME, /* asked for */
    DW_PHASE_FINISH,
} dw_phase;

/* A step from one version to another. Times in microseconds. */
typedef struct dw_rollout_step {
    uint64_t from; /* DW_NO_VERSION: from nothing */
    uint64_t version;
    uint64_t n_objects;
    uint64_t n_bytes; /* fetched */
    uint64_t n_changed;
    uint64_t fetch_us;
    uint64_t decode_us;
    uint64_t ready_us;   /* until the engines had prepared the patch */
    uint64_t pause_us;   /* from the first request until the last engine was paused */
    uint64_t scatter_us; /* the stores */
    uint64_t update_us;  /* the updates of the engines */
    uint64_t resume_us;
    uint64_t finish_us;
    uint64_t stopped_us; /* from the last confirmed pause to the first resume sent */
    bool is_unready;     /* an engine was not done within DW_READY_LIMIT_MS: it prepares
                            the patch in its pause */
} dw_rollout_step;

/* Functions that report progress, called on the calling thread; each may be NULL. */
typedef struct dw_rollout_watch {
    /* must not call dw_rollout_engine or dw_rollout_is_serving */
    void (*phase)(void *context, dw_phase phase, uint64_t version);
    void (*step)(void *context, const dw_rollout_step *step);
    void (*engine)(void *context, size_t i, const dw_engine_status *status);
    void *context;
} dw_rollout_watch;

typedef struct dw_rollout_options {
    dw_engine *const *engines; /* they must outlive it */
    size_t n_engines;          /* at most DW_MAX_ENGINES; 0: only a follower */
    unsigned patience_ms; /* how long to wait for an engine that does not answer. Then it
                             is left behind: the weights and the other engines go on, and
                             it loads the directory when it answers. Default: 10,000 for
                             one that is there and serves from memory of its own (vLLM,
                             SGLang); no limit for one that has ended, because the next
                             one starts from the directory, and for one that may read the
                             directory in place */
    unsigned n_tries;     /* to update a paused engine in one call; default 3 */
    dw_rollout_watch watch;
} dw_rollout_options;

#define DW_MAX_ENGINES    64
#define DW_READY_LIMIT_MS 2000

/* Opens a follower (follow.h). If a killed process left an apply unfinished, pauses the
 * engines first: DW_UNAVAILABLE if one that is not known to be away cannot be paused. */
dw_status dw_rollout_open(dw_rollout **out, dw_store *store,
                          const dw_follow_options *follow,
                          const dw_rollout_options *options, dw_error *err);

/* Resumes the paused engines whose weights are those of one version, and frees. */
void dw_rollout_close(dw_rollout *rollout);

dw_follower *dw_rollout_follower(dw_rollout *rollout); /* borrowed */

/* Brings the weights and the engines to GOAL, a version or DW_NEWEST. After DW_OK the
 * weights are there. An engine that could not take them reports it in its status, and
 * dw_rollout_check tries again. DW_UNAVAILABLE if an engine could not be paused: the
 * weights stay as they are, and the next call goes on from there. */
dw_status dw_rollout_sync(dw_rollout *rollout, uint64_t goal, const dw_progress *progress,
                          dw_error *err);

/* Probes each engine, and brings engines that are behind, broken or back to the version
 * of the directory. Call it now and then while nothing is new. DW_OK also if engines are
 * away: see their status. */
dw_status dw_rollout_check(dw_rollout *rollout, dw_error *err);

/* The status of engine I. Valid until the next call. */
const dw_engine_status *dw_rollout_engine(const dw_rollout *rollout, size_t i);

/* Whether all engines serve the version of the directory. */
bool dw_rollout_is_serving(const dw_rollout *rollout);

#endif
