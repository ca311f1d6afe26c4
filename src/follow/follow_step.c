/* One hop of a follower: the records, the objects, the staging; whole models from
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

static dw_position position_of(const dw_follower *f, const dw_hop *hop)
{
    dw_position p = {.version = hop->to, .state = hop->state};
    memcpy(p.stream, f->stream->record.stream, sizeof p.stream);
    memcpy(p.commit_sha256, hop->commit_sha256, sizeof p.commit_sha256);
    if (f->follows)
        memcpy(p.follows, f->follows, sizeof p.follows);
    return p;
}

/* The hop must leave from the very version that the weights are. */
static dw_status check_departure(const dw_follower *f, const dw_hop *hop, dw_error *err)
{
    const char *url = dw_store_url(f->stream->store);
    if (hop->from != DW_NO_VERSION &&
        memcmp(hop->from_sha256, f->weights->now->at.commit_sha256, DW_SHA256_BYTES) != 0)
        return dw_fail(err, DW_UNTRUSTED, url,
                       "version %" PRIu64 " was not made after the version %" PRIu64
                       " that the weights are: history was rewritten. Find out by whom; "
                       "to accept it, pull into a new directory",
                       hop->to, hop->from);
    if (hop->from != DW_NO_VERSION && hop->epoch < f->epoch)
        return dw_fail(err, DW_UNTRUSTED, url,
                       "version %" PRIu64 " was made by a writer that had been replaced "
                       "(epoch %" PRIu64 " after %" PRIu64 ")",
                       hop->to, hop->epoch, f->epoch);
    return DW_OK;
}

/* Room for a whole model that is proven before it is used. */
static dw_status make_scratch(const dw_follower *f, dw_scratch_model *out, dw_error *err)
{
    const dw_replica *r = f->weights->now;
    return dw_scratch_model_make(out, r->tensors, r->n_tensors, f->options.spool_dir,
                                 err);
}

/* Stages a model that is to be POSITION: as a patch to the files of a directory, as it is
 * for memory. */
static dw_status stage_model(dw_follower *f, const dw_position *position,
                             dw_scratch_model *model, const dw_progress *progress,
                             dw_error *err)
{
    return f->weights->now->dir
               ? dw_weights_stage_copy(f->weights, position, model->tensors, progress,
                                       err)
               : dw_replica_stage_model(f->weights->now, position, model, err);
}

/* Whole weights: into an empty replica, or staged for the one that is there. */
static dw_status take_model(dw_follower *f, const dw_position *position,
                            dw_fill_fn source, void *context, const dw_progress *progress,
                            dw_error *err)
{
    if (dw_replica_is_empty(f->weights->now)) {
        dw_status status = dw_weights_fill(f->weights, position, source, context, err);
        f->arrived = status == DW_OK;
        return status;
    }
    dw_scratch_model model;
    dw_status status = make_scratch(f, &model, err);
    if (status != DW_OK)
        return status;
    status = source(context, model.tensors, f->weights->now->n_tensors, err);
    if (status == DW_OK)
        status = stage_model(f, position, &model, progress, err);
    dw_scratch_model_release(&model);
    return status;
}

static dw_status take_anchor(dw_follower *f, const dw_hop *hop,
                             const dw_progress *progress, dw_error *err)
{
    dw_position position = position_of(f, hop);
    dw_anchor_fill fill = {f->stream->store, &hop->objects, progress};
    dw_status status =
        take_model(f, &position, dw_fill_from_anchor, &fill, progress, err);
    if (status == DW_OK) {
        f->tally.n_objects += hop->objects.n;
        f->tally.n_bytes += dw_objects_bytes(&hop->objects);
    }
    return status;
}

/* Version 0 is a checkpoint that was to be here already. */
static dw_status take_base(dw_follower *f, const dw_hop *hop, const dw_progress *progress,
                           dw_error *err)
{
    if (!f->options.base)
        return dw_fail(
            err, DW_NOT_FOUND, dw_store_url(f->stream->store),
            "the stream starts from a checkpoint that is not in it: %s, with the "
            "state digest %016" PRIx64 ". Name it with --base",
            hop->base && *hop->base ? hop->base : "unnamed", hop->state);
    dw_base base;
    dw_status status =
        dw_base_open(&base, f->stream, hop, f->options.base, f->options.n_threads, err);
    if (status == DW_OK) {
        dw_position position = position_of(f, hop);
        status = take_model(f, &position, dw_fill_from_tensors, base.source->tensors,
                            progress, err);
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

/* The version that was forked from must still be what it was. */
static dw_status check_source(dw_stream *source, const dw_hop *hop, dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(source, hop->fork.version, &c, err);
    if (status != DW_OK)
        return status;
    if (c.state != hop->state ||
        memcmp(c.seal.sha256, hop->fork.commit_sha256, DW_SHA256_BYTES) != 0)
        status = dw_fail(err, DW_UNTRUSTED, hop->fork.url,
                         "version %" PRIu64 " there is not the one that was forked from: "
                         "history was rewritten",
                         hop->fork.version);
    dw_commit_record_release(&c);
    return status;
}

static dw_status fail_fork(const dw_hop *hop, dw_error *err)
{
    return dw_fail(err, DW_UNTRUSTED, hop->fork.url,
                   "version %" PRIu64 " there is not the one that was forked from: "
                   "history was rewritten",
                   hop->fork.version);
}

/* Whether weights are the very version that was forked from. */
static bool is_source(const dw_replica *r, const dw_hop *hop)
{
    return r->at.version != DW_NO_VERSION && r->at.state == hop->state &&
           memcmp(r->at.commit_sha256, hop->fork.commit_sha256, DW_SHA256_BYTES) == 0;
}

/* Brings WEIGHTS to the version of STREAM that was forked from. */
static dw_status follow_source(dw_follower *f, dw_stream *stream, dw_weights *weights,
                               const dw_hop *hop, const dw_progress *progress,
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
        dw_follower_sync(&other, hop->fork.version, progress, &report, err);
    f->tally.n_objects += report.n_objects;
    f->tally.n_bytes += report.n_bytes;
    dw_fetch_ahead_end(&other.ahead);
    dw_graph_release(&other.avoid);
    dw_free(other.path);
    return status == DW_OK && !is_source(weights->now, hop) ? fail_fork(hop, err)
                                                            : status;
}

/* The same in scratch, from a copy of the weights if they are a version of STREAM. */
static dw_status stage_source(dw_follower *f, dw_stream *stream, const dw_hop *hop,
                              const dw_progress *progress, dw_error *err)
{
    const dw_replica *r = f->weights->now;
    const bool starts_here = r->at.version != DW_NO_VERSION &&
                             strcmp(r->at.stream, stream->record.stream) == 0;
    const dw_position position = position_of(f, hop);
    dw_scratch_model model;
    dw_weights *weights = NULL;
    dw_status status = make_scratch(f, &model, err);
    if (status != DW_OK)
        return status;
    if (starts_here)
        status = dw_fill_from_tensors(r->tensors, model.tensors, r->n_tensors, err);
    if (status == DW_OK)
        status = dw_weights_open_memory(&weights, r->tensors, r->n_tensors, model.tensors,
                                        !starts_here, f->options.n_threads, err);
    if (status == DW_OK && starts_here)
        status = dw_replica_check(weights->now, &r->at, err);
    if (status == DW_OK && starts_here)
        status = dw_weights_adopt(weights, &r->at, err);
    if (status == DW_OK)
        status = follow_source(f, stream, weights, hop, progress, err);
    dw_weights_close(weights);
    if (status == DW_OK)
        status = stage_model(f, &position, &model, progress, err);
    dw_scratch_model_release(&model);
    return status;
}

static dw_status adopt_source(dw_follower *f, const dw_hop *hop, dw_error *err)
{
    const dw_position position = position_of(f, hop);
    dw_status status = dw_weights_adopt(f->weights, &position, err);
    f->arrived = status == DW_OK;
    return status;
}

/* Version 0 is a version of another stream. Weights that are there stay as they are until
 * it is staged like any other. */
static dw_status take_fork(dw_follower *f, const dw_hop *hop, const dw_progress *progress,
                           dw_error *err)
{
    dw_store *store = NULL;
    dw_stream *stream = NULL;
    if (f->depth >= MAX_FORKS)
        return dw_fail(err, DW_CORRUPT, hop->fork.url,
                       "forks of forks, %d deep: they may go in a circle", MAX_FORKS);
    dw_status status = DW_OK;
    if (f->fork_store)
        store = f->fork_store;
    else
        status = open_other_store(f, &store, hop->fork.url, err);
    const dw_trust trust = {(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])f->stream->trust,
                            f->stream->n_trust, NULL};
    if (status == DW_OK)
        status = dw_stream_open(&stream, store, &trust, err);
    if (status == DW_OK && strcmp(stream->record.stream, hop->fork.stream) != 0)
        status = dw_fail(err, DW_MISMATCH, hop->fork.url,
                         "this is stream %s, but the fork is from stream %s",
                         stream->record.stream, hop->fork.stream);
    if (status == DW_OK)
        status = check_source(stream, hop, err);
    if (status == DW_OK && !is_source(f->weights->now, hop)) {
        if (dw_replica_is_empty(f->weights->now))
            status = follow_source(f, stream, f->weights, hop, progress, err);
        else
            status = stage_source(f, stream, hop, progress, err);
    }
    if (status == DW_OK && dw_weights_update(f->weights) == DW_UPDATE_NONE)
        status = adopt_source(f, hop, err);
    dw_stream_close(stream);
    if (!f->fork_store)
        dw_store_close(store);
    return status;
}

dw_status dw_follower_hop(dw_follower *f, const dw_edge *edge,
                          const dw_progress *progress, dw_error *err)
{
    dw_fetched fetched;
    f->arrived = f->rewritten = false;
    dw_status status = dw_fetch_ahead_take(&f->ahead, &fetched, f->stream, edge,
                                           f->options.spool_dir, progress, err);
    if (status != DW_OK)
        return status;
    const dw_hop *hop = &fetched.hop;
    uint64_t start = dw_clock_ms();
    f->tally.fetch_ms += fetched.t_ms;
    status = check_departure(f, hop, err);
    /* a commit says what the history is; a way may be wrong by itself */
    f->rewritten = status != DW_OK && hop->to - hop->from == 1;
    if (status == DW_OK) {
        f->next_epoch = hop->epoch;
        switch (hop->content) {
        case DW_CONTENT_DELTA: {
            dw_position position = position_of(f, hop);
            status = dw_weights_stage(f->weights, &position, &hop->objects, fetched.blobs,
                                      NULL, err);
            if (status == DW_CORRUPT && hop->to - hop->from == 1)
                f->undecodable = hop->to;
            f->tally.stage_ms += dw_clock_ms() - start;
            f->tally.n_objects += hop->objects.n;
            f->tally.n_bytes += fetched.n_bytes;
            break;
        }
        case DW_CONTENT_ANCHOR:
            status = take_anchor(f, hop, progress, err);
            f->tally.fetch_ms += dw_clock_ms() - start;
            break;
        case DW_CONTENT_BASE:
            status = take_base(f, hop, progress, err);
            break;
        case DW_CONTENT_FORK:
            status = take_fork(f, hop, progress, err);
            break;
        }
    }
    if (f->arrived)
        f->epoch = f->next_epoch;
    dw_fetched_release(&fetched);
    return status;
}
