#include "http_wire.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

bool wire_fill(wire *w)
{
    if (w->begin == w->end)
        w->begin = w->end = 0;
    if (w->begin > 0 && w->end == WIRE_BYTES) {
        memmove(w->bytes, w->bytes + w->begin, w->end - w->begin);
        w->end -= w->begin;
        w->begin = 0;
    }
    if (w->fd < 0 || w->end == WIRE_BYTES)
        return false;
    ssize_t n;
    do
        n = recv(w->fd, w->bytes + w->end, WIRE_BYTES - w->end, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return false;
    w->end += (size_t)n;
    return true;
}

bool wire_send(int fd, const char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n = send(fd, bytes, n_bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        bytes += n;
        n_bytes -= (size_t)n;
    }
    return true;
}

void wire_close(wire *w, bool reset)
{
    if (w->fd >= 0) {
        struct linger at_once = {.l_onoff = 1, .l_linger = 0};
        if (reset)
            setsockopt(w->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(w->fd);
    }
    w->fd = -1;
    w->begin = w->end = 0;
}

/* ---- heads -------------------------------------------------------------------- */

static bool read_head(wire *w, size_t *head_bytes)
{
    size_t seen = 0;
    for (;;) {
        size_t have = w->end - w->begin;
        const char *bytes = w->bytes + w->begin;
        for (size_t i = seen; i + 4 <= have; i++) {
            if (memcmp(bytes + i, "\r\n\r\n", 4) == 0) {
                *head_bytes = i + 4;
                return true;
            }
        }
        seen = have < 3 ? 0 : have - 3;
        if (!wire_fill(w))
            return false;
    }
}

/* The value of a field, if LINE is of that name; it ends at END. */
static const char *field(const char *line, const char *end, const char *name)
{
    size_t n = strlen(name);
    if ((size_t)(end - line) <= n || strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    line += n + 1;
    while (line < end && (*line == ' ' || *line == '\t'))
        line++;
    return line;
}

static bool value_is(const char *value, const char *end, const char *want)
{
    size_t n = strlen(want);
    return (size_t)(end - value) >= n && strncasecmp(value, want, n) == 0;
}

static void read_fields(const char *line, const char *end, http_message *out)
{
    while (line < end) {
        const char *line_end = memchr(line, '\r', (size_t)(end - line));
        if (line_end == NULL)
            return;
        const char *value;
        if ((value = field(line, line_end, "Content-Length")) != NULL) {
            out->has_length = true;
            out->content_length = strtoull(value, NULL, 10); /* ends at the CR */
        } else if ((value = field(line, line_end, "Transfer-Encoding")) != NULL) {
            out->body.chunked = value_is(value, line_end, "chunked");
        } else if ((value = field(line, line_end, "Connection")) != NULL) {
            out->close = value_is(value, line_end, "close");
        } else if ((value = field(line, line_end, "Expect")) != NULL) {
            out->expects_continue = value_is(value, line_end, "100-continue");
        }
        line = line_end + 2;
    }
}

static void start_body(http_message *m)
{
    if (m->body.chunked) {
        m->body.state = BODY_CHUNK_SIZE;
        m->has_length = false;
    } else if (m->has_length) {
        m->body.n_bytes_left = m->content_length;
        m->body.state = m->content_length > 0 ? BODY_DATA : BODY_DONE;
    }
}

/* Copies the word at *AT, and steps over it and one space. */
static bool copy_word(const char **at, const char *end, char *into, size_t n_bytes)
{
    size_t n = 0;
    while (*at + n < end && (*at)[n] != ' ' && (*at)[n] != '\r')
        n++;
    if (n == 0 || n >= n_bytes)
        return false;
    memcpy(into, *at, n);
    into[n] = '\0';
    *at += n + ((*at)[n] == ' ' ? 1 : 0);
    return true;
}

bool http_read_request(wire *w, http_message *out)
{
    memset(out, 0, sizeof *out);
    if (!read_head(w, &out->head_bytes))
        return false;
    const char *at = w->bytes + w->begin;
    const char *end = at + out->head_bytes - 2;
    if (!copy_word(&at, end, out->method, sizeof out->method) ||
        !copy_word(&at, end, out->target, sizeof out->target))
        return false;
    const char *line_end = memchr(at, '\n', (size_t)(end - at));
    if (line_end != NULL)
        read_fields(line_end + 1, end, out);
    start_body(out);
    return true;
}

bool http_read_reply(wire *w, const char *method, http_message *out)
{
    memset(out, 0, sizeof *out);
    if (!read_head(w, &out->head_bytes))
        return false;
    const char *at = w->bytes + w->begin;
    const char *end = at + out->head_bytes - 2;
    char version[16], status[8];
    if (!copy_word(&at, end, version, sizeof version) ||
        !copy_word(&at, end, status, sizeof status))
        return false;
    out->status = (int)strtol(status, NULL, 10);
    const char *line_end = memchr(at, '\n', (size_t)(end - at));
    if (line_end != NULL)
        read_fields(line_end + 1, end, out);
    if (strcmp(method, "HEAD") == 0 || out->status < 200 || out->status == 204 ||
        out->status == 304)
        return true; /* no body, whatever Content-Length says */
    start_body(out);
    if (!out->body.chunked && !out->has_length) {
        out->body.state = BODY_UNTIL_CLOSE;
        out->close = true;
    }
    return true;
}

/* ---- bodies ------------------------------------------------------------------- */

static bool take_size_byte(body *b, char c)
{
    if (c == '\n') {
        b->state = b->n_bytes_left > 0 ? BODY_DATA : BODY_TRAILER;
        b->size_ended = false;
        b->line_bytes = 0;
        return true;
    }
    if (b->size_ended || !isxdigit((unsigned char)c)) {
        b->size_ended = true;
        return true;
    }
    if (b->n_bytes_left >> 59 != 0)
        return false;
    char digit[2] = {c, '\0'};
    b->n_bytes_left = b->n_bytes_left * 16 + strtoul(digit, NULL, 16);
    return true;
}

static bool take_framing_byte(body *b, char c)
{
    switch (b->state) {
    case BODY_CHUNK_SIZE:
        return take_size_byte(b, c);
    case BODY_CHUNK_END:
        if (c == '\n')
            b->state = BODY_CHUNK_SIZE;
        return c == '\n' || c == '\r';
    default: /* the trailer ends with an empty line */
        if (c == '\n') {
            if (b->line_bytes == 0)
                b->state = BODY_DONE;
            b->line_bytes = 0;
        } else if (c != '\r') {
            b->line_bytes++;
        }
        return true;
    }
}

size_t body_take(body *b, const char *bytes, size_t n_bytes, bool *is_data)
{
    *is_data = b->state == BODY_DATA || b->state == BODY_UNTIL_CLOSE;
    if (b->state == BODY_UNTIL_CLOSE)
        return n_bytes;
    if (b->state == BODY_DATA) {
        size_t n = b->n_bytes_left < n_bytes ? (size_t)b->n_bytes_left : n_bytes;
        b->n_bytes_left -= n;
        if (b->n_bytes_left == 0)
            b->state = b->chunked ? BODY_CHUNK_END : BODY_DONE;
        return n;
    }
    size_t n = 0;
    while (n < n_bytes && b->state != BODY_DONE && b->state != BODY_DATA) {
        if (!take_framing_byte(b, bytes[n]))
            return 0;
        n++;
    }
    return n;
}
