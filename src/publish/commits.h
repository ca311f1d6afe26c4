/* The commits: where the stream stands, and this writer's claim on it (docs/PROTOCOL.md,
 * section 3).
 *
 * Owner: the owner of the baseline.
 */
#ifndef DW_PUBLISH_COMMITS_H
#define DW_PUBLISH_COMMITS_H

#include "deltawire/publish.h"
#include "stream/record.h"
#include "weights/position.h"

typedef enum dw_claim_state {
    DW_CLAIM_HELD,
    DW_CLAIM_OPEN,   /* nobody knows whether the last commit arrived */
    DW_CLAIM_FENCED, /* another writer took over: nothing more is published */
} dw_claim_state;

/* Changed under the publisher's lock, so that other threads may read head and claim. */
typedef struct dw_commits {
    dw_position head;        /* the next version follows on it */
    char writer[DW_ID_TEXT]; /* this writer's id, the same for all ranks of a job */
    uint64_t epoch;          /* that it claimed */
    dw_claim_state claim;
} dw_commits;

/* HELD becomes OPEN. */
void dw_claim_doubt(dw_publisher *p);
/* DW_CONFLICT if another writer took over. */
dw_status dw_claim_check(const dw_publisher *p, dw_error *err);
/* The stream stands at HEAD now. */
void dw_commit_move_head(dw_publisher *p, const dw_position *head);
/* The version after the head. */
uint64_t dw_commit_next_version(const dw_publisher *p);

/* Ranks other than 0: opens the stream as soon as rank 0 has created it. */
dw_status dw_stream_await(dw_publisher *p, dw_error *err);
/* Waits for the epoch that rank 0 of this job claims, and takes part in it. Not in one
 * in which another process was this rank. */
dw_status dw_epoch_join(dw_publisher *p, dw_error *err);
/* Makes this writer the one that may commit, and finds the head, in this order: what was
 * read before the claim may be old, because the writer before went on until then. Claims
 * the next free epoch; a rank other than 0 has joined and met rank 0. Then sets
 * p->commits.head, to DW_NO_VERSION if there is no version yet. DW_CONFLICT as below. */
dw_status dw_commit_claim(dw_publisher *p, dw_error *err);
/* For a writer that has claimed: sets p->commits.head to the newest version. DW_CONFLICT
 * if a later writer made it. */
dw_status dw_commit_find_head(dw_publisher *p, dw_error *err);
/* DW_CONFLICT if a later writer made the head: this one may not add to it. */
dw_status dw_epoch_check_head(dw_publisher *p, dw_error *err);

/* Stores the companion files of the next version, then creates its commit. The caller
 * fills in `write_id` and what is special to this version; the rest is filled in here. On
 * success *POSITION is the new
 * head. DW_CONFLICT: another writer took over. DW_UNAVAILABLE: the outcome is unknown,
 * and the next publish resolves it first. */
dw_status dw_commit_create(dw_publisher *p, dw_commit_record *commit,
                           dw_position *position, dw_error *err);
/* If the claim is OPEN, reads the stream to find out whether the commit arrived. If it
 * did, the baseline is behind. DW_CONFLICT if the claim is FENCED. */
dw_status dw_commit_resolve(dw_publisher *p, dw_error *err);
/* Another writer took over, as REASON shows: stops this one. DW_CONFLICT. */
dw_status dw_commit_fail_fenced(dw_publisher *p, const char *reason, dw_error *err);

#endif
