#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <deltawire/follow.h>

#include "after_version.h"
#include "commands.h"
#include "error.h"
#include "hash.h"
#include "json.h"
#include "options.h"
#include "path.h"
#include "print.h"
#include "progress.h"
#include "snapshot_options.h"
#include "store.h"
#include "sync_report.h"
#include "trouble.h"

static const char help[] =
    "usage: deltawire follow URL --into DIR [--exec CMD] [OPTION...]\n"
    "\n"
    "Keeps a checkpoint directory at the newest version of a stream until SIGINT or "
    "SIGTERM\n"
    "stops it, or --until is reached. While the store fails, the directory stays at its "
    "last\n"
    "good version. Where it stands is reported to the stream: see deltawire status.\n"
    "\n"
    "  --into DIR           the checkpoint directory; made where it is not there\n"
    "  --exec CMD           run CMD by sh -c after each version, with "
    "DELTAWIRE_VERSION,\n"
    "                       DELTAWIRE_DIR, DELTAWIRE_STEP and DELTAWIRE_STATE set\n"
    "  --interval S         ask at least so often, in seconds (5)\n"
    "  --max-behind K       move only when more than K versions behind (0)\n"
    "  --until N            end once version N or a later one is reached\n"
    "  --id NAME            report under this name; default: host name and a hash of "
    "DIR\n"
    "  --no-report          do not report\n"
    "  --base CKPT          the checkpoint behind a version 0 that was not "
    "uploaded\n" CLI_SNAPSHOT_HELP CLI_TRUST_HELP CLI_STORE_HELP
    "  --json               one JSON object a line for each event\n"
    "  --threads N  --quiet  --help\n"
    "\n"
    "  deltawire follow s3://bucket/run --into model/ \\\n"
    "      --exec 'curl -fsS -X POST localhost:8000/reload'\n"
    "  deltawire follow s3://bucket/run --into model/ --until 100 --json\n";

#define T_HEARTBEAT 60.0 /* seconds between reports while nothing is new */
#define ID_SIZE     128

typedef struct arguments {
    const char *url;
    dw_store_options store;
    cli_fork_opener fork_opener;
    cli_keys keys;
    dw_follow_options follow;
    const char *command; /* --exec, or NULL */
    double interval;     /* seconds */
    uint64_t max_behind;
    uint64_t until; /* or DW_NO_VERSION */
    bool report;
    char default_id[ID_SIZE];
} arguments;

/* ---- arguments ---- */

/* The name of the machine, of which a key takes some bytes alone, and a hash that tells
 * apart the directories on it. */
static void make_id(char out[ID_SIZE], const char *dir)
{
    char host[64] = "", digits[9];
    char *cwd = dir[0] == '/' ? NULL : getcwd(NULL, 0);
    char *path = cwd ? cli_path_join(cwd, dir) : strdup(dir);
    if (gethostname(host, sizeof host - 1) != 0 || !host[0])
        strcpy(host, "host");
    for (char *at = host; *at; at++)
        if (!strchr("-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
                    *at))
            *at = '-';
    size_t n = path ? strlen(path) : 0;
    while (n > 1 && path[n - 1] == '/')
        path[--n] = '\0';
    cli_hash_text(digits, 8, path ? path : dir);
    snprintf(out, ID_SIZE, "%s-%s", host, digits);
    free(path);
    free(cwd);
}

static void parse(arguments *a, cli_session *s, int argc, char **argv)
{
    enum {
        INTO = CLI_OPT_OWN,
        EXEC,
        INTERVAL,
        MAX_BEHIND,
        UNTIL,
        ID,
        NO_REPORT,
        BASE,
        TRUST
    };
    static const struct option options[] = {
        {"into", required_argument, NULL, INTO},
        {"exec", required_argument, NULL, EXEC},
        {"interval", required_argument, NULL, INTERVAL},
        {"max-behind", required_argument, NULL, MAX_BEHIND},
        {"until", required_argument, NULL, UNTIL},
        {"id", required_argument, NULL, ID},
        {"no-report", no_argument, NULL, NO_REPORT},
        {"base", required_argument, NULL, BASE},
        {"trust", required_argument, NULL, TRUST},
        CLI_SNAPSHOT_OPTIONS,
        CLI_STORE_OPTIONS,
        CLI_COMMON_OPTIONS,
    };
    *a = (arguments){.interval = 5, .until = DW_NO_VERSION, .report = true};
    dw_follow_options_init(&a->follow);
    for (int option; (option = cli_next_option(s, argc, argv, options)) != -1;) {
        switch (option) {
        case INTO:
            a->follow.into = optarg;
            break;
        case EXEC:
            a->command = optarg;
            break;
        case INTERVAL:
            a->interval = cli_parse_positive(s, "--interval", optarg);
            if (a->interval > 86400)
                cli_usage_error(s, "--interval: at most 86400, a day");
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
        case TRUST:
            cli_keys_add(&a->keys, s, optarg);
            break;
        default:
            if (!cli_snapshot_option(&a->follow, s, option))
                cli_store_option(&a->store, s, option);
        }
    }
    cli_expect_arguments(s, argc, 1, 1);
    if (!a->follow.into)
        cli_usage_error(s, "--into DIR is missing");
    if (!a->report && a->follow.id)
        cli_usage_error(s, "--id and --no-report exclude each other");
    if (a->report && !a->follow.id) {
        make_id(a->default_id, a->follow.into);
        a->follow.id = a->default_id;
    }
    a->follow.n_threads = s->n_threads;
    a->follow.open_store = cli_store_open_fork;
    a->follow.open_context = &a->fork_opener;
    a->url = argv[optind];
    a->fork_opener = (cli_fork_opener){a->url, &a->store};
}

/* ---- following ---- */

static void tell_version(const cli_session *s, const arguments *a,
                         const dw_follow_report *report, double seconds)
{
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "version");
        cli_json_text(object, "into", a->follow.into);
        cli_sync_report_json(object, report, seconds);
        cli_json_event(object);
    } else if (!s->quiet) {
        cli_sync_report_line(report, seconds);
        fflush(stdout);
    }
}

/* Reports are for people: what fails there is no reason to stop, nor to tell. */
static void send_report(const arguments *a, dw_follower *follower, const char *status,
                        const char *message)
{
    dw_error err;
    if (a->report)
        dw_follower_report(follower, status, message, &err);
}

static bool is_reached(const arguments *a, const dw_follower *follower)
{
    uint64_t version = dw_follower_version(follower);
    return a->until != DW_NO_VERSION && version != DW_NO_VERSION && version >= a->until;
}

static bool is_due(const arguments *a, const dw_follower *follower, uint64_t newest)
{
    uint64_t version = dw_follower_version(follower);
    if (version == DW_NO_VERSION)
        return true;
    if (newest <= version)
        return false;
    return newest - version > a->max_behind ||
           (a->until != DW_NO_VERSION && newest >= a->until);
}

static dw_status move(const cli_session *s, const arguments *a, dw_follower *follower,
                      dw_error *err)
{
    dw_follow_report report = {0};
    cli_progress bar = cli_progress_start(s, "following");
    dw_progress hook = cli_progress_hook(&bar);
    dw_status status = dw_follower_sync(follower, DW_LATEST, &hook, &report, err);
    cli_progress_end(&bar);
    /* one that failed on the way may have come some of it */
    const bool moved = report.n_hops > 0 && report.version != DW_NO_VERSION;
    if (moved && report.version == dw_follower_version(follower)) {
        tell_version(s, a, &report, cli_now() - bar.t_start);
        if (a->command)
            cli_after_version(s, a->command, a->follow.into, dw_follower_stream(follower),
                              report.version);
    }
    return status;
}

/* Waits for something new, but no longer than so, and goes there: one round. */
static dw_status follow_round(const cli_session *s, const arguments *a,
                              dw_follower *follower, double patience, dw_error *err)
{
    uint64_t newest = 0;
    const dw_progress hook = cli_signal_hook();
    const unsigned interval_ms = (unsigned)(1000 * a->interval) + 1;
    dw_status status = dw_follower_wait(
        follower, &newest, (unsigned)(1000 * patience) + 1, interval_ms, &hook, err);
    if (status != DW_OK)
        return status;
    if (is_due(a, follower, newest))
        return move(s, a, follower, err);
    send_report(a, follower, "following", NULL);
    /* new ones that are not many enough end the wait at once */
    if (newest > dw_follower_version(follower))
        cli_sleep(a->interval);
    return cli_check_signal(err);
}

static dw_status follow(const cli_session *s, const arguments *a, dw_follower *follower,
                        cli_trouble *trouble, dw_error *err)
{
    dw_status status = DW_OK;
    send_report(a, follower, "following", NULL);
    for (;;) {
        if (status == DW_OK) {
            cli_trouble_end(trouble, s);
        } else if (status == DW_CANCELLED || status == DW_INVALID) {
            return status;
        } else {
            cli_trouble_add(trouble, s, err);
            /* a store that is away takes no reports, and long to say so */
            if (status != DW_UNAVAILABLE)
                send_report(a, follower, "error", err->text);
            cli_trouble_sleep(trouble);
        }
        if (status == DW_OK && is_reached(a, follower))
            return DW_OK;
        status = cli_check_signal(err);
        if (status != DW_OK)
            return status;
        /* in trouble it does not wait for news, but sees whether that is over */
        status =
            follow_round(s, a, follower, trouble->n_tries > 0 ? 0 : T_HEARTBEAT, err);
    }
}

/* A stream that is not there yet, or a store that is away, is waited for; what waiting
 * does not mend is not. */
static dw_status open_follower(dw_follower **out, const cli_session *s,
                               const arguments *a, dw_store *store, cli_trouble *trouble,
                               dw_error *err)
{
    for (;;) {
        dw_status status = cli_check_signal(err);
        if (status == DW_OK)
            status = dw_follower_open(out, store, &a->follow, err);
        if (status != DW_UNAVAILABLE && status != DW_NOT_FOUND)
            return status;
        cli_trouble_add(trouble, s, err);
        cli_trouble_sleep(trouble);
    }
}

static int run(arguments *a, const cli_session *s, dw_store *store)
{
    dw_error err;
    dw_follower *follower = NULL;
    cli_trouble trouble = {.what = a->url};
    a->follow.trust = cli_keys_trust(&a->keys);
    dw_status status = open_follower(&follower, s, a, store, &trouble, &err);
    if (status == DW_OK) {
        status = follow(s, a, follower, &trouble, &err);
        if (trouble.n_tries == 0 || trouble.told.code != DW_UNAVAILABLE)
            send_report(a, follower, "stopped", NULL);
    }
    if (s->json && (status == DW_OK || status == DW_CANCELLED)) {
        json_t *object = json_object();
        cli_json_text(object, "event", "stopped");
        cli_json_version(object, "version",
                         follower ? dw_follower_version(follower) : DW_NO_VERSION);
        cli_json_event(object);
    }
    dw_follower_close(follower);
    /* to be stopped is how following ends */
    if (status == DW_OK || status == DW_CANCELLED)
        return 0;
    return cli_stream_fail(s, &err, a->url);
}

int dw_cmd_follow(int argc, char **argv)
{
    cli_session s = cli_session_start(argc, argv, help);
    arguments a;
    parse(&a, &s, argc, argv);
    dw_store *store = NULL;
    int exit_code = cli_keys_load(&a.keys, &s);
    if (exit_code == 0)
        exit_code = cli_store_open(&store, &s, a.url, &a.store);
    if (exit_code == 0)
        exit_code = run(&a, &s, store);
    dw_store_close(store);
    cli_keys_release(&a.keys);
    return exit_code;
}
