/* One delta out of several that cover different tensors. */
#ifndef DW_CODEC_DELTA_MERGE_H
#define DW_CODEC_DELTA_MERGE_H

#include "deltawire/delta.h"

/* Joins deltas of the codec CLASS between the same versions, made over lists without a
 * name in common: the same bytes as one diff over all of them. On success takes the
 * deltas, which the result borrows from, and sets DELTAS to NULLs; on failure they stay
 * the caller's. No delta may stand twice among them. */
dw_status dw_delta_merge(dw_delta **out, dw_delta **deltas, size_t n, dw_error *err);

#endif
