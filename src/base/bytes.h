/* Little-endian bytes: growing writer, checked reader.
 *
 * All parsing of foreign bytes goes through the reader. It never reads past its end. A
 * read that would do so sets `failed` and returns zero, and every later read fails too.
 * So a parser may check once after a group of reads.
 */
#ifndef DW_BASE_BYTES_H
#define DW_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/words.h"

/* ---- reader ---- */

typedef struct dw_reader {
    const uint8_t *at;
    const uint8_t *end;
    bool failed;
} dw_reader;

static inline dw_reader dw_reader_of(const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;
    return (dw_reader){at, at ? at + n_bytes : at, false};
}

static inline size_t dw_reader_left(const dw_reader *r)
{
    return (size_t)(r->end - r->at);
}

/* The next n bytes, or NULL. */
static inline const uint8_t *dw_read_bytes(dw_reader *r, uint64_t n_bytes)
{
    if (r->failed || n_bytes > dw_reader_left(r)) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *p = r->at;
    r->at += n_bytes;
    return p;
}

static inline uint8_t dw_read_u8(dw_reader *r)
{
    const uint8_t *p = dw_read_bytes(r, 1);
    return p ? *p : 0;
}

static inline uint64_t dw_read_u64(dw_reader *r)
{
    const uint8_t *p = dw_read_bytes(r, 8);
    return p ? dw_load64(p) : 0;
}

/* LEB128, at most ten bytes, no padding: one spelling for each number. */
uint64_t dw_read_varint(dw_reader *r);

/* ---- writer ---- */

/* Stores V at AT, which has room for ten bytes; returns the end. */
static inline uint8_t *dw_put_varint(uint8_t *at, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        *at++ = (uint8_t)(v | 0x80);
    *at++ = (uint8_t)v;
    return at;
}

typedef struct dw_writer {
    uint8_t *bytes; /* owned; dw_free */
    size_t n_bytes;
    size_t capacity;
    bool failed; /* an allocation failed; later writes do nothing */
} dw_writer;

void dw_write_bytes(dw_writer *w, const void *bytes, size_t n_bytes);
void dw_write_u8(dw_writer *w, uint8_t v);
void dw_write_u64(dw_writer *w, uint64_t v);
void dw_write_varint(dw_writer *w, uint64_t v);
void dw_write_text(dw_writer *w, const char *text); /* without the NUL */
void dw_write_format(dw_writer *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void dw_writer_release(dw_writer *w);

#endif
