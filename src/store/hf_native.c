#include "store/hf_native.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

#include "base/error.h"
#include "base/mem.h"
#include "store/hf.h"
#include "store/sigv4.h"

enum { N_CONNECTIONS = 16, MAX_CONNECTIONS = 256 };

/* ---- get and stat ---- */

static dw_status ask_object(dw_hf_request *r, const char *key, uint64_t offset,
                            void *into, size_t n_bytes, dw_error *err)
{
    const dw_hf *h = r->hub;
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
    return dw_hf_ask(r, err);
}

static dw_status hf_get(void *self, const char *key, uint64_t offset, void *into,
                        size_t n_bytes, size_t *n_read, const dw_progress *progress,
                        dw_error *err)
{
    uint8_t none; /* a read of no bytes still finds out if the object exists */
    dw_hf_request r = {.hub = self, .progress = progress};
    dw_status status = ask_object(&r, key, n_bytes ? offset : 0, n_bytes ? into : &none,
                                  n_bytes ? n_bytes : 1, err);
    if (status == DW_OK)
        *n_read = r.call.status == 416 || n_bytes == 0 ? 0 : r.call.n_received;
    dw_hf_request_release(&r);
    return status;
}

/* Reads one byte. That also works with redirects, whose addresses often accept only GET.
 * If there is no first byte, the object is empty. */
static dw_status hf_stat(void *self, const char *key, uint64_t *n_bytes,
                         int64_t *modified_ms, dw_error *err)
{
    uint8_t first;
    dw_hf_request r = {.hub = self};
    dw_status status = ask_object(&r, key, 0, &first, 1, err);
    bool empty = r.call.status == 416;
    char where[DW_ERROR_WHERE_SIZE];
    if (status == DW_OK && !empty && r.call.object_bytes == UINT64_MAX)
        status = dw_fail(err, DW_CORRUPT, dw_hf_where(r.hub, key, where),
                         "the server does not report the size of the object");
    if (status == DW_OK && n_bytes)
        *n_bytes = empty ? 0 : r.call.object_bytes;
    if (status == DW_OK && modified_ms) {
        const char *text = dw_http_header(&r.call, "last-modified");
        time_t when = text ? curl_getdate(text, NULL) : -1;
        *modified_ms = when > 0 ? (int64_t)when * 1000 : 0;
    }
    dw_hf_request_release(&r);
    return status;
}

/* ---- not possible with a token ---- */

static dw_status fail_read_only(const dw_hf *h, const char *key, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    return dw_fail(err, DW_DENIED, dw_hf_where(h, key, where),
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
    const dw_hf *h = self;
    *out = (dw_store_counts){.n_requests = atomic_load(&h->n_requests),
                             .n_retries = atomic_load(&h->n_retries),
                             .bytes_read = atomic_load(&h->bytes_read)};
}

static void hf_facts(void *self, dw_store_facts *out)
{
    dw_hf *h = self;
    snprintf(out->server, sizeof out->server, "%s", h->endpoint);
    snprintf(out->keys, sizeof out->keys, "%s, which only reads", h->origin);
    out->has_clock = atomic_load(&h->has_clock);
    out->clock_offset_ms = atomic_load(&h->server_offset_ms);
}

static void hf_close(void *self)
{
    dw_hf *h = self;
    dw_http_close(h->http);
    if (h->authorization)
        OPENSSL_cleanse(h->authorization, strlen(h->authorization));
    dw_free(h->authorization);
    dw_free(h->origin);
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
    .list = dw_hf_list,
    .remove = hf_remove,
    .conditional = hf_conditional,
    .counts = hf_counts,
    .close = hf_close,
    .facts = hf_facts,
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

static dw_status fill(dw_hf *h, const char *url, const dw_hf_location *location,
                      dw_error *err)
{
    h->url = dw_copy_string(url);
    h->endpoint = dw_copy_string(location->endpoint);
    h->bucket = dw_copy_string(location->bucket);
    h->prefix = join_text(location->prefix, *location->prefix ? "/" : "");
    h->authorization = join_text("Authorization: Bearer ", location->token);
    h->origin = dw_copy_string(location->origin);
    if (!h->url || !h->endpoint || !h->bucket || !h->prefix || !h->authorization ||
        !h->origin)
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

dw_status dw_hf_native_open(dw_store **out, const char *url,
                            const dw_hf_location *location,
                            const dw_store_options *options, dw_error *err)
{
    *out = NULL;
    dw_hf *h = dw_alloc_zeroed(1, sizeof *h);
    if (!h)
        return dw_fail_memory(err, url);
    unsigned n = options && options->n_connections ? options->n_connections
                                                   : (unsigned)N_CONNECTIONS;
    h->n_tries = options ? options->n_tries : 0;
    h->deadline_ms = options ? options->deadline_ms : 0;
    h->waits.on_wait = options ? options->on_wait : NULL;
    h->waits.context = options ? options->on_wait_context : NULL;
    dw_status status = fill(h, url, location, err);
    if (status == DW_OK)
        status = dw_http_open(&h->http, n < MAX_CONNECTIONS ? n : MAX_CONNECTIONS, err);
    if (status == DW_OK)
        status = dw_store_new(out, h->url, &hf_driver, h, err);
    if (status != DW_OK)
        hf_close(h);
    return status;
}
