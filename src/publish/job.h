/* The job: one publish, from the call to its outcome.
 *
 * Owner: the publisher's lock, except for what is marked. While a job is under way, the
 * publisher's thread reads its step, notes and flags without the lock: no call writes
 * them then.
 */
#ifndef DW_PUBLISH_JOB_H
#define DW_PUBLISH_JOB_H

#include "deltawire/publish.h"
#include "publish/delta_upload.h"
#include "weights/replica.h"

#define DW_KEPT_TICKETS 64

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

typedef struct dw_job {
    dw_job_phase phase;
    uint64_t ticket; /* of the job under way; tickets count from 1 */
    dw_ticket_fate fates[DW_KEPT_TICKETS]; /* ticket N at N % DW_KEPT_TICKETS */
    bool cancel;                           /* the job under way is to be given up */
    bool committing;                       /* too late for that */
    char *step;
    char *notes;
    bool *unchanged; /* [pieces.n_table] what the caller says has not changed */
    uint64_t t_start;
    /* the publisher's thread's; of a sharded job that is uploaded, its caller's */
    dw_uploaded part;
    dw_writer receipt;
    dw_writer outcome;
} dw_job;

/* Once the pieces are cut. */
dw_status dw_job_open(dw_publisher *p, dw_error *err);
void dw_job_close(dw_job *job);

/* The publisher's thread. */
void *dw_job_loop(void *publisher);
/* For dw_progress: not 0 if the job under way is to be given up. */
int dw_job_cancelled(void *publisher, uint64_t n_done, uint64_t n_total);
/* Where the fate of TICKET is kept. The caller holds the lock for this and the next. */
dw_ticket_fate *dw_job_fate(dw_publisher *p, uint64_t ticket);
/* The fate of TICKET, or NULL if the ticket is too old or was never given out. */
dw_ticket_fate *dw_job_find(dw_publisher *p, uint64_t ticket);
dw_status dw_job_fail_ticket(const dw_publisher *p, uint64_t ticket, dw_error *err);

/* Fills in what is known once a version is committed. */
void dw_job_report(const dw_publisher *p, const dw_position *position,
                   dw_publish_report *report);
/* The version of the part that was uploaded is committed: the baseline moves. */
void dw_job_move_on(dw_publisher *p, const dw_position *position);
/* What follows on a commit: the baseline moves, the hint is put, upkeep is asked for. */
void dw_job_follow_up(dw_publisher *p, const dw_position *position,
                      const dw_publish_report *report);
/* Ends the job under way: notes its fate, and accepts the next. The caller holds the
 * lock.
 */
void dw_job_finish(dw_publisher *p, dw_status status, const dw_error *error,
                   const dw_publish_report *report);

#endif
