#include "program.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Names may come from a file: print one line without control characters. */
static void clean(char *text)
{
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == '\x7f')
            *c = '?';
}

dw_status wordle_fail(dw_error *err, dw_status code, const char *where,
                      const char *format, ...)
{
    if (err == NULL)
        return code;
    va_list args;
    va_start(args, format);
    err->code = code;
    snprintf(err->where, sizeof err->where, "%s", where);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    clean(err->where);
    clean(err->text);
    return code;
}

/* ---- options ---- */

_Noreturn void program_misused(const char *program, const char *what)
{
    fprintf(stderr, "%s: %s; see %s --help\n", program, what, program);
    exit(2);
}

static uint64_t read_number(const char *name, const char *text, uint64_t min,
                            uint64_t max)
{
    char *end;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && number >= min &&
        number <= max)
        return number;
    fprintf(stderr, "--%s: '%s' is no number from %" PRIu64 " to %" PRIu64 "\n", name,
            text, min, max);
    exit(2);
}

static void take_option(const program_option *o, const char *value)
{
    if (o->flag)
        *o->flag = true;
    else if (o->number)
        *o->number = read_number(o->name, value, o->min, o->max);
    else if (o->each)
        o->each(value);
    else
        *o->text = value;
}

void program_options(const char *program, const char *help, const program_option *options,
                     size_t n, int argc, char **argv)
{
    char what[128];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            exit(0);
        }
        size_t at = 0;
        while (at < n && (strncmp(argv[i], "--", 2) != 0 ||
                          strcmp(argv[i] + 2, options[at].name) != 0))
            at++;
        if (at == n) {
            snprintf(what, sizeof what, "'%.80s' is no option", argv[i]);
            program_misused(program, what);
        }
        if (!options[at].flag && i + 1 == argc) {
            snprintf(what, sizeof what, "--%s needs a value", options[at].name);
            program_misused(program, what);
        }
        take_option(&options[at], options[at].flag ? NULL : argv[++i]);
    }
}

int program_fail(const char *program, const dw_error *err)
{
    fprintf(stderr, "%s: %s%s%s\n", program, err->where, err->where[0] ? ": " : "",
            err->text);
    return 1;
}

/* ---- signals ---- */

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

/* ---- time and random numbers ---- */

uint64_t program_clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void program_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

struct timespec program_deadline(unsigned ms)
{
    const uint64_t end_ms = program_clock_ms() + ms;
    return (struct timespec){.tv_sec = (time_t)(end_ms / 1000),
                             .tv_nsec = (long)(end_ms % 1000) * 1000000};
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
