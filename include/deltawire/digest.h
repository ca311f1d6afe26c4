/* Digests: a 61-bit number for a tensor, and one for a whole model. Stable.
 *
 * The digest is linear: digest(new) - digest(old) depends only on the changed elements,
 * so an update costs as much as the change, not as much as the model. It misses a fault
 * of memory, disk or software with a probability near 2^-60. It is no defence against
 * somebody who chooses the weights: use signatures for that. docs/FORMAT.md defines it.
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

/* The digest of a tensor with these bytes. One pass, one thread. */
DW_API dw_digest dw_digest_bytes(const void *bytes, uint64_t n_bytes);

/* Computes the digests of tensors, or the shares of slices. OUT takes n_tensors values.
 * STATE takes the digest of the whole model, which covers names, types and shapes too; it
 * may be NULL. */
DW_API dw_status dw_digest_tensors(dw_digest *out, dw_digest *state,
                                   const dw_tensor *tensors, size_t n_tensors,
                                   unsigned n_threads, const dw_progress *progress,
                                   dw_error *err);

/* The model's digest, from the digests of its tensors in any order. For callers that keep
 * the digests of tensors. */
DW_API dw_digest dw_digest_state(const dw_tensor *tensors, const dw_digest *digests,
                                 size_t n_tensors);

#ifdef __cplusplus
}
#endif

#endif
