/* Computes lag and readiness from the report. */
#include <inttypes.h>
#include <stdio.h>

#include "agent/report.h"

/* How long an error may last before /readyz fails. A short outage of the store must not
 * drain the engines. */
#define PATIENCE_MS 60000

bool dw_report_lag_versions(const dw_report *report, uint64_t *n)
{
    if (report->stream_only || report->head == DW_NO_VERSION ||
        report->version == DW_NO_VERSION)
        return false;
    *n = report->head > report->version ? report->head - report->version : 0;
    return true;
}

bool dw_report_lag_seconds(const dw_report *report, int64_t now_ms, double *seconds)
{
    uint64_t n_behind;
    *seconds = 0;
    if (!dw_report_lag_versions(report, &n_behind) || n_behind == 0)
        return !report->stream_only && report->head != DW_NO_VERSION &&
               report->version != DW_NO_VERSION;
    int64_t since_ms = report->next_ms;
    if (since_ms == 0 && n_behind == 1)
        since_ms = report->head_ms;
    if (since_ms == 0)
        return false;
    if (now_ms > since_ms) /* the writer's clock may be ahead */
        *seconds = (double)(now_ms - since_ms) / 1000;
    return true;
}

const dw_reported_error *dw_report_current_error(const dw_report *report)
{
    const dw_reported_error *newest = &report->errors[0];
    return report->n_errors > 0 && newest->until_ms == 0 ? newest : NULL;
}

/* Why an engine in STATE makes the follower unready; NULL: it does not. One that is
 * paused for an update goes on in a moment. */
static const char *engine_trouble(dw_engine_state state)
{
    switch (state) {
    case DW_ENGINE_SERVING:
    case DW_ENGINE_PAUSED:
        return NULL;
    case DW_ENGINE_UNKNOWN:
        return "was not asked yet";
    case DW_ENGINE_BEHIND:
        return "serves another version";
    case DW_ENGINE_BROKEN:
        return "is paused: its weights are being loaded again";
    case DW_ENGINE_AWAY:
        return "does not answer";
    }
    return "is in an unknown state";
}

bool dw_report_ready(const dw_report *report, uint64_t clock_ms, bool is_trusted,
                     char reason[DW_READY_REASON])
{
    char line[DW_ERROR_LINE_SIZE] = "";
    const dw_reported_error *e = dw_report_current_error(report);
    const char *fault = "";
    if (e)
        fault =
            is_trusted ? dw_error_line(&e->error, line) : dw_status_name(e->error.code);
    reason[0] = '\0';
    if ((report->stream_only ? report->head : report->version) == DW_NO_VERSION)
        snprintf(reason, DW_READY_REASON, "no version%s%s", e ? ": " : " yet", fault);
    else if (report->verify_failed)
        snprintf(reason, DW_READY_REASON, "a verification failed%s%s", e ? ": " : "",
                 fault);
    else if (report->command_failed)
        snprintf(reason, DW_READY_REASON, "the command for the version failed%s%s",
                 line[0] ? ": " : "", line);
    for (size_t i = 0; !reason[0] && i < report->n_engines; i++) {
        const char *trouble = engine_trouble(report->engines[i].state);
        if (trouble)
            snprintf(reason, DW_READY_REASON, "engine %zu (%s) %s", i,
                     report->engines[i].driver, trouble);
    }
    if (!reason[0] && e && (e->error.code == DW_CORRUPT || e->error.code == DW_UNTRUSTED))
        snprintf(reason, DW_READY_REASON, "the stream is %s%s%s",
                 dw_status_name(e->error.code), line[0] ? ": " : "", line);
    if (!reason[0] && e && clock_ms - report->failing_at >= PATIENCE_MS)
        snprintf(reason, DW_READY_REASON, "failing for %" PRIu64 " s: %s",
                 (clock_ms - report->failing_at) / 1000, fault);
    return !reason[0];
}
