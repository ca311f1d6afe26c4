#include "weights/weights.h"

#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

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

const dw_replica *dw_weights_pending(const dw_weights *w)
{
    return w->both == DW_UPDATE_APPLIED ? w->twin : w->now;
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
    /* a sweep found it damaged: the record names no version */
    const bool is_distrusted =
        twin->record == DW_RECORD_SEALED && twin->was_next.version == DW_NO_VERSION;
    if (twin->at.version == DW_NO_VERSION && twin->record != DW_RECORD_DAMAGED &&
        !is_distrusted)
        return dw_fail(err, DW_CONFLICT, twin->dir,
                       "it holds weights that are not those of the other copy, and no "
                       "record of which they are. Remove them");
    return dw_replica_stage_copy(twin, &now->at, now->tensors, NULL, err);
}

dw_status dw_weights_align(dw_weights *w, dw_error *err)
{
    dw_replica *now = w->now, *twin = w->twin;
    if (w->both != DW_UPDATE_NONE || now->update != DW_UPDATE_NONE ||
        now->at.version == DW_NO_VERSION)
        return DW_OK;
    dw_status status = DW_OK;
    if (twin && twin->update == DW_UPDATE_NONE && !dw_position_same(&now->at, &twin->at))
        status = begin_align(now, twin, err);
    if (status == DW_OK && twin && twin->update != DW_UPDATE_NONE) {
        /* as in finish: which one is read must be durable before the other is written */
        status = dw_control_sync(w->control, err);
        if (status == DW_OK)
            status = dw_sync_parent(now->dir, err);
        if (status == DW_OK)
            status = write_twin(w, true, err);
    }
    /* until here the records named what the copies were to become: that also says which
     * of the two is to be read */
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

/* ---- the verbs ---- */

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
    dw_status status = dw_weights_align(w, err);
    if (status == DW_OK)
        status = dw_replica_stage(w->now, position, objects, blobs, progress, err);
    return stage_twin(w, status, err);
}

dw_status dw_weights_stage_copy(dw_weights *w, const dw_position *position,
                                const dw_tensor *source, const dw_progress *progress,
                                dw_error *err)
{
    dw_status status = dw_weights_align(w, err);
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
    if (w->twin)
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
    /* after a crash this record names the other copy as the one to read */
    dw_status status = dw_replica_state_write(&now->at, &now->next, now->dir, err);
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
    if (status == DW_CORRUPT)
        dw_replica_distrust(w->now);
    return status;
}
