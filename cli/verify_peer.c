/* `deltawire verify` of another system's versions. */
#include <inttypes.h>
#include <stdio.h>

#include "fail.h"
#include "json_out.h"
#include "peer_verbs.h"
#include "print.h"
#include "stream_open.h"
#include "verify_stream.h"

typedef struct sweep {
    cli_verify_faults faults;
    cli_peer_notes notes;
} sweep;

static void take_fault(void *context, const dw_error *fault)
{
    cli_verify_fault(&((sweep *)context)->faults, fault);
}

static void take_note(void *context, const char *note)
{
    cli_peer_note(&((sweep *)context)->notes, note);
}

static void print_json(const dw_peer *peer, const char *url,
                       const dw_peer_verify_report *report, const sweep *w,
                       const dw_error *err)
{
    json_t *object = json_object();
    cli_json_text(object, "url", url);
    cli_json_text(object, "format", dw_peer_format_name(dw_peer_get_format(peer)));
    cli_json_count(object, "versions", report->n_versions);
    cli_json_count(object, "replayed", report->n_replayed);
    cli_json_count(object, "objects", report->n_objects);
    cli_json_count(object, "bytes", report->n_bytes);
    cli_json_count(object, "checked", report->n_checked);
    cli_json_count(object, "missing", report->n_missing);
    json_object_set(object, "notes", w->notes.list);
    json_object_set(object, "faults", w->faults.list);
    if (err)
        json_object_set_new(object, "error", cli_json_error(err));
    cli_json_print(object);
}

static void print_text(const dw_peer *peer, const char *url,
                       const dw_peer_verify_report *report)
{
    char size[CLI_NUMBER_SIZE], count[CLI_NUMBER_SIZE];
    cli_print_text(stdout, url);
    putchar('\n');
    cli_print_row("format", "%s", dw_peer_format_name(dw_peer_get_format(peer)));
    cli_print_row("versions", "%" PRIu64 ", of which %" PRIu64 " were replayed",
                  report->n_versions, report->n_replayed);
    cli_print_row("objects", "%" PRIu64 ", %s", report->n_objects,
                  cli_format_size(size, report->n_bytes));
    cli_print_row("checksums", "%s of tensors compared",
                  cli_format_count(count, report->n_checked));
    if (report->n_missing > 0)
        cli_print_row("missing", "%" PRIu64 " numbers have no file", report->n_missing);
    cli_print_row("faults", "%" PRIu64, report->n_faults);
}

int cli_peer_verify(dw_peer *peer, const cli_session *s, const char *url,
                    const char *base)
{
    dw_error err;
    dw_peer_verify_report report = {0};
    cli_progress bar = cli_progress_start(s, "verifying");
    sweep w = {{.bar = &bar, .list = s->json ? json_array() : NULL},
               {s, &bar, s->json ? json_array() : NULL}};
    const dw_peer_verify_options options = {.struct_bytes = sizeof options,
                                            .base = base,
                                            .n_threads = s->n_threads,
                                            .fault = take_fault,
                                            .note = take_note,
                                            .context = &w,
                                            .progress = cli_progress_hook(&bar)};
    dw_status status = dw_peer_verify(peer, &options, &report, &err);
    cli_progress_end(&bar);
    const bool swept = status == DW_OK || report.n_faults > 0;
    if (s->json && swept)
        print_json(peer, url, &report, &w, status == DW_OK ? NULL : &err);
    else if (swept && !s->quiet)
        print_text(peer, url, &report);
    json_decref(w.faults.list);
    json_decref(w.notes.list);
    if (status == DW_OK)
        return 0;
    return s->json && swept ? cli_exit_code(status)
                            : cli_verify_fail(s, &w.faults, &err, url);
}
