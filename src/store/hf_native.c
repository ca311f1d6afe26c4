/* Reading a bucket through the Hub's own API.
 *
 *     get, stat    GET /buckets/NS/NAME/resolve/PATH, which redirects to plain bytes
 *     list         GET /api/buckets/NS/NAME/tree[/DIR]?recursive=true, pages of JSON
 */
#include <jansson.h>
#include <openssl/crypto.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "store/hf.h"
#include "store/http.h"
#include "store/retry.h"
#include "store/s3_xml.h"
#include "store/sigv4.h"
#include "store/store.h"

enum {
    N_CONNECTIONS = 16,
    MAX_CONNECTIONS = 256,
    MAX_REDIRECTS = 3,
    PAGE_BYTES = 16 << 20,
    MAX_PAGES = 100000,
    IDLE_MS = 100,
    STALL_S = 20,
};

typedef struct hf {
    char *url, *endpoint, *bucket;
    char *prefix;        /* "" or "a/b/" */
    char *authorization; /* the header line */
    size_t n_origin;     /* of the endpoint: https://HOST:PORT */
    unsigned n_tries, deadline_ms;
    dw_http *http;
    atomic_ullong n_requests, n_retries, bytes_read;
} hf;

static const char *where_of(const hf *h, const char *key, char out[DW_ERROR_WHERE_SIZE])
{
    snprintf(out, DW_ERROR_WHERE_SIZE, "%s%s%s", h->url, *key ? "/" : "", key);
    return out;
}

/* ---- one request, with its retries and redirects ---- */

typedef struct request {
    hf *hub;
    const char *key; /* for errors; "" for a listing */
    dw_writer url;   /* with its NUL */
    const dw_progress *progress;
    size_t n_total; /* for progress: what CALL was given room for */

    dw_http_call call;
    dw_http_inbox inbox;
    dw_retry retry;
    char *target; /* where a redirect pointed; NULL: URL */
    unsigned n_redirects;
} request;

static void release_request(request *r)
{
    dw_http_call_release(&r->call);
    dw_writer_release(&r->url);
    dw_free(r->target);
}

/* The token is for the Hub alone. */
static bool is_hub(const hf *h, const char *url)
{
    return strncasecmp(url, h->endpoint, h->n_origin) == 0 &&
           strchr("/?#", url[h->n_origin]) != NULL;
}

static dw_status report(const request *r, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    uint64_t n_done = atomic_load(&r->call.n_moved);
    return dw_store_progress(r->progress, n_done < r->n_total ? n_done : r->n_total,
                             r->n_total, where_of(r->hub, r->key, where), err);
}

static dw_status send_once(request *r, dw_error *err)
{
    hf *h = r->hub;
    dw_http_call *call = &r->call;
    char range[64];
    const char *lines[2];
    call->method = "GET";
    call->url = r->target ? r->target : (const char *)r->url.bytes;
    call->headers = lines;
    call->n_headers = 0;
    if (call->into) {
        snprintf(range, sizeof range, "Range: bytes=%llu-%llu",
                 (unsigned long long)call->offset,
                 (unsigned long long)(call->offset + call->n_into - 1));
        lines[call->n_headers++] = range;
    }
    if (is_hub(h, call->url))
        lines[call->n_headers++] = h->authorization;
    call->stall_s = STALL_S;
    call->max_text = PAGE_BYTES;
    uint64_t left_ms = dw_retry_left_ms(&r->retry, dw_clock_ms());
    call->timeout_ms = left_ms > 0 ? (unsigned)left_ms : 1;
    dw_http_call_reset(call);
    dw_status status = report(r, err);
    if (status != DW_OK)
        return status;
    dw_http_submit(h->http, call, &r->inbox);
    while (!dw_http_wait(&r->inbox, IDLE_MS)) {
        if (status == DW_OK) {
            status = report(r, err);
            if (status != DW_OK)
                dw_http_cancel(call);
        }
    }
    atomic_fetch_add(&h->n_requests, 1);
    atomic_fetch_add(&h->bytes_read, call->n_received + call->text.n_bytes);
    return status;
}

/* `RateLimit: "api";r=0;t=55`: nothing more for 55 seconds. */
static uint64_t rate_limit_ms(const char *text)
{
    const char *seconds = text ? strstr(text, ";t=") : NULL;
    unsigned long long n = seconds ? strtoull(seconds + 3, NULL, 10) : 0;
    return n < 86400 ? n * 1000 : 86400000;
}

static dw_status wait_before_next(request *r, const char *reason, dw_error *err)
{
    const dw_http_call *call = &r->call;
    uint64_t server_ms =
        dw_retry_after_ms(dw_http_header(call, "retry-after"), dw_wall_clock_ms());
    uint64_t limit_ms =
        call->status == 429 ? rate_limit_ms(dw_http_header(call, "ratelimit")) : 0;
    uint32_t roll = (uint32_t)dw_random_below((uint64_t)UINT32_MAX + 1);
    uint64_t now_ms = dw_clock_ms(), wait_ms;
    char where[DW_ERROR_WHERE_SIZE];
    if (!dw_retry_again(&r->retry, now_ms, server_ms > limit_ms ? server_ms : limit_ms,
                        roll, &wait_ms))
        return dw_fail(err, DW_UNAVAILABLE, where_of(r->hub, r->key, where),
                       "failed after %u %s, the last with: %s", r->retry.n_tries,
                       r->retry.n_tries == 1 ? "try" : "tries", reason);
    atomic_fetch_add(&r->hub->n_retries, 1);
    dw_free(r->target);
    r->target = NULL; /* such addresses expire */
    r->n_redirects = 0;
    dw_status status = DW_OK;
    while (status == DW_OK && dw_clock_ms() < now_ms + wait_ms) {
        uint64_t left_ms = now_ms + wait_ms - dw_clock_ms();
        dw_sleep_ms(left_ms < IDLE_MS ? left_ms : IDLE_MS);
        status = report(r, err);
    }
    return status;
}

static bool follow_redirect(request *r)
{
    const char *to = r->call.redirect_url;
    if (!to || r->n_redirects >= MAX_REDIRECTS)
        return false;
    bool secure = strncasecmp(r->hub->endpoint, "https://", 8) == 0;
    if (strncasecmp(to, "https://", 8) != 0 &&
        (secure || strncasecmp(to, "http://", 7) != 0))
        return false;
    r->n_redirects++;
    dw_free(r->target);
    r->target = r->call.redirect_url; /* takes */
    r->call.redirect_url = NULL;
    return true;
}

static dw_status fail_final(const request *r, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    where_of(r->hub, r->key, where);
    int status = r->call.status;
    if (status == 404)
        return dw_fail(err, DW_NOT_FOUND, where, "the Hub has no such %s",
                       *r->key ? "object" : "bucket, or the token may not see it");
    if (status == 401 || status == 403)
        return dw_fail(err, DW_DENIED, where,
                       "the Hub does not let this token read here (%d); check HF_TOKEN "
                       "and its rights",
                       status);
    return dw_fail(err, DW_IO, where, "the Hub answered with %d", status);
}

/* Sets *AGAIN, or judges the reply for good. */
static dw_status judge(request *r, bool *again, dw_error *err)
{
    dw_http_call *call = &r->call;
    char where[DW_ERROR_WHERE_SIZE], reason[64];
    *again = true;
    if (call->result == DW_HTTP_HOPELESS)
        return dw_fail(err, DW_UNAVAILABLE, where_of(r->hub, r->key, where), "%s",
                       call->problem);
    if (call->result != DW_HTTP_ANSWERED)
        return wait_before_next(r, call->problem, err);
    if (call->status / 100 == 3 && follow_redirect(r))
        return DW_OK;
    if (dw_retry_judge(call->status, "") != DW_RETRY_FINAL) {
        snprintf(reason, sizeof reason, "status %d", call->status);
        return wait_before_next(r, reason, err);
    }
    *again = false;
    if (call->status / 100 == 2 || (call->status == 416 && call->into))
        return DW_OK;
    return fail_final(r, err);
}

/* The caller has filled URL and where the body goes, and releases R. */
static dw_status ask(request *r, dw_error *err)
{
    if (r->url.failed)
        return dw_fail_memory(err, r->hub->url);
    dw_status status = dw_http_inbox_init(&r->inbox, err);
    if (status != DW_OK)
        return status;
    dw_retry_start(&r->retry, r->hub->n_tries, r->hub->deadline_ms, dw_clock_ms());
    bool again = true;
    while (status == DW_OK && again) {
        status = send_once(r, err);
        if (status == DW_OK)
            status = judge(r, &again, err);
    }
    dw_http_inbox_release(&r->inbox);
    return status;
}

/* ---- get and stat ---- */

static dw_status ask_object(request *r, const char *key, uint64_t offset, void *into,
                            size_t n_bytes, dw_error *err)
{
    const hf *h = r->hub;
    r->key = key;
    dw_write_text(&r->url, h->endpoint);
    dw_write_text(&r->url, "/buckets/");
    dw_write_text(&r->url, h->bucket);
    dw_write_text(&r->url, "/resolve/");
    dw_percent_encode(&r->url, h->prefix, true);
    dw_percent_encode(&r->url, key, true);
    dw_write_u8(&r->url, 0);
    r->call.into = into;
    r->call.n_into = r->n_total = n_bytes;
    r->call.offset = offset;
    return ask(r, err);
}

static dw_status hf_get(void *self, const char *key, uint64_t offset, void *into,
                        size_t n_bytes, size_t *n_read, const dw_progress *progress,
                        dw_error *err)
{
    uint8_t none; /* a read of nothing still says whether the object is there */
    request r = {.hub = self, .progress = progress};
    dw_status status = ask_object(&r, key, n_bytes ? offset : 0, n_bytes ? into : &none,
                                  n_bytes ? n_bytes : 1, err);
    if (status == DW_OK)
        *n_read = r.call.status == 416 || n_bytes == 0 ? 0 : r.call.n_received;
    release_request(&r);
    return status;
}

/* By reading one byte: that works behind redirects too, whose addresses are often good
 * for GET alone. An object without a first byte is empty. */
static dw_status hf_stat(void *self, const char *key, uint64_t *n_bytes,
                         int64_t *modified_ms, dw_error *err)
{
    uint8_t first;
    request r = {.hub = self};
    dw_status status = ask_object(&r, key, 0, &first, 1, err);
    bool empty = r.call.status == 416;
    char where[DW_ERROR_WHERE_SIZE];
    if (status == DW_OK && !empty && r.call.object_bytes == UINT64_MAX)
        status = dw_fail(err, DW_CORRUPT, where_of(r.hub, key, where),
                         "the server does not say how long the object is");
    if (status == DW_OK && n_bytes)
        *n_bytes = empty ? 0 : r.call.object_bytes;
    if (status == DW_OK && modified_ms) {
        const char *text = dw_http_header(&r.call, "last-modified");
        time_t when = text ? curl_getdate(text, NULL) : -1;
        *modified_ms = when > 0 ? (int64_t)when * 1000 : 0;
    }
    release_request(&r);
    return status;
}

/* ---- list ---- */

typedef struct listing {
    hf *hub;
    const char *prefix, *after;
    dw_s3_list_entry *entries;
    size_t n_entries, n_room;
    char *next; /* the next page's address; NULL: the first one, or no more */
} listing;

static dw_status fail_page(const listing *l, const char *fault, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, l->hub->url, "the Hub's listing %s", fault);
}

static dw_status take_item(listing *l, json_t *item, dw_error *err)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *path = json_string_value(json_object_get(item, "path"));
    json_t *size = json_object_get(item, "size");
    const char *time = json_string_value(json_object_get(item, "uploadedAt"));
    if (!type || !path)
        return fail_page(l, "has an entry without type or path", err);
    size_t n_prefix = strlen(l->hub->prefix);
    if (strcmp(type, "file") != 0 || strncmp(path, l->hub->prefix, n_prefix) != 0 ||
        !dw_store_key_valid(path + n_prefix) ||
        !dw_store_listed(path + n_prefix, l->prefix, l->after))
        return DW_OK;
    if (!json_is_integer(size) || json_integer_value(size) < 0)
        return fail_page(l, "has a file without a size", err);
    void *entries = l->entries;
    char *key = dw_copy_string(path + n_prefix);
    if (!key || !dw_grow_array(&entries, &l->n_room, l->n_entries, sizeof *l->entries)) {
        dw_free(key);
        return dw_fail_memory(err, l->hub->url);
    }
    l->entries = entries;
    l->entries[l->n_entries++] = (dw_s3_list_entry){
        key, (uint64_t)json_integer_value(size), time ? dw_s3_time_parse(time) : 0};
    return DW_OK;
}

static dw_status take_page(listing *l, const dw_http_call *call, dw_error *err)
{
    json_error_t fault;
    json_t *page = json_loadb(call->text.bytes ? (const char *)call->text.bytes : "",
                              call->text.n_bytes, JSON_REJECT_DUPLICATES, &fault);
    if (!page && json_error_code(&fault) == json_error_out_of_memory)
        return dw_fail_memory(err, l->hub->url);
    dw_status status =
        json_is_array(page) ? DW_OK : fail_page(l, "is not a JSON array", err);
    for (size_t i = 0; status == DW_OK && i < json_array_size(page); i++)
        status = take_item(l, json_array_get(page, i), err);
    json_decref(page);
    return status;
}

/* `<https://HUB/...>; rel="next"`: never to another host, for the token goes along. */
static dw_status take_link(listing *l, const char *text, dw_error *err)
{
    dw_free(l->next);
    l->next = NULL;
    const char *rel = text ? strstr(text, "rel=\"next\"") : NULL;
    if (!rel)
        return DW_OK;
    const char *start = rel;
    while (start > text && *start != '<')
        start--;
    size_t n = strcspn(start, ">");
    if (*start != '<' || start + n > rel)
        return fail_page(l, "has a Link that cannot be read", err);
    l->next = dw_copy_string(start + 1);
    if (!l->next)
        return dw_fail_memory(err, l->hub->url);
    l->next[n - 1] = '\0';
    return is_hub(l->hub, l->next) ? DW_OK : fail_page(l, "goes on at another host", err);
}

/* The deepest directory that holds all keys with the prefix. */
static void write_tree_url(const listing *l, bool *is_root, dw_writer *out)
{
    const hf *h = l->hub;
    dw_write_text(out, h->endpoint);
    dw_write_text(out, "/api/buckets/");
    dw_write_text(out, h->bucket);
    dw_write_text(out, "/tree");
    dw_writer dir = {0};
    dw_write_text(&dir, h->prefix);
    const char *slash = strrchr(l->prefix, '/');
    dw_write_bytes(&dir, l->prefix, slash ? (size_t)(slash - l->prefix) + 1 : 0);
    *is_root = dir.n_bytes == 0;
    dw_write_u8(&dir, 0);
    if (dir.failed)
        out->failed = true;
    if (!dir.failed && !*is_root) {
        dir.bytes[dir.n_bytes - 2] = '\0'; /* the slash at its end */
        dw_write_u8(out, '/');
        dw_percent_encode(out, (const char *)dir.bytes, true);
    }
    dw_writer_release(&dir);
    dw_write_text(out, "?recursive=true");
    dw_write_u8(out, 0);
}

static dw_status fetch_all(listing *l, dw_error *err)
{
    bool is_root = false;
    for (unsigned n_pages = 0; n_pages < MAX_PAGES; n_pages++) {
        request r = {.hub = l->hub, .key = ""};
        if (l->next)
            dw_write_bytes(&r.url, l->next, strlen(l->next) + 1);
        else
            write_tree_url(l, &is_root, &r.url);
        dw_status status = ask(&r, err);
        /* a directory exists only while something lies in it */
        bool nothing = status == DW_NOT_FOUND && !is_root && n_pages == 0;
        if (status == DW_OK)
            status = take_page(l, &r.call, err);
        if (status == DW_OK)
            status = take_link(l, dw_http_header(&r.call, "link"), err);
        release_request(&r);
        if (nothing)
            return DW_OK;
        if (status != DW_OK || !l->next)
            return status;
    }
    return fail_page(l, "does not come to an end", err);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const dw_s3_list_entry *)a)->key, ((const dw_s3_list_entry *)b)->key);
}

/* The Hub promises no order, so all of it is read before the first is handed over. */
static dw_status hf_list(void *self, const char *prefix, const char *after, dw_list_fn fn,
                         void *context, dw_error *err)
{
    listing l = {.hub = self, .prefix = prefix, .after = after};
    dw_status status = fetch_all(&l, err);
    if (status == DW_OK && l.n_entries > 0)
        qsort(l.entries, l.n_entries, sizeof *l.entries, compare_keys);
    for (size_t i = 0; status == DW_OK && i < l.n_entries; i++) {
        const dw_s3_list_entry *e = &l.entries[i];
        if (i > 0 && strcmp(e->key, l.entries[i - 1].key) == 0)
            continue; /* pages may overlap when the bucket changes between them */
        status = fn(context, &(dw_store_entry){e->key, e->n_bytes, e->modified_ms}, err);
    }
    for (size_t i = 0; i < l.n_entries; i++)
        dw_free(l.entries[i].key);
    dw_free(l.entries);
    dw_free(l.next);
    return status;
}

/* ---- what a token cannot do ---- */

static dw_status fail_read_only(const hf *h, const char *key, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    return dw_fail(err, DW_DENIED, where_of(h, key, where),
                   "with a Hub token the bucket can only be read; to write, set "
                   "HF_S3_ACCESS_KEY_ID and HF_S3_SECRET_ACCESS_KEY (made in the Hub's "
                   "token settings)");
}

static dw_status hf_put(void *self, const char *key, const dw_source *source,
                        dw_put_mode mode, const dw_progress *progress, dw_error *err)
{
    (void)source, (void)mode, (void)progress;
    return fail_read_only(self, key, err);
}

static dw_status hf_remove(void *self, const char *key, dw_error *err)
{
    return fail_read_only(self, key, err);
}

static dw_status hf_conditional(void *self, bool *conditional, dw_error *err)
{
    (void)conditional;
    return fail_read_only(self, "", err);
}

/* ---- opening and closing ---- */

static void hf_counts(const void *self, dw_store_counts *out)
{
    const hf *h = self;
    *out = (dw_store_counts){.n_requests = atomic_load(&h->n_requests),
                             .n_retries = atomic_load(&h->n_retries),
                             .bytes_read = atomic_load(&h->bytes_read)};
}

static void hf_close(void *self)
{
    hf *h = self;
    dw_http_close(h->http);
    if (h->authorization)
        OPENSSL_cleanse(h->authorization, strlen(h->authorization));
    dw_free(h->authorization);
    dw_free(h->url);
    dw_free(h->endpoint);
    dw_free(h->bucket);
    dw_free(h->prefix);
    dw_free(h);
}

static const dw_store_driver hf_driver = {
    .struct_bytes = sizeof hf_driver,
    .name = "hf",
    .get = hf_get,
    .put = hf_put,
    .stat = hf_stat,
    .list = hf_list,
    .remove = hf_remove,
    .conditional = hf_conditional,
    .counts = hf_counts,
    .close = hf_close,
};

static char *join_text(const char *a, const char *b)
{
    dw_writer w = {0};
    dw_write_text(&w, a);
    dw_write_text(&w, b);
    dw_write_u8(&w, 0);
    if (w.failed)
        dw_writer_release(&w);
    return (char *)w.bytes;
}

static void cut_slashes(char *text)
{
    for (size_t n = text ? strlen(text) : 0; n > 0 && text[n - 1] == '/'; n--)
        text[n - 1] = '\0';
}

static dw_status fill(hf *h, const char *url, const dw_hf_place *place, dw_error *err)
{
    h->url = dw_copy_string(url);
    h->endpoint = dw_copy_string(place->endpoint);
    h->bucket = dw_copy_string(place->bucket);
    h->prefix = join_text(place->prefix, *place->prefix ? "/" : "");
    h->authorization = join_text("Authorization: Bearer ", place->token);
    if (!h->url || !h->endpoint || !h->bucket || !h->prefix || !h->authorization)
        return dw_fail_memory(err, url);
    cut_slashes(h->url);
    cut_slashes(h->endpoint);
    const char *host = strstr(h->endpoint, "://");
    if ((strncasecmp(h->endpoint, "https://", 8) != 0 &&
         strncasecmp(h->endpoint, "http://", 7) != 0) ||
        strpbrk(h->endpoint, "@?# "))
        return dw_fail(err, DW_INVALID, url,
                       "HF_ENDPOINT must be a URL such as https://huggingface.co");
    h->n_origin = (size_t)(host - h->endpoint) + 3 + strcspn(host + 3, "/");
    return DW_OK;
}

dw_status dw_hf_native_open(dw_store **out, const char *url, const dw_hf_place *place,
                            const dw_store_options *options, dw_error *err)
{
    *out = NULL;
    hf *h = dw_alloc_zeroed(1, sizeof *h);
    if (!h)
        return dw_fail_memory(err, url);
    unsigned n = options && options->n_connections ? options->n_connections
                                                   : (unsigned)N_CONNECTIONS;
    h->n_tries = options ? options->n_tries : 0;
    h->deadline_ms = options ? options->deadline_ms : 0;
    dw_status status = fill(h, url, place, err);
    if (status == DW_OK)
        status = dw_http_open(&h->http, n < MAX_CONNECTIONS ? n : MAX_CONNECTIONS, err);
    if (status == DW_OK)
        status = dw_store_new(out, h->url, &hf_driver, h, err);
    if (status != DW_OK)
        hf_close(h);
    return status;
}
