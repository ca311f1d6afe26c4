#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "store/hf_native.h"

enum { MAX_REDIRECTS = 3, MAX_TEXT_BYTES = 16 << 20, IDLE_MS = 100, STALL_S = 20 };

const char *dw_hf_where(const dw_hf *h, const char *key, char out[DW_ERROR_WHERE_SIZE])
{
    snprintf(out, DW_ERROR_WHERE_SIZE, "%s%s%s", h->url, *key ? "/" : "", key);
    return out;
}

void dw_hf_request_release(dw_hf_request *r)
{
    dw_http_call_release(&r->call);
    dw_writer_release(&r->url);
    dw_free(r->target);
}

bool dw_hf_is_hub(const dw_hf *h, const char *url)
{
    return strncasecmp(url, h->endpoint, h->n_origin) == 0 &&
           strchr("/?#", url[h->n_origin]) != NULL;
}

static dw_status report(const dw_hf_request *r, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    uint64_t n_done = atomic_load(&r->call.n_moved);
    return dw_store_progress(r->progress, n_done < r->n_total ? n_done : r->n_total,
                             r->n_total, dw_hf_where(r->hub, r->key, where), err);
}

static void report_wait(dw_hf_request *r)
{
    const size_t n_moved = atomic_load(&r->call.n_moved);
    if (n_moved > r->n_moved)
        dw_wait_begin(&r->wait, dw_clock_ms());
    else
        dw_wait_check(&r->wait, &r->hub->waits, r->hub->url, r->retry.n_tries,
                      dw_clock_ms());
    r->n_moved = n_moved;
}

static dw_status send_once(dw_hf_request *r, dw_error *err)
{
    dw_hf *h = r->hub;
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
    if (dw_hf_is_hub(h, call->url))
        lines[call->n_headers++] = h->authorization;
    call->stall_s = STALL_S;
    call->max_text = MAX_TEXT_BYTES;
    uint64_t left_ms = dw_retry_left_ms(&r->retry, dw_clock_ms());
    call->timeout_ms = left_ms > 0 ? (unsigned)left_ms : 1;
    dw_http_call_reset(call);
    dw_status status = report(r, err);
    if (status != DW_OK)
        return status;
    dw_http_submit(h->http, call, &r->inbox);
    while (!dw_http_wait(&r->inbox, IDLE_MS)) {
        report_wait(r);
        if (status == DW_OK) {
            status = report(r, err);
            if (status != DW_OK)
                dw_http_cancel(call);
        }
    }
    int64_t off_ms;
    if (dw_hf_is_hub(h, call->url) && dw_http_clock_offset(call, &off_ms)) {
        atomic_store(&h->server_offset_ms, off_ms);
        atomic_store(&h->has_clock, true);
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

static dw_status wait_before_next(dw_hf_request *r, const char *reason, dw_error *err)
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
        return dw_fail(err, DW_UNAVAILABLE, dw_hf_where(r->hub, r->key, where),
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
        report_wait(r);
        status = report(r, err);
    }
    return status;
}

static bool follow_redirect(dw_hf_request *r)
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
    r->target = r->call.redirect_url; /* moved here */
    r->call.redirect_url = NULL;
    return true;
}

static dw_status fail_final(const dw_hf_request *r, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    dw_hf_where(r->hub, r->key, where);
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

/* Sets *AGAIN, or returns the final result. */
static dw_status judge(dw_hf_request *r, bool *again, dw_error *err)
{
    dw_http_call *call = &r->call;
    char where[DW_ERROR_WHERE_SIZE], reason[64];
    *again = true;
    if (call->result == DW_HTTP_HOPELESS)
        return dw_fail(err, DW_UNAVAILABLE, dw_hf_where(r->hub, r->key, where), "%s",
                       call->problem);
    if (call->result != DW_HTTP_ANSWERED)
        return wait_before_next(r, call->problem, err);
    atomic_store(&r->hub->waits.has_answered, true);
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

dw_status dw_hf_ask(dw_hf_request *r, dw_error *err)
{
    if (r->url.failed)
        return dw_fail_memory(err, r->hub->url);
    dw_status status = dw_http_inbox_init(&r->inbox, err);
    if (status != DW_OK)
        return status;
    dw_retry_start(&r->retry, r->hub->n_tries, r->hub->deadline_ms, dw_clock_ms());
    dw_wait_begin(&r->wait, dw_clock_ms());
    bool again = true;
    while (status == DW_OK && again) {
        status = send_once(r, err);
        if (status == DW_OK)
            status = judge(r, &again, err);
    }
    dw_http_inbox_release(&r->inbox);
    return status;
}
