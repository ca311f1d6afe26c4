/* Shortcuts to committed versions: anchors and folds. */
#ifndef DW_PUBLISH_SHORTCUT_H
#define DW_PUBLISH_SHORTCUT_H

#include "publish/pieces.h"
#include "stream/anchor.h"
#include "stream/transfer.h"
#include "weights/position.h"

/* The largest object of an anchor, unless the caller sets a limit. */
#define DW_ANCHOR_BYTES (4ull << 30)

/* An anchor to upload: the weights of `slices`. */
typedef struct dw_anchor_spec {
    dw_store *store;
    const dw_tensor *table; /* the stream's */
    size_t n_table;
    const dw_slices *slices;
    void *const *data;         /* [slices->n] */
    dw_device *const *devices; /* [slices->n] where the data is; NULL: on the host */
    dw_digest share;           /* what the weights add to the version's state */
    uint64_t version;
    bool is_shortcut; /* false: the anchor in the commit of version 0 */
    const char *write_id;
    uint64_t max_object_bytes; /* 0: DW_ANCHOR_BYTES */
    const dw_progress *progress;
} dw_anchor_spec;

/* Uploads the objects of an anchor. If the uploaded bytes are not weights with that
 * share, removes the objects and fails with DW_CORRUPT. Release OUT in any case. */
dw_status dw_anchor_upload(dw_objects *out, const dw_anchor_spec *spec, dw_error *err);

/* What all tensors of a model add to its state. */
dw_digest dw_whole_share(const dw_tensor *table, size_t n_tensors, dw_digest state);

/* Creates the record of a fold from FROM to TO or, if FROM is NULL, of an anchor of TO.
 * DW_CONFLICT if it already exists. */
dw_status dw_shortcut_create(dw_stream *stream, const dw_position *from,
                             const dw_position *to, const dw_objects *objects,
                             const dw_sign_key *key, dw_error *err);

#endif
