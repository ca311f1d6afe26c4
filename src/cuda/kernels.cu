/* All kernels in one unit.
 *
 * They are written in the common part of C and CUDA C++, so that tests/cuda can also
 * compile them for the CPU. A kernel has one argument, a struct, and one struct of memory
 * that the threads of a block share.
 */
#ifdef DW_CUDA_EMULATED
#define DW_KERNEL(name, threads, type) static void name(const type job)
#define DW_DENSE_KERNEL(name, threads, blocks, type) static void name(const type job)
#define DW_BLOCK_MEMORY(type, s)       type *const s = (type *)emulate_shared(sizeof(type))
#define DW_DEVICE                      static inline
#define DW_UNROLL
#define DW_UNROLL_BY(n)
#else
#include <cstdint>
#define DW_KERNEL(name, threads, type)                                                   \
    extern "C" __global__ void __launch_bounds__(threads) name(const type job)
/* So few registers that BLOCKS blocks of threads fit on a multiprocessor. */
#define DW_DENSE_KERNEL(name, threads, blocks, type)                                     \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const type job)
#define DW_BLOCK_MEMORY(type, s)                                                         \
    __shared__ type s##_memory;                                                          \
    type *const s = &s##_memory
#define DW_DEVICE static __device__ __forceinline__
#define DW_UNROLL       _Pragma("unroll")
#define DW_PRAGMA(text) _Pragma(#text)
#define DW_UNROLL_BY(n) DW_PRAGMA(unroll n)
#endif

#include "base/words.h"
#include "codec/class_model.h"
#include "codec/moves.h"
#include "cuda/kernels.h"
#include "kernel/round_one.h"

#include "cuda/warp.cuh"

#include "cuda/digest.cuh"

#include "cuda/cells.cuh"

#include "cuda/compare.cuh"
#include "cuda/choose.cuh"
#include "cuda/model.cuh"
#include "cuda/ans.cuh"
#include "cuda/pack.cuh"

#include "cuda/count.cuh"
#include "cuda/read.cuh"
#include "cuda/bounds.cuh"
#include "cuda/locate.cuh"
#include "cuda/scatter.cuh"
#include "cuda/stores.cuh"
