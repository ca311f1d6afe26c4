#include "agent/agent_int.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"

#define DEFAULT_LISTEN "127.0.0.1:0"
#define WATCHED_MS     30000

/* ---- start and stop ---- */

static dw_status open_agent(dw_agent *agent, const dw_agent_options *options,
                            dw_error *err)
{
    if (!dw_report_init(&agent->report, options->stream_only, DW_HISTORY_VERSIONS))
        return dw_fail_memory(err, options->listen);
    return dw_server_start(&agent->server, agent, options, err);
}

dw_status dw_agent_start(dw_agent **out, const dw_agent_options *options, dw_error *err)
{
    dw_agent_options wanted = options ? *options : (dw_agent_options){0};
    *out = NULL;
    if (!wanted.listen)
        wanted.listen = DEFAULT_LISTEN;
    dw_agent *agent = dw_alloc_zeroed(1, sizeof *agent);
    if (!agent)
        return dw_fail_memory(err, wanted.listen);
    if (!dw_condition_init(&agent->pin_asked)) {
        dw_free(agent);
        return dw_fail_memory(err, wanted.listen);
    }
    pthread_mutex_init(&agent->lock, NULL);
    dw_status status = open_agent(agent, &wanted, err);
    if (status == DW_OK)
        *out = agent;
    else
        dw_agent_stop(agent);
    return status;
}

void dw_agent_stop(dw_agent *agent)
{
    if (!agent)
        return;
    dw_server_stop(agent->server);
    dw_report_release(&agent->report);
    pthread_cond_destroy(&agent->pin_asked);
    pthread_mutex_destroy(&agent->lock);
    dw_free(agent);
}

const char *dw_agent_url(const dw_agent *agent)
{
    return dw_server_url(agent->server);
}

/* ---- calls of the server ---- */

void dw_agent_view(dw_agent *agent, dw_report *view)
{
    pthread_mutex_lock(&agent->lock);
    dw_report_copy(view, &agent->report);
    pthread_mutex_unlock(&agent->lock);
}

void dw_agent_watch(dw_agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    agent->t_watched_ms = dw_clock_ms();
    pthread_mutex_unlock(&agent->lock);
}

static void set_pin(dw_agent *agent, uint64_t version)
{
    agent->report.pinned = version;
    agent->n_pins++;
    pthread_cond_broadcast(&agent->pin_asked);
}

dw_status dw_agent_pin(dw_agent *agent, const uint64_t *version, uint64_t *pinned,
                       dw_error *err)
{
    dw_status status = DW_OK;
    pthread_mutex_lock(&agent->lock);
    const dw_report *report = &agent->report;
    *pinned = version ? *version : report->version;
    if (*pinned == DW_NO_VERSION)
        status = dw_fail(err, DW_CONFLICT, NULL, "there is no version yet to hold");
    else if (report->head != DW_NO_VERSION && *pinned > report->head)
        status = dw_fail(err, DW_CONFLICT, NULL,
                         "there is no version %" PRIu64 ": the newest is %" PRIu64,
                         *pinned, report->head);
    else
        set_pin(agent, *pinned);
    pthread_mutex_unlock(&agent->lock);
    return status;
}

void dw_agent_unpin(dw_agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    set_pin(agent, DW_NO_VERSION);
    pthread_mutex_unlock(&agent->lock);
}

/* ---- calls of the host ---- */

bool dw_agent_pinned(dw_agent *agent, uint64_t *version)
{
    if (!agent)
        return false;
    pthread_mutex_lock(&agent->lock);
    *version = agent->report.pinned;
    pthread_mutex_unlock(&agent->lock);
    return *version != DW_NO_VERSION;
}

bool dw_agent_wait_pin(dw_agent *agent, unsigned timeout_ms)
{
    if (!agent) {
        dw_sleep_ms(timeout_ms);
        return false;
    }
    const uint64_t end_ms = dw_clock_ms() + timeout_ms;
    const struct timespec end = {(time_t)(end_ms / 1000),
                                 (long)(end_ms % 1000) * 1000000};
    pthread_mutex_lock(&agent->lock);
    int waited = 0;
    while (agent->n_pins == agent->n_pins_seen && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&agent->pin_asked, &agent->lock, &end);
    bool asked = agent->n_pins != agent->n_pins_seen;
    agent->n_pins_seen = agent->n_pins;
    pthread_mutex_unlock(&agent->lock);
    return asked;
}

bool dw_agent_watched(dw_agent *agent)
{
    if (!agent)
        return false;
    pthread_mutex_lock(&agent->lock);
    uint64_t t_ms = agent->t_watched_ms;
    pthread_mutex_unlock(&agent->lock);
    return t_ms != 0 && dw_clock_ms() - t_ms < WATCHED_MS;
}
