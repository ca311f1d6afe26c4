/* The memory of a stage. The handle keeps that of the last one for the next. */
#ifndef DW_CUDA_CUDA_STAGE_MEMORY_H
#define DW_CUDA_CUDA_STAGE_MEMORY_H

#include "codec/stage.h"
#include "cuda/cuda_room.h"

typedef struct dw_cuda_stage_memory {
    dw_cuda_room blocks, order, decoded, segments, totals, bases, lows;
    dw_cuda_room ranks, moves, input, dense;
    dw_cuda_room positions, olds, news, counters;
    dw_cuda_pinned host_blocks, host_order, host_decoded, host_counters;

    /* for encoded bytes on their way: a stream of their own, and two buffers in turns */
    cu_stream stream;
    dw_cuda_pinned host_input[2];
    cu_event copied[2]; /* each buffer is free again */
    cu_event arrived;   /* all is on the device */
} dw_cuda_stage_memory;

/* All of these between dw_cuda_enter and dw_cuda_leave. */
dw_status dw_cuda_stage_memory_take(dw_cuda_stage_memory **out, dw_cuda *c,
                                    dw_error *err);
/* Nothing uses it any more. NULL is allowed. */
void dw_cuda_stage_memory_give(dw_cuda *c, dw_cuda_stage_memory *m);

/* Copies the code of N blocks to `input`, one after the other; later work on the handle's
 * stream waits for it. LIST has the numbers of the blocks, and dense ones are left out.
 */
dw_status dw_cuda_stage_upload(dw_cuda_stage_memory *m, dw_cuda *c,
                               const dw_stage_block *blocks, const uint32_t *list,
                               size_t n, dw_error *err);

#endif
