/* The objects of a version as parts for the codec: deltas, the slices they cover, and the
 * digests of those before and after. */
#ifndef DW_WEIGHTS_STAGING_H
#define DW_WEIGHTS_STAGING_H

#include "codec/parts.h"
#include "stream/cut.h"
#include "stream/transfer.h"

typedef struct dw_staging {
    dw_part *parts;
    size_t n;
    struct dw_staged_part *own; /* [n] the parts point into it */
    uint64_t n_changed;
} dw_staging;

/* Opens the deltas and takes the digests of their slices: DIGESTS are those of whole
 * tensors; a slice of a tensor is read. BLOBS are borrowed. Close it also after a
 * failure. */
dw_status dw_staging_open(dw_staging *out, const dw_objects *objects,
                          const dw_blob *blobs, const dw_tensor *tensors,
                          size_t n_tensors, const dw_digest *digests, unsigned n_threads,
                          dw_error *err);

/* The same for deltas that are open already, which stay the caller's. */
dw_status dw_staging_open_deltas(dw_staging *out, const dw_objects *objects,
                                 dw_delta *const *deltas, const dw_tensor *tensors,
                                 size_t n_tensors, const dw_digest *digests,
                                 unsigned n_threads, dw_error *err);

/* One delta over all tensors, which it takes. */
dw_status dw_staging_open_one(dw_staging *out, dw_delta *delta, const dw_tensor *tensors,
                              size_t n_tensors, const dw_digest *digests, dw_error *err);
void dw_staging_close(dw_staging *staging);

/* The digests of the whole tensors after the update, once the parts were staged. */
void dw_staging_digests(const dw_staging *staging, size_t n_tensors,
                        const dw_digest *before, dw_digest *after);

#endif
