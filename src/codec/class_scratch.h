/* The working memory of the `class` codec, shared by two files. */
#ifndef DW_CODEC_CLASS_SCRATCH_H
#define DW_CODEC_CLASS_SCRATCH_H

#include "codec/ans.h"
#include "codec/class_block.h"

/* The most bytes that a symbol and the plain bits of an element can take. With q fitted
 * to the gaps, their plain bits stay below 1.1 for each element of the block, and FAR
 * covers at least 31 elements. */
#define DW_MAX_SYMBOLS   (2 * DW_BLOCK_ELEMS + DW_BLOCK_ELEMS / DW_ANS_FAR + 2 * DW_CLASSES)
#define DW_MAX_ANS_BYTES (DW_MAX_SYMBOLS * 3 / 2 + 64)
#define DW_MAX_BIT_BYTES (DW_BLOCK_BYTES + DW_BLOCK_ELEMS / 8 + DW_BLOCK_ELEMS / 4 + 256)
#define DW_OUT_MIDDLE    (DW_MAX_ANS_BYTES + 16) /* and the length before them */

/* Elements compared at a time: few enough that their changes are still in the first-level
 * cache when they are coded. */
#define DW_STRIP_ELEMS 16384u

struct dw_class_scratch {
    uint16_t rounded[DW_STRIP_ELEMS]; /* of new elements in F32 */
    uint32_t gaps[DW_BLOCK_ELEMS];    /* by class, then position */
    uint64_t moves[DW_BLOCK_ELEMS];   /* likewise */
    uint32_t first[DW_CLASSES + 1];   /* where each class begins in both */
    union {
        struct { /* encoding, first: the changes by position */
            dw_change changes[DW_STRIP_ELEMS + DW_LIST_SLACK];
            uint32_t class_gaps[DW_BLOCK_ELEMS];
            uint64_t in_order[DW_BLOCK_ELEMS]; /* moves */
        };
        struct { /* encoding, then: the output */
            uint8_t symbols[DW_MAX_SYMBOLS];
            /* symbols are coded from the middle down, bits from the middle up, so that
             * the two parts of the block meet there */
            uint8_t out[DW_OUT_MIDDLE + DW_MAX_BIT_BYTES];
        };
        struct { /* decoding */
            uint64_t found[DW_LOCATE_ELEMS / 64];
            uint32_t positions[DW_BLOCK_ELEMS + DW_LIST_SLACK];
            uint64_t values[DW_BLOCK_BYTES / sizeof(uint64_t)];
        };
    };
};

#endif
