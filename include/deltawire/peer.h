/* Peers: what other systems keep in a bucket or a directory, read as it lies there.
 *
 *     trl     anchors/step_%06d.safetensors, deltas/step_%06d.safetensors
 *     slime   weight_v%06d/model.safetensors.index.json and the files it names
 *     skyrl   delta-%08d/manifest.json and the payloads it names
 *
 *     dw_peer_detect         whose is it?
 *     dw_peer_list           the versions that are there
 *     dw_peer_version        what one of them says of itself
 *     dw_peer_verify         reads all of it
 *     dw_peer_replica_sync   brings a checkpoint directory to a version
 *
 * These formats promise less than a stream of ours. What one of them lets be checked is
 * checked before a byte of the weights changes; what it does not is told, in reports and
 * notes. docs/PEERS.md has the whole list.
 *
 * Handles belong to one thread at a time. The store must outlive them.
 */
#ifndef DELTAWIRE_PEER_H
#define DELTAWIRE_PEER_H

#include "deltawire/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_peer dw_peer;
typedef struct dw_peer_replica dw_peer_replica;

typedef enum dw_peer_format {
    DW_PEER_TRL = 1,
    DW_PEER_SLIME = 2,
    DW_PEER_SKYRL = 3,
} dw_peer_format;

/* "trl", "slime", "skyrl"; "?" for a number that is no format. */
DW_API const char *dw_peer_format_name(dw_peer_format format);
DW_API bool dw_peer_format_from_name(dw_peer_format *out, const char *name);

/* ---- what is there ------------------------------------------------------------ */

/* Finds out whose versions lie at the root of STORE, by the names of objects alone.
 * DW_NOT_FOUND where they are nobody's that is known here, or a stream of our own. */
DW_API dw_status dw_peer_detect(dw_store *store, dw_peer_format *out, dw_error *err);

/* Detects and opens. Nothing is fetched yet. */
DW_API dw_status dw_peer_open(dw_peer **out, dw_store *store, dw_error *err);
DW_API void dw_peer_close(dw_peer *peer);

DW_API dw_peer_format dw_peer_get_format(const dw_peer *peer);

/* The numbers of the versions, ascending; asks the store anew. Those of slime and SkyRL
 * count once their index or manifest is there. The array lives until the next call of
 * this function; it may be empty. */
DW_API dw_status dw_peer_list(dw_peer *peer, const uint64_t **versions,
                              size_t *n_versions, dw_error *err);

/* Strings live until the next call with the same peer. */
typedef struct dw_peer_version_info {
    uint64_t version;
    uint64_t base;      /* the version it starts from; DW_NO_VERSION: it is whole */
    bool base_is_named; /* false: the format does not say, it is the one listed before */
    bool is_partial;    /* an anchor that lacks tensors: they are BASE's */
    uint64_t n_objects;
    uint64_t n_bytes;     /* of the objects that hold weights */
    int64_t modified_ms;  /* the store's own time of its record; 0 where unknown */
    const char *encoding; /* "whole", "raw", "gap_delta", "xor", "overwrite", or what the
                             record says where that cannot be read here */
    const char *checksum; /* "xxh3-128", "adler32", "blake3", "digest" (files in TRL's
                             layout that deltawire wrote); NULL: it has none */
} dw_peer_version_info;

/* Reads the record of a version that was listed: TRL's header, slime's index, SkyRL's
 * manifest. It is kept, and read again when the store shows another size or time.
 * DW_NOT_FOUND where there is no such version. */
DW_API dw_status dw_peer_version(dw_peer *peer, uint64_t version,
                                 dw_peer_version_info *out, dw_error *err);

/* ---- checking ----------------------------------------------------------------- */

/* Takes what a format cannot tell, in a line for people. */
typedef void (*dw_peer_note_fn)(void *context, const char *note);

typedef struct dw_peer_verify_options {
    const char *base; /* the checkpoint that the first version of slime or SkyRL starts
                         from. Without it their checksums, which are of whole tensors,
                         cannot be compared until a whole version comes */
    const char *spool_dir; /* for a copy of the model; NULL: TMPDIR */
    unsigned n_threads;
    dw_fault_fn fault; /* each fault; may be NULL */
    dw_peer_note_fn note;
    void *context; /* of both */
    dw_progress progress;
} dw_peer_verify_options;

typedef struct dw_peer_verify_report {
    uint64_t n_versions;
    uint64_t n_replayed; /* versions whose weights were made, in memory */
    uint64_t n_objects;
    uint64_t n_bytes;
    uint64_t n_checked; /* tensors whose checksum was compared with their new weights */
    uint64_t n_missing; /* TRL: numbers that have no file */
    uint64_t n_faults;
} dw_peer_verify_report;

/* Reads every object of every version: that it parses, that the chain of bases holds,
 * that positions and sizes fit the model, and, where there are weights to start from, the
 * checksums. With faults it returns the code of the first. OPTIONS and REPORT may be
 * NULL. */
DW_API dw_status dw_peer_verify(dw_peer *peer, const dw_peer_verify_options *options,
                                dw_peer_verify_report *report, dw_error *err);

/* ---- a checkpoint directory that is kept at a version ------------------------- */

typedef struct dw_peer_replica_options {
    const char *into; /* as in dw_follow_options: made and filled where it is not there or
                         empty, patched in place where it holds a version of this peer.
                         Anything else is refused */
    const char *base; /* the checkpoint that the first version of slime or SkyRL starts
                         from: their version 0, the engine's own model */
    const char *spool_dir; /* for what does not fit in memory; NULL: INTO */
    unsigned n_threads;
    unsigned reader_wait_ms; /* as in dw_follow_options */
    dw_peer_note_fn note;    /* may be NULL */
    void *note_context;
} dw_peer_replica_options;

DW_API void dw_peer_replica_options_init(dw_peer_replica_options *options);

/* Opens the directory, and finishes what a killed process left half done. PEER must
 * outlive it. */
DW_API dw_status dw_peer_replica_open(dw_peer_replica **out, dw_peer *peer,
                                      const dw_peer_replica_options *options,
                                      dw_error *err);
DW_API void dw_peer_replica_close(dw_peer_replica *replica);

/* The version the weights are at, or DW_NO_VERSION. */
DW_API uint64_t dw_peer_replica_version(const dw_peer_replica *replica);

/* The weights, names ascending; none while there is no version. Valid until the next
 * sync, or close. */
DW_API const dw_tensor *dw_peer_replica_tensors(const dw_peer_replica *replica,
                                                size_t *n_tensors);

/* The digest of the weights, ours; 0 where there is no version. */
DW_API dw_digest dw_peer_replica_state(const dw_peer_replica *replica);

typedef struct dw_peer_sync_report {
    uint64_t from;    /* DW_NO_VERSION: from nothing */
    uint64_t version; /* where the weights are now */
    uint64_t n_hops;
    uint64_t n_objects;
    uint64_t n_bytes; /* fetched */
    uint64_t n_changed;
    uint64_t n_checked; /* tensors whose checksum was compared before they were written */
    uint64_t n_missing; /* TRL: numbers without a file that were passed over */
    bool is_verified;   /* every tensor that was fetched was proven by its format's
                           checksum, or nothing was fetched */
} dw_peer_sync_report;

/* Brings the weights to GOAL (DW_LATEST: the newest that is listed), version by version,
 * beginning with the last whole one on the way. Killed at any instant, the next open
 * finds the weights at a version. DW_NOT_FOUND where GOAL is not there, or nothing leads
 * to it; DW_STALE where the version the weights are at was written anew in the store, as
 * by a run that was started again. PROGRESS and REPORT may be NULL; REPORT is filled also
 * where it failed on the way. */
DW_API dw_status dw_peer_replica_sync(dw_peer_replica *replica, uint64_t goal,
                                      const dw_progress *progress,
                                      dw_peer_sync_report *report, dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
