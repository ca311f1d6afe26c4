/* The address at which the server listens. */
#ifndef DW_AGENT_LISTEN_H
#define DW_AGENT_LISTEN_H

#include <stdbool.h>

#include "deltawire/base.h"

#define DW_HOST_TEXT 256
#define DW_PORT_TEXT 6

typedef struct dw_listen_name {
    char host[DW_HOST_TEXT]; /* a name or an address, IPv6 without brackets */
    char port[DW_PORT_TEXT];
} dw_listen_name;

/* HOST:PORT or [IPV6]:PORT; DW_INVALID for anything else. */
dw_status dw_listen_parse(dw_listen_name *out, const char *text, dw_error *err);

typedef struct dw_listener {
    int fd;           /* bound, but not listening yet */
    bool is_loopback; /* nobody else can reach it */
    unsigned port;    /* the one it got */
    dw_listen_name name;
} dw_listener;

/* Resolves and binds. DW_CONFLICT if the port is in use, DW_DENIED if it is not allowed,
 * DW_INVALID if this machine has no such address. */
dw_status dw_listener_open(dw_listener *out, const char *text, dw_error *err);
void dw_listener_close(dw_listener *listener);

/* Whether the value of a Host header, or the host and port of an Origin, is a loopback
 * name: localhost, *.localhost, 127.0.0.0/8, [::1], with or without a port. */
bool dw_host_is_loopback(const char *host);

/* Whether it names the host NAME, with or without a port. */
bool dw_host_is(const char *host, const char *name);

#endif
