/* Stores: where the objects of a stream lie.
 *
 * A store is a flat map from keys to bytes: a directory, a bucket, or anything that
 * somebody writes a driver for. A stream asks little of it: an object appears whole or
 * not at all, a read that follows a finished write sees it, and, where more than one
 * writer is to be safe, a create that fails when the key is taken.
 *
 *     file:///DIR                       a directory
 *     s3://BUCKET/PREFIX                any S3
 *     hf://buckets/NAMESPACE/NAME/PATH  a Hugging Face bucket
 *     mem:NAME                          this process's memory, for tests
 *
 * A store may be used by several threads at once. Every call ends: with its result, or
 * with an error once the deadline of the store has passed.
 */
#ifndef DELTAWIRE_STORE_H
#define DELTAWIRE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/error.h"
#include "deltawire/progress.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_store dw_store;

/* ---- opening ---------------------------------------------------------------- */

/* Strings are borrowed for the call; NULL and 0 mean the default. */
typedef struct dw_store_options {
    const char *endpoint;   /* s3: URL of the server. Default: AWS_ENDPOINT_URL_S3,
                               AWS_ENDPOINT_URL, the profile, Amazon */
    const char *region;     /* s3: default AWS_REGION, AWS_DEFAULT_REGION, the profile,
                               us-east-1 */
    const char *profile;    /* s3: default AWS_PROFILE, "default" */
    const char *addressing; /* s3: "path", "host" or "auto": host for Amazon, else path */
    unsigned n_connections; /* at most so many at once; default: 16, fewer where the link
                               gains nothing from more */
    uint64_t part_bytes;    /* of ranged reads and multipart writes; default: adapts */
    unsigned n_tries;       /* of each request; default 10 */
    unsigned deadline_ms;   /* for each request with its retries; default 180,000 */
    /* s3, hf: called if a server does not answer for 5 seconds, and again each time the
       wait has doubled, by a thread that waits. The error says how long. */
    void (*on_wait)(void *context, const dw_error *wait);
    void *on_wait_context;
} dw_store_options;

/* Opens the store that URL names; nothing is asked of a server yet. A path without a
 * scheme means file://. OPTIONS may be NULL. Secrets come from the environment and from
 * files alone, and stand in no message. */
DW_API dw_status dw_store_open(dw_store **out, const char *url,
                               const dw_store_options *options, dw_error *err);

/* Accepts NULL. Nobody may be using it. */
DW_API void dw_store_close(dw_store *store);

/* The URL, without what is secret. Lives as long as the store. */
DW_API const char *dw_store_url(const dw_store *store);

/* ---- objects ---------------------------------------------------------------- */

/* Keys are relative, of 1 to 512 bytes out of letters, digits and `-_./=+@`; no part
 * between slashes is empty, `.` or `..`. Anything else is DW_INVALID. A directory cannot
 * hold both K and K/X, nor parts of more than 255 bytes: DW_UNSUPPORTED. */
DW_API bool dw_store_key_valid(const char *key);

/* Reads up to N_BYTES from OFFSET on into INTO, and sets *N_READ: fewer only where the
 * object ends before. A large read is split over several connections. DW_NOT_FOUND where
 * there is no such object. */
DW_API dw_status dw_store_get(dw_store *store, const char *key, uint64_t offset,
                              void *into, size_t n_bytes, size_t *n_read,
                              const dw_progress *progress, dw_error *err);

/* Bytes to be written. Either BYTES holds them, or, where it is NULL, READ copies any
 * range of them, and may be called by several threads at once, and again for the same
 * range. */
typedef struct dw_source {
    uint64_t n_bytes;
    const void *bytes;
    dw_status (*read)(void *context, uint64_t offset, void *into, size_t n_bytes,
                      dw_error *err);
    void *context;
} dw_source;

typedef enum dw_put_mode {
    DW_PUT_REPLACE = 0,
    DW_PUT_CREATE = 1, /* DW_CONFLICT, and nothing changed, where the key is taken */
} dw_put_mode;

/* Writes an object: it is there whole and durable when this returns DW_OK. After any
 * error but DW_CONFLICT and DW_INVALID it may be there or not, for a reply can be lost;
 * so a caller that gets DW_CONFLICT looks whether the object is its own. Where the store
 * cannot create conditionally (dw_store_conditional), DW_PUT_CREATE looks first and then
 * writes: good for one writer alone. */
DW_API dw_status dw_store_put(dw_store *store, const char *key, const dw_source *source,
                              dw_put_mode mode, const dw_progress *progress,
                              dw_error *err);

/* Size and time of an object, DW_NOT_FOUND where there is none. Outputs may be NULL.
 * The time is the store's own, in milliseconds since 1970, and 0 where unknown. */
DW_API dw_status dw_store_stat(dw_store *store, const char *key, uint64_t *n_bytes,
                               int64_t *modified_ms, dw_error *err);

typedef struct dw_store_entry {
    const char *key; /* borrowed for the call */
    uint64_t n_bytes;
    int64_t modified_ms; /* 0 where unknown */
} dw_store_entry;

/* Takes an entry; not DW_OK stops the listing and is returned by it. */
typedef dw_status (*dw_list_fn)(void *context, const dw_store_entry *entry,
                                dw_error *err);

/* Hands every object whose key begins with PREFIX (may be "") and is greater than AFTER
 * (may be NULL) to FN, in ascending byte order of keys. FN runs on the calling thread and
 * may use the store. */
DW_API dw_status dw_store_list(dw_store *store, const char *prefix, const char *after,
                               dw_list_fn fn, void *context, dw_error *err);

/* Removes an object. One that is not there is no error. */
DW_API dw_status dw_store_remove(dw_store *store, const char *key, dw_error *err);

/* Finds out, by creating one object twice under `probe/`, whether DW_PUT_CREATE holds
 * between several writers. The answer is kept in the store. */
DW_API dw_status dw_store_conditional(dw_store *store, bool *conditional, dw_error *err);

/* Counters since the store was opened. */
typedef struct dw_store_counts {
    uint64_t n_requests; /* that were answered or given up, retries among them */
    uint64_t n_retries;
    uint64_t bytes_read;
    uint64_t bytes_written;
} dw_store_counts;

DW_API void dw_store_get_counts(const dw_store *store, dw_store_counts *out);

/* ---- drivers: stores of one's own ------------------------------------------- */

/* The functions behind the calls above, with the same contracts; keys and ranges are
 * checked before they are called, and several threads may be in them at once. `self` is
 * what dw_store_new was given. */
typedef struct dw_store_driver {
    size_t struct_bytes; /* sizeof(dw_store_driver) */
    const char *name;    /* "file", "s3", ... */
    dw_status (*get)(void *self, const char *key, uint64_t offset, void *into,
                     size_t n_bytes, size_t *n_read, const dw_progress *progress,
                     dw_error *err);
    dw_status (*put)(void *self, const char *key, const dw_source *source,
                     dw_put_mode mode, const dw_progress *progress, dw_error *err);
    dw_status (*stat)(void *self, const char *key, uint64_t *n_bytes,
                      int64_t *modified_ms, dw_error *err);
    dw_status (*list)(void *self, const char *prefix, const char *after, dw_list_fn fn,
                      void *context, dw_error *err);
    dw_status (*remove)(void *self, const char *key, dw_error *err);
    /* NULL: always conditional */
    dw_status (*conditional)(void *self, bool *conditional, dw_error *err);
    void (*counts)(const void *self, dw_store_counts *out); /* may be NULL */
    void (*close)(void *self);                              /* may be NULL */
    /* Since 0.2, may be NULL: from now on the store must hold KEY. If the place of the
     * store is absent or is another one without KEY, calls fail with DW_UNAVAILABLE and
     * create nothing. A write that finds another place than the call before it fails
     * once, so that the caller looks at the new place first. */
    dw_status (*require)(void *self, const char *key, dw_error *err);
} dw_store_driver;

/* A store with a driver of the caller's; DRIVER must outlive it, URL is copied. On
 * failure SELF stays the caller's. */
DW_API dw_status dw_store_new(dw_store **out, const char *url,
                              const dw_store_driver *driver, void *self, dw_error *err);

/* ---- a store that fails on purpose, for tests -------------------------------- */

typedef enum dw_fault_kind {
    DW_FAULT_NONE = 0,
    DW_FAULT_FAIL,  /* DW_UNAVAILABLE, nothing done */
    DW_FAULT_LOST,  /* done, but DW_UNAVAILABLE is reported */
    DW_FAULT_DENY,  /* DW_DENIED, nothing done */
    DW_FAULT_SHORT, /* a get returns half of the bytes; a put writes nothing and fails */
    DW_FAULT_CORRUPT, /* a get returns one flipped bit; a put stores one */
    DW_FAULT_STALE,   /* a list leaves out what was put through this store since its last
                         list that was not stale, or, where that is nothing, the entries
                         of the latest time; a get or stat of what was put so finds
                         nothing */
    DW_FAULT_DELAY,   /* done after delay_ms */
} dw_fault_kind;

typedef struct dw_fault_plan {
    /* Asked before each call, on the caller's thread: OPERATION is "get", "put", "stat",
     * "list" or "remove", N counts all calls from 0. */
    dw_fault_kind (*choose)(void *context, uint64_t n, const char *operation,
                            const char *key);
    void *context;
    unsigned delay_ms;
} dw_fault_plan;

/* Wraps INNER, which stays the caller's and must outlive it. PLAN is copied. */
DW_API dw_status dw_store_new_fault(dw_store **out, dw_store *inner,
                                    const dw_fault_plan *plan, dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
