/* Whether the caller's weights are the newest version. If not, open may publish them.
 *
 * A trainer that continues from an older checkpoint has other weights than the head. Its
 * followers then hold weights that it has discarded.
 */
#include <limits.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "publish/publisher.h"
#include "store/store.h"
#include "inner.h"

#define WAIT_MS 100 /* between two calls of the progress function */

/* The digest of piece I of the caller's weights, as they are published. */
static dw_status digest_live(dw_digest *out, dw_publisher *p, size_t i, dw_error *err)
{
    const size_t t = p->pieces.cut.items[i].tensor;
    dw_tensor piece = p->live.views[i];
    uint16_t *rounded = NULL;
    dw_status status = DW_OK;
    if (p->live.source.read) {
        status = dw_live_make_piece(p, i, err);
        piece = p->live.chosen[i];
    } else if (piece.dtype != p->pieces.table[t].dtype) {
        piece = p->pieces.shapes.tensors[i];
        rounded = dw_alloc((size_t)piece.n_bytes);
        if (!rounded)
            return dw_fail_memory(err, NULL);
        const dw_tensor *from = &p->live.views[i];
        status =
            dw_place_round((dw_place){NULL, rounded},
                           (dw_place){from->device, from->data}, piece.n_bytes / 2, err);
        piece.data = rounded;
    }
    if (status == DW_OK)
        status = dw_digest_tensors(out, NULL, &piece, 1, p->options.n_threads, NULL, err);
    dw_free(rounded);
    return status;
}

dw_status dw_publisher_compare(dw_publisher *p, bool *is_current, dw_error *err)
{
    *is_current = false;
    if (p->baseline.is_lost || p->commits.in_doubt)
        return DW_OK;
    *is_current = true;
    for (size_t i = 0; *is_current && i < p->pieces.cut.n; i++) {
        dw_digest digest = 0;
        dw_status status = digest_live(&digest, p, i, err);
        if (status != DW_OK)
            return status;
        *is_current = digest == p->baseline.digests[i];
    }
    return DW_OK;
}

/* Makes this thread the owner of the baseline. */
static void begin(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->busy || p->job.phase == DW_JOB_ENCODING || p->job.phase == DW_JOB_UPLOADING)
        pthread_cond_wait(&p->changed, &p->lock);
    p->busy = true;
    pthread_mutex_unlock(&p->lock);
}

static void end(dw_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    p->busy = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

dw_status dw_publisher_is_current(dw_publisher *p, bool *is_current, dw_error *err)
{
    *is_current = false;
    begin(p);
    dw_status status = dw_live_begin(p, 2 * p->job.turn + 1, NULL, DW_OK, err);
    if (status == DW_OK)
        status = dw_publisher_compare(p, is_current, err);
    end(p);
    return status;
}

dw_status dw_publisher_state(dw_publisher *p, dw_digest *state, dw_error *err)
{
    if (p->sharded)
        return dw_fail(err, DW_INVALID, NULL,
                       "the shards of one rank have no state of a version");
    dw_digest *digests = dw_alloc_array(p->pieces.cut.n + 1, sizeof *digests);
    if (!digests)
        return dw_fail_memory(err, NULL);
    begin(p);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < p->pieces.cut.n; i++)
        status = digest_live(&digests[i], p, i, err);
    if (status == DW_OK)
        *state = dw_pieces_state(&p->pieces, digests);
    end(p);
    dw_free(digests);
    return status;
}

/* Waits for the version of TICKET. */
static dw_status wait_committed(dw_publisher *p, uint64_t ticket,
                                const dw_progress *progress, dw_error *err)
{
    for (bool done = false;;) {
        dw_status status = dw_publisher_wait(p, ticket, WAIT_MS, &done, NULL, err);
        if (done || status != DW_UNAVAILABLE)
            return status;
        if (progress->report && progress->report(progress->context, 0, 0) != 0)
            dw_publisher_cancel(p);
    }
}

dw_status dw_publisher_publish_changed(dw_publisher *p, const dw_progress *progress,
                                       dw_error *err)
{
    bool is_current = true;
    uint64_t ticket = DW_TICKET_SKIPPED;
    const dw_publish_note note = {.struct_bytes = sizeof note,
                                  .step = p->options.first_step,
                                  .notes = p->options.first_notes,
                                  .source = p->options.first_source};
    dw_status status = dw_publisher_is_current(p, &is_current, err);
    if (status != DW_OK || is_current)
        return status;
    status = dw_publisher_publish(p, &ticket, &note, err);
    return status == DW_OK ? wait_committed(p, ticket, progress, err) : status;
}
