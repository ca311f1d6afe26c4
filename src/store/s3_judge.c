#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "store/s3_driver.h"

/* Google's, which is all that its requests carry. */
static bool is_access_token(const dw_keys *keys)
{
    return keys && !keys->access_key;
}

/* Whether the keys have expired or are no longer known, so that new ones may help. A
 * reply to HEAD has no body with a code: 400 is that of a refused session token. */
static bool is_refused(const dw_s3_task *task)
{
    static const char *const codes[] = {"ExpiredToken",         "InvalidToken",
                                        "RequestExpired",       "ExpiredTokenException",
                                        "TokenRefreshRequired", "InvalidAccessKeyId"};
    const dw_keys *keys = task->keys;
    if (!keys || task->target)
        return false;
    if (is_access_token(keys))
        return task->call.status == 401;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(task->error.code, codes[i]) == 0)
            return true;
    return keys->session_token && task->call.status == 400 &&
           strcmp(task->method, "HEAD") == 0;
}

static dw_status fail_denied(const dw_s3_task *task, const char *where, dw_error *err)
{
    const char *code = task->error.code;
    const dw_keys *keys = task->keys;
    if (!keys)
        return dw_fail(err, DW_DENIED, where,
                       "the server wants credentials; anonymous access was asked for");
    if (strcmp(code, "SignatureDoesNotMatch") == 0)
        return dw_fail(err, DW_DENIED, where,
                       "the server does not accept the signature: the secret does not "
                       "belong to access key '...%s' (%s)",
                       dw_keys_end(keys), keys->origin);
    if (strcmp(code, "InvalidAccessKeyId") == 0)
        return dw_fail(err, DW_DENIED, where,
                       "the server does not know access key '...%s' (%s); set another, "
                       "or the endpoint the key is for",
                       dw_keys_end(keys), keys->origin);
    if (is_refused(task))
        return dw_fail(err, DW_DENIED, where,
                       "the %s token has expired or is wrong (%s); get new credentials "
                       "there",
                       is_access_token(keys) ? "access" : "session", keys->origin);
    const bool reads =
        strcmp(task->method, "GET") == 0 || strcmp(task->method, "HEAD") == 0;
    if (is_access_token(keys))
        return dw_fail(err, DW_DENIED, where,
                       "the account of the access token (%s) may not %s this (%d%s%s); "
                       "give it a role on the bucket",
                       keys->origin, reads ? "read" : "write", task->call.status,
                       *code ? " " : "", code);
    return dw_fail(err, DW_DENIED, where,
                   "access key '...%s' (%s) may not %s this (%d%s%s); check its rights, "
                   "that it has not expired, and the secret",
                   dw_keys_end(keys), keys->origin, reads ? "read" : "write",
                   task->call.status, *code ? " " : "", code);
}

static dw_status fail_final(const dw_s3 *s3, const dw_s3_task *task, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    dw_s3_where(s3, task->key, where);
    int status = task->call.status;
    const char *code = task->error.code;
    if (strcmp(code, "NoSuchBucket") == 0)
        return dw_fail(err, DW_UNAVAILABLE, where,
                       "there is no bucket '%s'. Create it, or correct the URL or the "
                       "endpoint",
                       s3->bucket);
    if (task->create && (status == 412 || strcmp(code, "PreconditionFailed") == 0))
        return dw_fail(err, DW_CONFLICT, where, "the object exists already");
    if (task->create && status == 409) /* the caller finds out if the object exists */
        return dw_fail(err, DW_UNAVAILABLE, where,
                       "another write to this name is under way (409%s%s)",
                       *code ? " " : "", code);
    if (status == 404)
        return dw_fail(err, DW_NOT_FOUND, where, "there is no such object");
    if (status == 401 || status == 403 || is_refused(task))
        return fail_denied(task, where, err);
    if (status == 501 || strcmp(code, "NotImplemented") == 0)
        return dw_fail(err, DW_UNSUPPORTED, where,
                       "the server cannot do this: %s answered with %d", task->method,
                       status);
    if (status == 301 || status == 302 || status == 303 || status == 307 || status == 308)
        return dw_fail(err, DW_IO, where,
                       "the server points to another address (%d); set the endpoint and "
                       "the region of the bucket",
                       status);
    return dw_fail(err, DW_IO, where, "the server answered %s with %d%s%s%s%s",
                   task->method, status, *code ? " " : "", code,
                   *task->error.message ? ": " : "", task->error.message);
}

/* ---- replies after which the request is sent again at once ---- */

static bool region_valid(const char *text)
{
    size_t n = strlen(text);
    return n > 0 && n < DW_S3_REGION_SIZE &&
           strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

/* Amazon reports the region of a bucket. The host is built from it: credentials are never
 * sent to a Location. */
static bool take_region(dw_s3 *s3, dw_s3_task *task)
{
    int status = task->call.status;
    const char *region = dw_http_header(&task->call, "x-amz-bucket-region");
    if (task->region_taken || !region || !region_valid(region) ||
        strcmp(region, task->region) == 0 ||
        (status != 301 && status != 307 && status != 400 && status != 403))
        return false;
    task->region_taken = true;
    pthread_mutex_lock(&s3->lock);
    snprintf(s3->region, sizeof s3->region, "%s", region);
    pthread_mutex_unlock(&s3->lock);
    return true;
}

/* If the server refuses the date, use the server's clock from now on. The reply to HEAD
 * has no body with the error's code, so this compares the clocks. */
static bool take_clock(dw_s3 *s3, dw_s3_task *task)
{
    const char *text = dw_http_header(&task->call, "date");
    if (task->clock_taken || !task->keys || !text || task->target ||
        is_access_token(task->keys) || /* which carries no date */
        (task->call.status != 403 && task->call.status != 401 &&
         strcmp(task->error.code, "RequestTimeTooSkewed") != 0))
        return false;
    time_t when = curl_getdate(text, NULL);
    if (when <= 0)
        return false;
    int64_t off_ms = (int64_t)when * 1000 - task->wall_ms;
    const int64_t tolerated_ms = 4 * 60 * 1000;
    if (off_ms < tolerated_ms && off_ms > -tolerated_ms)
        return false;
    task->clock_taken = true;
    atomic_store(&s3->clock_offset_ms, (int64_t)when * 1000 - dw_wall_clock_ms());
    return true;
}

static bool follow_redirect(const dw_s3 *s3, dw_s3_task *task)
{
    const char *to = task->call.redirect_url;
    if (!s3->follow_redirects || strcmp(task->method, "GET") != 0 || !task->key || !to ||
        task->n_redirects >= DW_S3_MAX_REDIRECTS)
        return false;
    if (strncasecmp(to, "https://", 8) != 0 &&
        (strcmp(s3->endpoint.scheme, "https") == 0 || strncasecmp(to, "http://", 7) != 0))
        return false;
    task->n_redirects++;
    dw_free(task->target);
    task->target = task->call.redirect_url; /* moved here */
    task->call.redirect_url = NULL;
    return true;
}

/* ---- the result ---- */

/* A read that was interrupted continues where it ended, because objects are written once.
 */
static void keep_received(dw_s3_task *task)
{
    dw_http_call *call = &task->call;
    if (!call->into || call->status != 206 || call->result != DW_HTTP_BROKEN ||
        call->n_received >= call->n_into)
        return;
    call->into = (char *)call->into + call->n_received;
    call->n_into -= call->n_received;
    call->offset += call->n_received;
    task->n_kept += call->n_received;
}

static dw_status try_again(dw_s3 *s3, dw_s3_task *task, const char *reason,
                           dw_s3_verdict *verdict, dw_error *err)
{
    const char *after = dw_http_header(&task->call, "retry-after");
    uint64_t server_ms = dw_retry_after_ms(after, dw_wall_clock_ms());
    uint64_t now_ms = dw_clock_ms(), wait_ms;
    uint32_t roll = (uint32_t)dw_random_below((uint64_t)UINT32_MAX + 1);
    if (!dw_retry_again(&task->retry, now_ms, server_ms, roll, &wait_ms)) {
        char where[DW_ERROR_WHERE_SIZE];
        return dw_fail(err, DW_UNAVAILABLE, dw_s3_where(s3, task->key, where),
                       "%s failed after %u %s, the last with: %s", task->method,
                       task->retry.n_tries, task->retry.n_tries == 1 ? "try" : "tries",
                       reason);
    }
    atomic_fetch_add(&s3->n_retries, 1);
    keep_received(task);
    dw_free(task->target);
    task->target = NULL; /* such addresses expire */
    task->n_redirects = 0;
    task->ready_ms = now_ms + wait_ms;
    *verdict = DW_S3_AGAIN;
    return DW_OK;
}

dw_status dw_s3_task_lacks_keys(dw_s3 *s3, dw_s3_task *task, const dw_error *fault,
                                dw_s3_verdict *verdict, dw_error *err)
{
    char reason[DW_ERROR_LINE_SIZE];
    if (fault->code != DW_UNAVAILABLE) {
        if (err)
            *err = *fault;
        return fault->code;
    }
    snprintf(reason, sizeof reason, "%s%s%s", fault->where, *fault->where ? ": " : "",
             fault->text);
    return try_again(s3, task, reason, verdict, err);
}

/* After the server refused the keys: new ones from where they came from. The first time
 * the request is sent again at once. If there are none, the refusal is final. */
static dw_status renew_keys(dw_s3 *s3, dw_s3_task *task, bool *changed,
                            dw_s3_verdict *verdict, dw_error *err)
{
    dw_keys *fresh;
    dw_error fault = {0};
    dw_status status = dw_key_ring_renew(s3->keys, task->keys, &fresh, changed, &fault);
    dw_keys_release(fresh);
    if (status != DW_OK) {
        *changed = true;
        return dw_s3_task_lacks_keys(s3, task, &fault, verdict, err);
    }
    if (!*changed)
        return DW_OK;
    if (task->n_renewals++ > 0)
        return try_again(s3, task, "refused keys", verdict, err);
    task->ready_ms = 0;
    *verdict = DW_S3_AGAIN;
    return DW_OK;
}

static void count_reply(dw_s3 *s3, const dw_s3_task *task)
{
    const dw_http_call *call = &task->call;
    atomic_fetch_add(&s3->n_requests, 1);
    atomic_fetch_add(&s3->bytes_read, call->n_received + call->text.n_bytes);
    atomic_fetch_add(&s3->bytes_written, call->n_sent);
}

/* The status that belongs to an error which came after a 200. */
static int status_of_error(const char *code)
{
    static const struct {
        const char *code;
        int status;
    } known[] = {
        {"PreconditionFailed", 412}, {"ConditionalRequestConflict", 409},
        {"NoSuchUpload", 404},       {"NoSuchBucket", 404},
        {"AccessDenied", 403},       {"InvalidAccessKeyId", 403},
        {"ExpiredToken", 400},       {"SignatureDoesNotMatch", 403},
        {"InvalidToken", 400},       {"RequestExpired", 400},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(code, known[i].code) == 0)
            return known[i].status;
    return 500;
}

/* A success counts only if the reply shows it. A body that was cut off, or the page of a
 * proxy, is like a lost reply. If the request was done after all, the next try finds
 * that. */
static dw_status judge_success(dw_s3 *s3, dw_s3_task *task, dw_s3_verdict *verdict,
                               dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    dw_error fault = {0};
    const dw_http_call *call = &task->call;
    atomic_store(&s3->bucket_seen, true);
    const bool reads =
        strcmp(task->method, "GET") == 0 || strcmp(task->method, "HEAD") == 0;
    if (reads && call->status != 200 && call->status != 206)
        return try_again(s3, task, "an answer without an object", verdict, err);
    if (task->needs_etag && !dw_http_header(call, "etag"))
        return try_again(s3, task, "an answer without an ETag", verdict, err);
    dw_status status = task->read
                           ? task->read(task->into, call->text.bytes, call->text.n_bytes,
                                        dw_s3_where(s3, task->key, where), &fault)
                           : DW_OK;
    if (status == DW_CORRUPT)
        return try_again(s3, task, fault.text, verdict, err);
    if (status != DW_OK && err)
        *err = fault;
    return status;
}

static dw_status judge_answer(dw_s3 *s3, dw_s3_task *task, dw_link *link,
                              dw_s3_verdict *verdict, dw_error *err)
{
    dw_http_call *call = &task->call;
    const bool good = call->status / 100 == 2;
    int64_t off_ms;
    if (!task->target && dw_http_clock_offset(call, &off_ms)) {
        atomic_store(&s3->server_offset_ms, off_ms);
        atomic_store(&s3->has_clock, true);
    }
    task->error = (dw_s3_error){{0}, {0}};
    if (call->status == 416 && call->into) {
        atomic_store(&s3->bucket_seen, true);
        return DW_OK;
    }
    bool has_error =
        call->text.n_bytes > 0 &&
        dw_s3_error_parse(&task->error, call->text.bytes, call->text.n_bytes);
    if (good && !has_error)
        return judge_success(s3, task, verdict, err);
    if (good)
        call->status = status_of_error(task->error.code);
    char reason[128];
    snprintf(reason, sizeof reason, "%d%s%s", call->status, has_error ? " " : "",
             task->error.code);
    if ((call->status / 100 == 3 && follow_redirect(s3, task)) ||
        (!task->target && take_region(s3, task)) || take_clock(s3, task)) {
        task->ready_ms = 0;
        *verdict = DW_S3_AGAIN;
        return DW_OK;
    }
    if (is_refused(task)) {
        bool changed = false;
        dw_status status = renew_keys(s3, task, &changed, verdict, err);
        return status == DW_OK && !changed ? fail_final(s3, task, err) : status;
    }
    dw_retry_verdict what = dw_retry_judge(call->status, task->error.code);
    if (what == DW_RETRY_SLOWER) {
        pthread_mutex_lock(&s3->lock);
        dw_link_slow_down(link ? link : &s3->get_link);
        pthread_mutex_unlock(&s3->lock);
    }
    /* An error of a redirect's target is not an error of the object: ask the store again.
     */
    if (what != DW_RETRY_FINAL || task->target)
        return try_again(s3, task, reason, verdict, err);
    return fail_final(s3, task, err);
}

dw_status dw_s3_task_judge(dw_s3 *s3, dw_s3_task *task, dw_link *link,
                           dw_s3_verdict *verdict, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    *verdict = DW_S3_DONE;
    count_reply(s3, task);
    switch (task->call.result) {
    case DW_HTTP_ANSWERED:
        atomic_store(&s3->waits.has_answered, true);
        return judge_answer(s3, task, link, verdict, err);
    case DW_HTTP_BROKEN:
    case DW_HTTP_REFUSED:
        return try_again(s3, task, task->call.problem, verdict, err);
    case DW_HTTP_CANCELLED:
        return dw_fail(err, DW_CANCELLED, dw_s3_where(s3, task->key, where),
                       "stopped at the caller's request");
    case DW_HTTP_HOPELESS:
        break;
    }
    return dw_fail(err, DW_UNAVAILABLE, dw_s3_where(s3, task->key, where),
                   "%s failed: %s", task->method, task->call.problem);
}
