#include "sync_report.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "json_out.h"
#include "print.h"
#include "stream_info.h"

void cli_sync_report_json(json_t *object, const dw_follow_report *report, double seconds)
{
    cli_json_version(object, "from", report->from);
    cli_json_version(object, "version", report->version);
    cli_json_count(object, "steps", report->n_steps);
    cli_json_count(object, "objects", report->n_objects);
    cli_json_count(object, "bytes", report->n_bytes);
    cli_json_count(object, "changed", report->n_changed);
    cli_json_count(object, "fetch_ms", report->fetch_ms);
    cli_json_count(object, "stage_ms", report->stage_ms);
    cli_json_count(object, "apply_ms", report->apply_ms);
    cli_json_times(object, &report->times, dw_follow_moment_name);
    cli_json_real(object, "seconds", seconds);
}

void cli_sync_files_json(json_t *object, const dw_follower *f,
                         const dw_follow_report *report)
{
    size_t n_kept;
    const char *const *kept = dw_follower_files_kept(f, &n_kept);
    json_t *list = json_array();
    for (size_t i = 0; i < n_kept; i++)
        json_array_append_new(list, cli_json_string(kept[i]));
    cli_json_count(object, "files_installed", report->n_files_installed);
    cli_json_count(object, "files_removed", report->n_files_removed);
    json_object_set_new(object, "files_kept", list);
}

void cli_warn_kept(const cli_session *s, const dw_follower *f, json_t *list)
{
    size_t n_kept;
    const char *const *kept = dw_follower_files_kept(f, &n_kept);
    for (size_t i = 0; i < n_kept; i++) {
        dw_error err;
        dw_fail(&err, DW_CONFLICT, kept[i],
                "it is not the version's file, nor one that deltawire installed: it "
                "stays as it is. Remove it to let deltawire install the version's");
        cli_warn(s, list, &err);
    }
}

void cli_warn_healed(const cli_session *s, const char *into, uint64_t n, json_t *list)
{
    dw_error err;
    dw_fail(&err, DW_CORRUPT, into,
            "the weights were damaged, or another program changed them: they are fetched "
            "again. Find out why");
    if (n > 0)
        cli_warn(s, list, &err);
}

void cli_warn_stray(const cli_session *s, const char *into, uint64_t n, json_t *list)
{
    dw_error err;
    dw_fail(
        &err, DW_CONFLICT, into,
        "its state file does not name the patch that was there: the patch was removed, "
        "and not applied");
    if (n > 0)
        cli_warn(s, list, &err);
}

/* Prints "; 7 files installed, 1 removed". */
static void print_files(const dw_follow_report *report)
{
    const uint64_t n = report->n_files_installed, n_removed = report->n_files_removed;
    if (n > 0)
        printf("; %" PRIu64 " file%s installed", n, n == 1 ? "" : "s");
    if (n > 0 && n_removed > 0)
        printf(", %" PRIu64 " removed", n_removed);
    else if (n_removed > 0)
        printf("; %" PRIu64 " file%s removed", n_removed, n_removed == 1 ? "" : "s");
    putchar('\n');
}

void cli_sync_report_line(const dw_follow_report *report, double seconds)
{
    char size[CLI_NUMBER_SIZE];
    if (report->n_steps == 0 && report->from == report->version) {
        const bool has_moved_files =
            report->n_files_installed > 0 || report->n_files_removed > 0;
        printf("version %" PRIu64 ": %s", report->version,
               has_moved_files ? "weights unchanged" : "nothing new");
        print_files(report);
        return;
    }
    printf("version %" PRIu64 " from ", report->version);
    if (report->from == DW_NO_VERSION)
        fputs("nothing", stdout);
    else
        printf("%" PRIu64, report->from);
    printf(": %" PRIu64 " step%s, %" PRIu64 " object%s, %s in %.3f s", report->n_steps,
           report->n_steps == 1 ? "" : "s", report->n_objects,
           report->n_objects == 1 ? "" : "s", cli_format_size(size, report->n_bytes),
           seconds);
    print_files(report);
}

void cli_report_private(const cli_session *s, const char *into, uint64_t n)
{
    if (n == 0 || s->quiet)
        return;
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "private");
        cli_json_text(object, "into", into);
        cli_json_count(object, "files", n);
        cli_json_event(object);
        return;
    }
    cli_print_message(
        into,
        "%" PRIu64 " file%s of the weights %s a link or had a second name, and %s a "
        "private copy now",
        n, n == 1 ? "" : "s", n == 1 ? "was" : "were", n == 1 ? "is" : "are each");
}
