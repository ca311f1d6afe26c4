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
#include "deltawire/checkpoint.h"

#define PATCH_NAME ".deltawire-patch"
#define INDEX_NAME "model.safetensors.index.json"

/* A checkpoint, by whatever path it was named: its directory where it has an index, or
 * its only file. The patch file is DIR/.deltawire-patch or FILE.deltawire-patch; the
 * lock is on directory or file itself, so that nothing is left behind. */
typedef struct target {
    const char *path;
    char *patch_path;
    int lock;
} target;

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool has_index(const char *dir)
{
    char *path = dw_join_path(dir, INDEX_NAME);
    bool found = path && access(path, F_OK) == 0;
    dw_free(path);
    return found;
}

/* PATH without symbolic links: one checkpoint, one patch file; dw_free. */
static char *resolve(char *path)
{
    char *real = path ? realpath(path, NULL) : NULL;
    char *resolved = real ? dw_copy_string(real) : NULL;
    free(real);
    dw_free(path);
    return resolved;
}

/* The directory or file that stands for the checkpoint; dw_free. */
static char *find_identity(const char *path, const dw_checkpoint *ckpt)
{
    static const char index[] = ".json";
    size_t n = strlen(path);
    if (is_directory(path))
        return dw_copy_string(has_index(path) ? path : dw_checkpoint_file(ckpt, 0));
    if (n >= sizeof index && strcmp(path + n - (sizeof index - 1), index) == 0)
        return dw_parent_path(path);
    return dw_copy_string(path);
}

static char *patch_path_of(const char *identity)
{
    if (is_directory(identity))
        return dw_join_path(identity, PATCH_NAME);
    size_t n_bytes = strlen(identity) + sizeof PATCH_NAME;
    char *path = dw_alloc(n_bytes);
    if (path)
        snprintf(path, n_bytes, "%s" PATCH_NAME, identity);
    return path;
}

static void close_target(target *t)
{
    if (t->lock >= 0)
        close(t->lock);
    dw_free(t->patch_path);
}

/* Finds the patch path of the checkpoint; IDENTITY is what to lock. Both dw_free. */
static dw_status identify(char **identity, char **patch_path, const char *path,
                          dw_error *err)
{
    *identity = *patch_path = NULL;
    dw_checkpoint *ckpt;
    dw_status status = dw_checkpoint_open(&ckpt, path, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    *identity = resolve(find_identity(path, ckpt));
    *patch_path = *identity ? patch_path_of(*identity) : NULL;
    dw_checkpoint_close(ckpt);
    return *patch_path ? DW_OK : dw_fail_memory(err, path);
}

static dw_status open_target(target *t, const char *path, dw_error *err)
{
    *t = (target){.path = path, .lock = -1};
    char *identity;
    dw_status status = identify(&identity, &t->patch_path, path, err);
    if (status != DW_OK) {
        dw_free(identity);
        return status;
    }
    if ((t->lock = open(identity, O_RDONLY | O_CLOEXEC)) < 0)
        status = dw_fail_errno(err, identity, "open");
    else if (flock(t->lock, LOCK_EX | LOCK_NB) != 0)
        status = errno == EWOULDBLOCK
                     ? dw_fail(err, DW_CONFLICT, path,
                               "another process is applying to this checkpoint")
                     : dw_fail_errno(err, identity, "lock");
    if (status == DW_OK)
        dw_remove_leftovers(t->patch_path);
    else
        close_target(t);
    dw_free(identity);
    return status;
}

/* Proves that the checkpoint is what the patch file says it becomes. */
static dw_status check_goal(const char *path, const dw_patch_goal *goal,
                            const dw_tensor *tensors, size_t n_tensors,
                            unsigned n_threads, dw_error *err)
{
    if (!goal->has_digest)
        return DW_OK;
    dw_digest state;
    dw_digest *digests = dw_alloc_array(n_tensors, sizeof *digests);
    dw_status status = digests ? dw_digest_tensors(digests, &state, tensors, n_tensors,
                                                   n_threads, NULL, err)
                               : dw_fail_memory(err, path);
    if (status == DW_OK && state != goal->state)
        status = dw_fail(err, DW_CORRUPT, path,
                         "all stores are done, but the checkpoint is not version %" PRIu64
                         ": it was changed meanwhile, or the disk is failing",
                         goal->version);
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
        status = dw_patch_check(patch, tensors, n_tensors, t->patch_path, err);
    }
    if (status == DW_OK)
        status = dw_patch_apply(patch, tensors, n_tensors, n_threads, err);
    if (status == DW_OK)
        status = dw_checkpoint_sync(ckpt, err);
    if (status == DW_OK)
        status = check_goal(t->path, &goal, tensors, n_tensors, n_threads, err);
    if (status == DW_OK)
        status = dw_remove_file(t->patch_path, err);
    dw_checkpoint_close(ckpt);
    dw_patch_free(patch);
    return status;
}

static dw_status recover(const target *t, unsigned n_threads, bool *recovered,
                         dw_error *err)
{
    *recovered = access(t->patch_path, F_OK) == 0;
    return *recovered ? roll_forward(t, n_threads, err) : DW_OK;
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

/* Whether the checkpoint stands at the delta's new version already. */
static bool at_new_version(const dw_delta *delta, const dw_tensor *tensors,
                           size_t n_tensors, unsigned n_threads)
{
    dw_digest state = 0;
    dw_digest *digests = dw_alloc_array(n_tensors, sizeof *digests);
    bool same = digests && delta->info.has_digests &&
                dw_digest_tensors(digests, &state, tensors, n_tensors, n_threads, NULL,
                                  NULL) == DW_OK &&
                state == delta->info.new_state;
    dw_free(digests);
    return same;
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
    if (status == DW_STALE &&
        at_new_version(delta, tensors, n_tensors, options->n_threads)) {
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

dw_status dw_checkpoint_recover(const char *path, bool *recovered, dw_error *err)
{
    target t;
    bool any = false;
    dw_status status = open_target(&t, path, err);
    if (status != DW_OK)
        return status;
    status = recover(&t, 0, &any, err);
    close_target(&t);
    if (recovered)
        *recovered = any;
    return status;
}

dw_status dw_checkpoint_pending(const char *path, bool *pending, dw_error *err)
{
    char *identity, *patch_path;
    dw_status status = identify(&identity, &patch_path, path, err);
    if (status == DW_OK)
        *pending = access(patch_path, F_OK) == 0;
    dw_free(identity);
    dw_free(patch_path);
    return status;
}
