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

#endif
