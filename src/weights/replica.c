#include "weights/replica.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "codec/digest.h"
#include "weights/staging.h"
#include "weights/widen.h"
#include "tensor/tensor_list.h"

dw_position dw_position_of(const dw_commit_record *commit)
{
    dw_position p = {.version = commit->version, .state = commit->state};
    memcpy(p.stream, commit->stream, sizeof p.stream);
    memcpy(p.commit_sha256, commit->seal.sha256, sizeof p.commit_sha256);
    return p;
}

bool dw_position_same(const dw_position *a, const dw_position *b)
{
    return a->version == b->version && a->state == b->state &&
           strcmp(a->stream, b->stream) == 0 &&
           memcmp(a->commit_sha256, b->commit_sha256, sizeof a->commit_sha256) == 0;
}

/* ---- opening ---- */

dw_status dw_replica_new(dw_replica **out, const dw_tensor *table, size_t n_tensors,
                         unsigned n_threads, dw_error *err)
{
    dw_replica *r = dw_alloc_zeroed(1, sizeof *r);
    if (!r)
        return dw_fail_memory(err, NULL);
    r->n_tensors = n_tensors;
    r->n_threads = n_threads;
    r->at = r->next = r->was_next = dw_nowhere;
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
    dw_patch_free(r->patch);
    dw_scratch_model_release(&r->model);
    dw_place_close(r->place);
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
        if (status == DW_OK)
            r->tensors[i].data = found[f].data;
    }
    dw_name_index_release(&names);
    return status;
}

dw_status dw_replica_digest(dw_replica *r, const dw_progress *progress, dw_error *err)
{
    return dw_digest_tensors(r->digests, &r->state, r->tensors, r->n_tensors,
                             r->n_threads, progress, err);
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

dw_status dw_replica_adopt(dw_replica *r, const dw_position *position, dw_error *err)
{
    r->at = *position;
    r->may_fill = false;
    dw_replica_tell(r);
    return r->dir ? dw_replica_state_write(&r->at, NULL, r->dir, err) : DW_OK;
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

/* ---- staging ---- */

static dw_status fail_state(const dw_replica *r, const dw_position *position,
                            dw_digest state, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, r->dir,
                   "the objects of version %" PRIu64 " lead to weights with the digest "
                   "%016" PRIx64 ", but its commit says %016" PRIx64,
                   position->version, state, position->state);
}

/* Keeps what stage found out, or takes it back. */
static dw_status finish_stage(dw_replica *r, const dw_position *position,
                              const dw_staging *staging, dw_error *err)
{
    dw_digest state = dw_digest_state(r->tensors, r->next_digests, r->n_tensors);
    if (state != position->state) {
        dw_replica_discard(r, NULL);
        return fail_state(r, position, state, err);
    }
    r->next = *position;
    r->n_changed = staging->n_changed;
    r->staged = true;
    return DW_OK;
}

static dw_status fail_changed(const dw_replica *r, const char *tensor, dw_error *err)
{
    return dw_fail_tensor(err, DW_CORRUPT, r->dir ? r->dir : "memory", tensor,
                          "somebody changed these weights, or a bit flipped: they are "
                          "not version %" PRIu64
                          " any more. The next run fetches them anew",
                          r->at.version);
}

/* What is to be replaced must be what the deltas were decoded against. */
static dw_status check_widened(dw_replica *r, dw_error *err)
{
    const char *changed = r->widened ? dw_widened_compare_patch(r) : NULL;
    if (!changed)
        return DW_OK;
    const dw_status status = fail_changed(r, changed, err);
    dw_replica_distrust(r);
    return status;
}

static dw_status stage_parts(dw_replica *r, const dw_position *position,
                             dw_staging *staging, const dw_progress *progress,
                             dw_error *err)
{
    const dw_patch_goal goal = {true, position->state, position->version};
    dw_status status =
        r->place
            ? dw_place_stage(r->place, staging->parts, staging->n, &goal, progress, err)
            : dw_parts_stage_memory(&r->patch, r->tensors, r->n_tensors, staging->parts,
                                    staging->n, r->n_threads, progress, err);
    if (status != DW_OK)
        return status;
    r->has_patch = true;
    status = check_widened(r, err);
    if (status != DW_OK)
        return status;
    dw_staging_digests(staging, r->n_tensors, r->digests, r->next_digests);
    return finish_stage(r, position, staging, err);
}

dw_status dw_replica_stage(dw_replica *r, const dw_position *position,
                           const dw_objects *objects, const dw_blob *blobs,
                           const dw_progress *progress, dw_error *err)
{
    dw_staging staging;
    dw_replica_discard(r, NULL);
    dw_status status = dw_staging_open(&staging, objects, blobs, r->tensors, r->n_tensors,
                                       r->digests, r->n_threads, err);
    if (status == DW_OK)
        status = stage_parts(r, position, &staging, progress, err);
    dw_staging_close(&staging);
    return status;
}

dw_status dw_replica_stage_deltas(dw_replica *r, const dw_position *position,
                                  const dw_objects *objects, dw_delta *const *deltas,
                                  dw_error *err)
{
    dw_staging staging;
    dw_replica_discard(r, NULL);
    dw_status status =
        dw_staging_open_deltas(&staging, objects, deltas, r->tensors, r->n_tensors,
                               r->digests, r->n_threads, err);
    if (status == DW_OK)
        status = stage_parts(r, position, &staging, NULL, err);
    dw_staging_close(&staging);
    return status;
}

dw_status dw_replica_stage_copy(dw_replica *r, const dw_position *position,
                                const dw_tensor *source, const dw_progress *progress,
                                dw_error *err)
{
    dw_replica_discard(r, NULL);
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.n_threads = r->n_threads;
    options.new_version = position->version;
    options.base_digests = r->digests;
    dw_delta *delta;
    dw_status status =
        dw_delta_diff(&delta, r->tensors, source, r->n_tensors, &options, err);
    if (status != DW_OK)
        return status;
    dw_staging staging;
    status =
        dw_staging_open_one(&staging, delta, r->tensors, r->n_tensors, r->digests, err);
    if (status == DW_OK)
        status = stage_parts(r, position, &staging, progress, err);
    dw_staging_close(&staging);
    return status;
}

dw_status dw_replica_stage_model(dw_replica *r, const dw_position *position,
                                 dw_scratch_model *model, dw_error *err)
{
    dw_digest state;
    dw_replica_discard(r, NULL);
    dw_status status = dw_digest_tensors(r->next_digests, &state, model->tensors,
                                         r->n_tensors, r->n_threads, NULL, err);
    if (status != DW_OK)
        return status;
    if (state != position->state)
        return fail_state(r, position, state, err);
    r->model = *model;
    *model = (dw_scratch_model){0};
    r->next = *position;
    r->n_changed = 0; /* nobody compared */
    r->has_patch = r->staged = true;
    return DW_OK;
}

dw_status dw_replica_stage_same(dw_replica *r, const dw_replica *other, dw_error *err)
{
    dw_status status = dw_replica_discard(r, err);
    if (status == DW_OK)
        status = dw_place_stage_same(r->place, other->place, err);
    if (status != DW_OK)
        return status;
    r->next = other->next;
    memcpy(r->next_digests, other->next_digests, r->n_tensors * sizeof *r->next_digests);
    r->n_changed = other->n_changed;
    r->has_patch = r->staged = true;
    return DW_OK;
}

static void forget_staged(dw_replica *r)
{
    dw_patch_free(r->patch);
    r->patch = NULL;
    dw_scratch_model_release(&r->model);
    r->has_patch = r->staged = r->prepared = r->applied = r->finished = false;
}

dw_status dw_replica_discard(dw_replica *r, dw_error *err)
{
    dw_status status = DW_OK;
    if (r->prepared)
        return dw_fail(err, DW_INVALID, r->dir,
                       "version %" PRIu64 " is prepared: apply and finish it first",
                       r->next.version);
    if (r->has_patch && r->place)
        status = dw_place_discard(r->place, err);
    forget_staged(r);
    return status;
}

/* Compares tensors [FIRST, FIRST + N). */
static dw_status compare(dw_replica *r, size_t first, size_t n, dw_error *err)
{
    dw_digest *found = dw_alloc_array(n, sizeof *found);
    dw_status status = found ? dw_digest_tensors(found, NULL, r->tensors + first, n,
                                                 r->n_threads, NULL, err)
                             : dw_fail_memory(err, r->dir);
    for (size_t i = 0; status == DW_OK && i < n; i++)
        if (found[i] != r->digests[first + i])
            status = fail_changed(r, r->tensors[first + i].name, err);
    const char *changed =
        status == DW_OK && r->widened ? dw_widened_compare(r, first, n) : NULL;
    if (changed)
        status = fail_changed(r, changed, err);
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
        status = compare(r, first, k, err);
    }
    return status;
}

void dw_replica_distrust(dw_replica *r)
{
    (void)dw_replica_discard(r, NULL);
    r->at = dw_nowhere;
    r->has_weights = r->dir != NULL;
    if (!r->dir)
        return; /* memory is filled anew */
    /* a directory is patched to another version, from the weights as they are now */
    dw_control_mark_written(r->control, r->copy);
    if (dw_replica_digest(r, NULL, NULL) != DW_OK ||
        dw_replica_state_write(&dw_nowhere, NULL, r->dir, NULL) != DW_OK)
        return; /* the next start finds it out */
    r->record = DW_RECORD_DAMAGED;
}

/* ---- applying ---- */

dw_status dw_replica_prepare(dw_replica *r, dw_error *err)
{
    if (r->finished)
        return DW_OK;
    dw_status status = DW_OK;
    if (r->place) {
        if (!r->prepared)
            status = dw_replica_state_write(&r->at, &r->next, r->dir, err);
        if (status == DW_OK)
            status = dw_place_prepare(r->place, err);
        /* whatever failed after the rename */
        r->prepared = dw_place_is_prepared(r->place);
    } else {
        /* what waits for a disk does so before the pause */
        if (r->model.blob.mapped)
            dw_pages_prepare(r->model.blob.bytes, r->model.blob.n_bytes, false);
        r->prepared = true;
    }
    return status;
}

static dw_status copy_tensor(void *context, size_t i, unsigned worker, dw_error *err)
{
    (void)worker;
    const dw_replica *r = context;
    return dw_fill_from_tensors(&r->model.tensors[i], &r->tensors[i], 1, err);
}

/* The stores to memory. Those of a whole model cannot fail: if no thread can be had, this
 * one does them. */
static dw_status store_tensors(dw_replica *r, dw_error *err)
{
    if (!r->model.tensors)
        return dw_patch_apply(r->patch, r->tensors, r->n_tensors, r->n_threads, err);
    if (dw_parallel(dw_worker_count(r->n_threads, r->n_tensors), r->n_tensors,
                    copy_tensor, r, NULL, NULL) == DW_OK)
        return DW_OK;
    return dw_fill_from_tensors(r->model.tensors, r->tensors, r->n_tensors, err);
}

static dw_status store_memory(dw_replica *r, dw_error *err)
{
    dw_status status = store_tensors(r, err);
    if (status != DW_OK || !r->widened)
        return status;
    if (r->patch)
        dw_widened_store_patch(r);
    else
        dw_widened_store(r);
    return DW_OK;
}

dw_status dw_replica_apply(dw_replica *r, dw_error *err)
{
    dw_status status = dw_replica_prepare(r, err);
    if (status != DW_OK || r->applied)
        return status;
    status = dw_control_begin_write(r->control, r->copy, err);
    if (status != DW_OK)
        return status;
    status = r->place ? dw_place_apply(r->place, err) : store_memory(r, err);
    r->applied = status == DW_OK;
    if (r->applied)
        dw_replica_tell(r);
    return status;
}

dw_status dw_replica_finish(dw_replica *r, bool sweep, dw_error *err)
{
    dw_status status = DW_OK;
    if (r->place && !r->finished) {
        /* without the patch file the block is all that readers have to go by */
        status = dw_control_sync(r->control, err);
        if (status == DW_OK)
            status = dw_place_finish(r->place, sweep, err);
        if (status == DW_CORRUPT) /* not what it says: nobody is to read it */
            dw_control_mark_written(r->control, r->copy);
        r->finished = status == DW_OK;
    } else if (!r->place && (sweep || r->model.tensors)) {
        status = dw_replica_digest(r, NULL, err);
        if (status == DW_OK)
            status = dw_replica_check(r, &r->next, err);
        const char *changed =
            status == DW_OK && r->widened ? dw_widened_compare(r, 0, r->n_tensors) : NULL;
        if (changed)
            status = dw_fail_tensor(err, DW_MISMATCH, "memory", changed,
                                    "the memory does not hold what was stored");
        if (status == DW_MISMATCH) { /* memory went bad: it is filled anew */
            forget_staged(r);
            r->at = dw_nowhere;
            r->has_weights = false;
        }
    }
    if (status == DW_OK && r->dir)
        status = dw_replica_state_write(&r->next, NULL, r->dir, err);
    if (status != DW_OK)
        return status;
    r->at = r->next;
    r->has_weights = true;
    r->may_fill = false;
    r->state = r->next.state;
    memcpy(r->digests, r->next_digests, r->n_tensors * sizeof *r->digests);
    forget_staged(r);
    dw_replica_tell(r);
    return DW_OK;
}
