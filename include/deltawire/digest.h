/* The state digest: one 61-bit number for a tensor, one for a whole model.
 *
 * It is linear: digest(new) - digest(old) depends on the changed elements alone,
 * so keeping it current costs the change, not the model. It finds every fault of
 * memory, disk or software with a chance of error near 2^-60, but it is no
 * defence against somebody who chooses the weights: that is what signatures are
 * for. docs/FORMAT.md defines it.
 */
#ifndef DELTAWIRE_DIGEST_H
#define DELTAWIRE_DIGEST_H

#include "deltawire/error.h"
#include "deltawire/progress.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t dw_digest; /* 0 .. 2^61 - 2 */

/* Digest of n bytes, as for a tensor with these bytes. One pass, one thread. */
DW_API dw_digest dw_digest_bytes(const void *bytes, uint64_t n_bytes);

/* Digests of tensors, or shares of slices, computed on n_threads threads (0: all cores).
 * OUT takes n_tensors values; STATE, where not NULL, the digest of the model they make
 * up, which covers names, types and shapes too. PROGRESS may be NULL. */
DW_API dw_status dw_digest_tensors(dw_digest *out, dw_digest *state,
                                   const dw_tensor *tensors, size_t n_tensors,
                                   unsigned n_threads, const dw_progress *progress,
                                   dw_error *err);

/* The sum of shares: the digests of slices that cover a tensor once (first_byte in
 * dw_tensor) add up to the tensor's. */
DW_API dw_digest dw_digest_sum(const dw_digest *shares, size_t n);

/* The model's digest from the digests of its tensors. Order does not matter. */
DW_API dw_digest dw_digest_state(const dw_tensor *tensors, const dw_digest *digests,
                                 size_t n_tensors);

#ifdef __cplusplus
}
#endif

#endif
