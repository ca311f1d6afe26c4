#include "agent/clients.h"

#include <stddef.h>
#include <sys/socket.h>

#include "base/clock.h"

#define N_PLACES (DW_CLIENTS_MAX + DW_CLIENTS_SPARE)

enum MHD_Result dw_clients_make_room(void *context, const struct sockaddr *address,
                                     socklen_t n_address)
{
    (void)address, (void)n_address;
    dw_clients *clients = context;
    dw_client *idlest = NULL;
    size_t n_staying = 0;
    for (size_t i = 0; i < N_PLACES; i++) {
        dw_client *client = &clients->clients[i];
        if (!client->is_here || client->is_leaving)
            continue;
        n_staying++;
        if (!idlest || client->t_used_ms < idlest->t_used_ms)
            idlest = client;
    }
    if (n_staying >= DW_CLIENTS_MAX) {
        /* the server notices the end, and closes */
        shutdown(idlest->fd, SHUT_RDWR);
        idlest->is_leaving = true;
    }
    return MHD_YES;
}

void dw_clients_notify(void *context, struct MHD_Connection *connection,
                       void **socket_context, enum MHD_ConnectionNotificationCode code)
{
    dw_clients *clients = context;
    dw_client *client = *socket_context;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (client)
            *client = (dw_client){0};
        *socket_context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    for (size_t i = 0; info && i < N_PLACES; i++) {
        client = &clients->clients[i];
        if (client->is_here)
            continue;
        *client = (dw_client){true, false, info->connect_fd, dw_clock_ms()};
        *socket_context = client;
        return;
    }
}

void dw_clients_use(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    dw_client *client = info ? info->socket_context : NULL;
    if (client)
        client->t_used_ms = dw_clock_ms();
}
