#include "weights/replica.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "tensor/device.h"
#include "tensor/tensor_list.h"
#include "weights/widen.h"

/* ---- opening ---- */

dw_status dw_replica_new(dw_replica **out, const dw_tensor *table, size_t n_tensors,
                         unsigned n_threads, dw_error *err)
{
    dw_replica *r = dw_alloc_zeroed(1, sizeof *r);
    if (!r)
        return dw_fail_memory(err, NULL);
    r->n_tensors = n_tensors;
    r->n_threads = n_threads;
    r->at = r->next = r->was_next = r->was = dw_nowhere;
    r->target.lock = -1;
    r->tensors = dw_alloc_array(n_tensors, sizeof *r->tensors);
    r->digests = dw_alloc_array(n_tensors, sizeof *r->digests);
    r->next_digests = dw_alloc_array(n_tensors, sizeof *r->next_digests);
    if (!r->tensors || !r->digests || !r->next_digests) {
        dw_replica_close(r);
        return dw_fail_memory(err, NULL);
    }
    if (n_tensors > 0)
        memcpy(r->tensors, table, n_tensors * sizeof *r->tensors);
    *out = r;
    return DW_OK;
}

void dw_replica_close(dw_replica *r)
{
    if (!r)
        return;
    dw_replica_close_files(r);
    dw_widened_free(r->widened);
    dw_free(r->tensors);
    dw_free(r->digests);
    dw_free(r->next_digests);
    dw_free(r->dir);
    dw_free(r);
}

dw_status dw_replica_take_data(dw_replica *r, const dw_tensor *found, size_t n_found,
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

dw_status dw_replica_digest(dw_replica *r, const dw_progress *progress, dw_error *err)
{
    dw_status status = r->target.ckpt ? dw_checkpoint_check(r->target.ckpt, err) : DW_OK;
    return status == DW_OK ? dw_digest_tensors(r->digests, &r->state, r->tensors,
                                               r->n_tensors, r->n_threads, progress, err)
                           : status;
}

dw_status dw_replica_open_memory(dw_replica **out, const dw_tensor *table,
                                 size_t n_tensors, const dw_tensor *memory, bool empty,
                                 unsigned n_threads, dw_error *err)
{
    dw_replica *r;
    *out = NULL;
    dw_status status = dw_replica_new(&r, table, n_tensors, n_threads, err);
    if (status != DW_OK)
        return status;
    status = dw_replica_take_data(r, memory, n_tensors, "memory", err);
    if (status == DW_OK && !empty)
        status = dw_replica_digest(r, NULL, err);
    r->has_weights = !empty;
    r->may_fill = empty;
    if (status == DW_OK)
        *out = r;
    else
        dw_replica_close(r);
    return status;
}

/* The digests of what the memory must hold; NULL if nothing is known of it. */
static const dw_digest *digests_now(const dw_replica *r)
{
    if (r->update >= DW_UPDATE_APPLIED)
        return r->next_digests;
    return r->at.version != DW_NO_VERSION ? r->digests : NULL;
}

static dw_status check_moved(const dw_replica *r, dw_error *err)
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

dw_status dw_replica_move(dw_replica *r, const dw_tensor *memory, size_t n_tensors,
                          dw_error *err)
{
    dw_status status = dw_tensors_check_placed(memory, n_tensors, err);
    /* what is staged on a device belongs to that device's old memory */
    if (status == DW_OK && (dw_tensors_on_device(r->tensors, r->n_tensors) ||
                            dw_tensors_on_device(memory, n_tensors)))
        status = dw_replica_discard(r, err);
    if (status != DW_OK)
        return status;
    dw_tensor *was = dw_alloc_array(r->n_tensors, sizeof *was);
    if (!was)
        return dw_fail_memory(err, NULL);
    if (r->n_tensors > 0)
        memcpy(was, r->tensors, r->n_tensors * sizeof *was);
    uint8_t **was_wide = NULL;
    status = r->widened ? dw_widened_move(r, memory, n_tensors, &was_wide, err)
                        : dw_replica_take_data(r, memory, n_tensors, "memory", err);
    if (status == DW_OK)
        status = check_moved(r, err);
    if (status != DW_OK && r->n_tensors > 0)
        memcpy(r->tensors, was, r->n_tensors * sizeof *was);
    if (r->widened)
        dw_widened_moved(r, was_wide, status == DW_OK);
    dw_free(was);
    return status;
}

dw_status dw_replica_open_checkpoint(dw_replica **out, const char *path,
                                     unsigned n_threads, bool only_recover,
                                     bool *recovered, dw_error *err)
{
    dw_replica *r;
    *out = NULL;
    dw_status status = dw_replica_new(&r, NULL, 0, n_threads, err);
    if (status != DW_OK)
        return status;
    status = dw_replica_open_files(r, path, only_recover, recovered, err);
    if (status == DW_OK)
        *out = r;
    else
        dw_replica_close(r);
    return status;
}

const char *dw_replica_where(const dw_replica *r)
{
    if (r->dir)
        return r->dir;
    return r->target.path ? r->target.path : "memory";
}

dw_status dw_replica_adopt(dw_replica *r, const dw_position *position, dw_error *err)
{
    dw_status status = dw_replica_check(r, position, err);
    if (status != DW_OK)
        return status;
    r->at = *position;
    r->may_fill = false;
    dw_replica_update_control(r);
    if (!r->dir)
        return DW_OK;
    status = dw_position_write(&r->at, NULL, r->dir, err);
    if (status == DW_OK)
        r->was_next = dw_nowhere;
    return status;
}

/* ---- filling ---- */

dw_status dw_replica_check(const dw_replica *r, const dw_position *position,
                           dw_error *err)
{
    if (r->state == position->state)
        return DW_OK;
    return dw_fail(err, DW_MISMATCH, r->dir,
                   "the weights have the digest %016" PRIx64 ", but version %" PRIu64
                   " is %016" PRIx64 ": they are not that version",
                   r->state, position->version, position->state);
}

dw_status dw_replica_fill(dw_replica *r, const dw_position *position, dw_fill_fn source,
                          void *context, dw_error *err)
{
    dw_status status;
    if (r->dir) {
        status = dw_replica_fill_dir(r, position, source, context, err);
    } else {
        r->at = dw_nowhere;
        status = source(context, r->tensors, r->n_tensors, err);
        if (status == DW_OK)
            status = dw_replica_digest(r, NULL, err);
        if (status == DW_OK)
            status = dw_replica_check(r, position, err);
        if (status == DW_OK && r->widened)
            dw_widened_store(r);
    }
    if (status != DW_OK)
        return status;
    r->has_weights = true;
    return dw_replica_adopt(r, position, err);
}

/* ---- weights that somebody changed ---- */

dw_status dw_replica_fail_changed(const dw_replica *r, const char *tensor, dw_error *err)
{
    return dw_fail_tensor(err, DW_CORRUPT, dw_replica_where(r), tensor,
                          "somebody changed these weights, or a bit flipped: they are "
                          "not version %" PRIu64
                          " any more. The next run fetches them again",
                          r->at.version);
}

dw_status dw_replica_compare(dw_replica *r, size_t first, size_t n, dw_error *err)
{
    dw_digest *found = dw_alloc_array(n, sizeof *found);
    dw_status status = found ? dw_digest_tensors(found, NULL, r->tensors + first, n,
                                                 r->n_threads, NULL, err)
                             : dw_fail_memory(err, r->dir);
    for (size_t i = 0; status == DW_OK && i < n; i++)
        if (found[i] != r->digests[first + i])
            status = dw_replica_fail_changed(r, r->tensors[first + i].name, err);
    const char *changed =
        status == DW_OK && r->widened ? dw_widened_compare(r, first, n) : NULL;
    if (changed)
        status = dw_replica_fail_changed(r, changed, err);
    dw_free(found);
    return status;
}

dw_status dw_replica_sweep(dw_replica *r, unsigned n_versions, dw_error *err)
{
    uint64_t total = 0, done = 0;
    if (r->at.version == DW_NO_VERSION)
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
        status = dw_replica_compare(r, first, k, err);
    }
    return status;
}

void dw_replica_distrust(dw_replica *r)
{
    (void)dw_replica_discard(r, NULL);
    r->at = dw_nowhere;
    r->has_weights = r->dir != NULL;
    if (!r->dir)
        return; /* memory is filled again */
    /* a directory is patched to another version, from the weights as they are now */
    dw_control_mark_written(r->control);
    r->record = DW_RECORD_DAMAGED;
    r->is_ours = true; /* they were a version */
    if (dw_replica_digest(r, NULL, NULL) != DW_OK)
        r->state = UINT64_MAX; /* of no version: a digest has 61 bits */
    /* if the record cannot be written, the next open finds the damage */
    (void)dw_position_write(&dw_nowhere, NULL, r->dir, NULL);
}
