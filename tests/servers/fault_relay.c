#include "fault_relay.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* One request on its way. */
typedef struct exchange {
    relay *r;
    fault fault;
    uint64_t random;
    http_message request;
    bool keep; /* the client's connection, for the next request */
} exchange;

static void count(exchange *x, fault f)
{
    atomic_fetch_add(&x->r->proxy->n_faults[f], 1);
}

/* Ends the client's connection, and thereby the exchange. */
static void hang_up(exchange *x, bool reset)
{
    pthread_mutex_lock(&x->r->proxy->lock);
    wire_close(&x->r->client, reset);
    pthread_mutex_unlock(&x->r->proxy->lock);
    x->keep = false;
}

static void drop_server(relay *r, bool reset)
{
    pthread_mutex_lock(&r->proxy->lock);
    wire_close(&r->server, reset);
    pthread_mutex_unlock(&r->proxy->lock);
}

/* ---- the server's side --------------------------------------------------------- */

static bool readable(int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};
    return poll(&look, 1, 0) != 0;
}

static bool connect_server(relay *r)
{
    proxy *p = r->proxy;
    /* An idle connection is readable only if it was closed. */
    if (r->server.fd >= 0 && readable(r->server.fd))
        drop_server(r, false);
    if (r->server.fd >= 0)
        return true;
    for (const struct addrinfo *a = p->server; a != NULL; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (fd < 0)
            continue;
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            int on = 1;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            pthread_mutex_lock(&p->lock);
            r->server.fd = fd;
            if (p->stopping)
                shutdown(fd, SHUT_RDWR);
            pthread_mutex_unlock(&p->lock);
            return true;
        }
        close(fd);
    }
    return false;
}

static bool send_head(wire *from, int to, const http_message *m)
{
    bool sent = wire_send(to, from->bytes + from->begin, m->head_bytes);
    from->begin += m->head_bytes;
    return sent;
}

/* ---- requests ------------------------------------------------------------------ */

/* Reads and discards the rest of the request. */
static bool drain_request(exchange *x)
{
    wire *client = &x->r->client;
    body *b = &x->request.body;
    client->begin += x->request.head_bytes;
    while (b->state != BODY_DONE) {
        if (client->begin == client->end && !wire_fill(client))
            return false;
        bool is_data;
        size_t n = body_take(b, client->bytes + client->begin,
                             client->end - client->begin, &is_data);
        if (n == 0)
            return false;
        client->begin += n;
    }
    return true;
}

typedef enum passed { PASSED, PASSED_IN_PART, NOT_PASSED } passed;

/* Passes the request's body on until the server answers. With FAULT_CUT it ends after
 * half of its bytes. */
static passed pass_request_body(exchange *x)
{
    wire *client = &x->r->client, *server = &x->r->server;
    body *b = &x->request.body;
    uint64_t limit = UINT64_MAX, n_passed = 0;
    if (x->fault == FAULT_CUT)
        limit = x->request.content_length / 2;
    while (b->state != BODY_DONE) {
        if (client->begin == client->end) {
            struct pollfd either[2] = {{.fd = client->fd, .events = POLLIN},
                                       {.fd = server->fd, .events = POLLIN}};
            if (poll(either, 2, -1) < 0)
                return NOT_PASSED;
            if (either[1].revents != 0)
                return PASSED_IN_PART;
            if (!wire_fill(client))
                return NOT_PASSED;
        }
        bool is_data;
        const char *bytes = client->bytes + client->begin;
        size_t n = body_take(b, bytes, client->end - client->begin, &is_data);
        if (n == 0)
            return NOT_PASSED;
        size_t n_sent = n_passed + n > limit ? (size_t)(limit - n_passed) : n;
        if (!wire_send(server->fd, bytes, n_sent))
            return PASSED_IN_PART; /* it may have sent the reason */
        client->begin += n;
        n_passed += n_sent;
        if (n_sent < n)
            return NOT_PASSED;
    }
    return PASSED;
}

/* Passes the request on until the server's final reply, whose head is then on the
 * server's wire. Interim replies (100 Continue) go to the client. */
static bool pass_request(exchange *x, http_message *reply)
{
    wire *client = &x->r->client, *server = &x->r->server;
    if (!connect_server(x->r) || !send_head(client, server->fd, &x->request))
        return false;
    for (;;) {
        passed done = pass_request_body(x);
        if (done == NOT_PASSED || !http_read_reply(server, x->request.method, reply))
            return false;
        if (reply->status >= 200) {
            /* Further bytes of the client are no request. */
            x->keep = x->keep && done == PASSED && !reply->close;
            return true;
        }
        if (!send_head(server, client->fd, reply))
            return false;
    }
}

/* ---- replies ------------------------------------------------------------------- */

/* The position in the reply's data at which the fault happens. */
static uint64_t place_of_fault(const exchange *x, const http_message *reply)
{
    uint64_t random = x->random >> 32;
    switch (x->fault) {
    case FAULT_TRUNCATE:
    case FAULT_STALL_REPLY:
        return reply->has_length ? reply->content_length / 2 : random % 64;
    case FAULT_FLIP:
        if (!reply->has_length)
            return random % 64;
        return reply->content_length > 0 ? random % reply->content_length : 0;
    default:
        return UINT64_MAX;
    }
}

/* Waits until the client leaves, within the limit. */
static void stall(exchange *x)
{
    /* A stalled client may still send, which must not end the wait, so its bytes are
     * read. */
    wire *client = &x->r->client;
    struct pollfd look = {.fd = client->fd, .events = POLLIN};
    while (poll(&look, 1, x->r->proxy->stall_ms) > 0) {
        client->begin = client->end = 0;
        if (!wire_fill(client))
            break;
    }
    hang_up(x, true);
}

/* Applies the fault if its position is within the N_BYTES at BYTES, which are data from
 * OFFSET on. False if that ended the exchange. */
static bool strike(exchange *x, char *bytes, size_t n_bytes, uint64_t offset, uint64_t at)
{
    if (at < offset || at - offset >= n_bytes)
        return true;
    count(x, x->fault);
    if (x->fault == FAULT_FLIP) {
        bytes[at - offset] = (char)(bytes[at - offset] ^ (1 << (x->random & 7)));
        return true;
    }
    wire_send(x->r->client.fd, bytes, (size_t)(at - offset));
    if (x->fault == FAULT_STALL_REPLY)
        stall(x);
    else
        hang_up(x, false);
    return false;
}

/* Passes the reply on, or discards it. False if the server's connection cannot be used
 * any more. */
static bool pass_reply(exchange *x, http_message *reply, reply_copy *copy)
{
    wire *server = &x->r->server;
    int client = x->fault == FAULT_LOST ? -1 : x->r->client.fd;
    uint64_t at = place_of_fault(x, reply), offset = 0;
    reply_copy_add(copy, server->bytes + server->begin, reply->head_bytes);
    if (client >= 0 && !send_head(server, client, reply)) {
        hang_up(x, false);
        return false;
    }
    if (client < 0)
        server->begin += reply->head_bytes;
    while (reply->body.state != BODY_DONE) {
        if (server->begin == server->end && !wire_fill(server)) {
            copy->whole = copy->whole && reply->body.state == BODY_UNTIL_CLOSE;
            hang_up(x, false);
            return false;
        }
        bool is_data;
        char *bytes = server->bytes + server->begin;
        size_t n = body_take(&reply->body, bytes, server->end - server->begin, &is_data);
        if (n == 0) {
            hang_up(x, false);
            return false;
        }
        reply_copy_add(copy, bytes, n);
        if (is_data && !strike(x, bytes, n, offset, at))
            return false;
        if (client >= 0 && !wire_send(client, bytes, n)) {
            hang_up(x, false);
            return false;
        }
        server->begin += n;
        offset += is_data ? n : 0;
    }
    return !reply->close;
}

static void pass_on(exchange *x)
{
    http_message reply;
    if (!pass_request(x, &reply)) {
        if (x->fault == FAULT_CUT)
            count(x, FAULT_CUT);
        drop_server(x->r, true);
        hang_up(x, true);
        return;
    }
    reply_copy copy = {.whole = reply.status == 200 && x->fault == FAULT_NONE &&
                                is_list(x->request.method, x->request.target)};
    bool keep_server = pass_reply(x, &reply, &copy);
    if (copy.whole && !reply.close && reply.body.state == BODY_DONE)
        list_memory_put(&x->r->proxy->lists, x->request.target, copy);
    else
        free(copy.bytes);
    if (x->fault == FAULT_LOST) {
        count(x, FAULT_LOST);
        hang_up(x, true);
    }
    if (!keep_server || !x->keep)
        drop_server(x->r, false);
}

/* ---- the proxy's own answers ---------------------------------------------- */

typedef struct answer {
    fault fault;
    const char *status, *code, *field; /* code NULL: no body */
} answer;

static const answer answers[] = {
    {FAULT_500, "500 Internal Server Error", "InternalError", ""},
    {FAULT_503, "503 Slow Down", "SlowDown", ""},
    {FAULT_429, "429 Too Many Requests", "TooManyRequests", "Retry-After: 1\r\n"},
    {FAULT_307, "307 Temporary Redirect", "TemporaryRedirect", "Location: "},
    {FAULT_ERROR_200, "200 OK", "InternalError", ""},
    {FAULT_204, "204 No Content", NULL, ""},
    {FAULT_412, "412 Precondition Failed", "PreconditionFailed", ""},
};

static void answer_with(exchange *x, const answer *a)
{
    char text[256], head[TARGET_BYTES + 512];
    int n_text = snprintf(text, sizeof text,
                          "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                          "<Error><Code>%s</Code><Message>by plan</Message></Error>",
                          a->code ? a->code : "");
    if (a->code == NULL)
        n_text = 0;
    bool redirects = a->fault == FAULT_307;
    /* A client that waits for 100 Continue is refused before it sends its body. */
    bool asks = x->request.expects_continue && x->request.body.state != BODY_DONE;
    if (!asks && !drain_request(x)) {
        hang_up(x, false);
        return;
    }
    int n_head = snprintf(head, sizeof head,
                          "HTTP/1.1 %s\r\nContent-Type: application/xml\r\n"
                          "Content-Length: %d\r\n%s%s%s%s\r\n",
                          a->status, n_text, a->field, redirects ? x->request.target : "",
                          redirects ? "\r\n" : "", asks ? "Connection: close\r\n" : "");
    count(x, a->fault);
    bool sent = wire_send(x->r->client.fd, head, (size_t)n_head) &&
                (strcmp(x->request.method, "HEAD") == 0 ||
                 wire_send(x->r->client.fd, text, (size_t)n_text));
    if (!sent || asks)
        hang_up(x, false);
}

static void answer_garbage(exchange *x)
{
    static const char garbage[] = "SSH-2.0-OpenSSH_9.2\r\n\r\n";
    if (drain_request(x))
        wire_send(x->r->client.fd, garbage, sizeof garbage - 1);
    count(x, FAULT_GARBAGE);
    hang_up(x, false);
}

/* True if an earlier reply was given. */
static bool answer_stale(exchange *x)
{
    size_t n_bytes = 0;
    char *reply = NULL;
    if (is_list(x->request.method, x->request.target))
        reply = list_memory_get(&x->r->proxy->lists, x->request.target, &n_bytes);
    if (reply == NULL)
        return false;
    count(x, FAULT_STALE);
    if (!drain_request(x) || !wire_send(x->r->client.fd, reply, n_bytes))
        hang_up(x, false);
    free(reply);
    return true;
}

static void do_exchange(exchange *x)
{
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        if (answers[i].fault == x->fault) {
            answer_with(x, &answers[i]);
            return;
        }
    }
    struct pollfd leaves = {.fd = x->r->client.fd, .events = 0};
    switch (x->fault) {
    case FAULT_RESET:
        count(x, FAULT_RESET);
        hang_up(x, true);
        return;
    case FAULT_STALL:
        count(x, FAULT_STALL);
        stall(x);
        return;
    case FAULT_GARBAGE:
        answer_garbage(x);
        return;
    case FAULT_STALE:
        if (!answer_stale(x))
            pass_on(x);
        return;
    case FAULT_DELAY:
        count(x, FAULT_DELAY);
        poll(&leaves, 1, x->r->proxy->delay_ms);
        pass_on(x);
        return;
    case FAULT_CUT: /* without a body there is nothing to cut */
        if (!x->request.has_length || x->request.content_length < 2)
            x->fault = FAULT_NONE;
        pass_on(x);
        return;
    default:
        pass_on(x);
        return;
    }
}

void relay_run(relay *r)
{
    exchange x = {.r = r, .keep = true};
    while (x.keep && http_read_request(&r->client, &x.request)) {
        atomic_fetch_add(&r->proxy->n_requests, 1);
        x.keep = !x.request.close;
        x.fault = fault_plan_choose(r->proxy->plan, x.request.method, x.request.target,
                                    &x.random);
        do_exchange(&x);
    }
    drop_server(r, false);
    hang_up(&x, false);
}
