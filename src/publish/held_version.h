/* The weights of one committed version, for upkeep, while the baseline moves on.
 *
 * As long as the baseline is that version, its weights are read from the baseline. Before
 * the baseline moves, its owner calls dw_held_before_move: the weights are copied to a
 * nameless file, and are read from there. If nothing is held by then, nothing is copied.
 *
 * Two threads meet here: the owner of the baseline, and upkeep. The lock keeps them
 * apart. Nobody holds it for longer than it takes to copy weights in memory.
 */
#ifndef DW_PUBLISH_HELD_VERSION_H
#define DW_PUBLISH_HELD_VERSION_H

#include <pthread.h>

#include "publish/pieces.h"
#include "stream/anchor.h"
#include "stream/transfer.h"
#include "weights/own_files.h"
#include "weights/replica.h"

typedef struct dw_held_version {
    const dw_pieces *pieces; /* of a whole model; NULL: nothing is ever held */
    const char *spool_dir;
    pthread_mutex_t lock;
    /* guarded by the lock: */
    dw_position baseline;       /* DW_NO_VERSION: it moves, or cannot be relied on */
    void *const *base_data;     /* [pieces->n_table] */
    const dw_checkpoint *files; /* its files, or NULL */
    dw_position at;             /* what is held; DW_NO_VERSION: nothing */
    dw_blob copy;               /* of what is held, once the baseline has moved */
    void **data;                /* [pieces->n_table] where its weights are now */
    dw_status lost;             /* why what is held cannot be read any more, or DW_OK */
    dw_error fault;
} dw_held_version;

void dw_held_init(dw_held_version *held);
/* From here on versions can be held. */
dw_status dw_held_open(dw_held_version *held, const dw_pieces *pieces,
                       const char *spool_dir, dw_error *err);
void dw_held_close(dw_held_version *held);

/* ---- for the owner of the baseline ---- */

/* The baseline is version AT, in DATA and, if it has files, in FILES. It stays so until
 * the next call of dw_held_before_move or dw_held_lose. */
void dw_held_set_baseline(dw_held_version *held, const dw_position *at, void *const *data,
                          const dw_checkpoint *files);

/* The baseline is about to move. What is held is copied; if there is no room for that, it
 * is lost. */
void dw_held_before_move(dw_held_version *held);

/* The baseline cannot be relied on. What is held is lost, unless it was copied. */
void dw_held_lose(dw_held_version *held);

/* Gives the room of a copy back, and loses what is held. False if there is no copy. */
bool dw_held_give_up_copy(dw_held_version *held);

/* ---- for upkeep ---- */

/* Holds the version that the baseline is. False if the baseline is none right now. */
bool dw_held_take(dw_held_version *held, dw_position *at);
void dw_held_release(dw_held_version *held);

/* Copies all of tensor T. */
dw_status dw_held_read(dw_held_version *held, size_t t, void *into, dw_error *err);

/* Clones the files of the baseline to DIR. DW_UNSUPPORTED if there are no reflinks, or if
 * what is held is not in the files of the baseline any more. */
dw_status dw_held_clone_files(dw_held_version *held, const char *dir, dw_error *err);

/* The pieces of one group at a time, in memory of their own. */
typedef struct dw_held_group {
    dw_held_version *held;
    dw_tensor *views; /* [pieces->cut.n]; good for the group that was loaded last */
    uint8_t *room;
} dw_held_group;

/* Close it in any case. */
dw_status dw_held_group_open(dw_held_group *out, dw_held_version *held, dw_error *err);
void dw_held_group_close(dw_held_group *group);
/* CONTEXT is a dw_held_group. */
dw_status dw_held_group_load(void *context, const dw_piece_group *group, dw_error *err);

/* A safetensors file of slices of what is held. */
typedef struct dw_held_file {
    dw_held_version *held;
    dw_anchor *anchor;
    const size_t *tensors; /* [anchor->list.n] which tensor of the model each is of */
} dw_held_file;

/* Several threads may read it. Borrows FILE. */
dw_source dw_held_file_source(dw_held_file *file);

#endif
