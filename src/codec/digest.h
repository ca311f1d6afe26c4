/* Computes the state digest in pieces.
 *
 * A tensor's bytes are read as 32-bit little-endian words w[i], zero-padded, in chunks
 * of 1,024. With p = 2^61 - 1, fixed coefficients a[0..1023] and a fixed g:
 *
 *     digest = sum over i of w[i] * a[i % 1024] * g^(i / 1024)   modulo p
 *
 * Two levels make both uses cheap. A pass over all bytes needs one multiplication modulo
 * p for each 4 KiB. A change needs no power of its own as long as changes come in order.
 */
#ifndef DW_CODEC_DIGEST_H
#define DW_CODEC_DIGEST_H

#include "deltawire/tensor.h"
#include "kernel/kernel.h"

/* The share of bytes that start FIRST_BYTE into their tensor. Shares add up modulo p
 * wherever the tensor is cut: a word across a cut is the sum of its bytes. */
dw_digest dw_digest_share(const void *bytes, uint64_t n_bytes, uint64_t first_byte);

/* The constants of the sum: a[0..1023], and g^CHUNK. */
const uint64_t *dw_digest_coefficients(void);
uint64_t dw_digest_power(uint64_t chunk);

/* Collects the effect of changes on a tensor's digest. */
typedef struct dw_digest_moves {
    const uint64_t *coefficients; /* [1024] */
    uint64_t chunk;
    uint64_t power;  /* g^chunk */
    __int128 inside; /* sum over the chunk's words, not reduced */
    dw_digest sum;   /* of the chunks before */
} dw_digest_moves;

dw_digest_moves dw_digest_moves_from(uint64_t first_byte);
void dw_digest_moves_enter(dw_digest_moves *m, uint64_t chunk);
dw_digest dw_digest_moves_sum(const dw_digest_moves *m);

/* Adds the change of an element of WIDTH bytes at byte offset AT of its tensor. AT must
 * not descend. It is inline because it runs once for every change. */
static inline void dw_digest_move(dw_digest_moves *m, uint64_t at, uint64_t old,
                                  uint64_t new_, unsigned width)
{
    if (at / DW_DIGEST_CHUNK != m->chunk)
        dw_digest_moves_enter(m, at / DW_DIGEST_CHUNK);
    const uint64_t *a = &m->coefficients[at % DW_DIGEST_CHUNK / 4];
    if (width == 8) {
        int64_t low = (int64_t)(new_ & 0xffffffff) - (int64_t)(old & 0xffffffff);
        int64_t high = (int64_t)(new_ >> 32) - (int64_t)(old >> 32);
        m->inside += (__int128)(int64_t)a[0] * low + (__int128)(int64_t)a[1] * high;
    } else {
        int64_t difference =
            ((int64_t)new_ - (int64_t)old) * ((int64_t)1 << 8 * (at % 4));
        m->inside += (__int128)(int64_t)a[0] * difference;
    }
}

/* The factor of a tensor in the digest of its model: depends on name, type, shape. By
 * dw_digest_times it also scales the share of a slice. */
uint64_t dw_digest_weight(const dw_tensor *tensor);

/* A tensor's term in the model's digest. */
dw_digest dw_digest_term(uint64_t weight, dw_digest digest);

#endif
