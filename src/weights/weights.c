#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "weights/own_dir.h"
#include "weights/replica.h"

void dw_weights_close(dw_weights *w)
{
    if (!w)
        return;
    dw_replica_close(w->now);
    dw_control_writer_close(w->control);
    if (w->lock >= 0) {
        /* it is empty in a directory that was refused */
        (void)unlinkat(w->lock, DW_OWN_DIR, AT_REMOVEDIR);
        close(w->lock);
    }
    dw_free(w->into);
    dw_free(w);
}

dw_update_state dw_weights_update(const dw_weights *w)
{
    return w->now->update;
}

const dw_position *dw_weights_next(const dw_weights *w)
{
    return &w->now->next;
}

uint64_t dw_weights_n_changed(const dw_weights *w)
{
    return w->now->n_changed;
}

const char *dw_weights_staged_path(const dw_weights *w)
{
    return dw_replica_staged_path(w->now);
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

bool dw_weights_is_hurt(const dw_weights *w, dw_position *was)
{
    *was = w->now->was;
    return w->now->was_damaged && w->now->is_ours;
}

uint64_t dw_weights_n_private(const dw_weights *w)
{
    return w->n_private;
}

/* ---- versions that are there without an update ---- */

dw_status dw_weights_adopt(dw_weights *w, const dw_position *position, dw_error *err)
{
    return dw_replica_adopt(w->now, position, err);
}

dw_status dw_weights_forget_next(dw_weights *w, dw_error *err)
{
    return w->now->update == DW_UPDATE_NONE ? dw_replica_forget_next(w->now, err) : DW_OK;
}

dw_status dw_weights_fill(dw_weights *w, const dw_position *position, dw_fill_fn source,
                          void *context, dw_error *err)
{
    return dw_replica_fill(w->now, position, source, context, err);
}

void dw_weights_forget(dw_weights *w)
{
    w->now->at = dw_nowhere;
    w->now->has_weights = false;
}

dw_status dw_weights_move(dw_weights *w, const dw_tensor *memory, size_t n_tensors,
                          dw_error *err)
{
    return dw_replica_move(w->now, memory, n_tensors, err);
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

dw_status dw_weights_stage(dw_weights *w, const dw_position *position,
                           const dw_objects *objects, const dw_blob *blobs,
                           const dw_progress *progress, dw_error *err)
{
    return dw_replica_stage(w->now, position, objects, blobs, progress, err);
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
    return dw_replica_stage_copy(w->now, position, source, progress, err);
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
    return dw_replica_discard(w->now, err);
}

dw_status dw_weights_prepare(dw_weights *w, dw_error *err)
{
    return dw_replica_prepare(w->now, err);
}

dw_status dw_weights_apply(dw_weights *w, dw_error *err)
{
    return dw_replica_apply(w->now, err);
}

dw_status dw_weights_finish(dw_weights *w, bool sweep, dw_error *err)
{
    return dw_replica_finish(w->now, sweep, err);
}

dw_status dw_weights_sweep(dw_weights *w, unsigned n_versions, dw_error *err)
{
    dw_status status = n_versions > 0 ? dw_replica_sweep(w->now, n_versions, err) : DW_OK;
    if (status == DW_CORRUPT)
        dw_replica_distrust(w->now);
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
    dw_control_mark_written(w->control);
}
