#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "tensor/device.h"
#include "tensor/tensor_list.h"
#include "weights/own_dir.h"
#include "weights/target_inside.h"
#include "weights/widen.h"

/* ---- opening and closing ---- */

dw_status dw_target_new(dw_target **out, const dw_target_ops *ops, const dw_tensor *table,
                        size_t n_tensors, unsigned n_threads, dw_error *err)
{
    dw_target *r = dw_alloc_zeroed(1, sizeof *r);
    *out = NULL;
    if (!r)
        return dw_fail_memory(err, NULL);
    r->ops = ops;
    r->n_tensors = n_tensors;
    r->n_threads = n_threads;
    r->at = r->next = r->was_next = r->was = dw_nowhere;
    r->lock = r->files.lock = -1;
    r->tensors = dw_alloc_array(n_tensors, sizeof *r->tensors);
    r->digests = dw_alloc_array(n_tensors, sizeof *r->digests);
    r->next_digests = dw_alloc_array(n_tensors, sizeof *r->next_digests);
    if (!r->tensors || !r->digests || !r->next_digests) {
        dw_target_close(r);
        return dw_fail_memory(err, NULL);
    }
    if (n_tensors > 0)
        memcpy(r->tensors, table, n_tensors * sizeof *r->tensors);
    *out = r;
    return DW_OK;
}

dw_status dw_target_give(dw_target **out, dw_target *r, dw_status status)
{
    *out = status == DW_OK ? r : NULL;
    if (status != DW_OK)
        dw_target_close(r);
    return status;
}

void dw_target_close(dw_target *r)
{
    if (!r)
        return;
    dw_target_close_files(r);
    dw_control_writer_close(r->control);
    if (r->lock >= 0) {
        /* it is empty in a directory that was refused */
        (void)unlinkat(r->lock, DW_OWN_DIR, AT_REMOVEDIR);
        close(r->lock);
    }
    dw_widened_free(r->widened);
    dw_free(r->tensors);
    dw_free(r->digests);
    dw_free(r->next_digests);
    dw_free(r->dir);
    dw_free(r);
}

dw_status dw_target_open_none(dw_target **out, const dw_tensor *table, size_t n_tensors,
                              const char *into, dw_error *err)
{
    dw_target *r;
    dw_status status = dw_target_new(&r, &dw_target_in_files, table, n_tensors, 1, err);
    if (status == DW_OK && !(r->dir = dw_copy_string(into)))
        status = dw_fail_memory(err, into);
    for (size_t i = 0; status == DW_OK && i < n_tensors; i++) {
        r->tensors[i].data = NULL;
        r->tensors[i].device = NULL;
    }
    return dw_target_give(out, r, status);
}

dw_status dw_target_take_data(dw_target *r, const dw_tensor *found, size_t n_found,
                              const char *where, dw_error *err)
{
    if (n_found != r->n_tensors)
        return dw_fail(err, DW_MISMATCH, where,
                       "there are weights of another model: %zu tensors, but the stream "
                       "has %zu",
                       n_found, r->n_tensors);
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, found, n_found, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; status == DW_OK && i < r->n_tensors; i++) {
        size_t f = dw_name_index_find(&names, r->tensors[i].name);
        status = f == SIZE_MAX
                     ? dw_fail_tensor(err, DW_MISMATCH, where, r->tensors[i].name,
                                      "the stream has it, but the weights there do not")
                     : dw_tensor_fits_stream(&r->tensors[i], &found[f], where, err);
        if (status != DW_OK)
            break;
        r->tensors[i].data = found[f].data;
        r->tensors[i].device = found[f].device;
    }
    dw_name_index_release(&names);
    return status;
}

/* ---- what they are ---- */

const dw_position *dw_target_at(const dw_target *r)
{
    return &r->at;
}

dw_digest dw_target_state(const dw_target *r)
{
    return r->state;
}

const dw_tensor *dw_target_tensors(const dw_target *r, size_t *n_tensors)
{
    *n_tensors = r->n_tensors;
    return r->tensors;
}

const dw_digest *dw_target_digests(const dw_target *r)
{
    return r->digests;
}

const char *dw_target_dir(const dw_target *r)
{
    return r->dir;
}

bool dw_target_is_empty(const dw_target *r)
{
    return !r->has_weights && (r->dir || r->may_fill);
}

bool dw_target_is_unknown(const dw_target *r)
{
    return r->has_weights && r->at.version == DW_NO_VERSION;
}

dw_record_kind dw_target_record(const dw_target *r)
{
    return r->record;
}

bool dw_target_may_replace(const dw_target *r)
{
    return r->is_own || r->is_ours;
}

bool dw_target_was_damaged(const dw_target *r)
{
    return r->was_damaged || (r->is_own && dw_target_is_unknown(r));
}

bool dw_target_is_hurt(const dw_target *r, dw_position *was)
{
    *was = r->was;
    return r->was_damaged && r->is_ours;
}

uint64_t dw_target_n_private(const dw_target *r)
{
    return r->n_private;
}

bool dw_target_had_stray(const dw_target *r)
{
    return r->had_stray;
}

const char *dw_target_where(const dw_target *r)
{
    if (r->dir)
        return r->dir;
    return r->files.path ? r->files.path : "memory";
}

/* ---- versions that are there without an update ---- */

dw_status dw_target_check_size(const dw_target *r, dw_error *err)
{
    dw_status status = r->files.ckpt ? dw_checkpoint_check(r->files.ckpt, err) : DW_OK;
    return status == DW_OK ? dw_control_check(r->control, err) : status;
}

dw_status dw_target_digest(dw_target *r, dw_error *err)
{
    dw_status status = r->files.ckpt ? dw_checkpoint_check(r->files.ckpt, err) : DW_OK;
    return status == DW_OK ? dw_digest_tensors(r->digests, &r->state, r->tensors,
                                               r->n_tensors, r->n_threads, NULL, err)
                           : status;
}

dw_status dw_target_check(const dw_target *r, const dw_position *position, dw_error *err)
{
    if (r->state == position->state)
        return DW_OK;
    return dw_fail(err, DW_MISMATCH, r->dir,
                   "the weights have the digest %016" PRIx64 ", but version %" PRIu64
                   " is %016" PRIx64 ": they are not that version",
                   r->state, position->version, position->state);
}

dw_status dw_target_adopt(dw_target *r, const dw_position *position, dw_error *err)
{
    dw_status status = dw_target_check(r, position, err);
    if (status != DW_OK)
        return status;
    r->at = *position;
    r->may_fill = false;
    dw_target_update_control(r);
    if (!r->dir)
        return DW_OK;
    status = dw_position_write(&r->at, NULL, r->dir, err);
    if (status == DW_OK)
        r->was_next = dw_nowhere;
    return status;
}

void dw_target_arrive(dw_target *r)
{
    r->update = DW_UPDATE_FILLED;
}

dw_status dw_target_fill(dw_target *r, const dw_position *position, dw_fill_fn source,
                         void *context, dw_error *err)
{
    dw_status status = r->ops->fill(r, position, source, context, err);
    if (status != DW_OK)
        return status;
    r->has_weights = true;
    status = dw_target_adopt(r, position, err);
    if (status == DW_OK)
        dw_target_arrive(r);
    return status;
}

dw_status dw_target_forget_next(dw_target *r, dw_error *err)
{
    if (r->update >= DW_UPDATE_STAGED || r->at.version == DW_NO_VERSION ||
        r->was_next.version == DW_NO_VERSION)
        return DW_OK;
    dw_status status = dw_position_write(&r->at, NULL, r->dir, err);
    if (status == DW_OK)
        r->was_next = dw_nowhere;
    return status;
}

void dw_target_forget(dw_target *r)
{
    r->at = dw_nowhere;
    r->has_weights = false;
}

void dw_target_allow_fill(dw_target *r)
{
    r->may_fill = !r->dir && !r->has_weights;
}

dw_status dw_target_move(dw_target *r, const dw_position *position,
                         const dw_proven *proven, dw_error *err)
{
    return r->ops->move(r, position, proven, err);
}

/* ---- weights that somebody changed ---- */

dw_status dw_target_fail_changed(const dw_target *r, const char *tensor, dw_error *err)
{
    return dw_fail_tensor(err, DW_CORRUPT, dw_target_where(r), tensor,
                          "somebody changed these weights, or a bit flipped: they are "
                          "not version %" PRIu64
                          " any more. The next run fetches them again",
                          r->at.version);
}

dw_status dw_target_compare(dw_target *r, size_t first, size_t n, dw_error *err)
{
    dw_digest *found = dw_alloc_array(n, sizeof *found);
    dw_status status = found ? dw_digest_tensors(found, NULL, r->tensors + first, n,
                                                 r->n_threads, NULL, err)
                             : dw_fail_memory(err, r->dir);
    for (size_t i = 0; status == DW_OK && i < n; i++)
        if (found[i] != r->digests[first + i])
            status = dw_target_fail_changed(r, r->tensors[first + i].name, err);
    const char *changed =
        status == DW_OK && r->widened ? dw_widened_compare(r, first, n) : NULL;
    if (changed)
        status = dw_target_fail_changed(r, changed, err);
    dw_free(found);
    return status;
}

dw_status dw_target_sweep(dw_target *r, unsigned n_versions, dw_error *err)
{
    uint64_t total = 0, done = 0;
    if (r->at.version == DW_NO_VERSION || n_versions == 0)
        return DW_OK;
    for (size_t i = 0; i < r->n_tensors; i++)
        total += r->tensors[i].n_bytes;
    const uint64_t wanted = total / n_versions + 1;
    dw_status status = DW_OK;
    for (size_t left = r->n_tensors; status == DW_OK && left > 0 && done < wanted;) {
        const size_t first = r->sweep_at;
        size_t k = 0;
        while (first + k < r->n_tensors && k < left && done < wanted)
            done += r->tensors[first + k++].n_bytes;
        left -= k;
        r->sweep_at = (first + k) % r->n_tensors;
        status = dw_target_compare(r, first, k, err);
    }
    if (status == DW_CORRUPT)
        dw_target_distrust(r);
    return status;
}

void dw_target_distrust(dw_target *r)
{
    (void)dw_target_discard(r, NULL);
    r->at = dw_nowhere;
    r->has_weights = r->dir != NULL;
    if (!r->dir)
        return; /* memory is filled again */
    /* a directory is patched to another version, from the weights as they are now */
    dw_control_mark_written(r->control);
    r->record = DW_RECORD_DAMAGED;
    r->is_ours = true; /* they were a version */
    if (dw_target_digest(r, NULL) != DW_OK)
        r->state = UINT64_MAX; /* of no version: a digest has 61 bits */
    /* if the record cannot be written, the next open finds the damage */
    (void)dw_position_write(&dw_nowhere, NULL, r->dir, NULL);
}

void dw_target_stop_readers(dw_target *r)
{
    dw_control_mark_written(r->control);
}
