/* Finds tensors of a list by name, and compares two tensors. */
#ifndef DW_TENSOR_TENSOR_LIST_H
#define DW_TENSOR_TENSOR_LIST_H

#include "base/map.h"
#include "deltawire/base.h"
#include "deltawire/tensor.h"

/* DW_INVALID if a tensor has no name or data, if its bytes do not fit its shape, or if it
 * is a slice that begins inside an element. */
dw_status dw_tensors_check_placed(const dw_tensor *tensors, size_t n, dw_error *err);
/* The same, and DW_UNSUPPORTED if a tensor is on a device. */
dw_status dw_tensors_check(const dw_tensor *tensors, size_t n, dw_error *err);
/* The same, but data is not checked and may be NULL. */
dw_status dw_tensors_check_shapes(const dw_tensor *tensors, size_t n, dw_error *err);

/* For qsort and bsearch over dw_tensor: by name. */
int dw_tensor_compare_names(const void *left, const void *right);

/* The list's indices 0..n-1, sorted by name. The list must outlive it. */
typedef struct dw_name_index {
    const dw_tensor *tensors;
    size_t *order; /* dw_free */
    size_t n;
} dw_name_index;

/* DW_INVALID if two tensors share a name. */
dw_status dw_name_index_init(dw_name_index *out, const dw_tensor *tensors, size_t n,
                             dw_error *err);
void dw_name_index_release(dw_name_index *index);

#define DW_DIFFERENCE_TEXT 384

/* Writes which tensor of a stream's list GIVEN lacks, or which it has too many, and what
 * to do if its weights are tied. Returns OUT: "" if the names are the same. */
const char *dw_describe_difference(char out[DW_DIFFERENCE_TEXT], const dw_tensor *stream,
                                   size_t n_stream, const dw_tensor *given,
                                   size_t n_given);

/* The index of the tensor of that name, or SIZE_MAX. */
size_t dw_name_index_find(const dw_name_index *index, const char *name);

/* Sets *OUT if two tensors of the list share memory, as tied weights do. */
dw_status dw_tensors_overlap(bool *out, const dw_tensor *tensors, size_t n,
                             dw_error *err);

/* DW_MISMATCH, with the names of the tensor and of both sides, if type or shape differ.
 * WHERE names the source of WANTED. */
dw_status dw_tensor_same_shape(const dw_tensor *wanted, const dw_tensor *found,
                               const char *where, dw_error *err);

/* The same for a tensor of a stream and one of the caller's. The error names the next
 * step. */
dw_status dw_tensor_fits_stream(const dw_tensor *in_stream, const dw_tensor *in_model,
                                const char *where, dw_error *err);

/* T with bytes that can be read: its own, or a copy in LOAN if they are in a mapped file
 * (base/map.h). */
dw_status dw_tensor_read(dw_tensor *out, dw_loan *loan, const dw_tensor *t,
                         dw_error *err);

/* dw_cast_bf16 for elements that may be in a mapped file; OUT is plain memory. */
dw_status dw_cast_copy(uint16_t *out, const float *in, uint64_t n_elems, dw_error *err);

#endif
