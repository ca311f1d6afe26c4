/* What folds start from: one copy of the model, and deltas from it.
 *
 * A fold over N versions needs the weights of N versions ago. All spans share one copy of
 * the model: that of the version at which the longest span last folded. The version at
 * which a shorter span last folded is kept as deltas from that copy (group_deltas.h).
 *
 *     DIR/model.safetensors, or shards    the copy
 *     DIR/.deltawire-state.json           its version
 *     DIR/SPAN/deltas                     from the copy to where SPAN last folded
 *     DIR/SPAN/.deltawire-state.json      that version
 *
 * DIR is .deltawire-folds beside the baseline. Without one, all lies in nameless files.
 *
 * Files are replaced, never written in place. A record is removed before its files are
 * replaced, and written when they are durable. So after a crash there is no copy, and it
 * is made anew; or a span has no deltas, and starts from the copy. Nothing here is
 * trusted: all digests are compared before a fold is recorded.
 */
#ifndef DW_PUBLISH_FOLD_COPY_H
#define DW_PUBLISH_FOLD_COPY_H

#include "publish/group_deltas.h"
#include "publish/held_version.h"

#define DW_FOLDS_NAME    ".deltawire-folds" /* in the directory of the baseline */
#define DW_OLD_FOLD_NAME ".deltawire-fold-" /* and a span: 0.1 kept a copy for each */

typedef struct dw_fold_copy {
    char *dir; /* or NULL: nameless */
    const char *spool_dir;
    const dw_pieces *pieces;
    unsigned n_threads;
    dw_position at; /* DW_NO_VERSION: there is no copy, or no good one */
    dw_blob blob;   /* nameless */
    /* while it is open: */
    dw_checkpoint *ckpt;
    dw_tensor *views;   /* [pieces->cut.n] */
    dw_digest *digests; /* [pieces->cut.n] */
} dw_fold_copy;

/* Makes the copy that of version AT, which HELD is. There is no copy if this fails. */
dw_status dw_fold_copy_make(dw_fold_copy *copy, const dw_position *at,
                            dw_held_version *held, dw_error *err);

/* Maps the copy and digests it. Fails if it is not what its record says. */
dw_status dw_fold_copy_open(dw_fold_copy *copy, dw_error *err);
void dw_fold_copy_close(dw_fold_copy *copy);

void dw_fold_copy_release(dw_fold_copy *copy);

/* Where the folds of one span start. */
typedef struct dw_fold_level {
    unsigned span;  /* 0: unused */
    dw_position at; /* the copy's version, or a later one that deltas lead to */
    char *dir;      /* DIR/SPAN, or NULL: nameless */
    int fd;         /* nameless deltas, or -1 */
} dw_fold_level;

/* Makes LEVELS[0 .. N) start at version AT, which HELD is: writes the deltas that lead
 * there from the copy, which is open, once for all. If this fails, a level starts where
 * it did, or from the copy. DW_CORRUPT if HELD is not that version. */
dw_status dw_fold_levels_move(dw_fold_level *const *levels, size_t n,
                              const dw_fold_copy *copy, const dw_position *at,
                              dw_held_version *held, const dw_progress *stop,
                              dw_error *err);

/* Makes the level start at the copy's version, and removes its deltas. */
void dw_fold_level_drop(dw_fold_level *level, const dw_fold_copy *copy);

/* The weights that a level starts from, group by group. */
typedef struct dw_fold_source {
    const dw_fold_copy *copy;
    int fd;
    dw_group_deltas deltas;
    dw_tensor *views;   /* [pieces->cut.n]; good for the group that was loaded last */
    dw_digest *digests; /* [pieces->cut.n] of all groups loaded so far */
    uint8_t *room;
    bool is_bad; /* the deltas are damaged, or do not fit the copy */
} dw_fold_source;

/* Close it in any case. */
dw_status dw_fold_source_open(dw_fold_source *out, const dw_fold_level *level,
                              const dw_fold_copy *copy, dw_error *err);
void dw_fold_source_close(dw_fold_source *source);

/* For dw_encode_version; CONTEXT is a dw_fold_source. */
dw_status dw_fold_source_load(void *context, const dw_piece_group *group, dw_error *err);

/* Removes a directory of copies or deltas, and what was made in it. Files of others, and
 * what a link leads to, stay. */
void dw_fold_dir_remove(const char *dir);

#endif
