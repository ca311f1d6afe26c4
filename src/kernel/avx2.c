/* Kernels for AVX2 with BMI2 and POPCNT (Haswell, Zen and later). */
#include "kernel/kernel.h"

#include <immintrin.h>
#include <string.h>

typedef struct class_bytes {
    __m256i low, high; /* of 64 elements */
} class_bytes;

typedef struct lanes {
    __m256i quad[4]; /* classes 0 to 3, 4 to 7, ... */
} lanes;

typedef struct class_map {
    __m256i magnitude, base, last;
    __m128i shift;
    dw_class_map scalar;
} class_map;

static inline class_map class_map_of(const dw_class_map *map, unsigned width)
{
    class_map m = {.scalar = *map};
    switch (width) {
    case 1:
        /* the shift works on 16 bits: the mask drops bits that cross into the next byte
         */
        m.magnitude = _mm256_set1_epi8((char)(map->magnitude >> map->shift));
        m.base = _mm256_set1_epi8((char)map->base);
        m.last = _mm256_set1_epi8(DW_CLASSES - 1);
        break;
    case 2:
        m.magnitude = _mm256_set1_epi16((short)map->magnitude);
        m.base = _mm256_set1_epi16((short)map->base);
        m.last = _mm256_set1_epi16(DW_CLASSES - 1);
        break;
    default:
        m.magnitude = _mm256_set1_epi32((int)map->magnitude);
        m.base = _mm256_set1_epi32((int)map->base);
        m.last = _mm256_set1_epi32(DW_CLASSES - 1);
    }
    m.shift = _mm_cvtsi32_si128((int)map->shift);
    return m;
}

static inline lanes lanes_zero(void)
{
    __m256i zero = _mm256_setzero_si256();
    return (lanes){{zero, zero, zero, zero}};
}

static inline lanes lanes_load(const uint64_t from[DW_CLASSES])
{
    lanes l;
    for (unsigned i = 0; i < 4; i++)
        l.quad[i] = _mm256_loadu_si256((const __m256i *)(from + 4 * i));
    return l;
}

static inline void lanes_store(uint64_t to[DW_CLASSES], lanes l)
{
    for (unsigned i = 0; i < 4; i++)
        _mm256_storeu_si256((__m256i *)(to + 4 * i), l.quad[i]);
}

static inline uint64_t byte_signs(__m256i low, __m256i high)
{
    return (uint32_t)_mm256_movemask_epi8(low) |
           (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

static inline void class_bytes_store(uint8_t to[64], class_bytes classes)
{
    _mm256_storeu_si256((__m256i *)to, classes.low);
    _mm256_storeu_si256((__m256i *)(to + 32), classes.high);
}

/* Bit BIT of each class: a shift brings it to the top of its byte. */
static inline uint64_t plane(class_bytes classes, int bit)
{
    return byte_signs(_mm256_slli_epi16(classes.low, 7 - bit),
                      _mm256_slli_epi16(classes.high, 7 - bit));
}

static inline lanes lanes_masks(class_bytes classes, uint64_t valid)
{
    /* lane c takes plane j unchanged if bit j of c is set, else inverted */
    const __m256i b0 = _mm256_xor_si256(_mm256_set1_epi64x((long long)plane(classes, 0)),
                                        _mm256_set_epi64x(0, -1, 0, -1));
    const __m256i b1 = _mm256_xor_si256(_mm256_set1_epi64x((long long)plane(classes, 1)),
                                        _mm256_set_epi64x(0, 0, -1, -1));
    const __m256i low2 = _mm256_and_si256(b0, b1);
    const uint64_t b2 = plane(classes, 2), b3 = plane(classes, 3);
    const uint64_t top[4] = {~b2 & ~b3 & valid, b2 & ~b3 & valid, ~b2 & b3 & valid,
                             b2 & b3 & valid};
    lanes l;
    for (unsigned i = 0; i < 4; i++)
        l.quad[i] = _mm256_and_si256(low2, _mm256_set1_epi64x((long long)top[i]));
    return l;
}

static inline lanes lanes_add_counts(lanes sums, lanes masks)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i counts =
        _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2,
                         2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    for (unsigned i = 0; i < 4; i++) {
        __m256i m = masks.quad[i];
        __m256i low = _mm256_shuffle_epi8(counts, _mm256_and_si256(m, nibble));
        __m256i high = _mm256_shuffle_epi8(
            counts, _mm256_and_si256(_mm256_srli_epi16(m, 4), nibble));
        __m256i n = _mm256_sad_epu8(_mm256_add_epi8(low, high), _mm256_setzero_si256());
        sums.quad[i] = _mm256_add_epi64(sums.quad[i], n);
    }
    return sums;
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

static inline __m256i load(const uint8_t *at, unsigned vector)
{
    return _mm256_loadu_si256((const __m256i *)(at + vector * 32));
}

static inline class_bytes class_bytes_of(__m256i low, __m256i high)
{
    return (class_bytes){low, high};
}

/* Packing works inside 128-bit lanes; the permutations put the elements in order. */
static inline __m256i pack_words(__m256i a, __m256i b)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
}

static inline __m256i pack_dwords(__m256i a, __m256i b, __m256i c, __m256i d)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(bytes, order);
}

/* Copies 64 elements that another thread may be writing. The compiler may use the
 * registers afterwards, but not read FROM again. */
static inline void take_group(uint8_t *to, const uint8_t *from, unsigned width)
{
    for (unsigned v = 0; v < 2 * width; v++) {
        __m256i x = load(from, v);
        __asm__ volatile("" : "+x"(x));
        _mm256_storeu_si256((__m256i *)(to + 32 * v), x);
    }
}

/* ---- 1 byte ---- */

static inline uint64_t differ_1(const uint8_t *a, const uint8_t *b)
{
    return ~byte_signs(_mm256_cmpeq_epi8(load(a, 0), load(b, 0)),
                       _mm256_cmpeq_epi8(load(a, 1), load(b, 1)));
}

static inline __m256i class_1(__m256i x, const class_map *map)
{
    __m256i c = _mm256_and_si256(_mm256_srl_epi16(x, map->shift), map->magnitude);
    return _mm256_min_epu8(_mm256_subs_epu8(c, map->base), map->last);
}

static inline class_bytes classes_1(const uint8_t *elems, const class_map *map)
{
    return class_bytes_of(class_1(load(elems, 0), map), class_1(load(elems, 1), map));
}

/* ---- 2 bytes ---- */

static inline __m256i equal_2(const uint8_t *a, const uint8_t *b, unsigned v)
{
    return _mm256_cmpeq_epi16(load(a, v), load(b, v));
}

static inline uint64_t differ_2(const uint8_t *a, const uint8_t *b)
{
    return ~byte_signs(pack_words(equal_2(a, b, 0), equal_2(a, b, 1)),
                       pack_words(equal_2(a, b, 2), equal_2(a, b, 3)));
}

static inline __m256i class_2(__m256i x, const class_map *map)
{
    __m256i c = _mm256_srl_epi16(_mm256_and_si256(x, map->magnitude), map->shift);
    return _mm256_min_epu16(_mm256_subs_epu16(c, map->base), map->last);
}

static inline class_bytes classes_2(const uint8_t *elems, const class_map *map)
{
    return class_bytes_of(
        pack_words(class_2(load(elems, 0), map), class_2(load(elems, 1), map)),
        pack_words(class_2(load(elems, 2), map), class_2(load(elems, 3), map)));
}

/* ---- 4 bytes ---- */

static inline __m256i equal_4(const uint8_t *a, const uint8_t *b, unsigned v)
{
    return _mm256_cmpeq_epi32(load(a, v), load(b, v));
}

static inline uint64_t differ_4(const uint8_t *a, const uint8_t *b)
{
    return ~byte_signs(pack_dwords(equal_4(a, b, 0), equal_4(a, b, 1), equal_4(a, b, 2),
                                   equal_4(a, b, 3)),
                       pack_dwords(equal_4(a, b, 4), equal_4(a, b, 5), equal_4(a, b, 6),
                                   equal_4(a, b, 7)));
}

static inline __m256i class_4(__m256i x, const class_map *map)
{
    __m256i c = _mm256_srl_epi32(_mm256_and_si256(x, map->magnitude), map->shift);
    c = _mm256_sub_epi32(_mm256_max_epu32(c, map->base), map->base);
    return _mm256_min_epu32(c, map->last);
}

static inline class_bytes classes_4(const uint8_t *elems, const class_map *map)
{
    __m256i c[8];
    for (unsigned v = 0; v < 8; v++)
        c[v] = class_4(load(elems, v), map);
    return class_bytes_of(pack_dwords(c[0], c[1], c[2], c[3]),
                          pack_dwords(c[4], c[5], c[6], c[7]));
}

/* ---- 8 bytes: rare, and four to a vector; plain code for the classes ---- */

static inline uint64_t differ_8(const uint8_t *a, const uint8_t *b)
{
    uint64_t equal = 0;
    for (unsigned v = 0; v < 16; v++) {
        __m256i e = _mm256_cmpeq_epi64(load(a, v), load(b, v));
        equal |= (uint64_t)(uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(e)) << 4 * v;
    }
    return ~equal;
}

static inline class_bytes classes_8(const uint8_t *elems, const class_map *map)
{
    uint8_t classes[64];
    for (unsigned i = 0; i < 64; i++) {
        uint64_t x;
        memcpy(&x, elems + 8 * i, 8);
        uint64_t c = (x & map->scalar.magnitude) >> map->scalar.shift;
        c = c > map->scalar.base ? c - map->scalar.base : 0;
        classes[i] = (uint8_t)(c < DW_CLASSES ? c : DW_CLASSES - 1);
    }
    return class_bytes_of(load(classes, 0), load(classes, 1));
}

#include "kernel/quant.inc"
#include "kernel/round.inc"
#include "kernel/widths.inc"

/* Products are below 2^62, so two can be added before they are split into the halves
 * that are summed. */
static inline void add_products(__m256i *low_sum, __m256i *high_sum, __m256i words,
                                __m256i coefficients)
{
    const __m256i low_half = _mm256_set1_epi64x(0xffffffff);
    __m256i even = _mm256_mul_epu32(words, coefficients);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(words, 32),
                                   _mm256_srli_epi64(coefficients, 32));
    __m256i both = _mm256_add_epi64(even, odd);
    *low_sum = _mm256_add_epi64(*low_sum, _mm256_and_si256(both, low_half));
    *high_sum = _mm256_add_epi64(*high_sum, _mm256_srli_epi64(both, 32));
}

static inline uint64_t sum_of(__m256i v)
{
    uint64_t lane[4];
    _mm256_storeu_si256((__m256i *)lane, v);
    return lane[0] + lane[1] + lane[2] + lane[3];
}

static uint64_t digest_chunk(const void *chunk, const uint32_t *low, const uint32_t *high)
{
    const uint8_t *l = (const uint8_t *)low, *h = (const uint8_t *)high;
    __m256i sum[4];
    for (unsigned i = 0; i < 4; i++)
        sum[i] = _mm256_setzero_si256();
    for (unsigned j = 0; j < DW_DIGEST_CHUNK / 32; j++) {
        __m256i w = load(chunk, j);
        add_products(&sum[0], &sum[1], w, load(l, j));
        add_products(&sum[2], &sum[3], w, load(h, j));
    }
    unsigned __int128 total = sum_of(sum[0]);
    total += (unsigned __int128)sum_of(sum[1]) << 32;
    total += (unsigned __int128)sum_of(sum[2]) << 30;
    total += (unsigned __int128)sum_of(sum[3]) << 62;
    return dw_digest_reduce(total);
}

const dw_kernels dw_kernels_avx2 = DW_KERNEL_TABLE("avx2");
