/* Rounds an F32 to BF16 as PyTorch does: to the nearest value, and halfway to the even
 * one; every NaN becomes 0x7fc0. No branches. Shared with CUDA devices. */
#ifndef DW_KERNEL_ROUND_ONE_H
#define DW_KERNEL_ROUND_ONE_H

#include "base/portable.h"

DW_INLINE uint16_t dw_round_bf16(uint32_t x)
{
    const uint32_t rounded = (x + 0x7fff + ((x >> 16) & 1)) >> 16;
    const bool is_nan = (x & 0x7fffffff) > 0x7f800000;
    return (uint16_t)(is_nan ? 0x7fc0 : rounded);
}

#endif
