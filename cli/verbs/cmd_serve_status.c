#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include <deltawire/stream.h>

#include "agent_followers.h"
#include "agent_options.h"
#include "command_line.h"
#include "commands.h"
#include "json_out.h"
#include "outage.h"
#include "progress_bar.h"
#include "stream_info.h"
#include "stream_open.h"
#include "inner.h"

#define DEFAULT_LISTEN "127.0.0.1:9470"

#define N_COMMITS   200  /* how many of the existing versions to show at the start */
#define T_FOLLOWERS 60.0 /* seconds between reads of the reports while nobody watches */

typedef struct server {
    const cli_session *s;
    cli_agent_options options;
    double interval; /* seconds */
    cli_stream stream;
    dw_agent *agent;
    cli_outage outage;
    uint64_t head;    /* the head that is shown, or DW_NO_VERSION */
    uint64_t n_older; /* versions below `oldest` that are not shown yet */
    uint64_t oldest;
    double t_followers; /* when they were last read; 0: never */
} server;

/* ---- versions ---- */

static dw_status show_version(server *v, uint64_t version, bool is_head, dw_error *err)
{
    dw_version_info info;
    dw_status status = cli_check_signal(err);
    if (status == DW_OK)
        status = dw_stream_version(v->stream.stream, version, &info, err);
    if (status == DW_OK && is_head)
        dw_agent_report_head(v->agent, version, info.created, info.step);
    if (status == DW_OK)
        dw_agent_report_commit(v->agent, &info);
    return status;
}

/* Reads the head's record each time. Otherwise a stream that is gone would look like one
 * without news. */
static dw_status look_at_head(server *v, dw_error *err)
{
    uint64_t head = 0;
    dw_status status = dw_stream_head(v->stream.stream, &head, err);
    if (status == DW_NOT_FOUND) /* no version yet, or no stream any more */
        return dw_store_stat(v->stream.store, "stream.json", NULL, NULL, err);
    if (status == DW_OK)
        status = show_version(v, head, true, err);
    if (status != DW_OK)
        return status;
    uint64_t n_new = head < N_COMMITS ? head : N_COMMITS - 1;
    if (v->head == DW_NO_VERSION) {
        v->oldest = head;
        v->n_older = n_new;
    } else {
        n_new = head - v->head < n_new ? head - v->head : n_new;
        for (uint64_t i = 1; status == DW_OK && i < n_new; i++)
            status = show_version(v, head - i, false, err);
    }
    if (status == DW_OK)
        v->head = head;
    return status;
}

/* Reports older versions, newest first, as long as there is time. */
static dw_status show_older(server *v, double t_end, dw_error *err)
{
    dw_status status = DW_OK;
    while (v->n_older > 0 && cli_now() < t_end) {
        status = show_version(v, v->oldest - 1, false, err);
        if (status == DW_NOT_FOUND) { /* a copy that begins later */
            v->n_older = 0;
            return DW_OK;
        }
        if (status != DW_OK)
            return status;
        v->oldest--;
        v->n_older--;
    }
    return DW_OK;
}

/* ---- followers ---- */

static dw_status look_at_followers(server *v, dw_error *err)
{
    const double t = cli_now();
    if (v->t_followers > 0 && t - v->t_followers < T_FOLLOWERS &&
        !dw_agent_watched(v->agent))
        return DW_OK;
    dw_status status = cli_agent_show_followers(v->agent, v->stream.stream, v->head, err);
    if (status == DW_OK)
        status = dw_stream_check_log(v->stream.stream, err);
    if (status == DW_OK)
        v->t_followers = t;
    return status;
}

/* ---- rounds ---- */

/* Waits for a stream that does not exist yet, or for a store that is away. */
static dw_status open_stream(server *v, dw_error *err)
{
    dw_trust trust = cli_keys_trust(&v->stream.keys);
    dw_status status = dw_stream_open(&v->stream.stream, v->stream.store, &trust, err);
    if (status != DW_OK)
        return status;
    cli_model_size model = cli_model_count(v->stream.stream);
    dw_agent_report_identity(
        v->agent, &(dw_agent_identity){.url = dw_store_url(v->stream.store),
                                       .stream = dw_stream_id(v->stream.stream),
                                       .n_tensors = model.n_tensors,
                                       .n_elems = model.n_elems,
                                       .n_bytes = model.n_bytes});
    return DW_OK;
}

static dw_status serve_round(server *v, dw_error *err)
{
    const double t_end = cli_now() + v->interval;
    dw_store_counts counts;
    dw_status status = v->stream.stream ? DW_OK : open_stream(v, err);
    if (status == DW_OK)
        status = look_at_head(v, err);
    if (status == DW_OK)
        status = look_at_followers(v, err);
    dw_store_get_counts(v->stream.store, &counts);
    dw_agent_report_counts(v->agent, &counts);
    if (status != DW_OK)
        return status;
    dw_agent_report_error(v->agent, NULL);
    cli_outage_end(&v->outage, v->s);
    status = show_older(v, t_end, err);
    if (status == DW_OK)
        cli_sleep(t_end - cli_now());
    return status;
}

/* Until the stream has been seen once, fail at once on errors that waiting cannot cure.
 */
static bool is_passing(const server *v, dw_status status)
{
    if (status == DW_CANCELLED || status == DW_INVALID)
        return false;
    return v->stream.stream || status == DW_UNAVAILABLE ||
           (status == DW_NOT_FOUND && !cli_is_foreign(v->stream.store, NULL));
}

static dw_status serve(server *v, dw_error *err)
{
    for (;;) {
        dw_status status = cli_check_signal(err);
        if (status == DW_OK)
            status = serve_round(v, err);
        if (status == DW_OK)
            continue;
        if (!is_passing(v, status))
            return status;
        dw_agent_report_error(v->agent, err);
        cli_outage_add(&v->outage, v->s, err);
        cli_outage_sleep(&v->outage);
    }
}

static int serve_until_signal(server *v)
{
    dw_error err;
    int exit_code = cli_agent_start(&v->agent, &v->options, v->s);
    if (exit_code != 0)
        return exit_code;
    dw_status status = serve(v, &err);
    dw_agent_stop(v->agent);
    if (status != DW_CANCELLED)
        return cli_open_fail(v->s, v->stream.store, &err, v->stream.url);
    /* a signal is the normal end */
    if (v->s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "stopped");
        cli_json_event(object);
    }
    return 0;
}

static int run(cli_session *s)
{
    server v = {.s = s, .interval = 5, .head = DW_NO_VERSION};
    v.options.agent.listen = DEFAULT_LISTEN;
    v.options.agent.stream_only = true;
    cli_parse(s, &v);
    cli_agent_options_check(&v.options, s);
    v.stream.url = v.outage.subject = s->args[0];
    v.outage.max_wait = v.interval;
    int exit_code = cli_keys_load(&v.stream.keys, s);
    if (exit_code == 0)
        exit_code = cli_store_open(&v.stream.store, s, v.stream.url, &v.stream.options);
    if (exit_code == 0)
        exit_code = serve_until_signal(&v);
    cli_stream_close(&v.stream);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, server, options.agent.listen, "listen", "HOST:PORT",
                "default " DEFAULT_LISTEN "; port 0: any that is free. Elsewhere than on "
                "loopback a token and TLS are needed")},
    {CLI_GROUP("agent", server, options, cli_agent_options, cli_agent_rows)},
    {CLI_OPTION(SECONDS, server, interval, "interval", "S",
                "ask the store every S seconds (5)")},
    {CLI_GROUP("stream", server, stream, cli_stream, cli_stream_options)},
    {0},
};

const cli_verb cli_verb_serve_status = {
    .name = "serve-status",
    .summary = "show a stream in a browser, and as metrics",
    .usage = "URL [--listen HOST:PORT] [OPTION...]",
    .about =
        "Shows a stream in a browser: its versions, their sizes, and the versions "
        "that its followers have. The same is available as JSON (/status) and for "
        "Prometheus (/metrics). Runs until SIGINT or SIGTERM; while the store fails, "
        "it shows the error and tries again.",
    .examples = "  deltawire serve-status s3://bucket/run\n"
                "  deltawire serve-status s3://bucket/run --listen 0.0.0.0:9470 \\\n"
                "      --token-file token --tls-cert cert.pem --tls-key key.pem\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
