/* Inside a rollout host: a follower and its engines. */
#ifndef DW_ENGINE_ROLLOUT_INT_H
#define DW_ENGINE_ROLLOUT_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/rollout.h"

/* What this process knows of an engine. host_engine.c has the table of transitions.
 *
 *     state         runs?       weights         next
 *     NEW           unknown     one version's   another process may have paused it
 *     RUNNING       yes         one version's
 *     PAUSED        maybe not   one version's   is resumed whatever happens
 *     MIXED         maybe not   maybe a mix     is not resumed before an update succeeded
 *     HUNG          unknown     one version's   is asked to pause until it answers
 *     HUNG_MIXED    unknown     maybe a mix     is asked to pause until it answers
 *
 * PAUSED and MIXED begin when the engine is asked to pause: the request may have been
 * done though no answer came. T_PAUSED is set if the pause was acknowledged. */
typedef enum dw_host_state {
    DW_HOST_NEW,
    DW_HOST_RUNNING,
    DW_HOST_PAUSED,
    DW_HOST_MIXED,
    DW_HOST_HUNG,
    DW_HOST_HUNG_MIXED,
    DW_N_HOST_STATES,
} dw_host_state;

/* An engine's part in the current step. */
typedef enum dw_host_part {
    DW_PART_FULL,     /* it is paused, updated and resumed */
    DW_PART_DONE,     /* an earlier call brought it to the version: it goes on serving */
    DW_PART_LEFT_OUT, /* the weights are updated without it: it was away for too long */
} dw_host_part;

/* A pause that is asked for again on a thread of its own (pause_retry.c). STATUS and ERR
 * belong to the thread until DONE. */
typedef struct dw_pause_retry {
    pthread_t thread;
    bool running;
    atomic_bool done;
    dw_status status;
    dw_error err;
} dw_pause_retry;

typedef struct dw_host_engine {
    const dw_rollout *rollout;
    dw_engine *engine;
    dw_host_state state;
    dw_host_part part;
    dw_engine_status status; /* for reports */
    bool status_changed;     /* since the last report */
    bool answered;           /* at least once: from then on its end is noticed */
    bool by_patch;           /* its last update was a patch */
    bool must_reload;  /* the version it names may be another stream's: it loads all */
    uint64_t believed; /* the version it serves if it names none, or DW_NO_VERSION */
    bool is_silent; /* it did not refuse the last one: it is there, but does not answer */
    unsigned n_failed; /* updates in a row */
    unsigned n_hung;   /* pauses in a row */
    uint64_t try_at;   /* dw_clock_ms() before which no update or pause is retried */
    dw_pause_retry retry;

    /* of the current step, dw_clock_us(); 0: not yet */
    uint64_t t_paused; /* the pause was acknowledged */
    uint64_t t_updated;
    uint64_t t_resume; /* the resume was sent */
    uint64_t t_resumed;
} dw_host_engine;

struct dw_rollout {
    dw_follower *follower;
    dw_rollout_options options;
    dw_host_engine *engines;
    size_t n_engines;
    uint64_t from;   /* the version at which the current step began */
    bool recovering; /* weights are half written: no engine that may read them in place is
                        resumed */
    bool all_stand;  /* and all that may read them are paused, or gone */
};

/* The files of the weights were replaced: the follower opens the new ones. If that writes
 * to them, the engines are paused first. Afterwards they load everything. */
dw_status dw_rollout_start_over(dw_rollout *rollout, dw_error *err);

/* ---- one engine (host_engine.c) ---- */

void dw_host_engine_init(dw_host_engine *e, const dw_rollout *rollout, dw_engine *engine);

/* Asks whether it is there, and which version it serves, unless it hangs. */
void dw_host_engine_probe(dw_host_engine *e);

/* Whether it serves VERSION, or would once it is resumed. */
bool dw_host_engine_serves(const dw_host_engine *e, uint64_t version);

/* Notes that it serves UPDATE's version. Resumes it if it may be paused. */
void dw_host_engine_confirm(dw_host_engine *e, const dw_engine_update *update);

/* Resumes it if another process may have paused it. */
void dw_host_engine_release(dw_host_engine *e);

/* Forgets the times of the step before. */
void dw_host_engine_begin(dw_host_engine *e);

bool dw_host_engine_hangs(const dw_host_engine *e);

/* Notes that its weights, or those it reads in place, may be a mix. ERR is the reason; if
 * it is NULL, the status stays as it is. */
void dw_host_engine_distrust(dw_host_engine *e, const dw_error *err);

/* False if it did not acknowledge the pause: it may be paused or not. */
bool dw_host_engine_pause(dw_host_engine *e, const dw_engine_update *update);

/* Brings a paused engine to UPDATE: by the patch if that fits, else whole. */
void dw_host_engine_apply(dw_host_engine *e, const dw_engine_update *update);

/* Resumes it if it is paused and whole. UPDATE may be NULL. */
void dw_host_engine_resume(dw_host_engine *e, const dw_engine_update *update);

/* Decides whether the weights move without an engine that is away. */
void dw_host_engine_judge_absence(dw_host_engine *e);

/* Notes the answer of an engine that hung: after DW_OK it is paused now. */
void dw_host_engine_retried(dw_host_engine *e, dw_status status, const dw_error *err);

/* Ends the wait for its pause. It is resumed like the others, if it is whole. */
void dw_host_engine_give_up(dw_host_engine *e);

/* DW_UNAVAILABLE with the engine's last error. */
dw_status dw_host_engine_fail(const dw_host_engine *e, dw_error *err);

/* ---- one that hangs (pause_retry.c) ---- */

/* Asks it to pause again, on a thread of its own, if it is time to. */
void dw_host_engine_retry_pause(dw_host_engine *e);

/* Ends that thread if it is done. */
void dw_host_engine_collect_retry(dw_host_engine *e);

/* Waits for that thread. */
void dw_host_engine_end_retry(dw_host_engine *e);

/* ---- all engines (host_engines.c) ---- */

/* An engine that is paused waits so long for the others to pause; then it is resumed. A
 * pause that takes longer and fails means that the engine hangs. */
#define DW_PAUSE_GRACE_MS 2000

/* The default of patience_ms, for engines that cannot read a mix. */
#define DW_PATIENCE_MS 10000

typedef void (*dw_host_engine_fn)(dw_host_engine *e, void *context);

/* Calls FN for each engine whose pause is not being retried, all at the same time. Then
 * reports the statuses that changed. */
void dw_host_engines_each(dw_rollout *rollout, dw_host_engine_fn fn, void *context);

/* Takes back the engines whose retry is done: they are paused now. No engine comes back
 * at any other time, so a whole step sees the same states. */
void dw_host_engines_collect_retries(dw_rollout *rollout);

/* Pauses all with a full part. If one cannot be paused, the others are resumed after at
 * most DW_PAUSE_GRACE_MS. UPDATE may be NULL: the pause is not for a version. */
dw_status dw_host_engines_pause(dw_rollout *rollout, const dw_engine_update *update,
                                dw_error *err);

/* The stores go past the engines that are left out: one that reads the directory in place
 * may have read a part of them. */
void dw_host_engines_pass_by(dw_rollout *rollout);

/* Phases 3 and 4 of the engines. Each engine is resumed as soon as it has taken the
 * update over: it does not wait for slower ones. */
typedef struct dw_handover {
    dw_rollout *rollout;
    const dw_engine_update *update;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    size_t n_updating;
    bool is_ready; /* an engine can be resumed */
    bool may_resume;
} dw_handover;

/* Begins to bring the paused engines to UPDATE. Returns once one of them can be resumed,
 * or none is left. None is resumed before dw_handover_resume, which must follow. */
void dw_handover_apply(dw_handover *h, dw_rollout *rollout,
                       const dw_engine_update *update);

/* Resumes the engines that have taken the update over, and the slower ones when they
 * have. Returns when all are done. */
void dw_handover_resume(dw_handover *h);

/* Resumes all that are paused and whole. UPDATE may be NULL. */
void dw_host_engines_resume(dw_rollout *rollout, const dw_engine_update *update);

#endif
