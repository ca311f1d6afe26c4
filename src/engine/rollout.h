/* The inside of a rollout host: a follower, and what is known of each engine. */
#ifndef DW_ENGINE_ROLLOUT_H
#define DW_ENGINE_ROLLOUT_H

#include <pthread.h>
#include <stdatomic.h>

#include "deltawire/rollout.h"

/* Who asks an engine that hangs (pause_retry.c). STATUS and ERR are the thread's until
 * DONE. */
typedef struct dw_pause_retry {
    pthread_t thread;
    bool running;
    atomic_bool done;
    bool has_paused;  /* it ended, and the engine was not resumed since */
    dw_status status; /* of the pause */
    dw_error err;
} dw_pause_retry;

/* One engine. What PAUSED and MIXED say together:
 *
 *                 whole                              mixed
 *     running     serves some version                does not happen
 *     paused      is resumed on every way out        stays paused until it is mended
 */
typedef struct dw_host_engine {
    dw_engine *engine;
    dw_engine_status status;
    bool paused;   /* it was asked to, and not resumed since */
    bool mixed;    /* its weights may be those of no version */
    bool met;      /* it answered once: before, it may have been paused by another */
    bool assumed;  /* where it says no version it is believed to serve TOLD */
    bool answered; /* any question: from then on its end is noticed */
    bool held;     /* not to be resumed: weights that it may read are half written */
    bool reload;   /* the version it names is not of this stream: it takes all anew */
    bool skipped;  /* in this hop: it serves the version already */
    bool hung;     /* a pause was not answered in time, and none has been since */
    bool let_go;   /* paused, and resumed since another one took too long to pause */
    bool left_out; /* hung with weights of its own, or away for longer than anybody waits:
                      the weights move without it */
    uint64_t told; /* the version it was last brought to, or DW_NO_VERSION */
    uint64_t away_at;  /* when it was first met away, ms; 0: it is not */
    unsigned n_failed; /* updates in a row */
    uint64_t try_at;   /* before that it is not asked to take an update by itself, ms */
    unsigned n_hung;   /* pauses in a row */
    dw_pause_retry retry;
    bool is_news; /* the status changed since it was told */

    /* of the take-over under way, us */
    uint64_t t_paused; /* when the pause was acknowledged */
    uint64_t t_updated;
    uint64_t t_resume; /* when the resume was sent */
    uint64_t t_resumed;
} dw_host_engine;

struct dw_rollout {
    dw_follower *follower;
    dw_rollout_options options;
    unsigned n_copies; /* of the weights, as the follower has it */
    dw_host_engine *engines;
    size_t n_engines;
    uint64_t from; /* where the hop under way began */
    bool applied;  /* its stores are done */
};

/* The files of the weights were replaced: the follower opens what is there now. Where
 * that writes to them, the engines are paused first; afterwards they load everything
 * anew. */
dw_status dw_rollout_start_over(dw_rollout *rollout, dw_error *err);

/* ---- one engine (engine.c) ---- */

void dw_host_engine_init(dw_host_engine *e, dw_engine *engine);

/* Asks it how it is. Sets whether it is there, and the version it serves. */
void dw_host_engine_probe(dw_host_engine *engine, unsigned patience_ms);

/* Whether it serves VERSION, or would once it is resumed. */
bool dw_host_engine_serves(const dw_host_engine *engine, uint64_t version);

/* It does serve the right version: resumes it where it may be paused. */
void dw_host_engine_confirm(dw_host_engine *engine, const dw_engine_update *update);

/* Whether it must be paused before weights are written. */
bool dw_host_engine_counts(const dw_host_engine *engine);

/* Forgets the times of the hop before. */
void dw_host_engine_begin(dw_host_engine *engine);

/* Its weights, or those it reads in place, may be a mix. ERR says why. */
void dw_host_engine_mistrust(dw_host_engine *engine, const dw_error *err);

/* False where it did not acknowledge: it may be paused or not, and is to be resumed. */
bool dw_host_engine_pause(dw_host_engine *engine, const dw_engine_update *update,
                          unsigned patience_ms);

/* Whether the weights may move without it: it has been away for longer than anybody
 * waits, or it hangs, and does not read them. Sets what dw_host_engine_counts says. */
void dw_host_engine_judge_absence(dw_host_engine *engine, unsigned patience_ms);

/* One that hung is paused. */
void dw_host_engine_paused_late(dw_host_engine *engine);

/* It hangs still: it is left alone for a while, for longer each time. */
void dw_host_engine_back_off(dw_host_engine *engine);

/* ---- one that hangs (pause_retry.c) ---- */

/* Asks it again, on a thread of its own, if it is time to. */
void dw_host_engine_retry_pause(dw_host_engine *engine);

/* Ends that thread if it is done. */
void dw_host_engine_collect_retry(dw_host_engine *engine);

/* Waits for that thread. */
void dw_host_engine_end_retry(dw_host_engine *engine);

/* Brings a paused engine to UPDATE, by the patch or whole, and resumes it. */
void dw_host_engine_take_over(dw_host_engine *engine, const dw_engine_update *update,
                              unsigned n_tries);

/* Resumes it where it is paused and whole. UPDATE may be NULL. */
void dw_host_engine_resume(dw_host_engine *engine, const dw_engine_update *update);

/* DW_UNAVAILABLE, with what the engine last said: it is in the way. */
dw_status dw_host_engine_fail(const dw_host_engine *engine, dw_error *err);

/* ---- all of them (host_engines.c) ---- */

/* No engine stands still for longer because another one has not paused yet. One whose
 * pause fails after that long hangs. */
#define DW_PAUSE_GRACE_MS 2000

typedef void (*dw_host_engine_fn)(dw_host_engine *engine, void *context);

/* Does FN for each engine that is not nursed, side by side, and tells what is new about
 * them. */
void dw_host_engines_each(dw_rollout *rollout, dw_host_engine_fn fn, void *context);

/* Takes back those whose nurse is done, and resumes each that is whole. In between no
 * engine comes back from its nurse, so what is known of it holds for a whole hop. */
void dw_host_engines_collect_retries(dw_rollout *rollout);

/* Pauses all that count. If one cannot be, the others are resumed, after at most
 * DW_PAUSE_GRACE_MS. UPDATE may be NULL:
 * not for a version. */
dw_status dw_host_engines_pause(dw_rollout *rollout, const dw_engine_update *update,
                                dw_error *err);
void dw_host_engines_take_over(dw_rollout *rollout, const dw_engine_update *update);
void dw_host_engines_resume(dw_rollout *rollout, const dw_engine_update *update);

#endif
