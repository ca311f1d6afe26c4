#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "net/credentials.h"
#include "store/s3_driver.h"

void dw_s3_task_release(dw_s3_task *task)
{
    dw_http_call_release(&task->call);
    dw_writer_release(&task->query_room);
    dw_writer_release(&task->url);
    dw_secret_release(&task->lines); /* the session token */
    dw_free(task->target);
    task->target = NULL;
    dw_keys_release(task->keys);
    task->keys = NULL;
}

const char *dw_s3_where(const dw_s3 *s3, const char *key, char out[DW_ERROR_WHERE_SIZE])
{
    snprintf(out, DW_ERROR_WHERE_SIZE, "%s%s%s", s3->url, key ? "/" : "", key ? key : "");
    return out;
}

static void write_host(const dw_s3 *s3, const char *region, dw_writer *out)
{
    if (!s3->path_style)
        dw_write_format(out, "%s.", s3->bucket); /* a bucket's name is short */
    if (s3->endpoint.host)
        dw_write_text(out, s3->endpoint.host);
    else
        dw_write_format(out, "s3.%s.amazonaws.com%s", region,
                        strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
}

static void write_path(const dw_s3 *s3, const char *key, dw_writer *out)
{
    dw_write_text(out, s3->endpoint.path);
    if (s3->path_style) {
        dw_write_u8(out, '/');
        dw_percent_encode(out, s3->bucket, false);
    }
    if (key || !s3->path_style)
        dw_write_u8(out, '/');
    if (!key)
        return;
    dw_percent_encode(out, s3->prefix, true);
    dw_percent_encode(out, key, true);
}

/* Adds a header line to `lines`. Pointers to the lines are taken once it no longer grows.
 */
static void begin_line(dw_s3_task *task, size_t *starts, const char *name)
{
    starts[task->call.n_headers++] = task->lines.n_bytes;
    dw_write_format(&task->lines, "%s: ", name);
}

static void add_line(dw_s3_task *task, size_t *starts, const char *name, const char *text)
{
    begin_line(task, starts, name);
    dw_write_text(&task->lines, text);
    dw_write_u8(&task->lines, 0);
}

static void add_range(dw_s3_task *task, size_t *starts)
{
    const dw_http_call *call = &task->call;
    if (!call->into)
        return;
    begin_line(task, starts, "Range");
    dw_write_format(&task->lines, "bytes=%llu-%llu", (unsigned long long)call->offset,
                    (unsigned long long)(call->offset + call->n_into - 1));
    dw_write_u8(&task->lines, 0);
}

static dw_status hash_payload(const dw_s3_task *task, char out[DW_SHA256_TEXT],
                              dw_error *err)
{
    uint8_t digest[DW_SHA256_BYTES];
    if (!task->sign_payload && task->call.n_send > 0) {
        snprintf(out, DW_SHA256_TEXT, "UNSIGNED-PAYLOAD");
        return DW_OK;
    }
    dw_status status = dw_sha256_of(digest, task->call.n_send ? task->call.send : "",
                                    task->call.n_send, err);
    if (status == DW_OK)
        dw_hex_encode(out, digest, sizeof digest);
    return status;
}

/* The condition that there is no such object yet. */
static const dw_sigv4_header create_only = {"if-none-match", "*"};
static const dw_sigv4_header create_only_google = {"x-goog-if-generation-match", "0"};

static dw_status add_signature(dw_s3 *s3, dw_s3_task *task, const char *host,
                               const char *path, size_t *starts, dw_error *err)
{
    dw_keys_release(task->keys);
    task->keys = NULL;
    if (!s3->keys)
        return DW_OK;
    dw_status status = dw_key_ring_take(s3->keys, &task->keys, err);
    if (status != DW_OK)
        return status;
    if (s3->is_google) {
        begin_line(task, starts, "Authorization");
        dw_write_text(&task->lines, "Bearer ");
        dw_write_text(&task->lines, task->keys->session_token);
        dw_write_u8(&task->lines, 0);
        return DW_OK;
    }
    char payload[DW_SHA256_TEXT];
    status = hash_payload(task, payload, err);
    if (status != DW_OK)
        return status;
    task->wall_ms = dw_wall_clock_ms() + atomic_load(&s3->clock_offset_ms);
    dw_sigv4_request request = {
        .method = task->method,
        .host = host,
        .path = path,
        .query = task->query ? task->query : "",
        .headers = &create_only,
        .n_headers = task->create ? 1 : 0,
        .payload_sha256 = payload,
        .region = task->region,
        .wall_ms = task->wall_ms,
    };
    dw_sigv4_credentials credentials = {task->keys->access_key, task->keys->secret_key,
                                        task->keys->session_token};
    char date[DW_SIGV4_DATE];
    begin_line(task, starts, "Authorization");
    status = dw_sigv4_authorization(&task->lines, date, &request, &credentials, err);
    if (status != DW_OK)
        return status;
    add_line(task, starts, "x-amz-date", date);
    add_line(task, starts, "x-amz-content-sha256", payload);
    if (credentials.session_token)
        add_line(task, starts, "x-amz-security-token", credentials.session_token);
    return DW_OK;
}

static dw_status build_for_bucket(dw_s3 *s3, dw_s3_task *task, size_t *starts,
                                  dw_error *err)
{
    pthread_mutex_lock(&s3->lock);
    memcpy(task->region, s3->region, sizeof task->region);
    pthread_mutex_unlock(&s3->lock);
    dw_writer host = {0}, path = {0};
    write_host(s3, task->region, &host);
    dw_write_u8(&host, 0);
    write_path(s3, task->key, &path);
    dw_write_u8(&path, 0);
    dw_status status = DW_OK;
    if (host.failed || path.failed) {
        status = dw_fail_memory(err, s3->url);
    } else {
        const char *query = task->query ? task->query : "";
        const char *const parts[] = {
            s3->endpoint.scheme, "://", (char *)host.bytes, (char *)path.bytes,
            *query ? "?" : "",   query,
        };
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            dw_write_text(&task->url, parts[i]);
        const dw_sigv4_header *create =
            s3->is_google ? &create_only_google : &create_only;
        if (task->create)
            add_line(task, starts, create->name, create->value);
        if (s3->is_tigris)
            add_line(task, starts, "X-Tigris-Consistent", "true");
        status =
            add_signature(s3, task, (char *)host.bytes, (char *)path.bytes, starts, err);
    }
    dw_writer_release(&host);
    dw_writer_release(&path);
    return status;
}

dw_status dw_s3_task_build(dw_s3 *s3, dw_s3_task *task, dw_error *err)
{
    size_t starts[sizeof task->headers / sizeof *task->headers] = {0};
    dw_http_call *call = &task->call;
    dw_http_call_reset(call);
    call->n_headers = 0;
    task->url.n_bytes = task->lines.n_bytes = 0;
    task->url.failed = task->lines.failed = false;
    add_range(task, starts);
    if (task->target) {
        /* Another host gets only the range, no credentials. */
        dw_write_text(&task->url, task->target);
    } else {
        dw_status status = build_for_bucket(s3, task, starts, err);
        if (status != DW_OK)
            return status;
    }
    dw_write_u8(&task->url, 0);
    if (task->url.failed || task->lines.failed)
        return dw_fail_memory(err, s3->url);
    for (size_t i = 0; i < call->n_headers; i++)
        task->headers[i] = (const char *)task->lines.bytes + starts[i];
    call->method = task->method;
    call->url = (const char *)task->url.bytes;
    call->headers = task->headers;
    /* The end of an upload takes as long as the server needs to write it to disk. */
    call->stall_s = strcmp(task->method, "GET") == 0 ? 20 : 60;
    if (call->max_text == 0)
        call->max_text = DW_S3_ERROR_BYTES;
    uint64_t left_ms = dw_retry_left_ms(&task->retry, dw_clock_ms());
    call->timeout_ms = left_ms > 0 ? (unsigned)left_ms : 1;
    return DW_OK;
}
