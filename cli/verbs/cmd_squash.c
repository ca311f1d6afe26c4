#include <inttypes.h>
#include <stdio.h>

#include <deltawire/stream.h>

#include "command_line.h"
#include "commands.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_open.h"

static const char help[] =
    "usage: deltawire squash URL --from A [--to B] [OPTION...]\n"
    "       deltawire squash URL --anchor [--at N] [OPTION...]\n"
    "\n"
    "Adds a shortcut to a version, so that followers far behind fetch less: one delta\n"
    "instead of many, or the whole model. See also publish --fold and --anchor-every.\n"
    "\n"
    "  --from A, --to B     one delta from version A to B, or to the newest\n"
    "  --anchor [--at N]    the whole model at version N, or at the newest\n"
    "  --work DIR           room for two copies of the model; default: TMPDIR\n"
    "  --base CKPT          the checkpoint behind a version 0 that was not uploaded\n"
    "  --max-object SIZE    of each object that is written\n"
    "  --sign-key FILE      sign the record with this key\n" CLI_TRUST_HELP CLI_STORE_HELP
    "  --json  --threads N  --quiet  --help\n"
    "\n"
    "  deltawire squash s3://bucket/run --from 100 --to 200\n"
    "  deltawire squash s3://bucket/run --anchor --work /scratch\n";

typedef struct arguments {
    cli_stream stream;
    dw_squash_options squash;
} arguments;

static arguments parse(cli_session *s, int argc, char **argv)
{
    enum { FROM = CLI_OPT_OWN, TO, ANCHOR, AT, WORK, BASE, MAX_OBJECT, SIGN_KEY };
    static const struct option options[] = {
        {"from", required_argument, NULL, FROM},
        {"to", required_argument, NULL, TO},
        {"anchor", no_argument, NULL, ANCHOR},
        {"at", required_argument, NULL, AT},
        {"work", required_argument, NULL, WORK},
        {"base", required_argument, NULL, BASE},
        {"max-object", required_argument, NULL, MAX_OBJECT},
        {"sign-key", required_argument, NULL, SIGN_KEY},
        CLI_TRUST_OPTIONS,
        CLI_STORE_OPTIONS,
        CLI_COMMON_OPTIONS,
    };
    arguments a = {0};
    dw_squash_options_init(&a.squash);
    bool anchor = false, has_to = false, has_at = false;
    for (int option; (option = cli_next_option(s, argc, argv, options)) != -1;) {
        switch (option) {
        case FROM:
            a.squash.from = cli_parse_version(s, "--from", optarg);
            break;
        case TO:
            a.squash.to = cli_parse_version(s, "--to", optarg), has_to = true;
            break;
        case ANCHOR:
            anchor = true;
            break;
        case AT:
            a.squash.to = cli_parse_version(s, "--at", optarg), has_at = true;
            break;
        case WORK:
            a.squash.work_dir = optarg;
            break;
        case BASE:
            a.squash.base = optarg;
            break;
        case MAX_OBJECT:
            a.squash.max_object_bytes = cli_parse_scaled(s, "--max-object", optarg);
            break;
        case SIGN_KEY:
            a.stream.keys.sign_path = optarg;
            break;
        case CLI_OPT_TRUST:
        case CLI_OPT_STREAM:
            cli_keys_take(&a.stream.keys, s, option);
            break;
        default:
            cli_store_option(&a.stream.options, s, option);
        }
    }
    cli_expect_arguments(s, argc, 1, 1);
    if (anchor == (a.squash.from != DW_NO_VERSION))
        cli_usage_error(s, "one of --from A and --anchor is wanted");
    if (anchor ? has_to : has_at)
        cli_usage_error(s, anchor ? "--anchor goes with --at, not with --to"
                                  : "--from goes with --to, not with --at");
    if (!anchor && a.squash.to <= a.squash.from)
        cli_usage_error(s, "--to must be greater than --from");
    a.squash.n_threads = s->n_threads;
    a.stream.url = argv[optind];
    return a;
}

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
    cli_print_text(stdout, url);
    putchar('\n');
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

int dw_cmd_squash(int argc, char **argv)
{
    cli_session s = cli_session_start(argc, argv, help);
    arguments a = parse(&s, argc, argv);
    int exit_code = cli_stream_open(&a.stream, &s);
    if (exit_code == 0)
        exit_code = squash(&a, &s);
    cli_stream_close(&a.stream);
    return exit_code;
}
