/* Readiness while the wall clock is set. */
/* wrap: dw_wall_clock_ms dw_clock_ms */
#include <stdatomic.h>

#include "unit/suite.h"

#include "agent_fixture.h"

static _Atomic int64_t wall_shift_ms;
static _Atomic uint64_t shift_ms;

int64_t __real_dw_wall_clock_ms(void);
uint64_t __real_dw_clock_ms(void);
int64_t __wrap_dw_wall_clock_ms(void);
uint64_t __wrap_dw_clock_ms(void);

int64_t __wrap_dw_wall_clock_ms(void)
{
    return __real_dw_wall_clock_ms() + wall_shift_ms;
}

uint64_t __wrap_dw_clock_ms(void)
{
    return __real_dw_clock_ms() + shift_ms;
}

static void expect_ready(bool ready)
{
    assert_int_equal(http_get(port, "/readyz", &reply), ready ? 200 : 503);
    json_t *json = agent_json("/status");
    expect_bool(json, "ready", ready);
    json_decref(json);
}

TEST_WITH(test_wall_clock_is_set, agent_begin, agent_end)
{
    const int64_t day_ms = 24 * 3600 * 1000;
    dw_agent_report_version(agent, 6, NULL);
    dw_agent_report_error(agent, &(dw_error){.code = DW_UNAVAILABLE, .text = "away"});
    expect_ready(true); /* for a minute */
    wall_shift_ms = day_ms;
    expect_ready(true);
    wall_shift_ms = -day_ms;
    expect_ready(true);
    shift_ms = 61000; /* the minute is over, whatever the wall clock says */
    expect_ready(false);
    dw_agent_report_error(agent, NULL);
    expect_ready(true);
}

RUN_TESTS(NULL, NULL)
