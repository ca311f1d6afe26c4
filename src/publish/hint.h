/* latest.json, the hint for readers.
 *
 * Owner: the thread that holds the hint's own lock.
 */
#ifndef DW_PUBLISH_HINT_H
#define DW_PUBLISH_HINT_H

#include <pthread.h>

#include "deltawire/publish.h"
#include "stream/graph.h"

/* A thread may take the publisher's lock while it holds the hint's, never the other way
 * round. Only one thread puts the hint at a time, and without the lock. If the hint
 * changes meanwhile, that thread puts it once more, so an older hint of this process
 * never replaces a newer one. */
typedef struct dw_hint {
    pthread_mutex_t lock;
    dw_graph graph;  /* edges from the newest anchor on */
    uint64_t anchor; /* the newest version with an anchor, or DW_NO_VERSION */
    uint64_t head;
    bool is_put;   /* a thread is putting it ... */
    bool is_stale; /* ... and must do so once more */
} dw_hint;

void dw_hint_init(dw_hint *hint);
void dw_hint_release(dw_hint *hint);
/* Reads the edges that lead to p->commits.head. If that fails, those that are known stay:
 * the hint then lacks some edges, and followers may choose a longer route. */
dw_status dw_hint_load(dw_publisher *p, dw_error *err);
dw_status dw_hint_put(dw_publisher *p, dw_error *err);
/* Version p->commits.head was committed with these objects: adds its edge, and puts the
 * hint. */
dw_status dw_hint_commit(dw_publisher *p, uint64_t n_bytes, uint64_t n_objects,
                         dw_error *err);
/* Adds a fold or an anchor. */
dw_status dw_hint_add(dw_hint *hint, dw_edge edge, dw_error *err);
/* The newest version in the hint. */
uint64_t dw_hint_head(dw_hint *hint);
/* The newest version with an anchor, or DW_NO_VERSION. */
uint64_t dw_hint_anchor(dw_hint *hint);
/* The bytes of the cheapest route from FROM to TO. False if none is known. */
bool dw_hint_cost(dw_hint *hint, uint64_t from, uint64_t to, uint64_t *n_bytes);

#endif
