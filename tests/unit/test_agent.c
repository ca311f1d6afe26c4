/* What the agent is told, and what it shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>

#include <cmocka.h>

#include "agent_fixture.h"
#include "base/clock.h"
#include "failing_allocator.h"

#define CREATED "2026-11-15T05:20:59.123Z"

static void tell_identity(void)
{
    dw_agent_tell_identity(agent, &(dw_agent_identity){.url = "s3://bucket/run",
                                                       .stream = "0123456789abcdef",
                                                       .id = "host-1",
                                                       .dir = "/models/\xff",
                                                       .n_tensors = 10,
                                                       .n_elems = 1000,
                                                       .n_bytes = 2000});
}

static dw_rollout_hop hop_to(uint64_t version)
{
    return (dw_rollout_hop){.from = version - 1,
                            .version = version,
                            .n_objects = 2,
                            .n_bytes = 100,
                            .n_changed = 50,
                            .fetch_us = 1000,
                            .decode_us = 2000,
                            .pause_us = 300,
                            .scatter_us = 400,
                            .update_us = 500,
                            .resume_us = 600,
                            .settle_us = 700,
                            .stopped_us = 1500};
}

static void tell_engine(size_t i, dw_engine_state state)
{
    dw_engine_status status = {"vllm", "http://engine:8000", state,
                               6,      "vLLM 0.32.0",        {.code = DW_OK}};
    if (state == DW_ENGINE_AWAY)
        status.error = (dw_error){DW_UNAVAILABLE, "http://engine:8000", "no answer"};
    dw_agent_tell_engine(agent, i, &status);
}

/* ---- status ---- */

static void test_new(void **state)
{
    (void)state;
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

static void test_told(void **state)
{
    (void)state;
    const dw_rollout_hop hop = hop_to(6);
    tell_identity();
    dw_agent_tell_head(agent, 8, CREATED, "80");
    dw_agent_tell_version(agent, 6, CREATED);
    dw_agent_tell_phase(agent, DW_PHASE_FETCH, 8);
    dw_agent_tell_hop(agent, &hop);
    tell_engine(1, DW_ENGINE_SERVING);
    dw_agent_tell_verified(agent, true);
    dw_agent_tell_counts(agent, &(dw_store_counts){.n_requests = 12, .n_retries = 3});
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
    expect_number(json, "history.0.settle_ms", 0.7);
    expect_number(json, "history.0.stopped_ms", 1.5);
    expect_bool(json, "history.0.applied", true);
    json_decref(json);
}

static void test_followers(void **state)
{
    (void)state;
    const dw_follower_info two[] = {
        {"a", 5, "host", "following", "", CREATED},
        {"b", DW_NO_VERSION, "host", "error", "a \"message\"", "never"}};
    dw_agent_tell_head(agent, 7, CREATED, "");
    dw_agent_tell_followers(agent, two, 2);
    json_t *json = agent_json("/status");
    expect_number(json, "followers.0.lag", 2);
    assert_true(json_is_real(json_at(json, "followers.0.age_seconds")));
    expect_null(json, "followers.1.version");
    expect_null(json, "followers.1.lag");
    expect_null(json, "followers.1.age_seconds");
    expect_text(json, "followers.1.message", "a \"message\"");
    json_decref(json);
    dw_agent_tell_followers(agent, NULL, 0);
    json = agent_json("/status");
    assert_int_equal(json_array_size(json_at(json, "followers")), 0);
    json_decref(json);
}

static void test_since(void **state)
{
    (void)state;
    for (uint64_t v = 1; v <= 600; v++) {
        dw_rollout_hop hop = hop_to(v);
        dw_agent_tell_hop(agent, &hop);
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

static void test_errors(void **state)
{
    (void)state;
    dw_error one = {DW_UNAVAILABLE, "s3://bucket/run", "first"};
    dw_agent_tell_error(agent, &one);
    strcpy(one.text, "again");
    dw_agent_tell_error(agent, &one);
    json_t *json = agent_json("/status");
    assert_int_equal(json_array_size(json_at(json, "errors")), 1);
    expect_text(json, "error.text", "again");
    expect_text(json, "error.code", "unavailable");
    expect_null(json, "errors.0.until");
    expect_number(json, "totals.failures", 2);
    expect_text(json, "reason", "no version yet: unavailable");
    json_decref(json);
    for (int i = 0; i < 25; i++) {
        snprintf(one.where, sizeof one.where, "%d", i);
        dw_agent_tell_error(agent, &one);
    }
    dw_agent_tell_error(agent, NULL);
    json = agent_json("/status");
    expect_null(json, "error");
    assert_int_equal(json_array_size(json_at(json, "errors")), 20);
    expect_text(json, "errors.0.where", "24");
    expect_text(json, "errors.19.where", "5");
    assert_true(json_is_string(json_at(json, "errors.0.until")));
    json_decref(json);
}

static void test_stream_only(void **state)
{
    (void)state;
    agent_end(NULL);
    agent_start(&(dw_agent_options){.stream_only = true});
    json_t *json = agent_json("/status");
    expect_text(json, "kind", "stream");
    expect_null(json, "follower");
    json_decref(json);
    dw_agent_tell_head(agent, 3, CREATED, "30");
    assert_int_equal(http_get(port, "/readyz", &reply), 200);
    assert_int_equal(http_ask(port, "POST", "/pin", "", NULL, &reply), 404);
}

/* ---- pins ---- */

static int post(const char *path, const char *body)
{
    return http_ask(port, "POST", path, "Content-Type: application/json\r\n", body,
                    &reply);
}

static void test_pins(void **state)
{
    (void)state;
    uint64_t version = 0;
    assert_int_equal(post("/pin", NULL), 409); /* there is nothing to hold yet */
    assert_int_equal(post("/pin", ""), 409);
    assert_false(dw_agent_pinned(agent, &version));
    assert_false(dw_agent_wait_pin(agent, 0));
    dw_agent_tell_version(agent, 6, NULL);
    dw_agent_tell_head(agent, 8, CREATED, "");
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
    assert_true(dw_agent_wait_pin(agent, 0)); /* for both together */
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

static void test_wait(void **state)
{
    (void)state;
    pthread_t thread;
    bool asked = false;
    dw_agent_tell_version(agent, 6, NULL);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_pin, &asked), 0);
    assert_int_equal(post("/pin", NULL), 200);
    pthread_join(thread, NULL);
    assert_true(asked);
}

static void test_watched(void **state)
{
    (void)state;
    assert_false(dw_agent_watched(agent));
    http_get(port, "/metrics", &reply);
    http_get(port, "/readyz", &reply);
    assert_false(dw_agent_watched(agent));
    http_get(port, "/status", &reply);
    assert_true(dw_agent_watched(agent));
}

/* ---- many at once ---- */

enum { N_TELLERS = 4, N_TELLS = 300 };

static void *tell_all(void *argument)
{
    const uint64_t who = *(const uint64_t *)argument;
    for (uint64_t i = 0; i < N_TELLS; i++) {
        const uint64_t v = N_TELLERS * i + who;
        dw_rollout_hop hop = {.from = v,
                              .version = v + 1,
                              .n_bytes = 10 * (v + 1),
                              .n_changed = 20 * (v + 1)};
        dw_error err = {DW_UNAVAILABLE, "where", "text"};
        dw_follower_info follower = {"id", v, "host", "following", "", CREATED};
        tell_identity();
        dw_agent_tell_head(agent, v, CREATED, "step");
        dw_agent_tell_version(agent, v, CREATED);
        dw_agent_tell_phase(agent, DW_PHASE_APPLY, v);
        dw_agent_tell_hop(agent, &hop);
        tell_engine(who, i % 2 ? DW_ENGINE_SERVING : DW_ENGINE_AWAY);
        dw_agent_tell_error(agent, i % 2 ? &err : NULL);
        dw_agent_tell_followers(agent, &follower, 1);
        dw_agent_tell_counts(agent, &(dw_store_counts){.n_requests = v});
        dw_agent_watched(agent);
    }
    return NULL;
}

static void test_many(void **state)
{
    (void)state;
    pthread_t threads[N_TELLERS];
    uint64_t who[N_TELLERS];
    for (uint64_t i = 0; i < N_TELLERS; i++) {
        who[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, tell_all, &who[i]), 0);
    }
    for (int i = 0; i < 20; i++) {
        json_t *json = agent_json("/status");
        json_t *rows = json_at(json, "history"), *row;
        size_t k;
        double last = 0;
        json_array_foreach(rows, k, row)
        {
            const double v = json_number_value(json_at(row, "version"));
            assert_true(v > last);
            expect_number(row, "bytes", 10 * v);
            expect_number(row, "bits_per_change", 4);
            last = v;
        }
        json_decref(json);
        assert_int_equal(http_get(port, "/metrics", &reply), 200);
    }
    for (int i = 0; i < N_TELLERS; i++)
        pthread_join(threads[i], NULL);
    json_t *json = agent_json("/status");
    expect_number(json, "totals.versions", N_TELLERS * N_TELLS);
    expect_number(json, "history.511.version", N_TELLERS * N_TELLS);
    json_decref(json);
}

/* ---- without ---- */

static void test_null(void **state)
{
    (void)state;
    uint64_t version;
    dw_rollout_hop hop = hop_to(1);
    dw_agent_tell_identity(NULL, &(dw_agent_identity){0});
    dw_agent_tell_head(NULL, 1, CREATED, "");
    dw_agent_tell_version(NULL, 1, NULL);
    dw_agent_tell_phase(NULL, DW_PHASE_FETCH, 1);
    dw_agent_tell_hop(NULL, &hop);
    dw_agent_tell_engine(NULL, 0, &(dw_engine_status){0});
    dw_agent_tell_commit(NULL, &(dw_version_info){0});
    dw_agent_tell_error(NULL, NULL);
    dw_agent_tell_verified(NULL, true);
    dw_agent_tell_counts(NULL, &(dw_store_counts){0});
    dw_agent_tell_followers(NULL, NULL, 0);
    assert_false(dw_agent_pinned(NULL, &version));
    assert_false(dw_agent_wait_pin(NULL, 0));
    assert_false(dw_agent_watched(NULL));
    dw_agent_stop(NULL);
}

static dw_status start_and_stop(dw_error *err)
{
    dw_agent *started;
    dw_status status = dw_agent_start(&started, &(dw_agent_options){0}, err);
    dw_agent_stop(started);
    return status;
}

static void test_no_memory(void **state)
{
    (void)state;
    fail_every_allocation(start_and_stop, NULL);
    dw_agent_tell_head(agent, 7, CREATED, "70");
    tell_identity();
    failing_allocator none;
    failing_allocator_install(&none, 0);
    dw_agent_tell_identity(agent, &(dw_agent_identity){.url = "other"});
    dw_agent_tell_followers(agent, NULL, 0);
    dw_agent_tell_head(agent, 8, CREATED, "80");
    dw_set_allocator(NULL);
    json_t *json = agent_json("/status");
    expect_text(json, "stream.url", "s3://bucket/run");
    expect_number(json, "head.version", 8);
    expect_text(json, "head.step", "");
    json_decref(json);
}

#define IN_AGENT(test) cmocka_unit_test_setup_teardown(test, agent_begin, agent_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_AGENT(test_new),   IN_AGENT(test_told),         IN_AGENT(test_followers),
        IN_AGENT(test_since), IN_AGENT(test_errors),       IN_AGENT(test_stream_only),
        IN_AGENT(test_pins),  IN_AGENT(test_wait),         IN_AGENT(test_watched),
        IN_AGENT(test_many),  cmocka_unit_test(test_null), IN_AGENT(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
