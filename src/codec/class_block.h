/* The `class` codec, for one block of a tensor.
 *
 * A weight changes with a probability of about |update| / ulp, and its exponent, which
 * the receiver knows, determines the ulp. So positions are counted inside each exponent
 * class: the gap to the next changed element of the class is geometric, with one
 * parameter. Most moves are one ulp; their size is geometric too.
 *
 *     block:  varint length of A | A: rANS symbols | B: bits
 *     B:      for each class with elements: parameters (q of gaps, q of moves)
 *             then, class by class, the plain bits that belong to A's symbols
 *     A:      class by class: gaps, then moves
 *
 * Every block carries its own parameters and is independent, so that threads and devices
 * can share the work.
 */
#ifndef DW_CODEC_CLASS_BLOCK_H
#define DW_CODEC_CLASS_BLOCK_H

#include "codec/digest.h"
#include "deltawire/base.h"
#include "kernel/kernel.h"
#include "tensor/dtype.h"

/* Working memory of one thread. It is large enough for a block in which every element
 * changed, but only the pages that are needed are touched. */
typedef struct dw_class_scratch dw_class_scratch;

dw_class_scratch *dw_class_scratch_new(void);
void dw_class_scratch_free(dw_class_scratch *s);

/* Elements in a block: 2 MiB of data, at most 2^20 elements. */
static inline uint32_t dw_block_elems(unsigned width)
{
    return width <= 2 ? DW_BLOCK_ELEMS : DW_BLOCK_BYTES / width;
}

/* The bits of the magnitude that select the class. `base` comes from a sample of the
 * data, so that the 16 classes cover the exponents of most weights. */
dw_class_map dw_class_map_choose(const void *data, uint64_t n_elems, dw_element element);
dw_class_map dw_class_map_make(dw_element element, uint32_t base);

/* The effect of the changes on the digest, noted while they are coded. */
typedef struct dw_note {
    dw_digest_moves digest;
    uint64_t first_byte; /* of the block in its tensor */
    bool update_old;     /* encoding: replace the old element with the new one */
    bool round_new; /* encoding BF16: the new elements are F32 and are rounded strip by
                       strip */
} dw_note;

dw_note dw_note_at(uint64_t first_byte);

typedef struct dw_encoded {
    const uint8_t *bytes; /* in the scratch, until its next use */
    size_t n_bytes;       /* 0 when nothing changed */
    size_t n_changes;
} dw_encoded;

/* Compares and encodes a block of N elements. OLD is written only with update_old. Each
 * element of NEW_ is read exactly once: the code, the digest and the store to OLD all use
 * that value, even if another thread writes NEW_ meanwhile. */
dw_encoded dw_class_encode(dw_class_scratch *s, void *old, const void *new_, uint32_t n,
                           dw_element element, const dw_class_map *map, dw_note *note);

typedef struct dw_decoded {
    const uint32_t *positions; /* ascending, relative to the block */
    const void *values;        /* the new elements */
    size_t n_changes;
} dw_decoded;

/* The changes that dw_class_encode has just found, without update_old. They replace its
 * bytes in the scratch. */
dw_decoded dw_class_found(dw_class_scratch *s, const void *old, uint32_t n,
                          dw_element element, const dw_class_map *map);

/* Decodes a block against the OLD elements. The result is in the scratch until its next
 * use. False if the bytes are no valid block. */
bool dw_class_decode(dw_decoded *out, dw_class_scratch *s, const uint8_t *bytes,
                     size_t n_bytes, const void *old, uint32_t n, dw_element element,
                     const dw_class_map *map, dw_note *note);

#endif
