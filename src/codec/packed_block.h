/* Packs a whole block, if too much changed for a list of changes.
 *
 * The bytes of all elements are sorted into planes, most significant first. Floats are
 * rotated left by one bit before that, which puts the whole exponent into one plane and
 * the sign beside the mantissa. A plane is a zstd frame, or plain if that is smaller.
 *
 *     for each plane:  varint (n_bytes * 2 + is_zstd) | bytes
 */
#ifndef DW_CODEC_PACKED_BLOCK_H
#define DW_CODEC_PACKED_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/dtype.h"

typedef struct dw_packed_scratch dw_packed_scratch;

dw_packed_scratch *dw_packed_scratch_new(void);
void dw_packed_scratch_free(dw_packed_scratch *s);

/* Packs N elements. The bytes are in the scratch until its next use. 0 if zstd ran out of
 * memory. */
size_t dw_packed_encode(const uint8_t **out, dw_packed_scratch *s, const void *elems,
                        uint32_t n, dw_element element);

/* Unpacks N elements into ELEMS. False if the bytes are no valid block. */
bool dw_packed_decode(void *elems, dw_packed_scratch *s, const uint8_t *bytes,
                      size_t n_bytes, uint32_t n, dw_element element);

#endif
