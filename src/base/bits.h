/* Bits, least significant first, in little-endian bytes. Shared with CUDA devices. */
#ifndef DW_BASE_BITS_H
#define DW_BASE_BITS_H

#include "base/words.h"

/* ---- writer: the caller's buffer is large enough, plus 8 bytes ---- */

typedef struct dw_bit_writer {
    uint8_t *at;
    uint64_t held; /* bits not yet stored, from bit 0 */
    unsigned n_held;
} dw_bit_writer;

/* n_bits at most 56; higher bits of VALUE must be zero. */
DW_INLINE void dw_put_bits(dw_bit_writer *w, uint64_t value, unsigned n_bits)
{
    w->held |= value << w->n_held;
    w->n_held += n_bits;
    dw_store64(w->at, w->held);
    unsigned n_bytes = w->n_held >> 3; /* at most 7 */
    w->at += n_bytes;
    w->held >>= 8 * n_bytes;
    w->n_held &= 7;
}

/* n_bits up to 64. */
DW_INLINE void dw_put_wide(dw_bit_writer *w, uint64_t value, unsigned n_bits)
{
    if (n_bits > 32) {
        dw_put_bits(w, value & 0xffffffff, 32);
        value >>= 32;
        n_bits -= 32;
    }
    dw_put_bits(w, value, n_bits);
}

/* Fills the last byte with zeros; returns the end. */
DW_INLINE uint8_t *dw_finish_bits(dw_bit_writer *w)
{
    if (w->n_held > 0)
        *w->at++ = (uint8_t)w->held;
    w->n_held = 0;
    w->held = 0;
    return w->at;
}

/* Exp-Golomb code of order 0: small numbers in few bits. */
DW_INLINE void dw_put_golomb(dw_bit_writer *w, uint32_t value)
{
    uint64_t v = (uint64_t)value + 1;
    unsigned n = dw_top_bit(v); /* bits below the leading one */
    dw_put_bits(w, 0, n);
    dw_put_bits(w, 1, 1);
    dw_put_bits(w, v & ((1ull << n) - 1), n);
}

/* ---- reader: zero bits past the end, which dw_bits_spent() reports ---- */

typedef struct dw_bit_reader {
    const uint8_t *bytes;
    size_t n_bytes;
    uint64_t bit; /* position */
} dw_bit_reader;

/* 64 bits from the current position, at least 57 of them good. */
DW_INLINE uint64_t dw_peek_bits(const dw_bit_reader *r)
{
    size_t byte = (size_t)(r->bit >> 3);
    if (byte + 8 <= r->n_bytes)
        return dw_load64(r->bytes + byte) >> (r->bit & 7);
    uint64_t v = 0;
    for (size_t i = byte; i < r->n_bytes; i++)
        v |= (uint64_t)r->bytes[i] << 8 * (i - byte);
    return v >> (r->bit & 7);
}

/* n_bits at most 56. */
DW_INLINE uint64_t dw_get_bits(dw_bit_reader *r, unsigned n_bits)
{
    uint64_t v = dw_peek_bits(r) & ((1ull << n_bits) - 1);
    r->bit += n_bits;
    return v;
}

/* n_bits up to 64. */
DW_INLINE uint64_t dw_get_wide(dw_bit_reader *r, unsigned n_bits)
{
    if (n_bits <= 32)
        return dw_get_bits(r, n_bits);
    uint64_t low = dw_get_bits(r, 32);
    return low | dw_get_bits(r, n_bits - 32) << 32;
}

DW_INLINE uint32_t dw_get_golomb(dw_bit_reader *r)
{
    uint64_t v = dw_peek_bits(r);
    unsigned n = v ? dw_low_bit(v) : 32;
    if (n >= 32) { /* not written by us: use up all bits, so that the reader fails */
        r->bit = 8 * (uint64_t)r->n_bytes + 8;
        return 0;
    }
    r->bit += n + 1;
    return (uint32_t)((1ull << n) + dw_get_bits(r, n) - 1);
}

/* True when exactly all bytes were used, the last one padded with zeros. */
DW_INLINE bool dw_bits_spent(const dw_bit_reader *r)
{
    if ((r->bit + 7) >> 3 != r->n_bytes)
        return false;
    unsigned used = r->bit & 7;
    return used == 0 || r->bytes[r->n_bytes - 1] >> used == 0;
}

#endif
