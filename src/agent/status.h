/* GET /status: the report as JSON. */
#ifndef DW_AGENT_STATUS_H
#define DW_AGENT_STATUS_H

#include "agent/report.h"
#include "base/bytes.h"

/* Appends one JSON object: docs/OPERATIONS.md, section 9. The history holds the versions
 * above SINCE, or all with DW_NO_VERSION. OUT has failed when out of memory. */
void dw_status_write(dw_writer *out, const dw_report *report, int64_t now_ms,
                     uint64_t since);

#endif
