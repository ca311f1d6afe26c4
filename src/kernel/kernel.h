/* The loops that touch every weight, behind one table.
 *
 * plain.c defines what each function does; avx2.c, avx512.c and neon.c must give the
 * same results to the bit. The best table the machine has is picked once, at first
 * use; DELTAWIRE_KERNEL=plain|avx2|avx512|neon picks another.
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

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "deltawire's kernels and formats assume a little-endian machine"
#endif

#define DW_BLOCK_ELEMS (1u << 20)
#define DW_CLASSES     16

/* Sorts an element into one of 16 classes by its magnitude:
 *
 *     class(x) = min(15, max(0, ((x & magnitude) >> shift) - base))
 *
 * For floats `magnitude` drops the sign and `shift` the mantissa, so a class is an
 * exponent: all weights that share an ulp. Types without that structure use
 * magnitude = 0 and have one class. */
typedef struct dw_class_map {
    uint64_t magnitude;
    uint32_t base;
    uint32_t shift;
} dw_class_map;

/* A changed element. The position fills the low 28 bits, the class the high 4. The
 * gap counts unchanged elements of the same class since the last changed one. */
typedef struct dw_change {
    uint32_t where;
    uint32_t gap;
} dw_change;

#define DW_WHERE(position, class_) ((uint32_t)(position) | (uint32_t)(class_) << 28)
#define DW_WHERE_POSITION(where)   ((where) & 0x0fffffffu)
#define DW_WHERE_CLASS(where)      ((where) >> 28)

#define DW_DIGEST_CHUNK 4096 /* bytes the digest kernel takes at once */

typedef struct dw_kernels {
    const char *name;

    /* Writes the positions where A and B differ, ascending; returns how many. OUT
     * must have room for N. */
    size_t (*diff[4])(uint32_t *out, const void *a, const void *b, size_t n);

    /* As diff, and tells class and gap of each changed element by its value in OLD.
     * TOTALS takes the number of elements of each class. */
    size_t (*class_diff[4])(dw_change *out, uint32_t totals[DW_CLASSES], const void *old,
                            const void *new_, size_t n, const dw_class_map *map);

    /* Counts the elements of each class. */
    void (*class_count[4])(uint32_t totals[DW_CLASSES], const void *old, size_t n,
                           const dw_class_map *map);

    /* The inverse of class_diff: given the gaps of each class, writes `where` of each
     * change, ascending, and returns how many. Class c has gaps[first[c]] to
     * gaps[first[c + 1] - 1]; they must fit the number of its elements. */
    size_t (*class_locate[4])(uint32_t *out, const void *old, size_t n,
                              const dw_class_map *map, const uint32_t *gaps,
                              const uint32_t first[DW_CLASSES + 1]);

    /* data[positions[i]] = values[i], and back. */
    void (*scatter[4])(void *data, const uint32_t *positions, const void *values,
                       size_t n);
    void (*gather[4])(void *values, const void *data, const uint32_t *positions,
                      size_t n);

    /* The sum of the chunk's 1,024 words, each times its coefficient, modulo
     * 2^61 - 1. Coefficient j is low[j] + 2^30 high[j], both below 2^30. */
    uint64_t (*digest_chunk)(const void *chunk, const uint32_t *low,
                             const uint32_t *high);
} dw_kernels;

/* The table in use. */
const dw_kernels *dw_kernels_get(void);

/* The table of that name, or NULL where this build or machine has none. */
const dw_kernels *dw_kernels_find(const char *name);

/* 1, 2, 4, 8 -> 0, 1, 2, 3. */
static inline unsigned dw_width_index(unsigned width)
{
    return (unsigned)__builtin_ctz(width);
}

/* ---- shared by the implementations ---- */

#define DW_DIGEST_PRIME ((1ull << 61) - 1)

static inline uint64_t dw_digest_reduce(unsigned __int128 v)
{
    uint64_t r = (uint64_t)(v & DW_DIGEST_PRIME) + (uint64_t)(v >> 61 & DW_DIGEST_PRIME) +
                 (uint64_t)(v >> 122);
    while (r >= DW_DIGEST_PRIME)
        r -= DW_DIGEST_PRIME;
    return r;
}

/* Scatter and gather wait for memory, not for arithmetic: wider registers gain
 * nothing, so every table shares the plain ones. */
#define DW_DECLARE_MOVES(W)                                                             \
    void dw_plain_scatter_##W(void *data, const uint32_t *positions,                    \
                              const void *values, size_t n);                            \
    void dw_plain_gather_##W(void *values, const void *data, const uint32_t *positions, \
                             size_t n);
DW_DECLARE_MOVES(1)
DW_DECLARE_MOVES(2)
DW_DECLARE_MOVES(4)
DW_DECLARE_MOVES(8)

#define DW_PLAIN_MOVES                                                                  \
    .scatter = {dw_plain_scatter_1, dw_plain_scatter_2, dw_plain_scatter_4,             \
                dw_plain_scatter_8},                                                    \
    .gather = {dw_plain_gather_1, dw_plain_gather_2, dw_plain_gather_4,                 \
               dw_plain_gather_8}

extern const dw_kernels dw_kernels_plain;
#if defined(__x86_64__)
extern const dw_kernels dw_kernels_avx2;
extern const dw_kernels dw_kernels_avx512;
#elif defined(__aarch64__)
extern const dw_kernels dw_kernels_neon;
#endif

#endif
