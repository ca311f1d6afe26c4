/* `deltawire follow` of another system's versions, only into a directory. For engines, an
 * HTTP agent or reports, mirror the bucket into a deltawire stream. */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "fail.h"
#include "json_out.h"
#include "peer_verbs.h"

#define T_FIRST_ASK 0.1 /* seconds between the first two questions after a version */

typedef struct loop {
    cli_follow *f;
    dw_peer *peer;
    dw_peer_replica *replica;
    cli_peer_notes notes;
} loop;

static void report_version(loop *l, const dw_peer_sync_report *report, double seconds)
{
    const cli_session *s = l->f->session;
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "version");
        cli_json_text(object, "into", l->f->follow.into);
        cli_peer_report_json(object, l->peer, report, seconds);
        json_object_set(object, "notes", l->notes.list);
        cli_json_event(object);
    } else if (!s->quiet) {
        cli_peer_report_line(l->peer, report, seconds);
        fflush(stdout);
    }
}

static dw_status run_command(loop *l, dw_error *err)
{
    char state[17];
    const uint64_t version = dw_peer_replica_version(l->replica);
    if (!l->f->command.is_due || version == DW_NO_VERSION)
        return DW_OK;
    snprintf(state, sizeof state, "%016" PRIx64, dw_peer_replica_state(l->replica));
    return cli_after_weights(l->f->session, &l->f->command, l->f->follow.into, version,
                             "", state, err);
}

/* The version to go to; the weights' own version if there is nothing to do. */
static dw_status choose_goal(loop *l, uint64_t *goal, dw_error *err)
{
    const uint64_t *versions, at = dw_peer_replica_version(l->replica);
    size_t n;
    dw_status status = dw_peer_list(l->peer, &versions, &n, err);
    if (status != DW_OK)
        return status;
    const uint64_t newest = n > 0 ? versions[n - 1] : DW_NO_VERSION;
    /* if the newest version is lower, the run was started again */
    const bool is_near = at != DW_NO_VERSION && newest != DW_NO_VERSION && newest > at &&
                         newest - at <= l->f->max_behind &&
                         (l->f->until == DW_NO_VERSION || newest < l->f->until);
    *goal = is_near || newest == DW_NO_VERSION ? at : newest;
    return DW_OK;
}

static dw_status follow_once(loop *l, bool *moved, dw_error *err)
{
    uint64_t goal;
    const uint64_t before = dw_peer_replica_version(l->replica);
    dw_status status = choose_goal(l, &goal, err);
    if (status != DW_OK || goal == before)
        return status;
    dw_peer_sync_report report;
    cli_progress bar = cli_progress_start(l->f->session, "following");
    dw_progress hook = cli_progress_hook(&bar);
    l->notes.bar = &bar;
    if (l->notes.list)
        json_array_clear(l->notes.list);
    status = dw_peer_replica_sync(l->replica, goal, &hook, &report, err);
    cli_progress_end(&bar);
    l->notes.bar = NULL;
    *moved = dw_peer_replica_version(l->replica) != before;
    /* a sync that failed may have applied some versions */
    if (*moved) {
        report_version(l, &report, cli_now() - bar.t_start);
        cli_command_set_due(&l->f->command);
    }
    return status;
}

static bool is_reached(const loop *l)
{
    const uint64_t at = dw_peer_replica_version(l->replica);
    return l->f->until != DW_NO_VERSION && at != DW_NO_VERSION && at >= l->f->until;
}

static dw_status run_loop(loop *l, dw_error *err)
{
    double wait = T_FIRST_ASK;
    cli_follow *f = l->f;
    for (;;) {
        bool moved = false;
        dw_status status = is_reached(l) ? DW_OK : follow_once(l, &moved, err);
        if (status == DW_OK)
            status = run_command(l, err);
        /* waiting does not help if the run was started again */
        if (status == DW_CANCELLED || status == DW_INVALID || status == DW_STALE)
            return status;
        if (f->command.n_failed > 0 && is_reached(l))
            return status; /* the command failed for the last version */
        if (status == DW_OK) {
            cli_outage_end(&f->outage, f->session);
            if (is_reached(l))
                return DW_OK;
            wait = moved ? T_FIRST_ASK : 2 * wait;
            wait = wait < f->interval ? wait : f->interval;
            cli_sleep(wait);
        } else {
            cli_outage_add(&f->outage, f->session, err);
            cli_outage_sleep(&f->outage);
        }
        status = cli_check_signal(err);
        if (status != DW_OK)
            return status;
    }
}

static int check(const dw_peer *peer, const cli_follow *f)
{
    dw_error err;
    if (f->engines.n > 0 || f->agent) {
        dw_fail(&err, DW_UNSUPPORTED, f->url,
                "--engine and --listen are for streams of deltawire's own, and this "
                "is in the format of %s",
                dw_peer_format_name(dw_peer_get_format(peer)));
        return cli_fail(f->session, &err, f->url,
                        "deltawire mirror %s OURS, and follow that", f->url);
    }
    return cli_peer_check_trust(peer, f->session, &f->keys, f->url);
}

int cli_peer_follow(dw_peer *peer, cli_follow *f)
{
    dw_error err = {0};
    const cli_session *s = f->session;
    loop l = {.f = f, .peer = peer};
    int exit_code = check(peer, f);
    if (exit_code != 0)
        return exit_code;
    l.notes = (cli_peer_notes){s, NULL, s->json ? json_array() : NULL};
    const dw_peer_replica_options options =
        cli_peer_replica_options(&f->follow, &l.notes);
    dw_status status = dw_peer_replica_open(&l.replica, peer, &options, &err);
    if (status == DW_OK && dw_peer_replica_version(l.replica) != DW_NO_VERSION)
        cli_command_set_due(&f->command);
    if (status == DW_OK)
        status = run_loop(&l, &err);
    if (s->json && (status == DW_OK || status == DW_CANCELLED)) {
        json_t *object = json_object();
        cli_json_text(object, "event", "stopped");
        cli_json_version(object, "version",
                         l.replica ? dw_peer_replica_version(l.replica) : DW_NO_VERSION);
        cli_json_event(object);
    }
    dw_peer_replica_close(l.replica);
    json_decref(l.notes.list);
    /* a signal is the normal end */
    if (status == DW_OK || status == DW_CANCELLED)
        return 0;
    if (status == DW_UNAVAILABLE)
        return cli_command_fail(s, &err);
    return cli_stream_fail(s, &err, f->url);
}
