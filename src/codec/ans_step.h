/* The steps of rANS and the numbers of its tables. Shared with CUDA devices. */
#ifndef DW_CODEC_ANS_STEP_H
#define DW_CODEC_ANS_STEP_H

#include "base/portable.h"

#define DW_ANS_TABLES  24
#define DW_ANS_SYMBOLS 32
#define DW_ANS_FAR     31
#define DW_ANS_BITS    12
#define DW_ANS_TOTAL   (1u << DW_ANS_BITS)
#define DW_ANS_LOW     (1u << 16) /* the least value of a state */
#define DW_ANS_MAX_Q   127u

typedef struct dw_ans_symbol {
    uint16_t start;
    uint16_t size;
    uint64_t reciprocal; /* floor(2^44 / size) + 1 */
} dw_ans_symbol;

DW_INLINE unsigned dw_ans_table_of(unsigned q)
{
    return q < DW_ANS_TABLES ? q : 20 + (q & 3);
}

DW_INLINE unsigned dw_ans_bucket_bits(unsigned q)
{
    return q < DW_ANS_TABLES ? 0 : (q - 20) >> 2;
}

/* The q whose distribution fits a run that continues with probability STAY / 2^32.
 * STAYS has this for each table. */
DW_INLINE unsigned dw_ans_fit(const uint32_t *stays, uint32_t stay)
{
    /* what stays[DW_ANS_TABLES] would be: the square root of stays[20] */
    const uint32_t beyond = 3938502376u;
    /* wider buckets, each twice as likely to end the run, until one table fits */
    uint64_t chance = stay;
    unsigned q = 0, t = 0;
    while (chance > ((uint64_t)stays[23] + beyond) / 2 && q + 23 + 4 <= DW_ANS_MAX_Q) {
        chance = chance * chance >> 32;
        q += 4;
    }
    while (t < DW_ANS_TABLES - 1 && chance > ((uint64_t)stays[t] + stays[t + 1]) / 2)
        t++;
    return q + t;
}

/* Codes a symbol with state X. N_FULL takes the number of 16-bit words, 0 or 1, that must
 * be written first: the low bits of X. There is no branch, because it would often be
 * mispredicted. */
DW_INLINE uint32_t dw_ans_code(uint32_t x, const dw_ans_symbol *s, unsigned *n_full)
{
    const unsigned full = x >> 20 >= s->size;
    x >>= 16 * full;
    /* exact, and below 2^64: x < size * 2^20 and size <= 2^12 */
    const uint32_t quotient = (uint32_t)(x * s->reciprocal >> 44);
    *n_full = full;
    return x + s->start + quotient * (DW_ANS_TOTAL - s->size);
}

#endif
