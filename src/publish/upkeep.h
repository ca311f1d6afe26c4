/* Upkeep: a thread of the publisher, or of rank 0, that runs a compactor (compact.h).
 *
 * It shares nothing with the versions but the hint, so no version waits for it, and no
 * failure of it harms one. The publisher's lock guards all members.
 */
#ifndef DW_PUBLISH_UPKEEP_H
#define DW_PUBLISH_UPKEEP_H

#include <pthread.h>

#include "deltawire/publish.h"

typedef struct dw_upkeep {
    pthread_t thread;
    bool has_thread;
    struct dw_compactor *compactor; /* the thread's; NULL: nothing was due yet */
    bool wanted;        /* a version was committed since the thread last looked */
    bool busy;          /* the thread works */
    bool give_up;       /* its copies of the model should go: a version needs the room */
    uint64_t due_since; /* the version at which something became due that is not made yet;
                           DW_NO_VERSION: nothing is due */
    dw_status status;   /* the last fault; dw_publisher_drain reports it */
    dw_error error;
    bool denied;     /* what is superseded may not be removed */
    dw_error denial; /* until it is taken */
} dw_upkeep;

dw_status dw_upkeep_start(dw_publisher *p, dw_error *err);
/* Waits for the end of the thread. `closing` of the publisher is set. */
void dw_upkeep_stop(dw_publisher *p);
/* Reports that a version was committed: folds or anchors may be due. */
void dw_upkeep_ask(dw_publisher *p);
/* A version found no room on the disk: the copies go, and a later version tries again. */
void dw_upkeep_give_up(dw_publisher *p);
/* Keeps a fault for dw_publisher_drain. */
void dw_upkeep_note(dw_publisher *p, dw_status status, const dw_error *error);
/* Returns that fault once, or DW_OK. */
dw_status dw_upkeep_take_fault(dw_publisher *p, dw_error *err);
/* Whether it has nothing to do. The caller holds the lock, for this and the next. */
bool dw_upkeep_is_idle(const dw_publisher *p);
/* For how many versions something has been due. */
uint64_t dw_upkeep_behind(const dw_publisher *p);

#endif
