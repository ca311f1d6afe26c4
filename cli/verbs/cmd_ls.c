#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

#define STREAM   "stream.json"
#define COMMITS  "commits/"
#define MAX_PATH 1024 /* of a key */

typedef struct arguments {
    const char *url;
    dw_store_options store;
} arguments;

/* ---- searching ---- */

/* The keys of a stream are sorted: commits/ comes early, stream.json late, with all
 * objects between them. So the search asks for stream.json where it meets the first
 * commit, and goes on behind it. */
typedef struct search {
    dw_store *store;
    char path[MAX_PATH]; /* of the stream that was found, "" or "a/b/" */
    bool found;
} search;

/* Whether KEY is NAME, or begins with it, below some path, which is put into OUT. */
static bool is_below(char out[MAX_PATH], const char *key, const char *name)
{
    const char *last = NULL;
    for (const char *at = key; (at = strstr(at, name)) != NULL; at++)
        if (!last && (at == key || at[-1] == '/'))
            last = at;
    if (!last || (size_t)(last - key) >= MAX_PATH - sizeof STREAM)
        return false;
    snprintf(out, MAX_PATH, "%.*s", (int)(last - key), key);
    return true;
}

static dw_status look_at(void *context, const dw_store_entry *entry, dw_error *err)
{
    search *f = context;
    char key[MAX_PATH + sizeof STREAM];
    dw_status status = cli_check_signal(err);
    if (status != DW_OK || (!is_below(f->path, entry->key, COMMITS) &&
                            !is_below(f->path, entry->key, STREAM)))
        return status;
    snprintf(key, sizeof key, "%s" STREAM, f->path);
    status = dw_store_stat(f->store, key, NULL, NULL, err);
    if (status == DW_NOT_FOUND) /* a directory that has the same name */
        return DW_OK;
    f->found = status == DW_OK;
    return f->found ? DW_CANCELLED : status; /* ends this listing */
}

/* ---- streams ---- */

/* The facts about the stream at URL. One that cannot be read has its error. */
static json_t *describe(const char *url, const arguments *a)
{
    cli_stream stream = {.url = url, .options = a->store};
    dw_version_info info = {0};
    dw_error err;
    uint64_t head = DW_NO_VERSION;
    json_t *row = json_object();
    cli_json_text(row, "url", url);
    dw_status status = cli_store_open_at(&stream.store, url, &a->store, &err);
    if (status == DW_OK)
        status = dw_stream_open(&stream.stream, stream.store, NULL, &err);
    if (status == DW_OK) {
        cli_json_text(row, "stream", dw_stream_id(stream.stream));
        cli_json_count(row, "model_bytes", cli_model_count(stream.stream).n_bytes);
        status = dw_stream_head(stream.stream, &head, &err);
        if (status == DW_OK)
            status = dw_stream_version(stream.stream, head, &info, &err);
        cli_json_version(row, "head", status == DW_OK ? head : DW_NO_VERSION);
        cli_json_real(row, "age_seconds", status == DW_OK ? cli_age(info.created) : NAN);
        status = status == DW_NOT_FOUND ? DW_OK : status; /* no version yet */
    }
    if (status != DW_OK)
        json_object_set_new(row, "error", cli_json_error(&err));
    cli_stream_close(&stream);
    return row;
}

static void print_row(const json_t *row)
{
    char age[CLI_AGE_SIZE], size[CLI_NUMBER_SIZE];
    const json_t *head = json_object_get(row, "head");
    const json_t *error = json_object_get(row, "error");
    const json_int_t n_bytes = json_integer_value(json_object_get(row, "model_bytes"));
    cli_print_text(stdout, json_string_value(json_object_get(row, "url")));
    if (error) {
        fputs(": ", stdout);
        cli_print_line(json_string_value(json_object_get(error, "text")));
        return;
    }
    printf(": %s", cli_format_size(size, (uint64_t)n_bytes));
    if (json_is_integer(head))
        printf(", version %" JSON_INTEGER_FORMAT ", %s old\n", json_integer_value(head),
               cli_format_age(age, json_real_value(json_object_get(row, "age_seconds"))));
    else
        puts(", no version yet");
}

/* The URL of the stream at PATH below that of the user. */
static void join_url(char out[2 * MAX_PATH], const char *url, const char *path)
{
    size_t n = strlen(url), n_path = strlen(path);
    while (n > 1 && url[n - 1] == '/')
        n--;
    n_path -= n_path > 0; /* its last slash */
    snprintf(out, 2 * MAX_PATH, "%.*s%s%.*s", (int)n, url, n_path > 0 ? "/" : "",
             (int)n_path, path);
}

static dw_status list(json_t *rows, const arguments *a, const cli_session *s,
                      dw_store *store, dw_error *err)
{
    char after[MAX_PATH + sizeof STREAM] = "", url[2 * MAX_PATH];
    for (;;) {
        search f = {.store = store};
        dw_status status =
            dw_store_list(store, "", after[0] ? after : NULL, look_at, &f, err);
        if (!f.found)
            return status;
        snprintf(after, sizeof after, "%s" STREAM, f.path);
        join_url(url, a->url, f.path);
        json_t *row = describe(url, a);
        if (!s->json)
            print_row(row);
        json_array_append_new(rows, row);
    }
}

static int run(cli_session *s)
{
    arguments a = {0};
    dw_error err;
    dw_store *store = NULL;
    cli_parse(s, &a);
    a.url = s->args[0];
    int exit_code = cli_store_open(&store, s, a.url, &a.store);
    if (exit_code != 0)
        return exit_code;
    json_t *rows = json_array();
    if (list(rows, &a, s, store, &err) != DW_OK)
        exit_code = cli_fail(s, &err, a.url, NULL);
    else if (json_array_size(rows) == 0 && !s->json && !s->quiet)
        cli_print_message(a.url, "there is no stream below it");
    if (exit_code == 0 && s->json) {
        json_t *object = json_object();
        cli_json_text(object, "url", a.url);
        json_object_set(object, "streams", rows);
        cli_json_print(object);
    }
    json_decref(rows);
    dw_store_close(store);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_GROUP("store", arguments, store, dw_store_options, cli_store_options)},
    {0},
};

const cli_verb cli_verb_ls = {
    .name = "ls",
    .summary = "list the streams below a prefix",
    .usage = "URL [OPTION...]",
    .about = "Lists the streams below a bucket, prefix or directory: the size of the "
             "model, the newest version and its age. A stream that cannot be read is "
             "listed with its error.",
    .examples = "  deltawire ls s3://bucket/experiments\n"
                "  deltawire ls runs/ --json | jq -r '.streams[].url'\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
