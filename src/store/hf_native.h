/* Inside the driver that reads a bucket through the Hub's own API.
 *
 *     hf_native.c     opening, closing; get and stat: GET /buckets/NS/NAME/resolve/PATH,
 *                     which redirects to plain bytes
 *     hf_list.c       GET /api/buckets/NS/NAME/tree[/DIR]?recursive=true: pages of JSON
 *     hf_request.c    one request with its retries and redirects
 */
#ifndef DW_STORE_HF_NATIVE_H
#define DW_STORE_HF_NATIVE_H

#include <stdatomic.h>

#include "net/http.h"
#include "net/retry.h"
#include "store/store.h"
#include "store/wait_report.h"

typedef struct dw_hf {
    char *url, *endpoint, *bucket;
    char *prefix;                  /* "" or "a/b/" */
    char *authorization;           /* the header line */
    char *origin;                  /* where the token is, for people */
    atomic_llong server_offset_ms; /* its clock minus ours, as last seen ... */
    atomic_bool has_clock;         /* ... if it was */
    size_t n_origin;               /* of the endpoint: https://HOST:PORT */
    unsigned n_tries, deadline_ms;
    dw_http *http;
    dw_wait_reporter waits;
    atomic_ullong n_requests, n_retries, bytes_read;
} dw_hf;

typedef struct dw_hf_request {
    dw_hf *hub;
    const char *key; /* for errors; "" for a listing */
    dw_writer url;   /* with its NUL */
    const dw_progress *progress;
    size_t n_total; /* for progress: the size of the room in CALL */

    dw_http_call call;
    dw_http_inbox inbox;
    dw_retry retry;
    dw_wait wait;
    size_t n_moved; /* when the wait last looked */
    char *target;   /* the target of a redirect; NULL: URL */
    unsigned n_redirects;
} dw_hf_request;

/* The caller fills hub, key and url, and in `call` the place for the body. It also
 * releases the request. DW_OK: the status is 2xx, or 416 for a range. */
dw_status dw_hf_ask(dw_hf_request *r, dw_error *err);
void dw_hf_request_release(dw_hf_request *r);

/* Whether URL is the Hub's: only it gets the token. */
bool dw_hf_is_hub(const dw_hf *h, const char *url);

/* URL/KEY, for errors; KEY may be "". */
const char *dw_hf_where(const dw_hf *h, const char *key, char out[DW_ERROR_WHERE_SIZE]);

dw_status dw_hf_list(void *self, const char *prefix, const char *after, dw_list_fn fn,
                     void *context, dw_error *err);

#endif
