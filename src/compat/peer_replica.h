/* A replica of a peer's versions: a directory or, for verification, memory.
 *
 * The model is not known until a whole version or the base was read. So the weights of an
 * empty directory are opened then.
 */
#ifndef DW_COMPAT_PEER_REPLICA_H
#define DW_COMPAT_PEER_REPLICA_H

#include "codec/patch.h"
#include "compat/step.h"
#include "weights/weights.h"

struct dw_peer_replica {
    dw_peer *peer;
    char *into; /* NULL: memory */
    char *base;
    char *spool_dir;
    unsigned n_threads;
    unsigned reader_wait_ms;
    dw_peer_note_fn note;
    void *note_context;

    dw_patch *table;     /* names and shapes that the weights borrow */
    dw_weights *weights; /* NULL while the model is not known */
    bool lost;           /* its files were replaced: the next sync opens them again */
    dw_scratch_model scratch;
    dw_peer_sync_report report; /* of the current sync */
};

void dw_peer_note(const dw_peer_replica *replica, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Fills an empty replica with the base checkpoint, as VERSION. */
dw_status dw_peer_replica_fill_base(dw_peer_replica *replica, uint64_t version,
                                    dw_error *err);

/* Applies one version to the replica's current one. A whole version needs none. */
dw_status dw_peer_replica_take(dw_peer_replica *replica, const dw_peer_record *record,
                               const dw_progress *progress, dw_error *err);

/* ---- routes (peer_route.c) ---- */

/* The route to a version: it starts from the last whole version, from the weights or from
 * the base, and then goes version by version. */
typedef struct dw_peer_route {
    uint64_t *versions; /* in order; a whole one comes first */
    size_t n;
    size_t n_room;
    uint64_t start; /* the version to start from; DW_NO_VERSION: from nothing */
    bool from_base; /* START is the base checkpoint */
    uint64_t n_bytes;
    uint64_t n_missing; /* numbers without a file */
} dw_peer_route;

/* The route to GOAL for a replica; release it also after a failure. */
dw_status dw_peer_route_find(dw_peer_route *out, dw_peer_replica *replica, uint64_t goal,
                             dw_error *err);
void dw_peer_route_release(dw_peer_route *route);

#endif
