/* The weights that folds start from: one copy of the model, and deltas from it.
 *
 * A fold over N versions needs the weights of N versions ago. All spans share one copy of
 * the model, of the version at which the longest span last folded. For a shorter span,
 * deltas from that copy lead to the version at which it last folded (group_deltas.h).
 *
 *     DIR/model.safetensors, or shards    the copy
 *     DIR/.deltawire/state.json           its version
 *     DIR/SPAN/deltas                     from the copy to the last fold of SPAN
 *     DIR/SPAN/.deltawire/state.json      that version
 *
 * DIR is .deltawire/folds in the directory of the baseline. If the baseline is in memory,
 * all of this is in nameless files.
 *
 * Files are replaced, never written in place. A record is removed before its files are
 * replaced, and written when they are durable. After a crash there may be no copy, and it
 * is made again; or a span has no deltas, and starts from the copy. Nothing here is
 * trusted: all digests are compared before a fold is recorded.
 */
#ifndef DW_PUBLISH_FOLD_COPY_H
#define DW_PUBLISH_FOLD_COPY_H

#include "publish/group_deltas.h"
#include "publish/held_version.h"

#define DW_FOLDS_NAME ".deltawire/folds" /* in the directory of the baseline */

typedef struct dw_fold_copy {
    char *dir; /* NULL: nameless */
    const char *spool_dir;
    const dw_pieces *pieces;
    unsigned n_threads;
    dw_position at; /* DW_NO_VERSION: there is no good copy */
    dw_blob blob;   /* nameless */
    /* while it is open: */
    dw_checkpoint *ckpt;
    dw_tensor *views;   /* [pieces->cut.n] */
    dw_digest *digests; /* [pieces->cut.n] */
} dw_fold_copy;

/* Makes a copy of HELD, which is version AT. After a failure there is no copy. */
dw_status dw_fold_copy_make(dw_fold_copy *copy, const dw_position *at,
                            dw_held_version *held, dw_error *err);

/* Maps the copy and takes its digests. Fails if they differ from its record. */
dw_status dw_fold_copy_open(dw_fold_copy *copy, dw_error *err);
void dw_fold_copy_close(dw_fold_copy *copy);

void dw_fold_copy_release(dw_fold_copy *copy);

/* The start of the folds of one span. */
typedef struct dw_fold_level {
    unsigned span;  /* 0: unused */
    dw_position at; /* the version of the copy, or a later one that deltas lead to */
    char *dir;      /* DIR/SPAN; NULL: nameless */
    int fd;         /* nameless deltas, or -1 */
} dw_fold_level;

/* Makes LEVELS[0 .. N) start at HELD, which is version AT: writes one file of deltas from
 * the copy, which is open, for all of them. After a failure a level starts as before, or
 * from the copy. DW_CORRUPT if HELD is not that version. */
dw_status dw_fold_levels_move(dw_fold_level *const *levels, size_t n,
                              const dw_fold_copy *copy, const dw_position *at,
                              dw_held_version *held, const dw_progress *stop,
                              dw_error *err);

/* Makes the level start from the copy, and removes its deltas. */
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

/* For dw_delta_spec; CONTEXT is a dw_fold_source. */
dw_status dw_fold_source_load(void *context, const dw_piece_group *group, dw_error *err);

/* Removes the files of a copy or of deltas, and then the directory. Other files stay, and
 * links are not followed. */
void dw_fold_dir_remove(const char *dir);

#endif
