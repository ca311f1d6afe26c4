#include "verify_stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_info.h"

const cli_option cli_verify_rows[] = {
    {CLI_OPTION(TEXT, cli_verify_options, base, "base", "CKPT",
                "a stream that starts from a checkpoint: prove that this is it")},
    {CLI_OPTION(FLAG, cli_verify_options, no_decode, "no-decode", NULL,
                "check only records and objects of a stream: needs no room")},
    {CLI_OPTION(TEXT, cli_verify_options, work, "work", "DIR",
                "room for a copy of the model; default: TMPDIR")},
    {0},
};

void cli_verify_fault(void *context, const dw_error *fault)
{
    cli_verify_faults *f = context;
    if (f->n++ == 0)
        f->first = *fault;
    if (f->list) {
        json_array_append_new(f->list, cli_json_error(fault));
        return;
    }
    cli_progress_end(f->bar);
    fputs("fault: ", stdout);
    cli_print_text(stdout, fault->where);
    fputs(fault->where[0] ? ": " : "", stdout);
    cli_print_line(fault->text);
}

int cli_verify_fail(const cli_session *s, const cli_verify_faults *faults,
                    const dw_error *err, const char *url)
{
    const dw_error *first = &faults->first;
    if (faults->n == 0 || strcmp(first->text, err->text) != 0 ||
        strcmp(first->where, err->where) != 0)
        return cli_stream_fail(s, err, url);
    dw_error sum;
    dw_fail(&sum, err->code, url, "%" PRIu64 " %s found: the list is on stdout",
            faults->n, faults->n == 1 ? "fault was" : "faults were");
    return cli_stream_fail(s, &sum, url);
}

/* Whether version 0 is a checkpoint that was not uploaded. */
static bool has_base(const cli_stream *stream, dw_version_info *first)
{
    return dw_stream_version(stream->stream, 0, first, NULL) == DW_OK &&
           first->content == DW_CONTENT_BASE;
}

/* The result of decoding the stream. */
typedef struct decoding {
    bool tried;
    bool is_hindered; /* faults of records and objects made it impossible */
    dw_replay_report report;
} decoding;

static void print_json(const cli_stream *stream, const dw_verify_report *report,
                       const decoding *d, json_t *faults, const dw_error *err)
{
    json_t *object = json_object();
    dw_version_info first;
    cli_json_text(object, "url", stream->url);
    cli_json_text(object, "stream", dw_stream_id(stream->stream));
    if (has_base(stream, &first))
        cli_json_base_sha256(object, &first);
    cli_json_count(object, "versions", report->n_versions);
    cli_json_count(object, "shortcuts", report->n_shortcuts);
    cli_json_count(object, "objects", report->n_objects);
    cli_json_count(object, "bytes", report->n_bytes);
    cli_json_count(object, "unnamed", report->n_unnamed);
    cli_json_count(object, "orphans", report->n_orphans);
    if (report->suspect_from > 0)
        json_object_set_new(object, "suspect",
                            cli_suspect_json(report->suspect_from, report->suspect_end));
    if (d->tried) {
        cli_json_count(object, "decoded", d->report.n_decoded);
        cli_json_version(object, "first_decoded", d->report.first);
        cli_json_count(object, "left_behind", d->report.n_left);
    }
    if (d->is_hindered)
        json_object_set_new(object, "decoded", json_null());
    cli_json_count(object, "left_behind_faults", report->n_left);
    json_object_set(object, "faults", faults);
    if (err)
        json_object_set_new(object, "error", cli_json_error(err));
    cli_json_print(object);
}

static void print_decoded(const decoding *d)
{
    const dw_replay_report *r = &d->report;
    if (d->is_hindered)
        cli_print_row("decoded", "nothing: repair the faults above, then verify again");
    if (!d->tried)
        return;
    if (r->first == DW_NO_VERSION)
        cli_print_row("decoded", "none: version 0 is not in the stream, name it with "
                                 "--base");
    else
        cli_print_row("decoded", "%" PRIu64 " versions, from version %" PRIu64 " on",
                      r->n_decoded, r->first);
    if (r->n_left > 0)
        cli_print_row("left behind",
                      "%" PRIu64 " versions that cannot be rebuilt, by a restart",
                      r->n_left);
}

static void print_text(const cli_stream *stream, const dw_verify_report *report,
                       const decoding *d)
{
    char size[CLI_NUMBER_SIZE];
    dw_version_info first;
    cli_print_line(stream->url);
    cli_print_row("stream", "%s", dw_stream_id(stream->stream));
    if (has_base(stream, &first))
        cli_print_row("base", "%s",
                      first.base_sha256
                          ? "named by its SHA-256"
                          : "named only by its digest, which can be forged: "
                            "the stream has no SHA-256 of it");
    cli_print_row("versions", "%" PRIu64 ", and %" PRIu64 " shortcuts",
                  report->n_versions, report->n_shortcuts);
    cli_print_row("objects", "%" PRIu64 ", %s", report->n_objects,
                  cli_format_size(size, report->n_bytes));
    if (report->n_unnamed > 0)
        cli_print_row("leftovers", "%" PRIu64 " objects that no record names",
                      report->n_unnamed);
    if (report->n_orphans > 0)
        cli_print_row("orphans",
                      "%" PRIu64 " objects whose record is missing or damaged: keep them "
                      "until it is restored",
                      report->n_orphans);
    cli_print_suspect(report->suspect_from, report->suspect_end);
    print_decoded(d);
    if (report->n_left > 0)
        cli_print_row("no fault",
                      "%" PRIu64
                      " damaged or missing records and objects of versions that "
                      "a restart left behind",
                      report->n_left);
    cli_print_row("faults", "%" PRIu64, report->n_faults + d->report.n_faults);
}

/* Decodes all versions: intact objects may still lead to other weights. */
static dw_status decode(decoding *out, const cli_stream *stream, const cli_session *s,
                        const cli_verify_options *options, cli_verify_faults *faults,
                        dw_error *err)
{
    const dw_trust trust = cli_keys_trust(&stream->keys);
    cli_fork_opener opener = {stream->url, &stream->options};
    cli_progress bar = cli_progress_start(s, "decoding");
    const dw_replay_options replay = {.struct_bytes = sizeof replay,
                                      .spool_dir = options->work,
                                      .base = options->base,
                                      .open_store = cli_store_open_fork,
                                      .open_context = &opener,
                                      .n_threads = s->n_threads,
                                      .progress = cli_progress_hook(&bar)};
    faults->bar = &bar;
    out->tried = true;
    dw_status status = dw_stream_replay(stream->store, &trust, &replay, cli_verify_fault,
                                        faults, &out->report, err);
    cli_progress_end(&bar);
    return status;
}

static int run_sweep(const cli_stream *stream, const cli_session *s,
                     const cli_verify_options *options)
{
    dw_error err;
    decoding decoded = {0};
    dw_verify_report report = {0};
    cli_progress bar = cli_progress_start(s, "verifying");
    cli_verify_faults faults = {.bar = &bar, .list = s->json ? json_array() : NULL};
    dw_progress hook = cli_progress_hook(&bar);
    dw_status status =
        dw_stream_verify(stream->stream, cli_verify_fault, &faults, &hook, &report, &err);
    cli_progress_end(&bar);
    int exit_code = 0;
    bool swept = status == DW_OK || report.n_faults > 0;
    decoded.is_hindered = report.n_faults > 0 && !options->no_decode;
    if (status == DW_OK && !options->no_decode) {
        status = decode(&decoded, stream, s, options, &faults, &err);
        swept = status == DW_OK || decoded.report.n_faults > 0;
    }
    if (s->json && swept)
        print_json(stream, &report, &decoded, faults.list, status == DW_OK ? NULL : &err);
    else if (swept && !s->quiet)
        print_text(stream, &report, &decoded);
    if (status != DW_OK)
        exit_code = s->json && swept ? cli_exit_code(status)
                                     : cli_verify_fail(s, &faults, &err, stream->url);
    json_decref(faults.list);
    return exit_code;
}

static int check_base(const cli_stream *stream, const cli_session *s, const char *base)
{
    dw_error err;
    if (dw_stream_check_base(stream->stream, base, s->n_threads, &err) == DW_OK)
        return 0;
    return cli_stream_fail(s, &err, stream->url);
}

int cli_verify_stream(cli_stream *stream, const cli_session *s,
                      const cli_verify_options *options)
{
    int exit_code = cli_stream_open(stream, s);
    if (exit_code == 0 && options->base)
        exit_code = check_base(stream, s, options->base);
    if (exit_code == 0)
        exit_code = run_sweep(stream, s, options);
    cli_stream_close(stream);
    return exit_code;
}
