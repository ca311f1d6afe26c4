/* Shortcuts to committed versions: anchors and folds. */
#ifndef DW_PUBLISH_SHORTCUT_H
#define DW_PUBLISH_SHORTCUT_H

#include "publish/held_version.h"

/* Uploads the weights of SLICES, owned slice k at DATA[k] or, if DATA is NULL, as HELD
 * has them, as anchor objects of at most MAX_OBJECT_BYTES each; OUT, to be released in
 * any case, takes what was uploaded. IS_SHORTCUT: false for the anchor in the commit of
 * version 0. SHARE is what the
 * weights add to the version's state: if the bytes that were uploaded are other weights,
 * the objects are removed again and the call fails with DW_CORRUPT. */
dw_status dw_anchor_upload(dw_objects *out, dw_store *store, const dw_tensor *table,
                           size_t n_tensors, const dw_slices *slices, void *const *data,
                           dw_held_version *held, dw_digest share, uint64_t version,
                           bool is_shortcut, const char *write_id,
                           uint64_t max_object_bytes, const dw_progress *progress,
                           dw_error *err);

/* What all tensors of a model add to its state. */
dw_digest dw_whole_share(const dw_tensor *table, size_t n_tensors, dw_digest state);

/* Creates the record of a fold from FROM to TO or, if FROM is NULL, of an anchor of TO.
 * DW_CONFLICT if it already exists. */
dw_status dw_shortcut_create(dw_stream *stream, const dw_position *from,
                             const dw_position *to, const dw_objects *objects,
                             const dw_sign_key *key, dw_error *err);

#endif
