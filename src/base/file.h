/* Files that appear whole or not at all. */
#ifndef DW_BASE_FILE_H
#define DW_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/map.h"
#include "deltawire/error.h"

/* Whether PATH is a plain name of the file that is open as FD, and its only one. */
bool dw_file_is_own(int fd, const char *path);

/* The process that holds a flock() on the file that is open as FD; 0 if that cannot be
 * found out. */
long dw_lock_holder(int fd);

/* Sets *EXISTS; only a path that cannot be looked at is an error. */
dw_status dw_file_exists(const char *path, bool *exists, dw_error *err);

/* A new file under construction. An existing PATH must be a regular file; a symbolic
 * link is replaced, not followed. Nothing stands under PATH until commit, which
 * syncs the data, renames, and syncs the directory; abort removes the temporary
 * file. A process that is killed leaves at most `PATH.tmp-PID-N` behind. */
typedef struct dw_new_file {
    int fd;
    char *path;
    char *temporary;
    uint64_t n_bytes;
} dw_new_file;

dw_status dw_new_file_open(dw_new_file *out, const char *path, dw_error *err);
dw_status dw_new_file_write(dw_new_file *file, const void *bytes, size_t n_bytes,
                            dw_error *err);
/* Positioned; several threads may write at once. Does not move n_bytes. */
dw_status dw_new_file_write_at(dw_new_file *file, uint64_t offset, const void *bytes,
                               size_t n_bytes, dw_error *err);
/* Takes room for N_BYTES, so that a full disk is noticed before anything is written. */
dw_status dw_new_file_reserve(dw_new_file *file, uint64_t n_bytes, dw_error *err);
dw_status dw_new_file_commit(dw_new_file *file, dw_error *err);
void dw_new_file_abort(dw_new_file *file);

/* Makes PATH a reflink of the file that is open as FD. Both share their blocks until one
 * of them is written. DW_UNSUPPORTED if the filesystem has no reflinks. */
dw_status dw_clone_file(int fd, const char *path, dw_error *err);

/* Makes PATH a copy of the file that is open as FD: whole and synced, or not at all. The
 * copy shares the blocks of the file if the filesystem can do that (reflinks). If not,
 * the room is taken before the first byte is written. */
dw_status dw_copy_file(int fd, const char *path, dw_error *err);

/* A whole file at once. */
dw_status dw_write_file(const char *path, const void *bytes, size_t n_bytes,
                        dw_error *err);

/* Reads a whole regular file of at most LIMIT bytes; dw_free *BYTES. For files that
 * others may shorten at any time: nothing is mapped. */
dw_status dw_read_file(uint8_t **bytes, size_t *n_bytes, const char *path, size_t limit,
                       dw_error *err);

/* Makes the directory PATH and those above it that are missing, with MODE, durably. False:
 * see errno, which is EEXIST if a part of PATH is something else than a directory. */
bool dw_make_dirs(const char *path, mode_t mode);

/* Makes the names in the directory that holds PATH durable. */
dw_status dw_sync_parent(const char *path, dw_error *err);

/* Renames, inside one directory. Durable after dw_sync_parent. */
dw_status dw_rename_file(const char *from, const char *to, dw_error *err);

/* Makes TO another name of the file FROM, or a synced copy of it where there can be none.
 * TO must not be there. */
dw_status dw_link_file(const char *from, const char *to, dw_error *err);

/* Makes PATH a symbolic link to TARGET, in place of whatever file or link it was: at no
 * instant it is neither. Durable after dw_sync_parent. */
dw_status dw_symlink_file(const char *target, const char *path, dw_error *err);

/* Removes PATH, and makes that durable. A missing file is no error. */
dw_status dw_remove_file(const char *path, dw_error *err);

/* Removes what killed processes left of PATH under construction. Whoever calls this must
 * know that nobody is writing PATH now. */
void dw_remove_leftovers(const char *path);

bool dw_name_ends(const char *name, const char *end);

/* DIR/NAME, to be freed with dw_free; NULL when out of memory. */
char *dw_join_path(const char *dir, const char *name);

/* The directory that holds PATH, "." for a plain name; dw_free. Slashes at the end of PATH
 * do not count. */
char *dw_parent_path(const char *path);

#endif
