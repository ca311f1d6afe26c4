/* The inside of a publisher.
 *
 * A publisher consists of parts. Each part has a header, which names its owner:
 *
 *     live_weights.h  the caller's weights
 *     baseline.h      the publisher's copy of the newest version
 *     capture.h       weights on devices: how they are read
 *     commits.h       where the stream stands, and this writer's claim on it
 *     takeover.h      when another writer may be taken over from
 *     ranks.h         what this rank and the others do together
 *     version_files.h the companion files of the next version
 *     hint.h          latest.json
 *     upkeep.h        folds and anchors, made by a compactor
 *
 * Two threads meet here. The caller's thread hands over one job at a time and waits for
 * its fate. The publisher's thread does the job: diff, encode, upload, commit. A third
 * one, upkeep, runs a compactor: it shares only the hint with them.
 *
 *     publisher.c          the calls of the caller, and the publisher's thread
 *     publisher_begin.c    opening: stream, epoch, baseline, version 0
 *     live_weights.c       which of the caller's weights are read, and as what
 *     version_files.c      companion files: what the parent has, what is stored again
 *     companions.c         the companion files of a directory
 *     baseline.c           the baseline: how it moves, and how it is checked
 *     capture.c            reading weights on devices
 *     baseline_mark.c      the file that marks a directory as a baseline
 *     commits.c            epochs, commits, lost replies
 *     takeover.c           when a writer that was there before counts as gone
 *     ranks.c              sharded publish: turns, receipts
 *     ranks_cover.c        which rank owns what
 *     hint.c               latest.json
 *     upkeep.c             the thread that runs the compactor
 *     restart.c            a version that only its anchor leads to
 *     repair.c             a restart without a publisher
 *     repair_quant.c       the same of a quantised stream
 *
 * Below the publisher, without threads or state of their own: pieces.c (how the model is
 * cut), delta_upload.c (encode and upload), shortcut.c. compact.c adds folds and
 * anchors to a stream; it needs no publisher.
 */
#ifndef DW_PUBLISH_PUBLISHER_H
#define DW_PUBLISH_PUBLISHER_H

#include <pthread.h>

#include "base/file.h"
#include "publish/baseline.h"
#include "publish/capture.h"
#include "publish/commits.h"
#include "publish/hint.h"
#include "publish/delta_upload.h"
#include "publish/live_weights.h"
#include "publish/ranks.h"
#include "publish/shortcut.h"
#include "publish/upkeep.h"
#include "publish/version_files.h"
#include "inner.h"

#define DW_KEPT_TICKETS 64

typedef enum dw_job_phase {
    DW_JOB_IDLE,
    DW_JOB_RESOLVING, /* no job: the publisher's thread gets the baseline ready for one */
    DW_JOB_ENCODING,  /* the caller's weights are being read, or will be */
    DW_JOB_UPLOADING, /* they were read: the caller may change them */
} dw_job_phase;

typedef struct dw_ticket_fate {
    uint64_t ticket;
    bool captured; /* the caller may change its weights */
    bool done;     /* the rest is set */
    dw_status status;
    dw_error error;
    dw_publish_report report;
} dw_ticket_fate;

/* One publish, from the call to its outcome.
 *
 * Owner: whoever holds the publisher's lock, except for the members at the end. While a
 * job is under way, no call changes its step, notes and `unchanged`, so the publisher's
 * thread reads them without the lock. */
typedef struct dw_job {
    pthread_t thread; /* the publisher's */
    bool has_thread;
    bool is_followed_up; /* nothing is left to do for the last version */
    dw_job_phase phase;
    uint64_t ticket; /* of the job under way; tickets count from 1 */
    dw_ticket_fate fates[DW_KEPT_TICKETS]; /* ticket N at N % DW_KEPT_TICKETS */
    bool cancel;                           /* the job under way should stop */
    bool committing;                       /* it is too late to stop */
    dw_publish_progress progress;
    char *step;
    uint64_t turn;  /* of several ranks: that of the step (ranks.h) */
    bool is_repeat; /* the step is a version already */
    char *notes;
    dw_origin source; /* of the version that is committed next */
    bool *unchanged;  /* [pieces.n_table] tensors that the caller did not change */
    uint64_t t_start_us;
    uint64_t captured_us; /* after it; 0: not yet */
    uint64_t n_merged;    /* since the last job: publishes that became none ... */
    uint64_t waited_ms;   /* ... and how long calls waited */
    uint64_t n_covered;   /* those which the job under way covers ... */
    uint64_t held_ms;     /* ... and their time */
    /* Owner: the publisher's thread. */
    dw_uploaded part;
} dw_job;

struct dw_publisher {
    /* set by open; all threads read them */
    dw_store *store; /* borrowed */
    dw_stream *stream;
    dw_publish_options options; /* strings are copies */
    bool sharded;
    bool created; /* open committed version 0 */
    uint64_t model_bytes;
    dw_pieces pieces; /* the weights that this process publishes */

    /* the parts; each header names the owner */
    dw_job job;
    dw_live live;
    dw_baseline baseline;
    dw_captures captures;
    dw_commits commits;
    dw_ranks ranks;
    dw_version_files files;
    dw_hint hint;
    dw_upkeep upkeep;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* something that the lock guards has changed */
    /* guarded by the lock, like the job */
    bool closing;
    bool busy;          /* a thread owns the baseline */
    unsigned n_waiting; /* calls that wait for it: the sweep lets them pass */
};

/* ---- publisher.c ---- */

/* Makes a publisher without opening a stream; NULL if there is no memory. */
dw_publisher *dw_publisher_new(dw_store *store);
void dw_publisher_free(dw_publisher *p);
bool dw_publisher_is_closing(dw_publisher *p);
/* For the publisher's thread: whether a job came, or the end. */
bool dw_publisher_has_work(dw_publisher *p);
/* Once the pieces are cut. */
dw_status dw_job_open(dw_publisher *p, dw_error *err);
/* When the moments of the job under way were, up to the upload. */
dw_times dw_job_times(const dw_publisher *p);
/* For dw_progress: not 0 if the job under way should stop. */
int dw_job_cancelled(void *publisher, uint64_t n_done, uint64_t n_total);

/* ---- publisher_begin.c ---- */

/* Opens or creates the stream, claims it, and brings the baseline to its head. */
dw_status dw_publisher_begin(dw_publisher *p, const dw_tensor *tensors, size_t n_tensors,
                             dw_error *err);

/* DW_UNSUPPORTED if the store cannot keep two writers apart, unless the caller set
 * `single_writer`. */
dw_status dw_publisher_check_store(dw_publisher *p, dw_error *err);
/* DW_UNTRUSTED if the stream is signed by another key, unless the caller set `new_key`:
 * the followers trust the old key and would stop. */
dw_status dw_publisher_check_key(dw_publisher *p, dw_error *err);

/* The follower id under which this stream, a fork, is listed in its source. */
void dw_fork_follower_id(char out[65], const dw_publisher *p);
/* Commits version 0 as a fork of a version of another stream. */
dw_status dw_fork_first_version(dw_publisher *p, dw_error *err);

/* Uploads the baseline as the anchor of version 0; of a rank, its part. */
dw_status dw_first_anchor_upload(dw_objects *out, dw_publisher *p, const char *write_id,
                                 dw_error *err);

#endif
