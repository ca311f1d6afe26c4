/* Time and chance. */
#ifndef DW_BASE_CLOCK_H
#define DW_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/error.h"

/* Never goes back, whatever becomes of the wall clock: for waits and deadlines. */
uint64_t dw_clock_ms(void);
uint64_t dw_clock_us(void);

/* Milliseconds since 1970: for people, and for requests that carry a date. */
int64_t dw_wall_clock_ms(void);

#define DW_TIME_TEXT 25

/* "2026-11-15T05:20:59.123Z", with its NUL. */
void dw_time_format(char out[DW_TIME_TEXT], int64_t wall_ms);

/* The other way; any number of digits behind the point. 0 if TEXT is no such time. */
int64_t dw_time_parse(const char *text);

void dw_sleep_ms(uint64_t ms);

/* A condition whose timed waits go by the clock that never goes back; false if there is
 * none. */
bool dw_condition_init(pthread_cond_t *condition);

/* Bytes that nobody can guess. */
dw_status dw_random_bytes(void *out, size_t n_bytes, dw_error *err);

/* A number below N (at least 1), for jitter: nothing depends on its quality. */
uint64_t dw_random_below(uint64_t n);

#endif
