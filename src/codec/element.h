/* Elements of any width in memory. */
#ifndef DW_CODEC_ELEMENT_H
#define DW_CODEC_ELEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "codec/moves.h"
#include "kernel/kernel.h"
#include "tensor/dtype.h"

static inline uint64_t dw_element_load(const void *data, uint64_t i, unsigned width)
{
    const uint8_t *at = (const uint8_t *)data + i * width;
    switch (width) {
    case 1:
        return *at;
    case 2:
        return dw_load16(at);
    case 4:
        return dw_load32(at);
    default:
        return dw_load64(at);
    }
}

static inline void dw_element_store(void *data, uint64_t i, unsigned width, uint64_t v)
{
    uint8_t *at = (uint8_t *)data + i * width;
    switch (width) {
    case 1:
        *at = (uint8_t)v;
        break;
    case 2:
        dw_store16(at, (uint16_t)v);
        break;
    case 4:
        dw_store32(at, (uint32_t)v);
        break;
    default:
        dw_store64(at, v);
    }
}

#endif
