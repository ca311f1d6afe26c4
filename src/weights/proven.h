/* The deltas of a version are proven before the commit, and move the publisher's baseline
 * after it. */
#ifndef DW_WEIGHTS_PROVEN_H
#define DW_WEIGHTS_PROVEN_H

#include "deltawire/delta.h"
#include "stream/cut.h"
#include "stream/transfer.h"

/* The weights in pieces, and the deltas that lead on from them. */
typedef struct dw_proven {
    const dw_slices *cut;    /* the pieces */
    const dw_tensor *views;  /* [cut->n] the weights of each */
    const dw_digest *before; /* [cut->n] */
    dw_digest *after;        /* [cut->n] */
    const dw_objects *objects;
    dw_delta *const *deltas; /* [objects->n] */
} dw_proven;

/* Decodes the delta of OBJECT against the pieces, and writes nothing but the digests
 * after it of those that the object covers. TABLE has the tensors of the model.
 * Adds to *N_WILD how many new values on the host are infinite or no number. DW_CORRUPT
 * if the delta does not decode to what it names. Needs no objects and deltas. */
dw_status dw_delta_prove(const dw_proven *proven, const dw_object *object,
                         const dw_delta *delta, const dw_tensor *table, size_t n_table,
                         unsigned n_threads, uint64_t *n_wild, dw_error *err);

/* Applies all deltas to the pieces. After a failure they may be a mix. */
dw_status dw_proven_apply(const dw_proven *proven, const dw_tensor *table, size_t n_table,
                          unsigned n_threads, dw_error *err);

#endif
