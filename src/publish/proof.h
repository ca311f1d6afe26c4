/* The deltas of a version are proven before the commit and applied to the baseline after
 * it.
 */
#ifndef DW_PUBLISH_PROOF_H
#define DW_PUBLISH_PROOF_H

#include "publish/pieces.h"

/* Decodes the delta of OBJECT against BASE, whose digests are BEFORE, and writes nothing.
 * AFTER takes the digests of the pieces that the object covers. BASE, BEFORE and AFTER
 * have an entry for each piece. DW_CORRUPT if the delta does not decode to what it names.
 */
dw_status dw_delta_prove(const dw_pieces *pieces, const dw_object *object,
                         const dw_delta *delta, const dw_tensor *base,
                         const dw_digest *before, dw_digest *after, unsigned n_threads,
                         dw_error *err);

/* Applies a delta that was proven to BASE. After a failure BASE may be a mix. */
dw_status dw_delta_move(const dw_pieces *pieces, const dw_object *object,
                        const dw_delta *delta, const dw_tensor *base,
                        const dw_digest *before, unsigned n_threads, dw_error *err);

#endif
