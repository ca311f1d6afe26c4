#include <inttypes.h>
#include <stdio.h>

#include <deltawire/stream.h>

#include "command_line.h"
#include "commands.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_open.h"

typedef struct arguments {
    cli_stream stream;
    dw_squash_options squash;
    bool anchor;
    uint64_t to, at; /* or DW_NEWEST */
} arguments;

static void print_shortcut(const cli_session *s, const char *url, const dw_edge *shortcut,
                           double t_squash)
{
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "url", url);
        cli_json_version(object, "from", shortcut->from);
        cli_json_count(object, "to", shortcut->to);
        cli_json_count(object, "objects", shortcut->n_objects);
        cli_json_count(object, "bytes", shortcut->n_bytes);
        cli_json_real(object, "seconds", t_squash);
        cli_json_print(object);
        return;
    }
    if (s->quiet)
        return;
    char size[CLI_NUMBER_SIZE];
    cli_print_line(url);
    if (shortcut->from == DW_NO_VERSION)
        cli_print_row("anchor", "version %" PRIu64, shortcut->to);
    else
        cli_print_row("delta", "version %" PRIu64 " -> %" PRIu64, shortcut->from,
                      shortcut->to);
    cli_print_row("size", "%s in %" PRIu64 " objects",
                  cli_format_size(size, shortcut->n_bytes), shortcut->n_objects);
    cli_print_row("time", "%.3f s", t_squash);
}

static int squash(arguments *a, const cli_session *s)
{
    dw_error err;
    dw_edge shortcut = {0};
    cli_progress bar = cli_progress_start(s, "squashing");
    a->squash.sign_key = a->stream.keys.sign_key;
    a->squash.progress = cli_progress_hook(&bar);
    dw_status status = dw_stream_squash(a->stream.stream, &a->squash, &shortcut, &err);
    cli_progress_end(&bar);
    if (status != DW_OK)
        return cli_stream_fail(s, &err, a->stream.url);
    print_shortcut(s, a->stream.url, &shortcut, cli_now() - bar.t_start);
    return 0;
}

static int run(cli_session *s)
{
    arguments a = {.to = DW_NEWEST, .at = DW_NEWEST};
    dw_squash_options_init(&a.squash);
    cli_parse(s, &a);
    if (a.anchor == (a.squash.from != DW_NO_VERSION))
        cli_usage_error(s, "one of --from A and --anchor is wanted");
    if ((a.anchor ? a.to : a.at) != DW_NEWEST)
        cli_usage_error(s, a.anchor ? "--anchor goes with --at, not with --to"
                                    : "--from goes with --to, not with --at");
    a.squash.to = a.anchor ? a.at : a.to;
    if (!a.anchor && a.squash.to <= a.squash.from)
        cli_usage_error(s, "--to must be greater than --from");
    a.squash.n_threads = s->n_threads;
    a.stream.url = s->args[0];
    int exit_code = cli_stream_open(&a.stream, s);
    if (exit_code == 0)
        exit_code = squash(&a, s);
    cli_stream_close(&a.stream);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(VERSION, arguments, squash.from, "from", "A",
                "one delta from version A to that of --to")},
    {CLI_OPTION(VERSION, arguments, to, "to", "B", "default: the newest")},
    {CLI_OPTION(FLAG, arguments, anchor, "anchor", NULL,
                "the whole model at the version of --at")},
    {CLI_OPTION(VERSION, arguments, at, "at", "N", "default: the newest")},
    {CLI_OPTION(TEXT, arguments, squash.work_dir, "work", "DIR",
                "room for two copies of the model; default: TMPDIR")},
    {CLI_OPTION(TEXT, arguments, squash.base, "base", "CKPT",
                "the checkpoint behind a version 0 that was not uploaded")},
    {CLI_OPTION(TEXT, arguments, stream.keys.sign_path, "sign-key", "FILE",
                "sign the record with this key")},
    {CLI_GROUP("stream", arguments, stream, cli_stream, cli_stream_options)},
    {0},
};

const cli_verb cli_verb_squash = {
    .name = "squash",
    .summary = "add a shortcut to a version of a stream",
    .usage = "URL --from A [--to B] [OPTION...]\n"
             "URL --anchor [--at N] [OPTION...]",
    .about = "Adds a shortcut to a version, so that followers far behind fetch less: one "
             "delta instead of many, or the whole model. See also publish --fold and "
             "--anchor-every.",
    .examples = "  deltawire squash s3://bucket/run --from 100 --to 200\n"
                "  deltawire squash s3://bucket/run --anchor --work /scratch\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
