/* Where a publisher gets the weights of its stream, if not from the data of the caller's
 * tensors: something in front of it makes them, a group of pieces at a time, so that
 * nobody needs room for a second model. The quantiser (quant/quantizer.h) is one.
 */
#ifndef DW_TENSOR_WEIGHT_SOURCE_H
#define DW_TENSOR_WEIGHT_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/base.h"

/* Where a tensor may be cut: it consists of runs of RUN elements, and each run may be cut
 * at multiples of UNIT elements. UNIT 0: anywhere. */
typedef struct dw_grain {
    uint64_t unit;
    uint64_t run;
} dw_grain;

/* The last place at or before element AT where the tensor may be cut; with UP, the first
 * one after it. */
static inline uint64_t dw_grain_edge(const dw_grain *grain, uint64_t at, bool up)
{
    const uint64_t run = at / grain->run * grain->run;
    const uint64_t inside =
        (at - run) / grain->unit * grain->unit + (up ? grain->unit : 0);
    return run + (inside < grain->run ? inside : grain->run);
}

/* Elements of one tensor of the stream, in plain memory of the publisher. */
typedef struct dw_weight_piece {
    size_t tensor;
    uint64_t first;
    uint64_t n;
    void *into;
} dw_weight_piece;

/* What a version begins with. */
typedef struct dw_weight_turn {
    uint64_t number; /* the same on all ranks for the same weights; goes up */
    bool has_failed; /* this rank cannot publish: only tell the others */
    bool reads_all;  /* also tensors that are known */
    bool *is_known;  /* [n_tensors] the baseline holds the tensor as it would be read */
} dw_weight_turn;

typedef struct dw_weight_source {
    /* Before pieces are read, at each publish, on the caller's thread; NULL: nothing to
     * do. Clears `is_known` of tensors that it makes in another way than before. Of
     * several ranks all call it, and all fail if one does. */
    dw_status (*begin)(void *context, const dw_weight_turn *turn, dw_error *err);
    /* Makes pieces, ascending, cut as GRAINS allow. NULL: there is no source. */
    dw_status (*read)(void *context, const dw_weight_piece *pieces, size_t n,
                      dw_error *err);
    void *context;
    const dw_grain *grains; /* [n_tensors] */
} dw_weight_source;

#endif
