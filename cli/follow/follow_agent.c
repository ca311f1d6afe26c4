#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent_followers.h"
#include "cmd_follow.h"
#include "json_out.h"
#include "progress_bar.h"
#include "stream_info.h"

#define N_OLD_VERSIONS 32   /* how many the charts begin with */
#define T_FOLLOWERS    10.0 /* seconds between reads of the followers' reports */

/* ---- as it happens ---- */

static void take_phase(void *context, dw_phase phase, uint64_t version)
{
    cli_follow *f = context;
    dw_agent_report_phase(f->agent, phase, version);
}

static void take_step(void *context, const dw_rollout_step *step)
{
    cli_follow *f = context;
    f->stopped_us += step->stopped_us;
    f->n_stops += step->stopped_us > 0;
    if (step->is_unready && !f->session->json)
        fprintf(stderr,
                "deltawire follow: version %" PRIu64 ": an engine had not prepared the "
                "patch after %d s, so its pause is longer\n",
                step->version, DW_READY_LIMIT_MS / 1000);
    dw_agent_report_step(f->agent, step);
    dw_agent_report_verified(f->agent, true); /* or this would not be called */
}

static void take_engine(void *context, size_t i, const dw_engine_status *status)
{
    cli_follow *f = context;
    dw_agent_report_engine(f->agent, i, status);
    if (f->session->json) {
        json_t *object = json_object();
        cli_json_text(object, "event", "engine");
        cli_json_text(object, "engine", status->driver);
        cli_json_text(object, "where", status->where ? status->where : "");
        cli_json_text(object, "state", dw_engine_state_name(status->state));
        cli_json_version(object, "version", status->version);
        if (status->error.code != DW_OK)
            cli_json_text(object, "text", status->error.text);
        cli_json_event(object);
    } else if (status->error.code != DW_OK && status->state != DW_ENGINE_SERVING) {
        cli_report_error(f->session, "engine", status->driver, &status->error);
    }
}

dw_rollout_watch cli_follow_watch(cli_follow *f)
{
    return (dw_rollout_watch){take_phase, take_step, take_engine, f};
}

/* ---- now and then ---- */

static void show_old_versions(cli_follow *f, dw_stream *stream)
{
    uint64_t head, floor;
    dw_version_info info;
    if (dw_stream_head(stream, &head, NULL) != DW_OK ||
        dw_stream_floor(stream, &floor, NULL) != DW_OK)
        return;
    uint64_t first = head >= N_OLD_VERSIONS ? head - N_OLD_VERSIONS + 1 : 0;
    for (uint64_t v = first > floor ? first : floor; v <= head && !cli_signal(); v++)
        if (dw_stream_version(stream, v, &info, NULL) == DW_OK)
            dw_agent_report_commit(f->agent, &info);
}

void cli_follow_introduce_stream(cli_follow *f)
{
    if (!f->agent)
        return;
    dw_stream *stream = dw_follower_stream(f->follower);
    const cli_model_size size = cli_model_count(stream);
    dw_agent_identity identity = {.url = dw_store_url(f->store),
                                  .stream = dw_stream_id(stream),
                                  .id = f->no_report ? NULL : f->follow.id,
                                  .dir = f->follow.into,
                                  .n_tensors = size.n_tensors,
                                  .n_elems = size.n_elems,
                                  .n_bytes = size.n_bytes};
    dw_agent_report_identity(f->agent, &identity);
    show_old_versions(f, stream);
}

/* When a version was committed; NULL if that is unknown. The caller frees it. */
static char *find_created(dw_stream *stream, uint64_t version)
{
    dw_version_info info;
    return dw_stream_version(stream, version, &info, NULL) == DW_OK ? strdup(info.created)
                                                                    : NULL;
}

static void show_head(cli_follow *f)
{
    dw_version_info info;
    dw_stream *stream = dw_follower_stream(f->follower);
    if (f->newest == DW_NO_VERSION)
        return;
    if (f->newest != f->agent_head &&
        dw_stream_version(stream, f->newest, &info, NULL) == DW_OK) {
        dw_agent_report_head(f->agent, f->newest, info.created, info.step);
        dw_agent_report_commit(f->agent, &info);
        f->agent_head = f->newest;
    }
}

static void show_followers(cli_follow *f)
{
    dw_error err;
    const double now = cli_now();
    if (now - f->t_followers < T_FOLLOWERS || !dw_agent_watched(f->agent))
        return;
    f->t_followers = now;
    cli_agent_show_followers(f->agent, dw_follower_stream(f->follower), DW_NO_VERSION,
                             &err);
}

void cli_follow_update_agent(cli_follow *f)
{
    dw_store_counts counts;
    if (!f->agent)
        return;
    show_head(f);
    const uint64_t version = dw_follower_version(f->follower);
    const bool behind =
        f->newest != DW_NO_VERSION && (version == DW_NO_VERSION || version < f->newest);
    char *created = behind
                        ? find_created(dw_follower_stream(f->follower),
                                       version == DW_NO_VERSION ? f->newest : version + 1)
                        : NULL;
    dw_agent_report_version(f->agent, version, created);
    free(created);
    dw_store_get_counts(f->store, &counts);
    dw_agent_report_counts(f->agent, &counts);
    show_followers(f);
}
