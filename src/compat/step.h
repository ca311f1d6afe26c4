/* One version, fetched, decoded against the weights it starts from, and proven. A replica
 * stages it. */
#ifndef DW_COMPAT_STEP_H
#define DW_COMPAT_STEP_H

#include "compat/peer_int.h"
#include "stream/transfer.h"
#include "weights/position.h"
#include "tensor/safetensors.h"

/* A file of a version. */
typedef struct dw_peer_blob {
    dw_blob blob;
    dw_safetensors file;
} dw_peer_blob;

/* Allocates N_BYTES. *N_HEAP counts the bytes in memory; above a limit, files are used.
 */
dw_status dw_peer_room(dw_blob *out, uint64_t n_bytes, const char *spool_dir,
                       uint64_t *n_heap, dw_error *err);

dw_status dw_peer_fetch(dw_peer_blob *out, const dw_peer *peer, const dw_peer_file *file,
                        const char *spool_dir, uint64_t *n_heap,
                        const dw_progress *progress, dw_error *err);
void dw_peer_blob_release(dw_peer_blob *blob);

typedef struct dw_peer_step {
    dw_position position; /* of the version it leads to */
    uint64_t n_changed;
    uint64_t n_checked; /* tensors that were checked by their checksums */
    uint64_t n_tensors; /* in the version */
    uint64_t n_heap;    /* its bytes in memory */

    /* a delta: objects as for dw_target_stage */
    dw_objects objects;
    dw_blob *deltas; /* [objects.n] */

    /* or whole weights */
    dw_tensor *tensors; /* names ascending; missing ones are taken from the weights */
    size_t n_whole;
    dw_peer_blob *files;
    size_t n_files;
} dw_peer_step;

/* The weights that a step starts from. */
typedef struct dw_peer_start {
    const dw_tensor *tensors; /* names ascending */
    size_t n_tensors;
    const dw_digest *digests;
} dw_peer_start;

/* The settings for making a step. */
typedef struct dw_peer_settings {
    dw_peer *peer;
    const char *spool_dir;
    unsigned n_threads;
    const dw_progress *progress; /* of the bytes of the version's files */
} dw_peer_settings;

/* Makes the step for RECORD. NOW holds the weights that it starts from. If NOW is NULL,
 * the version must be whole. NOW is not changed. Release the step also after a failure.
 */
dw_status dw_peer_step_make(dw_peer_step *out, const dw_peer_settings *settings,
                            const dw_peer_record *record, const dw_peer_start *now,
                            dw_error *err);
void dw_peer_step_release(dw_peer_step *step);

/* Turns packed tensors into deltawire deltas (packed.c). */
dw_status dw_peer_step_packed(dw_peer_step *step, const dw_peer_settings *settings,
                              const dw_peer_record *record, const dw_peer_start *now,
                              dw_error *err);

/* Reads a version that is a checkpoint (whole.c). */
dw_status dw_peer_step_whole(dw_peer_step *step, const dw_peer_settings *settings,
                             const dw_peer_record *record, const dw_peer_start *now,
                             dw_error *err);

/* Describes the packed tensor of ENTRY in FILE. THERE is NULL if it is missing. */
dw_status dw_peer_payload(dw_payload *out, const dw_peer_record *record,
                          const dw_peer_entry *entry, const dw_safetensors *file,
                          const dw_tensor *there, const char *where, dw_error *err);

/* The stream id in the record of a directory that follows such a peer. */
void dw_peer_stream_id(char out[DW_ID_TEXT], dw_peer_format format);

#endif
