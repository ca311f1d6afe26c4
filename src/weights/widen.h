/* Memory in F32 that follows a stream in BF16.
 *
 * A file without a name holds a copy of the weights as the stream has them. Deltas are
 * decoded against it, and digests are computed from it, as for any other target. The
 * caller's memory is written only from that copy, once it is proven, and is compared with
 * it bit by bit: widening is exact, so the two must be the same.
 */
#ifndef DW_WEIGHTS_WIDEN_H
#define DW_WEIGHTS_WIDEN_H

#include "codec/patch.h"
#include "weights/target_inside.h"

/* Points R at MEMORY, as dw_target_move does, and notes in *WAS where the F32 tensors
 * were. dw_widened_moved ends it: unless IS_GOOD, they are there again. */
dw_status dw_widened_move(dw_target *r, const dw_tensor *memory, size_t n_tensors,
                          uint8_t ***was, dw_error *err);
void dw_widened_moved(dw_target *r, uint8_t **was, bool is_good);
void dw_widened_free(dw_widened *widened);

/* Stores all weights of R to the caller's memory, or those of its patch. */
void dw_widened_store(const dw_target *r);
void dw_widened_store_patch(const dw_target *r);

/* The name of the first tensor from FIRST to FIRST + N - 1 whose memory is not what it
 * should be; NULL: there is none. */
const char *dw_widened_compare(const dw_target *r, size_t first, size_t n);

/* The same for the elements that the patch of R replaces. */
const char *dw_widened_compare_patch(const dw_target *r);

#endif
