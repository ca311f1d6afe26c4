/* The files of a directory, or of a checkpoint that follows no stream. target.h has the
 * states, the files on disk in each of them, and what a crash leaves. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "weights/own_dir.h"
#include "weights/target_inside.h"

#define N_TRIES 10

dw_status dw_target_load_patch(dw_target *r, const char *path, dw_error *err)
{
    size_t n_tensors;
    const dw_tensor *tensors = dw_checkpoint_tensors(r->files.ckpt, &n_tensors);
    dw_status status = dw_patch_open(&r->patch, &r->goal, path, err);
    if (status == DW_OK)
        status = dw_patch_check(r->patch, tensors, n_tensors, r->n_threads, path, err);
    if (status == DW_OK)
        status =
            dw_patch_bind(&r->binding, r->patch, tensors, n_tensors, r->files.path, err);
    if (status == DW_OK)
        status = dw_checkpoint_reserve(r->files.ckpt, err);
    if (status != DW_OK)
        dw_target_forget_staged(r);
    return status;
}

/* After the staged file was written; STATUS is the result of that. */
static dw_status open_staged_file(dw_target *r, dw_status status, dw_error *err)
{
    const char *path = r->files.staged_path;
    if (status == DW_OK)
        status = dw_target_load_patch(r, path, err);
    if (status != DW_OK)
        dw_remove_file(path, NULL); /* it may be there, not known to be durable */
    r->staged_file = status == DW_OK;
    return status;
}

static dw_status stage_file(dw_target *r, const dw_part *parts, size_t n_parts,
                            const dw_patch_goal *goal, const dw_progress *progress,
                            dw_error *err)
{
    size_t n_tensors;
    const dw_tensor *tensors = dw_checkpoint_tensors(r->files.ckpt, &n_tensors);
    dw_status status;
    unsigned n_tries = 0;
    /* an apply to another file of the directory may remove it while it is empty */
    do {
        status = dw_own_dir_make(r->files.dir, err);
        if (status == DW_OK)
            status = dw_parts_stage_file(r->files.staged_path, tensors, n_tensors, parts,
                                         n_parts, goal, r->n_threads, progress, err);
    } while (status == DW_NOT_FOUND && ++n_tries < N_TRIES);
    return open_staged_file(r, status, err);
}

/* ---- the patch and the files ---- */

dw_status dw_target_name_patch(dw_target *r, dw_error *err)
{
    const dw_target_files *t = &r->files;
    dw_status status = DW_OK;
    if (r->update == DW_UPDATE_STAGED && dw_files_judge(t->ckpt, err) != DW_FILES_OWN)
        return DW_CONFLICT;
    if (r->update == DW_UPDATE_STAGED) {
        status = dw_rename_file(t->staged_path, t->patch_path, err);
        if (status == DW_OK) {
            r->update = DW_UPDATE_PREPARED;
            r->is_named = true;
            r->staged_file = false;
        }
    }
    if (status == DW_OK && r->is_named) {
        /* the name must be durable before the first store is: also if it was found */
        status = dw_sync_parent(t->patch_path, err);
        if (status == DW_OK)
            status = dw_patch_prepare(&r->binding, r->n_threads, err);
        r->is_named = status != DW_OK;
    }
    return status;
}

dw_status dw_target_scatter(dw_target *r, dw_error *err)
{
    dw_status status = dw_checkpoint_check(r->files.ckpt, err);
    if (status == DW_OK)
        status = dw_patch_scatter(&r->binding, r->n_threads, err);
    if (status == DW_OK)
        r->update = DW_UPDATE_APPLIED;
    return status;
}

/* Proves that the checkpoint has the digest that the patch file names. */
static dw_status sweep_all(const dw_target *r, dw_error *err)
{
    dw_digest state = 0;
    size_t n_tensors;
    const dw_tensor *tensors = dw_checkpoint_tensors(r->files.ckpt, &n_tensors);
    dw_digest *digests = dw_alloc_array(n_tensors, sizeof *digests);
    dw_status status = digests ? dw_digest_tensors(digests, &state, tensors, n_tensors,
                                                   r->n_threads, NULL, err)
                               : dw_fail_memory(err, r->files.path);
    if (status == DW_OK && state != r->goal.state)
        status =
            dw_fail(err, DW_CORRUPT, r->files.path,
                    "all stores are done, but the checkpoint is not version %" PRIu64
                    ": it was changed meanwhile, or the disk is failing. Replace it, "
                    "then remove %s",
                    r->goal.version, r->files.patch_path);
    dw_free(digests);
    return status;
}

dw_status dw_target_sync_files(dw_target *r, bool sweep, dw_error *err)
{
    /* the system reports a failed write once, and then takes the pages for clean: they
     * are written again */
    dw_status status =
        r->sync_failed ? dw_patch_scatter(&r->binding, r->n_threads, err) : DW_OK;
    if (status == DW_OK) {
        status = dw_checkpoint_sync(r->files.ckpt, err);
        r->sync_failed = status != DW_OK;
    }
    if (status == DW_OK)
        status = sweep && r->goal.has_digest
                     ? sweep_all(r, err)
                     : dw_patch_confirm(&r->binding, r->n_threads, err);
    if (status == DW_OK)
        status = dw_remove_file(r->files.patch_path, err);
    r->is_synced = status == DW_OK;
    return status;
}

/* ---- the verbs ---- */

static dw_status prepare(dw_target *r, dw_error *err)
{
    /* For damaged weights, a record of only the next version without a patch would mean a
     * fill. Their record names no version until the patch has its name. */
    const bool names_next = r->dir && r->update == DW_UPDATE_STAGED;
    const bool is_known = r->at.version != DW_NO_VERSION;
    dw_status status = DW_OK;
    if (names_next)
        status = dw_position_write_patch(&r->at, is_known ? &r->next : NULL,
                                         &r->patch->seal, r->dir, err);
    if (status == DW_OK)
        status = dw_target_name_patch(r, err);
    if (status == DW_OK && names_next && !is_known)
        status = dw_position_write_patch(&r->at, &r->next, &r->patch->seal, r->dir, err);
    return status;
}

static dw_status apply(dw_target *r, dw_error *err)
{
    dw_status status = dw_control_begin_write(r->control, err);
    if (status == DW_OK)
        status = dw_target_scatter(r, err);
    if (status == DW_OK)
        dw_target_update_control(r);
    return status;
}

static dw_status finish(dw_target *r, bool sweep, dw_error *err)
{
    dw_status status = DW_OK;
    if (!r->is_synced) {
        /* once the patch file is gone, readers trust the block */
        status = dw_control_sync(r->control, err);
        if (status == DW_OK)
            status = dw_target_sync_files(r, sweep, err);
        if (status == DW_CORRUPT) /* not the version in the block: stop readers */
            dw_control_mark_written(r->control);
    }
    return status == DW_OK && r->dir ? dw_position_write(&r->next, NULL, r->dir, err)
                                     : status;
}

static dw_status move(dw_target *r, const dw_position *position, const dw_proven *proven,
                      dw_error *err)
{
    dw_status status = dw_target_check_files(r, err);
    if (status == DW_OK)
        status =
            dw_target_stage_deltas(r, position, proven->objects, proven->deltas, err);
    if (status == DW_OK)
        status = dw_target_apply(r, err);
    return status == DW_OK ? dw_target_finish(r, false, err) : status;
}

const dw_target_ops dw_target_in_files = {
    .stage = stage_file,
    .prepare = prepare,
    .apply = apply,
    .finish = finish,
    .fill = dw_target_fill_dir,
    .move = move,
};
