/* How the layers above look at an element type. */
#ifndef DW_TENSOR_DTYPE_H
#define DW_TENSOR_DTYPE_H

#include "deltawire/tensor.h"

/* A tensor as deltas see it: a run of machine words of 1, 2, 4 or 8 bytes. C64 is
 * twice as many 4-byte floats; sub-byte types are bytes. */
typedef struct dw_element {
    unsigned width; /* bytes */
    bool is_float;  /* a sign bit on top, then a magnitude that grows with the value */
    unsigned exponent_shift; /* mantissa bits; for non-floats all bits, so that the
                                shifted pattern is 0: one class */
} dw_element;

dw_element dw_dtype_element(dw_dtype dtype);

/* Words in the tensor: n_bytes / width. */
uint64_t dw_tensor_units(const dw_tensor *tensor);

/* Place in the stock library's order of types, which it writes from last to first. */
unsigned dw_dtype_rank(dw_dtype dtype);

#endif
