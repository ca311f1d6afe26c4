/* Opening a follower: finishing an interrupted run, and finding out which version the
 * weights are. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/options.h"
#include "deltawire/delta.h"
#include "store/store.h"
#include "follow/base.h"
#include "follow/follower.h"
#include "tensor/tensor_list.h"
#include "weights/own_dir.h"

/* The most versions that are compared with weights of an unknown version. */
#define MAX_SEARCH 1024

dw_status dw_follower_pending(const char *into, bool *pending, dw_error *err)
{
    return dw_target_interrupted(into, pending, err);
}

/* Compares weights that no record names the version of with VERSION. */
static dw_status recognise(dw_follower *f, uint64_t version, bool *found, dw_error *err)
{
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(f->stream, version, &c, err);
    if (status != DW_OK)
        return status == DW_NOT_FOUND ? DW_OK : status;
    const bool is_like = c.state == dw_target_state(f->weights);
    if (is_like) {
        size_t n;
        const dw_tensor *tensors = dw_target_tensors(f->weights, &n);
        const char *dir = dw_target_dir(f->weights);
        status = dw_base_hash_check(c.base_sha256, tensors, n, f->options.n_threads,
                                    dir ? dir : "memory", err);
    }
    if (is_like && status == DW_OK) {
        const dw_position p = dw_position_of(&c);
        status = dw_target_adopt(f->weights, &p, err);
        if (status == DW_OK)
            status = dw_follower_note_files(f, &c, err);
        *found = true;
    }
    dw_commit_record_release(&c);
    return status;
}

/* Looks for a version that has the state of the weights. HEAD and the versions below it
 * are asked only if the record that named the version is damaged. */
static dw_status find_version(dw_follower *f, uint64_t head, bool *found, dw_error *fault,
                              dw_error *err)
{
    /* damaged weights are hardly another version than their record names */
    dw_position was;
    const bool search = !dw_target_is_hurt(f->weights, &was) &&
                        (dw_target_record(f->weights) != DW_RECORD_NONE ||
                         dw_target_may_replace(f->weights));
    const uint64_t likely[] = {f->options.at, 0};
    const uint64_t n_search = !search ? 1 : head < MAX_SEARCH ? head + 1 : MAX_SEARCH;
    dw_status status = DW_OK;
    for (uint64_t i = 0; status == DW_OK && !*found && i < 2 + n_search; i++) {
        const uint64_t version = i < 2 ? likely[i] : head - (i - 2);
        dw_error error = {0};
        if (version != DW_NO_VERSION)
            status = recognise(f, version, found, &error);
        if (!*found && dw_follower_may_detour(status)) {
            *fault = error; /* a bad version is not the one that is here */
            status = DW_OK;
        } else if (status != DW_OK && err) {
            *err = error;
        }
    }
    return status;
}

/* The weights of a directory are none of the versions that were looked at. */
static dw_status refuse_unknown(dw_follower *f, uint64_t head, const dw_error *fault,
                                dw_error *err)
{
    const char *dir = dw_target_dir(f->weights);
    if (dw_target_may_replace(f->weights))
        return DW_OK; /* the next stage brings it to a version */
    if (fault->code != DW_OK) {
        if (err)
            *err = *fault;
        return fault->code;
    }
    return dw_fail(err, DW_CONFLICT, dir,
                   "it holds weights that are neither version 0 nor version %" PRIu64
                   " of the stream, and no record of which they are. Name an empty "
                   "directory, or remove them",
                   head);
}

dw_status dw_follower_recognise(dw_follower *f, dw_error *err)
{
    uint64_t head;
    dw_status status = dw_stream_find_head(f->stream, DW_NO_VERSION, &head, err);
    if (status != DW_OK)
        return status == DW_NOT_FOUND ? DW_OK : status;
    bool found = false;
    dw_error fault = {0};
    status = find_version(f, head, &found, &fault, err);
    if (status != DW_OK || found)
        return status;
    if (dw_target_dir(f->weights))
        return refuse_unknown(f, head, &fault, err);
    dw_target_forget(f->weights); /* memory that holds no version */
    return DW_OK;
}

dw_status dw_follower_check_history(dw_follower *f, dw_error *err)
{
    const dw_position *at = dw_target_at(f->weights);
    const dw_position *highest = dw_follower_highest(f);
    const char *dir = dw_target_dir(f->weights);
    char holder[DW_ERROR_WHERE_SIZE];
    dw_commit_record c;
    snprintf(holder, sizeof holder, "%s%s", dir ? "the weights in " : "",
             dir ? dir : "this process");
    dw_status status = DW_OK;
    if (dw_follower_version(f) != DW_NO_VERSION) {
        status = dw_position_check(at, f->stream, holder, &c, err);
        if (status == DW_OK) {
            f->epoch = c.epoch;
            status = dw_follower_note_files(f, &c, err);
            dw_commit_record_release(&c);
        }
    }
    if (status == DW_OK && highest != at && highest->version != DW_NO_VERSION) {
        status = dw_position_check(highest, f->stream, holder, &c, err);
        if (status == DW_OK)
            dw_commit_record_release(&c);
    }
    f->rewritten = status == DW_UNTRUSTED;
    if (status == DW_OK && highest->version != DW_NO_VERSION &&
        (f->stream->head == DW_NO_VERSION || f->stream->head < highest->version))
        f->stream->head = highest->version;
    return status;
}

/* AT, the version that the weights are or were, is of another stream. The caller must
 * name the one in the store, even if it is a fork that the same key signed. Otherwise
 * anybody who can write to the store could change what a directory follows. */
static dw_status check_other_stream(dw_follower *f, const dw_position *at, dw_error *err)
{
    const char *id = f->stream->record.stream;
    if (f->options.trust.stream || strcmp(at->follows, id) == 0)
        return DW_OK;
    dw_commit_record c;
    dw_status status = dw_stream_read_commit(f->stream, 0, &c, err);
    if (dw_stream_stops(status))
        return status;
    bool is_fork = status == DW_OK && c.content == DW_CONTENT_FORK &&
                   strcmp(c.fork.stream, at->stream) == 0;
    if (status == DW_OK)
        dw_commit_record_release(&c);
    return dw_fail(err, is_fork ? DW_CONFLICT : DW_MISMATCH, dw_target_dir(f->weights),
                   "the weights are version %" PRIu64 " of stream %s, but %s is now "
                   "stream %s%s. Name another directory, or, if you want the weights "
                   "here to become that stream's, name its id with `stream`: %s",
                   at->version, at->stream, dw_store_url(f->stream->store), id,
                   is_fork ? ", a fork of it" : "", id);
}

static dw_status check_start(dw_follower *f, dw_error *err)
{
    return dw_follower_version(f) != DW_NO_VERSION
               ? dw_follower_check_history(f, err)
               : check_other_stream(f, dw_target_at(f->weights), err);
}

static dw_status find_start(dw_follower *f, dw_error *err)
{
    dw_position was;
    dw_status status = dw_follower_load_highest(f, err);
    if (status == DW_OK && dw_target_is_hurt(f->weights, &was))
        status = dw_follower_note_damage(f, &was, err);
    if (status != DW_OK)
        return status;
    if (dw_target_at(f->weights)->version == DW_NO_VERSION) {
        status = dw_follower_check_history(f, err); /* of the highest that they were */
        return status == DW_OK && dw_target_is_unknown(f->weights)
                   ? dw_follower_recognise(f, err)
                   : status;
    }
    return check_start(f, err);
}

static dw_status copy_strings(dw_follower *f, const dw_follow_options *options,
                              dw_error *err)
{
    f->options = *options;
    f->options.into = options->into ? dw_copy_string(options->into) : NULL;
    f->options.base = options->base ? dw_copy_string(options->base) : NULL;
    f->options.id = options->id ? dw_copy_string(options->id) : NULL;
    f->options.spool_dir = options->spool_dir ? dw_copy_string(options->spool_dir) : NULL;
    bool good = !options->into == !f->options.into &&
                !options->base == !f->options.base && !options->id == !f->options.id &&
                !options->spool_dir == !f->options.spool_dir;
    if (good && !f->options.spool_dir && f->options.into) {
        f->options.spool_dir = dw_join_path(f->options.into, DW_OWN_DIR);
        good = f->options.spool_dir != NULL;
    }
    return good ? DW_OK : dw_fail_memory(err, NULL);
}

static dw_status fail_count(const dw_follower *f, dw_error *err)
{
    const dw_stream_record *s = &f->stream->record;
    const char *url = dw_store_url(f->stream->store);
    const size_t n = f->options.n_tensors;
    char difference[DW_DIFFERENCE_TEXT];
    if (s->quantized.scheme[0])
        return dw_fail(err, DW_MISMATCH, url,
                       "the stream is quantised as %s: its model has %zu tensors, the "
                       "memory %zu. Follow into memory of the quantised model, or follow "
                       "a stream that is not quantised",
                       s->quantized.scheme, s->n_tensors, n);
    return dw_fail(err, DW_MISMATCH, url,
                   "the stream's model has %zu tensors, the memory %zu%s", s->n_tensors,
                   n,
                   dw_describe_difference(difference, s->tensors, s->n_tensors,
                                          f->options.tensors, n));
}

/* Opens the target, and finds out which version it is. */
static dw_status open_weights(dw_follower *f, dw_error *err)
{
    const dw_follow_options *o = &f->options;
    const dw_stream_record *s = &f->stream->record;
    dw_status status;
    if (o->into)
        status = dw_target_open_dir(&f->weights, s->tensors, s->n_tensors,
                                    f->is_own ? NULL : s->stream, o, f->is_own, err);
    else if (o->n_tensors != s->n_tensors)
        status = fail_count(f, err);
    else if (o->widen)
        status = dw_target_open_widened(&f->weights, s->tensors, s->n_tensors, o, err);
    else
        status = dw_target_open_memory(&f->weights, s->tensors, s->n_tensors, o->tensors,
                                       o->tensors_empty, o->n_threads, err);
    if (status == DW_OK) {
        f->tally.n_stray += dw_target_had_stray(f->weights);
        status = find_start(f, err);
    }
    if (status == DW_OK)
        status = dw_target_accept(f->weights, err);
    return status == DW_OK ? dw_target_forget_next(f->weights, err) : status;
}

/* ---- files that were replaced ---- */

void dw_follower_lose(dw_follower *f)
{
    f->lost = f->options.into != NULL; /* memory stays where it is */
    dw_fetch_ahead_end(&f->ahead);
    dw_target_stop_readers(f->weights);
}

dw_status dw_follower_check_files(dw_follower *f, dw_error *err)
{
    dw_error fault = {0};
    if (f->lost || dw_target_check_files(f->weights, &fault) == DW_OK)
        return DW_OK;
    dw_follower_lose(f);
    const size_t n = strlen(fault.text);
    snprintf(fault.text + n, sizeof fault.text - n,
             ". The next call opens what is there now");
    if (err)
        *err = fault;
    return fault.code;
}

dw_status dw_follower_start_over(dw_follower *f, dw_error *err)
{
    const dw_stream_record *s = &f->stream->record;
    dw_target *none;
    if (f->depth > 0) /* the weights are those of the follower that this one works for */
        return dw_fail(err, DW_CONFLICT, f->options.into, "its files were replaced");
    dw_status status =
        dw_target_open_none(&none, s->tensors, s->n_tensors, f->options.into, err);
    if (status != DW_OK)
        return status;
    const dw_position highest = *dw_follower_highest(f);
    f->n_private += dw_target_n_private(f->weights);
    dw_follower_forget_files(f);
    dw_target_close(f->weights); /* this releases the lock */
    f->weights = NULL;
    f->epoch = f->next_epoch = 0;
    f->lost = false;
    status = open_weights(f, err);
    if (status == DW_OK) {
        dw_target_close(none);
    } else {
        dw_target_close(f->weights);
        f->weights = none;
    }
    /* the highest version stays known, even if its record is gone with the directory */
    const uint64_t known = dw_follower_highest(f)->version;
    if (highest.version != DW_NO_VERSION &&
        (known == DW_NO_VERSION || known < highest.version))
        f->highest = highest;
    f->lost = status != DW_OK;
    if (dw_follower_version(f) != DW_NO_VERSION)
        dw_target_arrive(f->weights);
    return status;
}

/* ---- opening and closing ---- */

/* Finishes a killed run even if the stream cannot be reached: readers of the directory
 * wait for that, and it needs no store. Faults are found again when the stream is back.
 */
static void recover_without_stream(const dw_follow_options *options)
{
    bool pending = false;
    if (options->into && dw_follower_pending(options->into, &pending, NULL) == DW_OK &&
        pending)
        dw_target_recover(options, NULL);
}

dw_status dw_follower_open_as(dw_follower **out, dw_store *store,
                              const dw_follow_options *options, bool is_own,
                              dw_error *err)
{
    *out = NULL;
    if (!options->into == !options->tensors)
        return dw_fail(err, DW_INVALID, NULL,
                       "a follower needs either a directory or tensors in memory");
    if (options->widen && !options->tensors)
        return dw_fail(err, DW_INVALID, NULL,
                       "only tensors in memory can be widened, not a directory");
    if (options->id && !dw_follower_id_valid(options->id))
        return dw_fail(err, DW_INVALID, NULL, "'%s' cannot be the name of a follower",
                       options->id);
    dw_follower *f = dw_alloc_zeroed(1, sizeof *f);
    if (!f)
        return dw_fail_memory(err, NULL);
    f->is_own = is_own;
    dw_status status = copy_strings(f, options, err);
    if (status == DW_OK)
        status = dw_stream_open(&f->stream, store, &options->trust, err);
    if (status != DW_OK && !is_own)
        recover_without_stream(options);
    f->seen_ms = dw_clock_ms();
    if (status == DW_OK && f->options.into)
        status = dw_target_make_dir(f->options.into, err);
    if (status == DW_OK)
        status = open_weights(f, err);
    if (status == DW_OK)
        f->tally.from = dw_follower_version(f);
    if (status == DW_OK)
        *out = f;
    else
        dw_follower_close(f);
    return status;
}

dw_status dw_follower_open(dw_follower **out, dw_store *store,
                           const dw_follow_options *options, dw_error *err)
{
    *out = NULL;
    dw_follow_options taken;
    dw_status status = DW_OPTIONS_TAKE(dw_follow_options, &taken, options, err);
    return status == DW_OK ? dw_follower_open_as(out, store, &taken, false, err) : status;
}

void dw_follower_close(dw_follower *f)
{
    if (!f)
        return;
    dw_fetch_ahead_end(&f->ahead);
    dw_graph_release(&f->avoid);
    dw_free(f->route);
    dw_follower_forget_files(f);
    dw_target_close(f->weights);
    dw_stream_close(f->stream);
    dw_free((char *)f->options.into);
    dw_free((char *)f->options.base);
    dw_free((char *)f->options.id);
    dw_free((char *)f->options.spool_dir);
    dw_free(f);
}
