/* The `class` codec, for one block of a tensor.
 *
 * A weight flips with a chance of about |update| / ulp, and its exponent, which the
 * receiver knows, tells the ulp. So positions are counted inside each exponent class:
 * the gap to the next changed element of the class is geometric, with one parameter.
 * Most moves are one ulp; their size is geometric too.
 *
 *     block:  varint length of A | A: rANS symbols | B: bits
 *     B:      for each class with elements: parameters (q of gaps, q of moves)
 *             then, class by class, the plain bits that belong to A's symbols
 *     A:      class by class: gaps, then moves
 *
 * Every block carries its own parameters and stands by itself, so that threads and
 * devices can each take some.
 */
#ifndef DW_CODEC_CLASS_BLOCK_H
#define DW_CODEC_CLASS_BLOCK_H

#include "codec/digest.h"
#include "deltawire/error.h"
#include "kernel/kernel.h"
#include "tensor/dtype.h"

/* Working room of one thread. It is as large as a block that changed in every element
 * would need, but pages are touched only as far as changes reach. */
typedef struct dw_class_scratch dw_class_scratch;

dw_class_scratch *dw_class_scratch_new(void);
void dw_class_scratch_free(dw_class_scratch *s);

/* Elements in a block: 2 MiB of data, at most 2^20 elements. */
static inline uint32_t dw_block_elems(unsigned width)
{
    return width <= 2 ? DW_BLOCK_ELEMS : DW_BLOCK_BYTES / width;
}

/* Bits of magnitude to classify by; `base` from a sample of the data, so that the 16
 * classes cover the exponents that most weights have. */
dw_class_map dw_class_map_choose(const void *data, uint64_t n_elems, dw_element element);
dw_class_map dw_class_map_make(dw_element element, uint32_t base);

/* What is noted of each change while it is coded: its effect on the digest. */
typedef struct dw_note {
    dw_digest_moves digest;
    uint64_t first_byte; /* of the block in its tensor */
    bool update_old;     /* when encoding: store the new element over the old one */
    bool round_new; /* when encoding BF16: the new elements are F32, and are rounded a
                       strip at a time */
} dw_note;

dw_note dw_note_at(uint64_t first_byte);

typedef struct dw_encoded {
    const uint8_t *bytes; /* in the scratch, until its next use */
    size_t n_bytes;       /* 0 when nothing changed */
    size_t n_changes;
} dw_encoded;

/* Compares and encodes a block of N elements. OLD is written only with update_old. Each
 * element of NEW_ is read exactly once: what is coded, what the digest takes and what is
 * stored over OLD is that one value, also if another thread writes NEW_ meanwhile. */
dw_encoded dw_class_encode(dw_class_scratch *s, void *old, const void *new_, uint32_t n,
                           dw_element element, const dw_class_map *map, dw_note *note);

typedef struct dw_decoded {
    const uint32_t *positions; /* ascending, relative to the block */
    const void *values;        /* the new elements */
    size_t n_changes;
} dw_decoded;

/* The changes that dw_class_encode has just found, without update_old. They take the
 * place of its bytes in the scratch. */
dw_decoded dw_class_found(dw_class_scratch *s, const void *old, uint32_t n,
                          dw_element element, const dw_class_map *map);

/* Decodes a block against the OLD elements. The result stands in the scratch until its
 * next use. False if the bytes are no valid block. */
bool dw_class_decode(dw_decoded *out, dw_class_scratch *s, const uint8_t *bytes,
                     size_t n_bytes, const void *old, uint32_t n, dw_element element,
                     const dw_class_map *map, dw_note *note);

#endif
