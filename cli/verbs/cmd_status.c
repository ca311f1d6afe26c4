#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/stream.h>

#include "agent/agent.h"
#include "base/clock.h"
#include "base/error.h"
#include "command_line.h"
#include "commands.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_info.h"
#include "stream_open.h"
#include "inner.h"

/* How many records to read in search of suspect versions: within as many versions, a
 * publisher compares its whole baseline by default. */
#define N_RECENT 64

typedef struct findings {
    cli_model_size model;
    uint64_t head; /* DW_NO_VERSION: none yet */
    double age;
    json_t *writer; /* of the head: epoch, library, host; or NULL */
    json_t *files;  /* companion files of the head, as in `inspect`; or NULL */
    uint64_t n_files, n_file_bytes;
    uint64_t suspect_from; /* as in dw_verify_report */
    uint64_t suspect_end;
    uint64_t floor;
    uint64_t anchor; /* the newest version with one, or DW_NO_VERSION */
    uint64_t n_stored_bytes, n_anchor_bytes, n_fold_bytes;
    bool is_reachable; /* a route leads to the head from nothing */
    uint64_t n_catch_up_bytes;
    json_t *followers; /* array of objects; the text output prints them too */
    dw_error fault;    /* the first fault of a follower */
    dw_stream *stream;
} findings;

/* ---- sizes ---- */

static dw_status add_entry(void *context, const dw_store_entry *entry, dw_error *err)
{
    findings *f = context;
    f->n_stored_bytes += entry->n_bytes;
    if (strstr(entry->key, "-anchor-"))
        f->n_anchor_bytes += entry->n_bytes;
    else if (strstr(entry->key, "-fold-"))
        f->n_fold_bytes += entry->n_bytes;
    return cli_check_signal(err);
}

/* Version 0 may be an anchor by itself. */
static dw_status look_at_first(findings *f, dw_error *err)
{
    dw_version_info info;
    if (f->floor > 0)
        return DW_OK;
    dw_status status = dw_stream_version(f->stream, 0, &info, err);
    if (status != DW_OK) /* it may be lost; then a later restart made it unneeded */
        return status == DW_NOT_FOUND ? DW_OK : status;
    if (info.content == DW_CONTENT_ANCHOR)
        f->n_anchor_bytes += info.n_bytes;
    else if (f->anchor == 0)
        f->anchor = DW_NO_VERSION;
    return DW_OK;
}

/* What an empty follower fetches: the newest anchor or version 0, and the cheapest route
 * from there. */
static dw_status count_catch_up(findings *f, dw_error *err)
{
    const dw_edge *edges;
    size_t n;
    dw_status status =
        dw_stream_route(f->stream, DW_NO_VERSION, f->head, &edges, &n, err);
    if (status != DW_OK)
        return status == DW_NOT_FOUND ? DW_OK : status;
    f->is_reachable = true;
    f->anchor = edges[0].to;
    for (size_t i = 0; i < n; i++)
        f->n_catch_up_bytes += edges[i].n_bytes;
    return DW_OK;
}

/* ---- the newest versions ---- */

static dw_status look_at_files(findings *f, dw_error *err)
{
    const dw_file_info *files;
    size_t n;
    bool is_given;
    dw_status status = dw_stream_files(f->stream, f->head, &files, &n, &is_given, err);
    if (status == DW_OK)
        f->files = cli_files_json(files, n, is_given);
    return status;
}

static dw_status look_at_recent(findings *f, dw_error *err)
{
    dw_status status = DW_OK;
    uint64_t first = f->head < N_RECENT ? 0 : f->head - N_RECENT + 1;
    if (f->anchor != DW_NO_VERSION && f->anchor > first)
        first = f->anchor;
    for (uint64_t v = first; status == DW_OK && v <= f->head; v++) {
        dw_version_info info;
        status = cli_check_signal(err);
        if (status == DW_OK)
            status = dw_stream_version(f->stream, v, &info, err);
        if (status == DW_NOT_FOUND && v < f->head) {
            status = DW_OK; /* lost; a later restart made it unneeded */
            continue;
        }
        if (status == DW_OK && info.suspect_from > 0) {
            f->suspect_from = info.suspect_from;
            f->suspect_end = info.version;
        }
        if (status == DW_OK && v == f->head) {
            f->age = cli_age(info.created);
            f->n_files = info.n_files;
            f->n_file_bytes = info.n_file_bytes;
            f->writer = json_object();
            cli_json_count(f->writer, "epoch", info.epoch);
            cli_json_provenance(f->writer, &info);
        }
    }
    return status;
}

/* ---- followers ---- */

/* Whether a follower has a version that the stream does not have: the store was rolled
 * back, or commits were lost. */
static bool is_ahead(const findings *f, uint64_t version)
{
    dw_version_info info;
    return f->head != DW_NO_VERSION && version != DW_NO_VERSION && version > f->head &&
           dw_stream_version(f->stream, version, &info, NULL) == DW_NOT_FOUND;
}

static void add_follower(void *context, const dw_follower_info *info)
{
    findings *f = context;
    json_t *row = json_object();
    cli_json_text(row, "id", info->id);
    cli_json_text(row, "host", info->host);
    cli_json_version(row, "version", info->version);
    if (f->head == DW_NO_VERSION || info->version == DW_NO_VERSION)
        json_object_set_new(row, "lag", json_null());
    else
        cli_json_count(row, "lag", info->version < f->head ? f->head - info->version : 0);
    if (is_ahead(f, info->version))
        cli_json_count(row, "ahead", info->version - f->head);
    cli_json_text(row, "time", info->time);
    double age = cli_age(info->time);
    cli_json_real(row, "age_seconds", age < 0 ? NAN : age);
    cli_json_text(row, "status", info->status);
    cli_json_flag(row, "silent", dw_follower_is_silent(info, dw_wall_clock_ms()));
    cli_json_text(row, "message", info->message);
    if (json_array_append_new(f->followers, row) != 0)
        dw_fail_memory(&f->fault, "followers");
    if (f->fault.code == DW_OK)
        cli_check_next(f->stream, info->version, f->head, &f->fault);
}

static dw_status look(findings *f, cli_stream *stream, dw_error *err)
{
    f->stream = stream->stream;
    f->model = cli_model_count(stream->stream);
    dw_status status = dw_stream_head(stream->stream, &f->head, err);
    if (status == DW_NOT_FOUND) {
        f->head = DW_NO_VERSION;
        return DW_OK;
    }
    if (status == DW_OK)
        status = dw_stream_check_log(stream->stream, err);
    if (status == DW_OK)
        status = dw_stream_floor(stream->stream, &f->floor, err);
    if (status == DW_OK)
        status = dw_store_list(stream->store, "objects/", NULL, add_entry, f, err);
    if (status == DW_OK)
        status = count_catch_up(f, err);
    if (status == DW_OK)
        status = look_at_first(f, err);
    if (status == DW_OK)
        status = look_at_recent(f, err);
    if (status == DW_OK)
        status = look_at_files(f, err);
    if (status == DW_OK)
        status = dw_stream_followers(stream->stream, add_follower, f, err);
    if (status == DW_OK && f->fault.code != DW_OK) {
        *err = f->fault;
        status = f->fault.code;
    }
    return status;
}

/* ---- printing ---- */

/* The deltas include leftovers of failed attempts until gc removes them. */
static uint64_t delta_bytes(const findings *f)
{
    uint64_t n_other = f->n_anchor_bytes + f->n_fold_bytes;
    return f->n_stored_bytes > n_other ? f->n_stored_bytes - n_other : 0;
}

static void print_json(const findings *f, const cli_stream *stream)
{
    dw_stream_info info;
    dw_stream_get_info(stream->stream, &info);
    json_t *object = json_object();
    cli_json_text(object, "url", stream->url);
    cli_json_text(object, "stream", dw_stream_id(stream->stream));
    cli_json_text(object, "writers", info.single_writer ? "single" : "conditional");
    cli_json_quantized(object, stream->stream);
    cli_json_count(object, "tensors", f->model.n_tensors);
    cli_json_count(object, "elements", f->model.n_elems);
    cli_json_count(object, "model_bytes", f->model.n_bytes);
    cli_json_version(object, "head", f->head);
    cli_json_real(object, "age_seconds", f->age < 0 ? NAN : f->age);
    if (f->writer)
        json_object_set(object, "writer", f->writer);
    if (f->files)
        json_object_set(object, "files", f->files);
    if (f->suspect_from > 0)
        json_object_set_new(object, "suspect",
                            cli_suspect_json(f->suspect_from, f->suspect_end));
    cli_json_count(object, "floor", f->floor);
    cli_json_version(object, "anchor", f->anchor);
    cli_json_count(object, "stored_bytes", f->n_stored_bytes);
    cli_json_count(object, "delta_bytes", delta_bytes(f));
    cli_json_count(object, "anchor_bytes", f->n_anchor_bytes);
    cli_json_count(object, "fold_bytes", f->n_fold_bytes);
    if (f->is_reachable)
        cli_json_count(object, "catch_up_bytes", f->n_catch_up_bytes);
    else
        json_object_set_new(object, "catch_up_bytes", json_null());
    json_object_set(object, "followers", f->followers);
    cli_json_print(object);
}

static const char *member(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

static void print_follower(const json_t *row)
{
    char age[CLI_AGE_SIZE];
    const json_t *version = json_object_get(row, "version");
    const json_t *ahead = json_object_get(row, "ahead");
    const char *message = member(row, "message");
    fputs("  ", stdout);
    cli_print_text(stdout, member(row, "id"));
    if (json_is_null(version) && message[0] &&
        strcmp(member(row, "status"), "stopped") == 0) {
        fputs(": ", stdout); /* which version its memory had, which is gone */
        cli_print_text(stdout, message);
        message = "";
    } else if (json_is_null(version))
        fputs(strcmp(member(row, "status"), "error") == 0 ? ": no version"
                                                          : ": no version yet",
              stdout);
    else if (ahead)
        printf(": version %" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT
               " ahead of the head: commits were lost, or the store was rolled back",
               json_integer_value(version), json_integer_value(ahead));
    else
        printf(": version %" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT " behind",
               json_integer_value(version),
               json_integer_value(json_object_get(row, "lag")));
    if (json_is_true(json_object_get(row, "silent"))) {
        fputs(", silent since ", stdout);
        cli_print_text(stdout, member(row, "time"));
        fputs(" (was ", stdout);
        cli_print_text(stdout, member(row, "status"));
        putchar(')');
    } else {
        fputs(", ", stdout);
        cli_print_text(stdout, member(row, "status"));
    }
    printf(", %s ago, host ", cli_format_age(age, cli_age(member(row, "time"))));
    cli_print_text(stdout, member(row, "host"));
    if (message[0]) {
        fputs(": ", stdout);
        cli_print_text(stdout, message);
    }
    putchar('\n');
}

static void print_sizes(const findings *f)
{
    char a[CLI_NUMBER_SIZE], b[CLI_NUMBER_SIZE], c[CLI_NUMBER_SIZE], d[CLI_NUMBER_SIZE];
    cli_print_row(
        "stored", "%s: deltas %s, anchors %s, folded %s",
        cli_format_size(a, f->n_stored_bytes), cli_format_size(b, delta_bytes(f)),
        cli_format_size(c, f->n_anchor_bytes), cli_format_size(d, f->n_fold_bytes));
    if (!f->is_reachable)
        cli_print_row("catch-up",
                      "no route leads to version %" PRIu64
                      ": `deltawire verify` shows what is missing",
                      f->head);
    else if (f->anchor == DW_NO_VERSION)
        cli_print_row("catch-up", "%s from version %" PRIu64 ", which is not here",
                      cli_format_size(a, f->n_catch_up_bytes), f->floor);
    else
        cli_print_row("catch-up", "%s, from nothing by the anchor of version %" PRIu64,
                      cli_format_size(a, f->n_catch_up_bytes), f->anchor);
}

/* Who wrote the head. There is no row if the commit does not record it. */
static void print_writer(const json_t *writer)
{
    const char *library = member(writer, "library"), *host = member(writer, "host");
    if (!library[0] && !host[0])
        return;
    printf("  %-10s epoch %" JSON_INTEGER_FORMAT, "writer",
           json_integer_value(json_object_get(writer, "epoch")));
    fputs(library[0] ? ", deltawire " : "", stdout);
    cli_print_text(stdout, library);
    fputs(host[0] ? ", host " : "", stdout);
    cli_print_line(host);
}

static void print_text(const findings *f, const cli_stream *stream)
{
    char age[CLI_AGE_SIZE], count[CLI_NUMBER_SIZE], size[CLI_NUMBER_SIZE];
    char quantized[CLI_QUANTIZED_SIZE];
    dw_stream_info info;
    dw_stream_get_info(stream->stream, &info);
    cli_print_line(stream->url);
    cli_print_row("stream", "%s%s", dw_stream_id(stream->stream),
                  info.single_writer
                      ? ", for a single writer: the store cannot keep two apart"
                      : "");
    cli_print_row("model", "%zu tensors, %s elements, %s", f->model.n_tensors,
                  cli_format_count(count, f->model.n_elems),
                  cli_format_size(size, f->model.n_bytes));
    if (cli_format_quantized(quantized, stream->stream))
        cli_print_row("quantised", "%s", quantized);
    if (f->head == DW_NO_VERSION) {
        cli_print_row("head", "no version yet");
        return;
    }
    cli_print_row("head", "version %" PRIu64 ", %s old", f->head,
                  cli_format_age(age, f->age));
    print_writer(f->writer);
    if (f->n_files > 0)
        cli_print_row("files", "%" PRIu64 ", %s", f->n_files,
                      cli_format_size(size, f->n_file_bytes));
    cli_print_suspect(f->suspect_from, f->suspect_end);
    cli_print_row("floor", "version %" PRIu64, f->floor);
    print_sizes(f);
    size_t n = json_array_size(f->followers);
    cli_print_row("followers", "%zu", n);
    for (size_t i = 0; i < n; i++)
        print_follower(json_array_get(f->followers, i));
}

static int run(cli_session *s)
{
    cli_stream stream = {0};
    cli_parse(s, &stream);
    stream.url = s->args[0];
    findings f = {.anchor = DW_NO_VERSION, .age = -1, .followers = json_array()};
    dw_error err;
    int exit_code = cli_stream_open(&stream, s);
    if (exit_code == 0 && look(&f, &stream, &err) != DW_OK)
        exit_code = cli_stream_fail(s, &err, stream.url);
    else if (exit_code == 0)
        (s->json ? print_json : print_text)(&f, &stream);
    json_decref(f.followers);
    json_decref(f.writer);
    json_decref(f.files);
    cli_stream_close(&stream);
    return exit_code;
}

const cli_verb cli_verb_status = {
    .name = "status",
    .summary = "show a stream's size and its followers",
    .usage = "URL [OPTION...]",
    .about = "Shows a stream: its model, its newest version, its size, what a new "
             "follower fetches, and the versions that its followers have.",
    .examples = "  deltawire status s3://bucket/run\n"
                "  deltawire status s3://bucket/run --json | "
                "jq '.followers[] | select(.lag > 5)'\n",
    .options = cli_stream_options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
