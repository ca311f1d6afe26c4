/* Bits of entropy, computed from counts. */
#ifndef CLI_STATS_ENTROPY_H
#define CLI_STATS_ENTROPY_H

#include "stats_count.h"

/* Bits to name the K of N elements that changed, if all have the same chance. */
double stats_binary_bits(uint64_t n, uint64_t k);

/* Bits to name the K of N symbols that are the same. */
double stats_symbol_bits(uint64_t k, uint64_t n);

/* Bits to name the changed elements, if each one's bin is known. */
double stats_bins_bits(const stats_bins *bins);

void stats_bins_add(stats_bins *to, const stats_bins *more);

/* Takes bins in order of the predicted rate, highest first, as long as at least the share
 * PRECISION of their elements changed. Returns the share of all changes that are in these
 * bins; -1 if no number of first bins is that precise. */
double stats_bins_recall(const stats_bins *bins, double precision);

/* The best precision that any number of first bins has. */
double stats_bins_best_precision(const stats_bins *bins);

#endif
