/* Locks and maps the files of a checkpoint. If a run was interrupted after it prepared an
 * update, the patch file is there, and the update is finished before anybody uses the
 * weights. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "deltawire/checkpoint.h"
#include "tensor/tensor_list.h"
#include "weights/target_inside.h"

void dw_target_close_files(dw_target *r)
{
    if (r->update <= DW_UPDATE_STAGED)
        (void)dw_target_discard(r, NULL);
    dw_target_forget_staged(r);
    if (!r->dir && r->files.own)
        (void)rmdir(r->files.own); /* if nothing is left in it */
    dw_target_files_release(&r->files);
}

/* DW_CORRUPT if the record in DIR names another next version than the patch at PATH leads
 * to: such a patch may fit the weights, too. */
static dw_status check_goal(const dw_patch_goal *goal, const char *dir, const char *path,
                            dw_error *err)
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
static dw_status roll_forward(dw_target *r, dw_error *err)
{
    dw_status status = dw_target_load_patch(r, r->files.patch_path, err);
    if (status == DW_OK && r->dir)
        status = check_goal(&r->goal, r->dir, r->files.patch_path, err);
    if (status != DW_OK)
        return status;
    /* the run before may have been killed before the name was durable */
    r->update = DW_UPDATE_PREPARED;
    r->is_named = true;
    status = dw_target_name_patch(r, err);
    if (status == DW_OK)
        status = dw_target_scatter(r, err);
    if (status == DW_OK)
        status = dw_target_sync_files(r, true, err);
    if (status == DW_OK)
        dw_target_forget_staged(r);
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
 * staged file and, for a follower, a patch that the directory's record does not name;
 * others refuse that. */
static dw_status lock_files(dw_target *r, const char *path, bool *pending, dw_error *err)
{
    dw_target_files *t = &r->files;
    bool exists = false;
    dw_status status = dw_target_files_find(t, path, err);
    if (status == DW_OK)
        status = dw_target_files_lock(t, err);
    if (status == DW_OK)
        status = dw_target_files_may_finish(t, pending, err);
    if (status == DW_OK && !*pending)
        status = dw_file_exists(t->patch_path, &exists, err);
    if (status == DW_OK && exists && !r->dir)
        status = dw_fail(err, DW_CONFLICT, t->patch_path,
                         "the directory's state file does not name this patch, so it is "
                         "not applied. The next pull or follow removes it");
    if (status != DW_OK)
        return status;
    dw_remove_leftovers(t->staged_path);
    status = dw_remove_file(t->staged_path, err);
    if (status == DW_OK && exists)
        status = dw_remove_file(t->patch_path, err);
    r->had_stray = r->had_stray || exists;
    return status;
}

static dw_status try_open(dw_target *r, const char *path, bool only_recover,
                          bool *recovered, bool *copied, dw_error *err)
{
    bool pending = false;
    dw_target_files *t = &r->files;
    dw_status status = lock_files(r, path, &pending, err);
    if (status == DW_OK && (pending || !only_recover))
        status = dw_checkpoint_open(&t->ckpt, path, DW_CHECKPOINT_WRITE, err);
    if (status == DW_OK && pending)
        status = leave_shared(t->ckpt, copied, err);
    if (status == DW_OK && pending && !*copied)
        status = roll_forward(r, err);
    if (recovered)
        *recovered = pending;
    if (status != DW_OK || *copied)
        dw_target_close_files(r);
    return status;
}

dw_status dw_target_open_files(dw_target *r, const char *path, bool only_recover,
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

dw_status dw_target_open_checkpoint(dw_target **out, const char *path, unsigned n_threads,
                                    bool only_recover, bool *recovered, dw_error *err)
{
    dw_target *r;
    dw_status status = dw_target_new(&r, &dw_target_in_files, NULL, 0, n_threads, err);
    if (status == DW_OK)
        status = dw_target_open_files(r, path, only_recover, recovered, err);
    return dw_target_give(out, r, status);
}

/* ---- without the stream ---- */

dw_status dw_target_interrupted(const char *into, bool *interrupted, dw_error *err)
{
    dw_error fault = {0};
    *interrupted = false;
    dw_status status = dw_checkpoint_pending(into, interrupted, &fault);
    /* without weights there is nothing to write; damaged ones are judged by the open */
    if (status == DW_OK || status == DW_NOT_FOUND || status == DW_CORRUPT ||
        status == DW_UNSUPPORTED || status == DW_INVALID)
        return DW_OK;
    if (err)
        *err = fault;
    return status;
}

dw_status dw_target_check_interrupted(const char *into, unsigned n_threads, dw_error *err)
{
    dw_target_files target = {.lock = -1};
    dw_checkpoint *checkpoint = NULL;
    dw_patch *patch = NULL;
    dw_patch_goal goal;
    size_t n = 0;
    dw_status status = dw_target_files_find(&target, into, err);
    const char *path = target.patch_path;
    if (status == DW_OK)
        status = dw_checkpoint_open(&checkpoint, into, DW_CHECKPOINT_READ, err);
    if (status == DW_OK)
        status = dw_patch_open(&patch, &goal, path, err);
    if (status == DW_OK) {
        const dw_tensor *tensors = dw_checkpoint_tensors(checkpoint, &n);
        status = dw_patch_check(patch, tensors, n, n_threads, path, err);
    }
    if (status == DW_OK)
        status = check_goal(&goal, into, path, err);
    dw_patch_free(patch);
    dw_checkpoint_close(checkpoint);
    dw_target_files_release(&target);
    return status;
}

dw_status dw_target_check_whole(dw_position *out, const char *into, unsigned n_threads,
                                dw_error *err)
{
    dw_position at, next;
    dw_record_kind kind;
    dw_checkpoint *checkpoint = NULL;
    dw_digest state = 0;
    size_t n = 0;
    dw_status status = dw_position_read(&at, &next, &kind, into, err);
    if (status == DW_OK)
        status = dw_checkpoint_open(&checkpoint, into, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    const dw_tensor *tensors = dw_checkpoint_tensors(checkpoint, &n);
    dw_digest *digests = dw_alloc_array(n, sizeof *digests);
    status = digests
                 ? dw_digest_tensors(digests, &state, tensors, n, n_threads, NULL, err)
                 : dw_fail_memory(err, into);
    const bool is_at = at.version != DW_NO_VERSION && at.state == state;
    const bool is_next = next.version != DW_NO_VERSION && next.state == state;
    if (status == DW_OK && !is_at && !is_next)
        status = dw_fail(err, DW_CORRUPT, into, "the weights are no version");
    *out = is_next ? next : at;
    dw_free(digests);
    dw_checkpoint_close(checkpoint);
    return status;
}

static dw_status sort_table(dw_tensor **out, const dw_checkpoint *checkpoint, size_t *n,
                            dw_error *err)
{
    const dw_tensor *tensors = dw_checkpoint_tensors(checkpoint, n);
    *out = dw_alloc_array(*n, sizeof **out);
    if (!*out)
        return dw_fail_memory(err, NULL);
    if (*n > 0) {
        memcpy(*out, tensors, *n * sizeof **out);
        qsort(*out, *n, sizeof **out, dw_tensor_compare_names);
    }
    return DW_OK;
}

dw_status dw_target_recover(const dw_follow_options *options, dw_error *err)
{
    dw_checkpoint *checkpoint = NULL;
    dw_tensor *table = NULL;
    dw_target *weights = NULL;
    size_t n = 0;
    dw_status status =
        dw_checkpoint_open(&checkpoint, options->into, DW_CHECKPOINT_READ, err);
    if (status == DW_OK)
        status = sort_table(&table, checkpoint, &n, err);
    if (status == DW_OK)
        status = dw_target_open_dir(&weights, table, n, NULL, options, false, err);
    if (status == DW_OK && weights->at.version == DW_NO_VERSION)
        status = dw_fail(err, DW_CORRUPT, options->into,
                         "the interrupted apply was finished, but no record says which "
                         "version the weights are: the stream is needed");
    if (status == DW_OK)
        status = dw_target_accept(weights, err);
    if (status == DW_OK)
        status = dw_target_forget_next(weights, err);
    dw_target_close(weights);
    dw_free(table);
    dw_checkpoint_close(checkpoint);
    return status;
}

dw_status dw_target_recovered(dw_position *at, const char *into, dw_error *err)
{
    dw_position next;
    dw_record_kind kind;
    dw_status status = dw_position_read(at, &next, &kind, into, err);
    if (status == DW_OK &&
        (at->version == DW_NO_VERSION || next.version != DW_NO_VERSION))
        status = dw_fail(err, DW_NOT_FOUND, into, "no record says which version it is");
    return status;
}
