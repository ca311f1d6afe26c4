#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd_publish.h"
#include "commands.h"
#include "cmd_compact.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"
#include "stream_info.h"
#include "stream_open.h"

typedef struct arguments {
    cli_publish publish;
    const char *checkpoint;
    const char *watch;
    const char *base, *fork, *fold, *anchor_factor; /* as given, or NULL */
} arguments;

/* ---- arguments ---- */

/* Splits URL@N at the last @, if only digits follow it. TEXT is cut there. */
static void parse_fork(cli_publish *p, const cli_session *s, const char *text)
{
    char *at = strrchr(text, '@');
    p->options.first = DW_FIRST_FORK;
    p->options.fork_version = DW_NEWEST;
    p->fork_url = text;
    if (!at || !at[1] || at[1 + strspn(at + 1, "0123456789")])
        return;
    p->options.fork_version = cli_parse_version(s, "--fork", at + 1);
    *at = '\0';
}

static void check(const arguments *a, const cli_session *s)
{
    if (a->base && a->publish.fork_url)
        cli_usage_error(s, "--base and --fork exclude each other");
    if (a->base && a->publish.options.quantize)
        cli_usage_error(s, "--base: with --quantize version 0 is uploaded, because "
                           "followers have no quantised checkpoint");
    if (a->watch && a->publish.step)
        cli_usage_error(s,
                        "--step: with --watch the step comes from the checkpoint's name");
    if (a->publish.notes && strlen(a->publish.notes) > 4096)
        cli_usage_error(s, "--notes: at most 4096 bytes");
}

static void parse(arguments *a, cli_session *s)
{
    cli_publish *p = &a->publish;
    *a = (arguments){.publish = {.expect_head = DW_NO_VERSION,
                                 .known_head = DW_NO_VERSION,
                                 .past = DW_NO_VERSION}};
    dw_publish_options_init(&p->options);
    cli_parse(s, a);
    cli_expect_arguments(s, a->watch ? 1 : 2, a->watch ? 1 : 2);
    p->url = s->args[0];
    a->checkpoint = a->watch ? NULL : s->args[1];
    p->options.n_threads = s->n_threads;
    p->options.quantize = cli_quantize_read(&p->quantize, s);
    if (a->fork)
        parse_fork(p, s, a->fork);
    if (a->fold)
        p->options.fold_every = cli_parse_fold(s, a->fold);
    else if (!a->watch) /* each process would fetch the model */
        p->options.fold_every = 0;
    if (a->anchor_factor)
        p->options.anchor_factor = cli_parse_factor(s, a->anchor_factor);
    if (a->base) {
        p->options.first = DW_FIRST_BASE;
        p->options.base_name = a->base[0] ? a->base : a->watch ? a->watch : a->checkpoint;
    }
    check(a, s);
}

/* ---- reporting ---- */

static void print_json(const cli_published *done, const char *url, const char *checkpoint,
                       const char *event)
{
    const dw_publish_report *r = &done->report;
    json_t *object = json_object();
    if (event)
        cli_json_text(object, "event", event);
    cli_json_text(object, "url", url);
    cli_json_text(object, "checkpoint", checkpoint);
    cli_json_count(object, "version", done->skipped ? done->same : r->version);
    cli_json_flag(object, "created", done->created);
    cli_json_flag(object, "skipped", done->skipped);
    if (!done->skipped) {
        cli_json_digest(object, "state", r->state);
        cli_json_count(object, "changed", r->n_changed);
        cli_json_count(object, "objects", r->n_objects);
        cli_json_count(object, "bytes", r->n_bytes);
        cli_json_count(object, "files", done->n_files);
        cli_json_count(object, "file_bytes", r->n_file_bytes);
        cli_json_count(object, "model_bytes", done->n_model_bytes);
        cli_json_real(object, "ratio",
                      cli_ratio((double)done->n_model_bytes, (double)r->n_bytes));
        cli_json_times(object, &r->times, dw_publish_moment_name);
        if (r->restarted)
            cli_json_flag(object, "restart", true);
        if (r->suspect_from > 0)
            cli_json_count(object, "suspect_from", r->suspect_from);
    }
    if (done->aftermath.code != DW_OK)
        cli_json_text(object, "remark", done->aftermath.text);
    cli_json_event(object);
}

static void print_line(const cli_published *done, const char *checkpoint)
{
    char size[CLI_NUMBER_SIZE], changed[CLI_NUMBER_SIZE];
    const dw_publish_report *r = &done->report;
    cli_print_text(stdout, checkpoint);
    if (done->skipped)
        printf(": version %" PRIu64 " has these weights already\n", done->same);
    else
        printf(": version %" PRIu64 ", %s changed, %s in %.3f s\n", r->version,
               cli_format_count(changed, r->n_changed), cli_format_size(size, r->n_bytes),
               1e-6 * (double)r->times.us[DW_COMMITTED]);
    fflush(stdout);
}

static void print_rows(const cli_published *done, const char *url)
{
    char a[CLI_NUMBER_SIZE], b[CLI_NUMBER_SIZE];
    const dw_publish_report *r = &done->report;
    cli_print_line(url);
    cli_print_row("version", "%" PRIu64 "%s%s%s", r->version,
                  done->created ? ", the stream is new" : "",
                  r->unchanged ? ", no weight differs" : "",
                  r->restarted ? ", a restart" : "");
    if (!r->restarted)
        cli_print_row("changed", "%s of %s elements (%.3f %%)",
                      cli_format_count(a, r->n_changed),
                      cli_format_count(b, done->n_model_elems),
                      100 * cli_ratio((double)r->n_changed, (double)done->n_model_elems));
    cli_print_row("size", "%s bytes in %" PRIu64 " object%s",
                  cli_format_count(a, r->n_bytes), r->n_objects,
                  cli_plural(r->n_objects));
    if (done->n_files > 0)
        cli_print_row("files", "%zu, %s stored", done->n_files,
                      cli_format_size(a, r->n_file_bytes));
    if (r->n_bytes > 0)
        cli_print_row("full model", "%s, %.1f times the size of this version",
                      cli_format_size(a, done->n_model_bytes),
                      cli_ratio((double)done->n_model_bytes, (double)r->n_bytes));
    cli_print_row("state", "%016" PRIx64, r->state);
    cli_print_row("time", "%.3f s", 1e-6 * (double)r->times.us[DW_COMMITTED]);
}

/* Reports damage that this version repaired. */
static void print_recovery(const dw_publish_report *r, const char *url)
{
    char suspect[CLI_SUSPECT_SIZE];
    if (r->suspect_from == 0)
        return;
    if (r->restarted)
        cli_print_message(
            url,
            "version %" PRIu64 " could not be decoded, so version %" PRIu64
            " restarts the stream with the whole model. Followers cross over by "
            "themselves",
            r->version - 1, r->version);
    else
        cli_print_message(
            url,
            "the baseline was damaged and was read back from the stream: %s. Version "
            "%" PRIu64 " is right",
            cli_format_suspect(suspect, r->suspect_from, r->version), r->version);
}

void cli_published_print(const cli_published *done, const cli_session *s, const char *url,
                         const char *checkpoint, const char *event)
{
    if (s->json)
        print_json(done, url, checkpoint, event);
    else if (event && !s->quiet)
        print_line(done, checkpoint);
    else if (!s->quiet)
        print_rows(done, url);
    if (!s->json && !s->quiet)
        print_recovery(&done->report, url);
    if (s->json || s->quiet || done->aftermath.code == DW_OK)
        return;
    cli_print_message(
        done->aftermath.where[0] ? done->aftermath.where : url,
        "version %" PRIu64 " is committed, but %s%s", done->report.version,
        done->aftermath.code == DW_DENIED ? "" : "its folds and anchors were not made: ",
        done->aftermath.text);
}

/* ---- the verb ---- */

static int publish_one(const arguments *a, const cli_session *s)
{
    const cli_publish *p = &a->publish;
    dw_error err;
    cli_published done;
    dw_status status = cli_publish_once(p, s, a->checkpoint, &done, &err);
    if (status != DW_OK && (!done.opened || done.changed))
        return cli_fail(s, &err, done.opened ? p->url : a->checkpoint, NULL);
    if (status != DW_OK)
        return cli_stream_fail(s, &err, p->url);
    cli_published_print(&done, s, p->url, a->checkpoint, NULL);
    if (s->json || s->quiet)
        return 0;
    if (!done.created && p->options.first != DW_FIRST_ANCHOR)
        cli_print_message("",
                          "the stream was there already: --base and --fork did nothing");
    return 0;
}

static int run(cli_session *s)
{
    arguments a;
    parse(&a, s);
    int exit_code = cli_keys_load(&a.publish.keys, s);
    if (exit_code == 0)
        exit_code =
            a.watch ? cli_publish_watch(&a.publish, s, a.watch) : publish_one(&a, s);
    cli_keys_release(&a.publish.keys);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, arguments, watch, "watch", "DIR",
                "instead of one checkpoint, publish each that a trainer saves here")},
    {CLI_OPTION(TEXT, arguments, publish.step, "step", "TEXT",
                "the trainer's own number of this version")},
    {CLI_OPTION(TEXT, arguments, publish.notes, "notes", "TEXT",
                "free text, up to 4096 bytes")},
    {CLI_OPTION(FLAG, arguments, publish.begin_new, "new", NULL,
                "begin a new stream, also where one was removed")},
    {CLI_OPTION(FLAG, arguments, publish.keep_f32, "f32", NULL,
                "a new stream: publish a model that is all F32 as it is, not as BF16")},
    {CLI_OPTION(
        MAYBE, arguments, base, "base", "NAME",
        "a new stream: upload nothing, followers have CKPT; NAME says which it is "
        "(its path)")},
    {CLI_OPTION(
        TEXT, arguments, publish.options.base, "base-ckpt", "CKPT",
        "the checkpoint behind a version 0 that was not uploaded, if the baseline "
        "was lost")},
    {CLI_OPTION(TEXT, arguments, fork, "fork", "URL[@N]",
                "a new stream: start from version N, or the newest, of another")},
    {CLI_OPTION(TEXT, arguments, publish.baseline, "baseline", "DIR",
                "keep a copy of the newest version here, to compare with; default: "
                "~/.cache/deltawire/baselines/HASH")},
    {CLI_OPTION(TEXT, arguments, publish.keys.sign_path, "sign-key", "FILE",
                "sign with this key; see deltawire keygen")},
    {CLI_GROUP("own", arguments, publish.options, dw_publish_options,
               cli_writer_options)},
    {CLI_OPTION(
        TEXT, arguments, fold, "fold", "N|none",
        "also make one delta over every N versions: 16 with --watch, otherwise none")},
    {CLI_OPTION(NUMBER, arguments, publish.options.anchor_every, "anchor-every", "N",
                "upload the whole model every N versions")},
    {CLI_OPTION(COUNT, arguments, publish.options.n_keep, "keep", "N",
                "whenever the whole model is uploaded, drop versions before the newest "
                "N; default: all stay")},
    {CLI_OPTION(
        TEXT, arguments, anchor_factor, "anchor-factor", "F",
        "upload the whole model if the deltas since the last one have more than F "
        "times its bytes (0.1); 0: never")},
    {CLI_GROUP("own", arguments, publish.with, cli_with, cli_with_options)},
    {CLI_GROUP("quantize", arguments, publish.quantize, cli_quantize,
               cli_quantize_options)},
    {CLI_GROUP("trust", arguments, publish.keys, cli_keys, cli_trust_options)},
    {CLI_GROUP("store", arguments, publish.store, dw_store_options, cli_store_options)},
    {0},
};

const cli_verb cli_verb_publish = {
    .name = "publish",
    .summary = "add a checkpoint to a stream as its next version",
    .usage = "URL CKPT [OPTION...]\n"
             "URL --watch DIR [OPTION...]",
    .about =
        "Publishes a checkpoint as the next version of a stream: the changes since the "
        "newest version are uploaded and committed. A missing stream is made, with the "
        "whole checkpoint as version 0. With --watch: publishes each checkpoint that a "
        "trainer saves as DIR/checkpoint-N, or over DIR itself, until SIGINT or SIGTERM. "
        "A lower step that is written again is published too: the trainer went back.",
    .examples =
        "  deltawire publish s3://bucket/run ckpt/ --step 120\n"
        "  deltawire publish s3://bucket/run --watch output/ --sign-key trainer.key\n"
        "  deltawire publish s3://bucket/run-fp8 ckpt/ --quantize fp8-block\n"
        "  deltawire publish file:///mnt/b ckpt/ --fork file:///mnt/a@40\n",
    .options = options,
    .n_least = 1,
    .n_most = 2,
    .run = run,
};
