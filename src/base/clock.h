/* Clocks and random numbers. */
#ifndef DW_BASE_CLOCK_H
#define DW_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/base.h"

/* A clock that never goes back, even if the wall clock does: for waits and deadlines. */
uint64_t dw_clock_ms(void);
uint64_t dw_clock_us(void);

/* Milliseconds since 1970: for people, and for requests that carry a date. */
int64_t dw_wall_clock_ms(void);

#define DW_TIME_TEXT 25

/* "2026-11-15T05:20:59.123Z", with its NUL. */
void dw_time_format(char out[DW_TIME_TEXT], int64_t wall_ms);

/* Parses such a time, with any number of digits after the point. 0 if TEXT is no such
 * time. */
int64_t dw_time_parse(const char *text);

void dw_sleep_ms(uint64_t ms);

/* Makes a condition whose timed waits use the clock that never goes back. False if the
 * system has none. */
bool dw_condition_init(pthread_cond_t *condition);

/* Bytes that nobody can guess. */
dw_status dw_random_bytes(void *out, size_t n_bytes, dw_error *err);

/* A number below N (at least 1), for jitter. Its quality does not matter. */
uint64_t dw_random_below(uint64_t n);

#endif
