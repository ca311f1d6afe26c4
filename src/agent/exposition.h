/* The two text formats of metrics: Prometheus 0.0.4 and OpenMetrics 1.0. They differ in
 * the names of counters and infos, in units, and in an end mark. */
#ifndef DW_AGENT_EXPOSITION_H
#define DW_AGENT_EXPOSITION_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/histogram.h"
#include "base/bytes.h"

#define DW_PROMETHEUS_TYPE  "text/plain; version=0.0.4; charset=utf-8"
#define DW_OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

/* Whether an Accept header, which may be NULL, wants OpenMetrics 1.0 at least as much as
 * plain text. */
bool dw_accept_openmetrics(const char *accept);

typedef enum dw_metric_type {
    DW_METRIC_GAUGE,
    DW_METRIC_COUNTER,
    DW_METRIC_HISTOGRAM,
    DW_METRIC_INFO,
} dw_metric_type;

/* A family under construction: its samples follow each other. */
typedef struct dw_exposition {
    dw_writer *out;
    bool is_openmetrics;
    const char *name;
    dw_metric_type type;
} dw_exposition;

/* NAME has no `_total` or `_info` at its end. UNIT may be NULL; else NAME ends with it.
 */
void dw_metric_begin(dw_exposition *e, const char *name, dw_metric_type type,
                     const char *unit, const char *help);

typedef struct dw_metric_label {
    const char *name;
    const char *value; /* any bytes */
} dw_metric_label;

#define DW_LABELS(...)                                                                   \
    (const dw_metric_label[]){__VA_ARGS__},                                              \
        sizeof((const dw_metric_label[]){__VA_ARGS__}) / sizeof(dw_metric_label)
#define DW_NO_LABELS NULL, 0

void dw_metric_count(dw_exposition *e, const dw_metric_label *labels, size_t n_labels,
                     uint64_t n);
void dw_metric_real(dw_exposition *e, const dw_metric_label *labels, size_t n_labels,
                    double v);
void dw_metric_histogram(dw_exposition *e, const dw_metric_label *labels, size_t n_labels,
                         const dw_histogram *histogram);

void dw_exposition_end(dw_exposition *e);

#endif
