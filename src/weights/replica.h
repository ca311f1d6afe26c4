/* The inside of weights (weights.h). Only src/weights includes this.
 *
 * A replica is the weights, in a directory or in memory, and the update that brings them
 * to the next version. dw_weights has one; `deltawire apply` has one without a version
 * (checkpoint_apply.c).
 *
 *     weights.c          the verbs
 *     weights_open.c     opening: memory, or the directory and its lock
 *     weights_recover.c  finishing an interrupted update without the stream
 *     replica.c          memory; adopting a version, filling; comparing with digests
 *     replica_dir.c      a directory: finding out which version it is
 *     replica_recover.c  the files: lock, map, finish an interrupted update
 *     replica_stage.c    stage, discard
 *     replica_apply.c    prepare, apply, finish
 *     replica_file.c     the file of the weights, made and filled
 */
#ifndef DW_WEIGHTS_REPLICA_H
#define DW_WEIGHTS_REPLICA_H

#include "codec/parts.h"
#include "weights/checkpoint_target.h"
#include "weights/control.h"
#include "weights/own_files.h"
#include "weights/weights.h"

typedef struct dw_widened dw_widened;

typedef struct dw_replica {
    dw_tensor *tensors; /* as in the stream's table; data of the target */
    size_t n_tensors;
    dw_digest *digests;    /* [n_tensors], once at a version */
    dw_position at;        /* dw_nowhere: no version */
    dw_record_kind record; /* not NONE: a follower or publisher made the directory */
    bool has_weights;      /* some weights are there, whether or not they are a version */
    bool may_fill;         /* memory that nobody reads yet: it may hold unproven bytes */
    dw_digest state;       /* the digest of the weights */
    size_t sweep_at;       /* the tensor that is compared next */
    dw_widened *widened; /* memory in F32 that TENSORS are a copy of (widen.h), or NULL */
    unsigned n_threads;

    /* a directory */
    char *dir;
    dw_control_writer *control; /* borrowed, or NULL */
    bool is_own;                /* as in dw_replica_dir */
    const char *stream;         /* borrowed; as in dw_weights_open_dir */
    bool is_ours;               /* the weights were written for the stream */
    bool was_damaged;           /* its files were no checkpoint, or not the version that
                                   their record named, which is WAS */
    dw_position was;
    uint64_t frame;       /* of its files, when they were mapped */
    dw_target target;     /* its files; no ckpt for memory, and while it is empty */
    dw_position was_next; /* the next version that the record named when it was opened */

    /* the update under way */
    dw_update_state update;
    dw_position next;
    dw_digest *next_digests; /* [n_tensors] */
    dw_patch_goal goal;
    dw_patch *patch;          /* the stores ... */
    dw_scratch_model model;   /* ... or, in memory, all weights, proven */
    dw_patch_binding binding; /* of the patch to the files */
    bool staged_file;         /* target.staged_path is there */
    bool sync_failed;         /* of the files, since the stores */
    bool is_torn; /* memory of a device: some stores may be done. Apply goes on
                     with them, and finish reads all weights */
    uint64_t n_changed;
} dw_replica;

/* As dw_weights_open_memory. */
dw_status dw_replica_open_memory(dw_replica **out, const dw_tensor *table,
                                 size_t n_tensors, const dw_tensor *memory, bool empty,
                                 unsigned n_threads, dw_error *err);

/* A directory that is there, and that the caller has locked. */
typedef struct dw_replica_dir {
    const char *path;
    dw_control_writer *control; /* gets the version of the weights; or NULL */
    const char *stream;         /* as in dw_weights_open_dir */
    bool is_own;
} dw_replica_dir;

/* DW_MISMATCH if it holds another model. An interrupted update is finished. */
dw_status dw_replica_open_dir(dw_replica **out, const dw_tensor *table, size_t n_tensors,
                              const dw_replica_dir *dir, unsigned n_threads,
                              const dw_progress *progress, dw_error *err);

/* A checkpoint at PATH that follows no stream: it has no version, no record and no table
 * of tensors. dw_replica_stage_parts stages for it. Finishes an interrupted update, and
 * reports that in *RECOVERED, which may be NULL. With ONLY_RECOVER, the files are mapped
 * only for that. DW_CONFLICT if the checkpoint is locked. */
dw_status dw_replica_open_checkpoint(dw_replica **out, const char *path,
                                     unsigned n_threads, bool only_recover,
                                     bool *recovered, dw_error *err);

/* As dw_weights_close. */
void dw_replica_close(dw_replica *replica);

/* If the record names two versions, rewrites it with the one that the weights are. */
dw_status dw_replica_forget_next(dw_replica *replica, dw_error *err);

/* Whether weights of no version may be replaced: they are damaged, and nobody else put
 * them there. */
static inline bool dw_replica_may_replace(const dw_replica *r)
{
    return r->is_own || r->is_ours;
}

/* As those of dw_weights. */
dw_status dw_replica_move(dw_replica *replica, const dw_tensor *memory, size_t n_tensors,
                          dw_error *err);
dw_status dw_replica_adopt(dw_replica *replica, const dw_position *position,
                           dw_error *err);
dw_status dw_replica_fill(dw_replica *replica, const dw_position *position,
                          dw_fill_fn source, void *context, dw_error *err);
dw_status dw_replica_stage(dw_replica *replica, const dw_position *position,
                           const dw_objects *objects, const dw_blob *blobs,
                           const dw_progress *progress, dw_error *err);
dw_status dw_replica_stage_deltas(dw_replica *replica, const dw_position *position,
                                  const dw_objects *objects, dw_delta *const *deltas,
                                  dw_error *err);
dw_status dw_replica_stage_copy(dw_replica *replica, const dw_position *position,
                                const dw_tensor *source, const dw_progress *progress,
                                dw_error *err);

/* For memory: stages MODEL, the weights of POSITION, and takes it if that succeeds. */
dw_status dw_replica_stage_model(dw_replica *replica, const dw_position *position,
                                 dw_scratch_model *model, dw_error *err);

/* Stages PARTS. If GOAL has a digest and the parts cover the model, they must lead to it.
 * If they cover less, the caller knows the rest, and checks their new_digests. PROGRESS
 * may be NULL. */
dw_status dw_replica_stage_parts(dw_replica *replica, const dw_part *parts,
                                 size_t n_parts, const dw_patch_goal *goal,
                                 const dw_progress *progress, dw_error *err);

/* As those of dw_weights. */
const char *dw_replica_staged_path(const dw_replica *replica);
dw_status dw_replica_discard(dw_replica *replica, dw_error *err);
dw_status dw_replica_prepare(dw_replica *replica, dw_error *err);
dw_status dw_replica_apply(dw_replica *replica, dw_error *err);
dw_status dw_replica_finish(dw_replica *replica, bool sweep, dw_error *err);

/* Reads the next tensors, at least one N_VERSIONS-th of the weights, and compares them
 * with their digests. DW_CORRUPT if one was changed. */
dw_status dw_replica_sweep(dw_replica *replica, unsigned n_versions, dw_error *err);

/* Compares tensors [FIRST, FIRST + N) with their digests. */
dw_status dw_replica_compare(dw_replica *replica, size_t first, size_t n, dw_error *err);

/* The weights were changed: they are no version, and readers stop. Drops what is
 * staged. */
void dw_replica_distrust(dw_replica *replica);

/* ---- inside ---- */

dw_status dw_replica_new(dw_replica **out, const dw_tensor *table, size_t n_tensors,
                         unsigned n_threads, dw_error *err);

/* Points the tensors at the data of FOUND, which must be the same model. */
dw_status dw_replica_take_data(dw_replica *replica, const dw_tensor *found,
                               size_t n_found, const char *where, dw_error *err);
dw_status dw_replica_digest(dw_replica *replica, const dw_progress *progress,
                            dw_error *err);

/* DW_MISMATCH unless the weights that were digested are POSITION's. */
dw_status dw_replica_check(const dw_replica *replica, const dw_position *position,
                           dw_error *err);

/* For errors: the directory, the checkpoint, or "memory". */
const char *dw_replica_where(const dw_replica *replica);

/* The error for weights that were changed. */
dw_status dw_replica_fail_changed(const dw_replica *replica, const char *tensor,
                                  dw_error *err);

/* Drops the update and all that belongs to it, except files. */
void dw_replica_forget_staged(dw_replica *replica);

/* The parts of the verbs that concern the files on disk (replica_apply.c). */
dw_status dw_replica_prepare_files(dw_replica *replica, dw_error *err);
dw_status dw_replica_apply_files(dw_replica *replica, dw_error *err);
dw_status dw_replica_finish_files(dw_replica *replica, bool sweep, dw_error *err);

/* Locks and maps the files of the checkpoint at PATH, and finishes an interrupted update
 * (replica_recover.c). */
dw_status dw_replica_open_files(dw_replica *replica, const char *path, bool only_recover,
                                bool *recovered, dw_error *err);
void dw_replica_close_files(dw_replica *replica);

/* DW_CORRUPT if the record in DIR names another next version than the patch at PATH leads
 * to: such a patch may fit the weights, too. */
dw_status dw_patch_goal_check(const dw_patch_goal *goal, const char *dir,
                              const char *path, dw_error *err);

/* Maps a patch file, checks it against the files, and reserves disk space for its
 * stores. */
dw_status dw_replica_load_patch(dw_replica *replica, const char *path, dw_error *err);

/* Writes the version of the weights to the control block (replica_dir.c). */
void dw_replica_update_control(const dw_replica *replica);

/* Maps the checkpoint of the directory. */
dw_status dw_replica_map_dir(dw_replica *replica, dw_error *err);

/* Replaces links and files with several names with private copies, and adds their number
 * to *N_COPIED. The weights stay the same. */
dw_status dw_replica_make_own(dw_replica *replica, uint64_t *n_copied, dw_error *err);

/* DW_CONFLICT if the files, or the directory, are not those that are open. */
dw_status dw_replica_check_files(const dw_replica *replica, dw_error *err);

/* As dw_weights_drop_shrunk. */
dw_status dw_replica_drop_shrunk(const dw_replica *replica, dw_error *err);

/* Makes the file of the weights, and maps it (replica_file.c). */
dw_status dw_replica_fill_dir(dw_replica *replica, const dw_position *position,
                              dw_fill_fn source, void *context, dw_error *err);

/* ---- the weights ---- */

struct dw_weights {
    dw_replica *now;

    /* a directory */
    char *into;
    int lock;
    dw_control_writer *control;
    unsigned reader_wait_ms;
    uint64_t n_private; /* files that were links, and were replaced with private copies */
};

#endif
