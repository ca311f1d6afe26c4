/* Stores: places for the objects of a stream.
 *
 * A store maps keys to bytes: a directory, a bucket, or anything that somebody writes a
 * driver for. A stream needs little of it. An object appears complete or not at all. A
 * read that follows a finished write sees the object. For several writers, a create must
 * fail if the key is taken.
 *
 *     file:///DIR                       a directory
 *     s3://BUCKET/PREFIX                any S3
 *     gs://BUCKET/PREFIX                Google Cloud Storage
 *     hf://buckets/NAMESPACE/NAME/PATH  a Hugging Face bucket
 *     mem:NAME                          this process's memory, for tests
 *
 * Several threads may use a store at once. Every call ends: with its result, or with an
 * error after the deadline of the store.
 */
#ifndef DELTAWIRE_STORE_H
#define DELTAWIRE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "deltawire/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_store dw_store;

/* ---- opening ---------------------------------------------------------------- */

/* Keys from the caller's own source. */
typedef struct dw_credentials {
    const char *access_key, *secret_key;
    const char *session_token; /* or NULL; gs: the access token, and no keys */
    int64_t expires_ms;        /* since 1970; 0: not known */
    /* Called when the strings were copied; may be NULL. */
    void (*release)(struct dw_credentials *credentials);
    void *owner; /* for RELEASE */
} dw_credentials;

/* NULL and 0 mean the default. */
typedef struct dw_store_options {
    size_t struct_bytes;    /* set by dw_store_options_init */
    const char *endpoint;   /* s3: URL of the server. Default: AWS_ENDPOINT_URL_S3,
                               AWS_ENDPOINT_URL, the profile, Amazon;
                               gs: STORAGE_EMULATOR_HOST, Google */
    const char *region;     /* s3: default AWS_REGION, AWS_DEFAULT_REGION, the profile,
                               us-east-1 */
    const char *profile;    /* s3: default AWS_PROFILE, "default" */
    const char *addressing; /* s3: "path", "host" or "auto": host for Amazon, else path */
    unsigned n_connections; /* at most this many at once; default: 16, or fewer if the
                               link gains nothing from more */
    uint64_t part_bytes;    /* of ranged reads and multipart writes; default: adapts */
    unsigned n_tries;       /* of each request; default 10 */
    unsigned deadline_ms;   /* of each request with its retries; default 180,000 */
    /* s3, gs, hf: called from a thread that waits, if a server does not answer for 5
     * seconds, and again each time the wait has doubled. WAIT has the time in its text.
     * May be NULL. */
    void (*on_wait)(void *context, const dw_error *wait);
    void *on_wait_context;
    /* s3, gs: asks for the keys in place of the environment and files: at the first
     * request, before they expire, and after a server refused them. May be called from
     * any thread, but never twice at once. DW_UNAVAILABLE: it is called again soon. */
    dw_status (*credentials)(void *context, dw_credentials *out, dw_error *err);
    void *credentials_context;
    bool anonymous; /* s3, gs: requests are not signed; only for public buckets */
} dw_store_options;

static inline void dw_store_options_init(dw_store_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
}

/* Opens the store that URL names. Sends nothing to a server yet. A path without a scheme
 * means file://. Secrets come only from the environment and from files, and are in no
 * message. */
DW_API dw_status dw_store_open(dw_store **out, const char *url,
                               const dw_store_options *options, dw_error *err);

/* No other thread may be using the store. */
DW_API void dw_store_close(dw_store *store);

/* The URL without secrets. Lives as long as the store. */
DW_API const char *dw_store_url(const dw_store *store);

/* ---- objects ---------------------------------------------------------------- */

/* Whether KEY is valid: relative, of 1 to 512 letters, digits and `-_./=+@`, and no part
 * between slashes is empty, `.` or `..`. Other keys are DW_INVALID in every call. A
 * directory cannot hold both K and K/X, nor parts of more than 255 bytes: DW_UNSUPPORTED.
 * For drivers, and for programs that keep objects of their own in a store. */
DW_API bool dw_store_key_valid(const char *key);

/* Reads N_BYTES from OFFSET on into INTO, and sets *N_READ. It reads fewer bytes only if
 * the object ends before. A large read is split over several connections. DW_NOT_FOUND if
 * there is no such object. */
DW_API dw_status dw_store_get(dw_store *store, const char *key, uint64_t offset,
                              void *into, size_t n_bytes, size_t *n_read,
                              const dw_progress *progress, dw_error *err);

/* Bytes to be written. BYTES points to them. If it is NULL, READ copies any range of
 * them; several threads may call it at once, and again for the same range. */
typedef struct dw_source {
    uint64_t n_bytes;
    const void *bytes;
    dw_status (*read)(void *context, uint64_t offset, void *into, size_t n_bytes,
                      dw_error *err);
    void *context;
} dw_source;

typedef enum dw_put_mode {
    DW_PUT_REPLACE = 0,
    DW_PUT_CREATE = 1, /* DW_CONFLICT if the key is taken; nothing changes then */
} dw_put_mode;

/* Writes an object. After DW_OK it is complete and durable. After DW_CONFLICT and
 * DW_INVALID nothing was written. After any other error it may be there or not, because a
 * reply can be lost. So a caller that repeats a create and gets DW_CONFLICT must look if
 * the object is its own. If the store cannot create conditionally (dw_store_conditional),
 * DW_PUT_CREATE looks first and then writes: this is safe for one writer only. */
DW_API dw_status dw_store_put(dw_store *store, const char *key, const dw_source *source,
                              dw_put_mode mode, const dw_progress *progress,
                              dw_error *err);

/* The size and the time of an object; DW_NOT_FOUND if there is none. Outputs may be NULL.
 * The time is the store's, in milliseconds since 1970; 0: not known. */
DW_API dw_status dw_store_stat(dw_store *store, const char *key, uint64_t *n_bytes,
                               int64_t *modified_ms, dw_error *err);

typedef struct dw_store_entry {
    const char *key; /* borrowed for the call */
    uint64_t n_bytes;
    int64_t modified_ms; /* 0: not known */
} dw_store_entry;

/* Takes an entry. Any result but DW_OK stops the listing, which returns it. */
typedef dw_status (*dw_list_fn)(void *context, const dw_store_entry *entry,
                                dw_error *err);

/* Calls FN for every object whose key begins with PREFIX (may be "") and is greater than
 * AFTER (may be NULL), in ascending byte order of keys. FN runs on the calling thread and
 * may use the store. */
DW_API dw_status dw_store_list(dw_store *store, const char *prefix, const char *after,
                               dw_list_fn fn, void *context, dw_error *err);

/* Removes an object. It is no error if there is none. */
DW_API dw_status dw_store_remove(dw_store *store, const char *key, dw_error *err);

/* Reports if DW_PUT_CREATE is safe between several writers. Finds out by creating one
 * object twice under `probe/`, and remembers the answer until close. For programs that
 * create objects of their own in a store. */
DW_API dw_status dw_store_conditional(dw_store *store, bool *conditional, dw_error *err);

/* Counters since the store was opened. */
typedef struct dw_store_counts {
    uint64_t n_requests; /* answered or given up, with retries */
    uint64_t n_retries;
    uint64_t bytes_read;
    uint64_t bytes_written;
    uint64_t reserved[4];
} dw_store_counts;

DW_API void dw_store_get_counts(const dw_store *store, dw_store_counts *out);

/* What a store knows of its keys and its server, for reports; never a secret. Texts are
 * "" and numbers 0 for what it does not know. */
typedef struct dw_store_facts {
    char server[256]; /* its address, and how it is used */
    char keys[256];   /* where the keys in use come from, and whose they are */
    char place[256];  /* the file or address of that source, if `keys` does not name it */
    char key_end[8];  /* the last characters of the key's id */
    int64_t keys_expire_ms;  /* since 1970 */
    bool has_clock;          /* a reply had the server's time */
    int64_t clock_offset_ms; /* the server's clock minus this machine's, to a second */
    bool absent;             /* a directory that the first write makes ... */
    bool may_make;           /* ... and may make */
} dw_store_facts;

/* ---- drivers: the caller's own stores ---------------------------------------- */

/* The functions behind the calls above, with the same contracts. Keys and ranges are
 * checked before they are called. Several threads may call them at once. `self` is the
 * argument of dw_store_new. */
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
    /* May be NULL. From now on the store must hold KEY. If the directory or bucket is
     * absent, or is another one without KEY, calls fail with DW_UNAVAILABLE and create
     * nothing. If it was replaced since the last call, the first write fails, so that the
     * caller looks at it first. */
    dw_status (*require)(void *self, const char *key, dw_error *err);
    /* May be NULL. Fills OUT, which is zeroed. Sends nothing. */
    void (*facts)(void *self, dw_store_facts *out);
} dw_store_driver;

/* A store with a driver of the caller's. DRIVER and URL are copied. dw_store_close calls
 * the driver's close. If this fails, SELF stays the caller's and close is not called. */
DW_API dw_status dw_store_new(dw_store **out, const char *url,
                              const dw_store_driver *driver, void *self, dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
