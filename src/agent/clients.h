/* The clients' connections: at most DW_CLIENTS_MAX, and none can lock the others out.
 *
 * A client that sends a byte now and then never times out, and enough of them would take
 * all the room. So if there is no room, a new connection replaces the one whose last
 * whole request is the oldest. All of this happens on the server's thread. */
#ifndef DW_AGENT_CLIENTS_H
#define DW_AGENT_CLIENTS_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#define DW_CLIENTS_MAX   64
#define DW_CLIENTS_SPARE 16 /* connections that are being closed */

typedef struct dw_client {
    bool is_here;
    bool is_leaving;
    int fd;
    uint64_t t_used_ms; /* its last whole request, or its arrival */
} dw_client;

typedef struct dw_clients {
    dw_client clients[DW_CLIENTS_MAX + DW_CLIENTS_SPARE];
} dw_clients;

/* Called by MHD before it accepts a connection, and when one begins and ends. CONTEXT is
 * the dw_clients. */
enum MHD_Result dw_clients_make_room(void *context, const struct sockaddr *address,
                                     socklen_t n_address);
void dw_clients_notify(void *context, struct MHD_Connection *connection,
                       void **socket_context, enum MHD_ConnectionNotificationCode code);

/* A request of CONNECTION was answered. */
void dw_clients_use(struct MHD_Connection *connection);

#endif
