/* Opening a publisher: the stream, the cut of the model, version 0. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "codec/digest.h"
#include "store/store.h"
#include "follow/base.h"
#include "publish/publisher.h"
#include "publish/ranks.h"
#include "tensor/tensor_list.h"

/* Weights that are diffed at a time: enough to give each thread two blocks, but at most
 * one object, because a group is not cut again. */
#define BLOCK_BYTES       (2u << 20) /* of the codec's blocks, for types of two bytes */
#define GROUP_BYTES       (16u << 20)
#define LEAST_GROUP_BYTES (1u << 10)

static uint64_t group_bytes(const dw_publish_options *options)
{
    uint64_t wanted = 2ull * BLOCK_BYTES * dw_worker_count(options->n_threads, 4096);
    if (wanted < GROUP_BYTES)
        wanted = GROUP_BYTES;
    if (wanted > options->max_object_bytes)
        wanted = options->max_object_bytes;
    return wanted < LEAST_GROUP_BYTES ? LEAST_GROUP_BYTES : wanted;
}

/* Old versions go when an anchor is made. Where a commit can be replaced, its objects can
 * only be told from leftovers if nobody writes. */
static dw_status check_keep(const dw_publisher *p, bool conditional, dw_error *err)
{
    const dw_publish_options *o = &p->options;
    if (o->n_keep == 0)
        return DW_OK;
    if (!conditional)
        return dw_fail(err, DW_UNSUPPORTED, dw_store_url(p->store),
                       "old versions cannot be dropped while a process writes, because "
                       "this store cannot create an object only if it does not exist. "
                       "Leave out `keep`, and run `deltawire gc` when nobody writes");
    if (o->anchor_every == 0 && !(o->anchor_factor > 0))
        return dw_fail(err, DW_INVALID, dw_store_url(p->store),
                       "`keep` drops old versions when an anchor is made, and none are: "
                       "set `anchor_factor` or `anchor_every`, or give `--keep` to the "
                       "`deltawire compact` that makes them");
    return DW_OK;
}

dw_status dw_publisher_check_store(dw_publisher *p, dw_error *err)
{
    bool conditional;
    dw_status status = dw_store_conditional(p->store, &conditional, err);
    if (status == DW_OK)
        status = check_keep(p, conditional, err);
    if (status != DW_OK || conditional || p->options.single_writer)
        return status;
    return dw_fail(err, DW_UNSUPPORTED, dw_store_url(p->store),
                   "this store cannot create an object only if it does not exist, so two "
                   "writers could overwrite each other. If you make sure that only one "
                   "process writes this stream at any time, set `single_writer`");
}

static dw_status cut_pieces(dw_publisher *p, const dw_tensor *tensors, size_t n_tensors,
                            dw_error *err)
{
    const dw_stream_record *s = &p->stream->record;
    dw_slices owned = {0};
    dw_status status = dw_live_take(p, tensors, n_tensors, &owned, err);
    if (status == DW_OK)
        status = dw_pieces_open(&p->pieces, s->tensors, s->n_tensors, &owned,
                                p->live.source.grains, group_bytes(&p->options), err);
    dw_slices_free(&owned);
    if (status != DW_OK)
        return status;
    for (size_t t = 0; t < s->n_tensors; t++)
        p->model_bytes += s->tensors[t].n_bytes;
    dw_name_index names;
    status = dw_name_index_init(&names, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    status = dw_live_open(p, &names, err);
    dw_name_index_release(&names);
    if (status == DW_OK)
        status = dw_job_open(p, err);
    return status == DW_OK ? dw_baseline_open(p, err) : status;
}

/* ---- version 0 ---- */

void dw_fork_follower_id(char out[65], const dw_publisher *p)
{
    snprintf(out, 65, "fork-%s", p->stream->record.stream);
}

/* Lists the fork as a follower of its source, so that the source does not collect
 * VERSION. If this process may not write the source, the operator must keep the version.
 */
static void pin_source(dw_publisher *p, const dw_stream *source, uint64_t version)
{
    char key[DW_KEY_TEXT], note[] = "a fork starts from this version";
    dw_follower_record record = {
        .version = version, .host = "", .status = "fork", .message = note};
    memcpy(record.stream, source->record.stream, sizeof record.stream);
    dw_fork_follower_id(record.id, p);
    dw_key_follower(key, record.id);
    dw_writer bytes = {0};
    if (dw_follower_record_write(&bytes, &record, NULL) == DW_OK)
        (void)dw_store_put_bytes(p->options.fork_store, key, bytes.bytes, bytes.n_bytes,
                                 DW_PUT_REPLACE, NULL);
    dw_writer_release(&bytes);
}

/* Opens the stream that this one forks from, which must be of the model SPEC: otherwise
 * nobody could read the fork. */
static dw_status open_source(dw_stream **out, const dw_publisher *p,
                             const dw_stream_spec *spec, dw_error *err)
{
    *out = NULL;
    if (!p->options.fork_store)
        return dw_fail(err, DW_INVALID, NULL,
                       "a fork needs the store of its source: set `fork_store`");
    const dw_trust trust = {p->options.trust.keys, p->options.trust.n_keys, NULL};
    dw_status status = dw_stream_open(out, p->options.fork_store, &trust, err);
    if (status == DW_OK)
        status = dw_stream_check_spec(*out, spec, err);
    if (status != DW_OK) {
        dw_stream_close(*out);
        *out = NULL;
    }
    return status;
}

/* Before a stream is created, so that a fork of another model leaves nothing behind. */
static dw_status check_source(const dw_publisher *p, const dw_stream_spec *spec,
                              dw_error *err)
{
    dw_stream *source;
    if (p->options.first != DW_FIRST_FORK || p->options.rank != 0 ||
        dw_store_stat(p->store, DW_KEY_STREAM, NULL, NULL, NULL) != DW_NOT_FOUND)
        return DW_OK;
    dw_status status = open_source(&source, p, spec, err);
    dw_stream_close(source);
    return status;
}

static dw_status fork_commit(dw_publisher *p, dw_commit_record *commit, dw_error *err)
{
    const dw_stream_record *own = &p->stream->record;
    const dw_stream_spec spec = {.tensors = own->tensors,
                                 .n_tensors = own->n_tensors,
                                 .quantized = own->quantized};
    dw_stream *other;
    dw_status status = open_source(&other, p, &spec, err);
    if (status != DW_OK || !other)
        return status;
    uint64_t version = p->options.fork_version;
    if (version == DW_NEWEST)
        status = dw_stream_find_head(other, DW_NO_VERSION, &version, err);
    dw_commit_record source;
    if (status == DW_OK)
        status = dw_stream_read_commit(other, version, &source, err);
    if (status == DW_OK) {
        commit->content = DW_CONTENT_FORK;
        commit->state = source.state;
        commit->fork.version = version;
        commit->fork.url = (char *)dw_store_url(p->options.fork_store);
        memcpy(commit->fork.stream, source.stream, sizeof commit->fork.stream);
        memcpy(commit->fork.commit_sha256, source.seal.sha256, DW_SHA256_BYTES);
        if (!p->files.wanted.is_given)
            status = dw_file_set_fetch(&p->files.wanted, other, &source, err);
        if (status == DW_OK)
            pin_source(p, other, version);
        dw_commit_record_release(&source);
    }
    dw_stream_close(other);
    return status;
}

dw_status dw_first_anchor_upload(dw_objects *out, dw_publisher *p, const char *write_id,
                                 dw_error *err)
{
    const dw_anchor_spec spec = {
        .store = p->store,
        .table = p->pieces.table,
        .n_table = p->pieces.n_table,
        .slices = &p->pieces.owned,
        .data = p->baseline.data,
        .devices = p->baseline.in_memory ? p->baseline.devices : NULL,
        .share = dw_pieces_share(&p->pieces, p->baseline.digests),
        .version = 0,
        .write_id = write_id,
        .max_object_bytes = p->options.max_anchor_bytes,
        .progress = &p->options.progress,
    };
    return dw_anchor_upload(out, &spec, err);
}

/* Fills in what version 0 is: uploads an anchor, or names the base. */
static dw_status first_objects(dw_publisher *p, dw_commit_record *commit, dw_error *err)
{
    if (p->options.first != DW_FIRST_ANCHOR) {
        commit->content = DW_CONTENT_BASE;
        size_t n;
        const dw_tensor *tensors = dw_target_tensors(p->baseline.follower->weights, &n);
        commit->base = (char *)(p->options.base_name ? p->options.base_name : "");
        return dw_base_hash(commit->base_sha256, tensors, n, p->options.n_threads, err);
    }
    commit->content = DW_CONTENT_ANCHOR;
    return dw_first_anchor_upload(&commit->objects, p, commit->write_id, err);
}

dw_status dw_fork_first_version(dw_publisher *p, dw_error *err)
{
    dw_commit_record commit = {.step = (char *)p->options.first_step,
                               .notes = (char *)p->options.first_notes};
    dw_position position;
    dw_status status = dw_random_id(commit.write_id, err);
    if (status == DW_OK)
        status = fork_commit(p, &commit, err);
    return status == DW_OK ? dw_commit_create(p, &commit, &position, err) : status;
}

/* Version 0 is the caller's weights. They become the baseline before anything is written
 * to the store. */
static dw_status first_version(dw_publisher *p, dw_error *err)
{
    dw_commit_record commit = {.step = (char *)p->options.first_step,
                               .notes = (char *)p->options.first_notes};
    dw_position position = {.version = DW_NO_VERSION};
    memcpy(position.stream, p->stream->record.stream, sizeof position.stream);
    dw_live_copy live = {0};
    dw_status status = dw_random_id(commit.write_id, err);
    if (status == DW_OK)
        status = dw_live_whole(p, &live, err);
    if (status == DW_OK) {
        dw_pieces_view(&p->pieces, p->live.chosen, live.data);
        if (p->baseline.in_memory)
            dw_pieces_place(&p->pieces, p->live.chosen, p->baseline.devices);
        status = dw_digest_tensors(p->baseline.digests, NULL, p->live.chosen,
                                   p->pieces.cut.n, p->options.n_threads, NULL, err);
    }
    if (status == DW_OK) {
        commit.state = position.state = dw_pieces_state(&p->pieces, p->baseline.digests);
        status = dw_baseline_take_live(p, live.data, &position, err);
        /* a directory is filled by reading the weights a second time */
        if (status == DW_MISMATCH || status == DW_CORRUPT)
            status = dw_fail(err, DW_STALE, dw_store_url(p->store),
                             "the weights changed while version 0 was made: nothing was "
                             "published. Publish again when no process writes them");
    }
    dw_live_copy_release(&live);
    if (status == DW_OK)
        status = dw_baseline_connect(p, err);
    if (status == DW_OK)
        status = first_objects(p, &commit, err);
    if (status == DW_OK)
        status = dw_live_confirm(p, err);
    if (status == DW_OK)
        status = dw_commit_create(p, &commit, &position, err);
    if (status == DW_OK)
        status = dw_target_adopt(p->baseline.follower->weights, &position, err);
    dw_objects_release(&commit.objects);
    return status;
}

/* The stream has no version yet. */
static dw_status begin_stream(dw_publisher *p, dw_error *err)
{
    if (p->sharded)
        return dw_first_version_sharded(p, err);
    if (p->options.first != DW_FIRST_FORK)
        return first_version(p, err);
    dw_status status = dw_fork_first_version(p, err);
    return status == DW_OK ? dw_baseline_catch_up(p, err) : status;
}

/* If the baseline belongs to a stream and there is none here, the store may be absent,
 * for instance not mounted. Then no new stream may be made in its place. */
static dw_status check_absent(const dw_publisher *p, dw_error *err)
{
    const char *dir = p->options.baseline_dir;
    dw_position at = dw_nowhere, next;
    dw_record_kind kind;
    if (!dir || p->sharded || dw_position_read(&at, &next, &kind, dir, NULL) != DW_OK ||
        at.version == DW_NO_VERSION)
        return DW_OK;
    dw_status status = dw_store_stat(p->store, DW_KEY_STREAM, NULL, NULL, err);
    if (status == DW_NOT_FOUND && dw_stream_check_vacant(p->store, err) == DW_CORRUPT)
        return DW_CORRUPT; /* the store is good, and only that record is missing */
    return status == DW_NOT_FOUND
               ? dw_fail(err, DW_UNAVAILABLE, dw_store_url(p->store),
                         "there is no stream here, but the baseline in %.200s is version "
                         "%" PRIu64 " of one: the store is absent, or the stream was "
                         "removed. Mount the store; to begin a new stream, name an "
                         "empty directory with `baseline_dir`",
                         dir, at.version)
               : status;
}

/* Before a stream is created, so that weights without a quantised value leave nothing
 * behind: the next try may be another one. Of several ranks each knows only its part. */
static dw_status check_finite(dw_publisher *p, dw_error *err)
{
    if (!p->live.quant.plan || p->sharded || p->options.first == DW_FIRST_FORK ||
        dw_store_stat(p->store, DW_KEY_STREAM, NULL, NULL, NULL) != DW_NOT_FOUND)
        return DW_OK;
    return dw_quantizer_check(&p->live.quant, err);
}

/* How the stream's record describes the plan. */
static dw_quantized describe(const dw_quant_plan *plan)
{
    dw_quantized out = {0};
    if (plan) {
        snprintf(out.scheme, sizeof out.scheme, "%s", dw_quant_scheme_name(plan->scheme));
        snprintf(out.rounded, sizeof out.rounded, "%s", plan->from_f32 ? "none" : "bf16");
    }
    return out;
}

/* Opens or creates the stream, and finds the caller's tensors in it. */
static dw_status open_stream(dw_publisher *p, const dw_tensor *tensors, size_t n_tensors,
                             dw_error *err)
{
    dw_tensor *shapes = NULL;
    dw_status status = check_absent(p, err);
    if (status == DW_OK)
        status = dw_live_shapes(&shapes, p, tensors, n_tensors, err);
    if (status == DW_OK)
        status = dw_file_set_quantize(&p->files.wanted, p->live.quant.plan, err);
    const dw_stream_spec spec = {.tensors = shapes,
                                 .n_tensors = n_tensors,
                                 .single_writer = p->options.single_writer,
                                 .key = p->options.sign_key,
                                 .quantized = describe(p->live.quant.plan)};
    if (status == DW_OK)
        status = check_source(p, &spec, err);
    if (status == DW_OK)
        status = check_finite(p, err);
    if (status == DW_OK && p->options.rank != 0)
        status = dw_stream_check_spec(p->stream, &spec, err);
    else if (status == DW_OK)
        status = dw_stream_create(&p->stream, p->store, &spec, &p->options.trust, err);
    if (status == DW_OK) /* the keys belong to the caller of open */
        p->options.trust = (dw_trust){
            (const uint8_t(*)[DW_PUBLIC_KEY_BYTES])p->stream->trust, p->stream->n_trust,
            p->options.trust.stream ? p->stream->record.stream : NULL};
    if (status == DW_OK)
        status = cut_pieces(p, tensors, n_tensors, err);
    dw_free(shapes);
    return status;
}

/* The signature that the next version should have: that of the newest commit or, if there
 * is no commit, of the stream's record. */
static dw_status read_signer(dw_publisher *p, dw_record_seal *out, dw_error *err)
{
    dw_commit_record commit;
    *out = p->stream->record.seal;
    dw_status status = dw_stream_read_head(p->stream, DW_NO_VERSION, &commit, err);
    if (status != DW_OK)
        return status == DW_NOT_FOUND ? DW_OK : status;
    *out = commit.seal;
    dw_commit_record_release(&commit);
    return DW_OK;
}

dw_status dw_publisher_check_key(dw_publisher *p, dw_error *err)
{
    dw_record_seal signer;
    if (p->options.new_key)
        return DW_OK;
    dw_status status = read_signer(p, &signer, err);
    if (status != DW_OK || !signer.is_signed)
        return status;
    uint8_t key[DW_PUBLIC_KEY_BYTES] = {0};
    if (p->options.sign_key)
        dw_sign_key_public(p->options.sign_key, key);
    if (p->options.sign_key && memcmp(key, signer.key, sizeof key) == 0)
        return DW_OK;
    char wanted[DW_PUBLIC_KEY_TEXT], found[DW_PUBLIC_KEY_TEXT];
    dw_public_key_format(wanted, signer.key);
    dw_public_key_format(found, key);
    return dw_fail(
        err, DW_UNTRUSTED, dw_store_url(p->store),
        "the stream is signed by %s, but this version would be %s%s. Sign with "
        "that key (`sign_key`), or allow a new key (`new_key`)",
        wanted, p->options.sign_key ? "signed by " : "unsigned",
        p->options.sign_key ? found : "");
}

/* If the stream is damaged, no edge is known, and an anchor is due. */
static dw_status open_hint(dw_publisher *p, dw_error *err)
{
    dw_status status = dw_hint_load(&p->hint, p->stream, p->commits.head.version, err);
    if (dw_stream_stops(status))
        return status;
    (void)dw_hint_put(&p->hint, p->stream, NULL); /* the next commit puts it again */
    return DW_OK;
}

dw_status dw_publisher_begin(dw_publisher *p, const dw_tensor *tensors, size_t n_tensors,
                             dw_error *err)
{
    dw_status status = dw_live_quantize(p, &tensors, &n_tensors, err);
    if (status == DW_OK)
        status = dw_publisher_check_store(p, err);
    if (status == DW_OK)
        status = dw_ranks_open(p, err);
    if (status == DW_OK && p->options.rank != 0) { /* then the others hear what fails */
        status = dw_stream_await(p, err);
        if (status == DW_OK)
            status = dw_epoch_join(p, err);
    }
    if (status == DW_OK)
        status = open_stream(p, tensors, n_tensors, err);
    /* do everything that can fail before the previous writer is fenced */
    if (status == DW_OK && p->options.rank == 0)
        status = dw_publisher_check_key(p, err);
    if (status == DW_OK)
        status = dw_baseline_allocate(p, err);
    if (status == DW_OK && p->options.rank == 0)
        status = dw_stream_check_hint(p->stream, err);
    if (status == DW_OK && p->options.rank == 0)
        status = dw_commit_claim(p, err);
    if (status == DW_OK)
        status = dw_ranks_meet(p, err);
    if (status == DW_OK) {
        if (p->options.rank != 0) /* the head is found once all are in one epoch */
            status = dw_commit_claim(p, err);
        status = dw_live_meet(p, status, err);
    }
    if (status != DW_OK)
        return status;
    p->created = p->commits.head.version == DW_NO_VERSION;
    status = p->created ? begin_stream(p, err) : dw_baseline_catch_up(p, err);
    if (status == DW_OK && p->options.rank == 0)
        status = open_hint(p, err);
    if (status == DW_OK)
        status = dw_sweep_begin(p, err);
    return status == DW_OK ? dw_captures_open(p, err) : status;
}
