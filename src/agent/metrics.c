#include "agent/metrics.h"

#include <stdio.h>

#include "agent/exposition.h"
#include "base/clock.h"
#include "deltawire/deltawire.h"

#define GAUGE   DW_METRIC_GAUGE
#define COUNTER DW_METRIC_COUNTER

/* ---- families of one sample ---- */

static void gauge(dw_exposition *e, const char *name, uint64_t n, const char *help)
{
    dw_metric_begin(e, name, GAUGE, help);
    dw_metric_count(e, DW_NO_LABELS, n);
}

/* Left out if there is none: 0 would be a version. */
static void version(dw_exposition *e, const char *name, uint64_t n, const char *help)
{
    if (n != DW_NO_VERSION)
        gauge(e, name, n, help);
}

static void seconds(dw_exposition *e, const char *name, double v, const char *help)
{
    dw_metric_begin(e, name, GAUGE, help);
    dw_metric_real(e, DW_NO_LABELS, v);
}

static void counter(dw_exposition *e, const char *name, uint64_t n, const char *help)
{
    dw_metric_begin(e, name, COUNTER, help);
    dw_metric_count(e, DW_NO_LABELS, n);
}

/* ---- parts ---- */

static void write_process(dw_exposition *e, const dw_report *report)
{
    char reason[DW_READY_REASON];
    dw_metric_begin(e, "deltawire_build_info", GAUGE, "The software and its version.");
    dw_metric_count(e,
                    DW_LABELS({"version", dw_version()}, {"kernel", dw_kernel_name()},
                              {"kind", report->stream_only ? "stream" : "follower"}),
                    1);
    seconds(e, "deltawire_start_time_seconds", (double)report->started_ms / 1000,
            "When the process began to answer, in seconds since 1970.");
    gauge(e, "deltawire_ready", dw_report_ready(report, dw_clock_ms(), false, reason),
          "1 while /readyz answers 200.");
    gauge(e, "deltawire_failing", dw_report_current_error(report) != NULL,
          "1 while the last try failed.");
    counter(e, "deltawire_failures_total", report->n_failures, "Failed tries.");
    dw_metric_begin(e, "deltawire_verifications_total", COUNTER,
                    "Checks of the weights or of the stream's bytes, by result.");
    dw_metric_count(e, DW_LABELS({"result", "good"}), report->n_verified);
    dw_metric_count(e, DW_LABELS({"result", "bad"}), report->n_verify_failures);
}

static void write_store(dw_exposition *e, const dw_store_counts *counts)
{
    counter(e, "deltawire_store_requests_total", counts->n_requests,
            "Requests to the store, with retries.");
    counter(e, "deltawire_store_retries_total", counts->n_retries,
            "Retried requests to the store.");
    counter(e, "deltawire_store_read_bytes_total", counts->bytes_read,
            "Bytes read from the store.");
    counter(e, "deltawire_store_written_bytes_total", counts->bytes_written,
            "Bytes written to the store.");
}

/* The newest row that is a step from one version to another; of a follower, one that it
 * made itself. */
static const dw_rollout_step *last_step(const dw_report *report)
{
    const dw_history *h = &report->history;
    for (size_t i = h->n_rows; i > 0; i--) {
        const dw_history_row *row = &h->rows[i - 1];
        if ((row->applied || report->stream_only) &&
            dw_step_bits_per_change(&row->step) >= 0)
            return &row->step;
    }
    return NULL;
}

static void write_stream(dw_exposition *e, const dw_report *report)
{
    const dw_rollout_step *step = last_step(report);
    const uint64_t n_elems = report->identity ? report->identity->n_elems : 0;
    version(e, "deltawire_head_version", report->head,
            "The newest version of the stream.");
    if (report->head_ms > 0)
        seconds(e, "deltawire_head_created_timestamp_seconds",
                (double)report->head_ms / 1000,
                "When the newest version was made, in seconds since 1970.");
    if (!step)
        return;
    dw_metric_begin(e, "deltawire_bytes_per_change", GAUGE,
                    "Bytes of the last step for each element that it changed; multiply "
                    "by 8 for bits.");
    dw_metric_real(e, DW_NO_LABELS, dw_step_bits_per_change(step) / 8);
    if (n_elems == 0)
        return;
    dw_metric_begin(e, "deltawire_density_ratio", GAUGE,
                    "Share of the elements that the last step changed.");
    dw_metric_real(e, DW_NO_LABELS, (double)step->n_changed / (double)n_elems);
}

static void write_follower(dw_exposition *e, const dw_report *report, int64_t now_ms)
{
    uint64_t n_behind;
    double lag;
    version(e, "deltawire_version", report->version, "The version of the weights.");
    if (dw_report_lag_versions(report, &n_behind))
        gauge(e, "deltawire_lag_versions", n_behind,
              "Versions between the weights and the newest one.");
    if (dw_report_lag_seconds(report, now_ms, &lag))
        seconds(
            e, "deltawire_lag_seconds", lag,
            "Age of the first version that the weights do not have; 0: they have all.");
    gauge(e, "deltawire_pinned", report->pinned != DW_NO_VERSION,
          "1 while a version is held.");
    version(e, "deltawire_pinned_version", report->pinned, "The version that is held.");
    counter(e, "deltawire_applied_versions_total", report->n_steps,
            "Steps from one version to another.");
    counter(e, "deltawire_fetched_objects_total", report->n_objects,
            "Objects fetched for them.");
    counter(e, "deltawire_fetched_bytes_total", report->n_bytes,
            "Bytes fetched for them.");
    counter(e, "deltawire_changed_elements_total", report->n_changed,
            "Elements that they changed.");
    dw_metric_begin(e, "deltawire_phase_seconds", DW_METRIC_HISTOGRAM,
                    "How long the phases of a step took.");
    for (size_t i = 0; i < DW_N_STEP_TIMES; i++)
        dw_metric_histogram(e, DW_LABELS({"phase", dw_step_times[i].name}),
                            &report->times[i]);
    dw_metric_begin(e, "deltawire_pause_seconds", DW_METRIC_HISTOGRAM,
                    "How long the engines were paused for a step.");
    dw_metric_histogram(e, DW_NO_LABELS, &report->stopped);
}

typedef struct engine_labels {
    char number[24];
    dw_metric_label labels[4]; /* the last is free */
} engine_labels;

static void label_engine(engine_labels *out, const dw_report *report, size_t i)
{
    snprintf(out->number, sizeof out->number, "%zu", i);
    out->labels[0] = (dw_metric_label){"engine", out->number};
    out->labels[1] = (dw_metric_label){"driver", report->engines[i].driver};
    out->labels[2] = (dw_metric_label){"where", report->engines[i].where};
}

static void write_engines(dw_exposition *e, const dw_report *report)
{
    engine_labels l;
    if (report->n_engines == 0)
        return;
    dw_metric_begin(e, "deltawire_engine_state", GAUGE,
                    "1 for the state that an engine is in, 0 for the others.");
    for (size_t i = 0; i < report->n_engines; i++) {
        label_engine(&l, report, i);
        for (dw_engine_state s = DW_ENGINE_UNKNOWN; s <= DW_ENGINE_AWAY; s++) {
            l.labels[3] = (dw_metric_label){"state", dw_engine_state_name(s)};
            dw_metric_count(e, l.labels, 4, report->engines[i].state == s);
        }
    }
    dw_metric_begin(e, "deltawire_engine_version", GAUGE,
                    "The version that an engine serves.");
    for (size_t i = 0; i < report->n_engines; i++) {
        label_engine(&l, report, i);
        if (report->engines[i].version != DW_NO_VERSION)
            dw_metric_count(e, l.labels, 3, report->engines[i].version);
    }
}

/* All followers of a stream, for `serve-status`. A follower only shows itself. */
static void write_followers(dw_exposition *e, const dw_report *report, int64_t now_ms)
{
    const dw_reported_followers *all = report->followers;
    gauge(e, "deltawire_followers", all ? all->n_items : 0,
          "Followers that report to the stream.");
    dw_metric_begin(e, "deltawire_follower_version", GAUGE,
                    "The version that a follower reported.");
    for (size_t i = 0; all && i < all->n_items; i++)
        if (all->items[i].version != DW_NO_VERSION)
            dw_metric_count(e, DW_LABELS({"follower", all->items[i].id}),
                            all->items[i].version);
    dw_metric_begin(e, "deltawire_follower_report_timestamp_seconds", GAUGE,
                    "When a follower reported last, in seconds since 1970.");
    for (size_t i = 0; all && i < all->n_items; i++) {
        const char *time = all->items[i].time;
        const int64_t ms = time ? dw_time_parse(time) : 0;
        if (ms > 0) /* leave out a time that does not parse */
            dw_metric_real(e, DW_LABELS({"follower", all->items[i].id}),
                           (double)ms / 1000);
    }
    dw_metric_begin(e, "deltawire_follower_silent", GAUGE,
                    "1 if a follower that did not stop sent no report for 3 minutes.");
    for (size_t i = 0; all && i < all->n_items; i++)
        dw_metric_count(e, DW_LABELS({"follower", all->items[i].id}),
                        dw_follower_is_silent(&all->items[i], now_ms));
}

void dw_metrics_write(dw_writer *out, const dw_report *report, int64_t now_ms)
{
    dw_exposition e = {.out = out};
    write_process(&e, report);
    write_store(&e, &report->counts);
    write_stream(&e, report);
    if (report->stream_only) {
        write_followers(&e, report, now_ms);
    } else {
        write_follower(&e, report, now_ms);
        write_engines(&e, report);
    }
}
