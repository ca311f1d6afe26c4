/* Bits of entropy, computed from counts. */
#ifndef CLI_STATS_ENTROPY_H
#define CLI_STATS_ENTROPY_H

#include "stats_count.h"

/* Bits to name the K of N elements that changed, if all have the same chance. */
double stats_binary_bits(uint64_t n, uint64_t k);

/* Bits to name the K of N symbols that are the same. */
double stats_symbol_bits(uint64_t k, uint64_t n);

#endif
