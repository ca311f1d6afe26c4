#include "compat/peer_replica.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/progress.h"
#include "deltawire/checkpoint.h"
#include "deltawire/follow.h"

/* ---- opening ---- */

/* Whether the record of the weights is damaged. These formats have no digest that
 * identifies a version, so the weights are fetched again. */
static bool is_unknown(const dw_target *w)
{
    return dw_target_record(w) == DW_RECORD_DAMAGED && dw_target_is_unknown(w);
}

static dw_status open_weights(dw_peer_replica *r, dw_error *err)
{
    const dw_tensor *table = r->table->tensors;
    const size_t n = r->table->n_tensors;
    char stream[DW_ID_TEXT];
    dw_peer_stream_id(stream, r->peer->format);
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = r->into;
    options.n_threads = r->n_threads;
    dw_status status =
        dw_target_open_dir(&r->weights, table, n, NULL, &options, false, err);
    if (status == DW_OK && is_unknown(r->weights)) {
        status = dw_target_empty_dir(r->into, err);
        dw_target_close(r->weights);
        r->weights = NULL;
        if (status == DW_OK)
            status =
                dw_target_open_dir(&r->weights, table, n, NULL, &options, false, err);
    }
    if (status != DW_OK)
        return status;
    const dw_position *at = dw_target_at(r->weights);
    if (dw_target_is_unknown(r->weights))
        return dw_fail(err, DW_CONFLICT, r->into,
                       "it holds weights, and no record of which version they are. Name "
                       "an empty directory, or remove them");
    if (at->version != DW_NO_VERSION && strcmp(at->stream, stream) != 0)
        return dw_fail(err, DW_MISMATCH, r->into,
                       "the weights are version %" PRIu64 " of another stream, not of "
                       "this %s one. Name another directory",
                       at->version, dw_peer_format_name(r->peer->format));
    status = dw_target_accept(r->weights, err);
    return status == DW_OK ? dw_target_forget_next(r->weights, err) : status;
}

static void forget_weights(dw_peer_replica *r)
{
    dw_target_close(r->weights);
    r->weights = NULL;
    dw_patch_free(r->table);
    r->table = NULL;
}

/* Opens the weights for a model of these tensors. */
static dw_status learn_model(dw_peer_replica *r, const dw_tensor *tensors, size_t n,
                             dw_error *err)
{
    forget_weights(r); /* weights whose filling failed */
    dw_status status = dw_patch_new(&r->table, tensors, n, err);
    if (status == DW_OK)
        status = open_weights(r, err);
    if (status != DW_OK)
        forget_weights(r);
    return status;
}

/* If the directory has weights, they define the model. */
static dw_status open_dir(dw_peer_replica *r, dw_error *err)
{
    dw_checkpoint *ckpt;
    dw_error fault = {0};
    dw_status status = dw_target_make_dir(r->into, err);
    if (status != DW_OK)
        return status;
    status = dw_checkpoint_open(&ckpt, r->into, DW_CHECKPOINT_READ, &fault);
    if (status == DW_NOT_FOUND && !dw_dir_has_weights(r->into))
        return DW_OK; /* empty: it will be filled */
    if (status != DW_OK) {
        if (err)
            *err = fault;
        return status;
    }
    size_t n;
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    status = learn_model(r, tensors, n, err);
    dw_checkpoint_close(ckpt);
    return status;
}

static char *copy_or_null(const char *text, bool *failed)
{
    char *copy = text ? dw_copy_string(text) : NULL;
    *failed = *failed || (text && !copy);
    return copy;
}

dw_status dw_peer_replica_open(dw_peer_replica **out, dw_peer *peer,
                               const dw_peer_replica_options *given, dw_error *err)
{
    *out = NULL;
    dw_peer_replica_options options;
    dw_status status = DW_OPTIONS_TAKE(dw_peer_replica_options, &options, given, err);
    if (status == DW_OK && !options.into)
        status = dw_fail(err, DW_INVALID, NULL, "`into` is missing: name a directory");
    if (status != DW_OK)
        return status;
    bool failed = false;
    dw_peer_replica *r = dw_alloc_zeroed(1, sizeof *r);
    if (!r)
        return dw_fail_memory(err, options.into);
    r->peer = peer;
    r->into = copy_or_null(options.into, &failed);
    r->base = copy_or_null(options.base, &failed);
    r->n_threads = options.n_threads;
    status = failed ? dw_fail_memory(err, options.into) : DW_OK;
    if (status == DW_OK)
        status = open_dir(r, err);
    if (status == DW_OK)
        *out = r;
    else
        dw_peer_replica_close(r);
    return status;
}

void dw_peer_replica_close(dw_peer_replica *r)
{
    if (!r)
        return;
    forget_weights(r);
    dw_free(r->into);
    dw_free(r->base);
    dw_free(r);
}

uint64_t dw_peer_replica_version(const dw_peer_replica *r)
{
    return r->weights && !r->lost ? dw_target_at(r->weights)->version : DW_NO_VERSION;
}

const dw_tensor *dw_peer_replica_tensors(const dw_peer_replica *r, size_t *n_tensors)
{
    *n_tensors = 0;
    return dw_peer_replica_version(r) != DW_NO_VERSION
               ? dw_target_tensors(r->weights, n_tensors)
               : NULL;
}

dw_digest dw_peer_replica_state(const dw_peer_replica *r)
{
    return dw_peer_replica_version(r) != DW_NO_VERSION ? dw_target_at(r->weights)->state
                                                       : 0;
}

/* ---- one version ---- */

/* Finishes the prepared step. */
static dw_status finish(dw_peer_replica *r, dw_error *err)
{
    if (!r->weights || dw_target_update(r->weights) <= DW_UPDATE_STAGED)
        return DW_OK;
    dw_status status = dw_target_apply(r->weights, err);
    return status == DW_OK ? dw_target_finish(r->weights, false, err) : status;
}

static dw_status apply(dw_peer_replica *r, dw_status status, bool sweep, dw_error *err)
{
    if (status == DW_OK)
        status = dw_target_apply(r->weights, err);
    return status == DW_OK ? dw_target_finish(r->weights, sweep, err) : status;
}

/* Applies the step to the weights. */
static dw_status do_step(dw_peer_replica *r, const dw_peer_step *s, dw_error *err)
{
    dw_target *w = r->weights;
    const dw_position *at = dw_target_at(w);
    if (at->version == DW_NO_VERSION)
        return dw_target_fill(w, &s->position, dw_fill_from_tensors, s->tensors, err);
    if (at->state == s->position.state)
        return dw_target_adopt(w, &s->position, err); /* nothing changed */
    return s->tensors
               ? apply(r, dw_target_stage_copy(w, &s->position, s->tensors, NULL, err),
                       true, err)
               : apply(
                     r,
                     dw_target_stage(w, &s->position, &s->objects, s->deltas, NULL, err),
                     false, err);
}

/* Applies one version to the replica's current one. A whole version needs none. */
static dw_status take(dw_peer_replica *r, const dw_peer_record *record,
                      const dw_progress *progress, dw_error *err)
{
    const dw_peer_settings settings = {r->peer, r->into, r->n_threads, progress};
    const bool is_empty = dw_peer_replica_version(r) == DW_NO_VERSION;
    dw_peer_start now = {0};
    if (!is_empty) {
        now.tensors = dw_target_tensors(r->weights, &now.n_tensors);
        now.digests = dw_target_digests(r->weights);
    }
    dw_peer_step step;
    dw_status status =
        dw_peer_step_make(&step, &settings, record, is_empty ? NULL : &now, err);
    if (status == DW_OK && is_empty)
        status = learn_model(r, step.tensors, step.n_whole, err);
    if (status == DW_OK)
        status = do_step(r, &step, err);
    if (status == DW_OK) {
        dw_peer_sync_report *report = &r->report;
        report->version = record->version;
        report->n_steps++;
        report->n_objects += record->n_files;
        report->n_bytes += record->n_bytes;
        report->n_changed += step.n_changed;
        report->n_checked += step.n_checked;
        report->is_verified = report->is_verified && step.n_checked == step.n_tensors;
    }
    dw_peer_step_release(&step);
    return status;
}

/* Fills an empty replica with the base checkpoint, as VERSION. */
static dw_status fill_base(dw_peer_replica *r, uint64_t version, dw_error *err)
{
    dw_checkpoint *ckpt;
    dw_status status = dw_checkpoint_open(&ckpt, r->base, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    size_t n;
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    dw_position position = {.version = version};
    dw_peer_stream_id(position.stream, r->peer->format);
    dw_digest *digests = dw_alloc_array(n, sizeof *digests);
    status = digests ? dw_digest_tensors(digests, &position.state, tensors, n,
                                         r->n_threads, NULL, err)
                     : dw_fail_memory(err, r->base);
    const bool is_empty = dw_peer_replica_version(r) == DW_NO_VERSION;
    if (status == DW_OK && is_empty)
        status = learn_model(r, tensors, n, err);
    size_t n_here = n;
    if (!is_empty)
        dw_target_tensors(r->weights, &n_here);
    if (status == DW_OK && n != n_here)
        status = dw_fail(err, DW_MISMATCH, r->base,
                         "it has %zu tensors, the weights here have %zu: it is another "
                         "model",
                         n, n_here);
    if (status == DW_OK && is_empty)
        status = dw_target_fill(r->weights, &position, dw_fill_from_tensors,
                                (void *)(uintptr_t)tensors, err);
    else if (status == DW_OK && dw_target_at(r->weights)->state == position.state)
        status = dw_target_adopt(r->weights, &position, err);
    else if (status == DW_OK)
        status = apply(r, dw_target_stage_copy(r->weights, &position, tensors, NULL, err),
                       true, err);
    dw_free(digests);
    dw_checkpoint_close(ckpt);
    return status;
}

/* ---- many ---- */

static dw_status follow_route(dw_peer_replica *r, const dw_peer_route *route,
                              const dw_progress *progress, dw_error *err)
{
    dw_share share = {progress, 0, route->n_bytes};
    const dw_progress hook = dw_share_hook(&share);
    dw_status status = route->from_base ? fill_base(r, route->start, err) : DW_OK;
    for (size_t i = 0; status == DW_OK && i < route->n; i++) {
        const dw_peer_record *record;
        status = dw_peer_record_get(r->peer, route->versions[i], &record, err);
        if (status == DW_OK)
            status = take(r, record, &hook, err);
        if (status == DW_OK)
            share.before += record->n_bytes;
    }
    return status;
}

/* Checks if somebody replaced or removed the files. Reports it, and opens them again at
 * the next call. */
static dw_status check_files(dw_peer_replica *r, dw_error *err)
{
    if (r->lost) {
        dw_status status = r->weights ? dw_target_drop_shrunk(r->weights, err) : DW_OK;
        if (status != DW_OK)
            return status;
        forget_weights(r);
        status = open_dir(r, err);
        r->lost = status != DW_OK;
        return status;
    }
    dw_status status = r->weights ? dw_target_check_files(r->weights, err) : DW_OK;
    r->lost = status != DW_OK;
    if (r->lost)
        dw_target_stop_readers(r->weights);
    return status;
}

dw_status dw_peer_replica_sync(dw_peer_replica *r, uint64_t goal,
                               const dw_progress *progress, dw_peer_sync_report *report,
                               dw_error *err)
{
    const uint64_t *versions;
    size_t n_versions;
    dw_peer_route route = {0};
    dw_status status = check_files(r, err);
    if (status == DW_OK)
        status = finish(r, err);
    r->report = (dw_peer_sync_report){.from = dw_peer_replica_version(r),
                                      .version = dw_peer_replica_version(r),
                                      .is_verified = true};
    if (status == DW_OK)
        status = dw_peer_list(r->peer, &versions, &n_versions, err);
    if (status == DW_OK)
        status = dw_peer_route_find(&route, r, goal, err);
    if (status == DW_OK)
        status = follow_route(r, &route, progress, err);
    if (status == DW_OK)
        status = check_files(r, err);
    dw_peer_route_release(&route);
    r->report.version = dw_peer_replica_version(r);
    if (report)
        *report = r->report;
    return status;
}
