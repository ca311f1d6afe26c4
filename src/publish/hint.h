/* latest.json, the hint for readers.
 *
 * Owner: the thread that holds the hint's own lock. The publisher and its compactor share
 * one; a compactor elsewhere has its own. Writers in other processes put theirs too, so
 * each reads what is there before it puts, and keeps the edges that it does not know.
 */
#ifndef DW_PUBLISH_HINT_H
#define DW_PUBLISH_HINT_H

#include <pthread.h>

#include "stream/graph.h"

/* Only one thread puts the hint at a time, and without the lock. If the hint changes
 * meanwhile, that thread puts it once more, so an older hint of this process never
 * replaces a newer one. */
typedef struct dw_hint {
    pthread_mutex_t lock;
    dw_graph graph; /* edges from the newest anchor on */
    uint64_t head;
    bool is_put;   /* a thread is putting it ... */
    bool is_stale; /* ... and must do so once more */
} dw_hint;

void dw_hint_init(dw_hint *hint);
void dw_hint_release(dw_hint *hint);
/* Reads the edges that lead to HEAD, the newest version of STREAM. If that fails, those
 * that are known stay: the hint then lacks some edges, and followers may choose a longer
 * route. */
dw_status dw_hint_load(dw_hint *hint, dw_stream *stream, uint64_t head, dw_error *err);
/* Adds the edges that other processes put. */
void dw_hint_refresh(dw_hint *hint, dw_stream *stream);
dw_status dw_hint_put(dw_hint *hint, dw_stream *stream, dw_error *err);
/* Version HEAD was committed with these objects: adds its edge, and puts the hint. */
dw_status dw_hint_commit(dw_hint *hint, dw_stream *stream, uint64_t head,
                         uint64_t n_bytes, uint64_t n_objects, dw_error *err);
/* Adds a fold or an anchor, and puts the hint if that is new and of use. */
dw_status dw_hint_add(dw_hint *hint, dw_stream *stream, dw_edge edge, dw_error *err);

/* The newest anchor, or DW_NO_VERSION, and the head. */
uint64_t dw_hint_newest(dw_hint *hint, uint64_t *head);

/* When folds and anchors are due; 0: never. */
typedef struct dw_due_rule {
    unsigned fold_every;   /* versions */
    unsigned anchor_every; /* versions */
    double anchor_factor;  /* of MODEL_BYTES */
    uint64_t model_bytes;
} dw_due_rule;

/* Finds the shortcut that is due first: *DUE takes where it begins and ends. Folds form a
 * chain from the newest anchor on. False if none is due. */
bool dw_hint_due(dw_hint *hint, const dw_due_rule *rule, dw_edge *due);

#endif
