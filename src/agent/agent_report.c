/* The host's reports to the agent. Memory is allocated before the lock is taken. If there
 * is none, the earlier report stays. */
#include <stdio.h>
#include <string.h>

#include "agent/agent_int.h"
#include "base/clock.h"
#include "base/mem.h"

static dw_report *lock(dw_agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    return &agent->report;
}

static void unlock(dw_agent *agent)
{
    pthread_mutex_unlock(&agent->lock);
}

/* ---- texts ---- */

#define MAX_TEXT 512 /* of each text in other followers' reports, which may be many */

static size_t text_bytes(const char *text)
{
    return text ? strnlen(text, MAX_TEXT) + 1 : 0;
}

/* Copies TEXT to *ROOM and advances *ROOM. */
static const char *pack(char **room, const char *text)
{
    const size_t n = text_bytes(text);
    char *at = *room;
    if (n == 0)
        return NULL;
    memcpy(at, text, n - 1);
    at[n - 1] = '\0';
    *room += n;
    return at;
}

/* Copies FROM, cut after a whole character if it is too long. */
static void copy_text(char *to, size_t size, const char *from)
{
    size_t n = from ? strlen(from) : 0;
    if (n >= size) {
        n = size - 1;
        while (n > 0 && ((unsigned char)from[n] & 0xc0) == 0x80)
            n--;
    }
    if (n > 0)
        memcpy(to, from, n);
    to[n] = '\0';
}

/* ---- the stream ---- */

void dw_agent_report_identity(dw_agent *agent, const dw_agent_identity *identity)
{
    if (!agent)
        return;
    dw_agent_identity *copy = dw_shared_new(
        sizeof *copy + text_bytes(identity->url) + text_bytes(identity->stream) +
        text_bytes(identity->id) + text_bytes(identity->dir));
    if (!copy)
        return;
    char *room = (char *)(copy + 1);
    *copy = *identity;
    copy->url = pack(&room, identity->url);
    copy->stream = pack(&room, identity->stream);
    copy->id = pack(&room, identity->id);
    copy->dir = pack(&room, identity->dir);
    dw_report *report = lock(agent);
    const void *old = report->identity;
    report->identity = copy;
    unlock(agent);
    dw_shared_drop(old);
}

void dw_agent_report_head(dw_agent *agent, uint64_t version, const char *created,
                          const char *step)
{
    if (!agent)
        return;
    char *copy = step ? dw_shared_new(text_bytes(step)) : NULL;
    if (copy)
        snprintf(copy, text_bytes(step), "%s", step);
    int64_t created_ms = created ? dw_time_parse(created) : 0;
    dw_report *report = lock(agent);
    const void *old = report->head_step;
    report->head = version;
    report->head_ms = created_ms;
    report->head_step = copy;
    unlock(agent);
    dw_shared_drop(old);
}

void dw_agent_report_commit(dw_agent *agent, const dw_version_info *version)
{
    if (!agent)
        return;
    dw_history_add_commit(&lock(agent)->history, version);
    unlock(agent);
}

static size_t follower_bytes(const dw_follower_info *f)
{
    return sizeof *f + text_bytes(f->id) + text_bytes(f->host) + text_bytes(f->status) +
           text_bytes(f->message) + text_bytes(f->time);
}

void dw_agent_report_followers(dw_agent *agent, const dw_follower_info *followers,
                               size_t n_followers)
{
    if (!agent)
        return;
    size_t n =
        n_followers < DW_AGENT_MAX_FOLLOWERS ? n_followers : DW_AGENT_MAX_FOLLOWERS;
    size_t n_bytes = sizeof(dw_reported_followers);
    for (size_t i = 0; i < n; i++)
        n_bytes += follower_bytes(&followers[i]);
    dw_reported_followers *copy = dw_shared_new(n_bytes);
    if (!copy)
        return;
    copy->n_items = n;
    char *room = (char *)&copy->items[n];
    for (size_t i = 0; i < n; i++)
        copy->items[i] = (dw_follower_info){pack(&room, followers[i].id),
                                            followers[i].version,
                                            pack(&room, followers[i].host),
                                            pack(&room, followers[i].status),
                                            pack(&room, followers[i].message),
                                            pack(&room, followers[i].time),
                                            followers[i].times};
    dw_report *report = lock(agent);
    const void *old = report->followers;
    report->followers = copy;
    unlock(agent);
    dw_shared_drop(old);
}

void dw_agent_report_counts(dw_agent *agent, const dw_store_counts *counts)
{
    if (!agent)
        return;
    lock(agent)->counts = *counts;
    unlock(agent);
}

/* ---- the weights ---- */

void dw_agent_report_version(dw_agent *agent, uint64_t version, const char *next_created)
{
    if (!agent)
        return;
    int64_t next_ms = next_created ? dw_time_parse(next_created) : 0;
    dw_report *report = lock(agent);
    report->version = version;
    report->next_ms = next_ms;
    unlock(agent);
}

void dw_agent_report_phase(dw_agent *agent, dw_phase phase, uint64_t version)
{
    if (!agent)
        return;
    dw_report *report = lock(agent);
    report->phase = phase;
    report->phase_version = phase == DW_PHASE_IDLE ? DW_NO_VERSION : version;
    unlock(agent);
}

void dw_agent_report_step(dw_agent *agent, const dw_rollout_step *step)
{
    if (!agent)
        return;
    dw_report *report = lock(agent);
    report->n_steps++;
    report->n_objects += step->n_objects;
    report->n_bytes += step->n_bytes;
    report->n_changed += step->n_changed;
    for (size_t i = 0; i < DW_N_STEP_TIMES; i++)
        dw_histogram_add(&report->times[i], dw_step_time_us(step, &dw_step_times[i]));
    dw_histogram_add(&report->stopped, step->stopped_us);
    dw_history_add_step(&report->history, step, dw_wall_clock_ms());
    unlock(agent);
}

void dw_agent_report_engine(dw_agent *agent, size_t i, const dw_engine_status *status)
{
    if (!agent || i >= DW_MAX_ENGINES)
        return;
    dw_report *report = lock(agent);
    dw_reported_engine *engine = &report->engines[i];
    for (; report->n_engines <= i; report->n_engines++)
        report->engines[report->n_engines] =
            (dw_reported_engine){.version = DW_NO_VERSION};
    copy_text(engine->driver, sizeof engine->driver, status->driver);
    copy_text(engine->where, sizeof engine->where, status->where);
    copy_text(engine->software, sizeof engine->software, status->software);
    engine->state = status->state;
    engine->version = status->version;
    engine->error = status->error;
    unlock(agent);
}

/* ---- errors ---- */

/* Tries that fail in the same way again and again are one error. */
static bool goes_on(const dw_reported_error *last, const dw_error *err)
{
    return last->error.code == err->code && strcmp(last->error.where, err->where) == 0;
}

static void add_error(dw_report *report, const dw_error *err, int64_t now_ms)
{
    const size_t n_kept =
        report->n_errors < DW_AGENT_ERRORS ? report->n_errors : DW_AGENT_ERRORS - 1;
    memmove(report->errors + 1, report->errors, n_kept * sizeof *report->errors);
    report->errors[0] = (dw_reported_error){*err, now_ms, 0};
    report->n_errors = n_kept + 1;
}

void dw_agent_report_error(dw_agent *agent, const dw_error *err)
{
    if (!agent)
        return;
    const int64_t now_ms = dw_wall_clock_ms();
    dw_report *report = lock(agent);
    const bool is_open = dw_report_current_error(report) != NULL;
    if (err && is_open && goes_on(&report->errors[0], err)) {
        report->errors[0].error = *err;
    } else {
        if (is_open)
            report->errors[0].until_ms = now_ms;
        if (err)
            add_error(report, err, now_ms);
    }
    report->n_failures += err != NULL;
    report->verify_failed = report->verify_failed && err; /* a success ends this too */
    if (!err || report->failing_at == 0)
        report->failing_at = err ? dw_clock_ms() : 0;
    unlock(agent);
}

void dw_agent_report_verified(dw_agent *agent, bool good)
{
    if (!agent)
        return;
    dw_report *report = lock(agent);
    report->n_verified += good;
    report->n_verify_failures += !good;
    report->verify_failed = !good;
    unlock(agent);
}

void dw_agent_report_command(dw_agent *agent, bool good)
{
    if (!agent)
        return;
    lock(agent)->command_failed = !good;
    unlock(agent);
}
