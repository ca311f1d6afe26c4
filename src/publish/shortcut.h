/* Adding ways to versions that are committed: anchors and folded deltas. */
#ifndef DW_PUBLISH_SHORTCUT_H
#define DW_PUBLISH_SHORTCUT_H

#include "publish/held_version.h"

/* Uploads the weights of SLICES, owned slice k at DATA[k] or, if DATA is NULL, as HELD
 * has them, as anchor objects of at most MAX_OBJECT_BYTES each; OUT, to be released in
 * any case, takes what was uploaded. IS_WAY: not version 0's own. SHARE is what the
 * weights add to the version's state: if the bytes that were uploaded are other weights,
 * the objects are removed again and the call fails with DW_CORRUPT. */
dw_status dw_anchor_upload(dw_objects *out, dw_store *store, const dw_tensor *table,
                           size_t n_tensors, const dw_slices *slices, void *const *data,
                           dw_held_version *held, dw_digest share, uint64_t version,
                           bool is_shortcut, const char *write_id,
                           uint64_t max_object_bytes, const dw_progress *progress,
                           dw_error *err);

/* The share of all tensors of a model in its state. */
dw_digest dw_whole_share(const dw_tensor *table, size_t n_tensors, dw_digest state);

/* Creates the record of a way to TO, from FROM or, where that is NULL, from nothing.
 * DW_CONFLICT where there is one already. */
dw_status dw_shortcut_create(dw_stream *stream, const dw_position *from,
                             const dw_position *to, const dw_objects *objects,
                             const dw_sign_key *key, dw_error *err);

#endif
