/* The weights of one committed version, for upkeep, while the baseline moves on.
 *
 * While the baseline is that version, upkeep reads the weights in the baseline. Before
 * the baseline moves, its owner calls dw_held_before_move, which copies the weights to a
 * nameless file; from then on upkeep reads that file. If upkeep holds nothing, nothing is
 * copied.
 *
 * Two threads meet here: the owner of the baseline and upkeep. The lock keeps them apart.
 * It is held at most for the time that a copy of the weights takes.
 */
#ifndef DW_PUBLISH_HELD_VERSION_H
#define DW_PUBLISH_HELD_VERSION_H

#include <pthread.h>

#include "publish/pieces.h"
#include "stream/anchor.h"
#include "stream/transfer.h"
#include "tensor/device.h"
#include "weights/own_files.h"
#include "weights/position.h"

typedef struct dw_held_version {
    const dw_pieces *pieces; /* of a whole model; NULL: nothing is ever held */
    const char *spool_dir;
    pthread_mutex_t lock;
    /* guarded by the lock: */
    dw_position baseline;           /* DW_NO_VERSION: it moves, or is lost */
    void *const *base_data;         /* [pieces->n_table] */
    dw_device *const *base_devices; /* [pieces->n_table] where that is; NULL: on the
                                       host */
    const dw_checkpoint *files;     /* its files, or NULL */
    dw_position at;                 /* the version that is held; DW_NO_VERSION: none */
    dw_blob copy;                   /* of the held weights, once the baseline has moved */
    void **data; /* [pieces->n_table] the held weights: in the baseline or in the
                     copy */
    dw_device *const *devices; /* where they are; NULL: on the host */
    dw_status lost; /* why the held weights cannot be read any more, or DW_OK */
    dw_error fault;
} dw_held_version;

void dw_held_init(dw_held_version *held);
/* From here on versions can be held. */
dw_status dw_held_open(dw_held_version *held, const dw_pieces *pieces,
                       const char *spool_dir, dw_error *err);
void dw_held_close(dw_held_version *held);

/* ---- for the owner of the baseline ---- */

/* The baseline is version AT: DATA on DEVICES, and FILES if it is in a directory. That
 * holds until the next call of dw_held_before_move or dw_held_lose. */
void dw_held_set_baseline(dw_held_version *held, const dw_position *at, void *const *data,
                          dw_device *const *devices, const dw_checkpoint *files);

/* The baseline is about to move. Copies the held weights. If there is no room for a copy,
 * they are lost. */
void dw_held_before_move(dw_held_version *held);

/* The baseline is lost, and so are the held weights, unless they were copied. */
void dw_held_lose(dw_held_version *held);

/* Removes the copy to make room; the held weights are lost. False if there is no copy. */
bool dw_held_give_up_copy(dw_held_version *held);

/* ---- for upkeep ---- */

/* Holds the version that the baseline is now. False if the baseline moves or is lost. */
bool dw_held_take(dw_held_version *held, dw_position *at);
void dw_held_release(dw_held_version *held);

/* Copies all of tensor T. */
dw_status dw_held_read(dw_held_version *held, size_t t, void *into, dw_error *err);

/* Clones the files of the baseline to DIR. DW_UNSUPPORTED if there are no reflinks, or if
 * the baseline has moved on. */
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

/* A safetensors file of slices of the held weights. */
typedef struct dw_held_file {
    dw_held_version *held;
    dw_anchor *anchor;
    const size_t *tensors; /* [anchor->list.n] each one's tensor of the model */
} dw_held_file;

/* Several threads may read it. Borrows FILE. */
dw_source dw_held_file_source(dw_held_file *file);

#endif
