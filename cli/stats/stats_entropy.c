#include "stats_entropy.h"

#include <math.h>

double stats_symbol_bits(uint64_t k, uint64_t n)
{
    return k == 0 ? 0 : (double)k * log2((double)n / (double)k);
}

double stats_binary_bits(uint64_t n, uint64_t k)
{
    return stats_symbol_bits(k, n) + stats_symbol_bits(n - k, n);
}
