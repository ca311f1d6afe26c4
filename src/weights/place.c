#include "weights/place.h"

#include <inttypes.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "weights/checkpoint_target.h"
#include "tensor/checkpoint.h"

struct dw_place {
    dw_target target;
    unsigned n_threads;
    dw_checkpoint *ckpt; /* writable */
    const dw_tensor *tensors;
    size_t n_tensors;

    /* NAMED: the patch file has its name, which may not be durable yet */
    enum { EMPTY, STAGED, NAMED, PREPARED, APPLIED } state;
    /* but for EMPTY: */
    bool sync_failed; /* of the stores */
    dw_patch *patch;
    dw_patch_goal goal;
    dw_patch_binding binding;
};

/* Lets go of the patch; its file stays. */
static void forget(dw_place *p)
{
    dw_patch_unbind(&p->binding);
    dw_patch_free(p->patch);
    p->patch = NULL;
    p->sync_failed = false;
    p->state = EMPTY;
}

void dw_place_close(dw_place *p)
{
    if (!p)
        return;
    if (p->state == STAGED)
        dw_remove_file(p->target.staged_path, NULL);
    forget(p);
    dw_checkpoint_close(p->ckpt);
    dw_target_release(&p->target); /* the lock last */
    dw_free(p);
}

/* Maps the patch file and does all that must not fail, or take time, during a pause. */
static dw_status load(dw_place *p, const char *path, dw_error *err)
{
    dw_status status = dw_patch_open(&p->patch, &p->goal, path, err);
    if (status == DW_OK)
        status =
            dw_patch_check(p->patch, p->tensors, p->n_tensors, p->n_threads, path, err);
    if (status == DW_OK)
        status = dw_patch_bind(&p->binding, p->patch, p->tensors, p->n_tensors,
                               p->target.path, err);
    if (status == DW_OK)
        status = dw_checkpoint_reserve(p->ckpt, err);
    if (status != DW_OK)
        forget(p);
    return status;
}

static dw_status map(dw_place *p, dw_error *err)
{
    dw_status status =
        dw_checkpoint_open(&p->ckpt, p->target.path, DW_CHECKPOINT_WRITE, err);
    if (status == DW_OK)
        p->tensors = dw_checkpoint_tensors(p->ckpt, &p->n_tensors);
    return status;
}

/* DW_CONFLICT if the weights are kept elsewhere, but not for this directory: the patch
 * file came with a copy of the directory, and the stores are not ours to do. */
static dw_status check_kept(const dw_place *p, dw_error *err)
{
    const char *first = dw_checkpoint_file(p->ckpt, 0);
    if (!first || !dw_is_kept_elsewhere(first))
        return DW_OK;
    return dw_place_judge(p, err) == DW_FILES_OWN ? DW_OK : DW_CONFLICT;
}

/* Goes on from a patch file that is there. */
static dw_status roll_forward(dw_place *p, dw_error *err)
{
    dw_status status = load(p, p->target.patch_path, err);
    if (status != DW_OK)
        return status;
    p->state = NAMED; /* the run before may have been killed before it was durable */
    status = dw_place_apply(p, err);
    return status == DW_OK ? dw_place_finish(p, true, err) : status;
}

/* A run that was interrupted had files of its own. One that was linked since belongs to
 * others too, and gets a private copy in its place. *COPIED: open all anew. */
static dw_status leave_shared(const dw_place *p, bool *copied, dw_error *err)
{
    uint64_t n = 0;
    if (dw_files_judge(p->ckpt, NULL) != DW_FILES_SHARED)
        return DW_OK;
    *copied = true;
    return dw_files_make_own(p->ckpt, &n, err);
}

/* With ONLY_RECOVER it is mapped only where there is something to finish. */
static dw_status try_open(dw_place **out, const char *path, unsigned n_threads,
                          bool only_recover, bool *recovered, bool *copied, dw_error *err)
{
    *out = NULL;
    bool pending = false;
    dw_place *p = dw_alloc_zeroed(1, sizeof *p);
    if (!p)
        return dw_fail_memory(err, path);
    p->n_threads = n_threads;
    p->target.lock = -1;
    dw_status status = dw_target_identify(&p->target, path, err);
    if (status == DW_OK)
        status = dw_target_lock(&p->target, err);
    if (status == DW_OK) {
        dw_remove_leftovers(p->target.patch_path);
        dw_remove_leftovers(p->target.staged_path);
        status = dw_remove_file(p->target.staged_path, err);
    }
    if (status == DW_OK)
        status = dw_file_exists(p->target.patch_path, &pending, err);
    if (status == DW_OK && (pending || !only_recover))
        status = map(p, err);
    if (status == DW_OK && pending)
        status = check_kept(p, err);
    if (status == DW_OK && pending)
        status = leave_shared(p, copied, err);
    if (status == DW_OK && pending && !*copied)
        status = roll_forward(p, err);
    if (recovered)
        *recovered = pending;
    if (status != DW_OK || *copied)
        dw_place_close(p);
    else
        *out = p;
    return status;
}

static dw_status open_place(dw_place **out, const char *path, unsigned n_threads,
                            bool only_recover, bool *recovered, dw_error *err)
{
    bool copied = false;
    dw_status status =
        try_open(out, path, n_threads, only_recover, recovered, &copied, err);
    if (status != DW_OK || !copied)
        return status;
    copied = false;
    status = try_open(out, path, n_threads, only_recover, recovered, &copied, err);
    return status == DW_OK && copied
               ? dw_fail(err, DW_CONFLICT, path,
                         "somebody links its files while they are written; stop that")
               : status;
}

dw_status dw_place_open(dw_place **out, const char *path, unsigned n_threads,
                        bool *recovered, dw_error *err)
{
    return open_place(out, path, n_threads, false, recovered, err);
}

dw_status dw_place_recover(const char *path, unsigned n_threads, bool *recovered,
                           dw_error *err)
{
    dw_place *place;
    dw_status status = open_place(&place, path, n_threads, true, recovered, err);
    dw_place_close(place);
    return status;
}

const dw_tensor *dw_place_tensors(const dw_place *p, size_t *n_tensors)
{
    *n_tensors = p->n_tensors;
    return p->tensors;
}

dw_status dw_place_check(const dw_place *p, dw_error *err)
{
    return dw_checkpoint_check(p->ckpt, err);
}

dw_ownership dw_place_judge(const dw_place *p, dw_error *err)
{
    return dw_files_judge(p->ckpt, err);
}

dw_status dw_place_make_own(const dw_place *p, uint64_t *n_copied, dw_error *err)
{
    return dw_files_make_own(p->ckpt, n_copied, err);
}

dw_status dw_place_copy(const dw_place *p, const char *dir, dw_error *err)
{
    return dw_files_copy(p->ckpt, dir, err);
}

dw_status dw_place_remove_files(const dw_place *p, dw_error *err)
{
    dw_status status = dw_files_remove(p->ckpt, err);
    return status == DW_OK ? dw_remove_file(p->target.patch_path, err) : status;
}

uint64_t dw_place_files(const dw_place *p)
{
    return dw_checkpoint_identity(p->ckpt);
}

/* ---- staging ---- */

static dw_status fail_prepared(const dw_place *p, dw_error *err)
{
    return dw_fail(err, DW_INVALID, p->target.path,
                   "version %" PRIu64 " is prepared: apply and finish it first",
                   p->goal.version);
}

dw_status dw_place_discard(dw_place *p, dw_error *err)
{
    if (p->state == EMPTY)
        return DW_OK;
    if (p->state != STAGED)
        return fail_prepared(p, err);
    dw_status status = dw_remove_file(p->target.staged_path, err);
    if (status == DW_OK)
        forget(p);
    return status;
}

dw_status dw_place_stage(dw_place *p, const dw_part *parts, size_t n_parts,
                         const dw_patch_goal *goal, const dw_progress *progress,
                         dw_error *err)
{
    const char *path = p->target.staged_path;
    dw_status status = dw_place_discard(p, err);
    if (status != DW_OK)
        return status;
    status = dw_parts_stage_file(path, p->tensors, p->n_tensors, parts, n_parts, goal,
                                 p->n_threads, progress, err);
    if (status == DW_OK)
        status = load(p, path, err);
    if (status == DW_OK)
        p->state = STAGED;
    else
        dw_remove_file(path, NULL); /* it may stand there, not known to be durable */
    return status;
}

dw_status dw_place_stage_same(dw_place *p, const dw_place *from, dw_error *err)
{
    const char *path = p->target.staged_path, *other = dw_place_staged_path(from);
    dw_status status = dw_place_discard(p, err);
    if (status == DW_OK)
        status = other ? dw_link_file(other, path, err)
                       : dw_fail(err, DW_INVALID, from->target.path, "nothing is staged");
    if (status == DW_OK)
        status = load(p, path, err);
    if (status == DW_OK)
        p->state = STAGED;
    else
        dw_remove_file(path, NULL);
    return status;
}

const char *dw_place_staged_path(const dw_place *p)
{
    if (p->state == EMPTY)
        return NULL;
    return p->state == STAGED ? p->target.staged_path : p->target.patch_path;
}

bool dw_place_is_prepared(const dw_place *p)
{
    return p->state > STAGED;
}

/* ---- the commit, and after ---- */

dw_status dw_place_prepare(dw_place *p, dw_error *err)
{
    dw_status status = DW_OK;
    if (p->state == EMPTY)
        return dw_fail(err, DW_INVALID, p->target.path, "nothing is staged");
    if (p->state == STAGED && dw_place_judge(p, err) != DW_FILES_OWN)
        return DW_CONFLICT;
    if (p->state == STAGED) {
        status = dw_rename_file(p->target.staged_path, p->target.patch_path, err);
        if (status == DW_OK)
            p->state = NAMED;
    }
    if (status == DW_OK && p->state == NAMED) {
        /* the name must be durable before the first store is: also where it was found */
        status = dw_sync_parent(p->target.patch_path, err);
        if (status == DW_OK)
            status = dw_patch_prepare(&p->binding, p->n_threads, err);
        if (status == DW_OK)
            p->state = PREPARED;
    }
    return status;
}

dw_status dw_place_apply(dw_place *p, dw_error *err)
{
    dw_status status = dw_place_prepare(p, err);
    if (status == DW_OK)
        status = dw_checkpoint_check(p->ckpt, err);
    if (status == DW_OK && p->state == PREPARED) {
        status = dw_patch_scatter(&p->binding, p->n_threads, err);
        if (status == DW_OK)
            p->state = APPLIED;
    }
    return status;
}

/* Proves that the checkpoint is what the patch file says it becomes. */
static dw_status sweep_all(const dw_place *p, dw_error *err)
{
    dw_digest state;
    dw_digest *digests = dw_alloc_array(p->n_tensors, sizeof *digests);
    dw_status status = digests ? dw_digest_tensors(digests, &state, p->tensors,
                                                   p->n_tensors, p->n_threads, NULL, err)
                               : dw_fail_memory(err, p->target.path);
    if (status == DW_OK && state != p->goal.state)
        status =
            dw_fail(err, DW_CORRUPT, p->target.path,
                    "all stores are done, but the checkpoint is not version %" PRIu64
                    ": it was changed meanwhile, or the disk is failing. Replace it, "
                    "then remove %s",
                    p->goal.version, p->target.patch_path);
    dw_free(digests);
    return status;
}

dw_status dw_place_finish(dw_place *p, bool sweep, dw_error *err)
{
    if (p->state != APPLIED)
        return dw_fail(err, DW_INVALID, p->target.path, "nothing is applied");
    /* the system tells of a failed write once, and takes the pages for clean from then on
     */
    dw_status status =
        p->sync_failed ? dw_patch_scatter(&p->binding, p->n_threads, err) : DW_OK;
    if (status == DW_OK) {
        status = dw_checkpoint_sync(p->ckpt, err);
        p->sync_failed = status != DW_OK;
    }
    if (status == DW_OK)
        status = sweep && p->goal.has_digest
                     ? sweep_all(p, err)
                     : dw_patch_confirm(&p->binding, p->n_threads, err);
    if (status == DW_OK)
        status = dw_remove_file(p->target.patch_path, err);
    if (status == DW_OK)
        forget(p);
    return status;
}
