/* Memory that is kept from one use to the next, and grows if it must. Between
 * dw_cuda_enter and dw_cuda_leave.
 */
#ifndef DW_CUDA_CUDA_ROOM_H
#define DW_CUDA_CUDA_ROOM_H

#include "cuda/cuda_context.h"

/* Of the device. */
typedef struct dw_cuda_room {
    cu_pointer at;
    uint64_t n_bytes;
} dw_cuda_room;

/* Makes room for N_BYTES. What was in it is lost if it grows; nothing may use it then. */
dw_status dw_cuda_room_reserve(dw_cuda_room *room, dw_cuda *c, uint64_t n_bytes,
                               const char *what, dw_error *err);
void dw_cuda_room_free(dw_cuda_room *room, dw_cuda *c);

/* Of the host, pinned: the device copies it by itself. */
typedef struct dw_cuda_pinned {
    void *at;
    uint64_t n_bytes;
} dw_cuda_pinned;

dw_status dw_cuda_pinned_reserve(dw_cuda_pinned *pinned, dw_cuda *c, uint64_t n_bytes,
                                 dw_error *err);
void dw_cuda_pinned_free(dw_cuda_pinned *pinned, dw_cuda *c);

#endif
