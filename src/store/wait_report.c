#include "store/wait_report.h"

#include "base/error.h"

enum { FIRST_REPORT_MS = 5000 };

void dw_wait_begin(dw_wait *wait, uint64_t now_ms)
{
    *wait = (dw_wait){.since_ms = now_ms, .report_ms = FIRST_REPORT_MS};
}

void dw_wait_check(dw_wait *wait, dw_wait_reporter *reporter, const char *url,
                   unsigned n_tries, uint64_t now_ms)
{
    const uint64_t waited_ms = now_ms - wait->since_ms;
    if (!reporter->on_wait || waited_ms < wait->report_ms)
        return;
    if (n_tries < 2 && atomic_load(&reporter->has_answered))
        return;
    dw_error report;
    dw_fail(&report, DW_UNAVAILABLE, url, "no answer for %u s (%u %s), still trying",
            (unsigned)(waited_ms / 1000), n_tries, n_tries == 1 ? "try" : "tries");
    reporter->on_wait(reporter->context, &report);
    while (wait->report_ms <= waited_ms)
        wait->report_ms *= 2;
}
