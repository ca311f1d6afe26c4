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

typedef struct arguments {
    cli_stream stream;
    const char *checkpoint; /* or NULL */
    dw_publish_options options;
    cli_with with;
} arguments;

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
    cli_print_line(a->stream.url);
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
    cli_writer_notices(o, s, a->stream.url);
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

static int run(cli_session *s)
{
    arguments a = {0};
    dw_publish_options_init(&a.options);
    cli_parse(s, &a);
    a.options.n_threads = s->n_threads;
    a.stream.url = s->args[0];
    a.checkpoint = s->n_args == 2 ? s->args[1] : NULL;
    if (!a.checkpoint && cli_any_given(cli_with_options, &a.with))
        cli_usage_error(s, "--with and --without choose from the files of a checkpoint: "
                           "name one");
    int exit_code = cli_stream_open(&a.stream, s);
    if (exit_code == 0)
        exit_code = repair(&a, s);
    cli_stream_close(&a.stream);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, arguments, options.first_step, "step", "TEXT",
                "the trainer's own number of this version")},
    {CLI_OPTION(TEXT, arguments, options.first_notes, "notes", "TEXT",
                "free text, up to 4096 bytes")},
    {CLI_OPTION(TEXT, arguments, options.spool_dir, "work", "DIR",
                "room for a copy of the model; default: TMPDIR")},
    {CLI_OPTION(TEXT, arguments, options.base, "base", "CKPT",
                "the checkpoint behind a version 0 that was not uploaded")},
    {CLI_OPTION(TEXT, arguments, stream.keys.sign_path, "sign-key", "FILE",
                "sign with this key; see deltawire keygen")},
    {CLI_GROUP("own", arguments, options, dw_publish_options, cli_writer_options)},
    {CLI_GROUP("with", arguments, with, cli_with, cli_with_options)},
    {CLI_GROUP("stream", arguments, stream, cli_stream, cli_stream_options)},
    {0},
};

const cli_verb cli_verb_repair = {
    .name = "repair",
    .summary = "let a stream go on whose newest version is broken",
    .usage = "URL [CKPT] [OPTION...]",
    .about =
        "Lets a stream continue whose newest versions cannot be decoded or have lost "
        "objects. Writes one more version that holds the whole model and needs no "
        "version "
        "before it: CKPT or, without it, the newest version that can still be rebuilt. "
        "Followers cross over to it by themselves, and publish continues after it. "
        "deltawire verify URL shows which version is broken. Stop the trainer first: "
        "this "
        "takes the stream over from it.",
    .examples = "  deltawire repair s3://bucket/run output/checkpoint-1200\n"
                "  deltawire repair s3://bucket/run --work /scratch\n",
    .options = options,
    .n_least = 1,
    .n_most = 2,
    .run = run,
};
