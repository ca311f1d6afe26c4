#include "agent/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

/* ---- HOST:PORT ---- */

/* Splits TEXT into a host without brackets and a port, NULL if it has none. False if it
 * is neither HOST, HOST:PORT, [HOST] nor [HOST]:PORT. */
static bool split(const char *text, char host[DW_HOST_TEXT], const char **port)
{
    const bool in_brackets = text[0] == '[';
    const char *start = text + in_brackets;
    const size_t n = strcspn(start, in_brackets ? "]" : ":[]");
    const char *end = start + n;
    if (n == 0 || n >= DW_HOST_TEXT)
        return false;
    if (in_brackets && *end++ != ']')
        return false;
    if (*end != '\0' && *end != ':')
        return false;
    memcpy(host, start, n);
    host[n] = '\0';
    *port = *end == ':' ? end + 1 : NULL;
    return true;
}

static bool is_port(const char *text)
{
    const size_t n = strspn(text, "0123456789");
    return n > 0 && n < DW_PORT_TEXT && text[n] == '\0' &&
           strtoul(text, NULL, 10) <= UINT16_MAX;
}

dw_status dw_listen_parse(dw_listen_name *out, const char *text, dw_error *err)
{
    const char *port = NULL;
    if (!split(text, out->host, &port) || !port || !is_port(port))
        return dw_fail(err, DW_INVALID, text,
                       "no address to listen at: HOST:PORT or [IPV6]:PORT, port 0 for "
                       "any that is free");
    snprintf(out->port, sizeof out->port, "%s", port);
    return DW_OK;
}

/* ---- binding ---- */

static bool is_loopback_v4(uint32_t address)
{
    return ntohl(address) >> 24 == IN_LOOPBACKNET;
}

static bool is_loopback_v6(const struct in6_addr *address)
{
    uint32_t last;
    memcpy(&last, &address->s6_addr[12], sizeof last);
    return IN6_IS_ADDR_LOOPBACK(address) ||
           (IN6_IS_ADDR_V4MAPPED(address) && is_loopback_v4(last));
}

typedef union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
} address;

/* Asks the kernel for the address: a name can resolve to anything. */
static dw_status look_at(dw_listener *l, const char *text, dw_error *err)
{
    address a = {.any.sa_family = AF_UNSPEC};
    socklen_t n_bytes = sizeof a;
    if (getsockname(l->fd, &a.any, &n_bytes) != 0)
        return dw_fail_errno(err, text, "look at the socket");
    const bool is_v6 = a.any.sa_family == AF_INET6;
    l->is_loopback =
        is_v6 ? is_loopback_v6(&a.v6.sin6_addr) : is_loopback_v4(a.v4.sin_addr.s_addr);
    l->port = ntohs(is_v6 ? a.v6.sin6_port : a.v4.sin_port);
    return DW_OK;
}

/* A bound socket, or -1 and errno. */
static int bind_to(const struct addrinfo *to)
{
    const int on = 1, off = 0;
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (to->ai_family ==
        AF_INET6) /* [::] takes both kinds, whatever the system's default is */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, to->ai_addr, to->ai_addrlen) == 0)
        return fd;
    int number = errno;
    close(fd);
    errno = number;
    return -1;
}

static dw_status fail_bind(const char *text, dw_error *err)
{
    if (errno == EADDRINUSE)
        return dw_fail(
            err, DW_CONFLICT, text,
            "another process listens there: choose another port, or 0 for any");
    if (errno == EACCES || errno == EPERM)
        return dw_fail(err, DW_DENIED, text,
                       "this user may not listen there: choose a port above 1023");
    if (errno == EADDRNOTAVAIL)
        return dw_fail(err, DW_INVALID, text,
                       "this machine does not have that address: 127.0.0.1 is for "
                       "local clients only, 0.0.0.0 for all");
    return dw_fail_errno(err, text, "listen there");
}

dw_status dw_listener_open(dw_listener *out, const char *text, dw_error *err)
{
    *out = (dw_listener){.fd = -1};
    dw_status status = dw_listen_parse(&out->name, text, err);
    if (status != DW_OK)
        return status;
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int code = getaddrinfo(out->name.host, out->name.port, &hints, &list);
    if (code != 0)
        return dw_fail(err, DW_INVALID, text, "no address of that name: %s",
                       gai_strerror(code));
    for (struct addrinfo *at = list; at && out->fd < 0; at = at->ai_next)
        out->fd = bind_to(at);
    status = out->fd < 0 ? fail_bind(text, err) : look_at(out, text, err);
    freeaddrinfo(list);
    if (status != DW_OK)
        dw_listener_close(out);
    return status;
}

void dw_listener_close(dw_listener *listener)
{
    if (listener->fd >= 0)
        close(listener->fd);
    listener->fd = -1;
}

/* ---- Host ---- */

bool dw_host_is(const char *host, const char *name)
{
    char bare[DW_HOST_TEXT];
    const char *port;
    return split(host, bare, &port) && (!port || is_port(port)) &&
           strcasecmp(bare, name) == 0;
}

bool dw_host_is_loopback(const char *host)
{
    static const char localhost[] = "localhost";
    char bare[DW_HOST_TEXT];
    const char *port;
    struct in_addr v4;
    struct in6_addr v6;
    if (!split(host, bare, &port) || (port && !is_port(port)))
        return false;
    if (host[0] == '[')
        return inet_pton(AF_INET6, bare, &v6) == 1 && is_loopback_v6(&v6);
    if (inet_pton(AF_INET, bare, &v4) == 1)
        return is_loopback_v4(v4.s_addr);
    size_t n = strlen(bare);
    if (n > 1 && bare[n - 1] == '.') /* the full name */
        bare[--n] = '\0';
    const size_t n_tail = sizeof localhost - 1;
    return n >= n_tail && strcasecmp(bare + n - n_tail, localhost) == 0 &&
           (n == n_tail || bare[n - n_tail - 1] == '.');
}
