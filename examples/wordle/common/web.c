#include "web.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "program.h"

enum { MAX_CONNECTIONS = 512, IDLE_S = 60, MAX_MESSAGE = 1024, N_BACKLOG = 256 };

struct web {
    struct MHD_Daemon *daemon;
    size_t max_body;
    web_handler handler;
    void *context;
    char url[128];
};

/* One request, from its first line to the end of its answer. */
struct web_call {
    struct MHD_Connection *connection;
    const char *method; /* of the connection */
    const char *path;
    char *bytes; /* of the body, as far as it has come */
    size_t n_bytes;
    bool too_large;
    json_t *body;
    bool answered;
    enum MHD_Result result;
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
    json_t *message = json_string(text); /* NULL: it was cut within a character */
    web_reply(call, status,
              json_pack("{s:{s:o,s:i}}", "error", "message",
                        message ? message : json_string("the request is wrong"), "code",
                        (int)status));
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
    return strcmp(call->method, method) == 0 && strcmp(call->path, path) == 0;
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
    dispatch(server, call);
    return call->result;
}

static void forget(void *context, struct MHD_Connection *connection, void **kept,
                   enum MHD_RequestTerminationCode code)
{
    web_call *call = *kept;
    (void)context, (void)connection, (void)code;
    if (!call)
        return;
    json_decref(call->body);
    free(call->bytes);
    free(call);
    *kept = NULL;
}

/* ---- the server ---- */

/* A socket that listens, or -1 and errno. */
static int try_one(const struct addrinfo *to)
{
    const int on = 1;
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, to->ai_addr, to->ai_addrlen) == 0 && listen(fd, N_BACKLOG) == 0)
        return fd;
    const int number = errno;
    close(fd);
    errno = number;
    return -1;
}

static dw_status open_socket(int *fd, char *url, size_t room, const char *text,
                             dw_error *err)
{
    char host[101], port[8];
    int n = 0; /* of the whole text; 0: it goes on */
    if (sscanf(text, "%100[^]:[]:%5[0-9]%n", host, port, &n) != 2 || text[n] != '\0' ||
        strtoul(port, NULL, 10) > 65535)
        return wordle_fail(err, DW_INVALID, text,
                           "no address to listen at: HOST:PORT, port 0 for any that is "
                           "free");
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    const int code = getaddrinfo(host, port, &hints, &list);
    if (code != 0)
        return wordle_fail(err, DW_INVALID, text, "no such address: %s",
                           gai_strerror(code));
    *fd = -1;
    for (const struct addrinfo *at = list; at && *fd < 0; at = at->ai_next)
        *fd = try_one(at);
    freeaddrinfo(list);
    if (*fd < 0)
        return wordle_fail(err, DW_CONFLICT, text, "cannot listen there: %s",
                           strerror(errno));
    struct sockaddr_storage address;
    socklen_t n_address = sizeof address;
    getsockname(*fd, (struct sockaddr *)&address, &n_address);
    getnameinfo((struct sockaddr *)&address, n_address, NULL, 0, port, sizeof port,
                NI_NUMERICSERV);
    snprintf(url, room, "http://%s:%s", host, port);
    return DW_OK;
}

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
    dw_status status = open_socket(&fd, server->url, sizeof server->url, listen, err);
    if (status == DW_OK) {
        server->daemon = MHD_start_daemon(
            MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ITC, 0, NULL, NULL,
            take, server, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED,
            forget, NULL, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS,
            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S, MHD_OPTION_END);
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
    MHD_stop_daemon(server->daemon);
    free(server);
}

const char *web_url(const web *server)
{
    return server->url;
}
