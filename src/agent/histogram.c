#include "agent/histogram.h"

#include <stddef.h>

const uint64_t dw_bucket_us[DW_N_BUCKETS] = {
    100,     250,      500,      1000,     2500,      5000,      10000,
    25000,   50000,    100000,   250000,   500000,    1000000,   2500000,
    5000000, 10000000, 30000000, 60000000, 120000000, 300000000,
};

void dw_histogram_add(dw_histogram *histogram, uint64_t us)
{
    size_t i = 0;
    while (i < DW_N_BUCKETS && us > dw_bucket_us[i])
        i++;
    histogram->n_in[i]++;
    histogram->sum_us += us;
}
