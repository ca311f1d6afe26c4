/* Slices of tensors: the elements that one of several ranks publishes.
 *
 * A slice is a run of elements, flat and row-major. Code that diffs, encodes and stages
 * treats it as an ordinary tensor, but its digest is its share of the whole tensor's
 * (first_byte of dw_tensor). So a model's state follows from its parts:
 *
 *     state = floor + the shares of parts that cover every element once
 */
#ifndef DW_CODEC_SLICE_H
#define DW_CODEC_SLICE_H

#include "deltawire/tensor.h"

typedef struct dw_slice {
    size_t tensor;  /* index in the list */
    uint64_t first; /* in elements, as dims count them */
    uint64_t n;     /* 0 and all: the whole tensor */
} dw_slice;

/* All of tensor T. */
dw_slice dw_slice_whole(const dw_tensor *tensors, size_t t);
bool dw_slice_is_whole(const dw_tensor *tensors, const dw_slice *slice);
uint64_t dw_slice_bytes(const dw_tensor *tensors, const dw_slice *slice);

/* Makes tensors of slices, in the given order. A whole tensor keeps its name and shape; a
 * slice is `NAME[FIRST:END]`, of shape [n]. */
typedef struct dw_slice_list {
    dw_tensor *tensors;
    size_t n;
    void *arena; /* names and dims of slices */
} dw_slice_list;

/* DW_INVALID if a slice passes the end of its tensor, is empty although the tensor is
 * not, begins or ends inside a byte, or overlaps another. Tensors without data give
 * slices without data. Names, shapes and data of whole tensors are borrowed. */
dw_status dw_slices_open(dw_slice_list *out, const dw_tensor *tensors, size_t n_tensors,
                         const dw_slice *slices, size_t n_slices, dw_error *err);
void dw_slices_release(dw_slice_list *list);

/* The element of the slice's tensor that it begins at, as the codec counts them: C64 as
 * two, types below a byte as bytes. */
uint64_t dw_slice_first_unit(const dw_tensor *tensors, const dw_slice *slice);

/* The sum that slices with these digests add to the state of the model TENSORS. */
dw_digest dw_slices_share(const dw_tensor *tensors, const dw_slice *slices,
                          const dw_digest *digests, size_t n_slices);

/* The floor: the state of the model if every digest is 0. */
dw_digest dw_state_floor(const dw_tensor *tensors, size_t n_tensors);

#endif
