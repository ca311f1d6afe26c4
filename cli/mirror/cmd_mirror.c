#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cache_dir.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "mirror.h"
#include "print.h"

typedef struct arguments {
    cli_mirror mirror;
    dw_store_options from_options;
    dw_store_options to_options;
    cli_keys keys;
    cli_peer_options peer;
    cli_quantize quantize;
    const char *work; /* --work, or NULL */
} arguments;

static void parse(arguments *a, cli_session *s)
{
    cli_mirror *m = &a->mirror;
    *a = (arguments){.mirror = {.interval = 5, .until = DW_NO_VERSION, .session = s}};
    cli_parse(s, a);
    m->target.quantize = cli_quantize_read(&a->quantize, s);
    a->to_options.deadline_ms = a->from_options.deadline_ms;
    m->at = m->to_at = m->skipped = DW_NO_VERSION;
    m->source.url = s->args[0];
    m->source.options = &a->from_options;
    m->source.session = s;
    m->target.url = s->args[1];
    m->target.options = &a->to_options;
    m->target.session = s;
}

/* ---- the format of TO ---- */

/* The format of TO if --as is not given: that of the versions in TO. If there are none,
 * it is deltawire; two deltawire streams are refused later. */
static dw_status find_format(const arguments *a, const dw_format **format, dw_error *err)
{
    dw_store *store = NULL;
    dw_status status =
        cli_store_open_at(&store, a->mirror.target.url, &a->to_options, err);
    if (status == DW_OK)
        status = dw_format_detect(format, store, err);
    if (status != DW_OK)
        *format = NULL;
    dw_store_close(store);
    return status == DW_NOT_FOUND ? DW_OK : status;
}

static dw_status choose_format(arguments *a, const cli_session *s, dw_error *err)
{
    cli_target *t = &a->mirror.target;
    if (!a->peer.as) {
        dw_status status = find_format(a, &t->format, err);
        if (status != DW_OK)
            return status;
    } else if (strcmp(a->peer.as, "deltawire") != 0) {
        t->format = dw_format_named(a->peer.as);
        if (!t->format)
            cli_usage_error(s, "--as: '%s' is none of deltawire, trl, slime", a->peer.as);
    }
    const char *name = t->format ? dw_format_name(t->format) : NULL;
    if (t->format && t->quantize)
        cli_usage_error(s, "--quantize: TO must be a deltawire stream, not one of %s",
                        name);
    if (t->format && a->keys.sign_path)
        cli_usage_error(s, "--sign-key: %s has no signatures", name);
    if (t->format)
        t->foreign_options = cli_peer_options_read(&a->peer, s, t->format);
    else if (cli_any_given(cli_peer_rows, &a->peer))
        cli_usage_error(s, "--trl, --codec and --whole-every go with --as trl or "
                           "slime");
    return DW_OK;
}

/* ---- running ---- */

/* A directory in the user's cache for this pair of URLs. Free it with dw_free. NULL after
 * an error. */
static char *default_work(const arguments *a, dw_error *err)
{
    dw_store *from = NULL, *to = NULL;
    char *work = NULL;
    if (cli_store_open_at(&from, a->mirror.source.url, &a->from_options, err) == DW_OK &&
        cli_store_open_at(&to, a->mirror.target.url, &a->to_options, err) == DW_OK) {
        const dw_format *format = a->mirror.target.format;
        const char *parts[] = {dw_store_url(from), a->from_options.endpoint,
                               dw_store_url(to), a->to_options.endpoint,
                               format ? dw_format_name(format) : NULL};
        work = cli_cache_dir("mirrors", parts, format ? 5 : 4, "--work", err);
        cli_cache_state state;
        if (work && (cli_cache_use(work, dw_store_url(to), &state, err) != DW_OK ||
                     cli_cache_note(work, dw_store_url(to), err) != DW_OK)) {
            dw_free(work);
            work = NULL;
        }
    }
    dw_store_close(from);
    dw_store_close(to);
    return work;
}

static void report_end(const cli_mirror *m, const char *event)
{
    if (m->session->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", event);
        cli_json_version(object, "from_version", m->at);
        cli_json_version(object, "version", m->to_at);
        cli_json_count(object, "versions", m->n_done);
        cli_json_event(object);
    } else if (!m->session->quiet && m->to_at != DW_NO_VERSION) {
        char source[64] = "";
        if (m->at != m->to_at)
            snprintf(source, sizeof source, ", made of FROM's version %" PRIu64, m->at);
        cli_print_message(
            "", "%" PRIu64 " version%s written, the newest is %" PRIu64 "%s", m->n_done,
            m->n_done == 1 ? " was" : "s were", m->to_at, source);
    }
}

static int mirror(cli_mirror *m, const char *work)
{
    dw_error err = {0};
    char *into = dw_join_path(work, "from");
    if (!into)
        return cli_fail_as(m->session, "no memory", work, "out of memory", NULL);
    m->source.into = into;
    m->source.work = work;
    m->target.work = work;
    dw_status status = cli_mirror_loop(m, &err);
    cli_target_close(&m->target);
    cli_source_close(&m->source);
    dw_free(into);
    if (status == DW_OK || status == DW_CANCELLED)
        report_end(m, status == DW_OK ? "done" : "stopped");
    /* a signal is the normal end, unless --once or --until was given */
    if (status == DW_OK || (status == DW_CANCELLED && !m->once))
        return 0;
    return cli_fail(m->session, &err, m->target.url, NULL);
}

static int run(cli_session *s)
{
    arguments a;
    dw_error err = {0};
    parse(&a, s);
    int exit_code = cli_keys_load(&a.keys, s);
    char *work = NULL;
    if (exit_code == 0 && choose_format(&a, s, &err) != DW_OK)
        exit_code = cli_fail(s, &err, a.mirror.target.url, NULL);
    if (exit_code == 0 && !a.work && !(work = default_work(&a, &err)))
        exit_code = cli_fail(s, &err, NULL, NULL);
    if (exit_code == 0) {
        a.mirror.source.trust = cli_keys_trust(&a.keys);
        a.mirror.target.sign_key = a.keys.sign_key;
        exit_code = mirror(&a.mirror, a.work ? a.work : work);
    }
    dw_free(work);
    cli_keys_release(&a.keys);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, arguments, peer.as, "as", "FORMAT",
                "what TO becomes: deltawire, trl or slime; default: what it is, or, from "
                "another system, deltawire")},
    {CLI_OPTION(FLAG, arguments, mirror.once, "once", NULL,
                "end when TO has FROM's newest version")},
    {CLI_OPTION(
        VERSION, arguments, mirror.until, "until", "N",
        "end once FROM's version N or a later one is there, or was skipped because "
        "it cannot be quantised")},
    {CLI_OPTION(SECONDS, arguments, mirror.interval, "interval", "S",
                "ask for new versions at least every S seconds (5)")},
    {CLI_OPTION(TEXT, arguments, work, "work", "DIR",
                "room for two copies of the model, kept for the next start; default: "
                "~/.cache/deltawire/mirrors/HASH")},
    {CLI_OPTION(TEXT, arguments, mirror.source.base, "base", "CKPT",
                "the checkpoint that FROM's first version starts from, if that is not "
                "there: slime's version 0")},
    {CLI_GROUP("quantize", arguments, quantize, cli_quantize, cli_quantize_options)},
    {CLI_GROUP("own", arguments, peer, cli_peer_options, cli_peer_rows)},
    {CLI_OPTION(TEXT, arguments, keys.sign_path, "sign-key", "FILE",
                "TO is a deltawire stream: sign with this key")},
    {CLI_OPTION(FLAG, arguments, mirror.target.new_key, "new-key", NULL,
                "TO may be signed by another key so far")},
    {CLI_OPTION(FLAG, arguments, mirror.target.no_provenance, "no-provenance", NULL,
                "do not record this machine's name and process, and the library's "
                "version, in TO")},
    {CLI_OPTION(FLAG, arguments, mirror.target.take_over, "take-over", NULL,
                "do not wait until another mirror has written nothing for a minute")},
    {CLI_GROUP("to", arguments, to_options, dw_store_options, cli_to_store_options)},
    {CLI_GROUP("trust", arguments, keys, cli_keys, cli_trust_options)},
    {CLI_GROUP("store", arguments, from_options, dw_store_options, cli_store_options)},
    {0},
};

const cli_verb cli_verb_mirror = {
    .name = "mirror",
    .summary = "turn one system's versions into another's, as they come",
    .usage = "FROM TO [--as FORMAT] [--once] [OPTION...]\n"
             "FROM TO --quantize SCHEME [--once] [OPTION...]",
    .about =
        "Turns the versions of one system into those of another, each in turn, until "
        "SIGINT or SIGTERM. When it is started again, it continues after the newest "
        "version in TO. FROM is a deltawire stream, or was written by TRL or slime; the "
        "format is detected. The weights of each version are compared bit for bit with "
        "those in TO. With --quantize TO is a deltawire stream of the quantised versions "
        "of FROM, each with its source, step and notes; only the version found at the "
        "start is compared.",
    .examples =
        "  deltawire mirror s3://bucket/run s3://bucket/slime --as slime\n"
        "  deltawire mirror hf://buckets/org/trl-sync file:///mnt/run --once\n"
        "  deltawire mirror s3://bucket/run s3://bucket/run-fp8 --quantize fp8-block\n"
        "  deltawire mirror s3://bucket/run /mnt/trl --as trl --once --json\n",
    .options = options,
    .n_least = 2,
    .n_most = 2,
    .run = run,
};
