#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <deltawire/stream.h>

#include "base/error.h"
#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_info.h"
#include "stream_open.h"
#include "inner.h"

typedef struct arguments {
    cli_stream stream;
    dw_collect_options collect;
    dw_compact_options compact; /* of the anchor at the floor */
    dw_error unmade;            /* why it was not made */
    const char *forget;
} arguments;

/* ---- removing ---- */

typedef struct removals {
    const cli_session *s;
    cli_progress *bar;
    bool dry_run;
    json_t *keys; /* with --json */
} removals;

static void note_removed(void *context, const char *key, uint64_t n_bytes)
{
    removals *r = context;
    if (r->keys) {
        json_t *row = json_object();
        cli_json_text(row, "key", key);
        cli_json_count(row, "bytes", n_bytes);
        json_array_append_new(r->keys, row);
        return;
    }
    if (r->s->quiet && !r->dry_run)
        return;
    char size[CLI_NUMBER_SIZE];
    cli_progress_end(r->bar);
    fputs(r->dry_run ? "would remove " : "removed ", stdout);
    cli_print_text(stdout, key);
    printf(" (%s)\n", cli_format_size(size, n_bytes));
}

/* Any follower can write such a record, so it does not stop the collection. */
static void warn_ahead(const cli_session *s, const arguments *a,
                       const dw_collect_report *report, json_t *list)
{
    dw_error err;
    if (!report->ahead)
        return;
    dw_fail(&err, DW_CORRUPT, report->ahead,
            "it names version %" PRIu64
            ", which has no commit: commits were lost, the store is an older copy, or "
            "the record is wrong. Restore the commits; if this is all there is, forget "
            "the follower: deltawire gc %.200s --forget ID",
            report->ahead_version, a->stream.url);
    cli_warn(s, list, &err);
}

/* Why the floor is not higher, and what to do about it. */
static void print_held_by(const dw_collect_report *report, const arguments *a)
{
    char text[2 * DW_ERROR_WHERE_SIZE];
    const char *held_by = report->held_by ? report->held_by : "";
    if (strncmp(held_by, "follower ", 9) == 0)
        snprintf(text, sizeof text,
                 "%.200s. If it is gone: deltawire gc %.400s --forget ID", held_by,
                 a->stream.url);
    else if (report->floor >= report->wanted ||
             report->wanted - report->floor < a->collect.n_keep)
        snprintf(text, sizeof text, "--keep %" PRIu64, a->collect.n_keep);
    else if (a->unmade.code != DW_OK)
        snprintf(text, sizeof text,
                 "version %" PRIu64 " is not stored whole, and cannot be now: %.400s",
                 report->wanted, a->unmade.text);
    else if (a->collect.dry_run)
        snprintf(text, sizeof text,
                 "version %" PRIu64
                 " is not stored whole yet: without --dry-run gc does so first",
                 report->wanted);
    else if (!a->stream.keys.sign_key)
        snprintf(
            text, sizeof text,
            "version %" PRIu64
            " is not stored whole, so all later ones need this one. Give --sign-key, "
            "because the stream is signed: then gc stores it",
            report->wanted);
    else
        snprintf(text, sizeof text, "--keep %" PRIu64, a->collect.n_keep);
    if (held_by[0])
        cli_print_text_row("held by", text);
}

static void print_report(const cli_session *s, const arguments *a,
                         const dw_collect_report *report, json_t *keys)
{
    const char *held_by = report->held_by ? report->held_by : "";
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "url", a->stream.url);
        cli_json_flag(object, "dry_run", a->collect.dry_run);
        cli_json_count(object, "floor", report->floor);
        cli_json_count(object, "old_floor", report->old_floor);
        cli_json_count(object, "objects", report->n_objects);
        cli_json_count(object, "bytes", report->n_bytes);
        cli_json_text(object, "held_by", held_by);
        if (report->bad_anchor != DW_NO_VERSION)
            cli_json_count(object, "bad_anchor", report->bad_anchor);
        json_object_set(object, "removed", keys);
        json_t *warnings = json_array();
        warn_ahead(s, a, report, warnings);
        cli_json_warnings(object, warnings);
        json_decref(warnings);
        cli_json_print(object);
        return;
    }
    warn_ahead(s, a, report, NULL);
    if (s->quiet && !a->collect.dry_run)
        return;
    char size[CLI_NUMBER_SIZE];
    cli_print_line(a->stream.url);
    cli_print_row("removed", "%" PRIu64 " object%s, %s%s", report->n_objects,
                  cli_plural(report->n_objects), cli_format_size(size, report->n_bytes),
                  a->collect.dry_run ? " (not yet: this was a dry run)" : "");
    cli_print_row("floor", "version %" PRIu64 ", before %" PRIu64, report->floor,
                  report->old_floor);
    print_held_by(report, a);
    if (report->bad_anchor != DW_NO_VERSION)
        cli_print_row("damaged",
                      "the anchor of version %" PRIu64
                      ", so an older one stays. After the next publish run: "
                      "deltawire compact %s --anchor",
                      report->bad_anchor, a->stream.url);
}

/* Whether an anchor may be made: one without a signature is of no use to followers who
 * want the newest version to have one. */
static bool may_make(const arguments *a)
{
    dw_version_info newest;
    uint64_t head;
    return !a->collect.dry_run &&
           (a->stream.keys.sign_key ||
            (dw_stream_head(a->stream.stream, &head, NULL) == DW_OK &&
             dw_stream_version(a->stream.stream, head, &newest, NULL) == DW_OK &&
             !newest.is_signed));
}

/* If the floor has no anchor yet, makes it. What goes wrong is said as the reason why the
 * floor is not higher. */
static dw_status make_floor(arguments *a, const dw_progress *progress, dw_error *err)
{
    dw_compactor *c = NULL;
    if (!may_make(a))
        return DW_OK;
    a->compact.sign_key = a->stream.keys.sign_key;
    a->compact.trust = cli_keys_trust(&a->stream.keys);
    dw_status status = dw_compactor_open(&c, a->stream.store, &a->compact, err);
    if (status == DW_OK)
        status = dw_compactor_make_floor(c, a->collect.n_keep, progress, err);
    dw_compactor_close(c);
    if (status != DW_OK && status != DW_CANCELLED)
        a->unmade = *err;
    return status == DW_CANCELLED ? status : DW_OK;
}

static int collect(arguments *a, const cli_session *s)
{
    dw_error err;
    dw_collect_report report = {0};
    cli_progress bar = cli_progress_start(s, "collecting");
    removals r = {s, &bar, a->collect.dry_run, s->json ? json_array() : NULL};
    a->collect.removed = note_removed;
    a->collect.context = &r;
    a->collect.progress = cli_progress_hook(&bar);
    dw_status status = make_floor(a, &a->collect.progress, &err);
    if (status == DW_OK)
        status = dw_stream_collect(a->stream.stream, &a->collect, &report, &err);
    cli_progress_end(&bar);
    int exit_code = 0;
    if (status == DW_OK)
        print_report(s, a, &report, r.keys);
    else
        exit_code = cli_stream_fail(s, &err, a->stream.url);
    json_decref(r.keys);
    return exit_code;
}

static int forget(const arguments *a, const cli_session *s)
{
    dw_error err;
    if (dw_stream_forget_follower(a->stream.stream, a->forget, &err) != DW_OK)
        return err.code == DW_NOT_FOUND ? cli_fail(s, &err, a->stream.url,
                                                   "deltawire status %s", a->stream.url)
                                        : cli_stream_fail(s, &err, a->stream.url);
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "url", a->stream.url);
        cli_json_text(object, "forgotten", a->forget);
        cli_json_print(object);
    } else if (!s->quiet) {
        cli_print_text(stdout, a->stream.url);
        fputs(": forgot follower ", stdout);
        cli_print_line(a->forget);
    }
    return 0;
}

static int run(cli_session *s)
{
    arguments a = {0};
    dw_collect_options_init(&a.collect);
    dw_compact_options_init(&a.compact);
    a.collect.n_anchors = 2;
    cli_parse(s, &a);
    a.compact.n_threads = s->n_threads;
    if (!a.forget && a.collect.n_keep == 0)
        cli_usage_error(s,
                        "--keep N is missing: how many of the newest versions to keep, "
                        "at least 1");
    if (a.forget && a.collect.n_keep > 0)
        cli_usage_error(s,
                        "--forget takes no other options of gc: run gc --keep after it");
    a.stream.url = s->args[0];
    int exit_code = cli_stream_open(&a.stream, s);
    if (exit_code == 0)
        exit_code = a.forget ? forget(&a, s) : collect(&a, s);
    cli_stream_close(&a.stream);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(COUNT, arguments, collect.n_keep, "keep", "N",
                "versions that stay reachable, at least 1")},
    {CLI_OPTION(FLAG, arguments, collect.dry_run, "dry-run", NULL,
                "only list what would be removed")},
    {CLI_OPTION(
        TEXT, arguments, compact.work_dir, "work", "DIR",
        "room for a copy of the model, if a version must be stored whole; default: "
        "TMPDIR")},
    {CLI_OPTION(TEXT, arguments, compact.base, "base", "CKPT",
                "the checkpoint behind a version 0 that was not uploaded")},
    {CLI_OPTION(TEXT, arguments, stream.keys.sign_path, "sign-key", "FILE",
                "sign the record of a version that is stored whole")},
    {CLI_OPTION(TEXT, arguments, forget, "forget", "ID",
                "take a follower off the list, so that it holds nothing back")},
    {CLI_GROUP("stream", arguments, stream, cli_stream, cli_stream_options)},
    {0},
};

const cli_verb cli_verb_gc = {
    .name = "gc",
    .summary = "remove old versions of a stream",
    .usage = "URL --keep N [--dry-run] [OPTION...]\n"
             "URL --forget ID",
    .about = "Removes objects that neither the newest N versions nor a follower that "
             "reports needs, and lists them. If N versions or more would stay only "
             "because no later "
             "one is stored whole, it stores one first. May run beside publishers and "
             "followers. The "
             "records of all versions stay, so that the log is complete.",
    .examples = "  deltawire gc s3://bucket/run --keep 50 --dry-run\n"
                "  deltawire gc s3://bucket/run --forget node7-1f2e3d4c\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
