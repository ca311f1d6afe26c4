/* The caller's weights, which change between two publishes.
 *
 * Owner: the owner of the baseline. The weights themselves are read only from the call of
 * a publish until they are captured, and by dw_publisher_is_current. Upkeep never reads
 * them.
 */
#ifndef DW_PUBLISH_LIVE_WEIGHTS_H
#define DW_PUBLISH_LIVE_WEIGHTS_H

#include "deltawire/publish.h"
#include "publish/pieces.h"
#include "quant/quantizer.h"
#include "stream/transfer.h"
#include "tensor/device.h"
#include "tensor/tensor_list.h"
#include "weights/whole_model.h"

typedef struct dw_live {
    void **data;         /* [pieces.owned.n] the caller's; NULL if a source makes it */
    dw_device **devices; /* [pieces.owned.n] where that is */
    dw_tensor *views;    /* [pieces.cut.n] of that data, with the caller's types */
    dw_tensor *chosen;   /* [pieces.cut.n] the views to diff: the caller's; if a tensor is
                            known, the baseline's; of a source, what it made */
    /* for each tensor, [pieces.n_table]; the first two never change: */
    size_t *number;  /* its number in the caller's list; of scales, that of the weight */
    dw_dtype *types; /* of the caller's data: masters are F32, published as BF16 */
    bool *is_known;  /* the baseline holds what the last publish read, and the caller
                        reported no change since */
    dw_weight_source source; /* `read` NULL: the caller's data is published */
    dw_weight_piece *pulled; /* [pieces.cut.n] what a source is asked for ... */
    uint8_t *scratch;        /* ... and the pieces of one group */
    dw_quantizer quant;      /* if that is the source; `plan` NULL: it is not */
} dw_live;

/* Puts a quantiser in front, if the options have one: *TENSORS and the shards become
 * those of the quantised model. */
dw_status dw_live_quantize(dw_publisher *p, const dw_tensor **tensors, size_t *n_tensors,
                           dw_error *err);
/* The names, types and shapes of the stream that the caller's tensors become. Free *OUT
 * in any case. */
dw_status dw_live_shapes(dw_tensor **out, const dw_publisher *p, const dw_tensor *tensors,
                         size_t n_tensors, dw_error *err);
/* Notes the data of the caller's tensors or, if the publish is sharded, of its shards.
 * OWNED, which is empty, takes their slices in the order of the table. */
dw_status dw_live_take(dw_publisher *p, const dw_tensor *tensors, size_t n_tensors,
                       dw_slices *owned, dw_error *err);
/* Once the pieces are cut. NAMES are those of the caller's list. */
dw_status dw_live_open(dw_publisher *p, const dw_name_index *names, dw_error *err);
void dw_live_close(dw_live *live);
/* Ranks have met, and find out whether their sources must begin together. SO_FAR is the
 * status of this rank, which the result keeps. */
dw_status dw_live_meet(dw_publisher *p, dw_status so_far, dw_error *err);
/* The source begins with TURN, which for a publish is twice that of the ranks. UNCHANGED:
 * as in dw_publish_note; NULL: reads all. SO_FAR as above. */
dw_status dw_live_begin(dw_publisher *p, uint64_t turn, const bool *unchanged,
                        dw_status so_far, dw_error *err);
/* Asks the caller whether the weights that were read may be committed. */
dw_status dw_live_confirm(const dw_publisher *p, dw_error *err);
/* Copies owned slice K as it is published: rounded if it is a master, or what the source
 * makes. Slices are read in ascending order. */
dw_status dw_live_read(dw_publisher *p, size_t k, dw_place into, dw_error *err);
/* Lets the source make what GROUP has of tensors that are not known, and points `chosen`
 * at it, until the next call. For dw_delta_upload. */
dw_status dw_live_load(void *publisher, const dw_piece_group *group, dw_error *err);
/* The same for one piece, also if it is known. */
dw_status dw_live_make_piece(dw_publisher *p, size_t i, dw_error *err);

/* All weights as they are published: for version 0. */
typedef struct dw_live_copy {
    void **data;           /* [table] */
    dw_scratch_model made; /* those that are rounded, or that a source makes */
} dw_live_copy;
dw_status dw_live_whole(dw_publisher *p, dw_live_copy *out, dw_error *err);
void dw_live_copy_release(dw_live_copy *copy);

/* A publish begins. The caller reports which tensors of the table did not change since
 * the last one. The others are not known again until a version is committed. */
void dw_live_note_unchanged(dw_publisher *p, const bool *unchanged);
/* Fills `chosen`: tensors that are known are not read. */
void dw_live_choose(dw_publisher *p);
/* Marks all tensors. True: a version was committed, and the baseline holds what it read.
 * False: the baseline was read from the stream. */
void dw_live_mark(dw_publisher *p, bool is_known);

#endif
