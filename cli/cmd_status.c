#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deltawire/stream.h>

#include "commands.h"
#include "error.h"
#include "json.h"
#include "options.h"
#include "print.h"
#include "progress.h"
#include "store.h"
#include "stream_info.h"

static const char help[] =
    "usage: deltawire status URL [OPTION...]\n"
    "\n"
    "Shows how a stream stands: its model, its newest version, what it takes to store "
    "and\n"
    "to catch up with, and where its followers are.\n"
    "\n" CLI_TRUST_HELP CLI_STORE_HELP "  --json  --quiet  --help\n"
    "\n"
    "  deltawire status s3://bucket/run\n"
    "  deltawire status s3://bucket/run --json | jq '.followers[] | select(.lag > 5)'\n";

typedef struct findings {
    cli_model_size model;
    uint64_t head; /* DW_NO_VERSION: none yet */
    double age;
    json_t *writer; /* of the head: epoch, library, host; or NULL */
    uint64_t
        suspect_from; /* as in dw_verify_report, of the versions that were looked at */
    uint64_t suspect_end;
    uint64_t floor;
    uint64_t anchor; /* the newest version with one, or DW_NO_VERSION */
    uint64_t n_stored_bytes, n_anchor_bytes, n_fold_bytes;
    uint64_t n_catch_up_bytes;
    dw_edge *ways;
    size_t n_ways;
    json_t *followers; /* array of objects: what is printed too */
    bool no_memory;
    dw_stream *stream;
} findings;

/* ---- sizes ---- */

static dw_status add_entry(void *context, const dw_store_entry *entry, dw_error *err)
{
    findings *f = context;
    f->n_stored_bytes += entry->n_bytes;
    return cli_check_signal(err);
}

/* Objects do not tell deltas from ways, but the ways' records do. */
static dw_status count_stored(findings *f, cli_stream *stream, dw_error *err)
{
    dw_status status = dw_store_list(stream->store, "objects/", NULL, add_entry, f, err);
    for (size_t i = 0; i < f->n_ways; i++) {
        const dw_edge *way = &f->ways[i];
        if (way->from != DW_NO_VERSION) {
            f->n_fold_bytes += way->n_bytes;
            continue;
        }
        f->n_anchor_bytes += way->n_bytes;
        if (f->anchor == DW_NO_VERSION || way->to > f->anchor)
            f->anchor = way->to;
    }
    return status;
}

/* Version 0 may be an anchor by itself. */
static dw_status look_at_first(findings *f, cli_stream *stream, dw_error *err)
{
    dw_version_info info;
    if (f->floor > 0)
        return DW_OK;
    dw_status status = dw_stream_version(stream->stream, 0, &info, err);
    if (status != DW_OK || info.content != DW_CONTENT_ANCHOR)
        return status;
    f->n_anchor_bytes += info.n_bytes;
    f->n_catch_up_bytes = info.n_bytes;
    if (f->anchor == DW_NO_VERSION)
        f->anchor = 0;
    return DW_OK;
}

static void note_suspect(findings *f, const dw_version_info *info)
{
    if (info->suspect_from == 0)
        return;
    f->suspect_from = info->suspect_from;
    f->suspect_end = info->version;
}

/* ---- catching up ---- */

/* The cheapest way to VERSION out of the costs of those before it, which start at FIRST.
 */
static uint64_t cheapest(const findings *f, const uint64_t *costs, uint64_t first,
                         uint64_t version, uint64_t n_delta_bytes)
{
    uint64_t best = costs[version - first - 1] + n_delta_bytes;
    for (size_t i = 0; i < f->n_ways; i++) {
        const dw_edge *way = &f->ways[i];
        if (way->to != version || way->from == DW_NO_VERSION || way->from < first)
            continue;
        uint64_t cost = costs[way->from - first] + way->n_bytes;
        best = cost < best ? cost : best;
    }
    return best;
}

/* What a follower that has nothing fetches: the newest anchor, or what version 0 is, and
 * the cheapest way on from there. */
static dw_status count_catch_up(findings *f, cli_stream *stream, dw_error *err)
{
    const uint64_t first = f->anchor == DW_NO_VERSION ? f->floor : f->anchor;
    for (size_t i = 0; i < f->n_ways; i++)
        if (f->ways[i].from == DW_NO_VERSION && f->ways[i].to == first)
            f->n_catch_up_bytes = f->ways[i].n_bytes;
    if (first >= f->head)
        return DW_OK;
    const uint64_t n = f->head - first + 1;
    uint64_t *costs =
        n < SIZE_MAX / sizeof *costs ? calloc((size_t)n, sizeof *costs) : NULL;
    if (!costs)
        return cli_error_set(err, DW_NO_MEMORY, "", "out of memory");
    dw_status status = DW_OK;
    costs[0] = f->n_catch_up_bytes;
    for (uint64_t v = first + 1; status == DW_OK && v <= f->head; v++) {
        dw_version_info info;
        status = cli_check_signal(err);
        if (status == DW_OK)
            status = dw_stream_version(stream->stream, v, &info, err);
        if (status == DW_OK) {
            costs[v - first] = cheapest(f, costs, first, v, info.n_bytes);
            note_suspect(f, &info);
        }
    }
    f->n_catch_up_bytes = costs[n - 1];
    free(costs);
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
    cli_json_text(row, "message", info->message);
    if (json_array_append_new(f->followers, row) != 0)
        f->no_memory = true;
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
    dw_version_info info;
    if (status == DW_OK)
        status = dw_stream_version(stream->stream, f->head, &info, err);
    if (status != DW_OK)
        return status;
    f->age = cli_age(info.created);
    f->writer = json_object();
    cli_json_count(f->writer, "epoch", info.epoch);
    cli_json_provenance(f->writer, &info);
    note_suspect(f, &info);
    status = cli_copy_ways(stream->stream, &f->ways, &f->n_ways, err);
    if (status == DW_OK)
        status = count_stored(f, stream, err);
    if (status == DW_OK)
        status = look_at_first(f, stream, err);
    if (status == DW_OK)
        status = count_catch_up(f, stream, err);
    if (status == DW_OK)
        status = dw_stream_followers(stream->stream, add_follower, f, err);
    if (status == DW_OK && f->no_memory)
        status = cli_error_set(err, DW_NO_MEMORY, stream->url, "out of memory");
    return status;
}

/* ---- printing ---- */

/* Leftovers of failed attempts are among the deltas until gc removes them. */
static uint64_t delta_bytes(const findings *f)
{
    uint64_t n_other = f->n_anchor_bytes + f->n_fold_bytes;
    return f->n_stored_bytes > n_other ? f->n_stored_bytes - n_other : 0;
}

static void print_json(const findings *f, const cli_stream *stream)
{
    json_t *object = json_object();
    cli_json_text(object, "url", stream->url);
    cli_json_text(object, "stream", dw_stream_id(stream->stream));
    cli_json_text(object, "writers",
                  dw_stream_single_writer(stream->stream) ? "single" : "conditional");
    cli_json_count(object, "tensors", f->model.n_tensors);
    cli_json_count(object, "elements", f->model.n_elems);
    cli_json_count(object, "model_bytes", f->model.n_bytes);
    cli_json_version(object, "head", f->head);
    cli_json_real(object, "age_seconds", f->age < 0 ? NAN : f->age);
    if (f->writer)
        json_object_set(object, "writer", f->writer);
    if (f->suspect_from > 0)
        json_object_set_new(object, "suspect",
                            cli_suspect_json(f->suspect_from, f->suspect_end));
    cli_json_count(object, "floor", f->floor);
    cli_json_version(object, "anchor", f->anchor);
    cli_json_count(object, "stored_bytes", f->n_stored_bytes);
    cli_json_count(object, "delta_bytes", delta_bytes(f));
    cli_json_count(object, "anchor_bytes", f->n_anchor_bytes);
    cli_json_count(object, "fold_bytes", f->n_fold_bytes);
    cli_json_count(object, "catch_up_bytes", f->n_catch_up_bytes);
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
    fputs("  ", stdout);
    cli_print_text(stdout, member(row, "id"));
    if (json_is_null(version))
        fputs(": no version yet", stdout);
    else if (ahead)
        printf(": version %" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT
               " ahead of the head: commits were lost, or the store was rolled back",
               json_integer_value(version), json_integer_value(ahead));
    else
        printf(": version %" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT " behind",
               json_integer_value(version),
               json_integer_value(json_object_get(row, "lag")));
    fputs(", ", stdout);
    cli_print_text(stdout, member(row, "status"));
    printf(", %s ago, host ", cli_format_age(age, cli_age(member(row, "time"))));
    cli_print_text(stdout, member(row, "host"));
    if (member(row, "message")[0]) {
        fputs(": ", stdout);
        cli_print_text(stdout, member(row, "message"));
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
    if (f->anchor == DW_NO_VERSION)
        cli_print_row("catch-up", "%s from version %" PRIu64 ", which is not here",
                      cli_format_size(a, f->n_catch_up_bytes), f->floor);
    else
        cli_print_row("catch-up", "%s, from nothing by the anchor of version %" PRIu64,
                      cli_format_size(a, f->n_catch_up_bytes), f->anchor);
}

/* Who wrote the head. The row is left out if the commit does not say. */
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
    cli_print_text(stdout, host);
    putchar('\n');
}

static void print_text(const findings *f, const cli_stream *stream)
{
    char age[CLI_AGE_SIZE], count[CLI_NUMBER_SIZE], size[CLI_NUMBER_SIZE];
    cli_print_text(stdout, stream->url);
    putchar('\n');
    cli_print_row("stream", "%s%s", dw_stream_id(stream->stream),
                  dw_stream_single_writer(stream->stream)
                      ? ", for a single writer: the store cannot keep two apart"
                      : "");
    cli_print_row("model", "%zu tensors, %s elements, %s", f->model.n_tensors,
                  cli_format_count(count, f->model.n_elems),
                  cli_format_size(size, f->model.n_bytes));
    if (f->head == DW_NO_VERSION) {
        cli_print_row("head", "no version yet");
        return;
    }
    cli_print_row("head", "version %" PRIu64 ", %s old", f->head,
                  cli_format_age(age, f->age));
    print_writer(f->writer);
    cli_print_suspect(f->suspect_from, f->suspect_end);
    cli_print_row("floor", "version %" PRIu64, f->floor);
    print_sizes(f);
    size_t n = json_array_size(f->followers);
    cli_print_row("followers", "%zu", n);
    for (size_t i = 0; i < n; i++)
        print_follower(json_array_get(f->followers, i));
}

int dw_cmd_status(int argc, char **argv)
{
    static const struct option options[] = {CLI_TRUST_OPTIONS, CLI_STORE_OPTIONS,
                                            CLI_COMMON_OPTIONS};
    cli_session s = cli_session_start(argc, argv, help);
    cli_stream stream = {0};
    for (int option; (option = cli_next_option(&s, argc, argv, options)) != -1;) {
        if (cli_keys_takes(option))
            cli_keys_take(&stream.keys, &s, option);
        else
            cli_store_option(&stream.options, &s, option);
    }
    cli_expect_arguments(&s, argc, 1, 1);
    stream.url = argv[optind];
    findings f = {.anchor = DW_NO_VERSION, .age = -1, .followers = json_array()};
    dw_error err;
    int exit_code = cli_stream_open(&stream, &s);
    if (exit_code == 0 && look(&f, &stream, &err) != DW_OK)
        exit_code = cli_stream_fail(&s, &err, stream.url);
    else if (exit_code == 0)
        (s.json ? print_json : print_text)(&f, &stream);
    json_decref(f.followers);
    json_decref(f.writer);
    free(f.ways);
    cli_stream_close(&stream);
    return exit_code;
}
