/* For tests of drivers against scripted servers: replies, and ways to fail. */
#ifndef DW_TESTS_ENGINE_SCRIPT_H
#define DW_TESTS_ENGINE_SCRIPT_H

#include "engine/engine_int.h"
#include "unit/failing_allocator.h"
#include "unit/scripted_server.h"

/* How long the engines that open_engine opens may take for an answer. Only an engine that
 * must not answer gets the short limit: a busy machine answers late. */
enum { LONG_LIMIT_MS = 60000, SHORT_LIMIT_MS = 1000 };
static unsigned limit_ms = LONG_LIMIT_MS;

/* A reply with STATUS and JSON, which ends with the connection. */
#define REPLY(status, json)                                                              \
    "HTTP/1.1 " status                                                                   \
    "\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" json

/* The label was removed before an update. */
#define UNLABELLED REPLY("200 OK", "{\"success\":true,\"new_version\":\"none\"}")

/* A way for a call to fail, and the code that it must get. */
typedef struct call_fault {
    const char *name;
    const char *reply;
    dw_status code;
    const char *words; /* the error must contain them */
} call_fault;

static const call_fault call_faults[] = {
    {"no answer", SCRIPT_SILENCE, DW_UNAVAILABLE, "no answer within 1000 ms"},
    {"hung up", "", DW_UNAVAILABLE, "no complete answer"},
    {"half a head", "HTTP/1.1 200 OK\r\nContent-Le", DW_UNAVAILABLE, "no "},
    {"half a body",
     "HTTP/1.1 200 OK\r\nContent-Length: 50\r\nConnection: close\r\n\r\n{\"status\":",
     DW_UNAVAILABLE, "no complete answer"},
    {"500", REPLY("500 X", "{\"error\":{\"message\":\"a worker\\nfell\",\"code\":500}}"),
     DW_CONFLICT, "answered 500: a worker\\x0afell"},
    {"500 bare", REPLY("500 X", "{\"error\":\"Failed: it\"}"), DW_CONFLICT, "Failed: it"},
    {"503 text", REPLY("503 X", "busy \x1b[2J"), DW_CONFLICT, "503: busy \\x1b[2J"},
    {"503 bytes", REPLY("503 X", "\xff\xfe"), DW_CONFLICT, "answered 503"},
    {"409", REPLY("409 X", ""), DW_CONFLICT, "answered 409"},
    {"401", REPLY("401 X", "{\"error\":\"Unauthorized\"}"), DW_DENIED, "wants a token"},
    {"403", REPLY("403 X", ""), DW_DENIED, "answered 403"},
    {"302",
     "HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:1/\r\nConnection: close\r\n\r\n",
     DW_INVALID, "leads elsewhere"},
    {"no JSON", REPLY("200 OK", "<html>"), DW_INVALID, "makes no sense"},
    {"no object", REPLY("200 OK", "[1]"), DW_INVALID, "makes no sense"},
    {"twice", REPLY("200 OK", "{\"a\":1,\"a\":2}"), DW_INVALID, "makes no sense"},
    {"no HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", DW_INVALID, "makes no sense"},
};
enum { N_CALL_FAULTS = sizeof call_faults / sizeof *call_faults };

/* Call it before open_engine, with the reply that makes the call fail. */
static inline void set_limit(const char *reply)
{
    limit_ms = strcmp(reply, SCRIPT_SILENCE) == 0 ? SHORT_LIMIT_MS : LONG_LIMIT_MS;
}

static inline dw_engine *open_engine(const char *driver, const char *url,
                                     const char *token)
{
    dw_engine_options options = {
        .pause_ms = limit_ms, .apply_ms = limit_ms, .probe_ms = limit_ms, .token = token};
    char spec[256];
    dw_engine *engine = NULL;
    dw_error err = {0};
    snprintf(spec, sizeof spec, "%s=%s", driver, url);
    assert_int_equal(dw_engine_open(&engine, spec, &options, &err), DW_OK);
    return engine;
}

/* An address where nobody listens. */
static inline void find_free_url(char out[64])
{
    scripted_server s;
    script_start(&s, NULL, 0);
    strcpy(out, s.endpoint);
    script_end(&s);
}

/* A server that answers every request with the same reply. */
typedef struct same_server {
    int fd;
    char endpoint[64];
    const char *reply;
    pthread_t thread;
} same_server;

static inline void *same_serve(void *argument)
{
    same_server *s = argument;
    char request[SCRIPT_REQUEST], body[SCRIPT_BODY];
    for (int fd; (fd = accept(s->fd, NULL, NULL)) >= 0; close(fd))
        if (script_read(fd, request, body))
            send(fd, s->reply, strlen(s->reply), MSG_NOSIGNAL);
    return NULL;
}

static inline void same_start(same_server *s, const char *reply)
{
    s->reply = reply;
    s->fd = script_listen(s->endpoint);
    assert_int_equal(pthread_create(&s->thread, NULL, same_serve, s), 0);
}

static inline void same_end(same_server *s)
{
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
}

static const dw_engine_update a_patch = {
    .stream = "0123456789abcdef0123456789abcdef",
    .from = 6,
    .version = 7,
    .state = 0xabcdef,
    .dir = "/models/a \"b\"",
    .patch = "/models/a \"b\"/.deltawire/patch",
};

/* ---- no memory ---- */

static char agreeable_spec[128];

static dw_status ask_everything(dw_error *err)
{
    dw_engine_options options = {.token = "token"};
    dw_engine *engine = NULL;
    dw_engine_info info;
    bool whole = true;
    dw_status status = dw_engine_open(&engine, agreeable_spec, &options, err);
    if (status == DW_OK)
        status = dw_engine_probe(engine, &info, err);
    if (status == DW_OK)
        status = dw_engine_pause(engine, &a_patch, err);
    if (status == DW_OK)
        status = dw_engine_apply(engine, &a_patch, &whole, err);
    dw_engine_close(engine);
    return status;
}

/* Fails every allocation of every call in turn. The server answers each with REPLY. */
static inline void check_allocations(const char *driver, const char *reply)
{
    same_server server;
    same_start(&server, reply);
    snprintf(agreeable_spec, sizeof agreeable_spec, "%s=%s", driver, server.endpoint);
    fail_every_allocation(ask_everything, NULL);
    same_end(&server);
}

/* ---- an engine and its server ---- */

/* What a test plays: a server, an engine that asks it, and what the last call gave.
 * DRIVER is defined where this file is included. */
static scripted_server s;
static const char *token; /* of the next engine */
static dw_engine *engine;
static dw_engine_info info;
static dw_error err;
static bool whole;

#define BEGIN(...)                                                                       \
    begin((const char *const[]){__VA_ARGS__},                                            \
          sizeof(const char *const[]){__VA_ARGS__} / sizeof(char *))

static inline void begin(const char *const *replies, size_t n)
{
    script_start(&s, replies, (unsigned)n);
    engine = open_engine(DRIVER, s.endpoint, token);
    token = NULL;
    err = (dw_error){0};
}

static inline void end(void)
{
    dw_engine_close(engine);
    script_end(&s);
}

static inline void expect_apply(dw_status code, bool is_whole)
{
    assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), code);
    assert_int_equal(whole, is_whole);
}

#endif
