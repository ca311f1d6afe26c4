/* The view of the live weights: the caller's, which change between two publishes.
 *
 * Owner: the thread that publishes a version, from the publish until the weights are
 * captured. Upkeep never reads them.
 */
#ifndef DW_PUBLISH_LIVE_WEIGHTS_H
#define DW_PUBLISH_LIVE_WEIGHTS_H

#include "deltawire/publish.h"
#include "stream/transfer.h"
#include "tensor/tensor_list.h"
#include "weights/replica.h"

typedef struct dw_live {
    void **data;       /* [pieces.owned.n] the caller's */
    dw_tensor *views;  /* [pieces.cut.n]; of masters as F32 */
    dw_tensor *chosen; /* [pieces.cut.n] the same; the baseline's if nothing changed */
    /* [pieces.n_table] of each tensor: */
    size_t *number;  /* in the caller's list */
    bool *is_master; /* the caller's data is F32, published as BF16 */
    bool *is_known;  /* the baseline is what the last publish saw of it, and the caller
                        reported no change since */
} dw_live;

/* The caller's tensors as the stream has them; dw_free. */
dw_status dw_live_shapes(dw_tensor **out, const dw_publisher *p, const dw_tensor *tensors,
                         size_t n_tensors, dw_error *err);
/* Once the pieces are cut; NAMES are those of the caller's list. */
dw_status dw_live_open(dw_publisher *p, const dw_name_index *names, dw_error *err);
void dw_live_close(dw_live *live);
/* Asks the caller whether what was read may be committed. */
dw_status dw_live_confirm(const dw_publisher *p, dw_error *err);
/* Copies owned slice K as it is published. */
dw_status dw_live_read(const dw_publisher *p, size_t k, void *into, dw_error *err);

/* All weights as they are published, masters rounded: for version 0. */
typedef struct dw_live_copy {
    void **data; /* [table] */
    dw_scratch_model rounded;
} dw_live_copy;
dw_status dw_live_whole(dw_publisher *p, dw_live_copy *out, dw_error *err);
void dw_live_copy_release(dw_live_copy *copy);

/* A publish begins: the caller says which tensors of the table are as at the one before.
 * Whatever becomes of it, what it may change is not known until it is committed. */
void dw_live_note_unchanged(dw_publisher *p, const bool *unchanged);
/* Fills `next`: what is known is not compared. */
void dw_live_choose(dw_publisher *p);
/* The publish was committed, and the baseline is all that it saw; or, with false, the
 * baseline came from elsewhere. */
void dw_live_mark(dw_publisher *p, bool is_known);

#endif
