/* The internals of a delta, shared by the files that make, read and apply one. */
#ifndef DW_CODEC_DELTA_H
#define DW_CODEC_DELTA_H

#include "base/file.h"
#include "codec/block.h"
#include "deltawire/delta.h"
#include "tensor/safetensors.h"

typedef struct dw_delta_block {
    const uint8_t *bytes;
    uint32_t n_bytes;
    dw_block_mode mode;
} dw_delta_block;

/* How TRL's layouts encode positions. */
typedef enum dw_trl_index {
    DW_TRL_I32,   /* plain positions */
    DW_TRL_GAP16, /* unchanged elements before each change */
    DW_TRL_GAP32,
} dw_trl_index;

typedef struct dw_delta_entry {
    dw_tensor shape; /* name, dtype, dims, n_bytes; data is NULL. If a TRL file has no
                        shape, n_bytes is 0 and has_shape false */
    bool has_shape;
    dw_element element;
    uint64_t n_changed;
    dw_digest base_digest;
    dw_digest new_digest;

    /* CLASS */
    dw_class_map map;
    uint64_t checksum; /* XXH64 of all blocks */
    dw_delta_block *blocks;
    uint64_t n_blocks;

    /* GAP, RAW: n_changed entries each, not aligned */
    dw_trl_index index_kind;
    const uint8_t *indices;
    const uint8_t *values;
} dw_delta_entry;

/* Consecutive bytes of the encoded file. */
typedef struct dw_piece {
    const void *bytes;
    size_t n_bytes;
    uint64_t offset; /* in the file */
} dw_piece;

struct dw_delta {
    dw_delta_info info;
    dw_delta_entry *entries; /* names ascending */
    char *label;             /* the file's path, for errors */

    dw_piece *pieces; /* the encoded file */
    size_t n_pieces;

    /* the memory that the members above point to */
    dw_safetensors file;
    dw_writer header;
    dw_writer index;
    void **owned; /* further allocations */
    size_t n_owned;
    dw_delta **parts; /* the deltas it was merged from */
    size_t n_parts;
};

dw_delta *dw_delta_new(const char *label);

/* Makes DELTA free POINTER when it is closed. Frees it at once on failure. */
dw_status dw_delta_own(dw_delta *delta, void *pointer, dw_error *err);

/* dw_alloc_zeroed, owned by DELTA; NULL with ERR filled on failure. */
void *dw_delta_alloc(dw_delta *delta, size_t n_items, size_t n_bytes, dw_error *err);

/* Makes PIECES, whose offsets it fills in, the encoded file. */
void dw_delta_set_pieces(dw_delta *delta, dw_piece *pieces, size_t n_pieces);

/* Copies bytes OFFSET .. OFFSET + N_BYTES of the encoded file; any number of threads at
 * once. DW_INVALID if they pass its end. DELTA is a dw_delta: this is a `read` of
 * dw_source. */
dw_status dw_delta_read_at(void *delta, uint64_t offset, void *into, size_t n_bytes,
                           dw_error *err);

/* Applies a delta that was verified against these weights before, in one pass, and
 * verifies the result again. No tensors may share memory; OPTIONS has base_digests. A
 * failure leaves the weights a mix of old and new. */
dw_status dw_delta_apply_proven(const dw_delta *delta, const dw_tensor *tensors,
                                size_t n_tensors, const dw_apply_options *options,
                                dw_error *err);

/* For qsort over dw_delta_entry: by name. */
int dw_entry_compare(const void *left, const void *right);

/* The number of units of the entry: elements as the codec counts them. Needs has_shape.
 */
uint64_t dw_entry_units(const dw_delta_entry *entry);

/* The block's first element and number of elements. */
typedef struct dw_span {
    uint64_t first;
    uint32_t n;
} dw_span;
dw_span dw_block_span(uint64_t n_units, unsigned width, uint64_t block);
uint64_t dw_block_count(uint64_t n_units, unsigned width);

/* ---- our container (delta_file.c) ---- */

/* Builds header, index and pieces from info and entries. */
dw_status dw_container_write(dw_delta *delta, dw_error *err);
/* True if the parsed safetensors file is our container. */
bool dw_container_detect(const dw_safetensors *file);
dw_status dw_container_read(dw_delta *delta, dw_error *err);

#endif
