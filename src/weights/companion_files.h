/* The companion files that a follower installs in a directory: the small files of a
 * version, such as config.json (stream/record_files.h).
 *
 * A directory may have files of its user too, and these are never touched. A file is ours
 * only if the list L has its name, its size and its SHA-256. If the user changed a file,
 * put another in its place or made it a link, it is the user's.
 *
 * FILES
 *
 *     F   the companion files
 *     T   .deltawire/file-N: a file that was fetched and is not installed yet
 *     L   .deltawire/files.json: the files that are ours and, during an install, those
 *         that will be (companion_list.h)
 *
 * VERBS
 *
 *     plan      compare F with the files of a version; write nothing
 *     stage     write a T, and sync it
 *     install   L names also the new files; each T becomes its F; ours that the version
 *               does not have are removed; then L names only what is there
 *
 * Before the install F and L are as before. A crash during it leaves each F old or new,
 * and L names both, so nothing that we made is taken for the user's. The next open
 * removes each T that is left, and the next plan goes on from there.
 */
#ifndef DW_WEIGHTS_COMPANION_FILES_H
#define DW_WEIGHTS_COMPANION_FILES_H

#include "stream/record_files.h"

#define DW_COMPANION_LIST_NAME ".deltawire/files.json"

typedef struct dw_companion_dir dw_companion_dir;

/* Removes what a killed process left staged. The caller has locked the directory. */
dw_status dw_companion_dir_open(dw_companion_dir **out, const char *dir, dw_error *err);

/* Removes what is staged. Accepts NULL. */
void dw_companion_dir_close(dw_companion_dir *d);

/* Removes what a process that was killed left in DIR, for one that installs no files. */
void dw_companion_tidy(const char *dir);

/* Compares the directory with GOAL, the files of a version, which are copied. Drops what
 * is staged. DW_INVALID if a name is none for a companion file. */
dw_status dw_companion_plan(dw_companion_dir *d, const dw_file_list *goal, dw_error *err);

/* Whether the bytes of the I-th file of the goal are needed. */
bool dw_companion_needs(const dw_companion_dir *d, size_t i);

/* Writes the bytes of the I-th file, which has their size and SHA-256, next to it. */
dw_status dw_companion_stage(dw_companion_dir *d, size_t i, const void *bytes,
                             dw_error *err);

typedef struct dw_companion_counts {
    uint64_t n_installed;
    uint64_t n_removed;
} dw_companion_counts;

/* Installs what is staged, removes what the version does not have, and adds up what was
 * done. If it fails, plan again. */
dw_status dw_companion_install(dw_companion_dir *d, dw_companion_counts *counts,
                               dw_error *err);

/* Whether the I-th file of the goal is not installed because the user has another file,
 * a link or a directory of that name. */
bool dw_companion_kept(const dw_companion_dir *d, size_t i);

#endif
