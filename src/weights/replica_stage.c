/* Staging an update of the weights: the changes are decoded and proven, and
 * kept as a patch in memory or in a file, or as a whole model. The weights stay as they
 * are. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "weights/own_dir.h"
#include "weights/replica.h"
#include "weights/staging.h"
#include "weights/widen.h"

#define N_TRIES 10

static dw_status fail_digest(const dw_replica *r, const dw_position *position,
                             dw_digest state, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, r->dir,
                   "the objects of version %" PRIu64 " lead to weights with the digest "
                   "%016" PRIx64 ", but its commit says %016" PRIx64,
                   position->version, state, position->state);
}

dw_status dw_replica_discard(dw_replica *r, dw_error *err)
{
    dw_status status = DW_OK;
    if (r->update > DW_UPDATE_STAGED)
        return dw_fail(err, DW_INVALID, dw_replica_where(r),
                       "version %" PRIu64 " is prepared: apply and finish it first",
                       r->goal.version);
    if (r->staged_file)
        status = dw_remove_file(r->target.staged_path, err);
    r->staged_file = status != DW_OK;
    dw_replica_forget_staged(r);
    return status;
}

/* ---- the patch ---- */

/* After the staged file was written; STATUS is the result of that. */
static dw_status open_staged_file(dw_replica *r, dw_status status, dw_error *err)
{
    const char *path = r->target.staged_path;
    if (status == DW_OK)
        status = dw_replica_load_patch(r, path, err);
    if (status == DW_OK)
        r->update = DW_UPDATE_STAGED;
    else
        dw_remove_file(path, NULL); /* it may be there, not known to be durable */
    r->staged_file = status == DW_OK;
    return status;
}

static dw_status stage_file(dw_replica *r, const dw_part *parts, size_t n_parts,
                            const dw_patch_goal *goal, const dw_progress *progress,
                            dw_error *err)
{
    size_t n_tensors;
    const dw_tensor *tensors = dw_checkpoint_tensors(r->target.ckpt, &n_tensors);
    dw_status status;
    unsigned n_tries = 0;
    /* an apply to another file of the directory may remove it while it is empty */
    do {
        status = dw_own_dir_make(r->target.dir, err);
        if (status == DW_OK)
            status = dw_parts_stage_file(r->target.staged_path, tensors, n_tensors, parts,
                                         n_parts, goal, r->n_threads, progress, err);
    } while (status == DW_NOT_FOUND && ++n_tries < N_TRIES);
    return open_staged_file(r, status, err);
}

static dw_status stage_memory(dw_replica *r, const dw_part *parts, size_t n_parts,
                              const dw_patch_goal *goal, const dw_progress *progress,
                              dw_error *err)
{
    dw_status status = dw_parts_stage_memory(&r->patch, r->tensors, r->n_tensors, parts,
                                             n_parts, r->n_threads, progress, err);
    if (status != DW_OK)
        return status;
    r->goal = *goal;
    r->update = DW_UPDATE_STAGED;
    return DW_OK;
}

dw_status dw_replica_stage_parts(dw_replica *r, const dw_part *parts, size_t n_parts,
                                 const dw_patch_goal *goal, const dw_progress *progress,
                                 dw_error *err)
{
    dw_status status = dw_replica_discard(r, err);
    if (status != DW_OK)
        return status;
    return r->target.ckpt ? stage_file(r, parts, n_parts, goal, progress, err)
                          : stage_memory(r, parts, n_parts, goal, progress, err);
}

/* ---- a version ---- */

/* The elements to replace must be those that the deltas were decoded against. */
static dw_status check_widened(dw_replica *r, dw_error *err)
{
    const char *changed = r->widened ? dw_widened_compare_patch(r) : NULL;
    if (!changed)
        return DW_OK;
    const dw_status status = dw_replica_fail_changed(r, changed, err);
    dw_replica_distrust(r);
    return status;
}

/* Stages STAGING, checks the digest it leads to, and closes it. STATUS is the result of
 * opening it. */
static dw_status stage(dw_replica *r, const dw_position *position, dw_staging *staging,
                       dw_status status, const dw_progress *progress, dw_error *err)
{
    const dw_patch_goal goal = {true, position->state, position->version};
    if (status == DW_OK)
        status =
            dw_replica_stage_parts(r, staging->parts, staging->n, &goal, progress, err);
    if (status == DW_OK)
        status = check_widened(r, err);
    if (status == DW_OK) {
        dw_staging_digests(staging, r->n_tensors, r->digests, r->next_digests);
        const dw_digest state =
            dw_digest_state(r->tensors, r->next_digests, r->n_tensors);
        if (state != position->state) {
            dw_replica_discard(r, NULL);
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

dw_status dw_replica_stage(dw_replica *r, const dw_position *position,
                           const dw_objects *objects, const dw_blob *blobs,
                           const dw_progress *progress, dw_error *err)
{
    dw_staging staging;
    dw_status status = dw_replica_discard(r, err);
    if (status != DW_OK)
        return status;
    status = dw_staging_open(&staging, objects, blobs, r->tensors, r->n_tensors,
                             r->digests, r->n_threads, err);
    return stage(r, position, &staging, status, progress, err);
}

dw_status dw_replica_stage_deltas(dw_replica *r, const dw_position *position,
                                  const dw_objects *objects, dw_delta *const *deltas,
                                  dw_error *err)
{
    dw_staging staging;
    dw_status status = dw_replica_discard(r, err);
    if (status != DW_OK)
        return status;
    status = dw_staging_open_deltas(&staging, objects, deltas, r->tensors, r->n_tensors,
                                    r->digests, r->n_threads, err);
    return stage(r, position, &staging, status, NULL, err);
}

dw_status dw_replica_stage_copy(dw_replica *r, const dw_position *position,
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
    dw_status status = dw_replica_discard(r, err);
    if (status == DW_OK && r->at.version == DW_NO_VERSION)
        status = dw_replica_digest(r, NULL, err); /* somebody may have changed them */
    if (status == DW_OK)
        status = dw_delta_diff(&delta, r->tensors, source, r->n_tensors, &options, err);
    if (status != DW_OK)
        return status;
    status =
        dw_staging_open_one(&staging, delta, r->tensors, r->n_tensors, r->digests, err);
    return stage(r, position, &staging, status, progress, err);
}

dw_status dw_replica_stage_model(dw_replica *r, const dw_position *position,
                                 dw_scratch_model *model, dw_error *err)
{
    dw_digest state;
    dw_status status = dw_replica_discard(r, err);
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

const char *dw_replica_staged_path(const dw_replica *r)
{
    if (!r->target.ckpt || r->update == DW_UPDATE_NONE || r->update == DW_UPDATE_SYNCED)
        return NULL;
    return r->update == DW_UPDATE_STAGED ? r->target.staged_path : r->target.patch_path;
}
