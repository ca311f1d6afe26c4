#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "path.h"
#include "stats.h"
#include "stats_source.h"

#define MAX_STEPS 4096

typedef struct arguments {
    stats_stream stream;
    stats_deltas deltas;
    bool is_stream;
    const char *base, *html, *work_dir;
} arguments;

/* ---- arguments ---- */

/* Deltas have a base and are no streams. */
static void choose_source(arguments *a, const cli_session *s)
{
    a->is_stream = !a->base || cli_is_stream(s->args[0]);
    if (a->is_stream) {
        cli_expect_arguments(s, 1, 1);
        if (!a->base && !cli_is_stream(s->args[0]))
            cli_usage_error(s,
                            "'%s' is no stream; of deltas, name the checkpoint they "
                            "start from with --base",
                            s->args[0]);
        a->stream.stream.url = s->args[0];
        if (a->stream.from != DW_NO_VERSION && a->stream.to != DW_NO_VERSION &&
            a->stream.from >= a->stream.to)
            cli_usage_error(s, "--to must be greater than --from");
    } else {
        if (a->stream.from != DW_NO_VERSION || a->stream.to != DW_NO_VERSION ||
            cli_any_given(cli_stream_options, &a->stream.stream))
            cli_usage_error(s, "--from, --to, --trust and how to reach a store are for "
                               "streams");
        a->deltas.paths = s->args;
        a->deltas.n_paths = s->n_args;
    }
    a->stream.base = a->deltas.base = a->base;
    a->stream.n_threads = a->deltas.n_threads = s->n_threads;
    a->stream.work_dir = a->work_dir;
}

/* ---- the verb ---- */

static int fail(const arguments *a, const cli_session *s, const dw_error *err)
{
    if (a->is_stream)
        return cli_stream_fail(s, err, a->stream.stream.url);
    const size_t at = a->deltas.at;
    const char *path = at < a->deltas.n_paths ? a->deltas.paths[at] : a->base;
    if (err->code == DW_STALE && at == 0)
        return cli_fail(s, err, path, "deltawire inspect %s", path);
    return cli_fail(s, err, path, NULL);
}

static int output(const arguments *a, const stats_report *report, const cli_session *s)
{
    dw_error err;
    json_t *json = s->json || a->html ? stats_report_json(report) : NULL;
    if (a->html && stats_save_html(json, a->html, &err) != DW_OK) {
        json_decref(json);
        return cli_fail(s, &err, a->html, NULL);
    }
    if (s->json)
        cli_json_print(json_incref(json));
    else
        stats_print_text(report);
    json_decref(json);
    return 0;
}

static int analyse(arguments *a, const stats_source *source, const cli_session *s)
{
    dw_error err;
    stats_model model = {0};
    stats_report report = {.stream = a->is_stream ? a->stream.stream.stream : NULL};
    report.source = a->is_stream ? a->stream.stream.url : a->base;
    dw_status status = stats_walk(&report, &model, source, a->work_dir, s, &err);
    if (status == DW_OK && a->is_stream)
        status = stats_stream_shortcuts(&report, &a->stream, &err);
    int exit_code = status == DW_OK ? output(a, &report, s) : fail(a, s, &err);
    stats_report_release(&report);
    stats_model_release(&model);
    return exit_code;
}

static int run(cli_session *s)
{
    arguments a = {.stream = {.from = DW_NO_VERSION, .to = DW_NO_VERSION}};
    stats_source source = {0};
    dw_error err;
    int exit_code = 0;
    cli_parse(s, &a);
    choose_source(&a, s);
    if (a.html && cli_path_check_output(a.html, &err) != DW_OK)
        exit_code = cli_fail(s, &err, a.html, NULL);
    else if (a.is_stream)
        exit_code = stats_stream_open(&source, &a.stream, s);
    else
        exit_code = stats_deltas_open(&source, &a.deltas, s);
    if (exit_code == 0 && source.n_steps > MAX_STEPS)
        exit_code = cli_fail_as(s, "too many", "", "more than 4096 steps",
                                "deltawire %s URL --from N --to N", s->verb);
    if (exit_code == 0)
        exit_code = analyse(&a, &source, s);
    stats_stream_close(&a.stream);
    stats_deltas_close(&a.deltas);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(VERSION, arguments, stream.from, "from", "N",
                "the first version; default: 16 before the last")},
    {CLI_OPTION(VERSION, arguments, stream.to, "to", "N",
                "the last version; default: the newest")},
    {CLI_OPTION(
        TEXT, arguments, base, "base", "CKPT",
        "the checkpoint that the first delta starts from, which is not changed; of "
        "a stream: the one behind a version 0 that was not uploaded")},
    {CLI_OPTION(TEXT, arguments, html, "html", "FILE",
                "also write one page with plots, complete in itself")},
    {CLI_OPTION(TEXT, arguments, work_dir, "work", "DIR",
                "room for three times the model (bf16); default: TMPDIR")},
    {CLI_GROUP("stream", arguments, stream.stream, cli_stream, cli_stream_options)},
    {0},
};

const cli_verb cli_verb_stats = {
    .name = "stats",
    .summary = "analyse the steps of a stream, or deltas on disk",
    .usage = "URL [--from N] [--to N] [OPTION...]\n"
             "--base CKPT DELTA... [OPTION...]",
    .about =
        "Analyses the versions of a stream, or deltas on disk in the order given: "
        "density "
        "and bits a change by step, kind of tensor and layer, with the order-0 bound "
        "beside them; moves in ulps; recurrence; how much folding saves.",
    .examples = "  deltawire stats s3://bucket/run\n"
                "  deltawire stats s3://bucket/run --from 100 --to 130 --html run.html\n"
                "  deltawire stats --base model/ deltas/step_*.safetensors --json\n",
    .options = options,
    .n_least = 1,
    .n_most = -1,
    .run = run,
};
