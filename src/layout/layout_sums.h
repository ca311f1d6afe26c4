/* Sums of rows that a kernel keeps among the elements of a target. */
#ifndef DW_LAYOUT_LAYOUT_SUMS_H
#define DW_LAYOUT_LAYOUT_SUMS_H

#include "layout/layout_walk.h"

/* Whether the target's sums can be added to. */
bool dw_layout_sums_aligned(const dw_layout *layout, size_t target);

/* The first N changes of the batch went from the values FROM of the segment to TO. */
void dw_layout_move_sums(const dw_layout_batch *b, const void *from, const void *to,
                         size_t n);

#endif
