#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmd_follow.h"
#include "commands.h"
#include "follow_options.h"
#include "json_out.h"
#include "progress_bar.h"
#include "stream_info.h"
#include "sync_report.h"

/* ---- arguments ---- */

static void parse(cli_follow *a, char default_id[DW_FOLLOWER_ID_SIZE], cli_session *s)
{
    *a = (cli_follow){.session = s,
                      .interval = 5,
                      .until = DW_NO_VERSION,
                      .newest = DW_NO_VERSION,
                      .agent_head = DW_NO_VERSION};
    dw_follow_options_init(&a->follow);
    cli_parse(s, a);
    if (a->command.limit > 0 && !a->command.text)
        cli_usage_error(s, "--exec-timeout needs --exec CMD");
    if (a->command.limit == 0)
        a->command.limit = CLI_COMMAND_LIMIT;
    if (a->no_report && a->follow.id)
        cli_usage_error(s, "--id and --no-report exclude each other");
    if (!a->no_report && !a->follow.id) {
        dw_follower_id(default_id, a->follow.into, 0);
        a->follow.id = default_id;
    }
    cli_agent_options_check(&a->agent_options, s);
    a->follow.n_threads = s->n_threads;
    a->follow.open_store = cli_store_open_fork;
    a->follow.open_context = &a->fork_opener;
    a->url = s->args[0];
    a->fork_opener = (cli_fork_opener){a->url, &a->store_options};
}

/* ---- running ---- */

/* Waits for a stream that does not exist yet, for a store that is away, and for an engine
 * that must pause before an interrupted apply can be finished. Other errors end the verb.
 */
static dw_status open_rollout(cli_follow *f, dw_error *err)
{
    dw_rollout_options options = {0};
    options.engines = f->engines.engines;
    options.n_engines = f->engines.specs.n;
    options.patience_ms = f->engines.patience_ms;
    options.watch = cli_follow_watch(f);
    for (;;) {
        dw_status status = cli_check_signal(err);
        if (status == DW_OK)
            status = dw_rollout_open(&f->rollout, f->store, &f->follow, &options, err);
        if (status != DW_UNAVAILABLE &&
            (status != DW_NOT_FOUND || cli_is_foreign(f->store, NULL)))
            return status;
        cli_outage_add(&f->outage, f->session, err);
        dw_agent_report_error(f->agent, err);
        cli_outage_sleep(&f->outage);
    }
}

static void report_stopped(const cli_follow *f)
{
    json_t *object = json_object();
    cli_json_text(object, "event", "stopped");
    cli_json_version(object, "version",
                     f->follower ? dw_follower_version(f->follower) : DW_NO_VERSION);
    cli_json_event(object);
}

static int follow(cli_follow *f)
{
    dw_error err = {0};
    f->outage.subject = f->url;
    f->outage.max_wait = f->interval;
    f->follow.trust = cli_keys_trust(&f->keys);
    dw_status status = open_rollout(f, &err);
    if (status == DW_NOT_FOUND)
        return cli_open_fail(f->session, f->store, &err, f->url);
    if (status == DW_OK) {
        dw_follow_report totals;
        f->follower = dw_rollout_follower(f->rollout);
        cli_warn_base(f->session, dw_follower_stream(f->follower), &f->keys,
                      f->follow.base, NULL);
        dw_follower_totals(f->follower, &totals);
        cli_report_private(f->session, f->follow.into, totals.n_private);
        cli_warn_stray(f->session, f->follow.into, totals.n_stray, NULL);
        cli_follow_introduce_stream(f);
        status = cli_follow_loop(f, &err);
        const bool is_away = f->outage.n_tries > 0 && !f->is_by_command &&
                             f->outage.reported.code == DW_UNAVAILABLE;
        if (status == DW_UNAVAILABLE)
            cli_follow_report(f, "error", err.text);
        else if (!is_away)
            cli_follow_report(f, "stopped", NULL);
    }
    if (f->session->json && (status == DW_OK || status == DW_CANCELLED))
        report_stopped(f);
    dw_free(f->kept_shown);
    dw_rollout_close(f->rollout);
    /* a signal is the normal end */
    if (status == DW_OK || status == DW_CANCELLED)
        return 0;
    if (f->is_by_command)
        return cli_command_fail(f->session, &err);
    return cli_stream_fail(f->session, &err, f->url);
}

static int run(cli_session *s)
{
    cli_follow f;
    char default_id[DW_FOLLOWER_ID_SIZE];
    parse(&f, default_id, s);
    int exit_code = cli_keys_load(&f.keys, s);
    if (exit_code == 0)
        exit_code = cli_engines_open(&f.engines, s);
    if (exit_code == 0)
        exit_code = cli_store_open(&f.store, s, f.url, &f.store_options);
    if (exit_code == 0)
        exit_code = cli_agent_start(&f.agent, &f.agent_options, s);
    if (exit_code == 0)
        exit_code = follow(&f);
    dw_agent_stop(f.agent);
    dw_store_close(f.store);
    cli_engines_close(&f.engines);
    cli_keys_release(&f.keys);
    return exit_code;
}

static const cli_option options[] = {
    {CLI_OPTION(TEXT, cli_follow, follow.into, "into", "DIR", CLI_INTO_HELP),
     .required = true},
    {CLI_GROUP("engine", cli_follow, engines, cli_engines, cli_engine_options)},
    {CLI_OPTION(TEXT, cli_follow, agent_options.agent.listen, "listen", "HOST:PORT",
                "serve /status, /metrics, /healthz and a page here")},
    {CLI_GROUP("agent", cli_follow, agent_options, cli_agent_options, cli_agent_rows)},
    {CLI_OPTION(TEXT, cli_follow, command.text, "exec", "CMD",
                "run CMD by sh -c after each version, with DELTAWIRE_VERSION, "
                "DELTAWIRE_DIR, DELTAWIRE_STEP and DELTAWIRE_STATE set; again until it "
                "exits with 0. If it fails at --until: exit code 1")},
    {CLI_OPTION(SECONDS, cli_follow, command.limit, "exec-timeout", "S",
                "kill CMD after S seconds; that counts as failed (600)")},
    {CLI_OPTION(SECONDS, cli_follow, interval, "interval", "S",
                "ask for new versions, and check the engines, at least every S "
                "seconds (5)")},
    {CLI_OPTION(VERSION, cli_follow, until, "until", "N",
                "end once version N or a later one is reached")},
    {CLI_OPTION(TEXT, cli_follow, follow.id, "id", "NAME",
                "report under this name; default: host name and a hash of DIR")},
    {CLI_OPTION(FLAG, cli_follow, no_report, "no-report", NULL, "do not report")},
    {CLI_GROUP("own", cli_follow, follow, dw_follow_options, cli_follow_options)},
    {CLI_GROUP("trust", cli_follow, keys, cli_keys, cli_trust_options)},
    {CLI_GROUP("store", cli_follow, store_options, dw_store_options, cli_store_options)},
    {0},
};

const cli_verb cli_verb_follow = {
    .name = "follow",
    .summary = "keep a directory at the newest version",
    .usage = "URL --into DIR [--engine SPEC...] [--listen HOST:PORT] [OPTION...]",
    .about =
        "Keeps a checkpoint directory, and the engines that serve it, at the newest "
        "version of a stream, until SIGINT or SIGTERM stops it or --until is reached. "
        "New "
        "versions are fetched while the engines serve; they are paused only while the "
        "weights change. Files that a version carries beside the weights, such as "
        "config.json, are installed with it; files of your own in DIR are never "
        "replaced. "
        "While the store fails, the directory stays at its last good version. The "
        "follower reports its version to the stream: see deltawire status.",
    .examples = "  deltawire follow s3://bucket/run --into /dev/shm/model \\\n"
                "      --engine vllm=http://127.0.0.1:8000 --listen 127.0.0.1:9470\n"
                "  deltawire follow s3://bucket/run --into model/ \\\n"
                "      --exec 'curl -fsS -X POST localhost:8000/reload'\n"
                "  deltawire follow s3://bucket/run --into model/ --until 100 --json\n",
    .options = options,
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
