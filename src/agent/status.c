#include "agent/status.h"

#include <jansson.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "deltawire/deltawire.h"

/* ---- members; FAILED collects jansson's failures, which mean no memory ---- */

typedef struct object {
    json_t *json;
    bool *failed;
} object;

static object new_object(bool *failed)
{
    object o = {json_object(), failed};
    *failed |= !o.json;
    return o;
}

static void set(object o, const char *key, json_t *value)
{
    if (json_object_set_new_nocheck(o.json, key, value) != 0)
        *o.failed = true;
}

static void set_text(object o, const char *key, const char *text)
{
    set(o, key, text ? dw_json_text(text) : json_null());
}

static void set_count(object o, const char *key, uint64_t n)
{
    set(o, key, json_integer(n < INT64_MAX ? (json_int_t)n : INT64_MAX));
}

static void set_version(object o, const char *key, uint64_t version)
{
    if (version == DW_NO_VERSION)
        set(o, key, json_null());
    else
        set_count(o, key, version);
}

static void set_real(object o, const char *key, bool is_known, double v)
{
    set(o, key, is_known ? json_real(v) : json_null());
}

static void set_time(object o, const char *key, int64_t wall_ms)
{
    char text[DW_TIME_TEXT];
    dw_time_format(text, wall_ms);
    set_text(o, key, wall_ms > 0 ? text : NULL);
}

static void append(json_t *array, object row)
{
    if (json_array_append_new(array, row.json) != 0)
        *row.failed = true;
}

/* ---- parts ---- */

static json_t *stream_json(const dw_report *report, bool *failed)
{
    const dw_agent_identity *identity = report->identity;
    if (!identity)
        return json_null();
    object o = new_object(failed);
    set_text(o, "url", identity->url);
    set_text(o, "id", identity->stream);
    set_count(o, "tensors", identity->n_tensors);
    set_count(o, "elements", identity->n_elems);
    set_count(o, "bytes", identity->n_bytes);
    return o.json;
}

static json_t *head_json(const dw_report *report, bool *failed)
{
    if (report->head == DW_NO_VERSION)
        return json_null();
    object o = new_object(failed);
    set_version(o, "version", report->head);
    set_time(o, "created", report->head_ms);
    set_text(o, "step", report->head_step ? report->head_step : "");
    return o.json;
}

static const char *phase_name(dw_phase phase)
{
    static const char *const names[] = {"idle",  "fetch",  "pause",
                                        "apply", "resume", "finish"};
    return (size_t)phase < sizeof names / sizeof *names ? names[phase] : "?";
}

static json_t *follower_json(const dw_report *report, bool *failed)
{
    if (report->stream_only)
        return json_null();
    object o = new_object(failed);
    set_text(o, "id", report->identity ? report->identity->id : NULL);
    set_text(o, "dir", report->identity ? report->identity->dir : NULL);
    set_version(o, "version", report->version);
    set_text(o, "phase", phase_name(report->phase));
    set_version(o, "phase_version", report->phase_version);
    set_version(o, "pinned", report->pinned);
    return o.json;
}

static json_t *lag_json(const dw_report *report, int64_t now_ms, bool *failed)
{
    uint64_t n_versions = DW_NO_VERSION;
    double seconds;
    object o = new_object(failed);
    dw_report_lag_versions(report, &n_versions);
    set_version(o, "versions", n_versions);
    bool is_known = dw_report_lag_seconds(report, now_ms, &seconds);
    set_real(o, "seconds", is_known, seconds);
    return o.json;
}

static void set_error(object o, const dw_error *err)
{
    set_text(o, "code", dw_status_name(err->code));
    set_text(o, "where", err->where);
    set_text(o, "text", err->text);
}

static json_t *engine_error_json(const dw_error *err, bool *failed)
{
    if (err->code == DW_OK)
        return json_null();
    object o = new_object(failed);
    set_error(o, err);
    return o.json;
}

static json_t *engines_json(const dw_report *report, bool *failed)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->n_engines; i++) {
        const dw_reported_engine *engine = &report->engines[i];
        object o = new_object(failed);
        set_text(o, "driver", engine->driver);
        set_text(o, "where", engine->where[0] ? engine->where : NULL);
        set_text(o, "state", dw_engine_state_name(engine->state));
        set_version(o, "version", engine->version);
        set_text(o, "software", engine->software);
        set(o, "error", engine_error_json(&engine->error, failed));
        append(array, o);
    }
    return array;
}

static json_t *totals_json(const dw_report *report, bool *failed)
{
    object o = new_object(failed);
    set_count(o, "versions", report->n_steps);
    set_count(o, "objects", report->n_objects);
    set_count(o, "bytes", report->n_bytes);
    set_count(o, "changed", report->n_changed);
    set_count(o, "requests", report->counts.n_requests);
    set_count(o, "retries", report->counts.n_retries);
    set_count(o, "failures", report->n_failures);
    set_count(o, "verified", report->n_verified);
    set_count(o, "verify_failures", report->n_verify_failures);
    if (report->stream_only)
        set_count(o, "upkeep_dropped", report->upkeep_dropped);
    return o.json;
}

static json_t *followers_json(const dw_report *report, int64_t now_ms, bool *failed)
{
    json_t *array = json_array();
    for (size_t i = 0; report->followers && i < report->followers->n_items; i++) {
        const dw_follower_info *f = &report->followers->items[i];
        const int64_t time_ms = f->time ? dw_time_parse(f->time) : 0;
        uint64_t n_behind = DW_NO_VERSION;
        if (report->head != DW_NO_VERSION && f->version != DW_NO_VERSION)
            n_behind = f->version < report->head ? report->head - f->version : 0;
        object o = new_object(failed);
        set_text(o, "id", f->id);
        set_version(o, "version", f->version);
        set_version(o, "lag", n_behind);
        set_text(o, "host", f->host);
        set_text(o, "status", f->status);
        set_text(o, "message", f->message);
        set_text(o, "time", f->time);
        set_real(o, "age_seconds", time_ms > 0,
                 now_ms > time_ms ? (double)(now_ms - time_ms) / 1000 : 0);
        append(array, o);
    }
    return array;
}

static json_t *error_json(const dw_report *report, bool *failed)
{
    const dw_reported_error *e = dw_report_current_error(report);
    if (!e)
        return json_null();
    object o = new_object(failed);
    set_error(o, &e->error);
    set_time(o, "since", e->since_ms);
    return o.json;
}

static json_t *errors_json(const dw_report *report, bool *failed)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->n_errors; i++) {
        object o = new_object(failed);
        set_error(o, &report->errors[i].error);
        set_time(o, "time", report->errors[i].since_ms);
        set_time(o, "until", report->errors[i].until_ms);
        append(array, o);
    }
    return array;
}

static void set_step_time(object o, const char *name, bool is_known, uint64_t us)
{
    char key[32];
    snprintf(key, sizeof key, "%s_ms", name);
    set_real(o, key, is_known, (double)us / 1000);
}

static json_t *history_json(const dw_report *report, uint64_t since, bool *failed)
{
    json_t *array = json_array();
    const dw_history *h = &report->history;
    const uint64_t n_elems = report->identity ? report->identity->n_elems : 0;
    size_t i = since == DW_NO_VERSION ? 0 : dw_history_above(h, since);
    for (; i < h->n_rows; i++) {
        const dw_history_row *row = &h->rows[i];
        const dw_rollout_step *step = &row->step;
        const double bits = dw_step_bits_per_change(step);
        object o = new_object(failed);
        set_version(o, "version", step->version);
        set_version(o, "from", step->from);
        set_time(o, "time", row->time_ms);
        set_count(o, "bytes", step->n_bytes);
        set_count(o, "objects", step->n_objects);
        set_count(o, "changed", step->n_changed);
        set_real(o, "density", n_elems > 0, (double)step->n_changed / (double)n_elems);
        set_real(o, "bits_per_change", bits >= 0, bits);
        for (size_t k = 0; k < DW_N_STEP_TIMES; k++)
            set_step_time(o, dw_step_times[k].name, row->applied,
                          dw_step_time_us(step, &dw_step_times[k]));
        set_step_time(o, "stopped", row->applied, step->stopped_us);
        set(o, "applied", json_boolean(row->applied));
        append(array, o);
    }
    return array;
}

/* ---- all of it ---- */

static int write_json(const char *text, size_t n_bytes, void *out)
{
    dw_write_bytes(out, text, n_bytes);
    return 0;
}

void dw_status_write(dw_writer *out, const dw_report *report, int64_t now_ms,
                     uint64_t since)
{
    char reason[DW_READY_REASON];
    bool failed = false;
    object o = new_object(&failed);
    set_text(o, "deltawire", dw_version());
    set_text(o, "kind", report->stream_only ? "stream" : "follower");
    set_time(o, "now", now_ms);
    set_time(o, "started", report->started_ms);
    set(o, "stream", stream_json(report, &failed));
    set(o, "head", head_json(report, &failed));
    set(o, "follower", follower_json(report, &failed));
    set(o, "lag", lag_json(report, now_ms, &failed));
    set(o, "ready", json_boolean(dw_report_ready(report, dw_clock_ms(), true, reason)));
    set_text(o, "reason", reason);
    set(o, "engines", engines_json(report, &failed));
    set(o, "totals", totals_json(report, &failed));
    set(o, "followers", followers_json(report, now_ms, &failed));
    set(o, "error", error_json(report, &failed));
    set(o, "errors", errors_json(report, &failed));
    set_count(o, "history_seq", report->history.sequence);
    set(o, "history", history_json(report, since, &failed));
    if (failed || json_dump_callback(o.json, write_json, out,
                                     JSON_COMPACT | JSON_ENSURE_ASCII |
                                         JSON_REAL_PRECISION(9)) != 0)
        out->failed = true;
    json_decref(o.json);
}
