/* The text format of metrics, Prometheus 0.0.4, in UTF-8. */
#ifndef DW_AGENT_EXPOSITION_H
#define DW_AGENT_EXPOSITION_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/histogram.h"
#include "base/bytes.h"

#define DW_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

typedef enum dw_metric_type {
    DW_METRIC_GAUGE,
    DW_METRIC_COUNTER,
    DW_METRIC_HISTOGRAM,
} dw_metric_type;

/* A family under construction: its samples follow each other. */
typedef struct dw_exposition {
    dw_writer *out;
    const char *name;
} dw_exposition;

/* The NAME of a counter ends in `_total`. */
void dw_metric_begin(dw_exposition *e, const char *name, dw_metric_type type,
                     const char *help);

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

#endif
