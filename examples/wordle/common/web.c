#include "web.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fail.h"
#include "listen.h"

enum {
    MAX_CONNECTIONS = 512,
    MAX_OF_ONE = 384,
    IDLE_S = 60,
    END_MS = 1000,
    MAX_MESSAGE = 1024
};

struct web {
    struct MHD_Daemon *daemon;
    atomic_uint n_put_off;
    size_t max_body;
    web_handler handler;
    void *context;
    char url[LISTEN_URL_BYTES];
};

/* One request, from its first line to the end of its answer. */
struct web_call {
    web *server;
    struct MHD_Connection *connection;
    const char *method; /* of the connection */
    const char *path;
    char *bytes; /* of the body, as far as it has come */
    size_t n_bytes;
    bool too_large;
    json_t *body;
    bool answered;
    enum MHD_Result result;
    void *job; /* of a deferred call */
    void (*finish)(web_call *call, void *job);
    void (*release)(void *job);
};

/* ---- answers ---- */

void web_reply(web_call *call, unsigned status, json_t *body)
{
    /* nine digits are enough to restore a float exactly */
    char *text = body ? json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(body);
    if (!text) {
        status = 500;
        text = strdup("{\"error\":{\"message\":\"out of memory\"}}");
    }
    struct MHD_Response *response =
        text ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE)
             : NULL;
    call->answered = true;
    call->result = MHD_NO;
    if (!response)
        return;
    MHD_add_response_header(response, "Content-Type", "application/json");
    call->result = MHD_queue_response(call->connection, status, response);
    MHD_destroy_response(response);
}

void web_refuse(web_call *call, unsigned status, const char *format, ...)
{
    char text[MAX_MESSAGE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* a text may be cut within a character */
    json_t *message = json_string(text);
    web_reply(call, status,
              json_pack("{s:{s:o,s:i}}", "error", "message",
                        message ? message : json_string("the request is wrong"), "code",
                        (int)status));
}

void web_put_off(web_call *call, void *job, void (*finish)(web_call *call, void *job),
                 void (*release)(void *job))
{
    call->job = job;
    call->finish = finish;
    call->release = release;
    call->answered = true;
    call->result = MHD_YES;
    atomic_fetch_add(&call->server->n_put_off, 1);
    MHD_suspend_connection(call->connection);
}

void web_resume(web_call *call)
{
    MHD_resume_connection(call->connection);
}

bool web_is_gone(const web_call *call)
{
    char byte;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(call->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info)
        return false;
    const ssize_t n = recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* ---- requests ---- */

const char *web_path(const web_call *call)
{
    return call->path;
}

const char *web_method(const web_call *call)
{
    return call->method;
}

bool web_is(const web_call *call, const char *method, const char *path)
{
    const size_t n = strlen(path);
    const bool below = path[n - 1] == '/';
    return strcmp(call->method, method) == 0 &&
           (below ? strncmp(call->path, path, n) == 0 : strcmp(call->path, path) == 0);
}

const char *web_query(const web_call *call, const char *name)
{
    return MHD_lookup_connection_value(call->connection, MHD_GET_ARGUMENT_KIND, name);
}

json_t *web_body(const web_call *call)
{
    return call->body;
}

static bool take_bytes(const web *server, web_call *call, const char *bytes, size_t n)
{
    if (call->too_large || n > server->max_body - call->n_bytes) {
        call->too_large = true; /* the rest is read and discarded */
        return true;
    }
    char *more = realloc(call->bytes, call->n_bytes + n);
    if (!more)
        return false;
    memcpy(more + call->n_bytes, bytes, n);
    call->bytes = more;
    call->n_bytes += n;
    return true;
}

static void dispatch(const web *server, web_call *call)
{
    json_error_t fault = {.text = "not an object"};
    if (call->too_large) {
        web_refuse(call, 413, "the body is longer than %zu bytes", server->max_body);
        return;
    }
    call->body = call->n_bytes > 0 ? json_loadb(call->bytes, call->n_bytes,
                                                JSON_REJECT_DUPLICATES, &fault)
                                   : json_object();
    if (!json_is_object(call->body)) {
        web_refuse(call, 400, "the body is no JSON object: %s", fault.text);
        return;
    }
    server->handler(server->context, call);
    if (!call->answered)
        web_refuse(call, 404, "there is no %.20s %.200s here", call->method, call->path);
}

static enum MHD_Result take(void *context, struct MHD_Connection *connection,
                            const char *path, const char *method, const char *version,
                            const char *upload, size_t *n_upload, void **kept)
{
    web *server = context;
    web_call *call = *kept;
    (void)version;
    if (!call) {
        *kept = call = calloc(1, sizeof *call);
        if (!call)
            return MHD_NO;
        call->server = server;
        call->connection = connection;
        return MHD_YES;
    }
    call->path = path;
    call->method = method;
    if (*n_upload > 0) {
        const bool good = take_bytes(server, call, upload, *n_upload);
        *n_upload = 0;
        return good ? MHD_YES : MHD_NO;
    }
    if (call->finish)
        call->finish(call, call->job);
    else
        dispatch(server, call);
    return call->result;
}

static void forget(void *context, struct MHD_Connection *connection, void **kept,
                   enum MHD_RequestTerminationCode code)
{
    web_call *call = *kept;
    (void)context;
    (void)connection;
    (void)code;
    if (!call)
        return;
    if (call->release) {
        call->release(call->job);
        atomic_fetch_sub(&call->server->n_put_off, 1);
    }
    json_decref(call->body);
    free(call->bytes);
    free(call);
    *kept = NULL;
}

/* ---- the server ---- */

dw_status web_start(web **out, const char *listen, size_t max_body, web_handler handler,
                    void *context, dw_error *err)
{
    int fd;
    web *server = calloc(1, sizeof *server);
    *out = NULL;
    if (!server)
        return wordle_fail(err, DW_NO_MEMORY, listen, "out of memory");
    server->max_body = max_body;
    server->handler = handler;
    server->context = context;
    dw_status status = listen_open(&fd, server->url, listen, err);
    if (status == DW_OK) {
        server->daemon = MHD_start_daemon(
            MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ITC |
                MHD_ALLOW_SUSPEND_RESUME,
            0, NULL, NULL, take, server, MHD_OPTION_LISTEN_SOCKET, fd,
            MHD_OPTION_NOTIFY_COMPLETED, forget, NULL, MHD_OPTION_CONNECTION_LIMIT,
            (unsigned)MAX_CONNECTIONS, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
            (unsigned)MAX_OF_ONE, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
            MHD_OPTION_END);
        if (!server->daemon) {
            close(fd);
            status = wordle_fail(err, DW_IO, listen, "the HTTP server did not start");
        }
    }
    if (status == DW_OK)
        *out = server;
    else
        free(server);
    return status;
}

void web_stop(web *server)
{
    if (!server)
        return;
    const int fd = MHD_quiesce_daemon(server->daemon);
    for (int ms = 0; ms < END_MS && atomic_load(&server->n_put_off) > 0; ms += 5)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    MHD_stop_daemon(server->daemon);
    if (fd >= 0)
        close(fd);
    free(server);
}

const char *web_url(const web *server)
{
    return server->url;
}
