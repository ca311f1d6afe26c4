/* The kernels in plain C: the definition that every other table is tested against. */
#include "kernel/kernel.h"

#include <string.h>

/* The cache lines of stores are seldom in the cache: at 1 % density nearly every store is
 * a miss. A prefetch this far ahead keeps about as many misses in flight as a core can
 * have. */
#define PREFETCH_AHEAD 32

/* Tensors in a file may be unaligned. */
typedef uint8_t any_u8;
typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));
typedef uint32_t any_u32 __attribute__((aligned(1), may_alias));
typedef uint64_t any_u64 __attribute__((aligned(1), may_alias));

#define DEFINE_KERNELS(T, W)                                                             \
    static size_t diff_##W(uint32_t *out, const void *a_, const void *b_, size_t n)      \
    {                                                                                    \
        const T *a = a_, *b = b_;                                                        \
        size_t n_out = 0;                                                                \
        for (size_t i = 0; i < n; i++)                                                   \
            if (a[i] != b[i])                                                            \
                out[n_out++] = (uint32_t)i;                                              \
        return n_out;                                                                    \
    }                                                                                    \
                                                                                         \
    static size_t class_diff_##W(dw_change *out, dw_class_state *state,                  \
                                 const void *old_, const void *new_, size_t n,           \
                                 const dw_class_map *map)                                \
    {                                                                                    \
        const T *old = old_;                                                             \
        const volatile T *new = new_; /* each read exactly once */                       \
        size_t n_out = 0;                                                                \
        for (size_t i = 0; i < n; i++) {                                                 \
            const T now = new[i];                                                        \
            unsigned c = dw_class_of(old[i], map);                                       \
            uint64_t rank = state->seen[c]++;                                            \
            if (old[i] != now) {                                                         \
                uint32_t gap = (uint32_t)(rank - state->resume[c]);                      \
                out[n_out++] = (dw_change){(uint32_t)i, c << 28 | gap, old[i], now};     \
                state->resume[c] = rank + 1;                                             \
            }                                                                            \
        }                                                                                \
        return n_out;                                                                    \
    }                                                                                    \
                                                                                         \
    static void class_count_##W(uint32_t totals[DW_CLASSES], const void *old_, size_t n, \
                                const dw_class_map *map)                                 \
    {                                                                                    \
        const T *old = old_;                                                             \
        memset(totals, 0, DW_CLASSES * sizeof *totals);                                  \
        for (size_t i = 0; i < n; i++)                                                   \
            totals[dw_class_of(old[i], map)]++;                                          \
    }                                                                                    \
                                                                                         \
    static void class_locate_##W(uint64_t *found, dw_locate_state *state,                \
                                 const void *old_, size_t n, const dw_class_map *map,    \
                                 const dw_class_gaps *gaps)                              \
    {                                                                                    \
        const T *old = old_;                                                             \
        memset(found, 0, (n + 63) / 64 * sizeof *found);                                 \
        for (size_t i = 0; i < n; i++) {                                                 \
            unsigned c = dw_class_of(old[i], map);                                       \
            if (state->seen[c]++ == state->rank[c]) {                                    \
                found[i / 64] |= 1ull << i % 64;                                         \
                dw_locate_next(state, gaps, c);                                          \
            }                                                                            \
        }                                                                                \
    }                                                                                    \
                                                                                         \
    void dw_plain_scatter_##W(void *data_, const uint32_t *positions,                    \
                              const void *values_, size_t n)                             \
    {                                                                                    \
        T *data = data_;                                                                 \
        const T *values = values_;                                                       \
        size_t i = 0;                                                                    \
        for (; i + PREFETCH_AHEAD < n; i++) {                                            \
            __builtin_prefetch(&data[positions[i + PREFETCH_AHEAD]], 1);                 \
            data[positions[i]] = values[i];                                              \
        }                                                                                \
        for (; i < n; i++)                                                               \
            data[positions[i]] = values[i];                                              \
    }                                                                                    \
                                                                                         \
    void dw_plain_gather_##W(void *values_, const void *data_,                           \
                             const uint32_t *positions, size_t n)                        \
    {                                                                                    \
        const T *data = data_;                                                           \
        T *values = values_;                                                             \
        for (size_t i = 0; i < n; i++)                                                   \
            values[i] = data[positions[i]];                                              \
    }

DEFINE_KERNELS(any_u8, 1)
DEFINE_KERNELS(any_u16, 2)
DEFINE_KERNELS(any_u32, 4)
DEFINE_KERNELS(any_u64, 8)

static size_t list_bits(uint32_t *out, const uint64_t *bits, size_t n_words)
{
    size_t n_out = 0;
    for (size_t w = 0; w < n_words; w++)
        for (uint64_t word = bits[w]; word; word &= word - 1)
            out[n_out++] = (uint32_t)(64 * w + (unsigned)__builtin_ctzll(word));
    return n_out;
}

static uint64_t digest_chunk(const void *chunk, const uint32_t *low, const uint32_t *high)
{
    const any_u32 *words = chunk;
    unsigned __int128 sum = 0;
    for (size_t j = 0; j < DW_DIGEST_CHUNK / 4; j++)
        sum += (unsigned __int128)words[j] * (low[j] + ((uint64_t)high[j] << 30));
    return dw_digest_reduce(sum);
}

#include "kernel/quant.inc"
#include "kernel/round.inc"

const dw_kernels dw_kernels_plain = DW_KERNEL_TABLE("plain");
