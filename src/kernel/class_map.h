/* Blocks and classes. Shared with CUDA devices. */
#ifndef DW_KERNEL_CLASS_MAP_H
#define DW_KERNEL_CLASS_MAP_H

#include "base/portable.h"

#define DW_BLOCK_ELEMS (1u << 20)
#define DW_BLOCK_BYTES (2u << 20)
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

DW_INLINE unsigned dw_class_of(uint64_t x, const dw_class_map *map)
{
    uint64_t c = (x & map->magnitude) >> map->shift;
    c = c > map->base ? c - map->base : 0;
    return c < DW_CLASSES ? (unsigned)c : DW_CLASSES - 1;
}

DW_INLINE unsigned dw_gap_class(uint32_t class_gap)
{
    return class_gap >> 28;
}

DW_INLINE uint32_t dw_gap_size(uint32_t class_gap)
{
    return class_gap & 0x0fffffff;
}

#endif
