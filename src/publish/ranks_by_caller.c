/* Sharded publish in which the caller carries the receipts between the ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "publish/publisher.h"
#include "publish/ranks.h"

/* Waits until the part of TICKET is uploaded. DW_OK if it waits for a commit. */
static dw_status wait_uploaded(dw_publisher *p, uint64_t ticket, dw_error *err)
{
    pthread_mutex_lock(&p->lock);
    const dw_ticket_fate *fate;
    while ((fate = dw_job_find(p, ticket)) && p->options.receipts == DW_RECEIPTS_CALLER &&
           p->job.ticket == ticket && p->job.phase != DW_JOB_UPLOADED && !fate->done)
        pthread_cond_wait(&p->changed, &p->lock);
    dw_status status = DW_OK;
    if (!fate)
        status = dw_job_fail_ticket(p, ticket, err);
    else if (!p->sharded || p->options.receipts != DW_RECEIPTS_CALLER)
        status =
            dw_fail(err, DW_INVALID, NULL,
                    "there is no receipt to carry: the publish is not sharded, or its "
                    "receipts go through the store");
    else if (fate->done && fate->status == DW_OK)
        status = dw_fail(err, DW_INVALID, NULL, "the version is already committed");
    else if (fate->done)
        status = fate->status;
    if (fate && fate->done && fate->status != DW_OK && err)
        *err = fate->error;
    pthread_mutex_unlock(&p->lock);
    return status;
}

dw_status dw_publisher_receipt(dw_publisher *p, uint64_t ticket, const void **bytes,
                               size_t *n_bytes, dw_error *err)
{
    dw_status status = wait_uploaded(p, ticket, err);
    *bytes = status == DW_OK ? p->job.receipt.bytes : NULL;
    *n_bytes = status == DW_OK ? p->job.receipt.n_bytes : 0;
    return status;
}

static void end_job(dw_publisher *p, dw_status status, const dw_error *error,
                    const dw_publish_report *report)
{
    pthread_mutex_lock(&p->lock);
    dw_job_finish(p, status, error, report);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* The outcome is text: version, state and SHA-256 of the commit. Empty: no commit. */
static dw_status write_outcome(dw_publisher *p, const dw_position *position,
                               dw_error *err)
{
    char sha256[DW_SHA256_TEXT];
    dw_writer_release(&p->job.outcome);
    dw_hex_encode(sha256, position->commit_sha256, DW_SHA256_BYTES);
    dw_write_format(&p->job.outcome, "%" PRIu64 " %016" PRIx64 " %s", position->version,
                    position->state, sha256);
    dw_write_u8(&p->job.outcome, 0);
    return p->job.outcome.failed ? dw_fail_memory(err, NULL) : DW_OK;
}

dw_status dw_publisher_commit(dw_publisher *p, uint64_t ticket,
                              const void *const *receipts, const size_t *n_bytes,
                              size_t n_receipts, const void **outcome, size_t *n_outcome,
                              dw_error *err)
{
    *outcome = "";
    *n_outcome = 1;
    if (p->options.rank != 0)
        return dw_fail(err, DW_INVALID, NULL,
                       "only rank 0 commits. This is rank %" PRIu32
                       ": it calls dw_publisher_accept",
                       p->options.rank);
    dw_status status = wait_uploaded(p, ticket, err);
    if (status != DW_OK)
        return status;
    dw_error error = {0};
    dw_publish_report report = {0};
    dw_position position;
    status =
        dw_receipts_commit(p, receipts, n_bytes, n_receipts, &position, &report, &error);
    /* if this fails, the next round finds the commit */
    if (status == DW_OK)
        status = write_outcome(p, &position, &error);
    if (status == DW_OK) {
        dw_job_report(p, &position, &report);
        *outcome = p->job.outcome.bytes;
        *n_outcome = p->job.outcome.n_bytes;
        dw_job_follow_up(p, &position, &report);
    }
    end_job(p, status, &error, &report);
    if (status != DW_OK && err)
        *err = error;
    return status;
}

static bool read_outcome(dw_position *out, const char *text, size_t n_bytes)
{
    char sha256[DW_SHA256_TEXT];
    if (n_bytes < 1 || n_bytes > 128 || text[n_bytes - 1] != '\0')
        return false;
    return sscanf(text, "%" SCNu64 " %16" SCNx64 " %64s", &out->version, &out->state,
                  sha256) == 3 &&
           dw_hex_decode(out->commit_sha256, DW_SHA256_BYTES, sha256);
}

dw_status dw_publisher_accept(dw_publisher *p, uint64_t ticket, const void *outcome,
                              size_t n_outcome, dw_error *err)
{
    if (p->options.rank == 0)
        return dw_fail(err, DW_INVALID, NULL, "rank 0 calls dw_publisher_commit instead");
    dw_status status = wait_uploaded(p, ticket, err);
    if (status != DW_OK)
        return status;
    dw_error error = {0};
    dw_publish_report report = {.n_changed = p->job.part.n_changed,
                                .n_objects = p->job.part.objects.n,
                                .n_bytes = dw_objects_bytes(&p->job.part.objects)};
    dw_position position = {.version = DW_NO_VERSION};
    memcpy(position.stream, p->stream->record.stream, sizeof position.stream);
    if (!read_outcome(&position, outcome, n_outcome) ||
        position.version != p->commits.head.version + 1) {
        p->commits.in_doubt = true;
        status = dw_fail(&error, DW_UNAVAILABLE, dw_store_url(p->store),
                         "rank 0 did not commit the version. Publish again");
    } else {
        dw_job_report(p, &position, &report);
        dw_job_move_on(p, &position);
        (void)dw_sweep_share(p, NULL); /* if it fails, the next publish tries again */
    }
    end_job(p, status, &error, &report);
    if (status != DW_OK && err)
        *err = error;
    return status;
}
