#include "base/bits.h"

void dw_put_golomb(dw_bit_writer *w, uint32_t value)
{
    uint64_t v = (uint64_t)value + 1;
    unsigned n = 63 - (unsigned)__builtin_clzll(v); /* bits below the leading one */
    dw_put_bits(w, 0, n);
    dw_put_bits(w, 1, 1);
    dw_put_bits(w, v & ((1ull << n) - 1), n);
}

uint32_t dw_get_golomb(dw_bit_reader *r)
{
    uint64_t v = dw_peek_bits(r);
    unsigned n = v ? (unsigned)__builtin_ctzll(v) : 32;
    if (n >= 32) { /* not written by us: use up all bits, so that the reader fails */
        r->bit = 8 * (uint64_t)r->n_bytes + 8;
        return 0;
    }
    r->bit += n + 1;
    return (uint32_t)((1ull << n) + dw_get_bits(r, n) - 1);
}

bool dw_bits_spent(const dw_bit_reader *r)
{
    if ((r->bit + 7) >> 3 != r->n_bytes)
        return false;
    unsigned used = r->bit & 7;
    return used == 0 || r->bytes[r->n_bytes - 1] >> used == 0;
}
