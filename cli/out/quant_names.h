/* Quantised tensors, by their names and types. */
#ifndef CLI_QUANT_NAMES_H
#define CLI_QUANT_NAMES_H

#include <deltawire/publish.h>
#include <deltawire/tensor.h>

/* Whether a tensor has the scales of a quantised weight: F32, `..._scale` or
 * `..._scale_inv`. */
bool cli_is_scale(const char *name, dw_dtype dtype);

/* Whether it may be a quantised weight: fp8 or int8. */
bool cli_is_quantized(dw_dtype dtype);

/* The scheme of a checkpoint, as far as names and types show it. */
dw_quant_scheme cli_find_scheme(const dw_tensor *tensors, size_t n_tensors);

#endif
