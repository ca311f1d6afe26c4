/* The memory of an encoder, shared by two files. */
#ifndef DW_CUDA_ENCODER_H
#define DW_CUDA_ENCODER_H

#include "codec/packed_block.h"
#include "cuda/base_windows.h"
#include "cuda/cuda_encode.h"

/* The tables of blocks, on both sides. */
typedef struct dw_cuda_tables {
    cu_pointer tensors, blocks, block_of, strips, codes, counters;
    cu_pointer scratch; /* the new elements of a dense block */
    cu_pointer memory;  /* all of them */
    uint64_t n_bytes;
} dw_cuda_tables;

/* Lists of changes and what is made of them. */
typedef struct dw_cuda_encoder_room {
    uint64_t n_entries;
    cu_pointer places, ranks, moves;
    cu_pointer list; /* all of them */
    uint64_t n_bytes;
    cu_pointer bytes;
    cu_pointer sorted_ranks,
        sorted_moves; /* not needed any more when blocks are packed */
    cu_pointer out;   /* in the same place; n_bytes */
    uint64_t n_device_bytes;
} dw_cuda_encoder_room;

/* What is known of a block of the model. */
typedef struct dw_cuda_outcome {
    dw_cuda_code code;
    const uint8_t *bytes; /* its code */
    uint8_t *elems;       /* from dw_alloc: of a dense block of a round before the last */
    size_t place;         /* in its round */
    bool is_done;
} dw_cuda_outcome;

struct dw_cuda_encoder {
    dw_cuda *c;
    dw_encode_pair *pairs; /* digests and segments are not used */
    size_t *first_block;   /* [pairs + 1] */
    size_t n_pairs, n_blocks;
    uint64_t n_strips, n_elems, n_most; /* elements of the largest block */
    uint64_t n_base, n_largest; /* bytes of the old weights, and of their largest block */
    uint32_t move_bytes;
    bool grows;
    bool base_on_host; /* the old weights are in pinned memory of the host */
    bool is_uploaded;  /* the tables on the device are those of all blocks */

    /* in pinned memory */
    void *pinned;
    dw_cuda_tensor *tensors; /* [pairs], to the device */
    dw_cuda_block *blocks;   /* [blocks], of a round */
    uint32_t *block_of;      /* [strips], likewise */
    dw_cuda_tensor *chosen;  /* [pairs], from the device */
    dw_cuda_code *codes;     /* [blocks], of a round */
    uint64_t *counters;
    uint8_t *elems; /* of a dense block */
    uint8_t *out;   /* [n_out] */
    uint64_t n_out;

    dw_cuda_tables tables;
    dw_cuda_encoder_room room;
    dw_cuda_windows windows; /* if base_on_host */
    cu_event compared;

    /* of a version */
    size_t *round; /* [blocks]: the block of the model of each of this round */
    size_t n_round;
    uint64_t n_round_strips;
    dw_cuda_outcome *outcomes; /* [blocks] */
    bool has_outcomes;         /* otherwise all are zero */
    uint8_t **kept;            /* bytes of rounds before the last, from dw_alloc */
    size_t n_kept, n_kept_room;
    uint64_t n_wanted; /* entries that there should have been */
    dw_packed_scratch *packed;
    dw_cuda_encode_report report;
};

/* Forgets the version. */
void dw_cuda_encoder_forget(dw_cuda_encoder *e);

/* The strips of a block. */
uint32_t dw_cuda_strips_of(const dw_cuda_block *b);

/* Block I of the model, without first_strip. */
dw_cuda_block dw_cuda_encoder_block(const dw_cuda_encoder *e, size_t i);

/* Replaces the room by one for N_ENTRIES changes. On failure it stays. */
dw_status dw_cuda_encoder_take_room(dw_cuda_encoder *e, uint64_t n_entries,
                                    dw_error *err);

/* Other room for bytes and what is sorted; what was there is lost. On failure it stays.
 */
dw_status dw_cuda_encoder_room_for_bytes(dw_cuda_encoder *e, uint64_t n_bytes,
                                         dw_error *err);

/* Makes sure that `out` has room for N bytes. */
dw_status dw_cuda_pinned_out(dw_cuda_encoder *e, uint64_t n, dw_error *err);

#endif
