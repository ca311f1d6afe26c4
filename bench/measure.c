#include "measure.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

double bench_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t bench_anonymous_bytes(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %llu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

struct bench_peak {
    pthread_t thread;
    atomic_bool stop;
    uint64_t start;
    uint64_t most;
};

static void *watch(void *argument)
{
    bench_peak *peak = argument;
    const struct timespec pause = {0, 2000000};
    while (!atomic_load(&peak->stop)) {
        uint64_t now = bench_anonymous_bytes();
        peak->most = now > peak->most ? now : peak->most;
        nanosleep(&pause, NULL);
    }
    return NULL;
}

bench_peak *bench_peak_start(void)
{
    bench_peak *peak = calloc(1, sizeof *peak);
    if (!peak)
        return NULL;
    malloc_trim(
        0); /* free heap memory of earlier rounds, which would hide the use of this one */
    peak->start = peak->most = bench_anonymous_bytes();
    if (pthread_create(&peak->thread, NULL, watch, peak) != 0) {
        free(peak);
        return NULL;
    }
    return peak;
}

uint64_t bench_peak_stop(bench_peak *peak)
{
    if (!peak)
        return 0;
    atomic_store(&peak->stop, true);
    pthread_join(peak->thread, NULL);
    uint64_t above = peak->most - peak->start;
    free(peak);
    return above;
}
