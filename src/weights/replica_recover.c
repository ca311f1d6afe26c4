/* Locks and maps the files of a replica. If a run was interrupted after it prepared an
 * update, the patch file is there, and the update is finished before anybody uses the
 * weights. */
#include <inttypes.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "weights/replica.h"

void dw_replica_close_files(dw_replica *r)
{
    if (r->update <= DW_UPDATE_STAGED)
        (void)dw_replica_discard(r, NULL);
    dw_replica_forget_staged(r);
    if (!r->dir && r->target.own)
        (void)rmdir(r->target.own); /* if nothing is left in it */
    dw_target_release(&r->target);
}

dw_status dw_replica_load_patch(dw_replica *r, const char *path, dw_error *err)
{
    size_t n_tensors;
    const dw_tensor *tensors = dw_checkpoint_tensors(r->target.ckpt, &n_tensors);
    dw_status status = dw_patch_open(&r->patch, &r->goal, path, err);
    if (status == DW_OK)
        status = dw_patch_check(r->patch, tensors, n_tensors, r->n_threads, path, err);
    if (status == DW_OK)
        status =
            dw_patch_bind(&r->binding, r->patch, tensors, n_tensors, r->target.path, err);
    if (status == DW_OK)
        status = dw_checkpoint_reserve(r->target.ckpt, err);
    if (status != DW_OK)
        dw_replica_forget_staged(r);
    return status;
}

dw_status dw_patch_goal_check(const dw_patch_goal *goal, const char *dir,
                              const char *path, dw_error *err)
{
    dw_position at, next;
    dw_record_kind kind;
    dw_status status = dw_position_read(&at, &next, &kind, dir, err);
    if (status == DW_OK && next.version != DW_NO_VERSION &&
        (next.version != goal->version || next.state != goal->state))
        status = dw_fail(err, DW_CORRUPT, path,
                         "the patch leads to version %" PRIu64
                         ", but the update that was interrupted to version %" PRIu64
                         ": put a whole checkpoint in place, then remove this file",
                         goal->version, next.version);
    return status;
}

/* Finishes the update of the patch file. */
static dw_status roll_forward(dw_replica *r, dw_error *err)
{
    dw_status status = dw_replica_load_patch(r, r->target.patch_path, err);
    if (status == DW_OK && r->dir)
        status = dw_patch_goal_check(&r->goal, r->dir, r->target.patch_path, err);
    if (status != DW_OK)
        return status;
    /* the run before may have been killed before the name was durable */
    r->update = DW_UPDATE_NAMED;
    status = dw_replica_prepare_files(r, err);
    if (status == DW_OK)
        status = dw_replica_apply_files(r, err);
    if (status == DW_OK)
        status = dw_replica_finish_files(r, true, err);
    if (status == DW_OK)
        dw_replica_forget_staged(r);
    return status;
}

/* The interrupted run had private files. If somebody gave one a second name since, a
 * private copy takes its place. *COPIED: open all files again. */
static dw_status leave_shared(const dw_checkpoint *ckpt, bool *copied, dw_error *err)
{
    uint64_t n = 0;
    if (dw_files_judge(ckpt, NULL) != DW_FILES_SHARED)
        return DW_OK;
    *copied = true;
    return dw_files_make_own(ckpt, &n, err);
}

/* Locks the files, and reports whether there is a patch file to finish. Removes the
 * staged file, and a patch that the directory's record does not name. */
static dw_status lock_files(dw_target *t, const char *path, bool *pending, dw_error *err)
{
    dw_status status = dw_target_identify(t, path, err);
    if (status == DW_OK)
        status = dw_target_lock(t, err);
    if (status != DW_OK)
        return status;
    status = dw_target_may_finish(t, pending, err);
    if (status != DW_OK)
        return status;
    dw_remove_leftovers(t->staged_path);
    status = dw_remove_file(t->staged_path, err);
    return status == DW_OK && !*pending ? dw_remove_file(t->patch_path, err) : status;
}

static dw_status try_open(dw_replica *r, const char *path, bool only_recover,
                          bool *recovered, bool *copied, dw_error *err)
{
    bool pending = false;
    dw_target *t = &r->target;
    dw_status status = lock_files(t, path, &pending, err);
    if (status == DW_OK && (pending || !only_recover))
        status = dw_checkpoint_open(&t->ckpt, path, DW_CHECKPOINT_WRITE, err);
    if (status == DW_OK && pending)
        status = leave_shared(t->ckpt, copied, err);
    if (status == DW_OK && pending && !*copied)
        status = roll_forward(r, err);
    if (recovered)
        *recovered = pending;
    if (status != DW_OK || *copied)
        dw_replica_close_files(r);
    return status;
}

dw_status dw_replica_open_files(dw_replica *r, const char *path, bool only_recover,
                                bool *recovered, dw_error *err)
{
    bool copied = false;
    dw_status status = try_open(r, path, only_recover, recovered, &copied, err);
    if (status != DW_OK || !copied)
        return status;
    copied = false;
    status = try_open(r, path, only_recover, recovered, &copied, err);
    return status == DW_OK && copied ? dw_fail(err, DW_CONFLICT, path,
                                               "another process makes links to its files "
                                               "while they are written. Stop "
                                               "it, then try again")
                                     : status;
}
