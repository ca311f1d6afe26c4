/* Headers with arithmetic that the CPU and CUDA devices share begin with this one. They
 * are C11 and C++ at once: no compound literals, no designated initialisers, and casts
 * from void pointers.
 */
#ifndef DW_BASE_PORTABLE_H
#define DW_BASE_PORTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define DW_INLINE static __host__ __device__ __forceinline__
#else
#define DW_INLINE static inline
#endif

/* The number of the highest and of the lowest bit that is set. V is not 0. */
DW_INLINE unsigned dw_top_bit(uint64_t v)
{
#ifdef __CUDA_ARCH__
    return 63 - (unsigned)__clzll((long long)v);
#else
    return 63 - (unsigned)__builtin_clzll(v);
#endif
}

DW_INLINE unsigned dw_low_bit(uint64_t v)
{
#ifdef __CUDA_ARCH__
    return (unsigned)__ffsll((long long)v) - 1;
#else
    return (unsigned)__builtin_ctzll(v);
#endif
}

#endif
