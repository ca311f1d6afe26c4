/* Stages a version that comes in parts. Each part is a delta of slices and is verified by
 * itself. Their changes become one patch for the whole tensors.
 */
#ifndef DW_CODEC_PARTS_H
#define DW_CODEC_PARTS_H

#include "codec/patch.h"
#include "codec/slice.h"
#include "codec/stage.h"

typedef struct dw_part {
    const dw_delta *delta;
    const dw_slice *slices; /* the slices that the delta was made from, in any order */
    size_t n_slices;
    const dw_digest *base_digests; /* [n_slices], or NULL: read and checked */
    dw_digest *new_digests;        /* [n_slices], valid if all parts are good; or NULL */
    dw_stage_result *result;       /* or NULL; base_state is filled also with DW_STALE */
} dw_part;

/* Decodes and verifies all parts without writing. The result is one patch, or none. Parts
 * that overlap or pass the tensors are refused with DW_CORRUPT. PROGRESS may be NULL. */
dw_status dw_parts_stage_memory(dw_patch **out, const dw_tensor *tensors,
                                size_t n_tensors, const dw_part *parts, size_t n_parts,
                                unsigned n_threads, const dw_progress *progress,
                                dw_error *err);

/* The same into the patch file PATH, which appears whole and synced, or not at all. If
 * GOAL has a digest and the parts cover the model, they must lead to that state. If they
 * cover less, the caller checks it, because it knows the digests of the rest. */
dw_status dw_parts_stage_file(const char *path, const dw_tensor *tensors,
                              size_t n_tensors, const dw_part *parts, size_t n_parts,
                              const dw_patch_goal *goal, unsigned n_threads,
                              const dw_progress *progress, dw_error *err);

#endif
