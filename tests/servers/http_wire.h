/* Enough of HTTP/1.1 to pass messages on one by one: it finds the ends of heads and
 * bodies. */
#ifndef DW_TESTS_HTTP_WIRE_H
#define DW_TESTS_HTTP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WIRE_BYTES = 256 * 1024 };

/* A socket and what has been read from it but not used: bytes[begin..end). */
typedef struct wire {
    int fd; /* -1: not connected */
    size_t begin, end;
    char bytes[WIRE_BYTES];
} wire;

/* Waits for more bytes. False at the end of the stream, on an error, or when full. */
bool wire_fill(wire *w);

bool wire_send(int fd, const char *bytes, size_t n_bytes);

/* Discards what was read and closes; with RESET the peer gets a reset. */
void wire_close(wire *w, bool reset);

typedef enum body_state {
    BODY_DONE,
    BODY_DATA,
    BODY_UNTIL_CLOSE,
    BODY_CHUNK_SIZE, /* and its extensions, up to the end of the line */
    BODY_CHUNK_END,  /* the line end after its bytes */
    BODY_TRAILER,
} body_state;

typedef struct body {
    body_state state;
    bool chunked;
    bool size_ended;       /* CHUNK_SIZE: only extensions follow */
    uint64_t n_bytes_left; /* DATA; CHUNK_SIZE: as read so far */
    size_t line_bytes;     /* TRAILER: of the current line */
} body;

enum { TARGET_BYTES = 4096 };

typedef struct http_message {
    size_t head_bytes; /* with the empty line, from the wire's `begin` on */
    char method[16];   /* of a request */
    char target[TARGET_BYTES];
    int status; /* of a reply */
    bool close; /* the connection ends after it */
    bool expects_continue;
    bool has_length;
    uint64_t content_length;
    body body;
} http_message;

/* Read a head, which stays on the wire; false if the stream ends or it is none. */
bool http_read_request(wire *w, http_message *out);
bool http_read_reply(wire *w, const char *method, http_message *out);

/* How many of the next N_BYTES (> 0) belong to the body and are of one kind: data or
 * framing. 0 if they are invalid. Do not call it when BODY_DONE. */
size_t body_take(body *b, const char *bytes, size_t n_bytes, bool *is_data);

#endif
