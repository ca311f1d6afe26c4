#include "port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "soak/process.h"

/* Keeps the port from other runs of these programs, until this one ends: while the engine
 * is away, the port looks free. */
static bool claim(unsigned port)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX}; /* one without a file */
    int n =
        snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "deltawire-port-%u", port);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t n_name =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    if (bind(fd, (struct sockaddr *)&name, n_name) == 0)
        return true;
    close(fd);
    return false;
}

unsigned port_find(uint64_t luck)
{
    for (;; luck++) {
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        unsigned port = 20000 + (unsigned)((soak_now_ms() * 31 + luck) % 10000);
        if (!claim(port))
            continue;
        address.sin_port = htons((uint16_t)port);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        bool free = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
        close(fd);
        if (free)
            return port;
    }
}
