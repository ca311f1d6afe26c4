#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "cache_dir.h"
#include "cmd_publish.h"
#include "cmd_compact.h"
#include "json_out.h"
#include "outage.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_open.h"
#include "watch_dir.h"
#include "watch_past.h"

#define T_LOOK 1.0 /* seconds between two scans */

typedef struct outcome {
    dw_status status;
    cli_published done;
    dw_error err;
} outcome;

/* ---- the outcome ---- */

static bool is_gone(const char *path)
{
    return access(path, F_OK) != 0;
}

/* Skipping one harms nothing: the next delta covers it. */
static void report_passed_over(const cli_session *s, const char *path,
                               const dw_error *err)
{
    dw_error reported = *err;
    if (is_gone(path))
        dw_fail(
            &reported, DW_NOT_FOUND, path,
            "it vanished before it was published: skipped, the next version covers it");
    else if (err->code == DW_NOT_FINITE)
        dw_fail(&reported, DW_NOT_FINITE, path,
                "skipped, the next version covers it: %.800s", err->text);
    cli_report_error(s, "passed over", path, &reported);
}

/* The trainer started again from an older checkpoint. Later checkpoints that were not
 * published yet are discarded. */
static void report_rollback(cli_watch *watch, const cli_session *s,
                            const cli_watched *item)
{
    dw_error reported;
    dw_fail(&reported, DW_OK, item->path,
            "published after step %" PRIu64
            ": the trainer went back to an older checkpoint",
            watch->step);
    if (!s->quiet)
        cli_report_error(s, "went back", item->path, &reported);
    for (size_t i = 0; i < watch->n_items; i++) {
        cli_watched *other = &watch->items[i];
        if (!other->has_step || other->step <= item->step ||
            other->written >= item->written || other->print == other->done)
            continue;
        cli_watch_done(other);
        dw_fail(&reported, DW_STALE, other->path,
                "not published: %.200s is newer, so the trainer discarded this one",
                item->path);
        cli_report_error(s, "passed over", other->path, &reported);
    }
}

static void report_published(cli_watch *watch, const cli_publish *p, const cli_session *s,
                             cli_watched *item, const cli_published *done)
{
    /* DIR itself counts as published only by its own path */
    if (!done->skipped || item->has_step)
        cli_published_print(done, s, p->url, item->path, "published");
    if (done->skipped || !item->has_step)
        return;
    if (watch->has_step && item->step < watch->step)
        report_rollback(watch, s, item);
    watch->has_step = true;
    watch->step = item->step;
}

/* Whether the watch cannot go on. */
static bool is_final(dw_status status)
{
    return status == DW_CONFLICT || status == DW_UNTRUSTED || status == DW_UNSUPPORTED ||
           status == DW_INVALID;
}

/* Locks the copy that an earlier watch left, so that nobody removes it before the
 * first publish. If this fails, only the lock is missing. */
static void hold_copy(const cli_publish *p)
{
    dw_error ignored;
    char *dir = p->baseline ? NULL : cli_publish_cache_dir(p, &ignored);
    if (dir)
        cli_cache_hold(dir);
    dw_free(dir);
}

/* The weights matter more than a file beside them: if that is bad, or stays incomplete,
 * they are published without it. */
#define FILE_TRIES 5

static void deal_with_files(const cli_session *s, cli_watched *item, const outcome *o)
{
    item->n_file_tries = o->status == DW_STALE ? item->n_file_tries + 1 : FILE_TRIES;
    cli_report_error(s, item->n_file_tries < FILE_TRIES ? "changed" : "without files",
                     item->path, &o->err);
}

/* Publishes one checkpoint. If it returns an error, the watch ends with *ERR. */
static dw_status deal_with(cli_publish *p, const cli_session *s, cli_watch *watch,
                           cli_watched *item, cli_outage *outage, dw_error *err)
{
    char step[24];
    outcome o;
    snprintf(step, sizeof step, "%" PRIu64, item->step);
    p->step = item->has_step ? step : NULL;
    p->past = item->version;
    p->past_state = item->state;
    p->leave_files = item->n_file_tries >= FILE_TRIES;
    o.status = cli_publish_once(p, s, item->path, &o.done, &o.err);
    p->step = NULL;
    p->expect_head = o.status == DW_OK ? o.done.report.version : DW_NO_VERSION;
    if (o.status == DW_OK) {
        p->known_head = o.done.report.version;
        p->begin_new = false;
    }
    if (o.status == DW_OK) {
        cli_outage_end(outage, s);
        cli_watch_done(item);
        report_published(watch, p, s, item, &o.done);
        return DW_OK;
    }
    if (cli_signal())
        return cli_check_signal(err);
    if (o.done.files_failed) {
        deal_with_files(s, item, &o);
        return DW_OK;
    }
    if (o.done.changed) { /* it is published once two scans find it unchanged */
        cli_report_error(s, "changed", item->path, &o.err);
        return DW_OK;
    }
    if (o.done.opened && is_final(o.status)) {
        *err = o.err;
        return o.status;
    }
    /* no checkpoint yet or any more, another model's, or one that cannot be quantised:
     * wait until its files change */
    if (!o.done.opened || o.status == DW_MISMATCH || o.status == DW_NOT_FINITE ||
        is_gone(item->path)) {
        cli_watch_done(item);
        report_passed_over(s, item->path, &o.err);
        return DW_OK;
    }
    cli_outage_add(outage, s, &o.err);
    cli_outage_sleep(outage);
    return DW_OK;
}

/* ---- the compactor ---- */

/* Folds and anchors are made by a thread, so no checkpoint waits for them. */
typedef struct compactor {
    const cli_publish *publish;
    const cli_session *session;
    dw_compact_options options;
    pthread_t thread;
    bool has_thread;
    atomic_bool stop;
} compactor;

static int is_stopped(void *context, uint64_t n_done, uint64_t n_total)
{
    compactor *c = context;
    (void)n_done, (void)n_total;
    return cli_signal() || c->stop;
}

static void *run_compactor(void *context)
{
    compactor *c = context;
    const cli_publish *p = c->publish;
    const dw_progress stop = {is_stopped, c};
    dw_store *store = NULL;
    dw_error err;
    char *cache = p->baseline ? NULL : cli_publish_cache_dir(p, &err);
    c->options.work_dir = p->baseline ? p->baseline : cache;
    if (cli_store_open_at(&store, p->url, &p->store, &err) == DW_OK)
        cli_compact_watch(store, &c->options, c->session, p->url, true, &stop);
    else
        cli_report_error(c->session, "error", p->url, &err);
    dw_store_close(store);
    dw_free(cache);
    return NULL;
}

/* Takes the work from the publishes; not if only they have the base of the stream. */
static void compactor_start(compactor *c, cli_publish *p, const cli_session *s)
{
    dw_publish_options *o = &p->options;
    if (o->first == DW_FIRST_BASE && !o->base)
        return;
    c->publish = p;
    c->session = s;
    dw_compact_options_init(&c->options);
    c->options.base = o->base;
    c->options.fold_every = o->fold_every;
    c->options.anchor_every = o->anchor_every;
    c->options.anchor_factor = o->anchor_factor;
    c->options.max_object_bytes = o->max_object_bytes;
    c->options.sign_key = p->keys.sign_key;
    c->options.trust = cli_keys_trust(&p->keys);
    c->options.n_threads = 1;
    c->options.n_keep = o->n_keep;
    if (o->fold_every > 0 || o->anchor_every > 0 || o->anchor_factor > 0)
        c->has_thread = pthread_create(&c->thread, NULL, run_compactor, c) == 0;
    o->fold_every = o->anchor_every = 0;
    o->anchor_factor = 0;
    o->n_keep = 0;
}

static void compactor_stop(compactor *c)
{
    c->stop = true;
    if (c->has_thread)
        pthread_join(c->thread, NULL);
}

/* ---- the watch ---- */

/* Marks the checkpoints that the stream already has. */
static dw_status skip_published(cli_watch *watch, cli_publish *p, dw_error *err)
{
    dw_store *store = NULL;
    dw_stream *stream = NULL;
    uint64_t head;
    dw_trust trust = cli_keys_trust(&p->keys);
    dw_status status = cli_store_open_at(&store, p->url, &p->store, err);
    if (status == DW_OK)
        status = dw_stream_open(&stream, store, &trust, err);
    if (status == DW_OK)
        status = dw_stream_head(stream, &head, err);
    if (status == DW_OK)
        status = cli_watch_past(watch, stream, head, err);
    if (status == DW_OK)
        p->known_head = head;
    dw_stream_close(stream);
    dw_store_close(store);
    return status == DW_NOT_FOUND ? DW_OK : status;
}

/* Handles the checkpoints that exist when the watch begins. */
static void report_start(const cli_watch *watch, const cli_session *s)
{
    size_t n_new = 0, n_done = 0;
    for (size_t i = 0; i < watch->n_items; i++) {
        n_done +=
            watch->items[i].print != 0 && watch->items[i].print == watch->items[i].done;
        n_new += watch->items[i].print != watch->items[i].done;
    }
    if (s->json || s->quiet || (n_new > 0 && n_done == 0))
        return;
    if (n_new + n_done == 0)
        cli_print_message(watch->dir, "no checkpoint yet. Waiting for checkpoint-N "
                                      "directories, or for .safetensors files");
    else
        cli_print_message(
            watch->dir,
            "leaves %zu checkpoint%s alone: the stream has %s already, or has newer "
            "weights",
            n_done, n_done > 1 ? "s" : "", n_done > 1 ? "them" : "it");
}

/* A directory that is not there yet has no checkpoints: some trainers make it with the
 * first one. */
static dw_status look_first(cli_watch *watch, dw_error *err)
{
    dw_status status = cli_watch_look(watch, err);
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static dw_status wait_for_dir(const cli_watch *watch, const cli_session *s, dw_error *err)
{
    dw_error reported;
    dw_fail(&reported, DW_OK, watch->dir, "it is not there yet: waiting for it");
    if (!s->quiet)
        cli_report_error(s, "waiting", watch->dir, &reported);
    while (is_gone(watch->dir) && !cli_signal())
        cli_sleep(T_LOOK);
    return cli_check_signal(err);
}

/* Does not publish again what an earlier watch published. Looks at the stream first: it
 * is better to fail now than when the first checkpoint comes. */
static dw_status start(cli_watch *watch, cli_publish *p, const cli_session *s,
                       cli_outage *outage, dw_error *err)
{
    dw_status status = look_first(watch, err);
    while (status == DW_OK &&
           (status = skip_published(watch, p, err)) == DW_UNAVAILABLE) {
        cli_outage_add(outage, s, err);
        cli_outage_sleep(outage);
        status = cli_signal() ? cli_check_signal(err) : look_first(watch, err);
    }
    if (status == DW_OK && is_gone(watch->dir)) {
        status = wait_for_dir(watch, s, err);
        return status == DW_OK ? start(watch, p, s, outage, err) : status;
    }
    if (status == DW_OK)
        report_start(watch, s);
    return status;
}

static void report_useless(cli_watch *watch, const cli_session *s)
{
    for (const cli_watched *item; (item = cli_watch_useless(watch));) {
        dw_error reported;
        dw_fail(&reported, DW_UNSUPPORTED, item->path, "%s",
                cli_watch_fault_text(item->fault));
        cli_report_error(s, "passed over", item->path, &reported);
    }
}

static dw_status watch_on(cli_watch *watch, cli_publish *p, const cli_session *s,
                          cli_outage *outage, dw_error *err)
{
    cli_outage lost = {.subject = watch->dir};
    for (;;) {
        cli_sleep(T_LOOK);
        dw_status status = cli_check_signal(err);
        if (status != DW_OK)
            return status;
        /* a missing directory may come back: a mount, or a trainer that starts afresh */
        if (cli_watch_look(watch, err) != DW_OK) {
            cli_outage_add(&lost, s, err);
            cli_outage_sleep(&lost);
            continue;
        }
        cli_outage_end(&lost, s);
        report_useless(watch, s);
        cli_watched *item = cli_watch_next(watch);
        if (item)
            status = deal_with(p, s, watch, item, outage, err);
        if (status != DW_OK)
            return status;
    }
}

int cli_publish_watch(cli_publish *p, const cli_session *s, const char *dir)
{
    dw_error err;
    cli_watch watch = {.dir = dir, .rules = cli_with_rules(&p->with)};
    cli_outage outage = {.subject = p->url};
    compactor beside = {0};
    p->skip_same = true;
    hold_copy(p);
    dw_status status = start(&watch, p, s, &outage, &err);
    if (status == DW_OK) {
        compactor_start(&beside, p, s);
        status = watch_on(&watch, p, s, &outage, &err);
        compactor_stop(&beside);
    }
    cli_watch_release(&watch);
    if (status == DW_CANCELLED && s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "stopped");
        cli_json_event(object);
    }
    /* a signal is the normal end */
    return status == DW_CANCELLED ? 0 : cli_stream_fail(s, &err, p->url);
}
