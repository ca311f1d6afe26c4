/* Which tensors are quantised. */
#ifndef DW_QUANT_QUANT_CHOICE_H
#define DW_QUANT_QUANT_CHOICE_H

#include "deltawire/base.h"
#include "deltawire/publish.h"
#include "deltawire/tensor.h"

/* Whether T can be quantised: a matrix, or a stack of them, of floats, and not empty. */
bool dw_quant_is_possible(const dw_tensor *t);

/* Whether the options, or else the defaults, quantise T. */
bool dw_quant_is_chosen(const dw_tensor *t, const dw_quant_options *options);

/* DW_INVALID if a pattern decides about no tensor. */
dw_status dw_quant_check_patterns(const dw_tensor *tensors, size_t n,
                                  const dw_quant_options *options, dw_error *err);

#endif
