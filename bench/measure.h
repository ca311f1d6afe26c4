/* Time and memory. */
#ifndef DW_BENCH_MEASURE_H
#define DW_BENCH_MEASURE_H

#include <stdint.h>

double bench_seconds(void);

/* The time of the processors for all threads of the process. */
double bench_cpu_seconds(void);

/* The anonymous memory of the process now. */
uint64_t bench_anonymous_bytes(void);

/* Watches the peak of that from a thread of its own. */
typedef struct bench_peak bench_peak;
bench_peak *bench_peak_start(void);
uint64_t bench_peak_stop(bench_peak *peak); /* bytes above the start; frees it */

#endif
