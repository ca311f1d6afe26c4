/* The weights that a writer owns, cut into groups of slices of bounded size. A version is
 * diffed and encoded group by group. The cut is made once, so that the baseline can
 * keep the digest of each piece from version to version. After that nothing changes here,
 * and all threads may read it.
 */
#ifndef DW_PUBLISH_PIECES_H
#define DW_PUBLISH_PIECES_H

#include "deltawire/delta.h"
#include "stream/cut.h"

typedef struct dw_piece_group {
    size_t first; /* pieces [first, first + n) */
    size_t n;
} dw_piece_group;

typedef struct dw_pieces {
    const dw_tensor *table; /* the stream's; borrowed */
    size_t n_table;
    dw_slices owned; /* ascending, disjoint */
    dw_slices cut;   /* the pieces */
    dw_piece_group *groups;
    size_t n_groups;
    dw_slice_list shapes; /* the pieces as tensors; nobody reads their data */
} dw_pieces;

/* Takes OWNED. GRAINS, [n_table] or NULL, says where tensors may be cut. */
dw_status dw_pieces_open(dw_pieces *out, const dw_tensor *table, size_t n_table,
                         dw_slices *owned, const dw_grain *grains, uint64_t group_bytes,
                         dw_error *err);
void dw_pieces_release(dw_pieces *pieces);

/* Points VIEWS, [cut.n] tensors, at the data. DATA[k] holds owned slice k. */
void dw_pieces_view(const dw_pieces *pieces, dw_tensor *views, void *const *data);

/* The same if the data has other element types than the table: TYPES, [n_table]. A slice
 * may have no data. */
void dw_pieces_view_as(const dw_pieces *pieces, dw_tensor *views, void *const *data,
                       const dw_dtype *types);

/* Says on which devices the data is: DEVICES[k] has owned slice k. */
void dw_pieces_place(const dw_pieces *pieces, dw_tensor *views,
                     dw_device *const *devices);

/* The bytes of the pieces of the largest group, each padded. */
uint64_t dw_pieces_group_room(const dw_pieces *pieces);

/* The state of a model whose pieces have these digests. The pieces are all of it. */
dw_digest dw_pieces_state(const dw_pieces *pieces, const dw_digest *digests);

/* What pieces with these digests add to the model's state. */
dw_digest dw_pieces_share(const dw_pieces *pieces, const dw_digest *digests);

#endif
