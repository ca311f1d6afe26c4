/* The job: one publish, from the call to its outcome.
 *
 * Owner: whoever holds the publisher's lock, except for the members at the end. While a
 * job is under way, no call changes its step, notes and `unchanged`, so the publisher's
 * thread reads them without the lock.
 */
#ifndef DW_PUBLISH_JOB_H
#define DW_PUBLISH_JOB_H

#include <pthread.h>

#include "deltawire/publish.h"
#include "publish/delta_upload.h"
#include "weights/position.h"

#define DW_KEPT_TICKETS 64

typedef enum dw_job_phase {
    DW_JOB_IDLE,
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

typedef struct dw_job {
    pthread_t thread; /* the publisher's */
    bool has_thread;
    dw_job_phase phase;
    uint64_t ticket; /* of the job under way; tickets count from 1 */
    dw_ticket_fate fates[DW_KEPT_TICKETS]; /* ticket N at N % DW_KEPT_TICKETS */
    bool cancel;                           /* the job under way should stop */
    bool committing;                       /* it is too late to stop */
    char *step;
    uint64_t turn;  /* of several ranks: that of the step (ranks.h) */
    bool is_repeat; /* the step is a version already */
    char *notes;
    dw_origin source; /* of the version that is committed next */
    bool *unchanged;  /* [pieces.n_table] tensors that the caller did not change */
    uint64_t t_start;
    /* Owner: the publisher's thread. */
    dw_uploaded part;
} dw_job;

/* Once the pieces are cut. */
dw_status dw_job_open(dw_publisher *p, dw_error *err);
void dw_job_close(dw_job *job);

/* Starts the publisher's thread. */
dw_status dw_job_start(dw_publisher *p, dw_error *err);
/* Waits for the end of the thread. `closing` of the publisher is set. */
void dw_job_stop(dw_publisher *p);
/* For dw_progress: not 0 if the job under way should stop. */
int dw_job_cancelled(void *publisher, uint64_t n_done, uint64_t n_total);
/* Where the fate of TICKET is kept. The caller holds the lock for this and the next. */
dw_ticket_fate *dw_job_fate(dw_publisher *p, uint64_t ticket);
/* The fate of TICKET, or NULL if the ticket is too old or was never given out. */
dw_ticket_fate *dw_job_find(dw_publisher *p, uint64_t ticket);
dw_status dw_job_fail_ticket(const dw_publisher *p, uint64_t ticket, dw_error *err);

/* If an earlier commit is in doubt, or the baseline is lost, reads the stream. For the
 * owner of the baseline. */
dw_status dw_job_resolve_past(dw_publisher *p, dw_error *err);

/* Copies GIVEN, or none. DW_INVALID if it names no stream. */
dw_status dw_origin_take(dw_origin *out, const dw_version_source *given, dw_error *err);

/* Of several ranks: notes the step of the next job. All ranks must be at the same one: a
 * version is one step of the trainer. DW_INVALID if it is no number, or goes back. The
 * caller holds the lock. */
dw_status dw_job_take_turn(dw_publisher *p, const char *step, dw_error *err);
/* Hands a job to the publisher's thread, which has none. The caller holds the lock. */
dw_status dw_job_submit(dw_publisher *p, uint64_t *ticket, const dw_publish_note *note,
                        dw_error *err);
/* Lets the job under way stop, if it is not being committed. The caller holds the lock.
 */
void dw_job_cancel(dw_publisher *p);
/* Fills in the members of the report that a commit determines. */
void dw_job_report(const dw_publisher *p, const dw_position *position,
                   dw_publish_report *report);
/* Moves the baseline to the version that was uploaded and committed. */
void dw_job_move_on(dw_publisher *p, const dw_position *position);
/* The work after a commit: moves the baseline, puts the hint, asks for upkeep. */
void dw_job_follow_up(dw_publisher *p, const dw_position *position,
                      const dw_publish_report *report);
/* Ends the job under way: notes its fate, and accepts the next. The caller holds the
 * lock.
 */
void dw_job_finish(dw_publisher *p, dw_status status, const dw_error *error,
                   const dw_publish_report *report);

#endif
