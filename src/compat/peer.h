/* Peers: reads the versions of other systems in a bucket or a directory.
 *
 *     trl     anchors/step_%06d.safetensors, deltas/step_%06d.safetensors
 *     slime   weight_v%06d/model.safetensors.index.json and the files it names
 *
 *     dw_peer_detect         finds the format
 *     dw_peer_list           lists the versions
 *     dw_peer_version_base   reads which version one starts from
 *     dw_peer_replica_sync   brings a checkpoint directory to a version
 *
 * These formats guarantee less than a stream. All that a format allows to check is
 * checked before a byte of the weights changes. docs/STORES.md lists the rest.
 */
#ifndef DW_COMPAT_PEER_H
#define DW_COMPAT_PEER_H

#include <string.h>

#include "deltawire/stream.h"

typedef struct dw_peer dw_peer;
typedef struct dw_peer_replica dw_peer_replica;

typedef enum dw_peer_format {
    DW_PEER_TRL = 1,
    DW_PEER_SLIME = 2,
} dw_peer_format;

/* "trl", "slime"; "?" if FORMAT is none of them. */
const char *dw_peer_format_name(dw_peer_format format);
bool dw_peer_format_from_name(dw_peer_format *out, const char *name);

/* ---- listing ------------------------------------------------------------------ */

/* Finds the format of the versions at the root of STORE, only from the names of objects.
 * DW_NOT_FOUND if it is no known format, or a deltawire stream. */
dw_status dw_peer_detect(dw_store *store, dw_peer_format *out, dw_error *err);

/* Detects the format and opens. Fetches nothing yet. */
dw_status dw_peer_open(dw_peer **out, dw_store *store, dw_error *err);
void dw_peer_close(dw_peer *peer);

dw_peer_format dw_peer_get_format(const dw_peer *peer);

/* Lists the store, and returns the numbers of the versions, ascending. A version of slime
 * counts once its index exists. The array lives until the next call
 * of this function. It may be empty. */
dw_status dw_peer_list(dw_peer *peer, const uint64_t **versions, size_t *n_versions,
                       dw_error *err);

/* The version that a listed version starts from; DW_NO_VERSION: it has all weights. For
 * an anchor of TRL that lacks some tensors it is the version before. Reads TRL's header
 * or slime's index, keeps it, and reads it again if its size or time in the store
 * changes. DW_NOT_FOUND if there is no such version. */
dw_status dw_peer_version_base(dw_peer *peer, uint64_t version, uint64_t *base,
                               dw_error *err);

/* ---- a checkpoint directory that is kept at a version ------------------------- */

typedef struct dw_peer_replica_options {
    size_t struct_bytes; /* set by dw_peer_replica_options_init */
    const char *into;    /* as in dw_follow_options: it is created if it does not exist,
                            filled if it is empty, and patched if it holds a version
                            of this peer. Other contents are refused */
    const char *base;    /* the checkpoint that the first version of slime starts
                            from: their version 0, the engine's own model */
    unsigned n_threads;
} dw_peer_replica_options;

static inline void dw_peer_replica_options_init(dw_peer_replica_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
}

/* Opens the directory, and finishes an apply that a killed process left. */
dw_status dw_peer_replica_open(dw_peer_replica **out, dw_peer *peer,
                               const dw_peer_replica_options *options, dw_error *err);
void dw_peer_replica_close(dw_peer_replica *replica);

/* The version of the weights, or DW_NO_VERSION. */
uint64_t dw_peer_replica_version(const dw_peer_replica *replica);

/* The weights by name; none if there is no version. Valid until the next sync or close.
 */
const dw_tensor *dw_peer_replica_tensors(const dw_peer_replica *replica,
                                         size_t *n_tensors);

/* The digest of the weights (digest.h); 0 if there is no version. */
dw_digest dw_peer_replica_state(const dw_peer_replica *replica);

typedef struct dw_peer_sync_report {
    uint64_t from;    /* DW_NO_VERSION: from nothing */
    uint64_t version; /* of the weights now */
    uint64_t n_steps;
    uint64_t n_objects;
    uint64_t n_bytes; /* fetched */
    uint64_t n_changed;
    uint64_t n_checked; /* tensors whose checksum was compared before they were written */
    bool is_verified;   /* the format's checksum proved every tensor that was fetched, or
                           nothing was fetched */
    uint64_t reserved[4];
} dw_peer_sync_report;

/* Brings the weights to GOAL (DW_NEWEST: the newest that is listed), version by version,
 * from the last version on the route that has all weights. If the process is killed, the
 * next open finds the weights at a version. DW_NOT_FOUND if GOAL does not exist or no
 * route leads to it. DW_STALE if the weights' version was written again in the store, for
 * example by a run that was started again. REPORT is filled also if this fails, and may
 * be NULL. */
dw_status dw_peer_replica_sync(dw_peer_replica *replica, uint64_t goal,
                               const dw_progress *progress, dw_peer_sync_report *report,
                               dw_error *err);

#endif
