/* A rollout host: weights that follow a stream, and the engines that serve them.
 *
 * A sync has four phases, and the engines stand still in the third alone:
 *
 *     1  fetch, decode, verify, make the list of stores durable; the engines serve
 *     2  pause     each engine ends what it is at and says so
 *     3  apply     the stores; then each engine takes the new version over
 *     4  resume
 *
 * Then, while they serve again, the stores are made durable and read back. What holds:
 *
 * - The weights in the directory change only while every engine is paused, or away. That
 *   is so too for what a killed process left half done.
 * - An engine is told of a patch only where it says that it serves the version the patch
 *   starts from; otherwise it takes the directory whole.
 * - An engine whose weights may be a mix is not resumed. It is brought to the version
 *   again, from the patch and then from the directory, now and at every later call.
 * - An engine whose weights are whole is resumed on every way out, failures among them.
 *
 * A handle belongs to one thread at a time.
 */
#ifndef DELTAWIRE_ROLLOUT_H
#define DELTAWIRE_ROLLOUT_H

#include "deltawire/engine.h"
#include "deltawire/follow.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_rollout dw_rollout;

typedef enum dw_engine_state {
    DW_ENGINE_UNKNOWN = 0, /* not asked yet */
    DW_ENGINE_SERVING,     /* the version of the directory */
    DW_ENGINE_BEHIND,      /* whole, but another version, or it does not say which */
    DW_ENGINE_PAUSED,      /* for an update that is under way */
    DW_ENGINE_BROKEN,      /* paused, and perhaps a mix: being mended */
    DW_ENGINE_AWAY,        /* does not answer */
} dw_engine_state;

/* "serving", "broken", ... */
DW_API const char *dw_engine_state_name(dw_engine_state state);

typedef struct dw_engine_status {
    const char *driver;
    const char *where; /* may be NULL */
    dw_engine_state state;
    uint64_t version;  /* that it serves, or DW_NO_VERSION */
    char software[64]; /* may be empty */
    dw_error error;    /* the last one; code DW_OK where all is well */
} dw_engine_status;

typedef enum dw_phase {
    DW_PHASE_IDLE = 0,
    DW_PHASE_FETCH,  /* and decode, and verify */
    DW_PHASE_PAUSE,  /* asked for */
    DW_PHASE_APPLY,  /* engines stand still */
    DW_PHASE_RESUME, /* asked for */
    DW_PHASE_SETTLE,
} dw_phase;

/* "idle", "fetch", ... */
DW_API const char *dw_phase_name(dw_phase phase);

/* One hop: from a version to another. Times in microseconds. */
typedef struct dw_rollout_hop {
    uint64_t from; /* DW_NO_VERSION: from nothing */
    uint64_t version;
    uint64_t n_objects;
    uint64_t n_bytes; /* fetched */
    uint64_t n_changed;
    uint64_t fetch_us;
    uint64_t decode_us;
    uint64_t pause_us;   /* from asking the first engine until the last one stood */
    uint64_t scatter_us; /* our stores */
    uint64_t update_us;  /* the engines taking it over */
    uint64_t resume_us;
    uint64_t settle_us;
    uint64_t stopped_us; /* from the last pause acknowledged to the first resume sent */
} dw_rollout_hop;

/* Told as it happens, on the calling thread; any may be NULL. */
typedef struct dw_rollout_watch {
    void (*phase)(void *context, dw_phase phase, uint64_t version);
    void (*hop)(void *context, const dw_rollout_hop *hop);
    void (*engine)(void *context, size_t i, const dw_engine_status *status);
    void *context;
} dw_rollout_watch;

typedef struct dw_rollout_options {
    dw_engine *const *engines; /* they must outlive it */
    size_t n_engines;          /* at most DW_MAX_ENGINES; 0: a follower alone */
    bool engines_loaded;  /* they were started from the directory as it is now, so that
                             the first contact needs no reload */
    unsigned patience_ms; /* after so long an engine that is away is done without: it
                             takes the directory whole when it comes back. Default 0: it
                             is waited for, and the weights stay as they are. The time is
                             counted from the first sync that met it away */
    unsigned n_tries;     /* of an update of a paused engine, in one call; default 3 */
    dw_rollout_watch watch;
} dw_rollout_options;

#define DW_MAX_ENGINES 64

DW_API void dw_rollout_options_init(dw_rollout_options *options);

/* Opens a follower (follow.h); where a killed process left weights half written, the
 * engines are paused first. DW_UNAVAILABLE where one that is not known to be away cannot
 * be paused then. */
DW_API dw_status dw_rollout_open(dw_rollout **out, dw_store *store,
                                 const dw_follow_options *follow,
                                 const dw_rollout_options *options, dw_error *err);

/* Resumes what is paused and whole. */
DW_API void dw_rollout_close(dw_rollout *rollout);

DW_API dw_follower *dw_rollout_follower(dw_rollout *rollout); /* borrowed */

/* Brings the weights to GOAL (DW_LATEST: the head), and the engines with them. DW_OK: the
 * weights are there; an engine that could not take them over says so in its status, and
 * dw_rollout_check goes on with it. DW_UNAVAILABLE where one could not be paused: the
 * weights stay as they are, and the next call goes on from there. */
DW_API dw_status dw_rollout_sync(dw_rollout *rollout, uint64_t goal,
                                 const dw_progress *progress, dw_error *err);

/* Asks each engine how it is, and brings those that are behind, broken or back to the
 * version of the directory. To be called now and then while nothing is new. DW_OK also
 * where some are away: see their status. */
DW_API dw_status dw_rollout_check(dw_rollout *rollout, dw_error *err);

/* How engine I is. Valid until the next call. */
DW_API const dw_engine_status *dw_rollout_engine(const dw_rollout *rollout, size_t i);

/* Whether all engines serve the version of the directory. */
DW_API bool dw_rollout_is_serving(const dw_rollout *rollout);

#ifdef __cplusplus
}
#endif

#endif
