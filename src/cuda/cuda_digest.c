#include "cuda/cuda_digest.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"

/* Pieces end at multiples of DW_CUDA_PIECE_BYTES of the whole tensor. */
static uint64_t pieces_of(const dw_tensor *t)
{
    const uint64_t start = t->first_byte % DW_CUDA_PIECE_BYTES;
    return t->n_bytes ? (start + t->n_bytes - 1) / DW_CUDA_PIECE_BYTES + 1 : 0;
}

static void list_pieces(dw_cuda_piece *out, const dw_tensor *tensors, size_t n_tensors)
{
    for (size_t t = 0; t < n_tensors; t++) {
        const dw_tensor *tensor = &tensors[t];
        for (uint64_t at = 0, n; at < tensor->n_bytes; at += n) {
            const uint64_t left = tensor->n_bytes - at;
            n = DW_CUDA_PIECE_BYTES - (tensor->first_byte + at) % DW_CUDA_PIECE_BYTES;
            n = n < left ? n : left;
            *out++ = (dw_cuda_piece){.data = (const uint8_t *)tensor->data + at,
                                     .n_bytes = n,
                                     .first_byte = tensor->first_byte + at};
        }
    }
}

static void sum_pieces(dw_digest *out, const dw_cuda_piece *pieces,
                       const dw_tensor *tensors, size_t n_tensors)
{
    memset(out, 0, n_tensors * sizeof *out);
    for (size_t t = 0; t < n_tensors; t++)
        for (uint64_t k = 0; k < pieces_of(&tensors[t]); k++, pieces++) {
            const uint64_t sum = dw_digest_reduce(
                ((unsigned __int128)pieces->halves[1] << 32) + pieces->halves[0]);
            out[t] = dw_digest_plus(
                out[t], dw_digest_times(
                            dw_digest_power(pieces->first_byte / DW_DIGEST_CHUNK), sum));
        }
}

dw_status dw_cuda_digest_tensors(dw_digest *out, dw_cuda *c, const dw_tensor *tensors,
                                 size_t n_tensors, dw_error *err)
{
    uint64_t n_pieces = 0;
    for (size_t t = 0; t < n_tensors; t++)
        n_pieces += pieces_of(&tensors[t]);
    dw_cuda_piece *pieces = dw_alloc_array((size_t)n_pieces, sizeof *pieces);
    if (!pieces)
        return dw_fail_memory(err, c->where);
    list_pieces(pieces, tensors, n_tensors);
    const uint64_t n_bytes = n_pieces * sizeof *pieces;
    cu_pointer on_device = 0;
    dw_status status = dw_cuda_enter(c, err);
    if (status != DW_OK) {
        dw_free(pieces);
        return status;
    }
    status = dw_cuda_alloc(&on_device, c, n_bytes, "a list of weights", err);
    if (status == DW_OK)
        status = dw_cuda_up(c, on_device, pieces, n_bytes, err);
    if (status == DW_OK) {
        const dw_cuda_digest_job job = {dw_cuda_address(c->constants),
                                        dw_cuda_address(on_device)};
        status = dw_cuda_launch(c, DW_CUDA_DIGEST, n_pieces * DW_CUDA_PARTS, &job, err);
    }
    if (status == DW_OK)
        status = dw_cuda_down(c, pieces, on_device, n_bytes, err);
    if (status == DW_OK)
        status = dw_cuda_wait(c, err);
    dw_cuda_drain(c, status);
    dw_cuda_free(c, &on_device);
    dw_cuda_leave(c);
    if (status == DW_OK)
        sum_pieces(out, pieces, tensors, n_tensors);
    dw_free(pieces);
    return status;
}
