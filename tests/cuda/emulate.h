/* The part of CUDA that the kernels use, on the CPU.
 *
 * Blocks run one after the other. The threads of a block are fibers: each runs until it
 * reaches a barrier or a function of its warp, and then the next one runs. A seed varies
 * the order of threads, so that code which depends on it fails sooner or later. The
 * memory of a block is poisoned before each block. The program aborts if the threads of a
 * block do not all reach the same barrier, or those of a warp the same function.
 *
 * Include this before a kernel's source. emulate.c has the rest.
 */
#ifndef EMULATE_H
#define EMULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DW_CUDA_EMULATED 1

#define __global__
#define __device__
#define __launch_bounds__(n)

typedef struct emulate_index {
    unsigned x;
} emulate_index;

extern emulate_index threadIdx, blockIdx, blockDim, gridDim;

typedef struct uint4 {
    uint32_t x, y, z, w;
} __attribute__((aligned(16))) uint4;

void __syncthreads(void);
void __syncwarp(void);

/* The values of all lanes; valid until the warp's next call. */
const uint64_t *emulate_share(unsigned mask, uint64_t value);
uint64_t emulate_shuffle(unsigned mask, uint64_t value, unsigned lane);
uint64_t emulate_shuffle_up(unsigned mask, uint64_t value, unsigned by);
uint64_t emulate_shuffle_xor(unsigned mask, uint64_t value, unsigned by);
unsigned __ballot_sync(unsigned mask, int predicate);
unsigned __reduce_add_sync(unsigned mask, unsigned value);
unsigned __reduce_or_sync(unsigned mask, unsigned value);
unsigned __match_any_sync(unsigned mask, unsigned value);

#define __shfl_sync(mask, value, lane)                                                   \
    ((__typeof__(value))emulate_shuffle(mask, (uint64_t)(value), lane))
#define __shfl_up_sync(mask, value, by)                                                  \
    ((__typeof__(value))emulate_shuffle_up(mask, (uint64_t)(value), by))
#define __shfl_xor_sync(mask, value, by)                                                 \
    ((__typeof__(value))emulate_shuffle_xor(mask, (uint64_t)(value), by))

#define atomicAdd(pointer, value)                                                        \
    __extension__({                                                                      \
        __typeof__(pointer) at_ = (pointer);                                             \
        __typeof__(*at_) before_ = *at_;                                                 \
        *at_ = (__typeof__(*at_))(before_ + (value));                                    \
        before_;                                                                         \
    })
#define atomicOr(pointer, value) ((void)(*(pointer) |= (value)))

#define __popc(v)        __builtin_popcount(v)
#define __clzll(v)       ((v) ? __builtin_clzll((unsigned long long)(v)) : 64)
#define __ffs(v)         __builtin_ffs((int)(v))
#define __umulhi(a, b)   ((uint32_t)((uint64_t)(a) * (b) >> 32))
#define __umul64hi(a, b) ((uint64_t)((unsigned __int128)(a) * (b) >> 64))

/* For both halves of a word: max(min(a + b, c), 0). */
static inline uint32_t __viaddmin_s16x2_relu(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t out = 0;
    for (unsigned i = 0; i < 32; i += 16) {
        const int16_t sum = (int16_t)((a >> i) + (b >> i)), most = (int16_t)(c >> i);
        const int16_t least = sum < most ? sum : most;
        out |= (uint32_t)(uint16_t)(least > 0 ? least : 0) << i;
    }
    return out;
}

/* For both halves of a word: min(a, b). */
static inline uint32_t __vminu2(uint32_t a, uint32_t b)
{
    const uint32_t low = (a & 0xffff) < (b & 0xffff) ? a & 0xffff : b & 0xffff;
    const uint32_t high = a >> 16 < b >> 16 ? a >> 16 : b >> 16;
    return high << 16 | low;
}

/* The memory of a block: the same for all its threads. */
void *emulate_shared(size_t n_bytes);

/* Runs KERNEL(ARGUMENT) as a grid. */
void emulate_run(void (*kernel)(const void *argument), const void *argument,
                 unsigned n_blocks, unsigned n_threads);

/* Varies the order of threads from now on. */
void emulate_seed(uint64_t seed);

#endif
