/* Checks that the objects of a record agree with it. */
#ifndef DW_STREAM_VERIFY_OBJECT_H
#define DW_STREAM_VERIFY_OBJECT_H

#include "stream/transfer.h"

/* What an object must be. */
typedef struct dw_expected {
    const dw_tensor *tensors; /* the stream's table */
    size_t n_tensors;
    uint64_t from; /* DW_NO_VERSION: an anchor */
    uint64_t to;
    dw_digest state;
    bool has_from_state;
    dw_digest from_state;
    dw_digest *shares; /* [n_tensors] of an anchor: what its objects add up to */
} dw_expected;

/* Fetches a delta, proves its size and SHA-256, opens it, and compares the versions,
 * tensors and states that it names with the record's. */
dw_status dw_verify_delta(const dw_expected *expected, dw_store *store,
                          const dw_object *object, const dw_progress *progress,
                          dw_error *err);

/* Reads one object of an anchor: size, SHA-256 and header; adds the digests of what it
 * holds to the shares. */
dw_status dw_verify_anchor(const dw_expected *expected, dw_store *store,
                           const dw_object *object, const dw_progress *progress,
                           dw_error *err);

/* Whether the anchor's objects together are the version. */
dw_status dw_verify_shares(const dw_expected *expected, const char *where, dw_error *err);

#endif
