#include "base/clock.h"

#include <errno.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"

static int64_t read_ms(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

uint64_t dw_clock_ms(void)
{
    return (uint64_t)read_ms(CLOCK_MONOTONIC);
}

uint64_t dw_clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int64_t dw_wall_clock_ms(void)
{
    return read_ms(CLOCK_REALTIME);
}

void dw_time_format(char out[DW_TIME_TEXT], int64_t wall_ms)
{
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm t = {0};
    if (wall_ms < 0 || wall_ms > 253402300799999 || !gmtime_r(&seconds, &t))
        t = (struct tm){.tm_year = 70,
                        .tm_mday = 1}; /* the year would have more than four digits */
    snprintf(out, DW_TIME_TEXT, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ",
             (unsigned)(t.tm_year + 1900) % 10000u, (unsigned)(t.tm_mon + 1) % 100u,
             (unsigned)t.tm_mday % 100u, (unsigned)t.tm_hour % 100u,
             (unsigned)t.tm_min % 100u, (unsigned)t.tm_sec % 100u,
             (unsigned)(wall_ms % 1000) % 1000u);
}

int64_t dw_time_parse(const char *text)
{
    int year, month, day, hour, minute, second, n_read = 0;
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &year, &month, &day, &hour, &minute,
               &second, &n_read) != 6 ||
        year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour < 0 ||
        hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60)
        return 0;
    text += n_read;
    int ms = 0;
    if (*text == '.') {
        int unit = 100;
        for (text++; *text >= '0' && *text <= '9'; text++, unit /= 10)
            ms += unit * (*text - '0');
    }
    if (strcmp(text, "Z") != 0)
        return 0;
    struct tm t = {.tm_year = year - 1900,
                   .tm_mon = month - 1,
                   .tm_mday = day,
                   .tm_hour = hour,
                   .tm_min = minute,
                   .tm_sec = second};
    return (int64_t)timegm(&t) * 1000 + ms;
}

void dw_sleep_ms(uint64_t ms)
{
    struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

bool dw_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return false;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    bool good = pthread_cond_init(condition, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return good;
}

dw_status dw_random_bytes(void *out, size_t n_bytes, dw_error *err)
{
    if (n_bytes > 1 << 20 || RAND_bytes(out, (int)n_bytes) != 1)
        return dw_fail(err, DW_IO, NULL, "the system gives no random bytes");
    return DW_OK;
}

uint64_t dw_random_below(uint64_t n)
{
    uint64_t r;
    if (RAND_bytes((unsigned char *)&r, sizeof r) != 1)
        r = dw_clock_ms() * 0x9e3779b97f4a7c15ull;
    return r % n;
}
