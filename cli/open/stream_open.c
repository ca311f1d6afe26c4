#include "stream_open.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <deltawire/checkpoint.h>
#include "formats/formats.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "fail.h"
#include "print.h"

const cli_option cli_store_options[] = {
    {CLI_OPTION(
        TEXT, dw_store_options, endpoint, "endpoint", "URL",
        "the bucket's server; default: the environment, the profile, the cloud's")},
    {CLI_OPTION(TEXT, dw_store_options, region, "region", "NAME", "its region")},
    {CLI_OPTION(TEXT, dw_store_options, profile, "profile", "NAME",
                "take credentials and settings from this profile in ~/.aws")},
    {CLI_OPTION(FLAG, dw_store_options, anonymous, "anonymous", NULL,
                "send requests without credentials; only for public buckets")},
    {CLI_OPTION(MS, dw_store_options, deadline_ms, "timeout", "S",
                "stop retrying a request after S seconds (180)")},
    {0},
};

const cli_option cli_to_store_options[] = {
    {CLI_OPTION(TEXT, dw_store_options, endpoint, "to-endpoint", "URL",
                "the server of the target; --endpoint is the source's")},
    {CLI_OPTION(TEXT, dw_store_options, profile, "to-profile", "NAME",
                "the profile of the target, with its region")},
    {0},
};

const cli_option cli_stream_options[] = {
    {CLI_GROUP("trust", cli_stream, keys, cli_keys, cli_trust_options)},
    {CLI_GROUP("store", cli_stream, options, dw_store_options, cli_store_options)},
    {0},
};

static bool has_scheme(const char *text)
{
    const char *colon = strchr(text, ':');
    if (!colon || !isalpha((unsigned char)text[0]))
        return false;
    for (const char *at = text; at < colon; at++)
        if (!isalnum((unsigned char)*at) && *at != '+' && *at != '-' && *at != '.')
            return false;
    return true;
}

bool cli_is_foreign(dw_store *store, const char **system)
{
    const dw_format *format;
    if (dw_format_detect(&format, store, NULL) != DW_OK)
        return false;
    if (system)
        *system = dw_format_name(format);
    return true;
}

static bool is_foreign_dir(const char *path)
{
    dw_store *store;
    dw_checkpoint *ckpt;
    if (dw_checkpoint_open(&ckpt, path, DW_CHECKPOINT_READ, NULL) == DW_OK) {
        dw_checkpoint_close(ckpt); /* the directory may hold other files */
        return false;
    }
    if (dw_store_open(&store, path, NULL, NULL) != DW_OK)
        return false;
    const bool is_foreign = cli_is_foreign(store, NULL);
    dw_store_close(store);
    return is_foreign;
}

bool cli_is_stream(const char *text)
{
    if (has_scheme(text))
        return true;
    char *record = dw_join_path(text, "stream.json");
    bool is_stream = record && access(record, F_OK) == 0;
    dw_free(record);
    return is_stream || is_foreign_dir(text);
}

const char *cli_store_path(const char *url)
{
    static const char scheme[] = "file://";
    return strncmp(url, scheme, sizeof scheme - 1) == 0 ? url + sizeof scheme - 1 : NULL;
}

/* Wipes a progress bar on a terminal first. */
static void print_wait(void *context, const dw_error *wait)
{
    (void)context;
    fputs(isatty(STDERR_FILENO) ? "\r\033[K" : "", stderr);
    cli_print_message(wait->where, "%s", wait->text);
}

dw_status cli_store_open_at(dw_store **out, const char *url,
                            const dw_store_options *options, dw_error *err)
{
    dw_store_options o = *options; /* zeros, except for what options set */
    o.struct_bytes = sizeof o;
    o.on_wait = cli_wants_remarks() ? print_wait : NULL;
    dw_status status = dw_store_open(out, url, &o, err);
    /* the library does not name a URL that may hold a secret, so the command must not
     * either */
    if (status != DW_OK && !err->where[0])
        snprintf(err->where, sizeof err->where, "the store's URL");
    return status;
}

int cli_store_open(dw_store **out, const cli_session *s, const char *url,
                   const dw_store_options *options)
{
    dw_error err;
    if (cli_store_open_at(out, url, options, &err) == DW_OK)
        return 0;
    return cli_fail(s, &err, NULL, NULL);
}

/* A path without a scheme names a directory. */
static bool same_scheme(const char *a, const char *b)
{
    const char *scheme_a = has_scheme(a) ? a : "file:";
    const char *scheme_b = has_scheme(b) ? b : "file:";
    size_t n = strcspn(scheme_a, ":");
    return n == strcspn(scheme_b, ":") && strncmp(scheme_a, scheme_b, n) == 0;
}

dw_status cli_store_open_fork(void *context, dw_store **out, const char *url,
                              dw_error *err)
{
    const cli_fork_opener *opener = context;
    const dw_store_options elsewhere = {.deadline_ms = opener->options->deadline_ms};
    const bool beside = same_scheme(url, opener->url);
    return cli_store_open_at(out, url, beside ? opener->options : &elsewhere, err);
}

int cli_stream_open(cli_stream *stream, const cli_session *s)
{
    dw_error err;
    int exit_code = cli_keys_load(&stream->keys, s);
    if (exit_code == 0)
        exit_code = cli_store_open(&stream->store, s, stream->url, &stream->options);
    if (exit_code != 0)
        return exit_code;
    dw_trust trust = cli_keys_trust(&stream->keys);
    return dw_stream_open(&stream->stream, stream->store, &trust, &err) == DW_OK
               ? 0
               : cli_open_fail(s, stream->store, &err, stream->url);
}

int cli_open_fail(const cli_session *s, dw_store *store, const dw_error *err,
                  const char *url)
{
    const char *system;
    dw_error foreign;
    if (err->code != DW_NOT_FOUND || !cli_is_foreign(store, &system))
        return cli_stream_fail(s, err, url);
    dw_fail(&foreign, DW_UNSUPPORTED, url,
            "these are versions of %s, not a deltawire stream", system);
    return cli_fail(s, &foreign, url, "deltawire mirror %s OURS", url);
}

void cli_stream_close(cli_stream *stream)
{
    dw_stream_close(stream->stream);
    dw_store_close(stream->store);
    cli_keys_release(&stream->keys);
    stream->stream = NULL;
    stream->store = NULL;
}

int cli_stream_fail(const cli_session *s, const dw_error *err, const char *url)
{
    /* for an error of a local directory, looking at the stream does not help; and a verb
     * does not suggest itself */
    const bool elsewhere = err->where[0] && !strstr(err->where, url) &&
                           strncmp(err->where, "objects/", 8) != 0;
    const bool verifies = strcmp(s->verb, "verify") == 0;
    /* a publish that is refused for its key says what to do */
    const bool logs = strcmp(s->verb, "log") == 0 || strcmp(s->verb, "publish") == 0;
    const bool lacks_object =
        err->code == DW_NOT_FOUND &&
        (strstr(err->where, "/objects/") || strstr(err->where, "/ways/"));
    if ((err->code == DW_CORRUPT || lacks_object) && !elsewhere && !verifies)
        return cli_fail(s, err, url, "deltawire verify %s", url);
    if (err->code == DW_UNTRUSTED && !elsewhere && !logs)
        return cli_fail(s, err, url, "deltawire log %s", url);
    if (err->code == DW_CONFLICT && !elsewhere && strcmp(s->verb, "publish") == 0)
        return cli_fail(s, err, url, "deltawire status %s", url);
    return cli_fail(s, err, url, NULL);
}
