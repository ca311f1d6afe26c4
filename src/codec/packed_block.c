#include "codec/packed_block.h"

#include <string.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "codec/element.h"
#include "kernel/kernel.h"

#define PLANE_BYTES DW_BLOCK_ELEMS
#define LEVEL       1 /* planes have no matches: all gain is in the literals */

struct dw_packed_scratch {
    ZSTD_CCtx *compress;
    ZSTD_DCtx *expand;
    uint8_t plane[PLANE_BYTES];
    uint8_t frame[ZSTD_COMPRESSBOUND(PLANE_BYTES)];
    uint8_t out[DW_BLOCK_BYTES + 64];
};

dw_packed_scratch *dw_packed_scratch_new(void)
{
    dw_packed_scratch *s = dw_alloc(sizeof *s);
    if (!s)
        return NULL;
    s->compress = ZSTD_createCCtx();
    s->expand = ZSTD_createDCtx();
    if (!s->compress || !s->expand) {
        dw_packed_scratch_free(s);
        return NULL;
    }
    return s;
}

void dw_packed_scratch_free(dw_packed_scratch *s)
{
    if (!s)
        return;
    ZSTD_freeCCtx(s->compress);
    ZSTD_freeDCtx(s->expand);
    dw_free(s);
}

static uint64_t rotate(uint64_t x, unsigned bits, unsigned left)
{
    uint64_t mask = ~0ull >> (64 - bits);
    return left == 0 ? x : (x << left | x >> (bits - left)) & mask;
}

size_t dw_packed_encode(const uint8_t **out, dw_packed_scratch *s, const void *elems,
                        uint32_t n, dw_element element)
{
    const unsigned width = element.width, bits = 8 * width;
    uint8_t *at = s->out;
    for (unsigned p = width; p-- > 0;) {
        for (uint32_t i = 0; i < n; i++) {
            uint64_t x = dw_element_load(elems, i, width);
            s->plane[i] = (uint8_t)(rotate(x, bits, element.is_float) >> 8 * p);
        }
        size_t n_frame =
            ZSTD_compressCCtx(s->compress, s->frame, sizeof s->frame, s->plane, n, LEVEL);
        if (ZSTD_isError(n_frame))
            return 0;
        bool smaller = n_frame < n;
        size_t n_bytes = smaller ? n_frame : n;
        at = dw_put_varint(at, n_bytes * 2 + smaller);
        memcpy(at, smaller ? s->frame : s->plane, n_bytes);
        at += n_bytes;
    }
    *out = s->out;
    return (size_t)(at - s->out);
}

bool dw_packed_decode(void *elems, dw_packed_scratch *s, const uint8_t *bytes,
                      size_t n_bytes, uint32_t n, dw_element element)
{
    const unsigned width = element.width, bits = 8 * width;
    dw_reader r = dw_reader_of(bytes, n_bytes);
    memset(elems, 0, (size_t)n * width);
    for (unsigned p = width; p-- > 0;) {
        uint64_t head = dw_read_varint(&r);
        const uint8_t *plane = dw_read_bytes(&r, head >> 1);
        if (!plane)
            return false;
        if (head & 1) {
            /* one frame, and nothing after it */
            if (ZSTD_findFrameCompressedSize(plane, head >> 1) != head >> 1)
                return false;
            size_t got = ZSTD_decompressDCtx(s->expand, s->plane, n, plane, head >> 1);
            if (ZSTD_isError(got) || got != n)
                return false;
            plane = s->plane;
        } else if (head >> 1 != n) {
            return false;
        }
        for (uint32_t i = 0; i < n; i++) {
            uint64_t x = dw_element_load(elems, i, width);
            dw_element_store(elems, i, width, x | (uint64_t)plane[i] << 8 * p);
        }
    }
    if (element.is_float)
        for (uint32_t i = 0; i < n; i++) {
            uint64_t x = dw_element_load(elems, i, width);
            dw_element_store(elems, i, width, rotate(x, bits, bits - 1));
        }
    return dw_reader_left(&r) == 0;
}
