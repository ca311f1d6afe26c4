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

#include "base/bytes.h"
#include "codec/ans_step.h"

typedef struct dw_ans_table {
    dw_ans_symbol symbol[DW_ANS_SYMBOLS];
    uint32_t slot[DW_ANS_TOTAL];   /* symbol | size << 5 | index in the symbol << 18 */
    uint16_t cost[DW_ANS_SYMBOLS]; /* in 1/256 bit */
} dw_ans_table;

/* All 24, built at first use. */
const dw_ans_table *dw_ans_tables(void);

/* For each table 2^32 times the probability that a run continues for one more bucket. */
const uint32_t *dw_ans_stays(void);

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
    unsigned n_full;
    dw_store16(w->at - 2, (uint16_t)w->last);
    const uint32_t x = dw_ans_code(w->last, s, &n_full);
    w->at -= 2 * n_full;
    w->last = w->next_to_last;
    w->next_to_last = x;
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
