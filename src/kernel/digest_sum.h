/* Arithmetic modulo 2^61 - 1, for digests. Shared with CUDA devices. */
#ifndef DW_KERNEL_DIGEST_SUM_H
#define DW_KERNEL_DIGEST_SUM_H

#include "base/portable.h"

#define DW_DIGEST_PRIME ((1ull << 61) - 1)
#define DW_DIGEST_CHUNK 4096 /* bytes that the digest kernel takes at once */

DW_INLINE uint64_t dw_digest_reduce(unsigned __int128 v)
{
    uint64_t r = (uint64_t)(v & DW_DIGEST_PRIME) + (uint64_t)(v >> 61 & DW_DIGEST_PRIME) +
                 (uint64_t)(v >> 122);
    while (r >= DW_DIGEST_PRIME)
        r -= DW_DIGEST_PRIME;
    return r;
}

/* For A and B below the prime. */
DW_INLINE uint64_t dw_digest_plus(uint64_t a, uint64_t b)
{
    uint64_t sum = a + b;
    return sum >= DW_DIGEST_PRIME ? sum - DW_DIGEST_PRIME : sum;
}

DW_INLINE uint64_t dw_digest_times(uint64_t a, uint64_t b)
{
    return dw_digest_reduce((unsigned __int128)a * b);
}

#endif
