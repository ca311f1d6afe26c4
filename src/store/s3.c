#include "store/s3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <curl/curl.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "store/aws_chain.h"
#include "store/aws_config.h"
#include "store/s3_driver.h"
#include "store/store.h"

enum { N_CONNECTIONS = 16, MAX_CONNECTIONS = 256, MAX_BUCKET = 255 };

/* ---- small calls ---- */

/* A reply to HEAD has no body, so it cannot show that the whole bucket is missing. Until
 * the bucket was seen once, a GET finds out: DW_UNAVAILABLE if it does not exist. ERR
 * holds the error of the HEAD. */
static dw_status explain_404(dw_s3 *s3, const char *key, dw_error *err)
{
    if (atomic_load(&s3->bucket_seen))
        return DW_NOT_FOUND;
    char byte;
    dw_error fault;
    dw_s3_task task = {.method = "GET", .key = key};
    task.call.into = &byte;
    task.call.n_into = 1;
    dw_status status = dw_s3_ask(s3, &task, NULL, &fault);
    dw_s3_task_release(&task);
    if (status == DW_OK || status == DW_NOT_FOUND) {
        atomic_store(&s3->bucket_seen, true);
        return DW_NOT_FOUND;
    }
    if (err)
        *err = fault;
    return status;
}

dw_status dw_s3_stat(void *self, const char *key, uint64_t *n_bytes, int64_t *modified_ms,
                     dw_error *err)
{
    dw_s3 *s3 = self;
    dw_s3_task task = {.method = "HEAD", .key = key};
    dw_status status = dw_s3_ask(s3, &task, NULL, err);
    if (status == DW_OK) {
        const char *length = dw_http_header(&task.call, "content-length");
        const char *modified = dw_http_header(&task.call, "last-modified");
        time_t when = modified ? curl_getdate(modified, NULL) : -1;
        char where[DW_ERROR_WHERE_SIZE];
        if (!length || strspn(length, "0123456789") != strlen(length))
            status = dw_fail(err, DW_CORRUPT, dw_s3_where(s3, key, where),
                             "the server does not report the size of the object");
        else if (n_bytes)
            *n_bytes = strtoull(length, NULL, 10);
        if (modified_ms)
            *modified_ms = when > 0 ? (int64_t)when * 1000 : 0;
    }
    dw_s3_task_release(&task);
    if (status == DW_NOT_FOUND)
        return explain_404(s3, key, err);
    if (status == DW_DENIED && s3->missing_is_403)
        return dw_s3_explain_403(s3, key, err);
    return status;
}

static dw_status remove_object(void *self, const char *key, dw_error *err)
{
    dw_s3_task task = {.method = "DELETE", .key = key};
    dw_status status = dw_s3_ask(self, &task, NULL, err);
    dw_s3_task_release(&task);
    return status == DW_NOT_FOUND ? DW_OK : status;
}

/* Whether the server refuses the condition and not the request. 400 is also the answer to
 * an expired token. */
static bool refuses_condition(dw_status status, const dw_s3_task *task)
{
    const char *code = task->error.code;
    return status == DW_UNSUPPORTED || task->call.status == 405 ||
           (task->call.status == 400 && (strcmp(code, "NotImplemented") == 0 ||
                                         strcmp(code, "InvalidArgument") == 0 ||
                                         strcmp(code, "InvalidRequest") == 0));
}

/* One conditional create. */
static dw_status create_probe(dw_s3 *s3, const char *key, bool *refused, dw_error *err)
{
    dw_s3_task task = {.method = "PUT", .key = key, .create = true, .sign_payload = true};
    task.call.send = "probe";
    task.call.n_send = 5;
    dw_status status = dw_s3_ask(s3, &task, NULL, err);
    *refused = status != DW_OK && refuses_condition(status, &task);
    dw_s3_task_release(&task);
    return status;
}

static dw_status probe(dw_s3 *s3, bool *conditional, dw_error *err)
{
    uint8_t random[16];
    char key[6 + 2 * sizeof random + 1] = "probe/";
    dw_status status = dw_random_bytes(random, sizeof random, err);
    if (status != DW_OK)
        return status;
    dw_hex_encode(key + 6, random, sizeof random);
    bool refused = false;
    *conditional = false;
    status = create_probe(s3, key, &refused, err);
    if (refused)
        return DW_OK; /* the server refuses conditions; nothing was written */
    /* If a reply was lost, the first create can conflict with itself. */
    if (status != DW_OK && status != DW_CONFLICT)
        return status;
    status = create_probe(s3, key, &refused, err);
    *conditional = status == DW_CONFLICT;
    if (status == DW_CONFLICT || status == DW_UNSUPPORTED)
        status = DW_OK;
    dw_status removed = remove_object(s3, key, status == DW_OK ? err : NULL);
    return status == DW_OK ? removed : status;
}

static dw_status find_conditional(void *self, bool *conditional, dw_error *err)
{
    dw_s3 *s3 = self;
    int known = atomic_load(&s3->conditional);
    if (known == DW_S3_CONDITIONAL_UNKNOWN) {
        dw_status status = probe(s3, conditional, err);
        if (status != DW_OK)
            return status;
        known = *conditional ? DW_S3_CONDITIONAL_YES : DW_S3_CONDITIONAL_NO;
        atomic_store(&s3->conditional, known);
    }
    *conditional = known == DW_S3_CONDITIONAL_YES;
    return DW_OK;
}

static void get_counts(const void *self, dw_store_counts *out)
{
    const dw_s3 *s3 = self;
    *out = (dw_store_counts){
        .n_requests = atomic_load(&s3->n_requests),
        .n_retries = atomic_load(&s3->n_retries),
        .bytes_read = atomic_load(&s3->bytes_read),
        .bytes_written = atomic_load(&s3->bytes_written),
    };
}

static void get_facts(void *self, dw_store_facts *out)
{
    dw_s3 *s3 = self;
    const dw_endpoint *to = &s3->endpoint;
    pthread_mutex_lock(&s3->lock);
    snprintf(out->server, sizeof out->server, "%s%s%.160s%.20s%s%s",
             to->host ? to->scheme : "", to->host ? "://" : "Amazon S3",
             to->host ? to->host : "", to->path, *s3->region ? ", region " : "",
             s3->region);
    pthread_mutex_unlock(&s3->lock);
    dw_key_ring_facts(s3->keys, out);
    out->has_clock = atomic_load(&s3->has_clock);
    out->clock_offset_ms = atomic_load(&s3->server_offset_ms);
}

/* ---- opening and closing ---- */

static void close_driver(void *self)
{
    dw_s3 *s3 = self;
    dw_http_close(s3->http);
    pthread_cond_destroy(&s3->buffer_back);
    pthread_mutex_destroy(&s3->lock);
    dw_free(s3->url);
    dw_endpoint_release(&s3->endpoint);
    dw_free(s3->bucket);
    dw_free(s3->prefix);
    dw_key_ring_close(s3->keys);
    dw_free(s3);
}

static const dw_store_driver s3_driver = {
    .struct_bytes = sizeof s3_driver,
    .name = "s3",
    .get = dw_s3_get,
    .put = dw_s3_put,
    .stat = dw_s3_stat,
    .list = dw_s3_list,
    .remove = remove_object,
    .conditional = find_conditional,
    .counts = get_counts,
    .close = close_driver,
    .facts = get_facts,
};

static dw_status set_endpoint(dw_s3 *s3, const char *endpoint, dw_error *err)
{
    if (endpoint)
        return dw_endpoint_parse(&s3->endpoint, endpoint, s3->url, err);
    s3->endpoint.scheme = dw_copy_string("https");
    s3->endpoint.path = dw_copy_string("");
    return s3->endpoint.scheme && s3->endpoint.path ? DW_OK
                                                    : dw_fail_memory(err, s3->url);
}

static dw_status check_names(const char *url, const char *bucket, const char *prefix,
                             dw_error *err)
{
    static const char good[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
    size_t n_bucket = strlen(bucket);
    if (n_bucket == 0 || n_bucket > MAX_BUCKET || strspn(bucket, good) != n_bucket)
        return dw_fail(err, DW_INVALID, url,
                       "'%.80s' cannot be the name of a bucket: only letters, digits and "
                       "-._ are allowed, at most %d bytes",
                       bucket, MAX_BUCKET);
    if (*prefix && !dw_store_key_valid(prefix))
        return dw_fail(err, DW_INVALID, url,
                       "'%.80s' cannot be the prefix of keys: " DW_KEY_RULE, prefix);
    return DW_OK;
}

static dw_status set_names(dw_s3 *s3, const dw_s3_location *location, dw_error *err)
{
    const char *prefix = location->prefix ? location->prefix : "";
    dw_status status = check_names(s3->url, location->bucket, prefix, err);
    if (status != DW_OK)
        return status;
    dw_writer w = {0};
    dw_write_text(&w, prefix);
    if (*prefix)
        dw_write_u8(&w, '/');
    dw_write_u8(&w, 0);
    s3->prefix = (char *)w.bytes;
    s3->bucket = dw_copy_string(location->bucket);
    snprintf(s3->region, sizeof s3->region, "%s", location->region);
    return w.failed || !s3->bucket ? dw_fail_memory(err, s3->url) : DW_OK;
}

static bool ends_with(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) &&
           strcmp(text + strlen(text) - strlen(end), end) == 0;
}

static bool is_tigris(const char *host)
{
    return host &&
           (ends_with(host, "t3.storage.dev") || ends_with(host, "storage.tigris.dev"));
}

static bool init_locks(dw_s3 *s3)
{
    bool good = dw_condition_init(&s3->buffer_back);
    if (good && pthread_mutex_init(&s3->lock, NULL) != 0) {
        pthread_cond_destroy(&s3->buffer_back);
        good = false;
    }
    return good;
}

static void set_options(dw_s3 *s3, const dw_store_options *o)
{
    unsigned n = o && o->n_connections ? o->n_connections : N_CONNECTIONS;
    s3->n_connections = n < MAX_CONNECTIONS ? n : MAX_CONNECTIONS;
    s3->n_tries = o ? o->n_tries : 0;
    s3->deadline_ms = o ? o->deadline_ms : 0;
    s3->waits.on_wait = o ? o->on_wait : NULL;
    s3->waits.context = o ? o->on_wait_context : NULL;
    s3->part_bytes = o ? o->part_bytes : 0;
    s3->buffer_bytes_left = DW_S3_BUFFER_BYTES;
    dw_link_init(&s3->get_link, s3->n_connections, s3->part_bytes);
    dw_link_init(&s3->put_link, s3->n_connections, s3->part_bytes);
}

dw_status dw_s3_store_open_at(dw_store **out, const char *url,
                              const dw_s3_location *location,
                              const dw_store_options *options, dw_error *err)
{
    *out = NULL;
    dw_s3 *s3 = dw_alloc_zeroed(1, sizeof *s3);
    if (!s3 || !init_locks(s3)) {
        dw_free(s3);
        dw_key_ring_close(location->keys);
        return dw_fail_memory(err, url);
    }
    set_options(s3, options);
    s3->keys = location->keys;
    s3->path_style = location->path_style;
    s3->follow_redirects = location->follow_redirects;
    s3->missing_is_403 = location->missing_is_403;
    s3->is_google = location->is_google;
    s3->url = dw_copy_string(url);
    dw_status status = s3->url ? DW_OK : dw_fail_memory(err, url);
    if (status == DW_OK) {
        for (size_t n = strlen(s3->url); n > 0 && s3->url[n - 1] == '/'; n--)
            s3->url[n - 1] = 0;
        /* Comes first, because it starts libcurl, which parses the endpoint. */
        status = dw_http_open(&s3->http, s3->n_connections, err);
    }
    if (status == DW_OK)
        status = set_endpoint(s3, location->endpoint, err);
    if (status == DW_OK)
        status = set_names(s3, location, err);
    s3->is_tigris = is_tigris(s3->endpoint.host);
    if (status == DW_OK)
        status = dw_store_new(out, s3->url, &s3_driver, s3, err);
    if (status != DW_OK)
        close_driver(s3);
    return status;
}

/* Names with dots match no wildcard certificate. */
static bool choose_path_style(const dw_aws_config *config, const char *bucket)
{
    if (config->addressing) /* "path" or "host" */
        return strcmp(config->addressing, "path") == 0;
    return (config->endpoint && !strstr(config->endpoint, ".amazonaws.com")) ||
           strchr(bucket, '.');
}

dw_status dw_s3_url_split(char **bucket, const char **prefix, const char *scheme,
                          const char *url, dw_error *err)
{
    const size_t n_scheme = strlen(scheme);
    *bucket = NULL;
    if (strncmp(url, scheme, n_scheme) != 0)
        return dw_fail(err, DW_INVALID, url, "the URL must be %sBUCKET[/PREFIX]", scheme);
    char *name = dw_copy_string(url + n_scheme);
    if (!name)
        return dw_fail_memory(err, url);
    for (size_t n = strlen(name); n > 0 && name[n - 1] == '/'; n--)
        name[n - 1] = 0;
    char *slash = strchr(name, '/');
    if (slash)
        *slash++ = 0;
    *bucket = name;
    *prefix = slash ? slash : "";
    return check_names(url, name, *prefix, err);
}

static dw_status open_bucket(dw_store **out, const char *url, const char *bucket,
                             const char *prefix, const dw_aws_files *files,
                             const dw_store_options *options, dw_error *err)
{
    const char *named = options ? options->profile : NULL;
    const bool anonymous = options && options->anonymous;
    dw_aws_profile profile;
    dw_aws_config config = {0};
    dw_key_ring *keys = NULL;
    dw_status status = dw_aws_profile_choose(&profile, files, named, err);
    if (status == DW_OK)
        status = dw_aws_config_load(&config, &profile, options, err);
    if (status == DW_OK && options && options->credentials)
        status = dw_key_ring_called(&keys, options, false, err);
    else if (status == DW_OK && !anonymous)
        status = dw_aws_chain_open(&keys, files, &profile, named, &config, err);
    if (status == DW_OK) {
        const dw_s3_location location = {
            .endpoint = config.endpoint,
            .bucket = bucket,
            .prefix = prefix,
            .region = config.region,
            .path_style = choose_path_style(&config, bucket),
            .keys = keys,
        };
        status = dw_s3_store_open_at(out, url, &location, options, err);
    }
    dw_aws_config_release(&config);
    return status;
}

dw_status dw_s3_store_open(dw_store **out, const char *url,
                           const dw_store_options *options, dw_error *err)
{
    *out = NULL;
    char *bucket;
    const char *prefix;
    dw_aws_files files = {0};
    /* a wrong URL is said before missing credentials */
    dw_status status = dw_s3_url_split(&bucket, &prefix, "s3://", url, err);
    if (status == DW_OK)
        status = dw_aws_files_read(&files, err);
    if (status == DW_OK)
        status = open_bucket(out, url, bucket, prefix, &files, options, err);
    dw_aws_files_release(&files);
    dw_free(bucket);
    return status;
}
