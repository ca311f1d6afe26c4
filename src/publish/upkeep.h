/* Upkeep: folds and anchors, made by a thread of their own.
 *
 * Owner: the upkeep thread, except for the members that the publisher's lock guards. It
 * reads the weights through held_version.h, which has a lock of its own. The thread works
 * on one version at a time, the newest. If versions are committed meanwhile, they set
 * `wanted`.
 */
#ifndef DW_PUBLISH_UPKEEP_H
#define DW_PUBLISH_UPKEEP_H

#include <pthread.h>

#include "deltawire/publish.h"
#include "publish/fold_copy.h"
#include "publish/held_version.h"

#define DW_MAX_FOLDS 4

typedef struct dw_folds {
    dw_fold_level levels[DW_MAX_FOLDS]; /* spans ascending */
    size_t n;
    dw_fold_copy copy;
} dw_folds;

typedef struct dw_upkeep {
    pthread_t thread;
    bool has_thread;
    dw_held_version held;
    /* Owner: the thread that set `busy` */
    dw_folds folds;
    dw_position at;  /* the version it works on */
    uint64_t opened; /* the head when the publisher was opened */
    /* guarded by the publisher's lock */
    bool wanted;        /* a version was committed since the thread last looked */
    bool busy;          /* a thread owns what is above */
    bool give_up_copy;  /* the work should stop, and the copy for folds be removed */
    uint64_t version;   /* of `at` while it works; DW_NO_VERSION: it does not */
    uint64_t n_dropped; /* folds and anchors that were due and never made */
    dw_status status;   /* the last fault; dw_publisher_drain reports it */
    dw_error error;
    dw_status doubt; /* not DW_OK: the baseline seems not to be the version that it should
                        be. The publisher's thread checks all of it */
    dw_error doubt_error;
} dw_upkeep;

void dw_upkeep_init(dw_upkeep *upkeep);
/* Once the baseline is the head. A version does not need upkeep, so only
 * dw_publisher_drain reports its faults. */
dw_status dw_upkeep_open(dw_publisher *p, dw_error *err);
dw_status dw_upkeep_start(dw_publisher *p, dw_error *err);
/* Waits for the end of the thread. `closing` of the publisher is set. */
void dw_upkeep_stop(dw_publisher *p);
void dw_upkeep_close(dw_publisher *p);
/* Reports that the baseline is a new version: folds or anchors may be due. */
void dw_upkeep_ask(dw_publisher *p);
/* Keeps a fault for dw_publisher_drain. */
void dw_upkeep_note(dw_publisher *p, dw_status status, const dw_error *error);
/* Returns that fault once, or DW_OK. */
dw_status dw_upkeep_take_fault(dw_publisher *p, dw_error *err);
/* Creates the record of a fold or an anchor of version `at`, and adds it to the hint. */
dw_status dw_upkeep_add(dw_publisher *p, const dw_position *from,
                        const dw_objects *objects, dw_error *err);
/* For dw_progress: not 0 if the work should stop. */
int dw_upkeep_cancelled(void *publisher, uint64_t n_done, uint64_t n_total);
/* The folds and anchors that were due and never made. */
uint64_t dw_upkeep_dropped(dw_publisher *p);
/* Whether it has nothing to do. The caller holds the lock. */
bool dw_upkeep_is_idle(const dw_publisher *p);

/* ---- folds.c ---- */

/* Finds the copy of the model that folds start from, or makes it. After a failure there
 * are no folds until a later version can make it. */
dw_status dw_folds_open(dw_publisher *p, dw_error *err);
void dw_folds_close(dw_publisher *p);
/* Removes the copy for folds from the baseline's directory, because a version needs the
 * room. A later version makes it again. False if there is none, or if upkeep uses it;
 * upkeep then stops soon and removes it. */
bool dw_folds_give_up_copy(dw_publisher *p);
/* The same, called by the owner of the folds. False if there is none. */
bool dw_folds_remove_copy(dw_publisher *p);
/* Whether a fold to version p->upkeep.at is due. */
bool dw_folds_are_due(const dw_publisher *p);
/* Makes the folds that are due. *MADE: whether a shortcut was added. */
dw_status dw_folds_make(dw_publisher *p, bool *made, dw_error *err);

#endif
