/* Quantising: a trainer's weights in BF16, F16 or F32 as the fp8 or int8 weights and
 * scales that engines load.
 *
 * A quantised weight takes the name and the shape of its source. A second tensor has its
 * scales, in F32: a value of the engine is the quantised element times its scale.
 *
 *     scheme     X.weight          scales of X.weight, [rows, columns]
 *     fp8-block  F8_E4M3           X.weight_scale_inv [ceil(rows/128), ceil(columns/128)]
 *     fp8-row    F8_E4M3           X.weight_scale     [rows, 1]
 *     int8-row   I8                X.weight_scale     [rows, 1]
 *
 * fp8-block is the format of DeepSeek-V3 and Qwen3-FP8, the others are those of
 * compressed-tensors. A tensor of three dimensions is a stack of matrices, and so are its
 * scales. docs/FORMAT.md, section 15, has the arithmetic.
 */
#ifndef DELTAWIRE_QUANTIZE_H
#define DELTAWIRE_QUANTIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "deltawire/base.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dw_quant_scheme {
    DW_QUANT_NONE = 0,
    DW_QUANT_FP8_BLOCK = 1, /* one scale a block of 128 x 128 */
    DW_QUANT_FP8_ROW = 2,   /* one scale a row */
    DW_QUANT_INT8_ROW = 3,
} dw_quant_scheme;

/* "fp8-block", "fp8-row", "int8-row", "none"; "?" if SCHEME is none of them. */
DW_API const char *dw_quant_scheme_name(dw_quant_scheme scheme);

/* Finds a scheme by its name. */
DW_API bool dw_quant_scheme_from_name(dw_quant_scheme *out, const char *name);

/* Which tensors are quantised. By default, matrices whose name ends in `.weight` and
 * stacks of experts' matrices, except embeddings, output heads, norms and routers. The
 * patterns are those of fnmatch(3), over the names of tensors. KEEP goes before CONVERT,
 * and CONVERT before the default. A pattern that matches no tensor that it could decide
 * about is DW_INVALID. */
typedef struct dw_quant_options {
    size_t struct_bytes; /* set by dw_quant_options_init */
    dw_quant_scheme scheme;
    const char *const *keep; /* [n_keep] these stay as they are */
    size_t n_keep;
    const char *const *convert; /* [n_convert] these are quantised */
    size_t n_convert;
    bool from_f32; /* quantise F32 as it is; else it is rounded to BF16 first, as
                      dw_cast_bf16 does, and the result is that of a BF16 model */
} dw_quant_options;

static inline void dw_quant_options_init(dw_quant_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
}

#ifdef __cplusplus
}
#endif

#endif
