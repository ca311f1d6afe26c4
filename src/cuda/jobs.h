/* What the host passes to kernels and gets back. Pointers are to the device's memory. */
#ifndef DW_CUDA_JOBS_H
#define DW_CUDA_JOBS_H

#include "codec/ans_step.h"
#include "kernel/class_map.h"
#include "kernel/digest_sum.h"

#define DW_CUDA_WORDS (DW_DIGEST_CHUNK / 4)
#define DW_CUDA_POWERS                                                                   \
    520 /* one for each chunk that a block of 2 MiB can touch, and more */

/* On the device once for each handle. */
typedef struct dw_cuda_constants {
    uint64_t coefficients[DW_CUDA_WORDS];
    uint64_t powers[DW_CUDA_POWERS]; /* g^0, g^1, ... */
    dw_ans_symbol symbols[DW_ANS_TABLES][DW_ANS_SYMBOLS];
    uint16_t costs[DW_ANS_TABLES][DW_ANS_SYMBOLS];
    uint32_t stays[DW_ANS_TABLES];
} dw_cuda_constants;

/* ---- digest.cuh: one block of threads for each part of a piece ---- */

#define DW_CUDA_PIECE_BYTES (1u << 20)
#define DW_CUDA_PART_CHUNKS 16u
#define DW_CUDA_PARTS       (DW_CUDA_PIECE_BYTES / DW_DIGEST_CHUNK / DW_CUDA_PART_CHUNKS)

typedef struct dw_cuda_piece {
    const uint8_t *data;
    uint64_t n_bytes; /* up to the next multiple of DW_CUDA_PIECE_BYTES in the tensor */
    uint64_t first_byte; /* in the tensor */
    uint64_t halves[2];  /* out: the share without the power of the first chunk; zero at
                            first */
} dw_cuda_piece;

typedef struct dw_cuda_digest_job {
    const dw_cuda_constants *constants;
    dw_cuda_piece *pieces;
} dw_cuda_digest_job;

/* ---- encoding ---- */

/* A block of a tensor is cut into strips, a strip into cells. A cell is what a thread
 * compares at once: 8 elements of 1 or 2 bytes, 4 of 4, 2 of 8. */
#define DW_CUDA_CELLS             1024u
#define DW_CUDA_STRIPS            128u /* of a whole block */
#define DW_CUDA_CELL_ELEMS(width) ((width) <= 2 ? 8u : 16u / (width))

typedef struct dw_cuda_tensor {
    const uint8_t *old;
    uint64_t n_elems;
    dw_class_map map; /* `base` is chosen on the device */
    uint32_t width;
    uint32_t is_float;
} dw_cuda_tensor;

typedef struct dw_cuda_block {
    const uint8_t *old;
    const uint8_t *new_;
    uint64_t first_byte; /* in the tensor */
    uint32_t n;          /* elements */
    uint32_t tensor;
    uint32_t first_strip;
    uint8_t width;
    uint8_t is_float;
    uint8_t round_new; /* new_ is F32 and is rounded to BF16 */
    uint8_t unused;
} dw_cuda_block;

typedef struct dw_cuda_strip {
    uint64_t digest;    /* sum of its changes, without the power of the first chunk of the
                           block */
    uint64_t first;     /* entry, of n_changes */
    uint32_t n_changes; /* also if it was put off */
    uint32_t is_put_off; /* there was no room for its entries, and nothing was stored */
    uint16_t totals[DW_CLASSES];
} dw_cuda_strip;

enum {
    DW_CUDA_CODED = 0,
    DW_CUDA_PUT_OFF = 1, /* some of its strips were */
    DW_CUDA_NO_ROOM = 2, /* for its bytes; counters[DW_CUDA_BYTES] says how many */
};

/* The outcome of a block. */
typedef struct dw_cuda_code {
    uint64_t digest[2]; /* halves of the sum of its changes, without the power of the
                           first chunk */
    uint64_t sorted;    /* first entry by class */
    uint64_t symbols;   /* offsets in `bytes` */
    uint64_t ans_end;
    uint64_t bits;
    uint64_t out; /* offset in `out` */
    uint32_t n_changes;
    uint32_t state;
    uint32_t n_symbols;
    uint32_t n_ans;
    uint32_t n_bits; /* bytes */
    uint32_t n_bytes;
    uint32_t n_runs;
    uint32_t run_end[2 * DW_CLASSES]; /* symbol after the run */
    uint8_t run_table[2 * DW_CLASSES];
} dw_cuda_code;

enum { DW_CUDA_ENTRIES, DW_CUDA_SORTED, DW_CUDA_BYTES, DW_CUDA_COUNTERS };

typedef struct dw_cuda_encode_job {
    const dw_cuda_constants *constants;
    dw_cuda_tensor *tensors;
    const dw_cuda_block *blocks;
    const uint32_t *block_of; /* [strips] */
    dw_cuda_strip *strips;
    dw_cuda_code *codes; /* [blocks] */
    uint64_t *counters;  /* [DW_CUDA_COUNTERS], zero at first */
    uint32_t n_blocks;
    uint32_t move_bytes; /* 4, or 8 if an element has 8 bytes */

    /* entries in the order of positions: class << 28 | position in the block; rank in
     * the class, counted in the strip; move */
    uint64_t n_entries;
    uint32_t *places;
    uint16_t *ranks;
    uint8_t *moves;

    /* by class: rank in the class, counted in the block; move */
    uint32_t *sorted_ranks;
    uint8_t *sorted_moves;

    uint64_t n_room; /* of `bytes` and `out` each */
    uint8_t *bytes;
    uint8_t *out;

    uint8_t *scratch; /* DW_BLOCK_BYTES; takes the new elements of one dense block */
    uint32_t block;   /* that one */
    uint32_t unused;
} dw_cuda_encode_job;

/* ---- decoding ---- */

enum {
    DW_CUDA_STAGED = 0,
    DW_CUDA_CORRUPT = 1,
    DW_CUDA_CROWDED = 2, /* more changes than n_most, which was a guess */
};

typedef struct dw_cuda_coded_block {
    uint8_t *data;       /* the weights */
    const uint8_t *news; /* of a dense block: all new elements; else NULL */
    uint64_t first_byte; /* in the tensor */
    uint64_t bytes;      /* where its code begins in `input` */
    uint64_t first;      /* entry by class, of n_most */
    dw_class_map map;
    uint32_t n_bytes;
    uint32_t n_most;
    uint32_t n;
    uint32_t first_strip;
    uint32_t tensor;
    uint8_t width;
    uint8_t is_float;
    uint8_t is_guess; /* n_most is */
    uint8_t unused;
} dw_cuda_coded_block;

/* The outcome of a block, and what its strips need. */
typedef struct dw_cuda_decoded {
    uint64_t digest[2]; /* as in dw_cuda_code */
    uint64_t staged;    /* first change, if the block is not dense */
    uint32_t n_changes;
    uint32_t state;
    uint32_t first[DW_CLASSES + 1]; /* entries by class, from `first` of the block on */
    uint32_t unused;
} dw_cuda_decoded;

/* The changes of a strip, in any order. */
typedef struct dw_cuda_segment {
    uint64_t first;
    uint32_t n;
    uint32_t block;
} dw_cuda_segment;

enum { DW_CUDA_CHANGES, DW_CUDA_MISMATCHES, DW_CUDA_FAULT, DW_CUDA_STAGE_COUNTERS };

#define DW_CUDA_NOT_STORED 0x80000000u /* in a position: another value was there */

/* Lists of (position in the block, old, new), one for all segments. */
typedef struct dw_cuda_changes {
    uint64_t n_most;
    uint32_t *positions;
    uint8_t *olds; /* each of value_bytes */
    uint8_t *news;
    uint64_t *counters;   /* [DW_CUDA_STAGE_COUNTERS] */
    uint32_t value_bytes; /* of the widest element */
    uint32_t unused;
} dw_cuda_changes;

/* Blocks and strips have the same numbers in all launches. */
typedef struct dw_cuda_decode_job {
    const dw_cuda_constants *constants;
    const dw_cuda_coded_block *blocks;
    const uint32_t *order;     /* the blocks of this launch */
    dw_cuda_decoded *decoded;  /* [blocks], zero at first */
    dw_cuda_segment *segments; /* [strips] */
    uint16_t *totals;          /* [strips][DW_CLASSES] */
    uint32_t *bases;           /* [strips][DW_CLASSES]: ranks before the strip */
    uint32_t *lows;            /* [strips][DW_CLASSES]: entries before the strip */
    const uint8_t *input;      /* and DW_CUDA_SLACK bytes more */
    uint32_t *sorted_ranks;
    uint8_t *sorted_moves; /* each of value_bytes */
    uint64_t first_strip;  /* of this launch */
    dw_cuda_changes changes;
} dw_cuda_decode_job;

#define DW_CUDA_SLACK 256

typedef struct dw_cuda_scatter_job {
    const dw_cuda_coded_block *blocks;
    const dw_cuda_segment *segments;
    dw_cuda_changes changes;
} dw_cuda_scatter_job;

/* ---- stores.cuh: a block of threads for each part ---- */

/* Stores in one tensor. */
typedef struct dw_cuda_store_part {
    uint8_t *data;   /* places are counted from here */
    uint64_t first;  /* place */
    uint64_t values; /* byte of the first one in `olds` and `news` */
    uint32_t n;
    uint32_t width;
    uint32_t tensor;
    uint32_t unused;
} dw_cuda_store_part;

typedef struct dw_cuda_store_job {
    const dw_cuda_store_part *parts;
    uint32_t *places; /* DW_CUDA_NOT_STORED is added */
    const uint8_t *olds, *news;
    uint64_t *counters; /* [DW_CUDA_STAGE_COUNTERS] */
} dw_cuda_store_job;

#endif
