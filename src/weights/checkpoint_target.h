/* Which checkpoint a path means, the files beside it, and its lock. */
#ifndef DW_WEIGHTS_CHECKPOINT_TARGET_H
#define DW_WEIGHTS_CHECKPOINT_TARGET_H

#include <stdbool.h>
#include <sys/stat.h>

#include "deltawire/checkpoint.h"

/* A checkpoint, by whatever path it was named, with links resolved. Its identity is its
 * directory if it has an index, else its only file. The patch file is
 * DIR/.deltawire-patch or FILE.deltawire-patch; the staged file has the same name with
 * .deltawire-staged. The lock is on the first file, so that no lock file is left behind.
 *
 * Weights that are kept elsewhere, in memory for instance, are a file of the name
 * *.deltawire-weights that model.safetensors is a link to. The patch file and the staged
 * file are then in the directory of the link. */
typedef struct dw_target {
    char *path; /* as named */
    char *identity;
    char *patch_path;
    char *staged_path;
    char *lock_path;
    int lock;            /* -1: not taken */
    dw_checkpoint *ckpt; /* mapped for writing, or NULL */
} dw_target;

/* Finds the checkpoint that PATH names, without taking the lock. */
dw_status dw_target_identify(dw_target *out, const char *path, dw_error *err);

/* DW_CONFLICT if another holder has the lock, in this process or any other. */
dw_status dw_target_lock(dw_target *target, dw_error *err);

#define DW_WEIGHTS_NAME   "model.safetensors"
#define DW_WEIGHTS_SUFFIX ".deltawire-weights"

/* Whether PATH is a link to weights that are kept elsewhere, which may be gone. */
bool dw_is_kept_elsewhere(const char *path);

/* The end of the name of such a file: the device and the inode of the directory that it
 * is kept for. A copy of the directory has another inode, so the file is not its own. */
#define DW_KEPT_ENDING_SIZE 64
void dw_kept_ending(char ending[DW_KEPT_ENDING_SIZE], const struct stat *dir);

/* Whether PATH is a link to a regular file that is kept for the directory of PATH. Sets
 * *FILE to the lstat of that file: only this first link is followed. */
bool dw_is_kept_for(const char *path, struct stat *file);

/* Removes the patch and staged files of the checkpoint in DIR. No such file may be there
 * when new weights get their name: the next open would apply it to them. */
dw_status dw_target_remove_patch(const char *dir, dw_error *err);

/* If PATH is a link to weights that are kept elsewhere, removes it and the patch beside
 * it in two cases: the weights are gone, as after a reboot; or they belong to another
 * directory and an apply was interrupted, so that they are no version to copy. */
dw_status dw_target_forget_lost(const char *path, dw_error *err);

/* Closes the checkpoint, then releases the lock. */
void dw_target_release(dw_target *target);

#endif
