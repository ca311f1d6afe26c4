#include "agent/crowd.h"

#include <stddef.h>
#include <sys/socket.h>

#include "base/clock.h"

#define N_PLACES (DW_CROWD_MAX + DW_CROWD_SPARE)

enum MHD_Result dw_crowd_make_room(void *context, const struct sockaddr *address,
                                   socklen_t n_address)
{
    (void)address, (void)n_address;
    dw_crowd *crowd = context;
    dw_guest *idlest = NULL;
    size_t n_staying = 0;
    for (size_t i = 0; i < N_PLACES; i++) {
        dw_guest *guest = &crowd->guests[i];
        if (!guest->is_here || guest->is_leaving)
            continue;
        n_staying++;
        if (!idlest || guest->t_used_ms < idlest->t_used_ms)
            idlest = guest;
    }
    if (n_staying >= DW_CROWD_MAX) {
        /* the server sees the end of it, and closes */
        shutdown(idlest->fd, SHUT_RDWR);
        idlest->is_leaving = true;
    }
    return MHD_YES;
}

void dw_crowd_notify(void *context, struct MHD_Connection *connection,
                     void **socket_context, enum MHD_ConnectionNotificationCode code)
{
    dw_crowd *crowd = context;
    dw_guest *guest = *socket_context;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (guest)
            *guest = (dw_guest){0};
        *socket_context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    for (size_t i = 0; info && i < N_PLACES; i++) {
        guest = &crowd->guests[i];
        if (guest->is_here)
            continue;
        *guest = (dw_guest){true, false, info->connect_fd, dw_clock_ms()};
        *socket_context = guest;
        return;
    }
}

void dw_crowd_use(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    dw_guest *guest = info ? info->socket_context : NULL;
    if (guest)
        guest->t_used_ms = dw_clock_ms();
}
