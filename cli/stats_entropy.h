/* Bits of entropy, out of counts. */
#ifndef CLI_STATS_ENTROPY_H
#define CLI_STATS_ENTROPY_H

#include "stats_count.h"

/* Of N elements of which K changed, each with the same chance: bits to say which. */
double stats_binary_bits(uint64_t n, uint64_t k);

/* Of N symbols of which K are the same: bits to name these. */
double stats_symbol_bits(uint64_t k, uint64_t n);

/* To say of each element whether it changed, given its bin. */
double stats_bins_bits(const stats_bins *bins);

void stats_bins_add(stats_bins *to, const stats_bins *more);

/* Takes bins in order of the predicted rate, highest first, for as long as that can be
 * done with at least PRECISION of their elements changed. Returns the share of all
 * changes that lie in them; -1 if not even the first bins are as good. */
double stats_bins_recall(const stats_bins *bins, double precision);

/* The best precision that any number of first bins has. */
double stats_bins_best_precision(const stats_bins *bins);

#endif
