#include "agent/routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "agent/answer.h"
#include "agent/clients.h"
#include "agent/exposition.h"
#include "agent/metrics.h"
#include "agent/status.h"
#include "base/clock.h"
#include "base/json_tree.h"
#include "base/mem.h"

#define MAX_BODY 4096
#define JSON     "application/json"

typedef struct request {
    size_t n_body;
    char body[MAX_BODY];
} request;

typedef struct call {
    dw_desk *desk;
    struct MHD_Connection *connection;
    const request *request;
} call;

static const char *header(const call *c, const char *name)
{
    return MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, name);
}

/* ---- GET ---- */

static dw_answer get_page(const call *c)
{
    return (dw_answer){.code = MHD_HTTP_OK,
                       .type = "text/html; charset=utf-8",
                       .fixed = dw_page,
                       .n_fixed = dw_page_bytes,
                       .policy = c->desk->page_policy};
}

static dw_answer get_health(const call *c)
{
    (void)c;
    return dw_answer_text(MHD_HTTP_OK, "ok");
}

static dw_answer get_ready(const call *c)
{
    char reason[DW_READY_REASON];
    dw_agent_view(c->desk->agent, &c->desk->view);
    const bool is_trusted = dw_guard_knows(&c->desk->guard, c->connection);
    if (dw_report_ready(&c->desk->view, dw_clock_ms(), is_trusted, reason))
        return dw_answer_text(MHD_HTTP_OK, "ready");
    return dw_answer_text(MHD_HTTP_SERVICE_UNAVAILABLE, reason);
}

static bool parse_version(const char *text, uint64_t *out)
{
    const size_t n = strspn(text, "0123456789");
    if (n == 0 || n > 18 || text[n])
        return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

static dw_answer get_status(const call *c)
{
    uint64_t since = DW_NO_VERSION;
    const char *text =
        MHD_lookup_connection_value(c->connection, MHD_GET_ARGUMENT_KIND, "since");
    if (text && !parse_version(text, &since))
        return dw_answer_text(MHD_HTTP_BAD_REQUEST, "since is the number of a version");
    dw_answer a = {.code = MHD_HTTP_OK, .type = JSON};
    dw_agent_watch(c->desk->agent);
    dw_agent_view(c->desk->agent, &c->desk->view);
    dw_status_write(&a.body, &c->desk->view, dw_wall_clock_ms(), since);
    return a;
}

static dw_answer get_metrics(const call *c)
{
    dw_answer a = {.code = MHD_HTTP_OK, .type = DW_PROMETHEUS_TYPE};
    dw_agent_view(c->desk->agent, &c->desk->view);
    dw_metrics_write(&a.body, &c->desk->view, dw_wall_clock_ms());
    return a;
}

/* ---- POST ---- */

/* {"version": N} and nothing else. */
static bool parse_pin(const request *r, uint64_t *version)
{
    dw_json *object;
    *version = 0;
    if (dw_json_read(&object, r->body, r->n_body, "body", "", NULL) != DW_OK)
        return false;
    const bool good = dw_json_size(object) == 1 &&
                      dw_json_unsigned(dw_json_get(object, "version"), version);
    dw_json_free(object);
    return good;
}

static dw_answer answer_pinned(const char *text)
{
    dw_answer a = {.code = MHD_HTTP_OK, .type = JSON};
    dw_write_format(&a.body, "{\"pinned\":%s}", text);
    return a;
}

static dw_answer post_pin(const call *c)
{
    uint64_t version, pinned;
    const bool is_given = c->request->n_body > 0;
    dw_error err;
    char text[24];
    if (is_given && !parse_pin(c->request, &version))
        return dw_answer_text(MHD_HTTP_BAD_REQUEST,
                              "the body is {\"version\": N}, or nothing to hold the "
                              "version that is there");
    if (dw_agent_pin(c->desk->agent, is_given ? &version : NULL, &pinned, &err) != DW_OK)
        return dw_answer_text(MHD_HTTP_CONFLICT, err.text);
    snprintf(text, sizeof text, "%" PRIu64, pinned);
    return answer_pinned(text);
}

static dw_answer post_unpin(const call *c)
{
    dw_agent_unpin(c->desk->agent);
    return answer_pinned("null");
}

/* ---- all of it ---- */

static const struct route {
    const char *path;
    dw_answer (*answer)(const call *c);
    bool is_post;
    bool is_open; /* needs no token */
} routes[] = {
    {"/", get_page, false, true},
    {"/healthz", get_health, false, true},
    {"/readyz", get_ready, false, true},
    {"/status", get_status, false, false},
    {"/metrics", get_metrics, false, false},
    {"/pin", post_pin, true, false},
    {"/unpin", post_unpin, true, false},
};

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (strcmp(path, routes[i].path) == 0)
            return &routes[i];
    return NULL;
}

static bool is_json(const char *type)
{
    const size_t n = sizeof JSON - 1;
    return type && strncasecmp(type, JSON, n) == 0 &&
           (!type[n] || strchr("; \t", type[n]));
}

/* A page of another site can send forms and text here, but JSON only with permission
 * (CORS), which is never given. */
static dw_answer answer_post(const struct route *route, const call *c)
{
    if (!dw_guard_is_own_origin(c->connection))
        return dw_answer_text(MHD_HTTP_FORBIDDEN, "a page of another site asked for it");
    if (!is_json(header(c, MHD_HTTP_HEADER_CONTENT_TYPE)))
        return dw_answer_text(MHD_HTTP_UNSUPPORTED_MEDIA_TYPE,
                              "send it with Content-Type: " JSON);
    return route->answer(c);
}

static dw_answer answer(const char *path, const char *method, const call *c)
{
    const struct route *route = find_route(path);
    if (!dw_guard_is_host(&c->desk->guard, c->connection))
        return dw_answer_text(MHD_HTTP_MISDIRECTED_REQUEST,
                              "this server is for its own machine only: ask for it as "
                              "localhost or 127.0.0.1");
    if (!route)
        return dw_answer_text(MHD_HTTP_NOT_FOUND,
                              "there are /, /healthz, /readyz, /status, /metrics, /pin "
                              "and /unpin");
    if (route->is_post && c->desk->stream_only)
        return dw_answer_text(MHD_HTTP_NOT_FOUND, "there is no follower here to pin");
    const bool is_get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (route->is_post ? strcmp(method, "POST") != 0 : !is_get) {
        dw_answer a =
            dw_answer_text(MHD_HTTP_METHOD_NOT_ALLOWED, "this method is not allowed");
        a.allow = route->is_post ? "POST" : "GET, HEAD";
        return a;
    }
    if (!route->is_open && !dw_guard_knows(&c->desk->guard, c->connection))
        return dw_answer_text(MHD_HTTP_UNAUTHORIZED,
                              "send the token as Authorization: Bearer TOKEN");
    return route->is_post ? answer_post(route, c) : route->answer(c);
}

typedef struct framing {
    unsigned n_lengths, n_encodings; /* header lines */
} framing;

static enum MHD_Result count_framing(void *context, enum MHD_ValueKind kind,
                                     const char *name, const char *value)
{
    framing *f = context;
    (void)kind;
    (void)value;
    f->n_lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    f->n_encodings += strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    return MHD_YES;
}

/* The code that refuses a body before it is sent, or 0. If a request states its length
 * twice, a proxy and this server may disagree about where the next request begins. */
static unsigned refuse_body(const call *c)
{
    const char *length = header(c, MHD_HTTP_HEADER_CONTENT_LENGTH);
    uint64_t n_bytes = 0;
    framing f = {0};
    MHD_get_connection_values(c->connection, MHD_HEADER_KIND, count_framing, &f);
    if (f.n_lengths + f.n_encodings > 1 || (length && !*length))
        return MHD_HTTP_BAD_REQUEST;
    if (f.n_encodings > 0)
        return MHD_HTTP_LENGTH_REQUIRED;
    if (length && (!parse_version(length, &n_bytes) || n_bytes > MAX_BODY))
        return MHD_HTTP_CONTENT_TOO_LARGE;
    return 0;
}

enum MHD_Result dw_desk_handle(void *context, struct MHD_Connection *connection,
                               const char *path, const char *method, const char *version,
                               const char *body, size_t *n_body, void **kept)
{
    (void)version;
    request *r = *kept;
    const call c = {context, connection, r};
    dw_answer a;
    if (!r) {
        const unsigned refused = refuse_body(&c);
        if (refused != 0) {
            a = dw_answer_text(refused, "a body of at most 4096 bytes, with one "
                                        "Content-Length");
            a.closes = true; /* the bytes that follow may not be a request */
            return dw_answer_send(connection, &a);
        }
        *kept = dw_alloc_zeroed(1, sizeof *r);
        return *kept ? MHD_YES : MHD_NO;
    }
    if (*n_body > 0) {
        if (*n_body > MAX_BODY - r->n_body)
            return MHD_NO;
        memcpy(r->body + r->n_body, body, *n_body);
        r->n_body += *n_body;
        *n_body = 0;
        return MHD_YES;
    }
    a = answer(path, method, &c);
    return dw_answer_send(connection, &a);
}

void dw_desk_completed(void *context, struct MHD_Connection *connection, void **kept,
                       enum MHD_RequestTerminationCode code)
{
    (void)context;
    if (code == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        dw_clients_use(connection);
    dw_free(*kept);
    *kept = NULL;
}
