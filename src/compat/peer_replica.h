/* A replica of a peer's versions in a directory.
 *
 * The model is not known until a whole version or the base was read. So the weights of an
 * empty directory are opened then.
 */
#ifndef DW_COMPAT_PEER_REPLICA_H
#define DW_COMPAT_PEER_REPLICA_H

#include "codec/patch.h"
#include "compat/step.h"
#include "weights/target.h"

struct dw_peer_replica {
    dw_peer *peer;
    char *into;
    char *base;
    unsigned n_threads;

    dw_patch *table;    /* names and shapes that the weights borrow */
    dw_target *weights; /* NULL while the model is not known */
    bool lost;          /* its files were replaced: the next sync opens them again */
    dw_peer_sync_report report; /* of the current sync */
};

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
} dw_peer_route;

/* The route to GOAL for a replica; release it also after a failure. */
dw_status dw_peer_route_find(dw_peer_route *out, dw_peer_replica *replica, uint64_t goal,
                             dw_error *err);
void dw_peer_route_release(dw_peer_route *route);

#endif
