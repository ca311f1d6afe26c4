/* The loops over every weight, in one table of functions.
 *
 * plain.c defines what each function does; avx2.c, avx512.c and neon.c must give the same
 * results to the bit. The best table for the machine is chosen at first use;
 * DELTAWIRE_KERNEL=plain|avx2|avx512|neon chooses another.
 *
 * Each function exists for elements of 1, 2, 4 and 8 bytes: index the arrays with
 * dw_width_index(). N counts elements and is at most DW_BLOCK_ELEMS; positions are
 * relative to the pointers passed.
 */
#ifndef DW_KERNEL_KERNEL_H
#define DW_KERNEL_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernel/class_map.h"
#include "kernel/digest_sum.h"
#include "kernel/round_one.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "deltawire's kernels and formats assume a little-endian machine"
#endif

/* A changed element. The gap counts unchanged elements of the same class since the last
 * changed one. */
typedef struct dw_change {
    uint32_t position;
    uint32_t class_gap; /* class in the high 4 bits, gap in the low 28 */
    uint64_t old;
    uint64_t new_;
} dw_change;

/* The state of class_diff for each class between two calls. */
typedef struct dw_class_state {
    uint64_t seen[DW_CLASSES];   /* elements so far */
    uint64_t resume[DW_CLASSES]; /* elements up to the last changed one */
} dw_class_state;

/* The position of class_locate in each class. */
typedef struct dw_locate_state {
    uint64_t seen[DW_CLASSES]; /* elements so far */
    uint64_t rank[DW_CLASSES]; /* the rank of the next change, or DW_NO_RANK */
    uint32_t next[DW_CLASSES]; /* its gap */
} dw_locate_state;

#define DW_NO_RANK      (~0ull >> 1)
#define DW_LOCATE_ELEMS 8192u /* the most elements in one call */

/* The gaps of all classes: class c has gaps[first[c]] to gaps[first[c + 1] - 1]. */
typedef struct dw_class_gaps {
    const uint32_t *gaps;
    uint32_t first[DW_CLASSES + 1];
} dw_class_gaps;

static inline void dw_locate_begin(dw_locate_state *s, const dw_class_gaps *g)
{
    *s = (dw_locate_state){0};
    for (unsigned c = 0; c < DW_CLASSES; c++) {
        s->next[c] = g->first[c];
        s->rank[c] = g->first[c] < g->first[c + 1] ? g->gaps[g->first[c]] : DW_NO_RANK;
    }
}

/* Moves on to the next change of class C. */
static inline void dw_locate_next(dw_locate_state *s, const dw_class_gaps *g, unsigned c)
{
    s->next[c]++;
    s->rank[c] =
        s->next[c] < g->first[c + 1] ? s->rank[c] + 1 + g->gaps[s->next[c]] : DW_NO_RANK;
}

/* The lists of positions and changes need room for so many entries beyond N, because
 * entries are written in groups. */
#define DW_LIST_SLACK 8

typedef struct dw_kernels {
    const char *name;

    /* Writes the positions where A and B differ, ascending; returns how many. OUT
     * must have room for N and DW_LIST_SLACK more. */
    size_t (*diff[4])(uint32_t *out, const void *a, const void *b, size_t n);

    /* Like diff, but also returns the class and the gap of each changed element, by its
     * value in OLD, and both values. A block may take several calls, which share STATE;
     * it is zero at first. Each element of NEW_ is read exactly once, because another
     * thread may be writing them. */
    size_t (*class_diff[4])(dw_change *out, dw_class_state *state, const void *old,
                            const void *new_, size_t n, const dw_class_map *map);

    /* Counts the elements of each class. */
    void (*class_count[4])(uint32_t totals[DW_CLASSES], const void *old, size_t n,
                           const dw_class_map *map);

    /* The inverse of class_diff: from the gaps of each class, sets the bit of each
     * changed element in FOUND, which has a word for 64 elements. A block takes several
     * calls of DW_LOCATE_ELEMS elements; the last may have fewer. The gaps must fit the
     * block. */
    void (*class_locate[4])(uint64_t *found, dw_locate_state *state, const void *old,
                            size_t n, const dw_class_map *map, const dw_class_gaps *gaps);

    /* Writes the positions of set bits, ascending; returns how many. OUT must have room
     * for them and DW_LIST_SLACK more. */
    size_t (*list_bits)(uint32_t *out, const uint64_t *bits, size_t n_words);

    /* data[positions[i]] = values[i], and the inverse. */
    void (*scatter[4])(void *data, const uint32_t *positions, const void *values,
                       size_t n);
    void (*gather[4])(void *values, const void *data, const uint32_t *positions,
                      size_t n);

    /* Rounds N elements of F32 to BF16, like dw_cast_bf16. N has no limit. Each element
     * of IN is read exactly once. */
    void (*round_bf16)(void *out, const void *in, size_t n);

    /* Quantising, for BF16 (index 0) and F32 (index 1). IN is aligned, and nobody else
     * writes it. N has no limit.
     *
     * The largest magnitude, as the bits of an F32; 0x7f800000 or more if an element is
     * infinite or NaN. */
    uint32_t (*quant_max[2])(const void *in, size_t n);
    /* x / SCALE, rounded to the nearest F8_E4M3 or I8, halfway to even. SCALE is a normal
     * number, at least max |x| / 448 or / 127, but for one rounding. */
    void (*quant_fp8[2])(uint8_t *out, const void *in, size_t n, float scale);
    void (*quant_int8[2])(uint8_t *out, const void *in, size_t n, float scale);

    /* The sum of the chunk's 1,024 words, each times its coefficient, modulo
     * 2^61 - 1. Coefficient j is low[j] + 2^30 high[j], both below 2^30. */
    uint64_t (*digest_chunk)(const void *chunk, const uint32_t *low,
                             const uint32_t *high);
} dw_kernels;

/* The table in use. */
const dw_kernels *dw_kernels_get(void);

/* The table of that name, or NULL if this build or machine does not have it. */
const dw_kernels *dw_kernels_find(const char *name);

/* 1, 2, 4, 8 -> 0, 1, 2, 3. */
static inline unsigned dw_width_index(unsigned width)
{
    return (unsigned)__builtin_ctz(width);
}

/* Copies bytes that another thread may be writing. Use only the copy afterwards. The
 * barrier keeps the compiler from reading FROM a second time. */
static inline void dw_read_once(void *to, const void *from, size_t n_bytes)
{
    memcpy(to, from, n_bytes);
    __asm__ volatile("" : : "r"(to) : "memory");
}

/* ---- shared by the implementations ---- */

/* Scatter and gather are limited by memory, so wider registers gain nothing: all tables
 * share the plain ones. */
#define DW_DECLARE_MOVES(W)                                                              \
    void dw_plain_scatter_##W(void *data, const uint32_t *positions, const void *values, \
                              size_t n);                                                 \
    void dw_plain_gather_##W(void *values, const void *data, const uint32_t *positions,  \
                             size_t n);
DW_DECLARE_MOVES(1)
DW_DECLARE_MOVES(2)
DW_DECLARE_MOVES(4)
DW_DECLARE_MOVES(8)

/* A table of the functions that an implementation calls by their plain names. */
#define DW_EACH_WIDTH(f)                                                                 \
    {                                                                                    \
        f##_1, f##_2, f##_4, f##_8                                                       \
    }
#define DW_KERNEL_TABLE(label)                                                           \
    {                                                                                    \
        .name = label, .diff = DW_EACH_WIDTH(diff),                                      \
        .class_diff = DW_EACH_WIDTH(class_diff),                                         \
        .class_count = DW_EACH_WIDTH(class_count),                                       \
        .class_locate = DW_EACH_WIDTH(class_locate), .list_bits = list_bits,             \
        .scatter = DW_EACH_WIDTH(dw_plain_scatter),                                      \
        .gather = DW_EACH_WIDTH(dw_plain_gather), .round_bf16 = round_bf16,              \
        .quant_max = {quant_max_bf16, quant_max_f32},                                    \
        .quant_fp8 = {quant_fp8_bf16, quant_fp8_f32},                                    \
        .quant_int8 = {quant_int8_bf16, quant_int8_f32}, .digest_chunk = digest_chunk,   \
    }

extern const dw_kernels dw_kernels_plain;
#if defined(__x86_64__)
extern const dw_kernels dw_kernels_avx2;
extern const dw_kernels dw_kernels_avx512;
#elif defined(__aarch64__)
extern const dw_kernels dw_kernels_neon;
#endif

#endif
