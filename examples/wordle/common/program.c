#include "program.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

uint64_t program_number(const char *option, const char *text, uint64_t min, uint64_t max)
{
    char *end;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && number >= min &&
        number <= max)
        return number;
    fprintf(stderr, "%s: '%s' is no number from %" PRIu64 " to %" PRIu64 "\n", option,
            text, min, max);
    exit(2);
}

int program_fail(const char *program, const dw_error *err)
{
    fprintf(stderr, "%s: %s%s%s\n", program, err->where, err->where[0] ? ": " : "",
            err->text);
    return 1;
}

static void end_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    struct sigaction now;
    if (sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
        sigaddset(set, SIGHUP);
}

void program_block_signals(void)
{
    sigset_t set;
    end_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

void program_wait(void)
{
    sigset_t set;
    int number;
    end_signals(&set);
    sigwait(&set, &number);
}

bool program_take_end(unsigned wait_ms)
{
    sigset_t set;
    end_signals(&set);
    const struct timespec t = {.tv_sec = (time_t)(wait_ms / 1000),
                               .tv_nsec = (long)(wait_ms % 1000) * 1000000};
    return sigtimedwait(&set, NULL, &t) > 0;
}

bool program_is_to_end(void)
{
    sigset_t wanted, pending;
    end_signals(&wanted);
    sigpending(&pending);
    for (int i = 1; i < NSIG; i++)
        if (sigismember(&wanted, i) == 1 && sigismember(&pending, i) == 1)
            return true;
    return false;
}

uint64_t program_clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t program_random(void)
{
    uint64_t number = program_clock_ms(); /* for a kernel without getrandom */
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return program_next_random(&number);
    return number;
}

uint64_t program_next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
