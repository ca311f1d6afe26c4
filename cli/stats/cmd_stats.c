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

static const char help[] =
    "usage: deltawire stats URL [--from N] [--to N] [OPTION...]\n"
    "       deltawire stats --base CKPT DELTA... [OPTION...]\n"
    "\n"
    "Analyses the versions of a stream, or deltas on disk in the order given: density "
    "and\n"
    "bits a change by step, kind of tensor and layer, with the order-0 bound beside "
    "them;\n"
    "moves in ulps; recurrence; how well the mask can be predicted; how much folding\n"
    "saves.\n"
    "\n"
    "  --from N, --to N     versions of the stream; default: the newest and 16 before "
    "it\n"
    "  --base CKPT          the checkpoint that the first delta starts from, which is "
    "not\n"
    "                       changed; of a stream: the one behind a version 0 that was\n"
    "                       not uploaded\n"
    "  --html FILE          also write one page with plots, complete in itself\n"
    "  --work DIR           room for three times the model (bf16); default: "
    "TMPDIR\n" CLI_TRUST_HELP CLI_STORE_HELP "  --json  --threads N  --quiet  --help\n"
    "\n"
    "Predictors learn from the steps before the one they predict: rates by exponent and\n"
    "history from the step before it, rows and columns from all steps walked but the "
    "first.\n"
    "A recall of 'never' means that no choice of elements is as precise as that.\n"
    "\n"
    "  deltawire stats s3://bucket/run\n"
    "  deltawire stats s3://bucket/run --from 100 --to 130 --html run.html\n"
    "  deltawire stats --base model/ deltas/step_*.safetensors --json\n";

#define MAX_STEPS 4096

typedef struct arguments {
    stats_stream stream;
    stats_deltas deltas;
    bool is_stream;
    bool for_streams; /* an option that only makes sense with a URL was given */
    const char *base, *html, *work_dir;
} arguments;

/* ---- arguments ---- */

/* Deltas have a base and are no streams. */
static void choose_source(arguments *a, const cli_session *s, int argc, char **argv)
{
    cli_expect_arguments(s, argc, 1, argc);
    a->is_stream = !a->base || cli_is_stream(argv[optind]);
    if (a->is_stream) {
        cli_expect_arguments(s, argc, 1, 1);
        if (!a->base && !cli_is_stream(argv[optind]))
            cli_usage_error(s,
                            "'%s' is no stream; of deltas, name the checkpoint they "
                            "start from with --base",
                            argv[optind]);
        a->stream.stream.url = argv[optind];
        if (a->stream.from != DW_NO_VERSION && a->stream.to != DW_NO_VERSION &&
            a->stream.from >= a->stream.to)
            cli_usage_error(s, "--to must be greater than --from");
    } else {
        if (a->for_streams)
            cli_usage_error(s, "--from, --to, --trust and how to reach a store are for "
                               "streams");
        a->deltas.paths = argv + optind;
        a->deltas.n_paths = (size_t)(argc - optind);
    }
    a->stream.base = a->deltas.base = a->base;
    a->stream.n_threads = a->deltas.n_threads = s->n_threads;
    a->stream.work_dir = a->work_dir;
}

static void parse(arguments *a, cli_session *s, int argc, char **argv)
{
    enum { FROM = CLI_OPT_OWN, TO, BASE, HTML, WORK };
    static const struct option options[] = {
        {"from", required_argument, NULL, FROM},
        {"to", required_argument, NULL, TO},
        {"base", required_argument, NULL, BASE},
        {"html", required_argument, NULL, HTML},
        {"work", required_argument, NULL, WORK},
        CLI_TRUST_OPTIONS,
        CLI_STORE_OPTIONS,
        CLI_COMMON_OPTIONS,
    };
    *a = (arguments){.stream = {.from = DW_NO_VERSION, .to = DW_NO_VERSION}};
    for (int option; (option = cli_next_option(s, argc, argv, options)) != -1;) {
        a->for_streams |= option == FROM || option == TO || cli_keys_takes(option);
        switch (option) {
        case FROM:
            a->stream.from = cli_parse_version(s, "--from", optarg);
            break;
        case TO:
            a->stream.to = cli_parse_version(s, "--to", optarg);
            break;
        case BASE:
            a->base = optarg;
            break;
        case HTML:
            a->html = optarg;
            break;
        case WORK:
            a->work_dir = optarg;
            break;
        case CLI_OPT_TRUST:
        case CLI_OPT_STREAM:
            cli_keys_take(&a->stream.stream.keys, s, option);
            break;
        default:
            a->for_streams |= cli_store_option(&a->stream.stream.options, s, option);
        }
    }
    choose_source(a, s, argc, argv);
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

static int run(arguments *a, const stats_source *source, const cli_session *s)
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

int dw_cmd_stats(int argc, char **argv)
{
    cli_session s = cli_session_start(argc, argv, help);
    arguments a;
    stats_source source = {0};
    dw_error err;
    int exit_code = 0;
    parse(&a, &s, argc, argv);
    if (a.html && cli_path_check_output(a.html, &err) != DW_OK)
        exit_code = cli_fail(&s, &err, a.html, NULL);
    else if (a.is_stream)
        exit_code = stats_stream_open(&source, &a.stream, &s);
    else
        exit_code = stats_deltas_open(&source, &a.deltas, &s);
    if (exit_code == 0 && source.n_steps > MAX_STEPS)
        exit_code = cli_fail_as(&s, "too many", "", "more than 4096 steps",
                                "deltawire %s URL --from N --to N", s.verb);
    if (exit_code == 0)
        exit_code = run(&a, &source, &s);
    stats_stream_close(&a.stream);
    stats_deltas_close(&a.deltas);
    return exit_code;
}
