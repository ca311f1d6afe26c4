#include "listen.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fail.h"

enum { N_BACKLOG = 256, MAX_HOST = 100 };

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

static dw_status find_url(int fd, char url[LISTEN_URL_BYTES], const char *host,
                          dw_error *err)
{
    struct sockaddr_storage address;
    socklen_t n = sizeof address;
    char port[8];
    if (getsockname(fd, (struct sockaddr *)&address, &n) != 0 ||
        getnameinfo((struct sockaddr *)&address, n, NULL, 0, port, sizeof port,
                    NI_NUMERICSERV) != 0)
        return wordle_fail(err, DW_IO, host, "the socket has no address");
    const bool is_v6 = strchr(host, ':') != NULL;
    snprintf(url, LISTEN_URL_BYTES, is_v6 ? "http://[%s]:%s" : "http://%s:%s", host,
             port);
    return DW_OK;
}

dw_status listen_open(int *fd, char url[LISTEN_URL_BYTES], const char *text,
                      dw_error *err)
{
    char host[MAX_HOST + 1], port[8];
    int n = 0; /* of the whole text; 0: it goes on */
    if ((sscanf(text, "[%100[0-9a-fA-F:.]]:%5[0-9]%n", host, port, &n) != 2 &&
         sscanf(text, "%100[^]:[]:%5[0-9]%n", host, port, &n) != 2) ||
        text[n] != '\0' || strtoul(port, NULL, 10) > UINT16_MAX)
        return wordle_fail(err, DW_INVALID, text,
                           "no address to listen at: HOST:PORT or [IPV6]:PORT, port 0 "
                           "for any that is free");
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
    dw_status status = find_url(*fd, url, host, err);
    if (status != DW_OK)
        close(*fd);
    return status;
}
