#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "cache_dir.h"
#include "checkpoint_read.h"
#include "cmd_publish.h"
#include "path.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_info.h"
#include "stream_open.h"
#include "inner.h"

#define WAIT_MS 100

/* The state of the stream before the publish. */
typedef struct prior {
    bool has_head;
    uint64_t head;
    dw_digest state;
    bool same_files; /* it has the files that are to be published */
    bool has_f32;
} prior;

static dw_status open_weights(cli_weights *out, const char *path, dw_error *err)
{
    *out = (cli_weights){0};
    dw_status status = cli_weights_check_whole(path, err);
    return status == DW_OK ? cli_weights_load_noted(out, path, err) : status;
}

static void count_weights(cli_published *out, const cli_weights *weights)
{
    out->n_model_bytes = weights->n_bytes;
    for (size_t i = 0; i < weights->n_tensors; i++) {
        const dw_tensor *t = &weights->tensors[i];
        uint64_t n_elems = 0;
        if (dw_shape_size(t->dtype, t->n_dims, t->dims, &n_elems, NULL))
            out->n_model_elems += n_elems;
    }
}

static bool is_f32(const dw_tensor *t)
{
    return t->dtype == DW_F32;
}

/* A checkpoint whose floats are all F32 has a trainer's own copy of the weights, which
 * engines serve as BF16. Where types are mixed, somebody chose each of them. */
static bool has_only_f32(const cli_weights *weights)
{
    bool found = false;
    for (size_t i = 0; i < weights->n_tensors; i++) {
        found |= is_f32(&weights->tensors[i]);
        /* the types before F16 are integers */
        if (weights->tensors[i].dtype >= DW_F16 && !is_f32(&weights->tensors[i]))
            return false;
    }
    return found;
}

/* Sets *OUT to the tensors that are rounded to BF16, as the stream has them or as a new
 * one begins; NULL: none. Free it with dw_free. */
static dw_status choose_rounded(bool **out, const cli_publish *p, const prior *before,
                                const cli_weights *weights, dw_error *err)
{
    *out = NULL;
    if (p->options.quantize || p->keep_f32 || before->has_f32 ||
        (!before->has_head && p->options.first != DW_FIRST_ANCHOR) ||
        !has_only_f32(weights))
        return DW_OK;
    *out = dw_alloc_array(weights->n_tensors, sizeof **out);
    if (!*out)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < weights->n_tensors; i++)
        (*out)[i] = is_f32(&weights->tensors[i]);
    return DW_OK;
}

/* Whether the stream's model is not the checkpoint as it is. */
static bool is_derived(const dw_publish_options *o)
{
    return o->quantize || o->as_bf16;
}

/* If there is no version, opening the publisher makes one. */
static dw_status look_before(prior *out, const cli_publish *p, dw_store *store,
                             dw_error *err)
{
    dw_stream *stream = NULL;
    dw_trust trust = cli_keys_trust(&p->keys);
    *out = (prior){0};
    dw_status status = dw_stream_open(&stream, store, &trust, err);
    if (status == DW_OK)
        status = dw_stream_head(stream, &out->head, err);
    dw_version_info info;
    if (status == DW_OK)
        status = dw_stream_version(stream, out->head, &info, err);
    if (status == DW_OK) {
        size_t n_tensors = 0;
        const dw_tensor *tensors = dw_stream_tensors(stream, &n_tensors);
        for (size_t i = 0; i < n_tensors; i++)
            out->has_f32 |= is_f32(&tensors[i]);
        out->has_head = true;
        out->state = info.state;
        status = cli_files_same(&out->same_files, &p->options, stream, out->head, err);
    }
    dw_stream_close(stream);
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static dw_status check_head(const cli_publish *p, const prior *before, dw_error *err)
{
    if (p->known_head == DW_NO_VERSION)
        return DW_OK;
    if (!before->has_head)
        return dw_fail(err, DW_UNAVAILABLE, p->url,
                       "the store is absent: version %" PRIu64 " was here, and now "
                       "there is no stream. Mount the store, or move it back",
                       p->known_head);
    if (before->head < p->known_head)
        return dw_fail(err, DW_UNTRUSTED, p->url,
                       "version %" PRIu64 " was the newest, and now it is version "
                       "%" PRIu64 ": the store was rolled back, or is an older "
                       "copy. Bring the newer one back; to go on from what is "
                       "there, start again with an empty --baseline",
                       p->known_head, before->head);
    if (p->expect_head == DW_NO_VERSION || before->head == p->expect_head)
        return DW_OK;
    return dw_fail(err, DW_CONFLICT, p->url,
                   "version %" PRIu64 " was the newest, and now there is version "
                   "%" PRIu64 ": somebody else publishes here; stop one of the two",
                   p->expect_head, before->head);
}

/* Finds the version that has the weights of this digest already, if there is one. */
static void skip_state(cli_published *out, const cli_publish *p, const prior *before,
                       dw_digest state, bool same_files)
{
    const bool is_past = p->past != DW_NO_VERSION && state == p->past_state;
    out->skipped = state == before->state ? same_files : is_past;
    out->same = state == before->state ? before->head : p->past;
    out->report.version = before->head;
}

static dw_status skip_same(cli_published *out, const cli_publish *p, const prior *before,
                           const cli_weights *weights, const cli_session *s,
                           dw_error *err)
{
    dw_digest state = 0;
    if (!before->has_head || is_derived(&p->options)) /* publish asks the library */
        return DW_OK;
    dw_status status = cli_weights_state(&state, weights, s, err);
    if (status == DW_OK)
        skip_state(out, p, before, state, before->same_files);
    return status;
}

/* A directory in the user's cache for this stream. Free it with dw_free. NULL after an
 * error. */
static char *default_baseline(const cli_publish *p, const dw_store *store, dw_error *err)
{
    /* another server makes it another stream */
    const char *place[] = {dw_store_url(store), p->store.endpoint};
    return cli_cache_dir("baselines", place, 2, "--baseline", err);
}

char *cli_publish_cache_dir(const cli_publish *p, dw_error *err)
{
    dw_store *store = NULL;
    char *dir = cli_store_open_at(&store, p->url, &p->store, err) == DW_OK
                    ? default_baseline(p, store, err)
                    : NULL;
    dw_store_close(store);
    return dir;
}

/* Waits in short pieces, so that a signal ends it and the bar moves. After a signal
 * dw_publisher_close finishes or cancels the version in progress. */
static dw_status wait_for(dw_publisher *publisher, uint64_t ticket, dw_store *store,
                          dw_publish_report *report, const cli_session *s, dw_error *err)
{
    cli_progress bar = cli_progress_start(s, "comparing");
    dw_store_counts start, now;
    dw_publish_progress at;
    dw_store_get_counts(store, &start);
    bool done = false;
    dw_status status = DW_OK;
    while (!done) {
        status = dw_publisher_wait(publisher, ticket, WAIT_MS, &done, report, err);
        if (!done && status != DW_UNAVAILABLE && status != DW_OK)
            break;
        dw_store_get_counts(store, &now);
        dw_publisher_progress(publisher, &at);
        if (at.n_encoded > 0) {
            bar.label = "uploading";
            at.n_compared = now.bytes_written - start.bytes_written;
            at.n_weights = at.n_encoded;
        }
        if (!done && cli_progress_report(&bar, at.n_compared, at.n_weights) != 0) {
            status = cli_check_signal(err);
            break;
        }
    }
    cli_progress_end(&bar);
    return status;
}

/* Counts the stream's model, if that is not the checkpoint's. */
static void count_stream(cli_published *out, const cli_publish *p, dw_store *store)
{
    dw_stream *stream = NULL;
    dw_error unread;
    dw_trust trust = cli_keys_trust(&p->keys);
    if (dw_stream_open(&stream, store, &trust, &unread) == DW_OK) {
        const cli_model_size size = cli_model_count(stream);
        out->n_model_bytes = size.n_bytes;
        out->n_model_elems = size.n_elems;
    }
    dw_stream_close(stream);
}

/* The same for a derived model. The config.json of a quantised one is not that of the
 * checkpoint, so files do not count. */
static dw_status skip_derived(cli_published *out, const cli_publish *p,
                              const prior *before, dw_publisher *publisher, dw_error *err)
{
    dw_digest state = 0;
    dw_status status = dw_publisher_state(publisher, &state, err);
    if (status == DW_OK)
        skip_state(out, p, before, state, p->options.quantize || before->same_files);
    return status;
}

/* Opening the stream committed version 0: takes the figures from its record. */
static dw_status report_first(cli_published *out, const cli_publish *p, dw_store *store,
                              double t_start, dw_error *err)
{
    dw_stream *stream = NULL;
    dw_version_info info = {0};
    dw_trust trust = cli_keys_trust(&p->keys);
    dw_status status = dw_stream_open(&stream, store, &trust, err);
    if (status == DW_OK)
        status = dw_stream_version(stream, 0, &info, err);
    out->report = (dw_publish_report){
        .version = 0,
        .n_changed = info.n_changed,
        .n_bytes = info.n_bytes,
        .n_objects = info.n_objects,
        .state = info.state,
        .n_file_bytes = info.n_file_bytes,
        .times.us[DW_COMMITTED] = (uint64_t)(1e6 * (cli_now() - t_start)),
    };
    dw_stream_close(stream);
    return status;
}

/* PUBLISHER has claimed the stream. Another process may have published until then, after
 * BEFORE was read: then everything is decided again. */
static dw_status look_again(prior *before, const cli_publish *p, const cli_session *s,
                            dw_store *store, const cli_weights *weights,
                            dw_publisher *publisher, cli_published *out, dw_error *err)
{
    if (dw_publisher_created(publisher) ||
        (before->has_head && before->head == dw_publisher_version(publisher)))
        return DW_OK;
    dw_status status = look_before(before, p, store, err);
    if (status == DW_OK)
        status = check_head(p, before, err);
    if (status == DW_OK && p->skip_same)
        status = skip_same(out, p, before, weights, s, err);
    return status;
}

static dw_status publish(const cli_publish *p, const cli_session *s, dw_store *store,
                         const cli_weights *weights, const dw_publish_options *options,
                         prior *before, cli_published *out, dw_error *err)
{
    dw_publisher *publisher = NULL;
    dw_publish_options o = *options;
    double t_start = cli_now();
    cli_progress bar =
        cli_progress_start(s, before->has_head ? "preparing" : "uploading");
    o.progress = cli_progress_hook(&bar);
    cli_writer_notices(&o, s, p->url);
    o.confirm = cli_weights_confirm;
    o.confirm_context = (void *)weights;
    dw_status status = dw_publisher_open(&publisher, store, weights->tensors,
                                         weights->n_tensors, &o, err);
    cli_progress_end(&bar);
    if (status != DW_OK)
        return status;
    dw_error unreported = {.code = DW_OK};
    if (is_derived(options))
        count_stream(out, p, store);
    const bool is_new = dw_publisher_created(publisher);
    status = look_again(before, p, s, store, weights, publisher, out, err);
    if (status == DW_OK && p->skip_same && is_derived(options) && !is_new)
        status = skip_derived(out, p, before, publisher, err);
    if (status != DW_OK || out->skipped) {
        dw_publisher_close(publisher);
        return status;
    }
    if (is_new && o.first != DW_FIRST_FORK) {
        out->created = true;
        /* version 0 is committed even if its record cannot be read now */
        if (report_first(out, p, store, t_start, err) != DW_OK)
            unreported = *err;
    } else {
        const dw_publish_note note = {
            .struct_bytes = sizeof note, .step = p->step, .notes = p->notes};
        uint64_t ticket = 0;
        status = dw_publisher_publish(publisher, &ticket, &note, err);
        if (status == DW_OK)
            status = wait_for(publisher, ticket, store, &out->report, s, err);
        out->created = status == DW_OK && is_new;
    }
    if (status == DW_OK && dw_publisher_drain(publisher, &out->aftermath) == DW_OK &&
        dw_publisher_check_removal(publisher, &out->aftermath) == DW_OK)
        out->aftermath = unreported;
    dw_publisher_close(publisher);
    return status;
}

/* Does the rest, with what is known of the stream. */
static dw_status publish_after(prior *before, const cli_publish *p, const cli_session *s,
                               dw_store *store, const cli_weights *weights,
                               const char *baseline, cli_published *out, dw_error *err)
{
    dw_publish_options options = p->options;
    dw_status status = check_head(p, before, err);
    if (status == DW_OK && p->skip_same)
        status = skip_same(out, p, before, weights, s, err);
    if (status != DW_OK || out->skipped)
        return status;
    status = cli_publish_check_room(p, store, !before->has_head, weights, baseline, err);
    if (status != DW_OK)
        return status;
    options.baseline_dir = baseline;
    options.first_step = p->step;
    options.first_notes = p->notes;
    options.sign_key = p->keys.sign_key;
    options.trust = cli_keys_trust(&p->keys);
    if (p->fork_url)
        status = cli_store_open_at(&options.fork_store, p->fork_url, &p->store, err);
    if (status == DW_OK)
        status = publish(p, s, store, weights, &options, before, out, err);
    dw_store_close(options.fork_store);
    return status;
}

/* Does everything that needs the store, with the weights open. */
static dw_status publish_weights(const cli_publish *p, const cli_session *s,
                                 dw_store *store, const cli_weights *weights,
                                 const char *baseline, cli_published *out, dw_error *err)
{
    prior before;
    bool *rounded = NULL;
    dw_status status = look_before(&before, p, store, err);
    if (status == DW_OK)
        status = choose_rounded(&rounded, p, &before, weights, err);
    if (status == DW_OK) {
        cli_publish with = *p;
        with.options.as_bf16 = rounded;
        status = publish_after(&before, &with, s, store, weights, baseline, out, err);
    }
    if (status == DW_OK && rounded && out->created && !s->quiet && !s->json)
        cli_print_message("", "the weights are F32, and published as BF16, which engines "
                              "serve; --f32 publishes them as they are");
    dw_free(rounded);
    return status;
}

/* The user did not ask for the copy in the cache, so the first publish reports it. */
static void announce_copy(const cli_session *s, const cli_published *done,
                          const char *dir)
{
    char size[CLI_NUMBER_SIZE];
    if (s->quiet || s->json)
        return;
    cli_print_message(
        "",
        "keeps a copy of the model, %s, in %s; --baseline changes that. `deltawire "
        "cache` lists it, `deltawire cache --prune` removes old ones",
        cli_format_size(size, done->n_model_bytes), dir);
}

static dw_status take_any(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)entry, (void)err;
    *(bool *)context = true;
    return DW_CANCELLED; /* stop the list at the first one */
}

/* Whether the stream is gone with all its commits. If only stream.json is missing, the
 * library refuses to make a new stream. */
static bool is_removed(dw_store *store)
{
    dw_error err;
    bool has_commits = false;
    if (dw_store_stat(store, "stream.json", NULL, NULL, &err) != DW_NOT_FOUND)
        return false;
    dw_status status =
        dw_store_list(store, "commits/", NULL, take_any, &has_commits, &err);
    return status == DW_OK && !has_commits;
}

/* Finds the directory of the baseline: the user's, or one in the cache. If the stream of
 * a cached copy was removed, sets the copy aside and begins a new one. */
static dw_status prepare_cache(const cli_publish *p, const cli_session *s,
                               dw_store *store, const char *dir, bool *is_new,
                               dw_error *err)
{
    cli_cache_state state;
    dw_status status = cli_cache_use(dir, dw_store_url(store), &state, err);
    if (status == DW_OK && !state.is_new && (state.same_parent || p->begin_new) &&
        p->expect_head == DW_NO_VERSION) {
        if (is_removed(store)) {
            status = cli_cache_set_aside(dir, err);
            if (status == DW_OK && !s->quiet && !s->json)
                cli_print_message("",
                                  "the stream that was here is gone: this begins a new "
                                  "one. `deltawire cache` lists the copy of the old one");
        }
        if (status == DW_OK)
            status = cli_cache_use(dir, dw_store_url(store), &state, err);
    }
    *is_new = state.is_new;
    return status;
}

/* With --new: there must be no stream. The user's own baseline of an older one is set
 * aside; prepare_cache does that for one in the cache. */
static dw_status begin_new(const cli_publish *p, dw_store *store, dw_error *err)
{
    dw_status status = dw_store_stat(store, "stream.json", NULL, NULL, err);
    if (status == DW_OK)
        return dw_fail(err, DW_CONFLICT, p->url,
                       "there is a stream already. Without --new the checkpoint becomes "
                       "its next version");
    if (status != DW_NOT_FOUND)
        return status;
    if (!p->baseline || rmdir(p->baseline) == 0 || access(p->baseline, F_OK) != 0)
        return DW_OK;
    return cli_cache_set_aside(p->baseline, err);
}

static dw_status publish_at(const cli_publish *p, const cli_session *s, dw_store *store,
                            const cli_weights *weights, cli_published *out, dw_error *err)
{
    char *own = NULL;
    bool is_new = false;
    if (!p->baseline && !(own = default_baseline(p, store, err)))
        return err->code;
    const char *baseline = p->baseline ? p->baseline : own;
    dw_status status = p->begin_new ? begin_new(p, store, err) : DW_OK;
    if (status == DW_OK)
        status = own ? prepare_cache(p, s, store, own, &is_new, err)
                     : cli_path_make_directories(baseline, err);
    if (status == DW_OK)
        status = publish_weights(p, s, store, weights, baseline, out, err);
    if (status == DW_OK && is_new)
        announce_copy(s, out, own);
    if (status == DW_OK && own) /* the version is published even if the note fails */
        (void)cli_cache_note(own, dw_store_url(store), &(dw_error){0});
    dw_free(own);
    return status;
}

dw_status cli_publish_once(const cli_publish *given, const cli_session *s,
                           const char *checkpoint, cli_published *out, dw_error *err)
{
    cli_weights weights;
    dw_companions *files = NULL;
    dw_store *store = NULL;
    cli_publish with_files = *given;
    const cli_publish *p = &with_files;
    *out = (cli_published){0};
    dw_status status = open_weights(&weights, checkpoint, err);
    if (status != DW_OK)
        return status;
    out->opened = true;
    count_weights(out, &weights);
    if (!p->leave_files)
        status = cli_files_load(&files, &with_files.options, &p->with, checkpoint, err);
    if (files && !p->skip_same) /* a watch would repeat it for each checkpoint */
        cli_with_warn(&p->with, &with_files.options, s);
    out->files_failed = status != DW_OK;
    out->changed = status == DW_STALE;
    out->n_files = with_files.options.n_files;
    if (status != DW_OK) {
        cli_weights_close(&weights);
        return status;
    }
    status = cli_store_open_at(&store, p->url, &p->store, err);
    if (status == DW_OK)
        status = publish_at(p, s, store, &weights, out, err);
    /* the cause may be that somebody changed the files */
    if (status == DW_STALE || status == DW_CORRUPT || status == DW_MISMATCH ||
        status == DW_IO) {
        out->changed = cli_weights_unchanged(&weights, err) != DW_OK;
        status = err->code;
    }
    dw_store_close(store);
    dw_companions_close(files);
    cli_weights_close(&weights);
    return status;
}
