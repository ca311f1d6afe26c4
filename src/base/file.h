/* Files that appear whole or not at all. */
#ifndef DW_BASE_FILE_H
#define DW_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/map.h"
#include "deltawire/base.h"

/* Whether PATH is the only name of the file that is open as FD, and no symbolic link. */
bool dw_file_is_own(int fd, const char *path);

/* A number for the file PATH below the open directory DIR, or for DIR itself if PATH is
 * "". Another file of that name, a copy too, has another number; it does not depend on
 * the mount. 0 if there is no such file. */
uint64_t dw_file_identity(int dir, const char *path);

/* The process that holds a flock() on the file that is open as FD; 0 if it is not known.
 */
long dw_lock_holder(int fd);

/* Sets *EXISTS. It is an error only if the path cannot be examined. */
dw_status dw_file_exists(const char *path, bool *exists, dw_error *err);

/* A new file under construction. An existing PATH must be a regular file; a symbolic link
 * is replaced, not followed. PATH stays as it is until commit, which syncs the data,
 * renames, and syncs the directory. Abort removes the temporary file. A process that is
 * killed leaves at most `PATH.tmp-PID-N` behind. */
#define DW_TEMPORARY ".tmp-"

typedef struct dw_new_file {
    int fd;
    char *path;
    char *temporary;
    uint64_t n_bytes;
} dw_new_file;

dw_status dw_new_file_open(dw_new_file *out, const char *path, dw_error *err);
/* The same, but the temporary file is `VIA.tmp-PID-N`, on the filesystem of PATH. */
dw_status dw_new_file_open_via(dw_new_file *out, const char *path, const char *via,
                               dw_error *err);
dw_status dw_new_file_write(dw_new_file *file, const void *bytes, size_t n_bytes,
                            dw_error *err);
/* Writes at an offset. Several threads may write at once. Does not change n_bytes. */
dw_status dw_new_file_write_at(dw_new_file *file, uint64_t offset, const void *bytes,
                               size_t n_bytes, dw_error *err);
dw_status dw_new_file_commit(dw_new_file *file, dw_error *err);
void dw_new_file_abort(dw_new_file *file);

/* Makes PATH, via VIA, a copy of the file that is open as FD: whole and synced, or not at
 * all. The copy shares the blocks of the file if the filesystem can do that (reflinks).
 * If not, the room is allocated before the first write. */
dw_status dw_copy_file(int fd, const char *path, const char *via, dw_error *err);

/* Writes a whole file. */
dw_status dw_write_file(const char *path, const void *bytes, size_t n_bytes,
                        dw_error *err);

/* Reads a whole regular file of at most LIMIT bytes; dw_free *BYTES. For files that
 * others may shorten at any time: nothing is mapped. */
dw_status dw_read_file(uint8_t **bytes, size_t *n_bytes, const char *path, size_t limit,
                       dw_error *err);

/* Makes the directory PATH and missing ones above it, with MODE, durably. Returns false
 * with errno, which is EEXIST if a part of PATH is not a directory. */
bool dw_make_dirs(const char *path, mode_t mode);

/* Makes the names in the directory that holds PATH durable. */
dw_status dw_sync_parent(const char *path, dw_error *err);

/* Renames, inside one filesystem. Durable after dw_sync_parent. */
dw_status dw_rename_file(const char *from, const char *to, dw_error *err);

/* Removes PATH, and makes that durable. A missing file is no error. */
dw_status dw_remove_file(const char *path, dw_error *err);

/* Removes temporary files of PATH that killed processes left. The caller must know that
 * nobody is writing PATH now. */
void dw_remove_leftovers(const char *path);

bool dw_name_ends(const char *name, const char *end);

/* DIR/NAME, to be freed with dw_free; NULL when out of memory. */
char *dw_join_path(const char *dir, const char *name);

/* The directory that holds PATH, "." for a plain name; dw_free. Slashes at the end of
 * PATH do not count. */
char *dw_parent_path(const char *path);

#endif
