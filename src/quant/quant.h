/* Quantises tensors: which ones, into which table, and the rows themselves.
 *
 *     quant_scheme.c   names of schemes, options
 *     quant_choice.c   which tensors are quantised
 *     quant_plan.c     the table of the quantised model
 *     quant_rows.c     the rows of one weight
 *     quant_config.c   config.json with a `quantization_config`
 *
 * A plan is made once for the tensors of a model. It lists the tensors of the quantised
 * model, each with the source that it comes from. Rows that share a scale are quantised
 * together: they are a *unit*, which is 128 rows of a block scheme (fewer at the end of a
 * matrix), else one row. Units do not depend on each other, so threads can share them.
 *
 * Arithmetic, all in F32, for the elements x that share a scale s:
 *
 *     m = max |x|,   s = max(m / 448, 2^-126) for fp8, max(m / 127, 2^-126) for int8
 *     m == 0:        s = 1
 *     element        x / s, rounded to the nearest, halfway to even
 *
 * So no scale is zero, subnormal or infinite, and no element is beyond the largest of its
 * type. The sign of a zero is kept in fp8.
 */
#ifndef DW_QUANT_QUANT_H
#define DW_QUANT_QUANT_H

#include "base/bytes.h"
#include "deltawire/base.h"
#include "deltawire/publish.h"
#include "deltawire/tensor.h"

#define DW_QUANT_BLOCK 128u /* rows and columns of a block */

typedef enum dw_quant_role {
    DW_QUANT_COPY,   /* the source as it is; F32 that is published as BF16 is rounded */
    DW_QUANT_WEIGHT, /* quantised elements */
    DW_QUANT_SCALE,  /* their scales, in F32 */
} dw_quant_role;

typedef struct dw_quant_entry {
    dw_tensor tensor; /* of the quantised model; its data is NULL */
    dw_quant_role role;
    size_t source;  /* the index of its source in the caller's list */
    size_t partner; /* WEIGHT: the entry of its scales; SCALE: that of its weight */
    dw_dtype source_dtype;
    uint64_t n_matrices; /* WEIGHT and SCALE: matrices in the stack ... */
    uint64_t n_rows;     /* ... each with so many rows ... */
    uint64_t n_columns;  /* ... and columns, of the weight */
} dw_quant_entry;

typedef struct dw_quant_plan {
    dw_quant_scheme scheme;
    bool from_f32;
    dw_quant_entry *entries; /* ascending by name */
    size_t n_entries;
    size_t n_weights; /* how many of them are weights */
    void *arena;      /* names and shapes */
} dw_quant_plan;

/* Makes the plan of SOURCE, whose data is not used and may be NULL. AS_BF16 marks tensors
 * in F32 that the caller publishes as BF16; NULL: none. OPTIONS must name a scheme.
 * DW_INVALID, with the name of the tensor or pattern, if the model is quantised already,
 * if the name of a scale is taken, or if there is nothing to quantise. */
dw_status dw_quant_plan_make(dw_quant_plan **out, const dw_tensor *source, size_t n,
                             const bool *as_bf16, const dw_quant_options *options,
                             dw_error *err);
void dw_quant_plan_free(dw_quant_plan *plan);

/* ---- rows of a weight, counted through all matrices of its stack ---- */

/* Rows of the largest unit: 128 or 1. */
uint64_t dw_quant_unit_rows(const dw_quant_plan *plan, size_t weight);

/* The row after the unit of ROW. Cut a weight only there. */
uint64_t dw_quant_unit_end(const dw_quant_plan *plan, size_t weight, uint64_t row);

/* How many scales belong to the units before ROW, which begins a unit or is the end. */
uint64_t dw_quant_scales_before(const dw_quant_plan *plan, size_t weight, uint64_t row);

/* Quantises N_ROWS from FIRST_ROW on, which must be whole units. SRC has the source's
 * elements from FIRST_ROW on, in plain memory. OUT takes their elements, SCALES their
 * scales. Each element of SRC is read exactly once, because another thread may be writing
 * them. DW_NOT_FINITE, with tensor and element, for NaN and infinity. Uses one thread;
 * the plan is only read. */
dw_status dw_quant_rows(const dw_quant_plan *plan, size_t weight, const void *src,
                        uint64_t first_row, uint64_t n_rows, void *out, float *scales,
                        dw_error *err);

/* DW_NOT_FINITE, with tensor and element, if one of N elements from element FIRST on has
 * no quantised value. SRC is as for dw_quant_rows. */
dw_status dw_quant_check(const dw_quant_plan *plan, size_t weight, const void *src,
                         uint64_t first, uint64_t n, dw_error *err);

/* ---- a part of one unit, if others have the rest of it ----
 *
 * The maxima of its scales come first, from all parts; then each part is quantised with
 * the scales that follow from them. */

/* How many scales one unit has: those of the blocks of 128 rows, or 1. */
uint64_t dw_quant_unit_scales(const dw_quant_plan *plan, size_t weight);

/* How many scales belong to blocks, or rows, whose first element is before ELEMENT. */
uint64_t dw_quant_scales_begun(const dw_quant_plan *plan, size_t weight,
                               uint64_t element);

/* Raises MAXIMA, one for each scale of the unit and as bits of an F32, to the largest
 * magnitudes of N elements from element FIRST on, which are in one unit. SRC is as for
 * dw_quant_rows. DW_NOT_FINITE, with tensor and element, for NaN and infinity: MAXIMA has
 * them too, as 0x7f800000 or more. */
dw_status dw_quant_part_maxima(const dw_quant_plan *plan, size_t weight, const void *src,
                               uint64_t first, uint64_t n, uint32_t *maxima,
                               dw_error *err);

/* The scale for a finite maximum. */
float dw_quant_scale(const dw_quant_plan *plan, uint32_t maximum);

/* Quantises these elements with SCALES, one for each scale of the unit. DW_STALE if an
 * element is too large for its scale: it changed after the maxima were taken. */
dw_status dw_quant_part(const dw_quant_plan *plan, size_t weight, const void *src,
                        uint64_t first, uint64_t n, void *out, const float *scales,
                        dw_error *err);

/* ---- config.json ---- */

/* Appends to OUT the text of CONFIG, a model's config.json, with a member
 * `quantization_config` for the plan; the other bytes stay as they are. DW_INVALID if it
 * is no JSON object or names a quantisation already. PATH is for errors. */
dw_status dw_quant_config(dw_writer *out, const void *config, size_t n_bytes,
                          const dw_quant_plan *plan, const char *path, dw_error *err);

#endif
