/* GET /metrics: the numbers of the report. */
#ifndef DW_AGENT_METRICS_H
#define DW_AGENT_METRICS_H

#include "agent/report.h"
#include "base/bytes.h"

/* Appends all metrics: docs/OPERATIONS.md, section 9, lists them. OUT has failed when out
 * of memory. */
void dw_metrics_write(dw_writer *out, const dw_report *report, int64_t now_ms);

#endif
