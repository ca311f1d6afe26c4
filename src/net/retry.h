/* Decides when to try again. It has no clock and no random numbers: the caller passes
 * both. */
#ifndef DW_NET_RETRY_H
#define DW_NET_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#define DW_RETRY_TRIES       10
#define DW_RETRY_DEADLINE_MS 180000
#define DW_RETRY_LEAST_MS    100
#define DW_RETRY_MOST_MS     15000

typedef struct dw_retry {
    unsigned n_tries; /* begun so far */
    unsigned max_tries;
    uint64_t deadline_ms; /* of the clock that never goes back */
    uint64_t wait_ms;     /* the last one */
} dw_retry;

/* Begins the first try. 0 means the default. */
void dw_retry_start(dw_retry *retry, unsigned max_tries, unsigned deadline_ms,
                    uint64_t now_ms);

/* Requests that this thread begins from now on have no try after UNTIL_MS; 0: no such
 * limit. */
void dw_retry_limit_thread(uint64_t until_ms);

/* The time left for a try that begins now; 0 when the deadline has passed. */
uint64_t dw_retry_left_ms(const dw_retry *retry, uint64_t now_ms);

/* After a failed try: whether to try again, and after *WAIT_MS. Decorrelated jitter:
 * between 100 ms and three times the last wait, at most 15 s, chosen by ROLL, a random
 * 32-bit number. The wait is at least SERVER_MS, the server's wish. If that passes the
 * deadline, there is no other try. */
bool dw_retry_again(dw_retry *retry, uint64_t now_ms, uint64_t server_ms, uint32_t roll,
                    uint64_t *wait_ms);

typedef enum dw_retry_verdict {
    DW_RETRY_FINAL = 0,
    DW_RETRY_AGAIN,
    DW_RETRY_SLOWER, /* again, with fewer requests at once */
} dw_retry_verdict;

/* What to do after an HTTP status with the code of S3's error document ("": none). */
dw_retry_verdict dw_retry_judge(int status, const char *s3_code);

/* Retry-After: seconds or a date; 0 if TEXT is NULL or neither. */
uint64_t dw_retry_after_ms(const char *text, int64_t wall_ms);

#endif
