/* Decodes a delta against weights in a device's memory, proves that the result is the
 * version it names, and stores it. The weights are not copied.
 *
 * Launches, for all tensors together:
 *
 *     spread    tells each strip which block it belongs to
 *     count     reads the weights of changed blocks and counts classes, while the encoded
 *               bytes are copied to the device
 *     read      decodes ranks and moves
 *     bounds    finds the entries of each strip
 *     locate    reads the weights again, and lists (position, old, new) of each strip
 *
 * The lists stay on the device. Applying is one launch over them, `scatter`: it compares
 * the old values, stores the new ones and reads them back; `undo` takes it back if one
 * was not what it should be. If the weights change meanwhile, the digests do not agree.
 *
 * The format does not say how many changes a block has. Room is given by its share of the
 * tensor's bytes; blocks that have more are decoded again, with room for all that can be.
 *
 * The memory of a stage that was closed is kept for the next one of the handle, until
 * dw_cuda_trim or dw_cuda_close.
 */
#ifndef DW_CUDA_CUDA_STAGE_H
#define DW_CUDA_CUDA_STAGE_H

#include "codec/stage.h"
#include "cuda/cuda_context.h"

typedef struct dw_cuda_stage dw_cuda_stage;

/* `data` of TENSORS are addresses of the device, aligned to the elements. TENSORS must
 * outlive the stage. OPTIONS as in dw_stage_verify. No weight is changed. */
dw_status dw_cuda_stage_open(dw_cuda_stage **out, dw_stage_result *result, dw_cuda *c,
                             const dw_delta *delta, const dw_tensor *tensors,
                             size_t n_tensors, const dw_apply_options *options,
                             dw_error *err);
void dw_cuda_stage_close(dw_cuda_stage *s);

/* The same in two steps, without a verdict: for a list of tensors of which only some are
 * on this device. BLOCKS are theirs; those of a tensor stand together. */
dw_status dw_cuda_stage_new(dw_cuda_stage **out, dw_cuda *c, const dw_tensor *tensors,
                            dw_error *err);
dw_status dw_cuda_stage_decode(dw_cuda_stage *s, dw_stage_block *blocks, size_t n_blocks,
                               dw_error *err);

/* Storing in steps: `store` starts it, `wait` waits and reports how many weights held
 * neither the old value nor the new one, or did not take it, and the TENSOR of one of
 * them. `undo` puts old values back where one of the two was found, and waits. Each may
 * be called again. TENSORS is not used. */
dw_status dw_cuda_stage_store(dw_cuda_stage *s, dw_error *err);
dw_status dw_cuda_stage_wait(dw_cuda_stage *s, uint64_t *n_wrong, size_t *tensor,
                             dw_error *err);
dw_status dw_cuda_stage_undo(dw_cuda_stage *s, dw_error *err);

/* Stores the changes. DW_STALE if a weight is not what it was when it was staged: then
 * all of them are as before. After another failure the weights may be a
 * mix. */
dw_status dw_cuda_stage_apply(dw_cuda_stage *s, dw_error *err);

#endif
