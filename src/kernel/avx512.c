/* Kernels for AVX-512 with BW, VL, DQ and VPOPCNTDQ (Ice Lake, Zen 4 and later). */
#include "kernel/kernel.h"

#include <immintrin.h>
#include <string.h>

typedef __m512i class_bytes; /* of 64 elements */

typedef struct lanes {
    __m512i low, high; /* classes 0 to 7, 8 to 15 */
} lanes;

typedef struct class_map {
    __m512i magnitude, base, last;
    __m128i shift;
} class_map;

static inline class_map class_map_of(const dw_class_map *map, unsigned width)
{
    class_map m;
    long long magnitude = (long long)map->magnitude;
    switch (width) {
    case 1:
        /* the shift works on 16 bits: the mask drops bits that cross into the next byte
         */
        m.magnitude = _mm512_set1_epi8((char)(map->magnitude >> map->shift));
        m.base = _mm512_set1_epi8((char)map->base);
        m.last = _mm512_set1_epi8(DW_CLASSES - 1);
        break;
    case 2:
        m.magnitude = _mm512_set1_epi16((short)magnitude);
        m.base = _mm512_set1_epi16((short)map->base);
        m.last = _mm512_set1_epi16(DW_CLASSES - 1);
        break;
    case 4:
        m.magnitude = _mm512_set1_epi32((int)magnitude);
        m.base = _mm512_set1_epi32((int)map->base);
        m.last = _mm512_set1_epi32(DW_CLASSES - 1);
        break;
    default:
        m.magnitude = _mm512_set1_epi64(magnitude);
        m.base = _mm512_set1_epi64(map->base);
        m.last = _mm512_set1_epi64(DW_CLASSES - 1);
    }
    m.shift = _mm_cvtsi32_si128((int)map->shift);
    return m;
}

static inline lanes lanes_zero(void)
{
    return (lanes){_mm512_setzero_si512(), _mm512_setzero_si512()};
}

static inline lanes lanes_load(const uint64_t from[DW_CLASSES])
{
    return (lanes){_mm512_loadu_si512(from), _mm512_loadu_si512(from + 8)};
}

static inline void lanes_store(uint64_t to[DW_CLASSES], lanes l)
{
    _mm512_storeu_si512(to, l.low);
    _mm512_storeu_si512(to + 8, l.high);
}

static inline void class_bytes_store(uint8_t to[64], class_bytes classes)
{
    _mm512_storeu_si512(to, classes);
}

static inline __m512i plane(class_bytes classes, char bit)
{
    return _mm512_set1_epi64(
        (long long)_mm512_test_epi8_mask(classes, _mm512_set1_epi8(bit)));
}

static inline lanes lanes_masks(class_bytes classes, uint64_t valid)
{
    /* lane c takes plane j unchanged if bit j of c is set, else inverted */
    const __m512i m0 = _mm512_set_epi64(0, -1, 0, -1, 0, -1, 0, -1);
    const __m512i m1 = _mm512_set_epi64(0, 0, -1, -1, 0, 0, -1, -1);
    const __m512i m2 = _mm512_set_epi64(0, 0, 0, 0, -1, -1, -1, -1);
    /* (plane 0 ^ m0) & (plane 1 ^ m1) & (plane 2 ^ m2) */
    __m512i low3 = _mm512_and_si512(
        _mm512_ternarylogic_epi64(_mm512_xor_si512(plane(classes, 1), m0),
                                  plane(classes, 2), m1, 0x60),
        _mm512_xor_si512(plane(classes, 4), m2));
    uint64_t top = _mm512_test_epi8_mask(classes, _mm512_set1_epi8(8));
    return (lanes){_mm512_and_si512(low3, _mm512_set1_epi64((long long)(~top & valid))),
                   _mm512_and_si512(low3, _mm512_set1_epi64((long long)(top & valid)))};
}

static inline lanes lanes_add_counts(lanes sums, lanes masks)
{
    return (lanes){_mm512_add_epi64(sums.low, _mm512_popcnt_epi64(masks.low)),
                   _mm512_add_epi64(sums.high, _mm512_popcnt_epi64(masks.high))};
}

/* The index of the lowest set bit; 64 if there is none. */
static inline unsigned lowest_bit(uint64_t bits)
{
    return (unsigned)_tzcnt_u64(bits);
}

static inline unsigned select_bit(uint64_t mask, unsigned k)
{
    return (unsigned)_tzcnt_u64(_pdep_u64(1ull << k, mask));
}

static inline __m512i load(const uint8_t *at, unsigned vector)
{
    return _mm512_loadu_si512(at + vector * 64);
}

/* Copies 64 elements that another thread may be writing. The compiler may use the
 * registers afterwards, but not read FROM again. */
static inline void take_group(uint8_t *to, const uint8_t *from, unsigned width)
{
    for (unsigned v = 0; v < width; v++) {
        __m512i x = load(from, v);
        __asm__ volatile("" : "+v"(x));
        _mm512_storeu_si512(to + 64 * v, x);
    }
}

/* ---- 1 byte ---- */

static inline uint64_t differ_1(const uint8_t *a, const uint8_t *b)
{
    return _mm512_cmpneq_epu8_mask(load(a, 0), load(b, 0));
}

static inline class_bytes classes_1(const uint8_t *elems, const class_map *map)
{
    __m512i c =
        _mm512_and_si512(_mm512_srl_epi16(load(elems, 0), map->shift), map->magnitude);
    return _mm512_min_epu8(_mm512_subs_epu8(c, map->base), map->last);
}

/* ---- 2 bytes ---- */

static inline uint64_t differ_2(const uint8_t *a, const uint8_t *b)
{
    return _mm512_kunpackd(_mm512_cmpneq_epu16_mask(load(a, 1), load(b, 1)),
                           _mm512_cmpneq_epu16_mask(load(a, 0), load(b, 0)));
}

static inline __m512i class_2(__m512i x, const class_map *map)
{
    __m512i c = _mm512_srl_epi16(_mm512_and_si512(x, map->magnitude), map->shift);
    return _mm512_min_epu16(_mm512_subs_epu16(c, map->base), map->last);
}

static inline class_bytes classes_2(const uint8_t *elems, const class_map *map)
{
    /* packing works inside 128-bit lanes; the permutation puts them in order */
    const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    __m512i packed =
        _mm512_packus_epi16(class_2(load(elems, 0), map), class_2(load(elems, 1), map));
    return _mm512_permutexvar_epi64(order, packed);
}

/* ---- 4 bytes ---- */

static inline uint64_t differ_4(const uint8_t *a, const uint8_t *b)
{
    uint64_t d = 0;
    for (unsigned v = 0; v < 4; v++)
        d |= (uint64_t)_mm512_cmpneq_epu32_mask(load(a, v), load(b, v)) << 16 * v;
    return d;
}

static inline __m512i class_4(__m512i x, const class_map *map)
{
    __m512i c = _mm512_srl_epi32(_mm512_and_si512(x, map->magnitude), map->shift);
    c = _mm512_sub_epi32(_mm512_max_epu32(c, map->base), map->base);
    return _mm512_min_epu32(c, map->last);
}

static inline class_bytes classes_4(const uint8_t *elems, const class_map *map)
{
    const __m512i order =
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __m512i low =
        _mm512_packus_epi32(class_4(load(elems, 0), map), class_4(load(elems, 1), map));
    __m512i high =
        _mm512_packus_epi32(class_4(load(elems, 2), map), class_4(load(elems, 3), map));
    return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
}

/* ---- 8 bytes ---- */

static inline uint64_t differ_8(const uint8_t *a, const uint8_t *b)
{
    uint64_t d = 0;
    for (unsigned v = 0; v < 8; v++)
        d |= (uint64_t)_mm512_cmpneq_epu64_mask(load(a, v), load(b, v)) << 8 * v;
    return d;
}

static inline class_bytes classes_8(const uint8_t *elems, const class_map *map)
{
    uint64_t bytes[8];
    for (unsigned v = 0; v < 8; v++) {
        __m512i c = _mm512_srl_epi64(_mm512_and_si512(load(elems, v), map->magnitude),
                                     map->shift);
        c = _mm512_sub_epi64(_mm512_max_epu64(c, map->base), map->base);
        c = _mm512_min_epu64(c, map->last);
        bytes[v] = (uint64_t)_mm_cvtsi128_si64(_mm512_cvtepi64_epi8(c));
    }
    return _mm512_loadu_si512(bytes);
}

#include "kernel/quant.inc"
#include "kernel/round.inc"
#include "kernel/widths.inc"

/* Products are below 2^62, so two can be added before they are split into the halves
 * that are summed. */
static inline void add_products(__m512i *low_sum, __m512i *high_sum, __m512i words,
                                __m512i coefficients)
{
    const __m512i low_half = _mm512_set1_epi64(0xffffffff);
    __m512i even = _mm512_mul_epu32(words, coefficients);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(words, 32),
                                   _mm512_srli_epi64(coefficients, 32));
    __m512i both = _mm512_add_epi64(even, odd);
    *low_sum = _mm512_add_epi64(*low_sum, _mm512_and_si512(both, low_half));
    *high_sum = _mm512_add_epi64(*high_sum, _mm512_srli_epi64(both, 32));
}

static uint64_t digest_chunk(const void *chunk, const uint32_t *low, const uint32_t *high)
{
    const uint8_t *words = chunk;
    __m512i sum[4];
    for (unsigned i = 0; i < 4; i++)
        sum[i] = _mm512_setzero_si512();
    for (size_t j = 0; j < DW_DIGEST_CHUNK; j += 64) {
        __m512i w = _mm512_loadu_si512(words + j);
        add_products(&sum[0], &sum[1], w, _mm512_loadu_si512((const uint8_t *)low + j));
        add_products(&sum[2], &sum[3], w, _mm512_loadu_si512((const uint8_t *)high + j));
    }
    unsigned __int128 total = (uint64_t)_mm512_reduce_add_epi64(sum[0]);
    total += (unsigned __int128)(uint64_t)_mm512_reduce_add_epi64(sum[1]) << 32;
    total += (unsigned __int128)(uint64_t)_mm512_reduce_add_epi64(sum[2]) << 30;
    total += (unsigned __int128)(uint64_t)_mm512_reduce_add_epi64(sum[3]) << 62;
    return dw_digest_reduce(total);
}

const dw_kernels dw_kernels_avx512 = DW_KERNEL_TABLE("avx512");
