#include "store/store.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "net/retry.h"
#include "store/dir.h"
#include "store/hf.h"
#include "store/memory.h"
#include "store/s3.h"
#include "inner.h"

#define FIRST_READ ((size_t)64 << 10)
#define NEXT_READ  ((size_t)1 << 20)

enum { UNKNOWN, CONDITIONAL, UNCONDITIONAL };

struct dw_store {
    dw_store_driver driver;
    void *self;
    char *url;
    atomic_int conditional; /* UNKNOWN until the first call */
    /* counters for drivers without their own */
    atomic_ullong n_requests, bytes_read, bytes_written;
};

/* ---- opening ---------------------------------------------------------------- */

/* Length of the scheme in front of a colon; 0 if URL is a plain path. */
static size_t scheme_length(const char *url)
{
    size_t n = strspn(url, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789+.-");
    bool letter = (url[0] >= 'a' && url[0] <= 'z') || (url[0] >= 'A' && url[0] <= 'Z');
    return letter && url[n] == ':' ? n : 0;
}

/* Refuses a URL with a password, because it would end up in logs and process lists. The
 * error names only the scheme. */
static dw_status refuse_password(const char *url, dw_error *err)
{
    size_t n_scheme = scheme_length(url);
    if (n_scheme == 0 || strncmp(url + n_scheme, "://", 3) != 0)
        return DW_OK;
    const char *authority = url + n_scheme + 3;
    if (!memchr(authority, '@', strcspn(authority, "/?#")))
        return DW_OK;
    return dw_fail(err, DW_INVALID, NULL,
                   "the %.*s:// URL of a store holds a user or password before '@': give "
                   "credentials in the environment or in files",
                   (int)(n_scheme < 16 ? n_scheme : 16), url);
}

dw_status dw_store_open(dw_store **out, const char *url, const dw_store_options *given,
                        dw_error *err)
{
    *out = NULL;
    dw_store_options options;
    if (!url || !url[0])
        return dw_fail(err, DW_INVALID, NULL, "the URL of the store is empty");
    dw_status status = DW_OPTIONS_TAKE(dw_store_options, &options, given, err);
    if (status == DW_OK)
        status = refuse_password(url, err);
    if (status != DW_OK)
        return status;
    size_t n_scheme = scheme_length(url);
    if (n_scheme == 0 || strncmp(url, "file:", 5) == 0)
        return dw_dir_store_open(out, url, err);
    if (strncmp(url, "mem:", 4) == 0)
        return dw_mem_store_open(out, url, err);
    if (strncmp(url, "s3://", 5) == 0)
        return dw_s3_store_open(out, url, &options, err);
    if (strncmp(url, "gs://", 5) == 0)
        return dw_gcs_store_open(out, url, &options, err);
    if (strncmp(url, "hf://", 5) == 0)
        return dw_hf_store_open(out, url, &options, err);
    /* the rest of an unknown URL may be secret */
    return dw_fail(err, DW_INVALID, NULL,
                   "no store is named by '%.*s:': it is file://, s3://, gs://, hf:// or "
                   "mem:, or a path, written ./NAME if NAME has a colon",
                   (int)(n_scheme < 64 ? n_scheme : 64), url);
}

dw_status dw_store_new(dw_store **out, const char *url, const dw_store_driver *driver,
                       void *self, dw_error *err)
{
    *out = NULL;
    dw_store_driver own = {0};
    dw_status status = dw_options_take(&own, sizeof own, driver, "dw_store_driver", err);
    if (status != DW_OK)
        return status;
    if (!url || !own.get || !own.put || !own.stat || !own.list || !own.remove)
        return dw_fail(err, DW_INVALID, NULL,
                       "a driver needs a URL and the functions get, put, stat, list and "
                       "remove");
    status = refuse_password(url, err);
    if (status != DW_OK)
        return status;
    dw_store *store = dw_alloc_zeroed(1, sizeof *store);
    char *copy = dw_copy_string(url);
    if (!store || !copy) {
        dw_free(store);
        dw_free(copy);
        return dw_fail_memory(err, url);
    }
    store->driver = own;
    store->self = self;
    store->url = copy;
    *out = store;
    return DW_OK;
}

void dw_store_limit_thread(unsigned limit_ms)
{
    dw_retry_limit_thread(limit_ms > 0 ? dw_clock_ms() + limit_ms : 0);
}

void dw_store_close(dw_store *store)
{
    if (!store)
        return;
    if (store->driver.close)
        store->driver.close(store->self);
    dw_free(store->url);
    dw_free(store);
}

const char *dw_store_url(const dw_store *store)
{
    return store->url;
}

/* ---- checking arguments ------------------------------------------------------- */

static bool is_key_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("-_./=+@", c));
}

/* Whether TEXT could be the beginning of a key. */
static bool is_key_text(const char *text)
{
    size_t n = 0;
    while (n <= DW_MAX_KEY && is_key_byte(text[n]))
        n++;
    return n <= DW_MAX_KEY && text[n] == '\0';
}

bool dw_store_key_valid(const char *key)
{
    if (!key || !key[0] || !is_key_text(key))
        return false;
    for (const char *part = key;; part++) {
        size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') ||
            (n == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        part += n;
        if (*part == '\0')
            return true;
    }
}

static dw_status check_key(const dw_store *store, const char *key, dw_error *err)
{
    if (dw_store_key_valid(key))
        return DW_OK;
    return dw_fail(err, DW_INVALID, store->url, "'%.80s' is no key: " DW_KEY_RULE,
                   key ? key : "");
}

const char *dw_store_where(const dw_store *store, const char *key, char *buf, size_t n)
{
    snprintf(buf, n, "%s/%s", store->url, key);
    return buf;
}

static dw_status bad_argument(const dw_store *store, const char *key, const char *fault,
                              dw_error *err)
{
    char where[DW_STORE_WHERE];
    return dw_fail(err, DW_INVALID, dw_store_where(store, key, where, sizeof where), "%s",
                   fault);
}

/* ---- objects ----------------------------------------------------------------- */

dw_status dw_store_get(dw_store *store, const char *key, uint64_t offset, void *into,
                       size_t n_bytes, size_t *n_read, const dw_progress *progress,
                       dw_error *err)
{
    dw_status status = check_key(store, key, err);
    if (status != DW_OK)
        return status;
    if (!n_read || (!into && n_bytes > 0))
        return bad_argument(store, key, "a get needs room for the bytes and their number",
                            err);
    if (offset > INT64_MAX || n_bytes > INT64_MAX - offset)
        return bad_argument(store, key, "the range to get ends past 2^63", err);
    *n_read = 0;
    status =
        store->driver.get(store->self, key, offset, into, n_bytes, n_read, progress, err);
    atomic_fetch_add(&store->n_requests, 1);
    if (status == DW_OK)
        atomic_fetch_add(&store->bytes_read, *n_read);
    return status;
}

dw_status dw_store_put(dw_store *store, const char *key, const dw_source *source,
                       dw_put_mode mode, const dw_progress *progress, dw_error *err)
{
    dw_status status = check_key(store, key, err);
    if (status != DW_OK)
        return status;
    if (!source || (source->n_bytes > 0 && !source->bytes && !source->read))
        return bad_argument(store, key, "a put needs bytes or a function that reads them",
                            err);
    if (source->n_bytes > INT64_MAX)
        return bad_argument(store, key, "an object has fewer than 2^63 bytes", err);
    if (mode != DW_PUT_REPLACE && mode != DW_PUT_CREATE)
        return bad_argument(store, key, "there is no such way to put", err);
    status = store->driver.put(store->self, key, source, mode, progress, err);
    atomic_fetch_add(&store->n_requests, 1);
    if (status == DW_OK)
        atomic_fetch_add(&store->bytes_written, source->n_bytes);
    return status;
}

dw_status dw_store_stat(dw_store *store, const char *key, uint64_t *n_bytes,
                        int64_t *modified_ms, dw_error *err)
{
    uint64_t any_bytes;
    int64_t any_ms;
    dw_status status = check_key(store, key, err);
    if (status != DW_OK)
        return status;
    atomic_fetch_add(&store->n_requests, 1);
    return store->driver.stat(store->self, key, n_bytes ? n_bytes : &any_bytes,
                              modified_ms ? modified_ms : &any_ms, err);
}

dw_status dw_store_remove(dw_store *store, const char *key, dw_error *err)
{
    dw_status status = check_key(store, key, err);
    if (status != DW_OK)
        return status;
    atomic_fetch_add(&store->n_requests, 1);
    return store->driver.remove(store->self, key, err);
}

bool dw_store_listed(const char *key, const char *prefix, const char *after)
{
    return strncmp(key, prefix, strlen(prefix)) == 0 &&
           (!after || strcmp(key, after) > 0);
}

/* Checks the entries of a driver, because they come from outside: a server, a directory,
 * somebody's code. */
typedef struct listing {
    const dw_store *store;
    const char *prefix, *after;
    dw_list_fn fn;
    void *context;
    char last[DW_MAX_KEY + 1];
} listing;

static dw_status pass_entry(void *context, const dw_store_entry *entry, dw_error *err)
{
    listing *l = context;
    if (!dw_store_key_valid(entry->key) ||
        !dw_store_listed(entry->key, l->prefix, l->after))
        return DW_OK;
    if (strcmp(entry->key, l->last) <= 0)
        return dw_fail(err, DW_UNSUPPORTED, l->store->url,
                       "the store lists '%s' after '%s': its lists are not in order",
                       entry->key, l->last);
    strcpy(l->last, entry->key);
    return l->fn(l->context, entry, err);
}

dw_status dw_store_list(dw_store *store, const char *prefix, const char *after,
                        dw_list_fn fn, void *context, dw_error *err)
{
    if (!fn || !prefix || !is_key_text(prefix) || (after && !is_key_text(after)))
        return dw_fail(err, DW_INVALID, store->url,
                       "a list needs a function, and prefixes and keys have at most %d "
                       "bytes of letters, digits and -_./=+@",
                       DW_MAX_KEY);
    listing l = {store, prefix, after, fn, context, ""};
    atomic_fetch_add(&store->n_requests, 1);
    return store->driver.list(store->self, prefix, after, pass_entry, &l, err);
}

dw_status dw_store_conditional(dw_store *store, bool *conditional, dw_error *err)
{
    int known = atomic_load(&store->conditional);
    if (known == UNKNOWN) {
        bool yes = true;
        if (store->driver.conditional) {
            dw_status status = store->driver.conditional(store->self, &yes, err);
            if (status != DW_OK)
                return status;
        }
        known = yes ? CONDITIONAL : UNCONDITIONAL;
        atomic_store(&store->conditional, known);
    }
    *conditional = known == CONDITIONAL;
    return DW_OK;
}

dw_status dw_store_require(dw_store *store, const char *key, dw_error *err)
{
    return store->driver.require ? store->driver.require(store->self, key, err) : DW_OK;
}

void dw_store_get_counts(const dw_store *store, dw_store_counts *out)
{
    *out = (dw_store_counts){.n_requests = atomic_load(&store->n_requests),
                             .bytes_read = atomic_load(&store->bytes_read),
                             .bytes_written = atomic_load(&store->bytes_written)};
    if (store->driver.counts)
        store->driver.counts(store->self, out);
}

void dw_store_get_facts(dw_store *store, dw_store_facts *out)
{
    *out = (dw_store_facts){0};
    if (store->driver.facts)
        store->driver.facts(store->self, out);
}

/* ---- for the layers above and for drivers ------------------------------------- */

dw_status dw_store_get_all(dw_store *store, const char *key, size_t max_bytes,
                           dw_writer *out, dw_error *err)
{
    char where[DW_STORE_WHERE];
    const size_t n_before = out->n_bytes;
    size_t n_room = FIRST_READ;
    uint8_t *piece = dw_alloc(n_room);
    dw_status status = piece ? DW_OK : dw_fail_memory(err, store->url);
    for (uint64_t offset = 0; status == DW_OK;) {
        size_t n_read;
        status = dw_store_get(store, key, offset, piece, n_room, &n_read, NULL, err);
        if (status != DW_OK)
            break;
        if (n_read > max_bytes - offset) {
            status =
                dw_fail(err, DW_CORRUPT, dw_store_where(store, key, where, sizeof where),
                        "'%s' is larger than the %zu bytes it may have", key, max_bytes);
            break;
        }
        dw_write_bytes(out, piece, n_read);
        if (out->failed)
            status = dw_fail_memory(err, store->url);
        if (status != DW_OK || n_read < n_room)
            break;
        offset += n_read;
        if (n_room < NEXT_READ) {
            dw_free(piece);
            piece = dw_alloc(n_room = NEXT_READ);
            status = piece ? DW_OK : dw_fail_memory(err, store->url);
        }
    }
    dw_free(piece);
    if (status != DW_OK)
        out->n_bytes = n_before;
    return status;
}

dw_status dw_store_put_bytes(dw_store *store, const char *key, const void *bytes,
                             size_t n_bytes, dw_put_mode mode, dw_error *err)
{
    dw_source source = {.n_bytes = n_bytes, .bytes = bytes};
    return dw_store_put(store, key, &source, mode, NULL, err);
}

dw_status dw_store_confirm(dw_store *store, const char *key, uint64_t n_bytes,
                           dw_error *err)
{
    char where[DW_STORE_WHERE];
    uint64_t found = 0;
    dw_status status = dw_store_stat(store, key, &found, NULL, err);
    if (status == DW_NOT_FOUND || (status == DW_OK && found != n_bytes))
        return dw_fail(err, DW_UNAVAILABLE,
                       dw_store_where(store, key, where, sizeof where),
                       "the store reports that it has the object, but not with its "
                       "%" PRIu64 " bytes. Try again",
                       n_bytes);
    return status;
}

dw_status dw_source_read(const dw_source *source, uint64_t offset, void *into,
                         size_t n_bytes, dw_error *err)
{
    if (n_bytes == 0)
        return DW_OK;
    if (!source->bytes)
        return source->read(source->context, offset, into, n_bytes, err);
    memcpy(into, (const uint8_t *)source->bytes + offset, n_bytes);
    return DW_OK;
}

dw_status dw_store_progress(const dw_progress *progress, uint64_t bytes_done,
                            uint64_t bytes_total, const char *where, dw_error *err)
{
    if (!progress || !progress->report ||
        progress->report(progress->context, bytes_done, bytes_total) == 0)
        return DW_OK;
    return dw_fail(err, DW_CANCELLED, where, "stopped by the caller");
}
