#include "agent/server.h"

#include <microhttpd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/clients.h"
#include "agent/listen.h"
#include "agent/routes.h"
#include "base/error.h"
#include "base/mem.h"

#define N_BACKLOG        64
#define CONNECTION_BYTES 16384 /* for the headers of a request and of its answer */
#define TIMEOUT_S        10
#define TLS_VERSIONS     "SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

#if MHD_VERSION >= 0x00097601 /* it deprecates the other name */
#define STRICT_OPTION MHD_OPTION_CLIENT_DISCIPLINE_LVL
#else
#define STRICT_OPTION MHD_OPTION_STRICT_FOR_CLIENT
#endif

struct dw_server {
    struct MHD_Daemon *daemon;
    dw_desk desk;
    dw_clients clients;
    char url[DW_HOST_TEXT + 32];
    char complaint[256]; /* the last log line, for the error if the start fails */
};

/* ---- starting ---- */

static void take_complaint(void *context, const char *format, va_list args)
{
    dw_server *server = context;
    vsnprintf(server->complaint, sizeof server->complaint, format, args);
}

static void set_url(dw_server *server, const dw_listener *listener, bool has_tls)
{
    const bool is_v6 = strchr(listener->name.host, ':') != NULL;
    snprintf(server->url, sizeof server->url, "%s://%s%s%s:%u/",
             has_tls ? "https" : "http", is_v6 ? "[" : "", listener->name.host,
             is_v6 ? "]" : "", listener->port);
}

/* Takes the listener's socket. */
static dw_status start_daemon(dw_server *server, dw_listener *listener,
                              const dw_tls_files *tls, dw_error *err)
{
    const char *where = server->url;
    const unsigned flags = MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ITC |
                           MHD_USE_ERROR_LOG | (tls->cert ? MHD_USE_TLS : 0);
    struct MHD_OptionItem limits[] = {
        {MHD_OPTION_CONNECTION_LIMIT, DW_CLIENTS_MAX + DW_CLIENTS_SPARE, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_BYTES, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_S, NULL},
        {STRICT_OPTION, 1, NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem tls_files[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, tls->cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, tls->key},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (char[]){TLS_VERSIONS}},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem no_tls[] = {{MHD_OPTION_END, 0, NULL}};
    if (listen(listener->fd, N_BACKLOG) != 0)
        return dw_fail_errno(err, where, "listen there");
    const int fd = listener->fd;
    listener->fd = -1;
    /* signals belong to the host's threads */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    server->daemon = MHD_start_daemon(
        flags, 0, dw_clients_make_room, &server->clients, dw_desk_handle, &server->desk,
        MHD_OPTION_EXTERNAL_LOGGER, take_complaint, server, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_NOTIFY_COMPLETED, dw_desk_completed, &server->desk,
        MHD_OPTION_NOTIFY_CONNECTION, dw_clients_notify, &server->clients,
        MHD_OPTION_ARRAY, limits, MHD_OPTION_ARRAY, tls->cert ? tls_files : no_tls,
        MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (server->daemon)
        return DW_OK;
    server->complaint[strcspn(server->complaint, "\n")] = '\0';
    return dw_fail(err, DW_IO, where, "the HTTP server did not start: %s",
                   server->complaint[0] ? server->complaint
                                        : "libmicrohttpd gives no reason");
}

static dw_status start(dw_server *server, dw_listener *listener,
                       const dw_agent_options *options, dw_error *err)
{
    dw_tls_files tls = {0};
    set_url(server, listener, options->tls_cert != NULL);
    dw_status status = dw_guard_init(&server->desk.guard, options, listener, err);
    if (status == DW_OK && options->tls_cert &&
        MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        status = dw_fail(err, DW_UNSUPPORTED, options->listen,
                         "this machine's libmicrohttpd was built without TLS");
    if (status == DW_OK)
        status = dw_tls_files_read(&tls, options, err);
    if (status == DW_OK)
        status = dw_page_policy(server->desk.page_policy, (const char *)dw_page, err);
    if (status == DW_OK)
        status = start_daemon(server, listener, &tls, err);
    dw_tls_files_release(&tls);
    return status;
}

dw_status dw_server_start(dw_server **out, dw_agent *agent,
                          const dw_agent_options *options, dw_error *err)
{
    dw_listener listener;
    dw_status status = dw_listener_open(&listener, options->listen, err);
    if (status != DW_OK)
        return status;
    dw_server *server = dw_alloc_zeroed(1, sizeof *server);
    if (!server ||
        !dw_report_init(&server->desk.view, options->stream_only, DW_HISTORY_VERSIONS)) {
        status = dw_fail_memory(err, options->listen);
    } else {
        server->desk.agent = agent;
        server->desk.stream_only = options->stream_only;
        status = start(server, &listener, options, err);
    }
    dw_listener_close(&listener);
    if (status == DW_OK)
        *out = server;
    else
        dw_server_stop(server);
    return status;
}

/* ---- the rest ---- */

void dw_server_stop(dw_server *server)
{
    if (!server)
        return;
    if (server->daemon)
        MHD_stop_daemon(server->daemon);
    dw_report_release(&server->desk.view);
    dw_free(server);
}

const char *dw_server_url(const dw_server *server)
{
    return server->url;
}
