/* Unaligned loads and stores. The format is little-endian, and so are the machines this
 * is built for (kernel/kernel.h refuses others). Shared with CUDA devices. */
#ifndef DW_BASE_WORDS_H
#define DW_BASE_WORDS_H

#include <string.h>

#include "base/portable.h"

DW_INLINE uint16_t dw_load16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

DW_INLINE uint32_t dw_load32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

DW_INLINE uint64_t dw_load64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

DW_INLINE void dw_store16(void *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}

DW_INLINE void dw_store32(void *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}

DW_INLINE void dw_store64(void *p, uint64_t v)
{
    memcpy(p, &v, sizeof v);
}

#endif
