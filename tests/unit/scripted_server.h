/* An HTTP server that gives prepared replies, one after another, and keeps the requests.
 * For replies that a real server gives only in trouble, or that only Amazon gives. */
#ifndef DW_TESTS_SCRIPTED_SERVER_H
#define DW_TESTS_SCRIPTED_SERVER_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SCRIPT_MAX = 32, SCRIPT_REQUEST = 16384, SCRIPT_BODY = 4096 };

#define SCRIPT_SILENCE "silence" /* a reply: nothing, until the peer closes */

typedef struct scripted_server {
    int fd;
    char endpoint[64];
    pthread_t thread;
    const char *replies[SCRIPT_MAX]; /* "" closes the connection instead */
    unsigned n_replies;
    char requests[SCRIPT_MAX][SCRIPT_REQUEST]; /* heads */
    char bodies[SCRIPT_MAX][SCRIPT_BODY];      /* their first bytes */
    unsigned n_requests;
} scripted_server;

/* Reads the head into REQUEST, and as much of the body as fits into BODY. False if the
 * peer is gone. */
static bool script_read(int fd, char *request, char *body)
{
    size_t n = 0, n_head = 0, n_body = 0;
    for (;;) {
        ssize_t n_got = recv(fd, request + n, SCRIPT_REQUEST - 1 - n, 0);
        if (n_got <= 0)
            return false;
        n += (size_t)n_got;
        request[n] = 0;
        char *end = strstr(request, "\r\n\r\n");
        if (!end)
            continue;
        n_head = (size_t)(end - request) + 4;
        char *length = strstr(request, "\r\nContent-Length:");
        n_body = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
        break;
    }
    size_t n_kept = 0, n_left = n_head + n_body - n;
    const char *bytes = request + n_head;
    char sink[4096];
    for (size_t n_new = n - n_head;;) {
        for (size_t i = 0; i < n_new && n_kept < SCRIPT_BODY - 1; i++)
            body[n_kept++] = bytes[i];
        body[n_kept] = 0;
        if (n_left == 0)
            break;
        ssize_t n_got = recv(fd, sink, n_left < sizeof sink ? n_left : sizeof sink, 0);
        if (n_got <= 0)
            return false;
        bytes = sink;
        n_new = (size_t)n_got;
        n_left -= n_new;
    }
    request[n_head] = 0;
    return true;
}

static void *script_serve(void *argument)
{
    scripted_server *s = argument;
    int fd = -1;
    while (s->n_requests < s->n_replies) {
        if (fd < 0)
            fd = accept(s->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        if (!script_read(fd, s->requests[s->n_requests], s->bodies[s->n_requests])) {
            close(fd);
            fd = -1;
            continue;
        }
        const char *reply = s->replies[s->n_requests++];
        bool silent = strcmp(reply, SCRIPT_SILENCE) == 0;
        char sink[64];
        while (silent && recv(fd, sink, sizeof sink, 0) > 0)
            ;
        send(fd, reply, silent ? 0 : strlen(reply), MSG_NOSIGNAL);
        /* `Connection: close` or no reply ends the connection */
        if (!*reply || silent || strstr(reply, "Connection: close")) {
            close(fd);
            fd = -1;
        }
    }
    if (fd >= 0)
        close(fd);
    return NULL;
}

/* Listens at a free port of this machine. ENDPOINT takes its URL. */
static int script_listen(char endpoint[64])
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n_address = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, n_address), 0);
    assert_int_equal(listen(fd, 16), 0);
    getsockname(fd, (struct sockaddr *)&address, &n_address);
    snprintf(endpoint, 64, "http://127.0.0.1:%u", (unsigned)ntohs(address.sin_port));
    return fd;
}

static void script_start(scripted_server *s, const char *const *replies, unsigned n)
{
    memset(s, 0, sizeof *s);
    s->fd = script_listen(s->endpoint);
    assert_true(n <= SCRIPT_MAX);
    s->n_replies = n;
    for (unsigned i = 0; i < n; i++)
        s->replies[i] = replies[i];
    assert_int_equal(pthread_create(&s->thread, NULL, script_serve, s), 0);
}

/* Checks that all replies were used. */
static void script_end(scripted_server *s)
{
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    assert_int_equal(s->n_requests, s->n_replies);
}

#endif
