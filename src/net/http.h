/* HTTP requests side by side: threads that run libcurl's multi interface.
 *
 *     caller                        I/O thread (one or two)
 *     dw_http_submit(call) ──────►  queue ─► at most so many under way
 *     dw_http_wait(inbox)  ◄──────  finished calls, in the order they end
 *
 * Bytes of a reply land where the caller wants them, with no stop between. Nothing is
 * retried and no redirect followed here: that is for those who know what a reply means.
 */
#ifndef DW_NET_HTTP_H
#define DW_NET_HTTP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "deltawire/error.h"

/* Starts libcurl, once in a process; dw_http_open does it itself. */
dw_status dw_http_init(dw_error *err);

typedef struct dw_http dw_http;

/* At most N_CONNECTIONS at once, at least 1. */
dw_status dw_http_open(dw_http **out, unsigned n_connections, dw_error *err);

/* Accepts NULL. No call may be under way. */
void dw_http_close(dw_http *http);

/* Where finished calls arrive. */
typedef struct dw_http_inbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct dw_http_call *first, *last;
} dw_http_inbox;

dw_status dw_http_inbox_init(dw_http_inbox *inbox, dw_error *err);
void dw_http_inbox_release(dw_http_inbox *inbox);

typedef enum dw_http_result {
    DW_HTTP_ANSWERED = 0, /* `status` and all of the body are there */
    DW_HTTP_BROKEN,       /* no answer, or half of one: `problem` says why; try again */
    DW_HTTP_REFUSED,      /* an answer that cannot be right: `problem`; try again */
    DW_HTTP_HOPELESS,     /* `problem`, and it will be the same next time */
    DW_HTTP_CANCELLED,
} dw_http_result;

#define DW_HTTP_PROBLEM_SIZE 256 /* as libcurl demands of its texts */

/* One request and its reply. From submission until it has come back through the inbox it
 * belongs to the engine, with all that it points at. */
typedef struct dw_http_call {
    /* The request. */
    const char *method;
    const char *url;
    const char *const *headers; /* whole lines; `If-None-Match: *` */
    size_t n_headers;
    const void *send; /* of PUT and POST */
    size_t n_send;
    unsigned timeout_ms; /* for all of it */
    unsigned stall_s;    /* so long without one byte is a broken connection */

    /* What to do with the body of a 2xx reply: the bytes OFFSET.. of the object go
     * INTO, at most N_INTO of them. NULL, or another status: it goes into `text`. */
    void *into;
    size_t n_into;
    uint64_t offset;
    size_t max_text; /* a longer one is DW_HTTP_REFUSED */

    /* The reply. */
    dw_http_result result;
    int status;
    size_t n_received;     /* bytes in INTO that are right, whatever the result */
    uint64_t object_bytes; /* of the whole object, if a 200 or 206 went INTO */
    dw_writer text;
    dw_writer head;     /* the header lines, each ended by a NUL */
    char *redirect_url; /* absolute, of a 3xx; NULL otherwise */
    char problem[DW_HTTP_PROBLEM_SIZE];

    bool sent_twice; /* a kept connection was dead, perhaps after the server had all */
    atomic_size_t n_moved; /* bytes of the body sent or received so far */

    /* The engine's own. */
    dw_http_inbox *inbox;
    struct dw_http_call *next;
    struct dw_http_thread *thread;
    struct dw_http_sockets *sockets;
    void *easy;
    void *header_list;
    char curl_text[DW_HTTP_PROBLEM_SIZE];
    size_t n_skipped; /* of a 200 that was asked for a range */
    size_t n_sent;
    bool head_ended;
    bool body_begun;
    bool enough;
    bool cancel;
} dw_http_call;

/* Empties the reply, for a first submission (of a zeroed call) or another one. */
void dw_http_call_reset(dw_http_call *call);
void dw_http_call_release(dw_http_call *call);

void dw_http_submit(dw_http *http, dw_http_call *call, dw_http_inbox *inbox);

/* The next finished call, or NULL when TIMEOUT_MS have passed. */
dw_http_call *dw_http_wait(dw_http_inbox *inbox, uint64_t timeout_ms);

/* Asks for an end: the call arrives soon, as DW_HTTP_CANCELLED or finished. */
void dw_http_cancel(dw_http_call *call);

/* The value of a header of the reply, or NULL; NAME in any case. */
const char *dw_http_header(const dw_http_call *call, const char *name);

/* "bytes 5-9/20" to 5, 9, 20; false for anything else, `*` among it. */
bool dw_http_parse_content_range(const char *text, uint64_t *first, uint64_t *last,
                                 uint64_t *total);

#endif
