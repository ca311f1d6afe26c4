/* Merges deltas that cover different tensors into one. */
#ifndef DW_CODEC_DELTA_MERGE_H
#define DW_CODEC_DELTA_MERGE_H

#include "deltawire/delta.h"

/* Merges deltas of the codec CLASS between the same versions, made from lists without a
 * name in common. The result has the same bytes as one diff of all lists. On success it
 * owns the deltas, and DELTAS is set to NULLs; on failure they stay the caller's. DELTAS
 * must not contain a delta twice. */
dw_status dw_delta_merge(dw_delta **out, dw_delta **deltas, size_t n, dw_error *err);

#endif
