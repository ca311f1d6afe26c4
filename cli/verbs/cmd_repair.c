#include <inttypes.h>
#include <stdio.h>

#include <deltawire/publish.h>

#include "checkpoint_read.h"
#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "publish_files.h"
#include "stream_open.h"

static const char help[] =
    "usage: deltawire repair URL [CKPT] [OPTION...]\n"
    "\n"
    "Lets a stream continue whose newest versions cannot be decoded or have lost "
    "objects.\n"
    "Writes one more version that holds the whole model and needs no version before it:\n"
    "CKPT or, without it, the newest version that can still be rebuilt. Followers cross\n"
    "over to it by themselves, and publish continues after it. deltawire verify URL "
    "shows\n"
    "which version is broken. Stop the trainer first: this takes the stream over from "
    "it.\n"
    "\n"
    "  --step TEXT          the trainer's own number of this version\n"
    "  --notes TEXT         free text, up to 4096 bytes\n"
    "  --work DIR           room for a copy of the model; default: TMPDIR\n"
    "  --base CKPT          the checkpoint behind a version 0 that was not uploaded\n"
    "  --sign-key FILE      sign with this key; see deltawire keygen\n"
    "  --new-key            allow another key, or none, for a stream that is "
    "signed\n" CLI_TRUST_HELP
    "  --single-writer      accept a store that cannot keep two writers apart\n"
    "  --no-provenance      do not record this machine's name and the library's "
    "version\n" CLI_WITH_HELP CLI_STORE_HELP "  --json  --threads N  --quiet  --help\n"
    "\n"
    "  deltawire repair s3://bucket/run output/checkpoint-1200\n"
    "  deltawire repair s3://bucket/run --work /scratch\n";

typedef struct arguments {
    cli_stream stream;
    const char *checkpoint; /* or NULL */
    dw_publish_options options;
    cli_with with;
} arguments;

static arguments parse(cli_session *s, int argc, char **argv)
{
    enum {
        STEP = CLI_OPT_OWN,
        NOTES,
        WORK,
        BASE,
        SIGN_KEY,
        NEW_KEY,
        SINGLE_WRITER,
        NO_PROVENANCE
    };
    static const struct option options[] = {
        {"step", required_argument, NULL, STEP},
        {"notes", required_argument, NULL, NOTES},
        {"work", required_argument, NULL, WORK},
        {"base", required_argument, NULL, BASE},
        {"sign-key", required_argument, NULL, SIGN_KEY},
        {"new-key", no_argument, NULL, NEW_KEY},
        CLI_TRUST_OPTIONS,
        {"single-writer", no_argument, NULL, SINGLE_WRITER},
        {"no-provenance", no_argument, NULL, NO_PROVENANCE},
        CLI_WITH_OPTIONS,
        CLI_STORE_OPTIONS,
        CLI_COMMON_OPTIONS,
    };
    arguments a = {0};
    dw_publish_options_init(&a.options);
    for (int option; (option = cli_next_option(s, argc, argv, options)) != -1;) {
        switch (option) {
        case STEP:
            a.options.first_step = optarg;
            break;
        case NOTES:
            a.options.first_notes = optarg;
            break;
        case WORK:
            a.options.spool_dir = optarg;
            break;
        case BASE:
            a.options.base = optarg;
            break;
        case SIGN_KEY:
            a.stream.keys.sign_path = optarg;
            break;
        case NEW_KEY:
            a.options.new_key = true;
            break;
        case CLI_OPT_TRUST:
        case CLI_OPT_STREAM:
            cli_keys_take(&a.stream.keys, s, option);
            break;
        case SINGLE_WRITER:
            a.options.single_writer = true;
            break;
        case NO_PROVENANCE:
            a.options.no_provenance = true;
            break;
        default:
            if (!cli_with_option(&a.with, s, option))
                cli_store_option(&a.stream.options, s, option);
        }
    }
    cli_expect_arguments(s, argc, 1, 2);
    a.options.n_threads = s->n_threads;
    a.stream.url = argv[optind];
    a.checkpoint = argc - optind == 2 ? argv[optind + 1] : NULL;
    if (!a.checkpoint && a.with.n_with + a.with.n_without > 0)
        cli_usage_error(s, "--with and --without choose from the files of a checkpoint: "
                           "name one");
    return a;
}

static void print_report(const dw_repair_report *r, const arguments *a,
                         const cli_session *s)
{
    char size[CLI_NUMBER_SIZE];
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "url", a->stream.url);
        cli_json_count(object, "version", r->version);
        cli_json_version(object, "source", r->source);
        cli_json_digest(object, "state", r->state);
        cli_json_count(object, "objects", r->n_objects);
        cli_json_count(object, "bytes", r->n_bytes);
        cli_json_print(object);
        return;
    }
    if (s->quiet)
        return;
    cli_print_text(stdout, a->stream.url);
    putchar('\n');
    if (r->source == DW_NO_VERSION)
        cli_print_row("version", "%" PRIu64 ", a restart from %s", r->version,
                      a->checkpoint);
    else
        cli_print_row("version", "%" PRIu64 ", a restart from version %" PRIu64,
                      r->version, r->source);
    cli_print_row("size", "%s in %" PRIu64 " object%s", cli_format_size(size, r->n_bytes),
                  r->n_objects, r->n_objects == 1 ? "" : "s");
    cli_print_row("state", "%016" PRIx64, r->state);
}

static int repair(arguments *a, const cli_session *s)
{
    dw_error err;
    cli_weights weights = {0};
    dw_repair_report report;
    dw_publish_options *o = &a->options;
    if (a->checkpoint && cli_weights_load_noted(&weights, a->checkpoint, &err) != DW_OK)
        return cli_fail(s, &err, a->checkpoint, NULL);
    dw_companions *files = NULL;
    if (a->checkpoint &&
        cli_files_load(&files, o, &a->with, a->checkpoint, &err) != DW_OK) {
        cli_weights_close(&weights);
        return cli_fail(s, &err, a->checkpoint, NULL);
    }
    if (files)
        cli_with_warn(&a->with, o, s);
    cli_progress bar = cli_progress_start(s, "repairing");
    o->sign_key = a->stream.keys.sign_key;
    o->trust = cli_keys_trust(&a->stream.keys);
    o->progress = cli_progress_hook(&bar);
    o->confirm = cli_weights_confirm;
    o->confirm_context = &weights;
    dw_status status = dw_stream_repair(a->stream.store, weights.tensors,
                                        weights.n_tensors, o, &report, &err);
    cli_progress_end(&bar);
    dw_companions_close(files);
    cli_weights_close(&weights);
    if (status != DW_OK)
        return cli_stream_fail(s, &err, a->stream.url);
    print_report(&report, a, s);
    return 0;
}

int dw_cmd_repair(int argc, char **argv)
{
    cli_session s = cli_session_start(argc, argv, help);
    arguments a = parse(&s, argc, argv);
    int exit_code = cli_stream_open(&a.stream, &s);
    if (exit_code == 0)
        exit_code = repair(&a, &s);
    cli_stream_close(&a.stream);
    return exit_code;
}
