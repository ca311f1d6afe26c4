/* Concurrent HTTP requests: threads that run libcurl's multi interface.
 *
 *     caller                        I/O thread (one or two)
 *     dw_http_submit(call) ──────►  queue ─► at most so many under way
 *     dw_http_wait(inbox)  ◄──────  finished calls, in the order they end
 *
 * The bytes of a reply go directly to the caller's memory. This module does not retry and
 * follows no redirects: the caller does, because it knows what a reply means.
 */
#ifndef DW_NET_HTTP_H
#define DW_NET_HTTP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "deltawire/base.h"

/* Starts libcurl, once in a process; dw_http_open does it itself. */
dw_status dw_http_init(dw_error *err);

typedef struct dw_http dw_http;

/* At most N_CONNECTIONS at once, at least 1. */
dw_status dw_http_open(dw_http **out, unsigned n_connections, dw_error *err);

/* Accepts NULL. No call may be in progress. */
void dw_http_close(dw_http *http);

/* Takes finished calls. */
typedef struct dw_http_inbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct dw_http_call *first, *last;
} dw_http_inbox;

dw_status dw_http_inbox_init(dw_http_inbox *inbox, dw_error *err);
void dw_http_inbox_release(dw_http_inbox *inbox);

typedef enum dw_http_result {
    DW_HTTP_ANSWERED = 0, /* `status` and all of the body are there */
    DW_HTTP_BROKEN,       /* no answer, or half of one: see `problem`; try again */
    DW_HTTP_REFUSED,      /* an answer that cannot be right: see `problem`; try again */
    DW_HTTP_HOPELESS,     /* see `problem`; another try would fail in the same way */
    DW_HTTP_CANCELLED,
} dw_http_result;

#define DW_HTTP_PROBLEM_SIZE 256 /* libcurl's minimum */

/* One request and its reply. From its submission until it comes back through the inbox,
 * it and everything it points to belong to the engine. */
typedef struct dw_http_call {
    /* The request. */
    const char *method;
    const char *url;
    const char *const *headers; /* whole lines; `If-None-Match: *` */
    size_t n_headers;
    const void *send; /* the body of PUT and POST */
    size_t n_send;
    unsigned timeout_ms; /* for the whole call */
    bool direct;         /* never through a proxy: for addresses of this machine */
    unsigned stall_s; /* the connection counts as broken after so long without a byte */

    /* What to do with the body of a 2xx reply: the bytes OFFSET.. of the object go
     * INTO, at most N_INTO of them. NULL, or another status: it goes into `text`. */
    void *into;
    size_t n_into;
    uint64_t offset;
    size_t max_text; /* a longer one is DW_HTTP_REFUSED */

    /* The reply. */
    dw_http_result result;
    int status;
    size_t n_received;     /* valid bytes in INTO, whatever the result */
    uint64_t object_bytes; /* the size of the whole object, if a 200 or 206 went INTO */
    dw_writer text;
    dw_writer head;     /* the header lines, each ended by a NUL */
    char *redirect_url; /* absolute, for a 3xx; else NULL */
    char problem[DW_HTTP_PROBLEM_SIZE];

    bool sent_twice; /* a kept connection was dead, perhaps after the server got the whole
                        request */
    atomic_size_t n_moved; /* bytes of the body sent or received so far */

    /* For the engine only. */
    dw_http_inbox *inbox;
    struct dw_http_call *next;
    struct dw_http_thread *thread;
    struct dw_http_sockets *sockets;
    void *easy;
    void *header_list;
    char curl_text[DW_HTTP_PROBLEM_SIZE];
    size_t n_skipped; /* of a 200 in reply to a range */
    size_t n_sent;
    bool head_ended;
    bool body_begun;
    bool enough;
    bool cancel;
} dw_http_call;

/* Empties the reply. Call it before each submission; before the first one the call is
 * zeroed. */
void dw_http_call_reset(dw_http_call *call);
void dw_http_call_release(dw_http_call *call);

void dw_http_submit(dw_http *http, dw_http_call *call, dw_http_inbox *inbox);

/* The next finished call, or NULL when TIMEOUT_MS have passed. */
dw_http_call *dw_http_wait(dw_http_inbox *inbox, uint64_t timeout_ms);

/* Cancels a call: it soon arrives as DW_HTTP_CANCELLED or finished. */
void dw_http_cancel(dw_http_call *call);

/* The value of a header of the reply, or NULL; NAME in any case. */
const char *dw_http_header(const dw_http_call *call, const char *name);

/* The server's clock minus ours, by a reply that has just come; false if it has no Date.
 */
bool dw_http_clock_offset(const dw_http_call *call, int64_t *offset_ms);

/* Parses "bytes 5-9/20" to 5, 9, 20. False for anything else, including `*`. */
bool dw_http_parse_content_range(const char *text, uint64_t *first, uint64_t *last,
                                 uint64_t *total);

#endif
