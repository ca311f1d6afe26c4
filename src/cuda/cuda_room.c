#include "cuda/cuda_room.h"

/* A little more than was asked for, so that it does not grow each time. */
static uint64_t generous(uint64_t n_bytes)
{
    return n_bytes + n_bytes / 8;
}

dw_status dw_cuda_room_reserve(dw_cuda_room *room, dw_cuda *c, uint64_t n_bytes,
                               const char *what, dw_error *err)
{
    if (n_bytes <= room->n_bytes)
        return DW_OK;
    dw_cuda_room_free(room, c);
    dw_status status = dw_cuda_alloc(&room->at, c, generous(n_bytes), what, err);
    if (status == DW_OK)
        room->n_bytes = generous(n_bytes);
    return status;
}

void dw_cuda_room_free(dw_cuda_room *room, dw_cuda *c)
{
    dw_cuda_free(c, &room->at);
    room->n_bytes = 0;
}

dw_status dw_cuda_pinned_reserve(dw_cuda_pinned *pinned, dw_cuda *c, uint64_t n_bytes,
                                 dw_error *err)
{
    if (n_bytes <= pinned->n_bytes)
        return DW_OK;
    dw_cuda_pinned_free(pinned, c);
    dw_status status =
        dw_cuda_alloc_pinned(&pinned->at, c, generous(n_bytes), "copies", err);
    if (status == DW_OK)
        pinned->n_bytes = generous(n_bytes);
    return status;
}

void dw_cuda_pinned_free(dw_cuda_pinned *pinned, dw_cuda *c)
{
    dw_cuda_free_pinned(c, pinned->at);
    *pinned = (dw_cuda_pinned){0};
}
