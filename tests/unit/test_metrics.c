/* The text of /metrics. */
#include <locale.h>

#include "unit/suite.h"

#include "agent_fixture.h"
#include "agent/exposition.h"
#include "deltawire/deltawire.h"

static void get(const char *headers)
{
    assert_int_equal(http_ask(port, "GET", "/metrics", headers, NULL, &reply), 200);
}

/* A whole line of the last answer. */
static void expect_line(const char *line)
{
    const size_t n = strlen(line);
    for (const char *at = reply.body; (at = strstr(at, line)); at++)
        if ((at == reply.body || at[-1] == '\n') && at[n] == '\n')
            return;
    fail_msg("no line '%s' in\n%s", line, reply.body);
}

static void expect_none(const char *text)
{
    if (strstr(reply.body, text))
        fail_msg("'%s' in\n%s", text, reply.body);
}

TEST_WITH(test_new, agent_begin, agent_end)
{
    get("");
    assert_true(http_has(&reply, "Content-Type", DW_PROMETHEUS_TYPE));
    expect_line("deltawire_ready 0");
    expect_line("deltawire_pinned 0");
    expect_line("deltawire_pause_seconds_count 0");
    expect_none("\ndeltawire_version "); /* there is no version, and 0 is one */
    expect_none("deltawire_lag_seconds");
    expect_none("deltawire_follower_version");
}

static void report_all(void)
{
    dw_agent_report_identity(agent, &(dw_agent_identity){.url = "u", .n_elems = 1000});
    dw_agent_report_head(agent, 7, "2026-11-15T05:20:59.123Z", "");
    dw_agent_report_version(agent, 7, NULL);
    dw_agent_report_verified(agent, true);
    dw_agent_report_verified(agent, false);
    dw_agent_report_engine(agent, 0,
                           &(dw_engine_status){.driver = "exec",
                                               .where = "a\"b\\c\nd\xff",
                                               .state = DW_ENGINE_PAUSED,
                                               .version = DW_NO_VERSION});
    for (uint64_t v = 6; v <= 7; v++)
        dw_agent_report_step(agent,
                             &(dw_rollout_step){.from = v - 1,
                                                .version = v,
                                                .n_bytes = 100,
                                                .n_changed = 50 * v,
                                                .fetch_us = v == 6 ? 100 : 101,
                                                .stopped_us = v == 6 ? 1500 : 400000000});
}

TEST_WITH(test_told, agent_begin, agent_end)
{
    report_all();
    get("");
    expect_line("# TYPE deltawire_fetched_bytes_total counter");
    expect_line("deltawire_fetched_bytes_total 200");
    expect_line("deltawire_version 7");
    expect_line("deltawire_lag_seconds 0");
    expect_line("deltawire_density_ratio 0.35");
    expect_line("deltawire_head_created_timestamp_seconds 1794720059.123");
    expect_line("deltawire_verifications_total{result=\"good\"} 1");
    expect_line("deltawire_verifications_total{result=\"bad\"} 1");
    expect_line("deltawire_engine_state{engine=\"0\",driver=\"exec\","
                "where=\"a\\\"b\\\\c\\nd\xef\xbf\xbd\",state=\"paused\"} 1");
    expect_line("deltawire_engine_state{engine=\"0\",driver=\"exec\","
                "where=\"a\\\"b\\\\c\\nd\xef\xbf\xbd\",state=\"away\"} 0");
    expect_none("deltawire_engine_version{");
    /* a bound belongs to its bucket, and buckets are cumulative */
    expect_line("deltawire_phase_seconds_bucket{phase=\"fetch\",le=\"0.0001\"} 1");
    expect_line("deltawire_phase_seconds_bucket{phase=\"fetch\",le=\"0.00025\"} 2");
    expect_line("deltawire_phase_seconds_sum{phase=\"fetch\"} 0.000201");
    expect_line("deltawire_pause_seconds_bucket{le=\"0.001\"} 0");
    expect_line("deltawire_pause_seconds_bucket{le=\"0.0025\"} 1");
    expect_line("deltawire_pause_seconds_bucket{le=\"300.0\"} 1");
    expect_line("deltawire_pause_seconds_bucket{le=\"+Inf\"} 2");
    expect_line("deltawire_pause_seconds_sum 400.0015");
    expect_line("deltawire_pause_seconds_count 2");
}

TEST_WITH(test_stream, agent_begin, agent_end)
{
    agent_end(NULL);
    agent_start(&(dw_agent_options){.stream_only = true});
    dw_agent_report_followers(
        agent,
        &(dw_follower_info){"a", 5, "h", "s", "", "2026-11-15T05:20:59.123Z", {{0}}}, 1);
    get("");
    expect_line("deltawire_followers 1");
    expect_line("deltawire_follower_version{follower=\"a\"} 5");
    expect_line("deltawire_follower_report_timestamp_seconds{follower=\"a\"} "
                "1794720059.123");
    expect_line("deltawire_follower_silent{follower=\"a\"} 1");
    dw_agent_report_followers(
        agent,
        &(dw_follower_info){
            "a", 5, "h", "stopped", "", "2026-11-15T05:20:59.123Z", {{0}}},
        1);
    get("");
    expect_line("deltawire_follower_silent{follower=\"a\"} 0");
    expect_none("deltawire_pinned");
    expect_none("deltawire_pause_seconds");
}

TEST(test_locale)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "ru_RU.UTF-8"};
    const char *set = NULL;
    for (size_t i = 0; !set && i < sizeof names / sizeof *names; i++)
        set = setlocale(LC_NUMERIC, names[i]);
    if (!set)
        skip(); /* no locale with a comma here */
    dw_writer out = {0};
    dw_exposition e = {.out = &out};
    dw_metric_begin(&e, "x", DW_METRIC_GAUGE, "x");
    dw_metric_real(&e, DW_NO_LABELS, -0.25);
    dw_metric_real(&e, DW_NO_LABELS, 1.5e-9);
    dw_write_u8(&out, 0);
    setlocale(LC_NUMERIC, "C");
    assert_non_null(strstr((const char *)out.bytes, "\nx -0.25\nx 1.5e-09\n"));
    dw_writer_release(&out);
}

RUN_TESTS(NULL, NULL)
