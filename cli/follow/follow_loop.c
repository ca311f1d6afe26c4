/* The loop of `follow`: ask for a new version, go to it, check the engines, wait.
 *
 * While nothing is new, the loop asks the store often at first and then less, at least
 * every --interval seconds.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "cmd_follow.h"
#include "json_out.h"
#include "print.h"
#include "progress_bar.h"
#include "stream_info.h"
#include "sync_report.h"
#include "inner.h"

#define T_HEARTBEAT 60.0 /* seconds between reports while nothing is new */
#define T_REPORT    5.0  /* the least time between two reports */
#define T_FIRST_ASK 0.1  /* between the first two questions after a version */
#define T_SLICE     0.1  /* how late a signal may be noticed */

/* ---- reporting ---- */

static void report_version(const cli_follow *f, const dw_follow_report *report,
                           double seconds)
{
    const cli_session *s = f->session;
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", report->n_steps > 0 ? "version" : "files");
        cli_json_text(object, "into", f->follow.into);
        cli_sync_report_json(object, report, seconds);
        cli_sync_files_json(object, f->follower, report);
        if (f->engines.specs.n > 0)
            cli_json_real(object, "stopped_ms", (double)f->stopped_us / 1000);
        cli_json_event(object);
    } else if (!s->quiet) {
        cli_sync_report_line(report, seconds);
        if (f->n_stops > 0)
            printf("  engines stopped for %.1f ms%s\n", (double)f->stopped_us / 1000,
                   f->n_stops > 1 ? " in all" : "");
        fflush(stdout);
    }
}

static void report_unreported(cli_follow *f, const dw_error *err)
{
    f->is_unreported = true;
    cli_report_error(f->session, "report_failed", f->url, err);
    if (!f->session->json && !f->session->quiet)
        cli_print_message(
            "", "so `deltawire status` does not show the version of this follower. It "
                "goes on following. If it may not write here, use --no-report");
}

static void report_again(cli_follow *f)
{
    f->is_unreported = false;
    if (f->session->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "report_recovered");
        cli_json_event(object);
    } else if (!f->session->quiet) {
        cli_print_message("", "`deltawire status` shows this follower again");
    }
}

void cli_follow_report(cli_follow *f, const char *status, const char *message)
{
    dw_error err = {0};
    if (f->no_report)
        return;
    const bool is_sent = dw_follower_report(f->follower, status, message, &err) == DW_OK;
    if (!is_sent && !f->is_unreported)
        report_unreported(f, &err);
    else if (is_sent && f->is_unreported)
        report_again(f);
    f->t_report = cli_now();
}

/* This follower's status word. Readers take `following` to mean that the version is
 * served. */
static bool send_status(cli_follow *f)
{
    const bool is_serving = dw_rollout_is_serving(f->rollout);
    cli_follow_report(f, is_serving ? "following" : "behind",
                      is_serving ? NULL : "not all engines serve this version");
    return is_serving;
}

static void report_outage(cli_follow *f, const dw_error *err)
{
    dw_error shown = *err;
    cli_outage_add(&f->outage, f->session, err);
    if (f->is_by_command) /* its text may hold secrets */
        snprintf(shown.where, sizeof shown.where, "--exec");
    dw_agent_report_error(f->agent, &shown);
    if (err->code == DW_CORRUPT)
        dw_agent_report_verified(f->agent, false);
}

static void report_recovery(cli_follow *f)
{
    if (f->outage.n_tries > 0)
        dw_agent_report_error(f->agent, NULL);
    cli_outage_end(&f->outage, f->session);
}

/* ---- deciding ---- */

/* Whether the version of --until is there and served. */
static bool is_there(const cli_follow *f)
{
    uint64_t version = dw_follower_version(f->follower);
    return f->until != DW_NO_VERSION && version != DW_NO_VERSION && version >= f->until &&
           dw_rollout_is_serving(f->rollout);
}

static bool is_reached(const cli_follow *f)
{
    return is_there(f) && !f->command.is_due;
}

/* The version to go to now; the weights' own version if there is nothing to do. */
static uint64_t choose_goal(const cli_follow *f)
{
    uint64_t version = dw_follower_version(f->follower), pinned;
    if (dw_agent_pinned(f->agent, &pinned))
        return pinned;
    if (version == DW_NO_VERSION)
        return f->newest;
    if (f->newest == DW_NO_VERSION)
        return DW_NEWEST; /* the sync reports why the stream has none now */
    return f->newest > version ? f->newest : version;
}

static bool check_is_due(const cli_follow *f)
{
    return f->engines.specs.n > 0 && cli_now() - f->t_check >= f->interval;
}

/* ---- doing ---- */

/* Warns of the user's files that are in the place of the version's, once. */
static void warn_kept(cli_follow *f)
{
    size_t n_kept;
    const char *const *kept = dw_follower_files_kept(f->follower, &n_kept);
    dw_writer shown = {0};
    for (size_t i = 0; i < n_kept; i++) {
        dw_write_text(&shown, kept[i]);
        dw_write_u8(&shown, '\n');
    }
    dw_write_u8(&shown, 0);
    if (shown.failed ||
        strcmp((char *)shown.bytes, f->kept_shown ? f->kept_shown : "") == 0) {
        dw_writer_release(&shown);
        return;
    }
    dw_free(f->kept_shown);
    f->kept_shown = (char *)shown.bytes;
    cli_warn_kept(f->session, f->follower, NULL);
}

/* Warns each time the weights are found damaged. */
static void warn_healed(cli_follow *f)
{
    dw_follow_report totals;
    dw_follower_totals(f->follower, &totals);
    cli_warn_healed(f->session, f->follow.into, totals.n_healed - f->n_healed, NULL);
    f->n_healed = totals.n_healed;
}

static dw_status move(cli_follow *f, uint64_t goal, dw_error *err)
{
    dw_follow_report before, report;
    f->stopped_us = f->n_stops = 0;
    dw_follower_totals(f->follower, &before);
    warn_healed(f); /* found when the directory was opened */
    cli_progress bar = cli_progress_start(f->session, "following");
    dw_progress hook = cli_progress_hook(&bar);
    dw_status status = dw_rollout_sync(f->rollout, goal, &hook, err);
    cli_progress_end(&bar);
    f->t_check = cli_now();
    dw_follower_since(f->follower, &before, &report);
    cli_report_private(f->session, f->follow.into, report.n_private);
    cli_warn_stray(f->session, f->follow.into, report.n_stray, NULL);
    warn_healed(f);
    warn_kept(f);
    /* a sync that failed may have applied some steps */
    const uint64_t n_done =
        report.n_steps + report.n_files_installed + report.n_files_removed;
    if (n_done == 0 || report.version == DW_NO_VERSION)
        return status;
    report_version(f, &report, cli_now() - bar.t_start);
    cli_command_set_due(&f->command);
    return status;
}

/* Asks for a new version and goes to it. Sets *MOVED if the weights changed. */
static dw_status go_to_news(cli_follow *f, bool *moved, dw_error *err)
{
    const uint64_t before = dw_follower_version(f->follower);
    dw_status status = dw_follower_poll(f->follower, &f->newest, err);
    if (status == DW_NOT_FOUND) {
        f->newest = DW_NO_VERSION;
        status = DW_OK;
    }
    if (status != DW_OK) {
        const dw_update staged = dw_follower_update(f->follower);
        dw_error ignored;
        /* a version that is here already does not wait for the store */
        if (staged.state != DW_UPDATE_NONE)
            (void)move(f, staged.version, &ignored);
        *moved = dw_follower_version(f->follower) !=
                 before; /* changed also if its files are gone */
        /* the log has a gap: shows how far this follower is behind */
        if (*moved || status == DW_CORRUPT)
            cli_follow_update_agent(f);
        return status;
    }
    const dw_stream *stream = dw_follower_stream(f->follower);
    f->is_lost = f->is_lost ? dw_stream_check_lost(stream, NULL) != DW_OK
                            : cli_warn_lost(f->session, stream, NULL);
    cli_follow_update_agent(f);
    const uint64_t goal = choose_goal(f);
    /* finishes an earlier try, even if nothing is new */
    if (goal != dw_follower_version(f->follower) || dw_follower_files_due(f->follower) ||
        (goal != DW_NO_VERSION &&
         dw_follower_update(f->follower).state != DW_UPDATE_NONE))
        status = move(f, goal, err);
    *moved = dw_follower_version(f->follower) != before;
    if (*moved)
        cli_follow_update_agent(f);
    return status;
}

static dw_status run_command(cli_follow *f, dw_error *err)
{
    const uint64_t version = dw_follower_version(f->follower);
    if (!f->command.is_due || version == DW_NO_VERSION)
        return DW_OK;
    dw_status status =
        cli_after_version(f->session, &f->command, dw_follower_dir(f->follower),
                          dw_follower_stream(f->follower), version, err);
    if (status != DW_CANCELLED)
        dw_agent_report_command(f->agent, status == DW_OK);
    return status;
}

/* The command runs also if the store fails, because the version is there. If both fail,
 * ERR is the store's error or, at --until, the command's. */
static dw_status follow_once(cli_follow *f, bool *moved, dw_error *err)
{
    dw_error failed = {0};
    dw_status status = go_to_news(f, moved, err);
    f->is_by_command = false;
    if (status == DW_CANCELLED || run_command(f, &failed) == DW_OK)
        return status;
    if (status != DW_OK && !is_there(f))
        return status;
    *err = failed;
    f->is_by_command = failed.code != DW_CANCELLED;
    return failed.code;
}

static size_t count_away(const cli_follow *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->engines.specs.n; i++)
        n += dw_rollout_engine(f->rollout, i)->state == DW_ENGINE_AWAY;
    return n;
}

/* Checks the engines. Sets *BACK if one came back that was away. */
static dw_status check_engines(cli_follow *f, bool *back, dw_error *err)
{
    const size_t n_away = count_away(f);
    dw_status status = dw_rollout_check(f->rollout, err);
    f->t_check = cli_now();
    *back = count_away(f) < n_away;
    return status;
}

/* Waits, until a pin changes, an engine comes back, or a signal asks to stop. */
static dw_status wait_for_news(cli_follow *f, double seconds, dw_error *err)
{
    const double end = cli_now() + seconds;
    for (double now; (now = cli_now()) < end;) {
        double slice = end - now < T_SLICE ? end - now : T_SLICE;
        if (f->agent) {
            if (dw_agent_wait_pin(f->agent, (unsigned)(1000 * slice) + 1))
                return DW_OK;
        } else {
            cli_sleep(slice);
        }
        bool back = false;
        dw_status status = cli_check_signal(err);
        if (status == DW_OK && check_is_due(f))
            status = check_engines(f, &back, err);
        if (status != DW_OK || back)
            return status;
    }
    return cli_check_signal(err);
}

/* Whether a report to the stream is due. */
static bool report_is_due(const cli_follow *f, bool has_news)
{
    return cli_now() - f->t_report >= (has_news ? T_REPORT : T_HEARTBEAT);
}

dw_status cli_follow_loop(cli_follow *f, dw_error *err)
{
    double wait = T_FIRST_ASK;
    bool has_news = false; /* not reported yet */
    bool reported_serving; /* by the last report */
    bool back;
    dw_status status = f->engines.specs.n > 0 ? check_engines(f, &back, err) : DW_OK;
    /* an earlier process may have been killed before its command ran */
    if (dw_follower_version(f->follower) != DW_NO_VERSION)
        cli_command_set_due(&f->command);
    reported_serving = send_status(f);
    if (status == DW_OK && is_reached(f) && !dw_follower_files_due(f->follower))
        return DW_OK; /* reached before this process started */
    for (;;) {
        bool moved = false;
        status = follow_once(f, &moved, err);
        has_news =
            has_news || moved || dw_rollout_is_serving(f->rollout) != reported_serving;
        if (status == DW_CANCELLED || status == DW_INVALID)
            return status;
        if (f->is_by_command && is_there(f))
            return status;
        if (status == DW_OK) {
            report_recovery(f);
            if (is_reached(f))
                return DW_OK;
            if (report_is_due(f, has_news)) {
                reported_serving = send_status(f);
                has_news = false;
            }
            wait = moved ? T_FIRST_ASK : 2 * wait;
            wait = wait < f->interval ? wait : f->interval;
            status = wait_for_news(f, wait, err);
            if (status == DW_CANCELLED)
                return status;
        } else {
            report_outage(f, err);
            /* a store that is away takes no reports, and the attempt would take long */
            if (status != DW_UNAVAILABLE || f->is_by_command ||
                !dw_rollout_is_serving(f->rollout)) {
                char line[DW_ERROR_LINE_SIZE];
                cli_follow_report(f, "error", dw_error_line(err, line));
                reported_serving = false;
            }
            status = wait_for_news(f, cli_outage_wait(&f->outage), err);
            if (status == DW_CANCELLED)
                return status;
        }
    }
}
