/* A file that holds one delta for each group of pieces that changed between two versions.
 * One group can be decoded without the others, unlike the objects of a version. The file
 * is never mapped. Decoding a delta compares its digests.
 */
#ifndef DW_PUBLISH_GROUP_DELTAS_H
#define DW_PUBLISH_GROUP_DELTAS_H

#include "base/file.h"
#include "publish/pieces.h"

typedef struct dw_group_range {
    uint64_t offset;
    uint64_t n_bytes; /* 0: nothing changed in the group */
} dw_group_range;

typedef struct dw_group_deltas {
    int fd; /* borrowed */
    const dw_pieces *pieces;
    dw_group_range *ranges; /* [pieces->n_groups] */
    uint8_t *bytes;         /* the delta that was read last */
} dw_group_deltas;

typedef struct dw_group_diff {
    const dw_pieces *pieces;
    const dw_tensor *base; /* [pieces->cut.n] views */
    const dw_tensor *next;
    /* Loads NEXT of one group before that group is read. NULL: all of it is loaded. */
    dw_status (*load)(void *context, const dw_piece_group *group, dw_error *err);
    void *load_context;
    const dw_digest *base_digests; /* [pieces->cut.n] */
    dw_digest *next_digests;       /* out */
    uint64_t from;                 /* versions */
    uint64_t to;
    unsigned n_threads;
    const dw_progress *stop;
} dw_group_diff;

/* Writes the deltas from BASE to NEXT to FILE, which is empty. */
dw_status dw_group_deltas_write(dw_new_file *file, const dw_group_diff *diff,
                                dw_error *err);

/* Reads the table of the file FD. DW_CORRUPT if it is damaged or belongs to another cut
 * of the model. Errors name WHERE. Close OUT in any case. */
dw_status dw_group_deltas_open(dw_group_deltas *out, int fd, const dw_pieces *pieces,
                               const char *where, dw_error *err);
void dw_group_deltas_close(dw_group_deltas *deltas);

/* Whether group G changed. */
bool dw_group_deltas_has(const dw_group_deltas *deltas, size_t g);

/* Applies the delta of group G to TENSORS, the pieces of that group, whose digests are
 * BEFORE. AFTER takes the new digests. After a failure the tensors may be a mix. */
dw_status dw_group_deltas_apply(dw_group_deltas *deltas, size_t g,
                                const dw_tensor *tensors, const dw_digest *before,
                                dw_digest *after, unsigned n_threads, dw_error *err);

#endif
