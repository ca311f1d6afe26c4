/* Entropy coding of counts: rANS over 24 fixed distributions.
 *
 * Gaps and sizes of moves are nearly geometric, so one parameter q describes their
 * distribution: a run continues with probability 2^-h at each step, h = 8 * 2^(-q/4). A
 * count is coded as one of 32 symbols for its bucket of 2^k values, and k plain bits for
 * the position inside the bucket. The 32nd symbol, DW_ANS_FAR, means 'beyond all
 * buckets'.
 *
 *     q < 24:  distribution q, k = 0
 *     q >= 24: distribution 20 + q % 4, k = (q - 20) / 4
 *
 * Two states take turns, one symbol each, over one stream of bytes, so that a symbol need
 * not wait for the one before it.
 *
 * All tables follow from 24 constants by integer arithmetic: docs/FORMAT.md.
 */
#ifndef DW_CODEC_ANS_H
#define DW_CODEC_ANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

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

typedef struct dw_ans_table {
    dw_ans_symbol symbol[DW_ANS_SYMBOLS];
    uint32_t slot[DW_ANS_TOTAL];   /* symbol | size << 5 | index in the symbol << 18 */
    uint16_t cost[DW_ANS_SYMBOLS]; /* in 1/256 bit */
} dw_ans_table;

/* All 24, built at first use. */
const dw_ans_table *dw_ans_tables(void);

static inline unsigned dw_ans_table_of(unsigned q)
{
    return q < DW_ANS_TABLES ? q : 20 + (q & 3);
}

static inline unsigned dw_ans_bucket_bits(unsigned q)
{
    return q < DW_ANS_TABLES ? 0 : (q - 20) >> 2;
}

/* The q whose distribution fits a run that continues with probability STAY / 2^32. */
unsigned dw_ans_fit(uint32_t stay);

/* ---- writer: symbols in reverse, bytes from the end of the room downwards; two bytes
 * below the last one written may be overwritten ---- */

typedef struct dw_ans_writer {
    uint32_t last, next_to_last; /* states */
    uint8_t *at;                 /* first byte written so far */
} dw_ans_writer;

static inline dw_ans_writer dw_ans_writer_at(uint8_t *end)
{
    return (dw_ans_writer){DW_ANS_LOW, DW_ANS_LOW, end};
}

static inline void dw_ans_put(dw_ans_writer *w, const dw_ans_symbol *s)
{
    /* writes two bytes if the state would grow too large; without a branch, because it
     * would often be mispredicted */
    uint32_t x = w->last;
    unsigned full = x >> 20 >= s->size;
    dw_store16(w->at - 2, (uint16_t)x);
    w->at -= 2 * full;
    x >>= 16 * full;
    /* exact, and below 2^64: x < size * 2^20 and size <= 2^12 */
    uint32_t quotient = (uint32_t)(x * s->reciprocal >> 44);
    w->last = w->next_to_last;
    w->next_to_last = x + s->start + quotient * (DW_ANS_TOTAL - s->size);
}

/* Writes the states; returns the first byte of the stream. */
static inline uint8_t *dw_ans_finish(dw_ans_writer *w)
{
    w->at -= 8;
    dw_store32(w->at, w->next_to_last);
    dw_store32(w->at + 4, w->last);
    return w->at;
}

/* ---- reader ---- */

typedef struct dw_ans_reader {
    uint32_t first, second; /* states: of the next symbol, and of the one after it */
    const uint8_t *at;
    const uint8_t *end;
    bool failed;
} dw_ans_reader;

static inline dw_ans_reader dw_ans_reader_of(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes < 8 || dw_load32(bytes) < DW_ANS_LOW || dw_load32(bytes + 4) < DW_ANS_LOW)
        return (dw_ans_reader){DW_ANS_LOW, DW_ANS_LOW, bytes, bytes, true};
    return (dw_ans_reader){dw_load32(bytes), dw_load32(bytes + 4), bytes + 8,
                           bytes + n_bytes, false};
}

static inline unsigned dw_ans_get(dw_ans_reader *r, const dw_ans_table *table)
{
    uint32_t slot = table->slot[r->first & (DW_ANS_TOTAL - 1)];
    unsigned s = slot & (DW_ANS_SYMBOLS - 1);
    uint32_t size = slot >> 5 & 0x1fff, place = slot >> 18;
    uint32_t x = size * (r->first >> DW_ANS_BITS) + place;
    unsigned low = x < DW_ANS_LOW;
    if (r->end - r->at >= 2) {
        x = low ? x << 16 | dw_load16(r->at) : x;
        r->at += 2 * low;
    } else if (low) {
        r->failed = true;
        x = DW_ANS_LOW;
    }
    r->first = r->second;
    r->second = x;
    return s;
}

/* True when the stream is used up and the state is back where the writer began. Not a
 * checksum: it catches many altered streams, but not all. */
static inline bool dw_ans_spent(const dw_ans_reader *r)
{
    return !r->failed && r->at == r->end && r->first == DW_ANS_LOW &&
           r->second == DW_ANS_LOW;
}

#endif
