/* The inside of a target (target.h). Only src/weights includes this.
 *
 *     target.c           what the weights are; adopting, comparing with digests
 *     target_update.c    the verbs of an update
 *     target_memory.c    memory of the host: dw_target_memory
 *     target_device.c    memory of devices: dw_target_device
 *     target_dir.c       the files of a directory: dw_target_in_files
 *     target_open.c      opening a directory: its lock, and which version it is
 *     target_recover.c   finishing an interrupted update
 *     target_file.c      the file of the weights, made and filled
 *     target_files.c     which checkpoint a path means, and the files beside it
 */
#ifndef DW_WEIGHTS_TARGET_INSIDE_H
#define DW_WEIGHTS_TARGET_INSIDE_H

#include "codec/parts.h"
#include "weights/control.h"
#include "weights/own_files.h"
#include "weights/target.h"
#include "weights/target_files.h"

typedef struct dw_widened dw_widened;

/* What depends on where the weights are. The verbs of target.h check the order of calls
 * and keep the books; these do the work. */
typedef struct dw_target_ops {
    /* Proves PARTS and keeps their stores. If GOAL has a digest and the parts cover the
     * model, they must lead to it. */
    dw_status (*stage)(dw_target *target, const dw_part *parts, size_t n_parts,
                       const dw_patch_goal *goal, const dw_progress *progress,
                       dw_error *err);
    dw_status (*prepare)(dw_target *target, dw_error *err);
    dw_status (*apply)(dw_target *target, dw_error *err);
    dw_status (*finish)(dw_target *target, bool sweep, dw_error *err);
    dw_status (*fill)(dw_target *target, const dw_position *position, dw_fill_fn source,
                      void *context, dw_error *err);
    dw_status (*move)(dw_target *target, const dw_position *position,
                      const dw_proven *proven, dw_error *err);
} dw_target_ops;

extern const dw_target_ops dw_target_memory, dw_target_device, dw_target_in_files;

struct dw_target {
    const dw_target_ops *ops;
    dw_tensor *tensors; /* as in the stream's table; data of the memory or the files */
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

    /* a directory, or the files of a checkpoint that follows no stream */
    char *dir;                  /* NULL: memory, or such a checkpoint */
    int lock;                   /* of the directory, or -1 */
    dw_control_writer *control; /* or NULL */
    unsigned reader_wait_ms;
    bool is_own;        /* as in dw_target_open_dir */
    const char *stream; /* borrowed; as in dw_target_open_dir */
    bool is_ours;       /* the weights were written for the stream */
    bool was_damaged;   /* its files were no checkpoint, or not the version that their
                           record named, which is WAS */
    dw_position was;
    uint64_t frame;        /* of its files, when they were mapped */
    dw_target_files files; /* no ckpt for memory, and while it is empty */
    dw_position was_next;  /* the next version that the record named when it was opened */
    uint64_t n_private;    /* files that were links, and were replaced with copies */
    bool had_stray;        /* a patch that the record did not name was removed */

    /* the update under way */
    dw_update_state update;
    dw_position next;
    dw_digest *next_digests; /* [n_tensors] */
    dw_patch_goal goal;
    dw_patch *patch;          /* the stores ... */
    dw_scratch_model model;   /* ... or, in memory, all weights, proven */
    dw_patch_binding binding; /* of the patch to the files */
    bool staged_file;         /* files.staged_path is there */
    bool is_named;            /* the patch file has its name, which may not be durable */
    bool is_synced;           /* the stores are durable, and the patch file is removed */
    bool sync_failed;         /* of the files, since the stores */
    bool is_torn; /* memory of a device: some stores may be done. Apply goes on
                     with them, and finish reads all weights */
    uint64_t n_changed;
};

/* A checkpoint at PATH that follows no stream: it has no version, no record and no table
 * of tensors. dw_target_stage_parts stages for it. Finishes an interrupted update, and
 * reports that in *RECOVERED, which may be NULL. With ONLY_RECOVER, the files are mapped
 * only for that. DW_CONFLICT if the checkpoint is locked. */
dw_status dw_target_open_checkpoint(dw_target **out, const char *path, unsigned n_threads,
                                    bool only_recover, bool *recovered, dw_error *err);

/* Stages PARTS. If they do not cover the model, the caller knows the rest, and checks
 * their new_digests. PROGRESS may be NULL. */
dw_status dw_target_stage_parts(dw_target *target, const dw_part *parts, size_t n_parts,
                                const dw_patch_goal *goal, const dw_progress *progress,
                                dw_error *err);

/* ---- target.c ---- */

dw_status dw_target_new(dw_target **out, const dw_target_ops *ops, const dw_tensor *table,
                        size_t n_tensors, unsigned n_threads, dw_error *err);

/* Ends an open: closes TARGET unless STATUS is DW_OK. */
dw_status dw_target_give(dw_target **out, dw_target *target, dw_status status);

/* Points the tensors at the data of FOUND, which must be the same model. */
dw_status dw_target_take_data(dw_target *target, const dw_tensor *found, size_t n_found,
                              const char *where, dw_error *err);
dw_status dw_target_digest(dw_target *target, dw_error *err);

/* DW_MISMATCH unless the weights that were digested are POSITION's. */
dw_status dw_target_check(const dw_target *target, const dw_position *position,
                          dw_error *err);

/* Compares tensors [FIRST, FIRST + N) with their digests. */
dw_status dw_target_compare(dw_target *target, size_t first, size_t n, dw_error *err);

/* For errors: the directory, the checkpoint, or "memory". */
const char *dw_target_where(const dw_target *target);

/* The error for weights that were changed. */
dw_status dw_target_fail_changed(const dw_target *target, const char *tensor,
                                 dw_error *err);

/* Drops the update and all that belongs to it, except files. */
void dw_target_forget_staged(dw_target *target);

/* ---- target_memory.c ---- */

dw_status dw_memory_stage(dw_target *target, const dw_part *parts, size_t n_parts,
                          const dw_patch_goal *goal, const dw_progress *progress,
                          dw_error *err);
dw_status dw_memory_prepare(dw_target *target, dw_error *err);
dw_status dw_memory_finish(dw_target *target, bool sweep, dw_error *err);
dw_status dw_memory_fill(dw_target *target, const dw_position *position,
                         dw_fill_fn source, void *context, dw_error *err);
dw_status dw_memory_move(dw_target *target, const dw_position *position,
                         const dw_proven *proven, dw_error *err);

/* Does the stores. *TORN: it failed, and some may be done. */
dw_status dw_memory_store(dw_target *target, bool *torn, dw_error *err);

/* ---- target_dir.c ---- */

/* Maps a patch file, checks it against the files, and reserves disk space for its
 * stores. */
dw_status dw_target_load_patch(dw_target *target, const char *path, dw_error *err);

/* The parts of the verbs that concern the files: not the record, nor the block. */
dw_status dw_target_name_patch(dw_target *target, dw_error *err);
dw_status dw_target_scatter(dw_target *target, dw_error *err);
dw_status dw_target_sync_files(dw_target *target, bool sweep, dw_error *err);

/* ---- target_open.c ---- */

/* Writes the version of the weights to the control block. */
void dw_target_update_control(const dw_target *target);

/* Maps the checkpoint of the directory. */
dw_status dw_target_map_dir(dw_target *target, dw_error *err);

/* ---- target_recover.c ---- */

/* Locks and maps the files of the checkpoint at PATH, and finishes an interrupted
 * update. */
dw_status dw_target_open_files(dw_target *target, const char *path, bool only_recover,
                               bool *recovered, dw_error *err);
void dw_target_close_files(dw_target *target);

/* ---- target_file.c ---- */

/* Makes the file of the weights, and maps it. */
dw_status dw_target_fill_dir(dw_target *target, const dw_position *position,
                             dw_fill_fn source, void *context, dw_error *err);

#endif
