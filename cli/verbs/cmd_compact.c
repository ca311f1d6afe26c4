#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "cmd_compact.h"
#include "json_out.h"
#include "outage.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_info.h"
#include "stream_open.h"
#include "inner.h"

#define T_LOOK  1.0 /* seconds between two looks at the stream */
#define T_SLICE 0.1 /* between two looks at the caller */

typedef struct arguments {
    cli_stream stream;
    dw_compact_options compact;
    bool watch, anchor;
    const char *fold, *anchor_factor; /* as given, or NULL */
} arguments;

unsigned cli_parse_fold(const cli_session *s, const char *text)
{
    if (strcmp(text, "none") == 0)
        return 0;
    char *end;
    const unsigned long n = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n < 2 || n > 1000000)
        cli_usage_error(s, "--fold: '%s' is neither none nor a number from 2 on", text);
    return (unsigned)n;
}

double cli_parse_factor(const cli_session *s, const char *text)
{
    return strcmp(text, "0") == 0 ? 0 : cli_parse_positive(s, "--anchor-factor", text);
}

/* ---- what was made ---- */

static json_t *describe(const dw_edge *made, double seconds)
{
    json_t *object = json_object();
    cli_json_version(object, "from", made->from);
    cli_json_count(object, "to", made->to);
    cli_json_count(object, "objects", made->n_objects);
    cli_json_count(object, "bytes", made->n_bytes);
    cli_json_real(object, "seconds", seconds);
    return object;
}

static void print_line(const dw_edge *made, double seconds)
{
    char size[CLI_NUMBER_SIZE];
    if (made->from == DW_NO_VERSION)
        printf("anchor of version %" PRIu64, made->to);
    else
        printf("fold from version %" PRIu64 " to %" PRIu64, made->from, made->to);
    printf(": %s in %" PRIu64 " object%s, %.3f s\n", cli_format_size(size, made->n_bytes),
           made->n_objects, cli_plural(made->n_objects), seconds);
    fflush(stdout);
}

/* ---- the work ---- */

static void wait_for(double seconds, const dw_progress *progress)
{
    const double end = cli_now() + seconds;
    while (cli_now() < end && progress->report(progress->context, 0, 0) == 0)
        cli_sleep(T_SLICE);
}

/* What it may not remove stays; this is said once. */
static void warn_removal(dw_compactor *c, const cli_session *s)
{
    dw_error err = {0};
    if (dw_compactor_take_fault(c, &err) != DW_OK && !s->quiet)
        cli_warn(s, NULL, &err);
}

void cli_compact_watch(dw_store *store, const dw_compact_options *options,
                       const cli_session *s, const char *url, bool quiet,
                       const dw_progress *progress)
{
    dw_compactor *c = NULL;
    dw_error err;
    cli_outage outage = {.subject = url};
    while (progress->report(progress->context, 0, 0) == 0) {
        const double t_start = cli_now();
        dw_edge made = {.to = DW_NO_VERSION};
        dw_status status = c ? DW_OK : dw_compactor_open(&c, store, options, &err);
        if (status == DW_OK)
            status = dw_compactor_step(c, progress, &made, &err);
        if (status == DW_CANCELLED)
            break;
        if (c)
            warn_removal(c, s);
        if (status != DW_OK && status != DW_NOT_FOUND) { /* else there is nothing yet */
            if (!quiet || status != DW_UNAVAILABLE)      /* that the watch reports too */
                cli_outage_add(&outage, s, &err);
            wait_for(cli_outage_wait(&outage), progress);
        } else if (made.to == DW_NO_VERSION) {
            cli_outage_end(&outage, s);
            wait_for(T_LOOK, progress);
        } else {
            cli_outage_end(&outage, s);
            if (s->json && !quiet) {
                json_t *object = describe(&made, cli_now() - t_start);
                cli_json_text(object, "event", "made");
                cli_json_event(object);
            } else if (!quiet && !s->quiet) {
                print_line(&made, cli_now() - t_start);
            }
        }
    }
    dw_compactor_close(c);
}

/* Makes all that is due now. */
static int compact_once(const arguments *a, const cli_session *s)
{
    dw_compactor *c = NULL;
    dw_error err;
    json_t *list = json_array();
    dw_edge made = {.to = 0};
    dw_status status = dw_compactor_open(&c, a->stream.store, &a->compact, &err);
    while (status == DW_OK && made.to != DW_NO_VERSION) {
        cli_progress bar = cli_progress_start(s, "compacting");
        const dw_progress hook = cli_progress_hook(&bar);
        status = dw_compactor_step(c, &hook, &made, &err);
        cli_progress_end(&bar);
        const double seconds = cli_now() - bar.t_start;
        warn_removal(c, s);
        if (status != DW_OK || made.to == DW_NO_VERSION)
            continue;
        json_array_append_new(list, describe(&made, seconds));
        if (!s->json && !s->quiet)
            print_line(&made, seconds);
    }
    dw_compactor_close(c);
    if (status == DW_OK && s->json) {
        json_t *object = json_object();
        cli_json_text(object, "url", a->stream.url);
        json_object_set(object, "made", list);
        cli_json_print(object);
    } else if (status == DW_OK && !s->quiet && json_array_size(list) == 0) {
        puts("nothing is due");
    }
    json_decref(list);
    return status == DW_OK ? 0 : cli_stream_fail(s, &err, a->stream.url);
}

static int run(cli_session *s)
{
    arguments a = {0};
    dw_compact_options_init(&a.compact);
    cli_parse(s, &a);
    if (a.watch && a.anchor)
        cli_usage_error(s, "--anchor makes one anchor: it does not go with --watch");
    if (a.fold)
        a.compact.fold_every = cli_parse_fold(s, a.fold);
    if (a.anchor_factor)
        a.compact.anchor_factor = cli_parse_factor(s, a.anchor_factor);
    if (a.anchor) {
        a.compact.anchor_every = 1;
        a.compact.fold_every = 0;
    }
    a.compact.n_threads = s->n_threads;
    a.stream.url = s->args[0];
    int exit_code = cli_stream_open(&a.stream, s);
    a.compact.sign_key = a.stream.keys.sign_key;
    a.compact.trust = cli_keys_trust(&a.stream.keys);
    const dw_progress stop = cli_signal_hook();
    if (exit_code == 0 && a.watch)
        cli_compact_watch(a.stream.store, &a.compact, s, a.stream.url, false, &stop);
    else if (exit_code == 0)
        exit_code = compact_once(&a, s);
    cli_stream_close(&a.stream);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(FLAG, arguments, watch, "watch", NULL,
                "go on as versions come, until SIGINT or SIGTERM")},
    {CLI_OPTION(FLAG, arguments, anchor, "anchor", NULL,
                "an anchor of the newest version, due or not; no folds")},
    {CLI_OPTION(TEXT, arguments, fold, "fold", "N|none",
                "a fold over every N versions after an anchor (16)")},
    {CLI_OPTION(TEXT, arguments, anchor_factor, "anchor-factor", "F",
                "an anchor if the deltas since the last one have more than F times its "
                "bytes (0.1); 0: never")},
    {CLI_OPTION(COUNT, arguments, compact.n_keep, "keep", "N",
                "whenever an anchor is made, drop versions before the newest N; default: "
                "all stay")},
    {CLI_OPTION(TEXT, arguments, compact.work_dir, "work", "DIR",
                "room for two copies of the model; default: TMPDIR")},
    {CLI_OPTION(TEXT, arguments, compact.base, "base", "CKPT",
                "the checkpoint behind a version 0 that was not uploaded")},
    {CLI_OPTION(TEXT, arguments, stream.keys.sign_path, "sign-key", "FILE",
                "sign the records with this key")},
    {CLI_GROUP("stream", arguments, stream, cli_stream, cli_stream_options)},
    {0},
};

const cli_verb cli_verb_compact = {
    .name = "compact",
    .summary = "add folds and anchors to a stream",
    .usage = "URL [OPTION...]",
    .about = "Adds what is due to a stream, so that followers far behind fetch less: "
             "folds (one delta over many versions) and anchors (the whole model). "
             "Removes those that newer anchors supersede. "
             "Publishers do so by themselves; use this for large models, on another host "
             "than the trainer's. It may run beside everything else, and be killed.",
    .examples = "  deltawire compact s3://bucket/run --watch --work /scratch\n"
                "  deltawire compact s3://bucket/run --anchor\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
