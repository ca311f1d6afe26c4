/* Reports to the agent, and its answers. */
#include "unit/suite.h"

#include "agent_fixture.h"
#include "base/clock.h"
#include "deltawire/deltawire.h"

/* ---- status ---- */

TEST_WITH(test_new, agent_begin, agent_end)
{
    static const char *const members[] = {
        "deltawire", "kind",  "now",    "started", "stream",     "head",
        "follower",  "lag",   "ready",  "reason",  "engines",    "totals",
        "followers", "error", "errors", "history", "history_seq"};
    json_t *json = agent_json("/status");
    assert_int_equal(json_object_size(json), sizeof members / sizeof *members);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        json_at(json, members[i]);
    expect_text(json, "kind", "follower");
    expect_text(json, "deltawire", dw_version());
    expect_null(json, "stream");
    expect_null(json, "head");
    expect_null(json, "follower.version");
    expect_text(json, "follower.phase", "idle");
    expect_null(json, "lag.versions");
    expect_null(json, "lag.seconds");
    expect_bool(json, "ready", false);
    expect_text(json, "reason", "no version yet");
    assert_int_equal(json_array_size(json_at(json, "history")), 0);
    json_decref(json);
    assert_int_equal(http_get(port, "/readyz", &reply), 503);
    assert_string_equal(reply.body, "no version yet\n");
    assert_int_equal(http_get(port, "/healthz", &reply), 200);
}

TEST_WITH(test_told, agent_begin, agent_end)
{
    const dw_rollout_step step = step_to(6);
    tell_identity();
    dw_agent_report_head(agent, 8, CREATED, "80");
    dw_agent_report_version(agent, 6, CREATED);
    dw_agent_report_phase(agent, DW_PHASE_FETCH, 8);
    dw_agent_report_step(agent, &step);
    tell_engine(1, DW_ENGINE_SERVING);
    dw_agent_report_verified(agent, true);
    dw_agent_report_counts(agent, &(dw_store_counts){.n_requests = 12, .n_retries = 3});
    json_t *json = agent_json("/status");
    expect_text(json, "stream.url", "s3://bucket/run");
    expect_number(json, "stream.elements", 1000);
    expect_text(json, "follower.dir", "/models/\xef\xbf\xbd");
    expect_text(json, "head.created", CREATED);
    expect_text(json, "head.step", "80");
    expect_number(json, "follower.version", 6);
    expect_text(json, "follower.phase", "fetch");
    expect_number(json, "follower.phase_version", 8);
    expect_number(json, "lag.versions", 2);
    expect_number(json, "totals.versions", 1);
    expect_number(json, "totals.bytes", 100);
    expect_number(json, "totals.requests", 12);
    expect_number(json, "totals.verified", 1);
    expect_text(json, "engines.0.state", "unknown");
    expect_text(json, "engines.1.driver", "vllm");
    expect_text(json, "engines.1.software", "vLLM 0.32.0");
    expect_null(json, "engines.1.error");
    expect_number(json, "history.0.version", 6);
    expect_number(json, "history.0.from", 5);
    expect_number(json, "history.0.density", 0.05);
    expect_number(json, "history.0.bits_per_change", 16);
    expect_number(json, "history.0.fetch_ms", 1);
    expect_number(json, "history.0.finish_ms", 0.7);
    expect_number(json, "history.0.stopped_ms", 1.5);
    expect_bool(json, "history.0.applied", true);
    json_decref(json);
}

TEST_WITH(test_followers, agent_begin, agent_end)
{
    const dw_follower_info two[] = {
        {"a", 5, "host", "following", "", CREATED, {{0}}},
        {"b", DW_NO_VERSION, "host", "error", "a \"message\"", "never", {{0}}}};
    dw_agent_report_head(agent, 7, CREATED, "");
    dw_agent_report_followers(agent, two, 2);
    json_t *json = agent_json("/status");
    expect_number(json, "followers.0.lag", 2);
    assert_true(json_is_real(json_at(json, "followers.0.age_seconds")));
    expect_null(json, "followers.1.version");
    expect_null(json, "followers.1.lag");
    expect_null(json, "followers.1.age_seconds");
    expect_bool(json, "followers.0.silent", true);
    expect_bool(json, "followers.1.silent", false);
    expect_text(json, "followers.1.message", "a \"message\"");
    json_decref(json);
    dw_agent_report_followers(agent, NULL, 0);
    json = agent_json("/status");
    assert_int_equal(json_array_size(json_at(json, "followers")), 0);
    json_decref(json);
}

TEST_WITH(test_since, agent_begin, agent_end)
{
    for (uint64_t v = 1; v <= 600; v++) {
        dw_rollout_step step = step_to(v);
        dw_agent_report_step(agent, &step);
    }
    json_t *json = agent_json("/status");
    assert_int_equal(json_array_size(json_at(json, "history")), 512);
    expect_number(json, "history.0.version", 89);
    expect_number(json, "history_seq", 0);
    json_decref(json);
    json = agent_json("/status?since=597");
    assert_int_equal(json_array_size(json_at(json, "history")), 3);
    expect_number(json, "history.2.version", 600);
    json_decref(json);
    json = agent_json("/status?since=600");
    assert_int_equal(json_array_size(json_at(json, "history")), 0);
    json_decref(json);
    static const char *const wrong[] = {"", "-1", "x", "1x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char path[64];
        snprintf(path, sizeof path, "/status?since=%s", wrong[i]);
        assert_int_equal(http_get(port, path, &reply), 400);
    }
}

TEST_WITH(test_errors, agent_begin, agent_end)
{
    dw_error one = {DW_UNAVAILABLE, "s3://bucket/run", "first"};
    dw_agent_report_error(agent, &one);
    strcpy(one.text, "again");
    dw_agent_report_error(agent, &one);
    json_t *json = agent_json("/status");
    assert_int_equal(json_array_size(json_at(json, "errors")), 1);
    expect_text(json, "error.text", "again");
    expect_text(json, "error.code", "unavailable");
    expect_null(json, "errors.0.until");
    expect_number(json, "totals.failures", 2);
    expect_text(json, "reason", "no version: s3://bucket/run: again");
    json_decref(json);
    for (int i = 0; i < 25; i++) {
        snprintf(one.where, sizeof one.where, "%d", i);
        dw_agent_report_error(agent, &one);
    }
    dw_agent_report_error(agent, NULL);
    json = agent_json("/status");
    expect_null(json, "error");
    assert_int_equal(json_array_size(json_at(json, "errors")), 20);
    expect_text(json, "errors.0.where", "24");
    expect_text(json, "errors.19.where", "5");
    assert_true(json_is_string(json_at(json, "errors.0.until")));
    json_decref(json);
}

TEST_WITH(test_stream_only, agent_begin, agent_end)
{
    agent_end(NULL);
    agent_start(&(dw_agent_options){.stream_only = true});
    json_t *json = agent_json("/status");
    expect_text(json, "kind", "stream");
    expect_null(json, "follower");
    json_decref(json);
    dw_agent_report_head(agent, 3, CREATED, "30");
    assert_int_equal(http_get(port, "/readyz", &reply), 200);
    assert_int_equal(http_ask(port, "POST", "/pin", "", NULL, &reply), 404);
}

/* ---- pins ---- */

static int post(const char *path, const char *body)
{
    return http_ask(port, "POST", path, "Content-Type: application/json\r\n", body,
                    &reply);
}

TEST_WITH(test_pins, agent_begin, agent_end)
{
    uint64_t version = 0;
    assert_int_equal(post("/pin", NULL), 409); /* there is no version to hold yet */
    assert_int_equal(post("/pin", ""), 409);
    assert_false(dw_agent_pinned(agent, &version));
    assert_false(dw_agent_wait_pin(agent, 0));
    dw_agent_report_version(agent, 6, NULL);
    dw_agent_report_head(agent, 8, CREATED, "");
    assert_int_equal(post("/pin", NULL), 200);
    assert_string_equal(reply.body, "{\"pinned\":6}");
    assert_true(dw_agent_pinned(agent, &version));
    assert_int_equal(version, 6);
    assert_int_equal(post("/pin", "{\"version\": 4}"), 200);
    assert_true(dw_agent_pinned(agent, &version));
    assert_int_equal(version, 4);
    assert_int_equal(post("/pin", "{\"version\": 9}"), 409); /* above the head */
    json_t *json = agent_json("/status");
    expect_number(json, "follower.pinned", 4);
    json_decref(json);
    assert_true(dw_agent_wait_pin(agent, 0)); /* once for both */
    assert_false(dw_agent_wait_pin(agent, 0));
    assert_int_equal(post("/unpin", NULL), 200);
    assert_string_equal(reply.body, "{\"pinned\":null}");
    assert_false(dw_agent_pinned(agent, &version));
    assert_true(dw_agent_wait_pin(agent, 0));
}

static void *wait_for_pin(void *asked)
{
    *(bool *)asked = dw_agent_wait_pin(agent, 600000);
    return NULL;
}

TEST_WITH(test_wait, agent_begin, agent_end)
{
    pthread_t thread;
    bool asked = false;
    dw_agent_report_version(agent, 6, NULL);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_pin, &asked), 0);
    assert_int_equal(post("/pin", NULL), 200);
    pthread_join(thread, NULL);
    assert_true(asked);
}

TEST_WITH(test_watched, agent_begin, agent_end)
{
    assert_false(dw_agent_watched(agent));
    http_get(port, "/metrics", &reply);
    http_get(port, "/readyz", &reply);
    assert_false(dw_agent_watched(agent));
    http_get(port, "/status", &reply);
    assert_true(dw_agent_watched(agent));
}

RUN_TESTS(NULL, NULL)
