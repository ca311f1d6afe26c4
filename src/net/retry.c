#include "net/retry.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

static _Thread_local uint64_t thread_limit_ms;

void dw_retry_limit_thread(uint64_t until_ms)
{
    thread_limit_ms = until_ms;
}

void dw_retry_start(dw_retry *retry, unsigned max_tries, unsigned deadline_ms,
                    uint64_t now_ms)
{
    *retry = (dw_retry){
        .n_tries = 1,
        .max_tries = max_tries ? max_tries : DW_RETRY_TRIES,
        .deadline_ms = now_ms + (deadline_ms ? deadline_ms : DW_RETRY_DEADLINE_MS),
        .wait_ms = DW_RETRY_LEAST_MS,
    };
    if (thread_limit_ms && thread_limit_ms < retry->deadline_ms)
        retry->deadline_ms = thread_limit_ms;
}

uint64_t dw_retry_left_ms(const dw_retry *retry, uint64_t now_ms)
{
    return now_ms < retry->deadline_ms ? retry->deadline_ms - now_ms : 0;
}

bool dw_retry_again(dw_retry *retry, uint64_t now_ms, uint64_t server_ms, uint32_t roll,
                    uint64_t *wait_ms)
{
    if (retry->n_tries >= retry->max_tries)
        return false;
    uint64_t spread = retry->wait_ms * 3 - DW_RETRY_LEAST_MS;
    uint64_t wait = DW_RETRY_LEAST_MS + spread * roll / UINT32_MAX;
    if (wait > DW_RETRY_MOST_MS)
        wait = DW_RETRY_MOST_MS;
    retry->wait_ms = wait;
    if (wait < server_ms)
        wait = server_ms;
    if (wait >= dw_retry_left_ms(retry, now_ms))
        return false;
    retry->n_tries++;
    *wait_ms = wait;
    return true;
}

dw_retry_verdict dw_retry_judge(int status, const char *s3_code)
{
    static const char *const slower[] = {"SlowDown", "ServiceUnavailable", "Throttling",
                                         "RequestLimitExceeded", "TooManyRequests"};
    static const char *const again[] = {"RequestTimeout", "InternalError",
                                        "OperationAborted", "IncompleteBody",
                                        /* two creates at once, and neither has won */
                                        "ConditionalRequestConflict"};
    if (status == 429 || status == 503)
        return DW_RETRY_SLOWER;
    for (size_t i = 0; i < sizeof slower / sizeof *slower; i++)
        if (strcmp(s3_code, slower[i]) == 0)
            return DW_RETRY_SLOWER;
    for (size_t i = 0; i < sizeof again / sizeof *again; i++)
        if (strcmp(s3_code, again[i]) == 0)
            return DW_RETRY_AGAIN;
    /* 501 means that the server never can, so it is not tried again. */
    if ((status >= 500 && status != 501 && status != 505) || status == 408)
        return DW_RETRY_AGAIN;
    return DW_RETRY_FINAL;
}

uint64_t dw_retry_after_ms(const char *text, int64_t wall_ms)
{
    if (!text)
        return 0;
    if (*text >= '0' && *text <= '9' && strspn(text, "0123456789") == strlen(text)) {
        uint64_t seconds = strtoull(text, NULL, 10);
        return seconds < UINT32_MAX ? seconds * 1000 : (uint64_t)UINT32_MAX * 1000;
    }
    time_t when = curl_getdate(text, NULL);
    int64_t when_ms = (int64_t)when * 1000;
    return when >= 0 && when_ms > wall_ms ? (uint64_t)(when_ms - wall_ms) : 0;
}
