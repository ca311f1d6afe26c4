/* Replaces the Hugging Face Hub, which tests cannot reach: a real HTTP server with the
 * Hub's documented behaviour, over a table in memory.
 *
 *     hf_server        prints `HUB_PORT CDN_PORT` and serves until standard input ends
 *
 *     hub  /gateway/ns/BUCKET[/KEY]                     S3: the path before the bucket is
 *                                                       signed too; a GET is a 302 to the
 *                                                       CDN; 403 for what is not there;
 *                                                       If-None-Match on PUT
 *          /buckets/ns/BUCKET/resolve/KEY               Bearer; a 302 to the CDN
 *          /api/buckets/ns/BUCKET/tree[/DIR]            Bearer; pages of two, unordered
 *     cdn  /BUCKET/KEY                                  refuses requests with credentials
 *
 * Keys are `AKHF` with the secret `hf-secret`, the token is `hf_test`. A key whose name
 * ends in `limited` is answered 429 the first time. There are no uploads in parts. From
 * a PUT of `control/expired` on, whose body is the gateway's error code, no credentials
 * are good, up to a PUT of `control/renewed`. */
#include <microhttpd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "store/sigv4.h"

enum { MAX_OBJECTS = 256, MAX_SIGNED = 16, PAGE = 2 };

typedef struct object {
    char *name; /* BUCKET/KEY; NULL: free */
    uint8_t *bytes;
    size_t n_bytes;
} object;

static object objects[MAX_OBJECTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned hub_port, cdn_port;
static int n_limited;
static char expired[64]; /* the gateway's error code; "": they are good */

/* Of one request: the address as it came, and what was sent. */
typedef struct arrival {
    char *raw;
    dw_writer body;
    int begun;
} arrival;

typedef struct MHD_Connection connection;

static object *find(const char *name)
{
    for (size_t i = 0; i < MAX_OBJECTS; i++)
        if (objects[i].name && strcmp(objects[i].name, name) == 0)
            return &objects[i];
    return NULL;
}

static const char *header(connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

static const char *argument(connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, name);
}

static enum MHD_Result reply(connection *c, unsigned status, const void *bytes, size_t n,
                             const char *name, const char *value)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(n, (void *)bytes, MHD_RESPMEM_MUST_COPY);
    if (name)
        MHD_add_response_header(r, name, value);
    enum MHD_Result result = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result reply_text(connection *c, unsigned status, const char *text)
{
    return reply(c, status, text, strlen(text), NULL, NULL);
}

static enum MHD_Result reply_error(connection *c, unsigned status, const char *code)
{
    char text[128];
    snprintf(text, sizeof text, "<Error><Code>%s</Code></Error>", code);
    return reply_text(c, status, text);
}

static enum MHD_Result redirect_to_cdn(connection *c, const char *name)
{
    char url[1100];
    snprintf(url, sizeof url, "http://127.0.0.1:%u/%s", cdn_port, name);
    return reply(c, 302, "", 0, "Location", url);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(object *const *)a)->name, (*(object *const *)b)->name);
}

/* Objects whose names begin with START, sorted. */
static size_t select_objects(object *out[MAX_OBJECTS], const char *start)
{
    size_t n = 0;
    for (size_t i = 0; i < MAX_OBJECTS; i++)
        if (objects[i].name && strncmp(objects[i].name, start, strlen(start)) == 0)
            out[n++] = &objects[i];
    qsort(out, n, sizeof *out, compare_names);
    return n;
}

/* ---- the gateway ---- */

static int signature_good(connection *c, const char *method, const char *raw)
{
    const char *authorization = header(c, "authorization");
    const char *date = header(c, "x-amz-date");
    const char *payload = header(c, "x-amz-content-sha256");
    const char *names = authorization ? strstr(authorization, "SignedHeaders=") : NULL;
    const char *given = authorization ? strstr(authorization, "Signature=") : NULL;
    if (!date || strlen(date) != 16 || !payload || !names || !given ||
        strncmp(authorization, "AWS4-HMAC-SHA256 Credential=AKHF/", 33) != 0)
        return 0;
    char list[512], path[1024];
    snprintf(list, sizeof list, "%.*s", (int)strcspn(names + 14, ","), names + 14);
    dw_sigv4_header signed_headers[MAX_SIGNED];
    size_t n = 0;
    char *rest = NULL;
    for (char *name = strtok_r(list, ";", &rest); name && n < MAX_SIGNED;
         name = strtok_r(NULL, ";", &rest)) {
        const char *value = header(c, name);
        if (!value)
            return 0;
        signed_headers[n++] = (dw_sigv4_header){name, value};
    }
    size_t n_path = strcspn(raw, "?");
    snprintf(path, sizeof path, "%.*s", (int)n_path, raw);
    dw_writer request = {0};
    dw_sigv4_canonical_request(&request, method, path,
                               raw[n_path] ? raw + n_path + 1 : "", signed_headers, n,
                               payload);
    char expected[DW_SHA256_TEXT];
    int good = dw_sigv4_signature(expected, &request, date, "us-east-1", "s3",
                                  "hf-secret", NULL) == DW_OK &&
               strcmp(given + 10, expected) == 0;
    dw_writer_release(&request);
    return good;
}

static enum MHD_Result list_bucket(connection *c, const char *bucket)
{
    const char *prefix = argument(c, "prefix");
    const char *token = argument(c, "continuation-token");
    const char *after = token ? token : argument(c, "start-after");
    char start[1024];
    snprintf(start, sizeof start, "%s/%s", bucket, prefix ? prefix : "");
    object *found[MAX_OBJECTS];
    size_t n = select_objects(found, start), n_given = 0, skip = strlen(bucket) + 1;
    const char *last = "";
    bool more = false;
    dw_writer w = {0};
    dw_write_text(&w, "<ListBucketResult>");
    for (size_t i = 0; i < n && !more; i++) {
        const char *key = found[i]->name + skip;
        if (after && strcmp(key, after) <= 0)
            continue;
        more = n_given == PAGE;
        if (more)
            break;
        dw_write_format(&w, "<Contents><Key>%s</Key><Size>%zu</Size></Contents>", key,
                        found[i]->n_bytes);
        last = key;
        n_given++;
    }
    dw_write_format(&w, "<IsTruncated>%s</IsTruncated>", more ? "true" : "false");
    if (more)
        dw_write_format(&w, "<NextContinuationToken>%s</NextContinuationToken>", last);
    dw_write_text(&w, "</ListBucketResult>");
    enum MHD_Result result = reply(c, 200, w.bytes, w.n_bytes, NULL, NULL);
    dw_writer_release(&w);
    return result;
}

static enum MHD_Result put(connection *c, const char *name, arrival *a)
{
    object *o = find(name);
    if (strcmp(name, "control/expired") == 0 || strcmp(name, "control/renewed") == 0) {
        snprintf(expired, sizeof expired, "%.*s",
                 name[8] == 'e' ? (int)a->body.n_bytes : 0, (const char *)a->body.bytes);
        return reply(c, 200, "", 0, "ETag", "\"x\"");
    }
    if (o && header(c, "if-none-match"))
        return reply_error(c, 412, "PreconditionFailed");
    for (size_t i = 0; !o && i < MAX_OBJECTS; i++)
        if (!objects[i].name)
            o = &objects[i];
    if (!o)
        return reply_error(c, 507, "Full");
    free(o->name);
    free(o->bytes);
    o->name = strdup(name);
    o->n_bytes = a->body.n_bytes;
    o->bytes = malloc(o->n_bytes + 1);
    if (o->n_bytes > 0)
        memcpy(o->bytes, a->body.bytes, o->n_bytes);
    return reply(c, 200, "", 0, "ETag", "\"x\"");
}

static enum MHD_Result serve_gateway(connection *c, const char *method, const char *name,
                                     arrival *a)
{
    if (!signature_good(c, method, a->raw))
        return reply_error(c, 403, "SignatureDoesNotMatch");
    if (*expired && strncmp(name, "control/", 8) != 0)
        return reply_error(c, 403, expired);
    object *o = find(name);
    if (!strchr(name, '/'))
        return strcmp(method, "GET") == 0 ? list_bucket(c, name)
                                          : reply_error(c, 501, "NotImplemented");
    if (strcmp(method, "PUT") == 0)
        return put(c, name, a);
    if (strcmp(method, "DELETE") == 0) {
        if (o) {
            free(o->name);
            o->name = NULL;
        }
        return reply(c, 204, "", 0, NULL, NULL);
    }
    if (!o)
        return reply_error(c, 403, "AccessDenied"); /* 403 in place of 404 */
    if (strcmp(method, "HEAD") == 0)
        return reply(c, 200, o->bytes, o->n_bytes, NULL, NULL);
    return strcmp(method, "GET") == 0 ? redirect_to_cdn(c, name)
                                      : reply_error(c, 501, "NotImplemented");
}

/* ---- the native API ---- */

static enum MHD_Result serve_resolve(connection *c, char *name)
{
    char *middle = strstr(name, "/resolve/"); /* BUCKET/resolve/KEY to BUCKET/KEY */
    if (!middle)
        return reply_text(c, 404, "");
    memmove(middle, middle + 8, strlen(middle + 8) + 1);
    if (!find(name))
        return reply_text(c, 404, "");
    size_t n = strlen(name);
    if (n >= 7 && strcmp(name + n - 7, "limited") == 0 && n_limited++ == 0)
        return reply(c, 429, "", 0, "RateLimit", "\"api\";r=0;t=1");
    return redirect_to_cdn(c, name);
}

static enum MHD_Result serve_tree(connection *c, const char *name)
{
    const char *tree = strstr(name, "/tree");
    const char *recursive = argument(c, "recursive");
    if (!tree || !recursive || strcmp(recursive, "true") != 0)
        return reply_text(c, 404, "");
    char start[1024], link[1400];
    snprintf(start, sizeof start, "%.*s%s/", (int)(tree - name), name, tree + 5);
    object *found[MAX_OBJECTS];
    size_t n = select_objects(found, start), n_bucket = (size_t)(tree - name) + 1;
    size_t i = argument(c, "cursor") ? strtoul(argument(c, "cursor"), NULL, 10) : 0;
    if (n == 0)
        return reply_text(c, 404, "");
    dw_writer w = {0};
    dw_write_text(&w, "[{\"type\":\"directory\",\"path\":\"some\"}");
    size_t end = i + PAGE < n ? i + PAGE : n;
    for (; i < end; i++) { /* from the end */
        const object *o = found[n - 1 - i];
        dw_write_format(&w,
                        ",{\"type\":\"file\",\"path\":\"%s\",\"size\":%zu,"
                        "\"uploadedAt\":\"2026-11-15T05:20:59.123Z\"}",
                        o->name + n_bucket, o->n_bytes);
    }
    dw_write_text(&w, "]");
    /* a bucket named `astray` acts like a bad server */
    snprintf(link, sizeof link,
             "<http://127.0.0.1:%u/api/buckets/ns/%s?recursive=true&cursor=%zu>; "
             "rel=\"next\"",
             strncmp(name, "astray/", 7) == 0 ? cdn_port : hub_port, name, end);
    enum MHD_Result result =
        reply(c, 200, w.bytes, w.n_bytes, end < n ? "Link" : NULL, link);
    dw_writer_release(&w);
    return result;
}

static enum MHD_Result serve_hub(connection *c, const char *method, const char *path,
                                 arrival *a)
{
    char name[1024];
    if (strncmp(path, "/gateway/ns/", 12) == 0)
        return serve_gateway(c, method, path + 12, a);
    const char *token = header(c, "authorization");
    if (!token || strcmp(token, "Bearer hf_test") != 0 || *expired)
        return reply_text(c, 401, "");
    if (strncmp(path, "/buckets/ns/", 12) == 0) {
        snprintf(name, sizeof name, "%s", path + 12);
        return serve_resolve(c, name);
    }
    if (strncmp(path, "/api/buckets/ns/", 16) == 0)
        return serve_tree(c, path + 16);
    return reply_text(c, 404, "");
}

/* ---- the CDN ---- */

static enum MHD_Result note_secret(void *context, enum MHD_ValueKind kind,
                                   const char *name, const char *value)
{
    (void)kind, (void)value;
    if (strcasecmp(name, "authorization") == 0 || strncasecmp(name, "x-amz-", 6) == 0)
        *(int *)context = 1;
    return MHD_YES;
}

static enum MHD_Result serve_cdn(connection *c, const char *method, const char *path)
{
    int shown = 0;
    MHD_get_connection_values(c, MHD_HEADER_KIND, note_secret, &shown);
    if (shown || strcmp(method, "GET") != 0)
        return reply_text(c, 400, "credentials, or not a GET");
    const object *o = find(path + 1);
    if (!o)
        return reply_text(c, 404, "");
    const char *range = header(c, "range");
    unsigned long long first = 0, last = 0;
    if (!range || sscanf(range, "bytes=%llu-%llu", &first, &last) != 2)
        return reply(c, 200, o->bytes, o->n_bytes, NULL, NULL);
    if (first >= o->n_bytes)
        return reply_text(c, 416, "");
    if (last >= o->n_bytes)
        last = o->n_bytes - 1;
    char text[128];
    snprintf(text, sizeof text, "bytes %llu-%llu/%zu", first, last, o->n_bytes);
    return reply(c, 206, o->bytes + first, (size_t)(last - first + 1), "Content-Range",
                 text);
}

/* ---- both ---- */

static void *keep_raw(void *context, const char *uri, connection *c)
{
    (void)context, (void)c;
    arrival *a = calloc(1, sizeof *a);
    a->raw = strdup(uri);
    return a;
}

static void forget(void *context, connection *c, void **state,
                   enum MHD_RequestTerminationCode code)
{
    (void)context, (void)c, (void)code;
    arrival *a = *state;
    if (a) {
        free(a->raw);
        dw_writer_release(&a->body);
        free(a);
    }
}

static enum MHD_Result answer(void *is_cdn, connection *c, const char *path,
                              const char *method, const char *version, const char *upload,
                              size_t *n_upload, void **state)
{
    (void)version;
    arrival *a = *state;
    if (!a->begun) {
        a->begun = 1;
        return MHD_YES;
    }
    if (*n_upload > 0) {
        dw_write_bytes(&a->body, upload, *n_upload);
        *n_upload = 0;
        return MHD_YES;
    }
    pthread_mutex_lock(&lock);
    enum MHD_Result result =
        is_cdn ? serve_cdn(c, method, path) : serve_hub(c, method, path, a);
    pthread_mutex_unlock(&lock);
    return result;
}

static struct MHD_Daemon *start(void *is_cdn, unsigned *port)
{
    struct MHD_Daemon *d =
        MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, answer, is_cdn,
                         MHD_OPTION_URI_LOG_CALLBACK, keep_raw, NULL,
                         MHD_OPTION_NOTIFY_COMPLETED, forget, NULL, MHD_OPTION_END);
    if (!d)
        exit(1);
    pthread_mutex_lock(&lock); /* it may already be serving */
    *port = MHD_get_daemon_info(d, MHD_DAEMON_INFO_BIND_PORT)->port;
    pthread_mutex_unlock(&lock);
    return d;
}

int main(void)
{
    struct MHD_Daemon *cdn = start("cdn", &cdn_port);
    struct MHD_Daemon *hub = start(NULL, &hub_port);
    printf("%u %u\n", hub_port, cdn_port);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    MHD_stop_daemon(hub);
    MHD_stop_daemon(cdn);
    for (size_t i = 0; i < MAX_OBJECTS; i++) {
        free(objects[i].name);
        free(objects[i].bytes);
    }
    return 0;
}
