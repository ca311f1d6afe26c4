/* Durations counted in buckets, from 100 us to five minutes. */
#ifndef DW_AGENT_HISTOGRAM_H
#define DW_AGENT_HISTOGRAM_H

#include <stdint.h>

#define DW_N_BUCKETS 20

/* The upper bounds in microseconds; a bound is part of its bucket. */
extern const uint64_t dw_bucket_us[DW_N_BUCKETS];

typedef struct dw_histogram {
    uint64_t n_in[DW_N_BUCKETS + 1]; /* per bucket, not cumulative; the last: longer */
    uint64_t sum_us;
} dw_histogram;

void dw_histogram_add(dw_histogram *histogram, uint64_t us);

#endif
