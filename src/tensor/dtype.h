/* Element types as words. */
#ifndef DW_TENSOR_DTYPE_H
#define DW_TENSOR_DTYPE_H

#include "deltawire/tensor.h"

/* Deltas treat a tensor as machine words of 1, 2, 4 or 8 bytes. C64 is twice as many
 * 4-byte floats; sub-byte types are bytes. */
typedef struct dw_element {
    unsigned width; /* bytes */
    bool is_float;  /* a sign bit on top, then a magnitude that grows with the value */
    unsigned exponent_shift; /* mantissa bits; for non-floats all bits, so that the
                                shifted pattern is 0 and there is one class */
} dw_element;

dw_element dw_dtype_element(dw_dtype dtype);

/* The number of words in the tensor: n_bytes / width. */
uint64_t dw_tensor_units(const dw_tensor *tensor);

/* The rank in the stock library's order of types. It writes types from last to first. */
unsigned dw_dtype_rank(dw_dtype dtype);

#endif
