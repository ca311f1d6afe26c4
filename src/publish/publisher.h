/* The inside of a publisher.
 *
 * The publisher's thread does what takes long: diff, encode, upload, commit. The caller's
 * calls hand it one job at a time and wait for its fate. A second thread makes folds and
 * anchors, so that no version waits for them.
 *
 *     publisher.c         the calls, tickets
 *     publish_job.c       the thread: one publish after the other
 *     publish_by_caller.c receipts that the caller carries between ranks
 *     publish_open.c      opening: stream, epoch, baseline, version 0
 *     publish_live.c      the caller's weights: masters, and what has not changed
 *     publish_commit.c    committing, fencing, lost replies
 *     publish_current.c   whether the caller's weights are the newest version
 *     publish_baseline.c  the baseline and how it moves
 *     publish_mark.c      the mark of the baseline's directory
 *     publish_sweep.c     whether the baseline is still what was committed
 *     publish_ranks.c     receipts of a sharded publish
 *     hint.c              latest.json
 *     upkeep.c            the thread that makes folds and anchors
 *     publish_folds.c     folded deltas
 *     held_version.c      the weights that it makes them from
 *     restart.c           a version that only its anchor leads to
 *     repair.c            making one without a publisher
 */
#ifndef DW_PUBLISH_PUBLISHER_H
#define DW_PUBLISH_PUBLISHER_H

#include <pthread.h>

#include "base/file.h"
#include "deltawire/publish.h"
#include "publish/delta_upload.h"
#include "publish/fold_copy.h"
#include "follow/follower.h"
#include "stream/graph.h"
#include "publish/shortcut.h"
#include "tensor/tensor_list.h"

#define DW_MAX_FOLDS    4
#define DW_KEPT_TICKETS 64

typedef struct dw_folds {
    dw_fold_level levels[DW_MAX_FOLDS]; /* spans ascending */
    size_t n;
    dw_fold_copy copy;
} dw_folds;

/* latest.json. Any thread may use it, under its lock, which is also held while it is put:
 * so an older hint never replaces a newer one of this process. */
typedef struct dw_hint {
    pthread_mutex_t lock;
    dw_graph graph;  /* edges from the newest anchor on */
    uint64_t anchor; /* the newest version with an anchor, or DW_NO_VERSION */
    uint64_t head;
    bool is_put;   /* a thread is putting it ... */
    bool is_stale; /* ... and must do so once more */
} dw_hint;

/* Folds and anchors. The thread works on the newest version there is, and on one version
 * at a time. Versions that come meanwhile only leave a note that there is work. */
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

typedef enum dw_job_phase {
    DW_JOB_IDLE,
    DW_JOB_ENCODING,  /* the weights are to be read, or are being read */
    DW_JOB_UPLOADING, /* they have been */
    DW_JOB_UPLOADED,  /* sharded, receipts by the caller: waits for its calls */
} dw_job_phase;

typedef struct dw_ticket_fate {
    uint64_t ticket;
    bool captured;
    bool done;
    dw_status status;
    dw_error error;
    dw_publish_report report;
} dw_ticket_fate;

struct dw_publisher {
    dw_store *store; /* borrowed */
    dw_stream *stream;
    dw_publish_options options; /* strings are copies */
    bool sharded;
    bool created; /* open committed version 0 */

    /* what is published: slices of the table, the caller's data */
    dw_pieces pieces;
    void **live_data; /* [pieces.owned.n] */
    dw_tensor *live;  /* [pieces.cut.n] views; of masters as F32 */
    dw_tensor *next;  /* [pieces.cut.n] the same, the baseline's where nothing changed */
    /* [pieces.n_table] of each tensor: */
    size_t *number;  /* in the caller's list */
    bool *is_master; /* the caller's data is F32, published as BF16 */
    bool *is_known;  /* the baseline is what the last publish saw of it, and the caller
                        has told of no change since */
    /* the newest committed version */
    dw_follower *baseline; /* the whole model, in a directory or in `memory` */
    uint8_t *memory;       /* anonymous, of whole tensors or of shards */
    void **base_data;      /* [pieces.owned.n] */
    dw_tensor *base;       /* [pieces.cut.n] views */
    bool baseline_lost;    /* it must be brought to the head anew */
    bool broken;           /* and cannot be: a version on the way does not decode. The
                              next version is a restart */
    uint64_t *proven; /* [pieces.cut.n] the version at which each piece of it was last
                         compared with what was committed */
    size_t sweep_at;  /* the piece that is compared next */
    uint64_t suspect_from; /* followers may be wrong from this version on: the next commit
                              says so. 0: none */
    dw_position head;

    char writer[DW_ID_TEXT];
    uint64_t epoch;
    uint64_t round; /* of a sharded publish */
    bool unsettled; /* a commit's outcome is not known */

    uint64_t model_bytes;
    dw_hint hint;
    dw_upkeep upkeep;

    /* between the caller's threads and the publisher's */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread;
    /* guarded by the lock */
    uint64_t version; /* of the head, as the caller may know it */
    bool closing;
    bool busy;       /* somebody uses the baseline: the publisher's thread for a version,
                        or to compare it; or dw_publisher_is_current */
    bool fenced;     /* another writer took over */
    bool *unchanged; /* [pieces.n_table] what the caller says has not changed */
    bool cancel;     /* the job under way is to be given up */
    bool committing; /* too late for that */
    dw_job_phase phase;
    uint64_t ticket; /* of the job under way; tickets count from 1 */
    dw_ticket_fate fates[DW_KEPT_TICKETS]; /* ticket N at N % DW_KEPT_TICKETS */
    char *step;
    char *notes;

    /* sharded: between upload and commit */
    dw_uploaded part;
    dw_writer receipt;
    dw_writer outcome;
    uint64_t t_start;
};

/* ---- publish_job.c ---- */

/* The publisher's thread. */
void *dw_job_loop(void *publisher);
/* For dw_progress: not 0 if the job under way is to be given up. */
int dw_job_stop(void *publisher, uint64_t n_done, uint64_t n_total);
dw_ticket_fate *dw_job_fate(dw_publisher *p, uint64_t ticket);
/* Fills in what is known once a version is committed. */
void dw_job_report(const dw_publisher *p, const dw_position *position,
                   dw_publish_report *report);
/* The version of the part that was uploaded is committed: the baseline moves. */
void dw_job_move_on(dw_publisher *p, const dw_position *position);
/* What follows on a commit: the baseline moves, the hint is put, upkeep is asked for. */
void dw_job_follow_up(dw_publisher *p, const dw_position *position,
                      const dw_publish_report *report);
/* Ends the job under way with its fate; the lock is held. */
void dw_job_finish(dw_publisher *p, dw_status status, const dw_error *error,
                   const dw_publish_report *report);

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

/* ---- publish_open.c ---- */
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

/* ---- publish_live.c ---- */

/* The caller's tensors as the stream has them; dw_free. */
dw_status dw_live_shapes(dw_tensor **out, const dw_publisher *p, const dw_tensor *tensors,
                         size_t n_tensors, dw_error *err);
/* Once the pieces are cut; NAMES are those of the caller's list. */
dw_status dw_live_open(dw_publisher *p, const dw_name_index *names, dw_error *err);
void dw_live_close(dw_publisher *p);
/* Asks the caller whether what was read may be committed. */
dw_status dw_live_confirm(const dw_publisher *p, dw_error *err);
/* Copies owned slice K as it is published. */
dw_status dw_live_read(const dw_publisher *p, size_t k, void *into, dw_error *err);

/* All weights as they are published, masters rounded: for version 0. */
typedef struct dw_live_copy {
    void **data; /* [table] */
    dw_scratch_model rounded;
} dw_live_copy;
dw_status dw_live_whole(dw_publisher *p, dw_live_copy *out, dw_error *err);
void dw_live_copy_release(dw_live_copy *copy);

/* A publish begins: the caller says which tensors of the table are as at the one before.
 * Whatever becomes of it, what it may change is not known until it is committed. */
void dw_live_tell(dw_publisher *p, const bool *unchanged);
/* Fills `next`: what is known is not compared. */
void dw_live_choose(dw_publisher *p);
/* The publish was committed, and the baseline is all that it saw; or, with false, the
 * baseline came from elsewhere. */
void dw_live_settle(dw_publisher *p, bool is_known);

/* ---- publish_baseline.c ---- */

/* Points the views at the caller's data and at the baseline's, and digests the latter. */
dw_status dw_baseline_connect(dw_publisher *p, dw_error *err);
/* Takes room for the baseline and copies the caller's weights into it. */
dw_status dw_baseline_allocate(dw_publisher *p, dw_error *err);
/* Brings it to the stream's head. If that does not decode, sets p->broken, and the
 * baseline stays lost. */
dw_status dw_baseline_catch_up(dw_publisher *p, dw_error *err);
/* Moves it to version POSITION, which UPLOADED leads to. A failure loses it, not the
 * version. */
void dw_baseline_advance(dw_publisher *p, const dw_position *position,
                         const dw_uploaded *uploaded);
/* It cannot be relied on: the next publish brings it to the head anew. */
void dw_baseline_lose(dw_publisher *p);

/* Lets upkeep see the baseline, which is version p->head. */
void dw_baseline_show(dw_publisher *p);

/* False if the files of a baseline in a directory shrank. */
bool dw_baseline_is_whole(const dw_publisher *p);
/* Makes it the caller's weights DATA, as version POSITION: for version 0. */
dw_status dw_baseline_take_live(dw_publisher *p, void *const *data,
                                const dw_position *position, dw_error *err);

/* ---- publish_current.c ---- */

/* Publishes the caller's weights if they differ from the newest version, and waits until
 * they are committed. */
dw_status dw_publisher_publish_changed(dw_publisher *p, dw_error *err);

/* ---- publish_sweep.c ---- */

/* The baseline was just compared with the stream, all of it. */
dw_status dw_sweep_begin(dw_publisher *p, dw_error *err);
/* Compares the next share of the baseline with what was committed. A baseline that is
 * damaged is read back from the stream; fails if it cannot be. */
dw_status dw_sweep_share(dw_publisher *p, dw_error *err);
/* The same for all of it. *DAMAGED: whether it was. */
dw_status dw_sweep_all(dw_publisher *p, bool *damaged, dw_error *err);

/* Versions from VERSION on may not be the trainer's weights. */
void dw_sweep_suspect(dw_publisher *p, uint64_t version);
/* All versions since the baseline was last compared may not be. */
void dw_sweep_suspect_all(dw_publisher *p);
/* The first of the committed versions of which that is so; 0: none. */
uint64_t dw_sweep_suspect_from(const dw_publisher *p);

/* ---- publish_mark.c ---- */

/* Whether DIR is a publisher's. *PROVEN takes the version at which all of the baseline
 * was last compared with STREAM; DW_NO_VERSION if that is not known. */
bool dw_mark_read(const char *dir, const char *stream, uint64_t *proven);
/* If DIR is the baseline of another stream than STREAM, moves it to DIR.of-OTHER-TIME and
 * makes DIR anew. */
dw_status dw_mark_set_aside(const char *dir, const char *stream, dw_error *err);
dw_status dw_mark_write(const char *dir, const char *stream, uint64_t proven,
                        dw_error *err);

/* ---- publish_commit.c ---- */

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
dw_status dw_commit_settle(dw_publisher *p, dw_error *err);

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

/* ---- publish_ranks.c ---- */

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

/* ---- publish_folds.c ---- */

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

/* ---- hint.c ---- */

void dw_hint_init(dw_hint *hint);
void dw_hint_release(dw_hint *hint);
/* Reads the edges that lead to p->head. If that fails, those that are known stay: the
 * hint then lacks an edge or two, which only costs. */
dw_status dw_hint_load(dw_publisher *p, dw_error *err);
dw_status dw_hint_put(dw_publisher *p, dw_error *err);
/* Version p->head was committed with these objects: adds its edge, and puts the hint. */
dw_status dw_hint_commit(dw_publisher *p, uint64_t n_bytes, uint64_t n_objects,
                         dw_error *err);
/* Adds a fold or an anchor. */
dw_status dw_hint_add(dw_hint *hint, dw_edge edge, dw_error *err);
/* The newest version in the hint. */
uint64_t dw_hint_head(dw_hint *hint);
/* The newest version with an anchor, or DW_NO_VERSION. */
uint64_t dw_hint_anchor(dw_hint *hint);
/* The bytes of the cheapest route from FROM to TO. False if none is known. */
bool dw_hint_cost(dw_hint *hint, uint64_t from, uint64_t to, uint64_t *n_bytes);

/* ---- upkeep.c ---- */

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
int dw_upkeep_is_stopped(void *publisher, uint64_t n_done, uint64_t n_total);
/* Whether nothing is under way and nothing is due; the lock is held. */
bool dw_upkeep_is_idle(const dw_publisher *p);

#endif
