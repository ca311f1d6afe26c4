/* The internals of a layout.
 *
 * A piece is a block of up to DW_LAYOUT_DIMS dimensions. It maps elements of the tensor
 * to elements of the target:
 *
 *     tensor:  from + sum of c[k] * dims[k].from      0 <= c[k] < dims[k].n
 *     target:  to   + sum of c[k] * dims[k].to
 *
 * A fused tensor has one piece of one dimension for each of its parts, a tensor split by
 * columns one of two, a packed tensor one of four. Strides in the tensor descend, and
 * each is larger than the extent of the dimensions after it, so that an element's c[k]
 * are found by division.
 *
 * The pieces of a tensor are sorted into lanes. In a lane they ascend and their spans do
 * not overlap. Pieces that interleave are in different lanes. */
#ifndef DW_LAYOUT_LAYOUT_INT_H
#define DW_LAYOUT_LAYOUT_INT_H

#include "layout/layout.h"

enum {
    DW_LAYOUT_DIMS = 8,
    DW_LAYOUT_LANES = 64, /* of a tensor */
    DW_LAYOUT_PIECES =
        1u << 20, /* of a target; if there are more, the engine keeps no regular order */
};

typedef struct dw_layout_dim {
    uint64_t n;
    int64_t from, to;
} dw_layout_dim;

typedef struct dw_layout_piece {
    size_t tensor, target;
    uint64_t from, to;
    uint64_t last; /* highest element of the tensor in it */
    unsigned lane;
    unsigned n_dims;
    dw_layout_dim dims[DW_LAYOUT_DIMS];
} dw_layout_piece;

typedef struct dw_layout_lane {
    size_t first, n; /* pieces */
} dw_layout_lane;

struct dw_layout {
    dw_tensor *tensors, *targets; /* owned, names and dims too */
    size_t n_tensors, n_targets;
    uint64_t *numbers;    /* [n_tensors + 1] the first number of each tensor, from 1 */
    uint64_t *held;       /* [n_tensors] */
    bool *forgotten;      /* [n_tensors] */
    dw_layout_sums *sums; /* [n_targets] n_rows is 0: none */
    dw_layout_piece *pieces;
    size_t n_pieces, n_room;
    dw_layout_lane *lanes;
    size_t *lane_of; /* [n_tensors + 1] the first lane of each tensor */
    bool ended;
    uint64_t n_changes; /* of addresses and forgotten tensors */
    void *arena;
};

/* DW_INVALID unless it can be used. */
dw_status dw_layout_check_ended(const dw_layout *layout, dw_error *err);

#endif
