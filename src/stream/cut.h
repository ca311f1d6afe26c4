/* Parts of a model: between covers, as records spell them, and slices, as the codec takes
 * them; and cutting a model into pieces of bounded size.
 */
#ifndef DW_STREAM_CUT_H
#define DW_STREAM_CUT_H

#include "codec/slice.h"
#include "stream/record.h"
#include "tensor/weight_source.h"

typedef struct dw_slices {
    dw_slice *items;
    size_t n;
    size_t n_room;
} dw_slices;

void dw_slices_free(dw_slices *slices);
dw_status dw_slices_append(dw_slices *slices, dw_slice slice, dw_error *err);

/* COVERS NULL means everything; they were checked against the tensors. */
dw_status dw_slices_of_covers(dw_slices *out, const dw_cover *covers, size_t n_covers,
                              const dw_tensor *tensors, size_t n_tensors, dw_error *err);

/* The shortest spelling; slices are ascending. *OUT, dw_free, is NULL for everything. */
dw_status dw_covers_of_slices(dw_cover **out, size_t *n, const dw_slices *slices,
                              const dw_tensor *tensors, size_t n_tensors, dw_error *err);

/* The digests of SLICES of TENSORS, whose own are KNOWN: what is only a piece is read. */
dw_status dw_slices_digest(dw_digest *out, const dw_slices *slices,
                           const dw_tensor *tensors, size_t n_tensors,
                           const dw_digest *known, unsigned n_threads, dw_error *err);

/* The data of several tensors is in one block, each at a multiple of 64. */
static inline uint64_t dw_padded(uint64_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

/* The position of a walk over slices: the item, and how many of its elements are done. */
typedef struct dw_cut {
    size_t item;
    uint64_t done;
} dw_cut;

/* Takes the next slices off SLICES, as many as fill MAX_BYTES and at least something; a
 * tensor that does not fit is cut, at the edge of a codec block if possible. GRAINS has
 * an entry for each tensor; NULL: all may be cut anywhere. A unit is never cut, even if
 * it has more than MAX_BYTES. OUT is emptied first and stays empty at the end. */
dw_status dw_cut_next(dw_slices *out, dw_cut *cut, const dw_slices *slices,
                      const dw_tensor *tensors, const dw_grain *grains,
                      uint64_t max_bytes, dw_error *err);

#endif
