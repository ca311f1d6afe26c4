/* Inside the S3 driver.
 *
 *     s3.c          opening, closing; stat, remove, conditional
 *     s3_get.c      concurrent ranged reads
 *     s3_put.c      one PUT, or an upload in parts
 *     s3_list.c     listings, page by page
 *     s3_run.c      runs tasks concurrently, with retries, on the calling thread
 *     s3_judge.c    interprets a reply: done, try again, or an error
 *     s3_task.c     turns a task into an HTTP call: address, headers, signature
 */
#ifndef DW_STORE_S3_DRIVER_H
#define DW_STORE_S3_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/endpoint.h"
#include "net/http.h"
#include "net/link.h"
#include "net/retry.h"
#include "store/s3.h"
#include "store/s3_xml.h"
#include "store/sigv4.h"
#include "store/wait_report.h"

#define DW_S3_REGION_SIZE   64
#define DW_S3_ERROR_BYTES   (1u << 20)
#define DW_S3_PAGE_BYTES    (16u << 20)
#define DW_S3_BUFFER_BYTES  (48u << 20) /* for sources that are read by a function ... */
#define DW_S3_BUFFER_KEPT   (16u << 20) /* ... reserved for uploads that have none yet */
#define DW_S3_MAX_REDIRECTS 3

typedef enum dw_s3_conditional {
    DW_S3_CONDITIONAL_UNKNOWN = 0,
    DW_S3_CONDITIONAL_YES,
    DW_S3_CONDITIONAL_NO,
} dw_s3_conditional;

typedef struct dw_s3 {
    /* Set when opened. */
    char *url;            /* for messages; no slash at its end */
    dw_endpoint endpoint; /* its host is NULL for Amazon's */
    char *bucket;
    char *prefix;      /* "" or "a/b/" */
    dw_key_ring *keys; /* NULL: anonymous */
    bool path_style;
    bool is_tigris; /* its regions agree on a condition only if requests ask for it */
    bool follow_redirects;
    bool missing_is_403;
    bool is_google; /* bearer tokens, x-goog- */
    unsigned n_connections;
    unsigned n_tries;
    unsigned deadline_ms;
    uint64_t part_bytes; /* 0: adapts */
    dw_http *http;
    dw_wait_reporter waits;

    atomic_ullong n_requests, n_retries, bytes_read, bytes_written;
    atomic_llong
        clock_offset_ms; /* the server's clock minus ours, once it must be used */
    atomic_llong server_offset_ms; /* the same as last seen, for reports ... */
    atomic_bool has_clock;         /* ... if it was */
    atomic_int conditional;        /* dw_s3_conditional */
    atomic_bool bucket_seen;       /* a reply showed that the bucket exists */

    pthread_mutex_t lock; /* guards what follows */
    char region[DW_S3_REGION_SIZE];
    dw_link get_link, put_link;
    uint64_t buffer_bytes_left;
    pthread_cond_t buffer_back;
} dw_s3;

/* ---- tasks: one request with its retries ---- */

typedef enum dw_s3_task_state {
    DW_S3_FREE = 0,
    DW_S3_DUE,    /* to be sent, once ready_ms has come */
    DW_S3_FLYING, /* sent */
} dw_s3_task_state;

typedef dw_status (*dw_s3_read_fn)(void *into, const void *xml, size_t n_bytes,
                                   const char *where, dw_error *err);

typedef struct dw_s3_task {
    /* The request. Its body and the place for the reply are in `call`. */
    const char *method;
    const char *key;   /* below the store's prefix; NULL: the bucket itself */
    const char *query; /* encoded; NULL: none */
    bool create;       /* only if there is no such object yet */
    bool sign_payload;
    bool needs_etag; /* a reply without one is none */
    /* Reads the document that a good reply must be, INTO; see s3_xml.h. If that fails
     * with DW_CORRUPT, the request is sent again. NULL: any body but an <Error>. */
    dw_s3_read_fn read;
    void *into;
    unsigned max_tries; /* 0: the store's */
    unsigned deadline_ms;
    size_t number; /* for the caller */
    dw_writer query_room;
    void *buffer;

    dw_http_call call;
    uint64_t n_kept; /* bytes received by earlier tries */

    /* The state of its retries. */
    dw_s3_task_state state;
    dw_retry retry;
    uint64_t ready_ms;
    char *target; /* the target of a redirect; NULL: the bucket */
    unsigned n_redirects;
    bool region_taken;
    bool clock_taken;
    unsigned n_renewals;
    int64_t wall_ms; /* as signed */
    dw_keys *keys;   /* that it was sent with, or NULL */
    dw_s3_error error;

    /* The request as it is sent. */
    char region[DW_S3_REGION_SIZE];
    dw_writer url;
    dw_writer lines;
    const char *headers[10];
} dw_s3_task;

void dw_s3_task_release(dw_s3_task *task);

/* Fills `call`: URL, headers, signature. DW_UNAVAILABLE: there are no keys now. */
dw_status dw_s3_task_build(dw_s3 *s3, dw_s3_task *task, dw_error *err);

typedef enum dw_s3_verdict {
    DW_S3_DONE = 0,
    DW_S3_AGAIN, /* at task->ready_ms */
} dw_s3_verdict;

/* After FAULT, which kept the task without keys: sets ready_ms for another try if that
 * may help. */
dw_status dw_s3_task_lacks_keys(dw_s3 *s3, dw_s3_task *task, const dw_error *fault,
                                dw_s3_verdict *verdict, dw_error *err);

/* Interprets the reply of a task. An error is final. LINK may be NULL. */
dw_status dw_s3_task_judge(dw_s3 *s3, dw_s3_task *task, dw_link *link,
                           dw_s3_verdict *verdict, dw_error *err);

/* ---- running them ---- */

/* Fills TASK and sets *GOT. Leaves *GOT false if there is nothing to do now, and sets
 * *END if there is nothing more. */
typedef dw_status (*dw_s3_next_fn)(void *context, dw_s3_task *task, bool *got, bool *end,
                                   dw_error *err);
typedef dw_status (*dw_s3_done_fn)(void *context, dw_s3_task *task, dw_error *err);

typedef struct dw_s3_job {
    dw_link *link; /* decides how many run at once */
    const dw_progress *progress;
    uint64_t bytes_total;
    const char *key; /* for errors */
    dw_s3_next_fn next;
    dw_s3_done_fn done;
    void *context;
} dw_s3_job;

/* Returns when no task is in progress. */
dw_status dw_s3_run(dw_s3 *s3, const dw_s3_job *job, dw_error *err);

/* Runs one task. The caller releases it, and may run it again. */
dw_status dw_s3_ask(dw_s3 *s3, dw_s3_task *task, const dw_progress *progress,
                    dw_error *err);

/* ---- the rest ---- */

/* URL/KEY, for errors; KEY may be NULL. */
const char *dw_s3_where(const dw_s3 *s3, const char *key, char out[DW_ERROR_WHERE_SIZE]);

dw_status dw_s3_get(void *self, const char *key, uint64_t offset, void *into,
                    size_t n_bytes, size_t *n_read, const dw_progress *progress,
                    dw_error *err);
dw_status dw_s3_put(void *self, const char *key, const dw_source *source,
                    dw_put_mode mode, const dw_progress *progress, dw_error *err);
dw_status dw_s3_stat(void *self, const char *key, uint64_t *n_bytes, int64_t *modified_ms,
                     dw_error *err);
dw_status dw_s3_list(void *self, const char *prefix, const char *after, dw_list_fn fn,
                     void *context, dw_error *err);

/* After DW_DENIED for KEY, in ERR: changes it to DW_NOT_FOUND if a listing does not have
 * KEY.
 */
dw_status dw_s3_explain_403(dw_s3 *s3, const char *key, dw_error *err);

#endif
