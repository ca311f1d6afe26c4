#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "weights/replica.h"

void dw_weights_close(dw_weights *w)
{
    if (!w)
        return;
    dw_replica_close(w->now);
    dw_replica_close(w->twin);
    dw_control_writer_close(w->control);
    if (w->lock >= 0)
        close(w->lock);
    dw_free(w->into);
    dw_free(w->weights_dir);
    dw_free(w);
}

dw_update_state dw_weights_update(const dw_weights *w)
{
    if (w->both != DW_UPDATE_NONE)
        return w->both;
    const bool twin_begun = w->twin && w->twin->update > DW_UPDATE_STAGED;
    return w->now->update == DW_UPDATE_STAGED && twin_begun ? DW_UPDATE_NAMED
                                                            : w->now->update;
}

/* The copy that is still to get what is staged. */
static const dw_replica *pending(const dw_weights *w)
{
    return w->both == DW_UPDATE_APPLIED ? w->twin : w->now;
}

const dw_position *dw_weights_next(const dw_weights *w)
{
    return &pending(w)->next;
}

uint64_t dw_weights_n_changed(const dw_weights *w)
{
    return pending(w)->n_changed;
}

const char *dw_weights_staged_path(const dw_weights *w)
{
    return dw_replica_staged_path(pending(w));
}

/* ---- what they are ---- */

const dw_position *dw_weights_at(const dw_weights *w)
{
    return &w->now->at;
}

dw_digest dw_weights_state(const dw_weights *w)
{
    return w->now->state;
}

const dw_tensor *dw_weights_tensors(const dw_weights *w, size_t *n_tensors)
{
    *n_tensors = w->now->n_tensors;
    return w->now->tensors;
}

const dw_digest *dw_weights_digests(const dw_weights *w)
{
    return w->now->digests;
}

const char *dw_weights_dir(const dw_weights *w)
{
    return w->now->dir;
}

const dw_checkpoint *dw_weights_checkpoint(const dw_weights *w)
{
    return w->now->target.ckpt;
}

bool dw_weights_is_empty(const dw_weights *w)
{
    return !w->now->has_weights && (w->now->dir || w->now->may_fill);
}

bool dw_weights_is_unknown(const dw_weights *w)
{
    return w->now->has_weights && w->now->at.version == DW_NO_VERSION;
}

dw_record_kind dw_weights_record(const dw_weights *w)
{
    return w->now->record;
}

bool dw_weights_may_replace(const dw_weights *w)
{
    return dw_replica_may_replace(w->now);
}

bool dw_weights_was_damaged(const dw_weights *w)
{
    return w->now->was_damaged || (w->now->is_own && dw_weights_is_unknown(w));
}

uint64_t dw_weights_n_private(const dw_weights *w)
{
    return w->n_private;
}

/* Brings the twin to what is staged for it. */
static dw_status write_twin(dw_weights *w, bool sweep, dw_error *err)
{
    dw_status status = dw_replica_apply(w->twin, err);
    return status == DW_OK ? dw_replica_finish(w->twin, sweep, err) : status;
}

/* ---- whole models ---- */

/* Makes the twin the same, or stages that. */
static dw_status begin_align(dw_replica *now, dw_replica *twin, dw_error *err)
{
    if (!twin->has_weights)
        return dw_replica_fill(twin, &now->at, dw_fill_from_tensors, now->tensors, err);
    if (twin->state == now->state)
        return dw_replica_adopt(twin, &now->at, err);
    if (twin->at.version == DW_NO_VERSION && !dw_replica_may_replace(twin))
        return dw_fail(err, DW_CONFLICT, twin->dir,
                       "it holds weights that are not those of the other copy, and no "
                       "record of which they are. Remove them");
    return dw_replica_stage_copy(twin, &now->at, now->tensors, NULL, err);
}

/* The twin could not be made the same, with STATUS. If the copy to read is the cause,
 * that is the error, and the next stage starts from an anchor. */
static dw_status blame_source(dw_weights *w, dw_status status, dw_error *err)
{
    dw_error fault;
    if ((status != DW_CORRUPT && status != DW_MISMATCH) ||
        dw_replica_sweep(w->now, 1, &fault) != DW_CORRUPT)
        return status;
    dw_replica_distrust(w->now);
    if (err)
        *err = fault;
    return DW_CORRUPT;
}

dw_status dw_weights_align(dw_weights *w, dw_error *err)
{
    dw_replica *now = w->now, *twin = w->twin;
    if (w->both != DW_UPDATE_NONE || now->update != DW_UPDATE_NONE ||
        now->at.version == DW_NO_VERSION)
        return DW_OK;
    dw_status status = DW_OK;
    if (twin && twin->update == DW_UPDATE_NONE && !dw_position_same(&now->at, &twin->at))
        status = blame_source(w, begin_align(now, twin, err), err);
    if (status == DW_OK && twin && twin->update != DW_UPDATE_NONE) {
        /* as in finish: which one is read must be durable before the other is written */
        status = dw_control_sync(w->control, err);
        if (status == DW_OK)
            status = dw_sync_parent(now->dir, err);
        if (status == DW_OK)
            status = write_twin(w, true, err);
    }
    /* only now: an open finds the copy to read by the next version in a record */
    if (status == DW_OK && twin)
        status = dw_replica_forget_next(twin, err);
    return status == DW_OK ? dw_replica_forget_next(now, err) : status;
}

dw_status dw_weights_adopt(dw_weights *w, const dw_position *position, dw_error *err)
{
    dw_status status = dw_replica_adopt(w->now, position, err);
    return status == DW_OK ? dw_weights_align(w, err) : status;
}

dw_status dw_weights_fill(dw_weights *w, const dw_position *position, dw_fill_fn source,
                          void *context, dw_error *err)
{
    dw_status status = dw_replica_fill(w->now, position, source, context, err);
    if (status == DW_OK)
        status = dw_weights_link(w, err);
    return status == DW_OK ? dw_weights_align(w, err) : status;
}

/* ---- versions that are there without an update ---- */

void dw_weights_forget(dw_weights *w)
{
    w->now->at = dw_nowhere;
    w->now->has_weights = false;
}

void dw_weights_allow_fill(dw_weights *w)
{
    w->now->may_fill = !w->now->dir && !w->now->has_weights;
}

void dw_weights_note(dw_weights *w, const dw_position *position, const dw_slices *cut,
                     const dw_digest *digests)
{
    dw_replica *r = w->now;
    memset(r->digests, 0, r->n_tensors * sizeof *r->digests);
    for (size_t i = 0; i < cut->n; i++) {
        dw_digest *d = &r->digests[cut->items[i].tensor];
        *d = dw_digest_plus(*d, digests[i]);
    }
    r->at = *position;
    r->state = position->state;
}

/* ---- the verbs ---- */

/* Drops what was staged before, and makes the copies the same. */
static dw_status begin_stage(dw_weights *w, dw_error *err)
{
    dw_status status = dw_weights_discard(w, err);
    return status == DW_OK ? dw_weights_align(w, err) : status;
}

/* After the copy to read has its patch, which STATUS reports. */
static dw_status stage_twin(dw_weights *w, dw_status status, dw_error *err)
{
    if (status != DW_OK || !w->twin)
        return status;
    status = dw_replica_stage_same(w->twin, w->now, err);
    if (status != DW_OK)
        dw_weights_discard(w, NULL);
    return status;
}

dw_status dw_weights_stage(dw_weights *w, const dw_position *position,
                           const dw_objects *objects, const dw_blob *blobs,
                           const dw_progress *progress, dw_error *err)
{
    dw_status status = begin_stage(w, err);
    if (status == DW_OK)
        status = dw_replica_stage(w->now, position, objects, blobs, progress, err);
    return stage_twin(w, status, err);
}

dw_status dw_weights_stage_deltas(dw_weights *w, const dw_position *position,
                                  const dw_objects *objects, dw_delta *const *deltas,
                                  dw_error *err)
{
    return dw_replica_stage_deltas(w->now, position, objects, deltas, err);
}

dw_status dw_weights_stage_copy(dw_weights *w, const dw_position *position,
                                const dw_tensor *source, const dw_progress *progress,
                                dw_error *err)
{
    dw_status status = begin_stage(w, err);
    if (status == DW_OK)
        status = dw_replica_stage_copy(w->now, position, source, progress, err);
    /* if the copy to read is damaged, the copies differ: each gets a patch of its own */
    const bool differ =
        w->twin && w->twin->has_weights && w->now->at.version == DW_NO_VERSION;
    if (status != DW_OK || !differ)
        return stage_twin(w, status, err);
    status = dw_replica_stage_copy(w->twin, position, source, progress, err);
    if (status != DW_OK)
        dw_weights_discard(w, NULL);
    return status;
}

dw_status dw_weights_stage_model(dw_weights *w, const dw_position *position,
                                 dw_scratch_model *model, const dw_progress *progress,
                                 dw_error *err)
{
    return w->now->dir ? dw_weights_stage_copy(w, position, model->tensors, progress, err)
                       : dw_replica_stage_model(w->now, position, model, err);
}

dw_status dw_weights_discard(dw_weights *w, dw_error *err)
{
    dw_status status = DW_OK;
    if (w->both != DW_UPDATE_NONE)
        return dw_fail(err, DW_INVALID, w->into,
                       "version %" PRIu64 " is prepared: apply and finish it first",
                       pending(w)->next.version);
    /* A twin that is being made the same is no update: dw_weights_align goes on with it.
     */
    const bool is_aligning =
        w->now->update == DW_UPDATE_NONE && w->twin && w->twin->update > DW_UPDATE_STAGED;
    if (w->twin && !is_aligning)
        status = dw_replica_discard(w->twin, err);
    return status == DW_OK ? dw_replica_discard(w->now, err) : status;
}

dw_status dw_weights_prepare(dw_weights *w, bool sweep, dw_error *err)
{
    dw_replica *now = w->now;
    if (!w->twin)
        return dw_replica_prepare(now, err);
    if (w->both != DW_UPDATE_NONE)
        return DW_OK;
    if (now->update == DW_UPDATE_NONE)
        return dw_replica_prepare(now, err); /* refuses */
    /* After a crash this record names the other copy as the one to read. If this one is
     * damaged, the other is read anyway, and a record of only the next version would
     * mean a fill. */
    const bool is_known = now->at.version != DW_NO_VERSION;
    dw_status status =
        dw_position_write(&now->at, is_known ? &now->next : NULL, now->dir, err);
    if (status == DW_OK)
        status = write_twin(w, sweep, err);
    if (status == DW_OK)
        w->both = DW_UPDATE_PREPARED;
    return status;
}

/* Makes the twin the copy to read. */
static dw_status flip(dw_weights *w, dw_error *err)
{
    dw_replica *was = w->now;
    w->now = w->twin;
    w->twin = was;
    dw_status status = dw_weights_link(w, err);
    if (status != DW_OK) {
        w->twin = w->now;
        w->now = was;
        return status;
    }
    dw_control_flip(w->control, w->now->copy);
    w->both = DW_UPDATE_APPLIED;
    return DW_OK;
}

dw_status dw_weights_apply(dw_weights *w, bool sweep, dw_error *err)
{
    if (!w->twin)
        return dw_replica_apply(w->now, err);
    dw_status status = dw_weights_prepare(w, sweep, err);
    return status == DW_OK && w->both == DW_UPDATE_PREPARED ? flip(w, err) : status;
}

dw_status dw_weights_finish(dw_weights *w, bool sweep, dw_error *err)
{
    if (!w->twin)
        return dw_replica_finish(w->now, sweep, err);
    /* that it is not the one to read must be durable before it is written to */
    dw_status status = dw_control_sync(w->control, err);
    if (status == DW_OK)
        status = dw_sync_parent(w->now->dir, err);
    if (status == DW_OK)
        status = write_twin(w, sweep, err);
    if (status == DW_OK)
        w->both = DW_UPDATE_NONE;
    return status;
}

dw_status dw_weights_sweep(dw_weights *w, unsigned n_versions, dw_error *err)
{
    if (n_versions == 0)
        return DW_OK;
    if (w->twin && dw_replica_sweep(w->twin, n_versions, NULL) == DW_CORRUPT)
        dw_replica_distrust(w->twin);
    dw_status status = dw_replica_sweep(w->now, n_versions, err);
    if (status != DW_CORRUPT)
        return status;
    dw_replica_distrust(w->now);
    /* both copies get a patch from what they hold: the other one must be known whole */
    if (w->twin && dw_replica_sweep(w->twin, 1, NULL) != DW_OK)
        dw_replica_distrust(w->twin);
    return status;
}

void dw_weights_distrust(dw_weights *w)
{
    dw_replica_distrust(w->now);
}

dw_status dw_weights_check_size(const dw_weights *w, dw_error *err)
{
    dw_status status =
        w->now->target.ckpt ? dw_checkpoint_check(w->now->target.ckpt, err) : DW_OK;
    return status == DW_OK ? dw_control_check(w->control, err) : status;
}

void dw_weights_stop_readers(dw_weights *w)
{
    dw_control_abandon(w->control);
}
