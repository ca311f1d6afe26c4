/* An agent that answers, and how to ask it. */
#ifndef DW_TEST_AGENT_FIXTURE_H
#define DW_TEST_AGENT_FIXTURE_H

#include <jansson.h>

#include "deltawire/agent.h"
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

/* GET PATH as JSON, to be freed. */
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

/* The member of an object that a path such as "lag.versions" or "history.0.from" leads
 * to; it must be there. */
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

#endif
