/* Which checkpoint a path means, the files beside it, and its lock. */
#ifndef DW_WEIGHTS_CHECKPOINT_TARGET_H
#define DW_WEIGHTS_CHECKPOINT_TARGET_H

#include <stdbool.h>

#include "deltawire/checkpoint.h"

/* A checkpoint, by whatever path it was named, with links resolved. Its identity is its
 * directory if it has an index, else its only file. The patch file is
 * DIR/.deltawire/patch or DIR/.deltawire/FILE.patch; the staged file has the same name
 * with `staged`. The lock is on the first file, so that no lock file is left behind. */
typedef struct dw_target_files {
    char *path; /* as named */
    char *identity;
    char *dir; /* that holds the files */
    char *own; /* DIR/.deltawire */
    char *patch_path;
    char *staged_path;
    char *lock_path;
    int lock;            /* -1: not taken */
    dw_checkpoint *ckpt; /* mapped for writing, or NULL */
} dw_target_files;

/* Finds the checkpoint that PATH names, without taking the lock. */
dw_status dw_target_files_find(dw_target_files *out, const char *path, dw_error *err);

/* DW_CONFLICT if another holder has the lock, in this process or any other. */
dw_status dw_target_files_lock(dw_target_files *target, dw_error *err);

#define DW_WEIGHTS_NAME "model.safetensors"

/* Whether an apply to the checkpoint was interrupted, so that its weights may be half
 * written: there is a patch file, unless the record of its directory (position.h) is good
 * and names none. */
dw_status dw_target_files_pending(const dw_target_files *target, bool *pending,
                                  dw_error *err);

/* Whether that apply may be finished: the record names this very patch, or there is no
 * record. */
dw_status dw_target_files_may_finish(const dw_target_files *target, bool *may,
                                     dw_error *err);

/* Removes the patch and staged files of the checkpoint in DIR. No such file may be there
 * when new weights get their name: the next open would apply it to them. */
dw_status dw_target_remove_patch(const char *dir, dw_error *err);

/* Closes the checkpoint, then releases the lock. */
void dw_target_files_release(dw_target_files *target);

#endif
