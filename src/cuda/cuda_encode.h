/* Encodes the changes of weights in a device's memory. Only encoded bytes leave it, and
 * dense blocks, which zstd packs on the host.
 *
 * Launches, for all tensors together:
 *
 *     choose    the class base of each tensor, from a sample of the old weights
 *     compare   reads old and new weights once, lists the changes, makes old new; after
 *               it the new weights may change
 *     model     sorts a block's changes by class, fits, writes symbols and plain bits
 *     ans       codes the symbols
 *     pack      puts blocks one after the other
 *
 * The list has room for `n_entries` changes. Blocks that find no room are put off:
 * `restore` gives them their old weights back, and they are encoded afterwards, as many
 * at a time as have room in any case. So if more than that changes, the new weights must
 * stay until the end.
 */
#ifndef DW_CUDA_CUDA_ENCODE_H
#define DW_CUDA_CUDA_ENCODE_H

#include "codec/encode.h"
#include "cuda/cuda_context.h"

typedef struct dw_cuda_encoder {
    dw_cuda *cuda;
    uint64_t n_entries; /* 0: one for each 16 elements */

    /* of the last run */
    uint64_t n_put_off; /* blocks */
    uint64_t n_dense;
} dw_cuda_encoder;

/* The `run` of a dw_encode_device whose context is a dw_cuda_encoder. `data` of all
 * tensors of the job are addresses of the device, aligned to the elements. The bytes are
 * those that the CPU writes. After a failure BASE is undefined. */
dw_status dw_cuda_encode(void *encoder, const dw_encode_job *job, dw_class_map *maps,
                         dw_encode_item *items, size_t n_items, dw_error *err);

#endif
