/* Encodes a version group by group, and uploads it in objects. While one object is
 * uploaded, the next is made. Memory is bounded: encoded bytes beyond a limit go to
 * nameless files.
 */
#ifndef DW_PUBLISH_DELTA_UPLOAD_H
#define DW_PUBLISH_DELTA_UPLOAD_H

#include "publish/capture.h"
#include "publish/pieces.h"
#include "stream/transfer.h"

/* The largest object, unless the caller sets a limit. */
#define DW_OBJECT_BYTES (32ull << 20)

typedef struct dw_delta_spec {
    const dw_pieces *pieces;
    const dw_tensor *base; /* [pieces->cut.n] views */
    const dw_tensor *next;
    const dw_digest *base_digests; /* [pieces->cut.n] */
    /* Loads NEXT of one group before that group is read; those of other groups may go.
     * NULL: all of them are loaded. */
    dw_status (*load)(void *context, const dw_piece_group *group, dw_error *err);
    void *load_context;
    dw_captures *captures; /* of pieces on devices, which are encoded; NULL: there are
                              none */
    uint64_t from;         /* versions, for the deltas */
    uint64_t to;
    dw_store *store;
    const char *purpose; /* part of the objects' names: NULL or "fold" */
    const char *write_id;
    uint64_t max_object_bytes;
    const char *spool_dir;
    unsigned n_threads;
    uint64_t t_start_us;             /* what the times count from, by dw_clock_us */
    const dw_progress *stop;         /* called now and then; not 0 stops */
    const dw_progress *compared;     /* the same, with the bytes of NEXT that were read */
    void (*captured)(void *context); /* called when all of NEXT was read; may be NULL */
    void *captured_context;
} dw_delta_spec;

typedef struct dw_uploaded {
    dw_objects objects;
    dw_digest *digests; /* [pieces->cut.n] of NEXT */
    dw_delta **deltas;  /* [objects.n], to be applied to the baseline */
    dw_blob *spilled;   /* bytes of deltas */
    size_t n_spilled;
    size_t n_spill_room;
    size_t n_room;
    size_t n_delta_room;
    uint64_t n_in_memory; /* encoded bytes that are not in files */
    uint64_t n_changed;
    uint64_t n_wild; /* new values on the host that are infinite or no number */
    dw_times times;  /* dw_publish_moment, from ENCODED to UPLOADED */
} dw_uploaded;

/* When this returns DW_OK, every object is in the store, and was proven to lead from BASE
 * to NEXT. DW_CORRUPT if a proof failed. Release OUT in any case. */
dw_status dw_delta_upload(dw_uploaded *out, const dw_delta_spec *spec, dw_error *err);
void dw_uploaded_release(dw_uploaded *uploaded);

#endif
