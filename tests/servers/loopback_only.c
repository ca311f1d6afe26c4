/* Preloaded by tests: a connect() to anything but loopback or a local socket fails, and
 * leaves a line in the file that LOOPBACK_LOG names. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_near(const struct sockaddr *to, char text[INET6_ADDRSTRLEN])
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    snprintf(text, INET6_ADDRSTRLEN, "family %d", to->sa_family);
    switch (to->sa_family) {
    case AF_INET:
        memcpy(&v4, to, sizeof v4);
        inet_ntop(AF_INET, &v4.sin_addr, text, INET6_ADDRSTRLEN);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    case AF_INET6:
        memcpy(&v6, to, sizeof v6);
        inet_ntop(AF_INET6, &v6.sin6_addr, text, INET6_ADDRSTRLEN);
        return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
    default:
        return to->sa_family == AF_UNIX || to->sa_family == AF_UNSPEC ||
               to->sa_family == AF_NETLINK;
    }
}

int connect(int fd, const struct sockaddr *to, socklen_t n_bytes);

int connect(int fd, const struct sockaddr *to, socklen_t n_bytes)
{
    char text[INET6_ADDRSTRLEN];
    int (*real)(int, const struct sockaddr *, socklen_t);
    void *found = dlsym(RTLD_NEXT, "connect");
    memcpy(&real, &found, sizeof real);
    if (is_near(to, text))
        return real(fd, to, n_bytes);
    const char *path = getenv("LOOPBACK_LOG");
    int log = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (log >= 0) {
        dprintf(log, "%s\n", text);
        close(log);
    }
    errno = ENETUNREACH;
    return -1;
}
