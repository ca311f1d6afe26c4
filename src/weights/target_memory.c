/* Memory of the host. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "codec/digest.h"
#include "tensor/device.h"
#include "tensor/tensor_list.h"
#include "weights/target_inside.h"
#include "weights/widen.h"

static const dw_target_ops *ops_for(const dw_tensor *memory, size_t n_tensors)
{
    return dw_tensors_on_device(memory, n_tensors) ? &dw_target_device
                                                   : &dw_target_memory;
}

dw_status dw_target_open_memory(dw_target **out, const dw_tensor *table, size_t n_tensors,
                                const dw_tensor *memory, bool empty, unsigned n_threads,
                                dw_error *err)
{
    dw_target *r;
    dw_status status =
        dw_target_new(&r, ops_for(memory, n_tensors), table, n_tensors, n_threads, err);
    if (status == DW_OK)
        status = dw_target_take_data(r, memory, n_tensors, "memory", err);
    if (status == DW_OK && !empty)
        status = dw_target_digest(r, err);
    if (status == DW_OK) {
        r->has_weights = !empty;
        r->may_fill = empty;
    }
    return dw_target_give(out, r, status);
}

/* ---- memory that lies elsewhere ---- */

/* The digests of what the memory must hold; NULL if nothing is known of it. */
static const dw_digest *digests_now(const dw_target *r)
{
    if (r->update >= DW_UPDATE_APPLIED)
        return r->next_digests;
    return r->at.version != DW_NO_VERSION ? r->digests : NULL;
}

static dw_status check_moved(const dw_target *r, dw_error *err)
{
    const dw_digest *wanted = digests_now(r);
    if (!wanted)
        return DW_OK;
    dw_digest *found = dw_alloc_array(r->n_tensors, sizeof *found);
    dw_status status = found ? dw_digest_tensors(found, NULL, r->tensors, r->n_tensors,
                                                 r->n_threads, NULL, err)
                             : dw_fail_memory(err, NULL);
    const char *other =
        status == DW_OK && r->widened ? dw_widened_compare(r, 0, r->n_tensors) : NULL;
    for (size_t i = 0; status == DW_OK && !other && i < r->n_tensors; i++)
        if (found[i] != wanted[i])
            other = r->tensors[i].name;
    if (other)
        status = dw_fail_tensor(
            err, DW_STALE, "memory", other,
            "its new memory does not hold version %" PRIu64
            ", which the old one holds: copy that first, or open another follower",
            r->update >= DW_UPDATE_APPLIED ? r->next.version : r->at.version);
    dw_free(found);
    return status;
}

dw_status dw_target_relocate(dw_target *r, const dw_tensor *memory, size_t n_tensors,
                             dw_error *err)
{
    dw_status status = dw_tensors_check_placed(memory, n_tensors, err);
    /* what is staged on a device belongs to that device's old memory */
    if (status == DW_OK &&
        (r->ops == &dw_target_device || dw_tensors_on_device(memory, n_tensors)))
        status = dw_target_discard(r, err);
    if (status != DW_OK)
        return status;
    dw_tensor *was = dw_alloc_array(r->n_tensors, sizeof *was);
    if (!was)
        return dw_fail_memory(err, NULL);
    if (r->n_tensors > 0)
        memcpy(was, r->tensors, r->n_tensors * sizeof *was);
    uint8_t **was_wide = NULL;
    status = r->widened ? dw_widened_move(r, memory, n_tensors, &was_wide, err)
                        : dw_target_take_data(r, memory, n_tensors, "memory", err);
    if (status == DW_OK)
        status = check_moved(r, err);
    if (status == DW_OK)
        r->ops = ops_for(memory, n_tensors);
    if (status != DW_OK && r->n_tensors > 0)
        memcpy(r->tensors, was, r->n_tensors * sizeof *was);
    if (r->widened)
        dw_widened_moved(r, was_wide, status == DW_OK);
    dw_free(was);
    return status;
}

/* ---- the verbs ---- */

dw_status dw_memory_stage(dw_target *r, const dw_part *parts, size_t n_parts,
                          const dw_patch_goal *goal, const dw_progress *progress,
                          dw_error *err)
{
    dw_status status = dw_parts_stage_memory(&r->patch, r->tensors, r->n_tensors, parts,
                                             n_parts, r->n_threads, progress, err);
    if (status == DW_OK)
        r->goal = *goal;
    return status;
}

dw_status dw_memory_prepare(dw_target *r, dw_error *err)
{
    (void)err;
    /* wait for the disk now, not during the pause */
    if (r->model.blob.mapped)
        dw_pages_prepare(r->model.blob.bytes, r->model.blob.n_bytes, false);
    r->update = DW_UPDATE_PREPARED;
    return DW_OK;
}

static dw_status copy_tensor(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const dw_target *r = context;
    return dw_fill_from_tensors(&r->model.tensors[i], &r->tensors[i], 1, err);
}

/* The stores of a whole model cannot fail, except on a device: without other threads,
 * this one does them. */
dw_status dw_memory_store(dw_target *r, bool *torn, dw_error *err)
{
    dw_status status = DW_OK;
    if (!r->model.tensors) {
        status =
            dw_patch_store(r->patch, r->tensors, r->n_tensors, r->n_threads, torn, err);
    } else if (dw_parallel(dw_worker_count(r->n_threads, r->n_tensors), r->n_tensors,
                           copy_tensor, r, NULL, NULL) != DW_OK) {
        status = dw_fill_from_tensors(r->model.tensors, r->tensors, r->n_tensors, err);
        *torn = status != DW_OK;
    }
    if (status != DW_OK)
        return status;
    if (r->widened && r->patch)
        dw_widened_store_patch(r);
    else if (r->widened)
        dw_widened_store(r);
    r->update = DW_UPDATE_APPLIED;
    return DW_OK;
}

/* It can only fail before the first store. */
static dw_status apply(dw_target *r, dw_error *err)
{
    bool torn = false;
    return dw_memory_store(r, &torn, err);
}

/* If the memory does not hold what was stored, it went bad: it is filled again. */
dw_status dw_memory_finish(dw_target *r, bool sweep, dw_error *err)
{
    if (!sweep && !r->model.tensors)
        return DW_OK;
    dw_status status = dw_target_digest(r, err);
    if (status == DW_OK)
        status = dw_target_check(r, &r->next, err);
    const char *changed =
        status == DW_OK && r->widened ? dw_widened_compare(r, 0, r->n_tensors) : NULL;
    if (changed)
        status = dw_fail_tensor(err, DW_MISMATCH, "memory", changed,
                                "the memory does not hold what was stored");
    if (status != DW_OK)
        dw_target_forget(r);
    if (status == DW_MISMATCH)
        dw_target_forget_staged(r);
    return status;
}

dw_status dw_memory_fill(dw_target *r, const dw_position *position, dw_fill_fn source,
                         void *context, dw_error *err)
{
    r->at = dw_nowhere;
    dw_status status = source(context, r->tensors, r->n_tensors, err);
    if (status == DW_OK)
        status = dw_target_digest(r, err);
    if (status == DW_OK)
        status = dw_target_check(r, position, err);
    if (status == DW_OK && r->widened)
        dw_widened_store(r);
    return status;
}

dw_status dw_memory_move(dw_target *r, const dw_position *position,
                         const dw_proven *proven, dw_error *err)
{
    dw_status status =
        dw_proven_apply(proven, r->tensors, r->n_tensors, r->n_threads, err);
    if (status != DW_OK) {
        dw_target_distrust(r); /* some objects were applied, some not */
        return status;
    }
    memset(r->digests, 0, r->n_tensors * sizeof *r->digests);
    for (size_t i = 0; i < proven->cut->n; i++) {
        dw_digest *d = &r->digests[proven->cut->items[i].tensor];
        *d = dw_digest_plus(*d, proven->after[i]);
    }
    r->at = *position;
    r->state = position->state;
    return DW_OK;
}

const dw_target_ops dw_target_memory = {
    .stage = dw_memory_stage,
    .prepare = dw_memory_prepare,
    .apply = apply,
    .finish = dw_memory_finish,
    .fill = dw_memory_fill,
    .move = dw_memory_move,
};
