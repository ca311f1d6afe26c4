/* Moves: the distance from an old to a new element, in steps of its own type.
 *
 * Elements are mapped to whole numbers by their value: floats of both signs in order,
 * with -0 just below +0; other types are not changed. A move is the difference of two
 * such numbers, which for neighbouring floats of one sign is one ulp. The mapping is one
 * to one on bit patterns, so NaN payloads survive.
 */
#ifndef DW_CODEC_MOVES_H
#define DW_CODEC_MOVES_H

#include "base/portable.h"

/* There are no branches: signs are random, and a misprediction would cost as much as the
 * rest. */

/* The number of an element. For floats: if the sign bit is set, all bits are inverted,
 * else it is set. The result is modulo 2^bits. */
DW_INLINE uint64_t dw_element_rank(uint64_t x, unsigned bits, bool is_float)
{
    uint64_t negative = 0 - (x >> (bits - 1) & 1);
    uint64_t flip = negative | 1ull << (bits - 1);
    return is_float ? x ^ flip : x;
}

DW_INLINE uint64_t dw_element_unrank(uint64_t r, unsigned bits, bool is_float)
{
    uint64_t negative = (r >> (bits - 1) & 1) - 1;
    uint64_t flip = negative | 1ull << (bits - 1);
    return is_float ? r ^ flip : r;
}

/* A move as coded: (|move| - 1) * 2 + (move is negative). The elements must differ. */
DW_INLINE uint64_t dw_move_between(uint64_t old, uint64_t new_, unsigned bits,
                                   bool is_float)
{
    uint64_t d =
        dw_element_rank(new_, bits, is_float) - dw_element_rank(old, bits, is_float);
    d <<= 64 - bits; /* drop the bits above the element */
    uint64_t negative = d >> 63;
    uint64_t size = ((d ^ (0 - negative)) + negative) >> (64 - bits);
    return (size - 1) << 1 | negative;
}

DW_INLINE uint64_t dw_move_apply(uint64_t old, uint64_t move, unsigned bits,
                                 bool is_float)
{
    uint64_t negative = move & 1, size = (move >> 1) + 1;
    uint64_t rank = dw_element_rank(old, bits, is_float);
    rank += (size ^ (0 - negative)) + negative;
    return dw_element_unrank(rank, bits, is_float) & (~0ull >> (64 - bits));
}

#endif
