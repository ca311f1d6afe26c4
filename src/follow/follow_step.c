/* One step of a follower: the records, the objects, the staging; whole models from
 * anchors, from a checkpoint that is there, and from the stream that this one forked
 * from. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "deltawire/checkpoint.h"
#include "store/store.h"
#include "follow/base.h"
#include "follow/follower.h"

#define MAX_FORKS 16

static dw_position position_of(const dw_follower *f, const dw_route_step *step)
{
    dw_position p = {.version = step->to, .state = step->state};
    memcpy(p.stream, f->stream->record.stream, sizeof p.stream);
    memcpy(p.commit_sha256, step->commit_sha256, sizeof p.commit_sha256);
    if (f->follows)
        memcpy(p.follows, f->follows, sizeof p.follows);
    return p;
}

/* The step must start from the very version that the weights are. */
static dw_status check_departure(const dw_follower *f, const dw_route_step *step,
                                 dw_error *err)
{
    const char *url = dw_store_url(f->stream->store);
    if (step->from != DW_NO_VERSION &&
        memcmp(step->from_sha256, dw_target_at(f->weights)->commit_sha256,
               DW_SHA256_BYTES) != 0)
        return dw_fail(err, DW_UNTRUSTED, url,
                       "version %" PRIu64 " was not made after the version %" PRIu64
                       " that the weights are: history was rewritten. Find out by whom; "
                       "to accept it, pull into a new directory",
                       step->to, step->from);
    if (step->from != DW_NO_VERSION && step->epoch < f->epoch)
        return dw_fail(err, DW_UNTRUSTED, url,
                       "version %" PRIu64 " was made by a writer that had been replaced "
                       "(epoch %" PRIu64 " after %" PRIu64 ")",
                       step->to, step->epoch, f->epoch);
    return DW_OK;
}

/* Room for a whole model that is proven before it is used. */
static dw_status make_scratch(const dw_follower *f, dw_scratch_model *out, dw_error *err)
{
    size_t n;
    const dw_tensor *table = dw_target_tensors(f->weights, &n);
    return dw_scratch_model_make(out, table, n, f->options.spool_dir, err);
}

/* The source of a fill, and the follower whose files are installed after it, before the
 * weights get their name. */
typedef struct fill_source {
    dw_follower *follower;
    dw_fill_fn source;
    void *context;
} fill_source;

static dw_status fill_and_install(void *context, const dw_tensor *tensors,
                                  size_t n_tensors, dw_error *err)
{
    const fill_source *fill = context;
    dw_status status = fill->source(fill->context, tensors, n_tensors, err);
    return status == DW_OK ? dw_follower_install_files(fill->follower, err) : status;
}

/* Whole weights: filled in if there are none, else staged. */
static dw_status take_model(dw_follower *f, const dw_position *position,
                            dw_fill_fn source, void *context, const dw_progress *progress,
                            dw_error *err)
{
    if (dw_target_is_empty(f->weights)) {
        fill_source fill = {f, source, context};
        return dw_target_fill(f->weights, position, fill_and_install, &fill, err);
    }
    dw_scratch_model model;
    dw_status status = make_scratch(f, &model, err);
    if (status != DW_OK)
        return status;
    status = source(context, model.tensors, f->stream->record.n_tensors, err);
    if (status == DW_OK)
        status = dw_target_stage_model(f->weights, position, &model, progress, err);
    dw_scratch_model_release(&model);
    return status;
}

static dw_status take_anchor(dw_follower *f, const dw_route_step *step,
                             const dw_progress *progress, dw_error *err)
{
    dw_position position = position_of(f, step);
    dw_anchor_fill fill = {f->stream->store, &step->objects, progress};
    dw_status status =
        take_model(f, &position, dw_fill_from_anchor, &fill, progress, err);
    if (status == DW_OK) {
        f->tally.n_objects += step->objects.n;
        f->tally.n_bytes += dw_objects_bytes(&step->objects);
    }
    return status;
}

/* Version 0 is a checkpoint outside the stream, which the caller names. */
static dw_status take_base(dw_follower *f, const dw_route_step *step,
                           const dw_progress *progress, dw_error *err)
{
    if (!f->options.base)
        return dw_fail(
            err, DW_NOT_FOUND, dw_store_url(f->stream->store),
            "the stream starts from a checkpoint that is not in it: %s, with the "
            "state digest %016" PRIx64 ". Name it with `base`",
            step->base && *step->base ? step->base : "unnamed", step->state);
    dw_base base;
    dw_status status =
        dw_base_open(&base, f->stream, step, f->options.base, f->options.n_threads, err);
    if (status == DW_OK) {
        dw_position position = position_of(f, step);
        size_t n;
        const dw_tensor *tensors = dw_target_tensors(base.source, &n);
        status = take_model(f, &position, dw_fill_from_tensors, (void *)tensors, progress,
                            err);
    }
    dw_base_close(&base);
    return status;
}

static dw_status open_other_store(const dw_follower *f, dw_store **out, const char *url,
                                  dw_error *err)
{
    return f->options.open_store
               ? f->options.open_store(f->options.open_context, out, url, err)
               : dw_store_open(out, url, NULL, err);
}

static dw_status fail_fork(const dw_route_step *step, dw_error *err)
{
    return dw_fail(err, DW_UNTRUSTED, step->fork.url,
                   "version %" PRIu64 " there is not the one that was forked from: "
                   "history was rewritten",
                   step->fork.version);
}

/* DW_UNTRUSTED if the version that was forked from is another one now. */
static dw_status check_source(dw_stream *source, const dw_route_step *step, dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(source, step->fork.version, &c, err);
    if (status != DW_OK)
        return status;
    if (c.state != step->state ||
        memcmp(c.seal.sha256, step->fork.commit_sha256, DW_SHA256_BYTES) != 0)
        status = fail_fork(step, err);
    dw_commit_record_release(&c);
    return status;
}

/* Whether weights are the very version that was forked from. */
static bool is_source(const dw_target *weights, const dw_route_step *step)
{
    const dw_position *at = dw_target_at(weights);
    return at->version != DW_NO_VERSION && at->state == step->state &&
           memcmp(at->commit_sha256, step->fork.commit_sha256, DW_SHA256_BYTES) == 0;
}

/* Brings WEIGHTS to the version of STREAM that was forked from. */
static dw_status follow_source(dw_follower *f, dw_stream *stream, dw_target *weights,
                               const dw_route_step *step, const dw_progress *progress,
                               dw_error *err)
{
    dw_follower other = {.stream = stream,
                         .weights = weights,
                         .options = f->options,
                         .depth = f->depth + 1,
                         .follows = f->follows ? f->follows : f->stream->record.stream};
    other.options.id = NULL;
    dw_follow_report report;
    dw_status status =
        dw_follower_sync(&other, step->fork.version, progress, &report, err);
    f->tally.n_objects += report.n_objects;
    f->tally.n_bytes += report.n_bytes;
    dw_fetch_ahead_end(&other.ahead);
    dw_graph_release(&other.avoid);
    dw_free(other.route);
    return status == DW_OK && !is_source(weights, step) ? fail_fork(step, err) : status;
}

/* The same in scratch, from a copy of the weights if they are a version of STREAM. */
static dw_status stage_source(dw_follower *f, dw_stream *stream,
                              const dw_route_step *step, const dw_progress *progress,
                              dw_error *err)
{
    const dw_position *at = dw_target_at(f->weights);
    const bool starts_here =
        at->version != DW_NO_VERSION && strcmp(at->stream, stream->record.stream) == 0;
    const dw_position position = position_of(f, step);
    size_t n;
    const dw_tensor *tensors = dw_target_tensors(f->weights, &n);
    dw_scratch_model model;
    dw_target *weights = NULL;
    dw_status status = make_scratch(f, &model, err);
    if (status != DW_OK)
        return status;
    if (starts_here)
        status = dw_fill_from_tensors((void *)tensors, model.tensors, n, err);
    if (status == DW_OK)
        status = dw_target_open_memory(&weights, tensors, n, model.tensors, !starts_here,
                                       f->options.n_threads, err);
    if (status == DW_OK && starts_here)
        status = dw_target_adopt(weights, at, err);
    if (status == DW_OK)
        status = follow_source(f, stream, weights, step, progress, err);
    dw_target_close(weights);
    if (status == DW_OK)
        status = dw_target_stage_model(f->weights, &position, &model, progress, err);
    dw_scratch_model_release(&model);
    return status;
}

static dw_status adopt_source(dw_follower *f, const dw_route_step *step, dw_error *err)
{
    const dw_position position = position_of(f, step);
    dw_status status = dw_target_adopt(f->weights, &position, err);
    if (status == DW_OK)
        dw_target_arrive(f->weights);
    return status;
}

/* Version 0 is a version of another stream. Weights that are there stay as they are until
 * it is staged like any other. */
static dw_status take_fork(dw_follower *f, const dw_route_step *step,
                           const dw_progress *progress, dw_error *err)
{
    dw_store *store = NULL;
    dw_stream *stream = NULL;
    if (f->depth >= MAX_FORKS)
        return dw_fail(err, DW_CORRUPT, step->fork.url,
                       "forks of forks, %d deep: they may go in a circle", MAX_FORKS);
    dw_status status = DW_OK;
    if (f->fork_store)
        store = f->fork_store;
    else
        status = open_other_store(f, &store, step->fork.url, err);
    const dw_trust trust = {(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])f->stream->trust,
                            f->stream->n_trust, NULL};
    if (status == DW_OK)
        status = dw_stream_open(&stream, store, &trust, err);
    if (status == DW_OK && strcmp(stream->record.stream, step->fork.stream) != 0)
        status = dw_fail(err, DW_MISMATCH, step->fork.url,
                         "this is stream %s, but the fork is from stream %s",
                         stream->record.stream, step->fork.stream);
    if (status == DW_OK)
        status = check_source(stream, step, err);
    if (status == DW_OK && !is_source(f->weights, step)) {
        if (dw_target_is_empty(f->weights)) {
            status = dw_follower_install_files(f, err);
            if (status == DW_OK)
                status = follow_source(f, stream, f->weights, step, progress, err);
        } else {
            status = stage_source(f, stream, step, progress, err);
        }
    }
    if (status == DW_OK && dw_target_update(f->weights) < DW_UPDATE_STAGED)
        status = adopt_source(f, step, err);
    dw_stream_close(stream);
    if (!f->fork_store)
        dw_store_close(store);
    return status;
}

dw_status dw_follower_stage_step(dw_follower *f, const dw_edge *edge,
                                 const dw_progress *progress, dw_error *err)
{
    dw_fetched fetched;
    f->rewritten = false;
    dw_status status = dw_fetch_ahead_take(&f->ahead, &fetched, f->stream, edge,
                                           dw_follower_take_commit(f, edge->to),
                                           f->options.spool_dir, progress, err);
    if (status != DW_OK)
        return status;
    const dw_route_step *step = &fetched.step;
    uint64_t start = dw_clock_ms();
    f->tally.fetch_ms += fetched.t_ms;
    dw_follower_mark(f, DW_FETCHED);
    status = check_departure(f, step, err);
    /* a wrong commit means that history was rewritten; a shortcut may be wrong by itself
     */
    f->rewritten = status != DW_OK && step->to - step->from == 1;
    if (status == DW_OK) {
        f->next_epoch = step->epoch;
        switch (step->content) {
        case DW_CONTENT_DELTA: {
            dw_position position = position_of(f, step);
            status = dw_target_stage(f->weights, &position, &step->objects, fetched.blobs,
                                     NULL, err);
            if (status == DW_CORRUPT && step->to - step->from == 1)
                f->undecodable = step->to;
            f->tally.stage_ms += dw_clock_ms() - start;
            f->tally.n_objects += step->objects.n;
            f->tally.n_bytes += fetched.n_bytes;
            break;
        }
        case DW_CONTENT_ANCHOR:
            status = take_anchor(f, step, progress, err);
            f->tally.fetch_ms += dw_clock_ms() - start;
            break;
        case DW_CONTENT_BASE:
            status = take_base(f, step, progress, err);
            break;
        case DW_CONTENT_FORK:
            status = take_fork(f, step, progress, err);
            break;
        }
    }
    if (status == DW_OK && dw_target_update(f->weights) == DW_UPDATE_FILLED)
        f->epoch = f->next_epoch;
    dw_fetched_release(&fetched);
    return status;
}
