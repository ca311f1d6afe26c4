/* Lag and readiness, at times that the test sets. */
#include "unit/suite.h"

#include "agent/report.h"

#define NOW 1800000000000

static dw_report report;

static int begin(void **state)
{
    (void)state;
    return dw_report_init(&report, false, 4) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    dw_report_release(&report);
    return 0;
}

/* ---- lag ---- */

static double lag_seconds(void)
{
    double seconds = -2;
    return dw_report_lag_seconds(&report, NOW, &seconds) ? seconds : -1;
}

TEST_WITH(test_lag, begin, end)
{
    uint64_t n;
    assert_false(dw_report_lag_versions(&report, &n));
    assert_true(lag_seconds() == -1);
    report.version = 5;
    assert_true(lag_seconds() == -1); /* the head is not known */
    report.head = 5;
    assert_true(dw_report_lag_versions(&report, &n));
    assert_int_equal(n, 0);
    assert_true(lag_seconds() == 0);
    report.head = 6;
    assert_true(lag_seconds() == -1); /* of unknown age */
    report.head_ms = NOW - 1500;
    assert_true(lag_seconds() == 1.5); /* the head is the next one */
    report.head = 7;
    assert_true(dw_report_lag_versions(&report, &n));
    assert_int_equal(n, 2);
    assert_true(lag_seconds() == -1); /* it is not the next one */
    report.next_ms = NOW - 2500;
    assert_true(lag_seconds() == 2.5);
    report.next_ms = NOW + 1000; /* a clock that is ahead */
    assert_true(lag_seconds() == 0);
    report.version = 9; /* a mirror that is behind */
    assert_true(dw_report_lag_versions(&report, &n));
    assert_int_equal(n, 0);
    report.stream_only = true;
    assert_false(dw_report_lag_versions(&report, &n));
    assert_true(lag_seconds() == -1);
}

/* ---- readiness ---- */

static const char *reason_for(bool is_trusted)
{
    static char text[DW_READY_REASON];
    const bool ready = dw_report_ready(&report, NOW, is_trusted, text);
    assert_int_equal(ready, text[0] == '\0');
    return text;
}

static const char *reason(void)
{
    return reason_for(false);
}

static void engine_is(size_t i, dw_engine_state state)
{
    report.n_engines = i + 1;
    strcpy(report.engines[i].driver, "vllm");
    report.engines[i].state = state;
}

TEST_WITH(test_ready, begin, end)
{
    assert_string_equal(reason(), "no version yet");
    report.version = 6;
    assert_string_equal(reason(), "");
    report.pinned = 6;
    assert_string_equal(reason(), "");
    engine_is(0, DW_ENGINE_SERVING);
    engine_is(1, DW_ENGINE_PAUSED);
    assert_string_equal(reason(), "");
    engine_is(1, DW_ENGINE_AWAY);
    assert_string_equal(reason(), "engine 1 (vllm) does not answer");
    engine_is(1, DW_ENGINE_BROKEN);
    assert_string_equal(reason(),
                        "engine 1 (vllm) is paused: its weights are being loaded again");
    engine_is(1, DW_ENGINE_BEHIND);
    assert_string_equal(reason(), "engine 1 (vllm) serves another version");
    engine_is(1, DW_ENGINE_UNKNOWN);
    assert_string_equal(reason(), "engine 1 (vllm) was not asked yet");
    engine_is(1, DW_ENGINE_SERVING);
    report.verify_failed = true;
    assert_string_equal(reason(), "a verification failed");
}

TEST_WITH(test_errors, begin, end)
{
    report.version = 6;
    report.n_errors = 1;
    report.errors[0] =
        (dw_reported_error){{.code = DW_DENIED, .text = "secret"}, NOW - 5, 0};
    report.failing_at = NOW - 59999;
    assert_string_equal(reason(), "");
    report.failing_at = NOW - 60000; /* with others before this one */
    assert_string_equal(reason(), "failing for 60 s: denied");
    report.errors[0].until_ms = NOW - 1;
    assert_string_equal(reason(), "");
    report.errors[0].until_ms = 0;
    report.version = DW_NO_VERSION;
    assert_string_equal(reason(), "no version: denied");
    assert_string_equal(reason_for(true), "no version: secret");
    strcpy(report.errors[0].error.where, "model");
    assert_string_equal(reason_for(true), "no version: model: secret");
    report.stream_only = true;
    report.head = 3;
    assert_string_equal(reason(), "failing for 60 s: denied");
    assert_string_equal(reason_for(true), "failing for 60 s: model: secret");
    report.errors[0].error.code = DW_CORRUPT;
    assert_string_equal(reason(), "the stream is corrupt");
    assert_string_equal(reason_for(true), "the stream is corrupt: model: secret");
    report.verify_failed = true;
    assert_string_equal(reason(), "a verification failed: corrupt");
    assert_string_equal(reason_for(true), "a verification failed: model: secret");
}

/* The longest error is shown whole. */
TEST_WITH(test_long_error, begin, end)
{
    report.n_errors = 1;
    report.errors[0] = (dw_reported_error){{.code = DW_CONFLICT}, NOW - 5, 0};
    dw_error *e = &report.errors[0].error;
    memset(e->where, 'w', sizeof e->where - 1);
    memset(e->text, 't', sizeof e->text - 1);
    report.version = 6;
    report.verify_failed = true;
    const char *text = reason_for(true);
    assert_int_equal(strlen(text), strlen("a verification failed: : ") + sizeof e->where -
                                       1 + sizeof e->text - 1);
}

RUN_TESTS(NULL, NULL)
