/* A client that sends any bytes and reads the reply. */
#ifndef DW_TEST_HTTP_CLIENT_H
#define DW_TEST_HTTP_CLIENT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { HTTP_ROOM = 1 << 20 };

typedef struct http_reply {
    int code; /* 0: the connection was closed without an answer */
    char text[HTTP_ROOM];
    const char *body;
    size_t n_body;
} http_reply;

static int http_connect(unsigned port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    /* so that no test waits forever */
    const struct timeval limit = {.tv_sec = 300};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* The other side may close before it has read all. */
static void http_send(int fd, const char *bytes)
{
    for (size_t n = strlen(bytes); n > 0;) {
        ssize_t n_sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (n_sent <= 0)
            return;
        bytes += n_sent;
        n -= (size_t)n_sent;
    }
}

/* Reads until the other side closes. */
static void http_receive(int fd, http_reply *reply)
{
    size_t n = 0;
    for (ssize_t n_got; (n_got = recv(fd, reply->text + n, HTTP_ROOM - 1 - n, 0)) > 0;)
        n += (size_t)n_got;
    reply->text[n] = '\0';
    reply->code = 0;
    reply->body = "";
    reply->n_body = 0;
    if (sscanf(reply->text, "HTTP/1.1 %d", &reply->code) != 1)
        return;
    const char *end = strstr(reply->text, "\r\n\r\n");
    assert_non_null(end);
    reply->body = end + 4;
    reply->n_body = n - (size_t)(reply->body - reply->text);
}

/* Sends REQUEST unchanged. The server must close the connection. Returns the code. */
static inline int http_raw(unsigned port, const char *request, http_reply *reply)
{
    int fd = http_connect(port);
    http_send(fd, request);
    http_receive(fd, reply);
    close(fd);
    return reply->code;
}

/* METHOD and PATH with more header lines, each ended by CRLF, and a BODY, or NULL. */
static inline int http_ask(unsigned port, const char *method, const char *path,
                           const char *headers, const char *body, http_reply *reply)
{
    static char request[65536];
    char length[64] = "";
    if (body)
        snprintf(length, sizeof length, "Content-Length: %zu\r\n", strlen(body));
    int n = snprintf(request, sizeof request,
                     "%s %s HTTP/1.1\r\n%sConnection: close\r\n%s%s\r\n%s", method, path,
                     strstr(headers, "Host:") ? "" : "Host: localhost\r\n", headers,
                     length, body ? body : "");
    assert_true(n > 0 && (size_t)n < sizeof request);
    return http_raw(port, request, reply);
}

static inline int http_get(unsigned port, const char *path, http_reply *reply)
{
    return http_ask(port, "GET", path, "", NULL, reply);
}

/* Whether the head has a line with NAME and exactly VALUE. */
static inline bool http_has(const http_reply *reply, const char *name, const char *value)
{
    char line[1024];
    snprintf(line, sizeof line, "\r\n%s: %s\r\n", name, value);
    const char *at = strstr(reply->text, line);
    return at && at < reply->body;
}

#endif
