/* Upkeep: folds and anchors, made by a thread of their own.
 *
 * Owner: the upkeep thread. What the other threads may see of it is guarded by the
 * publisher's lock; the weights are shared through held_version.h, which has a lock of
 * its own. The thread works on the newest version there is, and on one version at a time.
 * Versions that come meanwhile only leave a note that there is work.
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
    /* the thread's while `busy`; else whoever sets `busy` */
    dw_folds folds;
    dw_position at;  /* the version that is worked on */
    uint64_t opened; /* the head when the publisher was opened */
    /* guarded by the publisher's lock */
    bool wanted;       /* a version was committed since the thread last looked */
    bool busy;         /* somebody uses what is above */
    bool give_up_copy; /* the work under way is to end, and the copy for folds to go */
    uint64_t version;  /* that is worked on; DW_NO_VERSION: none */
    uint64_t n_dropped;
    dw_status status; /* the last fault; dw_publisher_drain reports it */
    dw_error error;
    dw_status doubt; /* not DW_OK: the baseline does not seem to be the version that it
                        should be. The publisher's thread compares all of it */
    dw_error doubt_error;
} dw_upkeep;

/* Once the baseline is the head. Versions need no upkeep, so a failure of it is only
 * reported by dw_publisher_drain. */
dw_status dw_upkeep_open(dw_publisher *p, dw_error *err);
dw_status dw_upkeep_start(dw_publisher *p, dw_error *err);
/* Ends the thread, which `closing` was set for. */
void dw_upkeep_stop(dw_publisher *p);
void dw_upkeep_close(dw_publisher *p);
/* The baseline is a new version: there may be work. */
void dw_upkeep_ask(dw_publisher *p);
/* Keeps a fault for dw_publisher_drain. */
void dw_upkeep_note(dw_publisher *p, dw_status status, const dw_error *error);
/* Creates the record of a fold or an anchor of the version that is worked on, and tells
 * the hint. */
dw_status dw_upkeep_add(dw_publisher *p, const dw_position *from,
                        const dw_objects *objects, dw_error *err);
/* For dw_progress: not 0 if the work under way is to be given up. */
int dw_upkeep_cancelled(void *publisher, uint64_t n_done, uint64_t n_total);
/* Whether nothing is under way and nothing is due; the lock is held. */
bool dw_upkeep_is_idle(const dw_publisher *p);

/* ---- folds.c ---- */

/* Finds what folds start from, or makes it. A failure means that there are no folds until
 * it can be made. */
dw_status dw_folds_open(dw_publisher *p, dw_error *err);
void dw_folds_close(dw_publisher *p);
/* Removes the copy for folds from the baseline's directory: versions need the room. False
 * if there is none, or if upkeep uses it: then that ends soon, and removes it. A later
 * version makes it again. */
bool dw_folds_give_up_copy(dw_publisher *p);
/* The same for upkeep itself. False if there is none. */
bool dw_folds_remove_copy(dw_publisher *p);
/* Whether there is something to fold at version p->upkeep.at. */
bool dw_folds_are_due(const dw_publisher *p);
/* Folds what is due at the version that is held; *MADE says whether a way was added. */
dw_status dw_folds_make(dw_publisher *p, bool *made, dw_error *err);

#endif
