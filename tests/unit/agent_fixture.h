/* An agent for tests, and requests to it. */
#ifndef DW_TEST_AGENT_FIXTURE_H
#define DW_TEST_AGENT_FIXTURE_H

#include <jansson.h>

#include "agent/agent.h"
#include "http_client.h"

static dw_agent *agent;
static unsigned port;
static http_reply reply;

static inline void agent_start(const dw_agent_options *options)
{
    dw_error err;
    if (dw_agent_start(&agent, options, &err) != DW_OK)
        fail_msg("%s: %s", err.where, err.text);
    const char *colon = strrchr(dw_agent_url(agent), ':');
    assert_int_equal(sscanf(colon, ":%u/", &port), 1);
}

static inline int agent_begin(void **state)
{
    (void)state;
    agent_start(&(dw_agent_options){0});
    return 0;
}

static inline int agent_end(void **state)
{
    (void)state;
    dw_agent_stop(agent);
    agent = NULL;
    return 0;
}

/* Checks that it still answers. */
static inline void expect_alive(void)
{
    assert_int_equal(http_get(port, "/healthz", &reply), 200);
    assert_string_equal(reply.body, "ok\n");
}

/* GETs PATH as JSON; the caller frees it. */
static inline json_t *agent_json(const char *path)
{
    assert_int_equal(http_get(port, path, &reply), 200);
    assert_true(http_has(&reply, "Content-Type", "application/json"));
    assert_true(http_has(&reply, "Cache-Control", "no-store"));
    json_error_t fault;
    json_t *json = json_loadb(reply.body, reply.n_body, JSON_REJECT_DUPLICATES, &fault);
    if (!json)
        fail_msg("%s: %s", fault.text, reply.body);
    return json;
}

/* The member of an object at a path such as "lag.versions" or "history.0.from"; it must
 * exist. */
static inline json_t *json_at(json_t *from, const char *path)
{
    char part[64];
    while (*path) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        from = json_is_array(from) ? json_array_get(from, strtoul(part, NULL, 10))
                                   : json_object_get(from, part);
        if (!from)
            fail_msg("no member %s", path);
        path += n + (path[n] == '.');
    }
    return from;
}

#define expect_text(json, path, text)                                                    \
    assert_string_equal(json_string_value(json_at(json, path)), text)
#define expect_number(json, path, n)                                                     \
    assert_true(json_number_value(json_at(json, path)) == (double)(n))
#define expect_null(json, path) assert_true(json_is_null(json_at(json, path)))
#define expect_bool(json, path, is)                                                      \
    assert_int_equal(json_is_true(json_at(json, path)), is)

/* ---- sample reports ---- */

#define CREATED "2026-11-15T05:20:59.123Z"

static inline void tell_identity(void)
{
    dw_agent_report_identity(agent, &(dw_agent_identity){.url = "s3://bucket/run",
                                                         .stream = "0123456789abcdef",
                                                         .id = "host-1",
                                                         .dir = "/models/\xff",
                                                         .n_tensors = 10,
                                                         .n_elems = 1000,
                                                         .n_bytes = 2000});
}

static inline dw_rollout_step step_to(uint64_t version)
{
    return (dw_rollout_step){.from = version - 1,
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
                             .finish_us = 700,
                             .stopped_us = 1500};
}

static inline void tell_engine(size_t i, dw_engine_state state)
{
    dw_engine_status status = {"vllm", "http://engine:8000", state,
                               6,      "vLLM 0.32.0",        {.code = DW_OK}};
    if (state == DW_ENGINE_AWAY)
        status.error = (dw_error){DW_UNAVAILABLE, "http://engine:8000", "no answer"};
    dw_agent_report_engine(agent, i, &status);
}

#endif
