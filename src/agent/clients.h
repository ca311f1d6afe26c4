/* The connections: no more than so many, and none can keep the others out.
 *
 * One that sends a byte now and then never times out, and as many of those as there is
 * room for would lock the door. So where all places are taken, a new one takes that of
 * the connection whose last whole request is the longest ago. All of this happens on the
 * server's thread. */
#ifndef DW_AGENT_CLIENTS_H
#define DW_AGENT_CLIENTS_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#define DW_CLIENTS_MAX   64
#define DW_CLIENTS_SPARE 16 /* that are being closed */

typedef struct dw_client {
    bool is_here;
    bool is_leaving;
    int fd;
    uint64_t t_used_ms; /* its last whole request, or its arrival */
} dw_client;

typedef struct dw_clients {
    dw_client clients[DW_CLIENTS_MAX + DW_CLIENTS_SPARE];
} dw_clients;

/* To be called before a connection is taken, and with each that comes and goes; CONTEXT
 * is the clients. They fit MHD_start_daemon and MHD_OPTION_NOTIFY_CONNECTION. */
enum MHD_Result dw_clients_make_room(void *context, const struct sockaddr *address,
                                     socklen_t n_address);
void dw_clients_notify(void *context, struct MHD_Connection *connection,
                       void **socket_context, enum MHD_ConnectionNotificationCode code);

/* A request of CONNECTION was answered. */
void dw_clients_use(struct MHD_Connection *connection);

#endif
