#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmd_follow.h"
#include "commands.h"
#include "json_out.h"
#include "progress_bar.h"
#include "snapshot_options.h"
#include "stream_info.h"
#include "sync_report.h"

static const char help[] =
    "usage: deltawire follow URL --into DIR [--engine SPEC...] [--listen HOST:PORT]\n"
    "                        [OPTION...]\n"
    "\n"
    "Keeps a checkpoint directory, and the engines that serve it, at the newest version\n"
    "of a stream, until SIGINT or SIGTERM stops it or --until is reached. New versions\n"
    "are fetched while the engines serve; they are paused only while the weights "
    "change.\n"
    "Files that a version carries beside the weights, such as config.json, are "
    "installed\n"
    "with it; files of your own in DIR are never replaced. While the store fails, the\n"
    "directory stays at its last good version. The follower reports its version to the\n"
    "stream: see deltawire status.\n"
    "\n"
    "  --into DIR           the checkpoint directory; made, with those above it, if "
    "it\n"
    "                       is not there\n"
    "  --exec CMD           run CMD by sh -c after each version, with "
    "DELTAWIRE_VERSION,\n"
    "                       DELTAWIRE_DIR, DELTAWIRE_STEP and DELTAWIRE_STATE set; "
    "again\n"
    "                       until it exits with 0. If it fails at --until: exit code 1\n"
    "  --exec-timeout S     kill CMD after S seconds; that counts as failed (600)\n"
    "  --interval S         ask for new versions at least every S seconds (5)\n"
    "  --max-behind K       move only when more than K versions behind (0)\n"
    "  --until N            end once version N or a later one is reached\n"
    "  --id NAME            report under this name; default: host name and a hash of "
    "DIR\n"
    "  --no-report          do not report\n"
    "  --base CKPT          the checkpoint behind a version 0 that was not "
    "uploaded\n" CLI_SNAPSHOT_HELP CLI_ENGINE_HELP
    "  --listen HOST:PORT   serve /status, /metrics, /healthz and a page "
    "here\n" CLI_AGENT_HELP CLI_TRUST_HELP CLI_STORE_HELP
    "  --json               one JSON object a line for each event\n"
    "  --threads N  --quiet  --help\n"
    "\n"
    "  deltawire follow s3://bucket/run --into /dev/shm/model \\\n"
    "      --engine vllm=http://127.0.0.1:8000 --listen 127.0.0.1:9470\n"
    "  deltawire follow s3://bucket/run --into model/ \\\n"
    "      --exec 'curl -fsS -X POST localhost:8000/reload'\n"
    "  deltawire follow s3://bucket/run --into model/ --until 100 --json\n";

/* ---- arguments ---- */

static void parse(cli_follow *a, char default_id[DW_FOLLOWER_ID_SIZE], cli_session *s,
                  int argc, char **argv)
{
    enum {
        INTO = CLI_OPT_OWN,
        EXEC,
        EXEC_TIMEOUT,
        INTERVAL,
        MAX_BEHIND,
        UNTIL,
        ID,
        NO_REPORT,
        BASE
    };
    static const struct option options[] = {
        {"into", required_argument, NULL, INTO},
        {"exec", required_argument, NULL, EXEC},
        {"exec-timeout", required_argument, NULL, EXEC_TIMEOUT},
        {"interval", required_argument, NULL, INTERVAL},
        {"max-behind", required_argument, NULL, MAX_BEHIND},
        {"until", required_argument, NULL, UNTIL},
        {"id", required_argument, NULL, ID},
        {"no-report", no_argument, NULL, NO_REPORT},
        {"base", required_argument, NULL, BASE},
        CLI_TRUST_OPTIONS,
        CLI_SNAPSHOT_OPTIONS,
        CLI_ENGINE_OPTIONS,
        CLI_AGENT_OPTIONS,
        CLI_STORE_OPTIONS,
        CLI_COMMON_OPTIONS,
    };
    bool has_limit = false;
    *a = (cli_follow){.interval = 5,
                      .command.limit = CLI_COMMAND_LIMIT,
                      .until = DW_NO_VERSION,
                      .newest = DW_NO_VERSION,
                      .agent_head = DW_NO_VERSION,
                      .report = true};
    dw_follow_options_init(&a->follow);
    cli_engines_init(&a->engines);
    cli_agent_options_init(&a->agent_options);
    for (int option; (option = cli_next_option(s, argc, argv, options)) != -1;) {
        switch (option) {
        case INTO:
            a->follow.into = optarg;
            break;
        case EXEC:
            a->command.text = optarg;
            break;
        case EXEC_TIMEOUT:
            a->command.limit = cli_parse_seconds(s, "--exec-timeout", optarg);
            has_limit = true;
            break;
        case INTERVAL:
            a->interval = cli_parse_seconds(s, "--interval", optarg);
            break;
        case MAX_BEHIND:
            a->max_behind = cli_parse_count(s, "--max-behind", optarg);
            break;
        case UNTIL:
            a->until = cli_parse_version(s, "--until", optarg);
            break;
        case ID:
            a->follow.id = optarg;
            break;
        case NO_REPORT:
            a->report = false;
            break;
        case BASE:
            a->follow.base = optarg;
            break;
        case CLI_OPT_TRUST:
        case CLI_OPT_STREAM:
            cli_keys_take(&a->keys, s, option);
            break;
        default:
            if (!cli_snapshot_option(&a->follow, s, option) &&
                !cli_engines_option(&a->engines, s, option) &&
                !cli_agent_option(&a->agent_options, option))
                cli_store_option(&a->store_options, s, option);
        }
    }
    cli_expect_arguments(s, argc, 1, 1);
    if (!a->follow.into)
        cli_usage_error(s, "--into DIR is missing");
    if (has_limit && !a->command.text)
        cli_usage_error(s, "--exec-timeout needs --exec CMD");
    if (!a->report && a->follow.id)
        cli_usage_error(s, "--id and --no-report exclude each other");
    if (a->report && !a->follow.id) {
        dw_follower_id(default_id, a->follow.into, 0);
        a->follow.id = default_id;
    }
    cli_agent_options_check(&a->agent_options, s);
    a->follow.n_threads = s->n_threads;
    a->follow.open_store = cli_store_open_fork;
    a->follow.open_context = &a->fork_opener;
    a->url = argv[optind];
    a->fork_opener = (cli_fork_opener){a->url, &a->store_options};
}

/* ---- running ---- */

/* Waits for a stream that does not exist yet, for a store that is away, and for an engine
 * that must pause before an interrupted apply can be finished. Other errors end the verb.
 */
static dw_status open_rollout(cli_follow *f, dw_error *err)
{
    dw_rollout_options options;
    dw_rollout_options_init(&options);
    options.engines = f->engines.engines;
    options.n_engines = f->engines.n;
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

static int run(cli_follow *f)
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

int dw_cmd_follow(int argc, char **argv)
{
    cli_session s = cli_session_start(argc, argv, help);
    cli_follow f;
    char default_id[DW_FOLLOWER_ID_SIZE];
    parse(&f, default_id, &s, argc, argv);
    f.session = &s;
    int exit_code = cli_keys_load(&f.keys, &s);
    if (exit_code == 0)
        exit_code = cli_engines_open(&f.engines, &s);
    if (exit_code == 0)
        exit_code = cli_store_open(&f.store, &s, f.url, &f.store_options);
    if (exit_code == 0)
        exit_code = cli_agent_start(&f.agent, &f.agent_options, &s);
    if (exit_code == 0)
        exit_code = run(&f);
    dw_agent_stop(f.agent);
    dw_store_close(f.store);
    cli_engines_close(&f.engines);
    cli_keys_release(&f.keys);
    return exit_code;
}
