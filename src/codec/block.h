/* A block of a tensor in its smallest form, and back. */
#ifndef DW_CODEC_BLOCK_H
#define DW_CODEC_BLOCK_H

#include "base/map.h"
#include "codec/class_block.h"
#include "codec/packed_block.h"

/* The numbers are part of the format. */
typedef enum dw_block_mode {
    DW_BLOCK_SAME = 0,   /* no bytes: nothing changed */
    DW_BLOCK_CLASS = 1,  /* class_block.h */
    DW_BLOCK_PACKED = 2, /* packed_block.h */
    DW_BLOCK_STORED = 3, /* the new elements, unpacked */
} dw_block_mode;

/* Working room of one thread, for both directions. */
typedef struct dw_block_scratch {
    dw_class_scratch *classes;
    dw_packed_scratch *packed; /* made when first needed */
    uint32_t *positions;       /* [block and slack], likewise */
    uint8_t *elems;            /* [2 MiB], likewise */
    uint8_t *values;           /* [2 MiB], likewise */
    dw_loan old_elems;         /* copies of elements in mapped files */
    dw_loan new_elems;
} dw_block_scratch;

dw_status dw_block_scratch_init(dw_block_scratch *s, dw_error *err);
/* Allocates everything now, so that later decoding cannot fail for lack of memory. */
dw_status dw_block_scratch_reserve(dw_block_scratch *s, dw_error *err);
void dw_block_scratch_release(dw_block_scratch *s);

typedef struct dw_block_code {
    dw_block_mode mode;
    dw_encoded encoded; /* the mode's bytes */
} dw_block_code;

/* Like dw_class_encode, but NEW_ must not be OLD's memory. The result may be in the
 * scratch or in OLD. */
dw_status dw_block_encode(dw_block_code *out, dw_block_scratch *s, void *old,
                          const void *new_, uint32_t n, dw_element element,
                          const dw_class_map *map, dw_note *note, dw_error *err);

/* Notes a list of changes that came from elsewhere. OLD is the block. */
void dw_note_list(dw_note *note, const dw_decoded *d, const void *old, unsigned width);

/* Returns DW_CORRUPT without a text if the bytes do not decode against OLD. */
dw_status dw_block_decode(dw_decoded *out, dw_block_scratch *s, dw_block_mode mode,
                          const uint8_t *bytes, size_t n_bytes, const void *old,
                          uint32_t n, dw_element element, const dw_class_map *map,
                          dw_note *note, dw_error *err);

#endif
