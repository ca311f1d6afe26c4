/* The inside of a publisher.
 *
 * The publisher's thread does what takes long: diff, encode, upload, commit. The caller's
 * calls hand it one job at a time and wait for its fate. A second thread makes folds and
 * anchors, so that no version waits for them.
 *
 *     publisher.c         the calls, tickets
 *     job.c       the thread: one publish after the other
 *     ranks_by_caller.c receipts that the caller carries between ranks
 *     publisher_begin.c      opening: stream, epoch, baseline, version 0
 *     live_weights.c      the caller's weights: masters, and what has not changed
 *     commits.c    committing, fencing, lost replies
 *     current.c   whether the caller's weights are the newest version
 *     baseline.c  the baseline and how it moves
 *     baseline_mark.c      the mark of the baseline's directory
 *     sweep.c     whether the baseline is still what was committed
 *     ranks.c     receipts of a sharded publish
 *     hint.c              latest.json
 *     upkeep.c            the thread that makes folds and anchors
 *     folds.c     folded deltas
 *     held_version.c      the weights that it makes them from
 *     restart.c           a version that only its anchor leads to
 *     repair.c            making one without a publisher
 */
#ifndef DW_PUBLISH_PUBLISHER_H
#define DW_PUBLISH_PUBLISHER_H

#include <pthread.h>

#include "base/file.h"
#include "publish/baseline.h"
#include "publish/hint.h"
#include "publish/job.h"
#include "publish/live_weights.h"
#include "publish/shortcut.h"
#include "publish/upkeep.h"

struct dw_publisher {
    /* set when it is opened, and read by all threads */
    dw_store *store; /* borrowed */
    dw_stream *stream;
    dw_publish_options options; /* strings are copies */
    bool sharded;
    bool created; /* open committed version 0 */
    uint64_t model_bytes;
    dw_pieces pieces; /* what is published: slices of the table. Its digests belong to the
                         owner of the baseline */

    /* the parts; each header names the owner */
    dw_live live;
    dw_baseline baseline;
    dw_hint hint;
    dw_upkeep upkeep;
    dw_job job;

    /* the owner of the baseline's */
    dw_position head;
    char writer[DW_ID_TEXT];
    uint64_t epoch;
    uint64_t round; /* of a sharded publish */
    bool in_doubt;  /* the outcome of a commit is not known */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* what the lock guards */
    /* guarded by the lock */
    uint64_t version; /* of the head, as the caller may know it */
    bool closing;
    bool busy;   /* somebody owns the baseline */
    bool fenced; /* another writer took over */
};

/* ---- publisher.c ---- */

/* A publisher that nothing is opened of yet. */
dw_publisher *dw_publisher_new(dw_store *store);
void dw_publisher_free(dw_publisher *p);
bool dw_publisher_is_closing(dw_publisher *p);
/* Another writer took over: nothing more is published. */
void dw_publisher_fence(dw_publisher *p);

/* The fate of TICKET, or NULL where it is none of the last; the lock is held. */
dw_ticket_fate *dw_job_find(dw_publisher *p, uint64_t ticket);
dw_status dw_job_fail_ticket(const dw_publisher *p, uint64_t ticket, dw_error *err);

/* ---- publisher_begin.c ---- */

dw_status dw_publisher_begin(dw_publisher *p, const dw_tensor *tensors, size_t n_tensors,
                             dw_error *err);

/* DW_UNSUPPORTED if the store cannot keep two writers apart and nobody asked for that. */
dw_status dw_publisher_check_store(dw_publisher *p, dw_error *err);
/* A stream that is signed stays signed by the same key, unless the caller wants it
 * otherwise: its followers trust that key and would stop. */
dw_status dw_publisher_check_key(dw_publisher *p, dw_error *err);

/* The name under which a fork is listed in the stream that it comes from. */
void dw_fork_follower_id(char out[65], const dw_publisher *p);
/* Commits version 0 as a fork of another stream's. */
dw_status dw_fork_first_version(dw_publisher *p, dw_error *err);

/* ---- current.c ---- */

/* Publishes the caller's weights if they differ from the newest version, and waits until
 * they are committed. */
dw_status dw_publisher_publish_changed(dw_publisher *p, dw_error *err);

/* ---- commits.c ---- */

/* The version after the head. */
uint64_t dw_publisher_next(const dw_publisher *p);

/* Claims the next free epoch. */
dw_status dw_epoch_claim(dw_publisher *p, dw_error *err);
/* Waits for the epoch that rank 0 of this job claims. */
dw_status dw_epoch_join(dw_publisher *p, dw_error *err);

/* DW_CONFLICT where the head was made by a later writer than this one: nothing may follow
 * on it. */
dw_status dw_epoch_check_head(dw_publisher *p, dw_error *err);

/* Sets p->head to the stream's newest version. */
dw_status dw_commit_find_head(dw_publisher *p, dw_error *err);
/* Creates the commit; `write_id` and what is the same in all commits are filled in. On
 * success POSITION is the new head. DW_CONFLICT: fenced. DW_UNAVAILABLE: not known; it is
 * found out before the next. */
dw_status dw_commit_create(dw_publisher *p, dw_commit_record *commit,
                           dw_position *position, dw_error *err);
/* Finds out what became of a commit with unknown outcome. */
dw_status dw_commit_resolve(dw_publisher *p, dw_error *err);

/* ---- restart.c ---- */

/* A restart in the making. */
typedef struct dw_restart {
    dw_scratch_model model; /* its weights, in a nameless file: the caller's may change */
    dw_digest state;
    char write_id[DW_ID_TEXT];
    dw_objects objects; /* of its anchor */
} dw_restart;

/* Makes room for the weights, which the caller then fills in. */
dw_status dw_restart_open(dw_restart *out, const dw_publisher *p, dw_error *err);
void dw_restart_close(dw_restart *restart);
dw_status dw_restart_digest(dw_restart *restart, const dw_publisher *p, dw_error *err);
dw_status dw_restart_upload(dw_restart *restart, dw_publisher *p, dw_error *err);
/* Commits it, then writes its anchor's record, which names the commit. Of COMMIT the
 * caller fills in step, notes and suspect_from. If the commit is there, p->head is it,
 * also after a failure: then it cannot be had, and a further restart is due. */
dw_status dw_restart_commit(const dw_restart *restart, dw_publisher *p,
                            dw_commit_record *commit, dw_error *err);

/* ---- ranks.c ---- */

/* Draws an id for the objects of a rank. All ranks of one round begin it with the same
 * digits, so that their objects can be seen to belong together. */
dw_status dw_rank_write_id(char out[DW_ID_TEXT], const dw_publisher *p, dw_error *err);

dw_status dw_first_version_sharded(dw_publisher *p, dw_error *err);
dw_status dw_receipt_make(dw_publisher *p, dw_error *err);
dw_status dw_receipts_commit(dw_publisher *p, const void *const *receipts,
                             const size_t *n_bytes, size_t n_receipts,
                             dw_position *position, dw_publish_report *report,
                             dw_error *err);
/* Through the store: rank 0 collects and commits, the others wait for the commit, which
 * must be made of MINE, this rank's objects. */
dw_status dw_receipts_exchange(dw_publisher *p, const dw_objects *mine,
                               dw_position *position, dw_publish_report *report,
                               dw_error *err);

#endif
