/* The verbs of an update: stage, discard, prepare, apply, finish. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "weights/target_inside.h"
#include "weights/staging.h"
#include "weights/widen.h"

static dw_status fail_digest(const dw_target *r, const dw_position *position,
                             dw_digest state, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, r->dir,
                   "the objects of version %" PRIu64 " lead to weights with the digest "
                   "%016" PRIx64 ", but its commit says %016" PRIx64,
                   position->version, state, position->state);
}

void dw_target_forget_staged(dw_target *r)
{
    dw_patch_unbind(&r->binding);
    dw_patch_free(r->patch);
    r->patch = NULL;
    dw_scratch_model_release(&r->model);
    r->is_named = r->is_synced = r->sync_failed = r->is_torn = false;
    r->update = DW_UPDATE_NONE;
}

dw_status dw_target_discard(dw_target *r, dw_error *err)
{
    dw_status status = DW_OK;
    if (r->update > DW_UPDATE_STAGED)
        return dw_fail(err, DW_INVALID, dw_target_where(r),
                       "version %" PRIu64 " is prepared: apply and finish it first",
                       r->goal.version);
    if (r->staged_file)
        status = dw_remove_file(r->files.staged_path, err);
    r->staged_file = status != DW_OK;
    dw_target_forget_staged(r);
    return status;
}

dw_status dw_target_stage_parts(dw_target *r, const dw_part *parts, size_t n_parts,
                                const dw_patch_goal *goal, const dw_progress *progress,
                                dw_error *err)
{
    dw_status status = dw_target_discard(r, err);
    if (status == DW_OK)
        status = r->ops->stage(r, parts, n_parts, goal, progress, err);
    if (status == DW_OK)
        r->update = DW_UPDATE_STAGED;
    return status;
}

/* ---- a version ---- */

/* The elements to replace must be those that the deltas were decoded against. */
static dw_status check_widened(dw_target *r, dw_error *err)
{
    const char *changed = r->widened ? dw_widened_compare_patch(r) : NULL;
    if (!changed)
        return DW_OK;
    const dw_status status = dw_target_fail_changed(r, changed, err);
    dw_target_distrust(r);
    return status;
}

/* Stages STAGING, checks the digest it leads to, and closes it. STATUS is the result of
 * opening it. */
static dw_status stage(dw_target *r, const dw_position *position, dw_staging *staging,
                       dw_status status, const dw_progress *progress, dw_error *err)
{
    const dw_patch_goal goal = {true, position->state, position->version};
    if (status == DW_OK)
        status =
            dw_target_stage_parts(r, staging->parts, staging->n, &goal, progress, err);
    if (status == DW_OK)
        status = check_widened(r, err);
    if (status == DW_OK) {
        dw_staging_digests(staging, r->n_tensors, r->digests, r->next_digests);
        const dw_digest state =
            dw_digest_state(r->tensors, r->next_digests, r->n_tensors);
        if (state != position->state) {
            dw_target_discard(r, NULL);
            status = fail_digest(r, position, state, err);
        }
    }
    if (status == DW_OK) {
        r->next = *position;
        r->n_changed = staging->n_changed;
    }
    dw_staging_close(staging);
    return status;
}

dw_status dw_target_stage(dw_target *r, const dw_position *position,
                          const dw_objects *objects, const dw_blob *blobs,
                          const dw_progress *progress, dw_error *err)
{
    dw_staging staging;
    dw_status status = dw_target_discard(r, err);
    if (status != DW_OK)
        return status;
    status = dw_staging_open(&staging, objects, blobs, r->tensors, r->n_tensors,
                             r->digests, r->n_threads, err);
    return stage(r, position, &staging, status, progress, err);
}

dw_status dw_target_stage_deltas(dw_target *r, const dw_position *position,
                                 const dw_objects *objects, dw_delta *const *deltas,
                                 dw_error *err)
{
    dw_staging staging;
    dw_status status = dw_target_discard(r, err);
    if (status != DW_OK)
        return status;
    status = dw_staging_open_deltas(&staging, objects, deltas, r->tensors, r->n_tensors,
                                    r->digests, r->n_threads, err);
    return stage(r, position, &staging, status, NULL, err);
}

dw_status dw_target_stage_copy(dw_target *r, const dw_position *position,
                               const dw_tensor *source, const dw_progress *progress,
                               dw_error *err)
{
    dw_delta *delta;
    dw_staging staging;
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.n_threads = r->n_threads;
    options.new_version = position->version;
    options.base_digests = r->digests;
    dw_status status = dw_target_discard(r, err);
    if (status == DW_OK && r->at.version == DW_NO_VERSION)
        status = dw_target_digest(r, err); /* somebody may have changed them */
    if (status == DW_OK)
        status = dw_delta_diff(&delta, r->tensors, source, r->n_tensors, &options, err);
    if (status != DW_OK)
        return status;
    status =
        dw_staging_open_one(&staging, delta, r->tensors, r->n_tensors, r->digests, err);
    return stage(r, position, &staging, status, progress, err);
}

/* For memory: takes MODEL if that succeeds. */
static dw_status stage_whole(dw_target *r, const dw_position *position,
                             dw_scratch_model *model, dw_error *err)
{
    dw_digest state;
    dw_status status = dw_target_discard(r, err);
    if (status == DW_OK)
        status = dw_digest_tensors(r->next_digests, &state, model->tensors, r->n_tensors,
                                   r->n_threads, NULL, err);
    if (status != DW_OK)
        return status;
    if (state != position->state)
        return fail_digest(r, position, state, err);
    r->model = *model;
    *model = (dw_scratch_model){0};
    r->goal = (dw_patch_goal){true, position->state, position->version};
    r->next = *position;
    r->n_changed = 0; /* nobody compared */
    r->update = DW_UPDATE_STAGED;
    return DW_OK;
}

dw_status dw_target_stage_model(dw_target *r, const dw_position *position,
                                dw_scratch_model *model, const dw_progress *progress,
                                dw_error *err)
{
    return r->dir ? dw_target_stage_copy(r, position, model->tensors, progress, err)
                  : stage_whole(r, position, model, err);
}

const char *dw_target_staged_path(const dw_target *r)
{
    if (!r->files.ckpt || r->update < DW_UPDATE_STAGED || r->is_synced)
        return NULL;
    return r->update == DW_UPDATE_STAGED ? r->files.staged_path : r->files.patch_path;
}

dw_update_state dw_target_update(const dw_target *r)
{
    return r->update;
}

const dw_position *dw_target_next(const dw_target *r)
{
    return r->update == DW_UPDATE_FILLED ? &r->at : &r->next;
}

uint64_t dw_target_n_changed(const dw_target *r)
{
    return r->n_changed;
}

/* ---- from version to version ---- */

static dw_status fail_order(const dw_target *r, const char *text, dw_error *err)
{
    return dw_fail(err, DW_INVALID, dw_target_where(r), "%s", text);
}

dw_status dw_target_prepare(dw_target *r, dw_error *err)
{
    if (r->update == DW_UPDATE_NONE)
        return fail_order(r, "nothing is staged", err);
    const bool is_due = r->update == DW_UPDATE_STAGED || r->is_named;
    return is_due ? r->ops->prepare(r, err) : DW_OK;
}

dw_status dw_target_apply(dw_target *r, dw_error *err)
{
    dw_status status = dw_target_prepare(r, err);
    return status == DW_OK && r->update == DW_UPDATE_PREPARED ? r->ops->apply(r, err)
                                                              : status;
}

dw_status dw_target_finish(dw_target *r, bool sweep, dw_error *err)
{
    if (r->update == DW_UPDATE_FILLED) {
        r->update = DW_UPDATE_NONE;
        return DW_OK;
    }
    if (r->update != DW_UPDATE_APPLIED)
        return fail_order(r, "nothing is applied", err);
    dw_status status = r->ops->finish(r, sweep, err);
    if (status != DW_OK)
        return status;
    r->at = r->next;
    r->has_weights = true;
    r->may_fill = false;
    r->state = r->next.state;
    memcpy(r->digests, r->next_digests, r->n_tensors * sizeof *r->digests);
    dw_target_forget_staged(r);
    dw_target_update_control(r);
    return DW_OK;
}
