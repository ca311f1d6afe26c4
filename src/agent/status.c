#include "agent/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "deltawire/deltawire.h"

/* ---- values ---- */

/* Begins a value. KEY is NULL in an array. */
static void begin(dw_writer *out, const char *key)
{
    const uint8_t last = out->n_bytes > 0 ? out->bytes[out->n_bytes - 1] : '{';
    if (last != '{' && last != '[')
        dw_write_u8(out, ',');
    if (key)
        dw_write_format(out, "\"%s\":", key);
}

static void open_object(dw_writer *out, const char *key)
{
    begin(out, key);
    dw_write_u8(out, '{');
}

static void close_object(dw_writer *out)
{
    dw_write_u8(out, '}');
}

static void open_array(dw_writer *out, const char *key)
{
    begin(out, key);
    dw_write_u8(out, '[');
}

static void close_array(dw_writer *out)
{
    dw_write_u8(out, ']');
}

static void set_null(dw_writer *out, const char *key)
{
    begin(out, key);
    dw_write_text(out, "null");
}

static void set_bool(dw_writer *out, const char *key, bool v)
{
    begin(out, key);
    dw_write_text(out, v ? "true" : "false");
}

static void set_text(dw_writer *out, const char *key, const char *text)
{
    if (!text) {
        set_null(out, key);
        return;
    }
    dw_writer valid = {0};
    dw_write_utf8(&valid, text);
    dw_write_u8(&valid, 0);
    begin(out, key);
    if (valid.failed)
        out->failed = true;
    else
        dw_write_json_string(out, (const char *)valid.bytes);
    dw_writer_release(&valid);
}

static void set_count(dw_writer *out, const char *key, uint64_t n)
{
    begin(out, key);
    dw_write_format(out, "%" PRIu64, n < INT64_MAX ? n : INT64_MAX);
}

static void set_version(dw_writer *out, const char *key, uint64_t version)
{
    if (version == DW_NO_VERSION)
        set_null(out, key);
    else
        set_count(out, key, version);
}

static void set_real(dw_writer *out, const char *key, bool is_known, double v)
{
    if (!is_known || !isfinite(v)) {
        set_null(out, key);
        return;
    }
    begin(out, key);
    const size_t start = out->n_bytes;
    dw_write_real(out, v, 9);
    bool is_whole = !out->failed;
    for (size_t i = start; is_whole && i < out->n_bytes; i++)
        is_whole = out->bytes[i] != '.' && out->bytes[i] != 'e';
    if (is_whole)
        dw_write_text(out, ".0");
}

static void set_time(dw_writer *out, const char *key, int64_t wall_ms)
{
    char text[DW_TIME_TEXT];
    dw_time_format(text, wall_ms);
    set_text(out, key, wall_ms > 0 ? text : NULL);
}

/* ---- parts ---- */

static void set_stream(dw_writer *out, const dw_report *report)
{
    const dw_agent_identity *identity = report->identity;
    if (!identity) {
        set_null(out, "stream");
        return;
    }
    open_object(out, "stream");
    set_text(out, "url", identity->url);
    set_text(out, "id", identity->stream);
    set_count(out, "tensors", identity->n_tensors);
    set_count(out, "elements", identity->n_elems);
    set_count(out, "bytes", identity->n_bytes);
    close_object(out);
}

static void set_head(dw_writer *out, const dw_report *report)
{
    if (report->head == DW_NO_VERSION) {
        set_null(out, "head");
        return;
    }
    open_object(out, "head");
    set_version(out, "version", report->head);
    set_time(out, "created", report->head_ms);
    set_text(out, "step", report->head_step ? report->head_step : "");
    close_object(out);
}

static const char *phase_name(dw_phase phase)
{
    static const char *const names[] = {"idle",  "fetch",  "pause",
                                        "apply", "resume", "finish"};
    return (size_t)phase < sizeof names / sizeof *names ? names[phase] : "?";
}

static void set_follower(dw_writer *out, const dw_report *report)
{
    if (report->stream_only) {
        set_null(out, "follower");
        return;
    }
    open_object(out, "follower");
    set_text(out, "id", report->identity ? report->identity->id : NULL);
    set_text(out, "dir", report->identity ? report->identity->dir : NULL);
    set_version(out, "version", report->version);
    set_text(out, "phase", phase_name(report->phase));
    set_version(out, "phase_version", report->phase_version);
    set_version(out, "pinned", report->pinned);
    close_object(out);
}

static void set_lag(dw_writer *out, const dw_report *report, int64_t now_ms)
{
    uint64_t n_versions = DW_NO_VERSION;
    double seconds;
    open_object(out, "lag");
    dw_report_lag_versions(report, &n_versions);
    set_version(out, "versions", n_versions);
    bool is_known = dw_report_lag_seconds(report, now_ms, &seconds);
    set_real(out, "seconds", is_known, seconds);
    close_object(out);
}

static void set_error(dw_writer *out, const dw_error *err)
{
    set_text(out, "code", dw_status_name(err->code));
    set_text(out, "where", err->where);
    set_text(out, "text", err->text);
}

static void set_engine_error(dw_writer *out, const dw_error *err)
{
    if (err->code == DW_OK) {
        set_null(out, "error");
        return;
    }
    open_object(out, "error");
    set_error(out, err);
    close_object(out);
}

static void set_engines(dw_writer *out, const dw_report *report)
{
    open_array(out, "engines");
    for (size_t i = 0; i < report->n_engines; i++) {
        const dw_reported_engine *engine = &report->engines[i];
        open_object(out, NULL);
        set_text(out, "driver", engine->driver);
        set_text(out, "where", engine->where[0] ? engine->where : NULL);
        set_text(out, "state", dw_engine_state_name(engine->state));
        set_version(out, "version", engine->version);
        set_text(out, "software", engine->software);
        set_engine_error(out, &engine->error);
        close_object(out);
    }
    close_array(out);
}

static void set_totals(dw_writer *out, const dw_report *report)
{
    open_object(out, "totals");
    set_count(out, "versions", report->n_steps);
    set_count(out, "objects", report->n_objects);
    set_count(out, "bytes", report->n_bytes);
    set_count(out, "changed", report->n_changed);
    set_count(out, "requests", report->counts.n_requests);
    set_count(out, "retries", report->counts.n_retries);
    set_count(out, "failures", report->n_failures);
    set_count(out, "verified", report->n_verified);
    set_count(out, "verify_failures", report->n_verify_failures);
    close_object(out);
}

bool dw_follower_is_silent(const dw_follower_info *f, int64_t now_ms)
{
    const int64_t time_ms = f->time ? dw_time_parse(f->time) : 0;
    return time_ms > 0 && now_ms - time_ms > DW_SILENT_MS &&
           strcmp(f->status, "stopped") != 0;
}

static void set_followers(dw_writer *out, const dw_report *report, int64_t now_ms)
{
    open_array(out, "followers");
    for (size_t i = 0; report->followers && i < report->followers->n_items; i++) {
        const dw_follower_info *f = &report->followers->items[i];
        const int64_t time_ms = f->time ? dw_time_parse(f->time) : 0;
        uint64_t n_behind = DW_NO_VERSION;
        if (report->head != DW_NO_VERSION && f->version != DW_NO_VERSION)
            n_behind = f->version < report->head ? report->head - f->version : 0;
        open_object(out, NULL);
        set_text(out, "id", f->id);
        set_version(out, "version", f->version);
        set_version(out, "lag", n_behind);
        set_text(out, "host", f->host);
        set_text(out, "status", f->status);
        set_text(out, "message", f->message);
        set_text(out, "time", f->time);
        set_real(out, "age_seconds", time_ms > 0,
                 now_ms > time_ms ? (double)(now_ms - time_ms) / 1000 : 0);
        set_bool(out, "silent", dw_follower_is_silent(f, now_ms));
        close_object(out);
    }
    close_array(out);
}

static void set_current_error(dw_writer *out, const dw_report *report)
{
    const dw_reported_error *e = dw_report_current_error(report);
    if (!e) {
        set_null(out, "error");
        return;
    }
    open_object(out, "error");
    set_error(out, &e->error);
    set_time(out, "since", e->since_ms);
    close_object(out);
}

static void set_errors(dw_writer *out, const dw_report *report)
{
    open_array(out, "errors");
    for (size_t i = 0; i < report->n_errors; i++) {
        open_object(out, NULL);
        set_error(out, &report->errors[i].error);
        set_time(out, "time", report->errors[i].since_ms);
        set_time(out, "until", report->errors[i].until_ms);
        close_object(out);
    }
    close_array(out);
}

static void set_step_time(dw_writer *out, const char *name, bool is_known, uint64_t us)
{
    char key[32];
    snprintf(key, sizeof key, "%s_ms", name);
    set_real(out, key, is_known, (double)us / 1000);
}

static void set_history(dw_writer *out, const dw_report *report, uint64_t since)
{
    open_array(out, "history");
    const dw_history *h = &report->history;
    const uint64_t n_elems = report->identity ? report->identity->n_elems : 0;
    size_t i = since == DW_NO_VERSION ? 0 : dw_history_above(h, since);
    for (; i < h->n_rows; i++) {
        const dw_history_row *row = &h->rows[i];
        const dw_rollout_step *step = &row->step;
        const double bits = dw_step_bits_per_change(step);
        open_object(out, NULL);
        set_version(out, "version", step->version);
        set_version(out, "from", step->from);
        set_time(out, "time", row->time_ms);
        set_count(out, "bytes", step->n_bytes);
        set_count(out, "objects", step->n_objects);
        set_count(out, "changed", step->n_changed);
        set_real(out, "density", n_elems > 0, (double)step->n_changed / (double)n_elems);
        set_real(out, "bits_per_change", bits >= 0, bits);
        for (size_t k = 0; k < DW_N_STEP_TIMES; k++)
            set_step_time(out, dw_step_times[k].name, row->applied,
                          dw_step_time_us(step, &dw_step_times[k]));
        set_step_time(out, "stopped", row->applied, step->stopped_us);
        set_bool(out, "applied", row->applied);
        close_object(out);
    }
    close_array(out);
}

/* ---- all of it ---- */

void dw_status_write(dw_writer *out, const dw_report *report, int64_t now_ms,
                     uint64_t since)
{
    char reason[DW_READY_REASON];
    open_object(out, NULL);
    set_text(out, "deltawire", dw_version());
    set_text(out, "kind", report->stream_only ? "stream" : "follower");
    set_time(out, "now", now_ms);
    set_time(out, "started", report->started_ms);
    set_stream(out, report);
    set_head(out, report);
    set_follower(out, report);
    set_lag(out, report, now_ms);
    set_bool(out, "ready", dw_report_ready(report, dw_clock_ms(), true, reason));
    set_text(out, "reason", reason);
    set_engines(out, report);
    set_totals(out, report);
    set_followers(out, report, now_ms);
    set_current_error(out, report);
    set_errors(out, report);
    set_count(out, "history_seq", report->history.sequence);
    set_history(out, report, since);
    close_object(out);
}
