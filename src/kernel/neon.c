/* Kernels for AArch64's Advanced SIMD, which every such machine has. */
#include "kernel/kernel.h"

#include <arm_neon.h>
#include <string.h>

typedef struct class_bytes {
    uint8x16_t part[4]; /* of 64 elements */
} class_bytes;

typedef struct lanes {
    uint64x2_t pair[8]; /* classes 0 and 1, 2 and 3, ... */
} lanes;

typedef struct class_map {
    dw_class_map scalar;
} class_map;

static inline class_map class_map_of(const dw_class_map *map, unsigned width)
{
    (void)width;
    return (class_map){*map};
}

static inline lanes lanes_zero(void)
{
    lanes l;
    for (unsigned i = 0; i < 8; i++)
        l.pair[i] = vdupq_n_u64(0);
    return l;
}

static inline lanes lanes_load(const uint64_t from[DW_CLASSES])
{
    lanes l;
    for (unsigned i = 0; i < 8; i++)
        l.pair[i] = vld1q_u64(from + 2 * i);
    return l;
}

static inline void lanes_store(uint64_t to[DW_CLASSES], lanes l)
{
    for (unsigned i = 0; i < 8; i++)
        vst1q_u64(to + 2 * i, l.pair[i]);
}

/* One bit for each of 64 bytes that are all ones or all zeros. */
static inline uint64_t byte_mask(const uint8x16_t v[4])
{
    const uint8x16_t weight = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t a = vpaddq_u8(vandq_u8(v[0], weight), vandq_u8(v[1], weight));
    uint8x16_t b = vpaddq_u8(vandq_u8(v[2], weight), vandq_u8(v[3], weight));
    a = vpaddq_u8(a, b);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(a, a)), 0);
}

static inline void class_bytes_store(uint8_t to[64], class_bytes classes)
{
    for (unsigned v = 0; v < 4; v++)
        vst1q_u8(to + 16 * v, classes.part[v]);
}

/* Bit BIT of each class. */
static inline uint64_t plane(const class_bytes *classes, unsigned bit)
{
    uint8x16_t set[4];
    for (unsigned v = 0; v < 4; v++)
        set[v] = vtstq_u8(classes->part[v], vdupq_n_u8((uint8_t)(1u << bit)));
    return byte_mask(set);
}

static inline lanes lanes_masks(class_bytes classes, uint64_t valid)
{
    /* lane c takes plane j unchanged if bit j of c is set, else inverted */
    const uint64_t p0 = plane(&classes, 0), p1 = plane(&classes, 1);
    const uint64_t p2 = plane(&classes, 2), p3 = plane(&classes, 3);
    const uint64x2_t b0 = vcombine_u64(vcreate_u64(~p0), vcreate_u64(p0));
    lanes l;
    for (unsigned i = 0; i < 8; i++) {
        uint64_t top =
            valid & (i & 1 ? p1 : ~p1) & (i & 2 ? p2 : ~p2) & (i & 4 ? p3 : ~p3);
        l.pair[i] = vandq_u64(b0, vdupq_n_u64(top));
    }
    return l;
}

static inline lanes lanes_add_counts(lanes sums, lanes masks)
{
    for (unsigned i = 0; i < 8; i++) {
        uint8x16_t n = vcntq_u8(vreinterpretq_u8_u64(masks.pair[i]));
        sums.pair[i] = vaddq_u64(sums.pair[i], vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(n))));
    }
    return sums;
}

/* The index of the lowest set bit; 64 if there is none. */
static inline unsigned lowest_bit(uint64_t bits)
{
    uint64_t reversed;
    __asm__("rbit %0, %1\n\tclz %0, %0" : "=r"(reversed) : "r"(bits));
    return (unsigned)reversed;
}

static inline unsigned select_bit(uint64_t mask, unsigned k)
{
    for (; k > 0; k--)
        mask &= mask - 1;
    return (unsigned)__builtin_ctzll(mask);
}

/* Copies 64 elements that another thread may be writing. The compiler may use the
 * registers afterwards, but not read FROM again. */
static inline void take_group(uint8_t *to, const uint8_t *from, unsigned width)
{
    for (unsigned v = 0; v < 4 * width; v++) {
        uint8x16_t x = vld1q_u8(from + 16 * v);
        __asm__ volatile("" : "+w"(x));
        vst1q_u8(to + 16 * v, x);
    }
}

/* ---- 1 byte ---- */

static inline uint64_t differ_1(const uint8_t *a, const uint8_t *b)
{
    uint8x16_t equal[4];
    for (unsigned v = 0; v < 4; v++)
        equal[v] = vceqq_u8(vld1q_u8(a + 16 * v), vld1q_u8(b + 16 * v));
    return ~byte_mask(equal);
}

static inline class_bytes classes_1(const uint8_t *elems, const class_map *map)
{
    const int8x16_t shift = vdupq_n_s8((int8_t) - (int)map->scalar.shift);
    class_bytes classes;
    for (unsigned v = 0; v < 4; v++) {
        uint8x16_t c = vandq_u8(vld1q_u8(elems + 16 * v),
                                vdupq_n_u8((uint8_t)map->scalar.magnitude));
        c = vqsubq_u8(vshlq_u8(c, shift), vdupq_n_u8((uint8_t)map->scalar.base));
        classes.part[v] = vminq_u8(c, vdupq_n_u8(DW_CLASSES - 1));
    }
    return classes;
}

/* ---- 2 bytes ---- */

static inline uint16x8_t load_2(const uint8_t *at, unsigned v)
{
    return vreinterpretq_u16_u8(vld1q_u8(at + 16 * v));
}

static inline uint64_t differ_2(const uint8_t *a, const uint8_t *b)
{
    uint8x16_t equal[4];
    for (unsigned v = 0; v < 4; v++)
        equal[v] =
            vcombine_u8(vmovn_u16(vceqq_u16(load_2(a, 2 * v), load_2(b, 2 * v))),
                        vmovn_u16(vceqq_u16(load_2(a, 2 * v + 1), load_2(b, 2 * v + 1))));
    return ~byte_mask(equal);
}

static inline uint8x8_t class_2(uint16x8_t x, const dw_class_map *map)
{
    uint16x8_t c = vandq_u16(x, vdupq_n_u16((uint16_t)map->magnitude));
    c = vshlq_u16(c, vdupq_n_s16((int16_t) - (int)map->shift));
    c = vqsubq_u16(c, vdupq_n_u16((uint16_t)map->base));
    return vmovn_u16(vminq_u16(c, vdupq_n_u16(DW_CLASSES - 1)));
}

static inline class_bytes classes_2(const uint8_t *elems, const class_map *map)
{
    class_bytes classes;
    for (unsigned v = 0; v < 4; v++)
        classes.part[v] = vcombine_u8(class_2(load_2(elems, 2 * v), &map->scalar),
                                      class_2(load_2(elems, 2 * v + 1), &map->scalar));
    return classes;
}

/* ---- 4 bytes ---- */

static inline uint32x4_t load_4(const uint8_t *at, unsigned v)
{
    return vreinterpretq_u32_u8(vld1q_u8(at + 16 * v));
}

static inline uint8x16_t narrow_4(const uint32x4_t v[4])
{
    uint16x8_t low = vcombine_u16(vmovn_u32(v[0]), vmovn_u32(v[1]));
    uint16x8_t high = vcombine_u16(vmovn_u32(v[2]), vmovn_u32(v[3]));
    return vcombine_u8(vmovn_u16(low), vmovn_u16(high));
}

static inline uint64_t differ_4(const uint8_t *a, const uint8_t *b)
{
    uint8x16_t equal[4];
    for (unsigned v = 0; v < 4; v++) {
        uint32x4_t e[4];
        for (unsigned i = 0; i < 4; i++)
            e[i] = vceqq_u32(load_4(a, 4 * v + i), load_4(b, 4 * v + i));
        equal[v] = narrow_4(e);
    }
    return ~byte_mask(equal);
}

static inline class_bytes classes_4(const uint8_t *elems, const class_map *map)
{
    const int32x4_t shift = vdupq_n_s32(-(int)map->scalar.shift);
    class_bytes classes;
    for (unsigned v = 0; v < 4; v++) {
        uint32x4_t c[4];
        for (unsigned i = 0; i < 4; i++) {
            c[i] = vandq_u32(load_4(elems, 4 * v + i),
                             vdupq_n_u32((uint32_t)map->scalar.magnitude));
            c[i] = vqsubq_u32(vshlq_u32(c[i], shift), vdupq_n_u32(map->scalar.base));
            c[i] = vminq_u32(c[i], vdupq_n_u32(DW_CLASSES - 1));
        }
        classes.part[v] = narrow_4(c);
    }
    return classes;
}

/* ---- 8 bytes: rare, and two to a vector; plain code ---- */

static inline uint64_t differ_8(const uint8_t *a, const uint8_t *b)
{
    uint64_t d = 0;
    for (unsigned i = 0; i < 64; i++)
        d |= (uint64_t)(memcmp(a + 8 * i, b + 8 * i, 8) != 0) << i;
    return d;
}

static inline class_bytes classes_8(const uint8_t *elems, const class_map *map)
{
    uint8_t bytes[64];
    class_bytes classes;
    for (unsigned i = 0; i < 64; i++) {
        uint64_t x;
        memcpy(&x, elems + 8 * i, 8);
        uint64_t c = (x & map->scalar.magnitude) >> map->scalar.shift;
        c = c > map->scalar.base ? c - map->scalar.base : 0;
        bytes[i] = (uint8_t)(c < DW_CLASSES ? c : DW_CLASSES - 1);
    }
    for (unsigned v = 0; v < 4; v++)
        classes.part[v] = vld1q_u8(bytes + 16 * v);
    return classes;
}

#include "kernel/quant.inc"
#include "kernel/round.inc"
#include "kernel/widths.inc"

/* Products are below 2^62, so two can be added before they are split into the halves
 * that are summed. */
static inline void add_products(uint64x2_t *low_sum, uint64x2_t *high_sum,
                                uint32x4_t words, uint32x4_t coefficients)
{
    uint64x2_t both = vmull_u32(vget_low_u32(words), vget_low_u32(coefficients));
    both = vmlal_high_u32(both, words, coefficients);
    *low_sum = vaddw_u32(*low_sum, vmovn_u64(both));
    *high_sum = vaddw_u32(*high_sum, vshrn_n_u64(both, 32));
}

static uint64_t digest_chunk(const void *chunk, const uint32_t *low, const uint32_t *high)
{
    uint64x2_t sum[4];
    for (unsigned i = 0; i < 4; i++)
        sum[i] = vdupq_n_u64(0);
    for (unsigned j = 0; j < DW_DIGEST_CHUNK / 16; j++) {
        uint32x4_t w = load_4(chunk, j);
        add_products(&sum[0], &sum[1], w, vld1q_u32(low + 4 * j));
        add_products(&sum[2], &sum[3], w, vld1q_u32(high + 4 * j));
    }
    unsigned __int128 total = vaddvq_u64(sum[0]);
    total += (unsigned __int128)vaddvq_u64(sum[1]) << 32;
    total += (unsigned __int128)vaddvq_u64(sum[2]) << 30;
    total += (unsigned __int128)vaddvq_u64(sum[3]) << 62;
    return dw_digest_reduce(total);
}

const dw_kernels dw_kernels_neon = DW_KERNEL_TABLE("neon");
