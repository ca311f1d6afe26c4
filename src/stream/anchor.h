/* Anchor objects: plain safetensors files of whole weights, or of slices of them.
 *
 * The bytes follow from the record: the header is what the stock library would write for
 * the slices that the object covers, in its order, with the metadata {"format":"pt"}. So
 * an object that covers the whole model is a checkpoint that anybody can load, and a
 * reader knows where every byte belongs before the first one is there.
 */
#ifndef DW_STREAM_ANCHOR_H
#define DW_STREAM_ANCHOR_H

#include "deltawire/checkpoint.h"
#include "deltawire/store.h"
#include "stream/cut.h"

typedef struct dw_anchor {
    dw_writer header;
    dw_slice_list list; /* in the order of the file */
    uint64_t *offsets;  /* [list.n + 1] in the file */
    uint64_t n_bytes;   /* of the file */
    char where[DW_KEY_TEXT];
} dw_anchor;

/* WHERE names the object in errors. */
dw_status dw_anchor_open(dw_anchor *out, const dw_tensor *tensors, size_t n_tensors,
                         const dw_slices *slices, const char *where, dw_error *err);

/* The same for any safetensors file: whole tensors, which are borrowed, and metadata of
 * the caller's. */
dw_status dw_anchor_open_file(dw_anchor *out, const dw_tensor *tensors, size_t n_tensors,
                              const dw_pair *metadata, size_t n_metadata,
                              const char *where, dw_error *err);
void dw_anchor_release(dw_anchor *anchor);

/* The file's bytes, read from the tensors. Borrows ANCHOR. */
dw_source dw_anchor_source(dw_anchor *anchor);

/* A dw_object_sink: stores the file's bytes into the tensors. The header must be the
 * expected one. */
dw_status dw_anchor_take(void *anchor, uint64_t offset, const uint8_t *bytes,
                         size_t n_bytes, dw_error *err);

/* Digests the bytes of a file as they pass, without keeping them. */
typedef struct dw_anchor_check {
    const dw_anchor *anchor;
    size_t at;         /* the tensor of the file that the next byte belongs to */
    dw_digest *shares; /* [anchor->list.n] of the tensors, in the order of the file */
} dw_anchor_check;

/* Borrows ANCHOR. */
dw_status dw_anchor_check_open(dw_anchor_check *out, const dw_anchor *anchor,
                               dw_error *err);
void dw_anchor_check_release(dw_anchor_check *check);

/* A dw_object_sink. The header must be the expected one. */
dw_status dw_anchor_check_take(void *check, uint64_t offset, const uint8_t *bytes,
                               size_t n_bytes, dw_error *err);

#endif
