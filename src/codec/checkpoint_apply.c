/* Applying a delta to a checkpoint on disk, so that a kill at any instant is harmless.
 *
 *     1  finish the patch file that an earlier, interrupted apply left
 *     2  decode and verify; write the list of stores to the patch file; sync; rename
 *     3  do the stores; sync the checkpoint; read all of it and compare with the digest
 *     4  remove the patch file; sync the directory
 *
 * Before the rename in 2 the checkpoint is untouched; a temporary file may stay behind.
 * From then until 4 the patch file is there, and doing its stores once more gives the
 * same bytes, whatever part of 3 had reached the disk. A patch file that is found beside
 * other weights than it was made for is refused: it holds what its stores replace. A lock
 * keeps two applies apart; it ends with its process.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/patch.h"
#include "codec/stage.h"
#include "tensor/checkpoint.h"
#include "tensor/shard_index.h"

#define PATCH_NAME ".deltawire-patch"

/* A checkpoint, by whatever path it was named, links resolved: its directory where it has
 * an index, or its only file. The patch file is DIR/.deltawire-patch or
 * FILE.deltawire-patch; the lock is on the first file, so that nothing is left behind. */
typedef struct target {
    const char *path;
    char *identity;
    char *patch_path;
    char *lock_path;
    int lock;
} target;

/* PATH without symbolic links; dw_free. */
static dw_status resolve(char **out, const char *path, dw_error *err)
{
    char *real = realpath(path, NULL);
    if (!real)
        return dw_fail_errno(err, path, "resolve");
    *out = dw_copy_string(real);
    free(real);
    return *out ? DW_OK : dw_fail_memory(err, path);
}

/* Where FILE is a shard that an index beside it names: sets *DIR to its directory and
 * *FIRST to the index's first file, both dw_free; else leaves them NULL. */
static dw_status find_index_of(char **dir, char **first, const char *file, dw_error *err)
{
    char *parent = dw_parent_path(file);
    char *path = parent ? dw_join_path(parent, DW_SHARD_INDEX_NAME) : NULL;
    bool exists = false, readable = false;
    dw_shard_index index;
    dw_status status =
        path ? dw_file_exists(path, &exists, err) : dw_fail_memory(err, file);
    if (status == DW_OK && exists) {
        status = dw_shard_index_read(&index, path, err);
        readable = status == DW_OK;
        if (status == DW_CORRUPT || status == DW_INVALID)
            status = DW_OK; /* an index of nothing that can be opened names no shard */
    }
    if (readable) {
        const char *name = file + strlen(parent) + (strcmp(parent, "/") != 0);
        bool listed = false;
        for (size_t i = 0; i < index.n_files; i++)
            listed = listed || strcmp(index.files[i], name) == 0;
        if (listed) {
            *first = dw_join_path(parent, index.files[0]);
            *dir = parent;
            parent = NULL;
            if (!*first)
                status = dw_fail_memory(err, file);
        }
        dw_shard_index_release(&index);
    }
    dw_free(path);
    dw_free(parent);
    return status;
}

static dw_status find_identity(target *t, const dw_checkpoint *ckpt, dw_error *err)
{
    const char *index = dw_checkpoint_index(ckpt);
    char *parent = index ? dw_parent_path(index) : NULL;
    if (index && !parent)
        return dw_fail_memory(err, t->path);
    const char *first = dw_checkpoint_file(ckpt, 0); /* an index may name no file */
    dw_status status = resolve(&t->identity, parent ? parent : first, err);
    if (status == DW_OK)
        status = resolve(&t->lock_path, first ? first : parent, err);
    dw_free(parent);
    if (status != DW_OK || index)
        return status;
    char *dir = NULL, *first_shard = NULL;
    status = find_index_of(&dir, &first_shard, t->identity, err);
    if (status == DW_OK && dir) {
        dw_free(t->identity);
        dw_free(t->lock_path);
        t->identity = dir;
        t->lock_path = NULL;
        dir = NULL;
        status = resolve(&t->lock_path, first_shard, err);
    }
    dw_free(dir);
    dw_free(first_shard);
    return status;
}

static void close_target(target *t)
{
    if (t->lock >= 0)
        close(t->lock);
    dw_free(t->identity);
    dw_free(t->patch_path);
    dw_free(t->lock_path);
}

/* Finds out what PATH means, without taking the lock. */
static dw_status identify(target *t, const char *path, dw_error *err)
{
    *t = (target){.path = path, .lock = -1};
    dw_checkpoint *ckpt;
    dw_status status = dw_checkpoint_open(&ckpt, path, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    status = find_identity(t, ckpt, err);
    dw_checkpoint_close(ckpt);
    struct stat st;
    if (status == DW_OK && stat(t->identity, &st) != 0)
        status = dw_fail_errno(err, t->identity, "look at");
    if (status == DW_OK) {
        size_t n_bytes = strlen(t->identity) + sizeof "/" PATCH_NAME;
        t->patch_path = dw_alloc(n_bytes);
        if (t->patch_path)
            snprintf(t->patch_path, n_bytes, "%s%s" PATCH_NAME, t->identity,
                     S_ISDIR(st.st_mode) ? "/" : "");
        else
            status = dw_fail_memory(err, path);
    }
    if (status != DW_OK)
        close_target(t);
    return status;
}

static dw_status open_target(target *t, const char *path, dw_error *err)
{
    dw_status status = identify(t, path, err);
    if (status != DW_OK)
        return status;
    /* writable, because locks over NFS ask for that */
    t->lock = open(t->lock_path, O_RDWR | O_CLOEXEC);
    if (t->lock < 0)
        status = dw_fail_errno(err, t->lock_path, "open");
    else if (flock(t->lock, LOCK_EX | LOCK_NB) != 0)
        status = errno == EWOULDBLOCK
                     ? dw_fail(err, DW_CONFLICT, path,
                               "another process is applying to this checkpoint")
                     : dw_fail_errno(err, t->lock_path, "lock");
    if (status == DW_OK)
        dw_remove_leftovers(t->patch_path);
    else
        close_target(t);
    return status;
}

/* Proves that the checkpoint is what the patch file says it becomes. */
static dw_status check_goal(const char *path, const char *patch_path,
                            const dw_patch_goal *goal, const dw_tensor *tensors,
                            size_t n_tensors, unsigned n_threads, dw_error *err)
{
    if (!goal->has_digest)
        return DW_OK;
    dw_digest state;
    dw_digest *digests = dw_alloc_array(n_tensors, sizeof *digests);
    dw_status status = digests ? dw_digest_tensors(digests, &state, tensors, n_tensors,
                                                   n_threads, NULL, err)
                               : dw_fail_memory(err, path);
    if (status == DW_OK && state != goal->state)
        status =
            dw_fail(err, DW_CORRUPT, path,
                    "all stores are done, but the checkpoint is not version %" PRIu64
                    ": it was changed meanwhile, or the disk is failing. Replace it, "
                    "then remove %s",
                    goal->version, patch_path);
    dw_free(digests);
    return status;
}

/* Steps 3 and 4, for the patch file that is there. */
static dw_status roll_forward(const target *t, unsigned n_threads, dw_error *err)
{
    dw_patch_goal goal;
    dw_patch *patch = NULL;
    dw_checkpoint *ckpt = NULL;
    const dw_tensor *tensors = NULL;
    size_t n_tensors = 0;
    dw_status status = dw_patch_open(&patch, &goal, t->patch_path, err);
    if (status == DW_OK)
        status = dw_checkpoint_open(&ckpt, t->path, DW_CHECKPOINT_WRITE, err);
    if (status == DW_OK) {
        tensors = dw_checkpoint_tensors(ckpt, &n_tensors);
        status = dw_patch_check(patch, tensors, n_tensors, n_threads, t->patch_path, err);
    }
    if (status == DW_OK)
        status = dw_checkpoint_reserve(ckpt, err);
    if (status == DW_OK)
        status = dw_patch_apply(patch, tensors, n_tensors, n_threads, err);
    if (status == DW_OK)
        status = dw_checkpoint_sync(ckpt, err);
    if (status == DW_OK)
        status =
            check_goal(t->path, t->patch_path, &goal, tensors, n_tensors, n_threads, err);
    if (status == DW_OK)
        status = dw_remove_file(t->patch_path, err);
    dw_checkpoint_close(ckpt);
    dw_patch_free(patch);
    return status;
}

static dw_status recover(const target *t, unsigned n_threads, bool *recovered,
                         dw_error *err)
{
    dw_status status = dw_file_exists(t->patch_path, recovered, err);
    return status == DW_OK && *recovered ? roll_forward(t, n_threads, err) : status;
}

/* Step 2. */
static dw_status stage_to_file(const target *t, const dw_delta *delta,
                               const dw_tensor *tensors, size_t n_tensors,
                               const dw_apply_options *options, dw_stage_result *result,
                               dw_error *err)
{
    dw_stage *stage = NULL;
    dw_patch_writer *writer = NULL;
    dw_status status =
        dw_stage_open(&stage, delta, tensors, n_tensors, options->n_threads, err);
    if (status == DW_OK)
        status = dw_patch_writer_open(&writer, t->patch_path, tensors, n_tensors, err);
    if (status == DW_OK)
        status =
            dw_stage_verify(result, stage, options, dw_patch_writer_take, writer, err);
    dw_stage_close(stage);
    if (status != DW_OK) {
        dw_patch_writer_abort(writer);
        return status;
    }
    const dw_patch_goal goal = {delta->info.has_digests, result->new_state,
                                delta->info.new_version};
    return dw_patch_writer_commit(writer, &goal, err);
}

static dw_status apply_locked(const target *t, const dw_delta *delta,
                              const dw_apply_options *options, dw_apply_report *report,
                              dw_error *err)
{
    dw_status status = recover(t, options->n_threads, &report->recovered, err);
    if (status != DW_OK)
        return status;
    dw_checkpoint *ckpt;
    status = dw_checkpoint_open(&ckpt, t->path, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    size_t n_tensors;
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n_tensors);
    dw_stage_result result = {0};
    status = stage_to_file(t, delta, tensors, n_tensors, options, &result, err);
    if (status == DW_STALE && result.base_state == delta->info.new_state) {
        report->already_applied = true;
        if (err)
            *err = (dw_error){0}; /* no error after all */
        result.new_state = delta->info.new_state;
        status = DW_OK;
    }
    dw_checkpoint_close(ckpt);
    if (status != DW_OK)
        return status;
    report->verified = delta->info.has_digests;
    report->new_state = result.new_state;
    report->n_changed = result.n_changed;
    return report->already_applied ? DW_OK : roll_forward(t, options->n_threads, err);
}

dw_status dw_checkpoint_apply(const char *path, const dw_delta *delta,
                              const dw_apply_options *options_, dw_apply_report *report_,
                              dw_error *err)
{
    dw_apply_options options = {0};
    dw_apply_report report = {0};
    if (options_)
        options = *options_;
    options.base_digests = NULL; /* what is on disk is read and checked */
    options.new_digests = NULL;
    target t;
    dw_status status = open_target(&t, path, err);
    if (status != DW_OK)
        return status;
    status = apply_locked(&t, delta, &options, &report, err);
    close_target(&t);
    if (report_)
        *report_ = report;
    return status;
}

dw_status dw_checkpoint_recover(const char *path, unsigned n_threads, bool *recovered,
                                dw_error *err)
{
    target t;
    bool any = false;
    dw_status status = open_target(&t, path, err);
    if (status != DW_OK)
        return status;
    status = recover(&t, n_threads, &any, err);
    close_target(&t);
    if (recovered)
        *recovered = any;
    return status;
}

dw_status dw_checkpoint_pending(const char *path, bool *pending, dw_error *err)
{
    target t;
    dw_status status = identify(&t, path, err);
    if (status != DW_OK)
        return status;
    status = dw_file_exists(t.patch_path, pending, err);
    close_target(&t);
    return status;
}
