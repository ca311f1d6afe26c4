/* Decodes a delta against weights, block by block on all threads, and proves that the
 * result is the version it names. The caller decides what happens to the changes: keep
 * them in memory, write them to a file, store them, or only count them.
 */
#ifndef DW_CODEC_STAGE_H
#define DW_CODEC_STAGE_H

#include "codec/delta.h"
#include "codec/kept.h"

typedef struct dw_stage dw_stage;

/* Matches the delta's tensors with the list by name, type and shape, and allocates the
 * memory for decoding. DELTA and TENSORS must outlive it. */
dw_status dw_stage_open(dw_stage **out, const dw_delta *delta, const dw_tensor *tensors,
                        size_t n_tensors, unsigned n_threads, dw_error *err);
void dw_stage_close(dw_stage *stage);

/* A block that is decoded elsewhere than on the CPU, if the weights are elsewhere. A
 * tensor of a device is decoded there, and the device keeps the changes. */
typedef struct dw_stage_block {
    size_t tensor;
    dw_span span;
    const dw_delta_entry *entry;
    const dw_delta_block *block;
    dw_digest move_share; /* out */
    uint64_t n_changed;   /* out */
} dw_stage_block;

typedef struct dw_stage_device {
    /* Decodes the blocks and keeps the changes. DW_CORRUPT if one does not decode. */
    dw_status (*decode)(void *context, const dw_tensor *tensors, dw_stage_block *blocks,
                        size_t n_blocks, dw_error *err);
    /* The digests of weights. */
    dw_status (*digest)(void *context, dw_digest *out, const dw_tensor *tensors,
                        size_t n_tensors, dw_error *err);
    void *context;
} dw_stage_device;

/* Lets DEVICE, which must outlive the stage, read all weights; then there are no sinks.
 */
void dw_stage_set_device(dw_stage *stage, const dw_stage_device *device);

/* What the devices of the tensors keep since the last run: the caller drops each, and
 * frees the list with dw_free. Returns the number. */
size_t dw_stage_take_kept(dw_stage *stage, dw_kept **out);

/* Receives the changes of one block of a tensor in the memory of the host: tensor T of
 * the list, positions relative to element FIRST. Runs on several threads at once. */
typedef dw_status (*dw_stage_sink)(void *context, size_t t, uint64_t first,
                                   const dw_decoded *changes, dw_error *err);

typedef struct dw_stage_result {
    dw_digest base_state;
    dw_digest new_state;
    uint64_t n_changed;
} dw_stage_result;

/* Decodes all changes, reads all weights if OPTIONS has no digests of them, and verifies
 * both the base and the result. OUT's base_state is filled also if the weights turn out
 * to be another version (DW_STALE). The sink, which may be NULL, sees changes before they
 * are verified, so it must not touch the weights. */
dw_status dw_stage_verify(dw_stage_result *out, dw_stage *stage,
                          const dw_apply_options *options, dw_stage_sink sink,
                          void *context, dw_error *err);

/* Decodes all changes again, after they were verified. The sink may write the weights
 * that it gets. Allocates before the first change or not at all. */
dw_status dw_stage_repeat(dw_stage *stage, dw_stage_sink sink, void *context,
                          dw_error *err);

#endif
