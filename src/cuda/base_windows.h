/* Old weights in pinned memory of the host: they go through two buffers of the device,
 * one window after the other. A window is as many blocks as have room in a buffer. While
 * one is compared, the next is copied:
 *
 *     copies     | 0 | 1 |     2     |     3     | ...      each waits for its buffer
 *     compare        |     0     |     1     |     2     |  each waits for its copy
 *
 * Everything is given to the device at once, and the host waits for nothing. Copies need
 * no new weights, so they begin before those are ready. The other kernels read few old
 * weights: they do so in the memory of the host, whose addresses the device knows.
 */
#ifndef DW_CUDA_BASE_WINDOWS_H
#define DW_CUDA_BASE_WINDOWS_H

#include "cuda/cuda_context.h"

typedef struct dw_cuda_window {
    size_t first_block, n_blocks; /* of the round */
    uint64_t first_strip, n_strips;
} dw_cuda_window;

typedef struct dw_cuda_windows {
    uint64_t n_bytes;   /* of a buffer */
    cu_pointer memory;  /* both */
    cu_pointer blocks;  /* [blocks] of a round: `old` in a buffer, first_strip in the
                           window */
    cu_stream stream;   /* of the copies */
    cu_event copied[2]; /* to each buffer */
    cu_event compared[2];
    void *pinned;
    dw_cuda_block *listed; /* [blocks], in pinned memory */
    dw_cuda_window *items; /* [n], at most one for each block */
    size_t n;
} dw_cuda_windows;

/* All but dw_cuda_windows_list: between enter and leave. */

/* N_BASE and N_MOST are the bytes of all blocks and of the largest one. Close it in any
 * case. */
dw_status dw_cuda_windows_open(dw_cuda_windows *w, dw_cuda *c, size_t n_blocks,
                               uint64_t n_base, uint64_t n_most, dw_error *err);
/* Waits for the copies. Leaves `items`, for dw_free: a lost device cannot be entered. */
void dw_cuda_windows_close(dw_cuda_windows *w, dw_cuda *c);

/* Cuts the blocks of a round into windows. Their `old` are addresses of the host, all of
 * them in one allocation. */
void dw_cuda_windows_list(dw_cuda_windows *w, const dw_cuda_block *blocks, size_t n);
/* Copies the list of N blocks to the device, on the handle's stream. */
dw_status dw_cuda_windows_upload(dw_cuda_windows *w, dw_cuda *c, size_t n, dw_error *err);

/* The launch of compare for all windows of the list. BLOCKS are those that it was made
 * of. */
dw_status dw_cuda_windows_compare(dw_cuda_windows *w, dw_cuda *c,
                                  const dw_cuda_block *blocks,
                                  const dw_cuda_encode_job *job, dw_error *err);

/* After a failure with STATUS: waits until nothing is copied any more. */
void dw_cuda_windows_drain(dw_cuda_windows *w, dw_cuda *c, dw_status status);

/* Memory of the device. */
uint64_t dw_cuda_windows_bytes(const dw_cuda_windows *w, size_t n_blocks);

#endif
