#include "peer_verbs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <deltawire/checkpoint.h>

#include "base/error.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"
#include "sync_report.h"

void cli_peer_note(void *context, const char *library_note)
{
    cli_peer_notes *notes = context;
    char note[DW_ERROR_TEXT_SIZE];
    cli_text_with_flags(note, library_note);
    if (notes->list) {
        json_array_append_new(notes->list, json_string(note));
        return;
    }
    if (notes->s->quiet)
        return;
    if (notes->bar)
        cli_progress_end(notes->bar);
    fputs("note: ", stderr);
    cli_print_text(stderr, note);
    fputc('\n', stderr);
}

bool cli_peer_found(dw_peer **out, dw_store *store, const dw_error *err)
{
    return err->code == DW_NOT_FOUND && dw_peer_open(out, store, NULL) == DW_OK;
}

bool cli_peer_is_dir(const char *path)
{
    dw_store *store;
    dw_peer_format format;
    dw_checkpoint *ckpt;
    if (dw_checkpoint_open(&ckpt, path, DW_CHECKPOINT_READ, NULL) == DW_OK) {
        dw_checkpoint_close(ckpt); /* the directory may hold other files */
        return false;
    }
    if (dw_store_open(&store, path, NULL, NULL) != DW_OK)
        return false;
    bool is_peer = dw_peer_detect(store, &format, NULL) == DW_OK;
    dw_store_close(store);
    return is_peer;
}

int cli_peer_check_trust(const dw_peer *peer, const cli_session *s, const cli_keys *keys,
                         const char *url)
{
    dw_error err;
    if (cli_keys_trust(keys).n_keys == 0 && !keys->stream)
        return 0;
    dw_fail(&err, DW_UNTRUSTED, url,
            "its versions are in the format of %s, which has no %s: %s cannot be kept",
            dw_peer_format_name(dw_peer_get_format(peer)),
            keys->stream ? "stream id" : "signatures",
            keys->stream ? "--stream" : "--trust");
    return cli_fail(s, &err, url, NULL);
}

dw_peer_replica_options cli_peer_replica_options(const dw_follow_options *follow,
                                                 cli_peer_notes *notes)
{
    dw_peer_replica_options options;
    dw_peer_replica_options_init(&options);
    options.into = follow->into;
    options.base = follow->base;
    options.n_threads = follow->n_threads;
    options.reader_wait_ms = follow->reader_wait_ms;
    options.note = cli_peer_note;
    options.note_context = notes;
    return options;
}

/* Members that both kinds of reports have. */
static dw_follow_report common_part(const dw_peer_sync_report *report)
{
    return (dw_follow_report){.from = report->from,
                              .version = report->version,
                              .n_steps = report->n_steps,
                              .n_objects = report->n_objects,
                              .n_bytes = report->n_bytes,
                              .n_changed = report->n_changed};
}

void cli_peer_report_json(json_t *object, const dw_peer *peer,
                          const dw_peer_sync_report *report, double seconds)
{
    const dw_follow_report common = common_part(report);
    cli_json_text(object, "format", dw_peer_format_name(dw_peer_get_format(peer)));
    cli_sync_counts_json(object, &common);
    cli_json_count(object, "checked", report->n_checked);
    cli_json_count(object, "missing", report->n_missing);
    json_object_set_new(object, "verified", json_boolean(report->is_verified));
    cli_json_real(object, "seconds", seconds);
}

void cli_peer_report_line(const dw_peer *peer, const dw_peer_sync_report *report,
                          double seconds)
{
    const dw_follow_report line = common_part(report);
    const char *name = dw_peer_format_name(dw_peer_get_format(peer));
    cli_sync_report_line(&line, seconds);
    if (report->n_steps == 0)
        return;
    printf("  %s: ", name);
    if (report->is_verified)
        printf("%" PRIu64 " tensors proven by their checksums\n", report->n_checked);
    else if (report->n_checked > 0)
        printf("%" PRIu64 " tensors proven by their checksums; others came without\n",
               report->n_checked);
    else
        puts("not verified: these files carry nothing to verify against");
}
