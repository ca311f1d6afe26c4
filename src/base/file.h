/* Files: read-only and shared maps, and files that appear whole or not at all. */
#ifndef DW_BASE_FILE_H
#define DW_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/error.h"

typedef struct dw_map {
    uint8_t *bytes; /* NULL for an empty file */
    size_t n_bytes;
    int fd; /* kept open while mapped; -1 when closed */
} dw_map;

/* Maps a whole regular file; WRITABLE maps it shared. */
dw_status dw_map_open(dw_map *out, const char *path, bool writable, dw_error *err);
dw_status dw_map_sync(dw_map *map, const char *path, dw_error *err);
void dw_map_close(dw_map *map);

/* Makes room on the disk for stores through a writable map: a page that is a hole, or
 * shared with a copy of the file, needs a block of its own when it is first stored to,
 * and a full disk would then raise SIGBUS. */
dw_status dw_map_reserve(dw_map *map, const char *path, dw_error *err);

/* Makes the pages of BYTES present, and writable where WRITE, so that the next touch of
 * them costs no fault. Where the system has no call for it they are touched here. A
 * mapped range of this process, whole or not. What fails is left to that touch. */
void dw_pages_prepare(void *bytes, size_t n_bytes, bool write);

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
dw_status dw_new_file_commit(dw_new_file *file, dw_error *err);
void dw_new_file_abort(dw_new_file *file);

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

/* DIR/NAME, to be freed with dw_free; NULL when out of memory. */
char *dw_join_path(const char *dir, const char *name);

/* The directory part of PATH ("." where there is none); dw_free. */
char *dw_parent_path(const char *path);

#endif
