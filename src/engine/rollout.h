/* The inside of a rollout host: a follower, and what is known of each engine. */
#ifndef DW_ENGINE_ROLLOUT_H
#define DW_ENGINE_ROLLOUT_H

#include <pthread.h>
#include <stdatomic.h>

#include "deltawire/rollout.h"

/* Who asks an engine that hangs (nurse.c). STATUS and ERR are the thread's until DONE. */
typedef struct dw_nurse {
    pthread_t thread;
    bool is_there;
    atomic_bool done;
    bool has_paused;  /* it ended, and the engine was not resumed since */
    dw_status status; /* of the pause */
    dw_error err;
} dw_nurse;

/* One engine. What PAUSED and MIXED say together:
 *
 *                 whole                              mixed
 *     running     serves some version                does not happen
 *     paused      is resumed on every way out        stays paused until it is mended
 */
typedef struct dw_member {
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
    dw_nurse nurse;
    bool is_news; /* the status changed since it was told */

    /* of the take-over under way, us */
    uint64_t t_paused; /* when the pause was acknowledged */
    uint64_t t_updated;
    uint64_t t_resume; /* when the resume was sent */
    uint64_t t_resumed;
} dw_member;

struct dw_rollout {
    dw_follower *follower;
    dw_rollout_options options;
    unsigned n_copies; /* of the weights, as the follower has it */
    dw_member *members;
    size_t n_members;
    uint64_t from; /* where the hop under way began */
    bool applied;  /* its stores are done */
};

/* The files of the weights were replaced: the follower opens what is there now. Where
 * that writes to them, the engines are paused first; afterwards they load everything
 * anew. */
dw_status dw_rollout_start_over(dw_rollout *rollout, dw_error *err);

/* ---- one engine (member.c) ---- */

void dw_member_init(dw_member *member, dw_engine *engine);

/* Asks it how it is. Sets whether it is there, and the version it serves. */
void dw_member_probe(dw_member *member, unsigned patience_ms);

/* Whether it serves VERSION, or would once it is resumed. */
bool dw_member_serves(const dw_member *member, uint64_t version);

/* It does serve the right version: resumes it where it may be paused. */
void dw_member_confirm(dw_member *member, const dw_engine_update *update);

/* Whether it must be paused before weights are written. */
bool dw_member_counts(const dw_member *member);

/* Forgets the times of the hop before. */
void dw_member_begin(dw_member *member);

/* Its weights, or those it reads in place, may be a mix. ERR says why. */
void dw_member_mistrust(dw_member *member, const dw_error *err);

/* False where it did not acknowledge: it may be paused or not, and is to be resumed. */
bool dw_member_pause(dw_member *member, const dw_engine_update *update,
                     unsigned patience_ms);

/* Whether the weights may move without it: it has been away for longer than anybody
 * waits, or it hangs, and does not read them. Sets what dw_member_counts says. */
void dw_member_judge_absence(dw_member *member, unsigned patience_ms);

/* One that hung is paused. */
void dw_member_mends(dw_member *member);

/* It hangs still: it is left alone for a while, for longer each time. */
void dw_member_rests(dw_member *member);

/* ---- one that hangs (nurse.c) ---- */

/* Asks it again, on a thread of its own, if it is time to. */
void dw_member_nurse(dw_member *member);

/* Ends that thread if it is done. */
void dw_member_take_nursed(dw_member *member);

/* Waits for that thread. */
void dw_member_end_nurse(dw_member *member);

/* Brings a paused engine to UPDATE, by the patch or whole, and resumes it. */
void dw_member_take_over(dw_member *member, const dw_engine_update *update,
                         unsigned n_tries);

/* Resumes it where it is paused and whole. UPDATE may be NULL. */
void dw_member_resume(dw_member *member, const dw_engine_update *update);

/* DW_UNAVAILABLE, with what the engine last said: it is in the way. */
dw_status dw_member_fail(const dw_member *member, dw_error *err);

/* ---- all of them (crew.c) ---- */

/* No engine stands still for longer because another one has not paused yet. One whose
 * pause fails after that long hangs. */
#define DW_CREW_GRACE_MS 2000

typedef void (*dw_member_fn)(dw_member *member, void *context);

/* Does FN for each engine that is not nursed, side by side, and tells what is new about
 * them. */
void dw_crew_each(dw_rollout *rollout, dw_member_fn fn, void *context);

/* Takes back those whose nurse is done, and resumes each that is whole. In between no
 * engine comes back from its nurse, so what is known of it holds for a whole hop. */
void dw_crew_take_nursed(dw_rollout *rollout);

/* Pauses all that count. If one cannot be, the others are resumed, after at most
 * DW_CREW_GRACE_MS. UPDATE may be NULL:
 * not for a version. */
dw_status dw_crew_pause(dw_rollout *rollout, const dw_engine_update *update,
                        dw_error *err);
void dw_crew_take_over(dw_rollout *rollout, const dw_engine_update *update);
void dw_crew_resume(dw_rollout *rollout, const dw_engine_update *update);

#endif
