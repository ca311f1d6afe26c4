#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/stream.h>

#include "command_line.h"
#include "commands.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_info.h"
#include "stream_open.h"

#define N_DEFAULT      20
#define SHORT_DIGITS   8
#define STEP_COLUMNS   16
#define ANCHOR         "anchor"
#define SHORTCUTS_TEXT 64
#define SHORT_CREATED  19 /* without fractions of a second and zone */

typedef struct log_list {
    const cli_session *s;
    dw_stream *stream;
    dw_edge *shortcuts; /* to the listed versions */
    size_t n_shortcuts;
    uint64_t floor;
    bool with_times;
    json_t *rows;      /* with --json */
    json_t *followers; /* with --json and times */
} log_list;

/* ---- a row ---- */

/* "anchor, 8, 0": the versions that the shortcuts to this one start from. */
static void format_shortcuts(char out[SHORTCUTS_TEXT], const log_list *list,
                             uint64_t version)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < list->n_shortcuts && n < SHORTCUTS_TEXT; i++) {
        const dw_edge *shortcut = &list->shortcuts[i];
        const char *comma = n > 0 ? ", " : "";
        int n_more = 0;
        if (shortcut->to != version)
            continue;
        if (shortcut->from == DW_NO_VERSION)
            n_more = snprintf(out + n, SHORTCUTS_TEXT - n, "%s" ANCHOR, comma);
        else
            n_more = snprintf(out + n, SHORTCUTS_TEXT - n, "%s%" PRIu64, comma,
                              shortcut->from);
        n += (size_t)n_more;
    }
}

static json_t *shortcuts_json(const log_list *list, uint64_t version)
{
    json_t *shortcuts = json_array();
    for (size_t i = 0; i < list->n_shortcuts; i++) {
        const dw_edge *shortcut = &list->shortcuts[i];
        if (shortcut->to != version)
            continue;
        json_t *row = json_object();
        cli_json_version(row, "from", shortcut->from);
        cli_json_count(row, "bytes", shortcut->n_bytes);
        cli_json_count(row, "objects", shortcut->n_objects);
        json_array_append_new(shortcuts, row);
    }
    return shortcuts;
}

static json_t *version_json(const log_list *list, const dw_version_info *info)
{
    json_t *row = json_object();
    cli_json_count(row, "version", info->version);
    cli_json_text(row, "created", info->created);
    cli_json_text(row, "step", info->step);
    cli_json_text(row, "notes", info->notes);
    cli_json_text(row, "content", cli_content_name(info->content));
    if (info->restart)
        json_object_set_new(row, "restart", json_true());
    cli_json_digest(row, "state", info->state);
    cli_json_count(row, "epoch", info->epoch);
    cli_json_provenance(row, info);
    cli_json_count(row, "changed", info->n_changed);
    cli_json_count(row, "objects", info->n_objects);
    cli_json_count(row, "bytes", info->n_bytes);
    cli_json_count(row, "files", info->n_files);
    cli_json_count(row, "file_bytes", info->n_file_bytes);
    if (list->with_times)
        cli_json_times(row, &info->times, dw_publish_moment_name);
    cli_json_flag(row, "collected", info->version < list->floor);
    json_object_set_new(row, "shortcuts", shortcuts_json(list, info->version));
    if (info->suspect_from > 0)
        cli_json_count(row, "suspect_from", info->suspect_from);
    if (info->is_signed) {
        char key[DW_PUBLIC_KEY_TEXT];
        dw_public_key_format(key, info->key);
        cli_json_text(row, "key", key);
    }
    if (info->base)
        cli_json_text(row, "base", info->base);
    if (info->content == DW_CONTENT_BASE)
        cli_json_base_sha256(row, info);
    if (info->source.stream) {
        char sha256[2 * 32 + 1];
        json_t *source = json_object();
        for (size_t i = 0; i < 32; i++)
            snprintf(sha256 + 2 * i, 3, "%02x", info->source.commit_sha256[i]);
        cli_json_text(source, "stream", info->source.stream);
        cli_json_count(source, "version", info->source.version);
        cli_json_text(source, "commit_sha256", sha256);
        json_object_set_new(row, "source", source);
    }
    if (info->fork_url) {
        cli_json_text(row, "fork_url", info->fork_url);
        cli_json_count(row, "fork_version", info->fork_version);
    }
    return row;
}

/* Prints the training step in a column of STEP_COLUMNS. A longer text is cut; --json has
 * all of it. */
static void print_step(const char *step)
{
    char shown[4 * STEP_COLUMNS + 8];
    int n_columns = 0;
    size_t n = 0;
    for (; step[n] && (n_columns < STEP_COLUMNS || (step[n] & 0xc0) == 0x80); n++) {
        n_columns += (step[n] & 0xc0) != 0x80; /* UTF-8: a byte that begins a character */
        shown[n] = step[n];
    }
    if (step[n]) { /* an ellipsis replaces the last character */
        while ((shown[--n] & 0xc0) == 0x80)
            ;
        n += (size_t)snprintf(shown + n, sizeof shown - n, "\u2026");
    }
    shown[n] = '\0';
    cli_print_text(stdout, shown);
    printf("%*s  ", STEP_COLUMNS - n_columns, "");
}

static void print_times(const char *prefix, const dw_times *times,
                        const char *(*name)(unsigned moment))
{
    const char *before = prefix;
    for (unsigned i = 0; i < DW_N_MOMENTS; i++) {
        if (times->us[i] == 0)
            continue;
        printf("%s%s %.1f", before, name(i), 1e-3 * (double)times->us[i]);
        before = ", ";
    }
    if (before != prefix)
        puts(" ms");
}

static void print_version(const log_list *list, const dw_version_info *info)
{
    char changed[CLI_NUMBER_SIZE], size[CLI_NUMBER_SIZE], shortcuts[SHORTCUTS_TEXT];
    char key[DW_PUBLIC_KEY_TEXT] = "", suspect[CLI_SUSPECT_SIZE];
    format_shortcuts(shortcuts, list, info->version);
    if (info->is_signed)
        dw_public_key_format(key, info->key);
    const char *digits = strchr(key, ':');
    printf("%7" PRIu64 "  ", info->version);
    printf("%-*.*s  ", SHORT_CREATED, SHORT_CREATED, info->created);
    print_step(info->step);
    printf("%-7s %13s %9s  %-16s %-*.*s  ",
           info->restart ? "restart" : cli_content_name(info->content),
           cli_format_count(changed, info->n_changed),
           cli_format_size(size, info->n_bytes),
           info->version < list->floor ? "collected" : shortcuts, SHORT_DIGITS,
           SHORT_DIGITS, digits ? digits + 1 : "-");
    if (info->suspect_from > 0)
        printf("[suspect: %s] ",
               cli_format_suspect(suspect, info->suspect_from, info->version));
    if (info->base)
        fputs("base: ", stdout), cli_print_text(stdout, info->base);
    if (info->fork_url) {
        printf("version %" PRIu64 " of ", info->fork_version);
        cli_print_text(stdout, info->fork_url);
    }
    if (info->source.stream)
        printf("of version %" PRIu64 "%s", info->source.version,
               info->notes[0] ? "; " : "");
    if ((info->base || info->fork_url) && info->notes[0])
        fputs("; ", stdout);
    cli_print_line(info->notes);
    if (list->with_times)
        print_times("         ", &info->times, dw_publish_moment_name);
}

/* ---- followers ---- */

/* Their newest updates: the time line of a version goes on there. */
static void show_follower(void *context, const dw_follower_info *f)
{
    const log_list *list = context;
    if (!list->rows) {
        char prefix[128];
        snprintf(prefix, sizeof prefix, "%7" PRIu64 "  %.64s: ", f->version, f->id);
        if (f->version != DW_NO_VERSION)
            print_times(prefix, &f->times, dw_follow_moment_name);
        return;
    }
    json_t *row = json_object();
    cli_json_text(row, "id", f->id);
    cli_json_version(row, "version", f->version);
    cli_json_times(row, &f->times, dw_follow_moment_name);
    json_array_append_new(list->followers, row);
}

/* ---- the list ---- */

static dw_status list_versions(log_list *list, uint64_t n_most, uint64_t *head,
                               dw_error *err)
{
    dw_status status = dw_stream_head(list->stream, head, err);
    if (status == DW_OK)
        status = dw_stream_floor(list->stream, &list->floor, err);
    if (status == DW_OK)
        status = cli_copy_shortcuts(
            list->stream, n_most == 0 || n_most > *head ? 0 : *head - n_most + 1, *head,
            &list->shortcuts, &list->n_shortcuts, err);
    if (status != DW_OK)
        return status;
    if (!list->rows && !list->s->quiet)
        printf("%7s  %-19s  %-*s  %-7s %13s %9s  %-16s %-8s  %s\n", "version",
               "time (UTC)", STEP_COLUMNS, "step", "content", "changed", "bytes",
               "also from", "signer", "notes");
    for (uint64_t n = 0; n <= *head && (n_most == 0 || n < n_most); n++) {
        dw_version_info info;
        status = cli_check_signal(err);
        if (status == DW_OK)
            status = dw_stream_version(list->stream, *head - n, &info, err);
        if (status == DW_NOT_FOUND &&
            n > 0) { /* lost; a later restart made it unneeded */
            if (*head - n < list->floor)
                break;
            if (!list->rows)
                printf("%7" PRIu64 "  missing\n", *head - n);
            continue;
        }
        if (status != DW_OK)
            return status;
        if (list->rows)
            json_array_append_new(list->rows, version_json(list, &info));
        else
            print_version(list, &info);
    }
    return DW_OK;
}

static int print_log(const cli_stream *stream, uint64_t n_most, bool with_times,
                     const cli_session *s)
{
    dw_error err;
    uint64_t head = 0;
    log_list list = {.s = s, .stream = stream->stream, .with_times = with_times};
    list.rows = s->json ? json_array() : NULL;
    list.followers = s->json && with_times ? json_array() : NULL;
    char quantized[CLI_QUANTIZED_SIZE];
    if (!s->json && !s->quiet && cli_format_quantized(quantized, stream->stream))
        printf("quantised: %s\n", quantized);
    dw_status status = list_versions(&list, n_most, &head, &err);
    if (status == DW_OK && with_times)
        status = dw_stream_followers(stream->stream, show_follower, &list, &err);
    int exit_code = status == DW_OK ? 0 : cli_stream_fail(s, &err, stream->url);
    json_t *warnings = s->json ? json_array() : NULL;
    if (status == DW_OK)
        cli_warn_lost(s, stream->stream, warnings);
    if (status == DW_OK && s->json) {
        json_t *object = json_object();
        cli_json_text(object, "url", stream->url);
        cli_json_text(object, "stream", dw_stream_id(stream->stream));
        cli_json_quantized(object, stream->stream);
        cli_json_count(object, "head", head);
        cli_json_count(object, "floor", list.floor);
        json_object_set(object, "versions", list.rows);
        if (list.followers)
            json_object_set(object, "followers", list.followers);
        cli_json_warnings(object, warnings);
        cli_json_print(object);
    }
    json_decref(warnings);
    json_decref(list.rows);
    json_decref(list.followers);
    free(list.shortcuts);
    return exit_code;
}

typedef struct arguments {
    cli_stream stream;
    uint64_t n_most;
    bool with_times;
} arguments;

static int run(cli_session *s)
{
    arguments a = {.n_most = N_DEFAULT};
    cli_parse(s, &a);
    a.stream.url = s->args[0];
    int exit_code = cli_stream_open(&a.stream, s);
    if (exit_code == 0)
        exit_code = print_log(&a.stream, a.n_most, a.with_times, s);
    cli_stream_close(&a.stream);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(COUNT, arguments, n_most, "number", "N", "at most so many (20); 0: all"),
     .letter = 'n'},
    {CLI_OPTION(FLAG, arguments, with_times, "timing", NULL,
                "when each part of a version was done: by its writer, counted from the "
                "publish; by followers, since they found it")},
    {CLI_GROUP("stream", arguments, stream, cli_stream, cli_stream_options)},
    {0},
};

const cli_verb cli_verb_log = {
    .name = "log",
    .summary = "list the versions of a stream",
    .usage = "URL [-n N] [OPTION...]",
    .about =
        "Lists the versions of a stream, newest first: the weights each changed, its "
        "size, the shortcuts to it (anchors and folds), its signer.",
    .examples = "  deltawire log s3://bucket/run\n"
                "  deltawire log s3://bucket/run -n 0 --json\n"
                "  deltawire log s3://bucket/run --timing\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
