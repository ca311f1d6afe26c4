/* Stores to scattered elements that may be in a mapped file. */
#ifndef DW_CODEC_SCATTER_H
#define DW_CODEC_SCATTER_H

#include "base/map.h"
#include "kernel/kernel.h"

/* Stores N elements of WIDTH bytes, VALUES, at the ascending POSITIONS of ELEMS. Fails
 * only if ELEMS are in a mapped file (base/map.h). */
dw_status dw_scatter(void *elems, const uint32_t *positions, const void *values, size_t n,
                     unsigned width, dw_error *err);

/* Makes the elements of ELEMS from the first of the N POSITIONS to the last readable.
 * *OUT points to where element 0 would be, so that positions can be used as indices. */
dw_status dw_read_positions(const uint8_t **out, dw_loan *loan, const void *elems,
                            const uint32_t *positions, size_t n, unsigned width,
                            dw_error *err);

#endif
