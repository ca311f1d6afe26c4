/* The transaction on the weights, after it is staged: prepare, apply, finish.
 * weights.h has the states, the files on disk, and what a crash leaves. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "tensor/device.h"
#include "weights/replica.h"
#include "weights/widen.h"

void dw_replica_forget_staged(dw_replica *r)
{
    dw_patch_unbind(&r->binding);
    dw_patch_free(r->patch);
    r->patch = NULL;
    dw_scratch_model_release(&r->model);
    r->sync_failed = r->is_torn = false;
    r->update = DW_UPDATE_NONE;
}

static dw_status fail_order(const dw_replica *r, const char *text, dw_error *err)
{
    return dw_fail(err, DW_INVALID, dw_replica_where(r), "%s", text);
}

/* ---- files ---- */

dw_status dw_replica_prepare_files(dw_replica *r, dw_error *err)
{
    const dw_target *t = &r->target;
    dw_status status = DW_OK;
    if (r->update == DW_UPDATE_STAGED && dw_files_judge(t->ckpt, err) != DW_FILES_OWN)
        return DW_CONFLICT;
    if (r->update == DW_UPDATE_STAGED) {
        status = dw_rename_file(t->staged_path, t->patch_path, err);
        if (status == DW_OK) {
            r->update = DW_UPDATE_NAMED;
            r->staged_file = false;
        }
    }
    if (status == DW_OK && r->update == DW_UPDATE_NAMED) {
        /* the name must be durable before the first store is: also if it was found */
        status = dw_sync_parent(t->patch_path, err);
        if (status == DW_OK)
            status = dw_patch_prepare(&r->binding, r->n_threads, err);
        if (status == DW_OK)
            r->update = DW_UPDATE_PREPARED;
    }
    return status;
}

dw_status dw_replica_apply_files(dw_replica *r, dw_error *err)
{
    dw_status status = dw_checkpoint_check(r->target.ckpt, err);
    if (status == DW_OK)
        status = dw_patch_scatter(&r->binding, r->n_threads, err);
    if (status == DW_OK)
        r->update = DW_UPDATE_APPLIED;
    return status;
}

/* Proves that the checkpoint has the digest that the patch file names. */
static dw_status sweep_all(const dw_replica *r, dw_error *err)
{
    dw_digest state = 0;
    size_t n_tensors;
    const dw_tensor *tensors = dw_checkpoint_tensors(r->target.ckpt, &n_tensors);
    dw_digest *digests = dw_alloc_array(n_tensors, sizeof *digests);
    dw_status status = digests ? dw_digest_tensors(digests, &state, tensors, n_tensors,
                                                   r->n_threads, NULL, err)
                               : dw_fail_memory(err, r->target.path);
    if (status == DW_OK && state != r->goal.state)
        status =
            dw_fail(err, DW_CORRUPT, r->target.path,
                    "all stores are done, but the checkpoint is not version %" PRIu64
                    ": it was changed meanwhile, or the disk is failing. Replace it, "
                    "then remove %s",
                    r->goal.version, r->target.patch_path);
    dw_free(digests);
    return status;
}

dw_status dw_replica_finish_files(dw_replica *r, bool sweep, dw_error *err)
{
    /* the system reports a failed write once, and then takes the pages for clean: they
     * are written again */
    dw_status status =
        r->sync_failed ? dw_patch_scatter(&r->binding, r->n_threads, err) : DW_OK;
    if (status == DW_OK) {
        status = dw_checkpoint_sync(r->target.ckpt, err);
        r->sync_failed = status != DW_OK;
    }
    if (status == DW_OK)
        status = sweep && r->goal.has_digest
                     ? sweep_all(r, err)
                     : dw_patch_confirm(&r->binding, r->n_threads, err);
    if (status == DW_OK)
        status = dw_remove_file(r->target.patch_path, err);
    if (status == DW_OK)
        r->update = DW_UPDATE_SYNCED;
    return status;
}

/* ---- memory ---- */

static dw_status copy_tensor(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const dw_replica *r = context;
    return dw_fill_from_tensors(&r->model.tensors[i], &r->tensors[i], 1, err);
}

/* The stores to memory. Those of a whole model cannot fail, except on a device: without
 * other threads, this one does them. *TORN: some may be done. */
static dw_status store_tensors(dw_replica *r, bool *torn, dw_error *err)
{
    if (!r->model.tensors)
        return dw_patch_store(r->patch, r->tensors, r->n_tensors, r->n_threads, torn,
                              err);
    if (dw_parallel(dw_worker_count(r->n_threads, r->n_tensors), r->n_tensors,
                    copy_tensor, r, NULL, NULL) == DW_OK)
        return DW_OK;
    dw_status status =
        dw_fill_from_tensors(r->model.tensors, r->tensors, r->n_tensors, err);
    *torn = status != DW_OK;
    return status;
}

/* The memory holds no version that is known. */
static void lose(dw_replica *r)
{
    r->at = dw_nowhere;
    r->has_weights = false;
}

/* The stores failed with STATUS. What is staged can be applied again, unless somebody
 * changed the weights. */
static dw_status give_up(dw_replica *r, dw_status status, bool torn, dw_error *err)
{
    if (!dw_tensors_on_device(r->tensors, r->n_tensors))
        return status; /* before the first store */
    r->is_torn |= torn;
    if (status == DW_STALE && !torn) {
        dw_replica_forget_staged(r);
        lose(r);
        if (err)
            err->code = DW_CORRUPT;
        return DW_CORRUPT;
    }
    /* the old values were put back: is it so? */
    if (torn || dw_replica_compare(r, 0, r->n_tensors, NULL) != DW_OK)
        lose(r);
    return status;
}

static dw_status apply_memory(dw_replica *r, dw_error *err)
{
    bool torn = false;
    dw_status status = store_tensors(r, &torn, err);
    if (status != DW_OK)
        return give_up(r, status, torn, err);
    if (r->widened && r->patch)
        dw_widened_store_patch(r);
    else if (r->widened)
        dw_widened_store(r);
    r->update = DW_UPDATE_APPLIED;
    return DW_OK;
}

/* If the memory does not hold what was stored, it went bad: it is filled again. */
static dw_status finish_memory(dw_replica *r, bool sweep, dw_error *err)
{
    if (!sweep && !r->model.tensors && !r->is_torn)
        return DW_OK;
    dw_status status = dw_replica_digest(r, NULL, err);
    if (status == DW_OK)
        status = dw_replica_check(r, &r->next, err);
    const char *changed =
        status == DW_OK && r->widened ? dw_widened_compare(r, 0, r->n_tensors) : NULL;
    if (changed)
        status = dw_fail_tensor(err, DW_MISMATCH, "memory", changed,
                                "the memory does not hold what was stored");
    if (status != DW_OK)
        lose(r);
    if (status == DW_MISMATCH)
        dw_replica_forget_staged(r);
    return status;
}

/* ---- the verbs ---- */

dw_status dw_replica_prepare(dw_replica *r, dw_error *err)
{
    if (r->update == DW_UPDATE_NONE)
        return fail_order(r, "nothing is staged", err);
    if (r->update >= DW_UPDATE_PREPARED)
        return DW_OK;
    if (!r->target.ckpt) {
        /* wait for the disk now, not during the pause */
        if (r->model.blob.mapped)
            dw_pages_prepare(r->model.blob.bytes, r->model.blob.n_bytes, false);
        r->update = DW_UPDATE_PREPARED;
        return DW_OK;
    }
    /* For damaged weights, a record of only the next version without a patch would mean a
     * fill. Their record names no version until the patch has its name. */
    const bool names_next = r->dir && r->update == DW_UPDATE_STAGED;
    const bool is_known = r->at.version != DW_NO_VERSION;
    dw_status status = DW_OK;
    if (names_next)
        status = dw_position_write_patch(&r->at, is_known ? &r->next : NULL,
                                         &r->patch->seal, r->dir, err);
    if (status == DW_OK)
        status = dw_replica_prepare_files(r, err);
    if (status == DW_OK && names_next && !is_known)
        status = dw_position_write_patch(&r->at, &r->next, &r->patch->seal, r->dir, err);
    return status;
}

dw_status dw_replica_apply(dw_replica *r, dw_error *err)
{
    dw_status status = dw_replica_prepare(r, err);
    if (status != DW_OK || r->update >= DW_UPDATE_APPLIED)
        return status;
    status = dw_control_begin_write(r->control, err);
    if (status == DW_OK)
        status = r->target.ckpt ? dw_replica_apply_files(r, err) : apply_memory(r, err);
    if (status == DW_OK)
        dw_replica_update_control(r);
    return status;
}

static dw_status finish_data(dw_replica *r, bool sweep, dw_error *err)
{
    if (!r->target.ckpt)
        return finish_memory(r, sweep, err);
    /* once the patch file is gone, readers trust the block */
    dw_status status = dw_control_sync(r->control, err);
    if (status == DW_OK)
        status = dw_replica_finish_files(r, sweep, err);
    if (status == DW_CORRUPT) /* not the version in the block: stop readers */
        dw_control_mark_written(r->control);
    return status;
}

dw_status dw_replica_finish(dw_replica *r, bool sweep, dw_error *err)
{
    if (r->update < DW_UPDATE_APPLIED)
        return fail_order(r, "nothing is applied", err);
    dw_status status =
        r->update == DW_UPDATE_APPLIED ? finish_data(r, sweep, err) : DW_OK;
    if (status == DW_OK && r->dir)
        status = dw_position_write(&r->next, NULL, r->dir, err);
    if (status != DW_OK)
        return status;
    r->at = r->next;
    r->has_weights = true;
    r->may_fill = false;
    r->state = r->next.state;
    memcpy(r->digests, r->next_digests, r->n_tensors * sizeof *r->digests);
    dw_replica_forget_staged(r);
    dw_replica_update_control(r);
    return DW_OK;
}
