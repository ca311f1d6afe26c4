/* Decodes a delta against weights in a device's memory, proves that the result is the
 * version it names, and stores it. The weights are not copied.
 *
 * Launches: `count` reads the weights of changed blocks, `read` decodes ranks and moves,
 * `locate` reads the weights again and lists (position, old, new) of each strip. The
 * lists stay on the device. Applying is one launch over them, `scatter`: it compares the
 * old values, stores the new ones and reads them back; `undo` takes it back if one was
 * not what it should be. If the weights change meanwhile, the digests do not agree.
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

/* Stores the changes. DW_STALE if a weight is not what it was when it was staged: then
 * all of them are as before. Call it once. After another failure the weights may be a
 * mix. */
dw_status dw_cuda_stage_apply(dw_cuda_stage *s, dw_error *err);

#endif
