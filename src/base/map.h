/* Mapped files.
 *
 * If a mapped file shrinks, a touch of its lost pages raises SIGBUS, and the process
 * dies. So this module lists every mapping. Code that handles bytes that may be mapped
 * uses dw_map_read, dw_map_store and dw_map_copy. For plain memory they do nothing
 * special. For bytes of a mapped file the kernel copies, and it reports lost pages as an
 * error. If the host installed the guard (deltawire/guard.h), they use the mapping
 * itself.
 */
#ifndef DW_BASE_MAP_H
#define DW_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/error.h"

typedef struct dw_mapped dw_mapped; /* an entry of the list */

typedef struct dw_map {
    uint8_t *bytes; /* NULL for an empty file */
    size_t n_bytes;
    int fd; /* kept open while mapped; -1 when closed */
    dw_mapped *entry;
} dw_map;

/* Maps a whole regular file; WRITABLE maps it shared. */
dw_status dw_map_open(dw_map *out, const char *path, bool writable, dw_error *err);
/* Maps the first N_BYTES of FD, which stays the caller's. PATH is for errors. */
dw_status dw_map_open_fd(dw_map *out, int fd, size_t n_bytes, bool writable,
                         const char *path, dw_error *err);
dw_status dw_map_sync(dw_map *map, const char *path, dw_error *err);
void dw_map_close(dw_map *map);

/* DW_IO if the file is now shorter than its mapping, or if the guard had to replace one
 * of its pages. Such a mapping stays bad until it is closed. */
dw_status dw_map_check(const dw_map *map, dw_error *err);

/* Makes room on the disk for stores through a writable map. A page that is a hole, or
 * shared with a copy of the file, needs a block at its first store, and a full disk would
 * then raise SIGBUS. */
dw_status dw_map_reserve(dw_map *map, const char *path, dw_error *err);

/* Makes the pages of BYTES present, and writable if WRITE, so that the next access causes
 * no page fault. Ignores errors: that access will report them. */
void dw_pages_prepare(void *bytes, size_t n_bytes, bool write);

/* ---- bytes that may be in a mapped file ---- */

/* Room for copies of bytes. Starts as {0} and grows as needed. */
typedef struct dw_loan {
    uint8_t *bytes;
    size_t n_room;
} dw_loan;

dw_status dw_loan_reserve(dw_loan *loan, size_t n_bytes, dw_error *err);
void dw_loan_release(dw_loan *loan);

/* Sets *OUT to the N_BYTES at BYTES, or to a copy of them in LOAN. Fails with DW_IO and
 * the name of the file if it is too short. */
dw_status dw_map_read(const void **out, dw_loan *loan, const void *bytes, size_t n_bytes,
                      dw_error *err);

/* Copies FROM, which is plain memory, to TO, which may be in a mapped file. */
dw_status dw_map_store(void *to, const void *from, size_t n_bytes, dw_error *err);

/* Copies; both may be in mapped files. */
dw_status dw_map_copy(void *to, const void *from, size_t n_bytes, dw_error *err);

/* Whether BYTES may be accessed directly: they are in no mapped file, or the host
 * installed the guard. */
bool dw_map_may_touch(const void *bytes);

/* The error of a system call that reported a bad address for BYTES: names the mapped file
 * that lost them. DW_OK if they are in none. */
dw_status dw_map_explain(const void *bytes, dw_error *err);

/* With the guard, a read may get zeros in place of the lost part of a file; inside a page
 * there is not even a signal. So every use of the functions above, and every other access
 * to a mapping, happens between these two calls. If the second one fails, discard what
 * was read. They nest. dw_parallel calls them for each item, dw_map_copy for itself. */
#define DW_MAP_USES 8

typedef struct dw_map_uses {
    dw_mapped *entries[DW_MAP_USES]; /* touched by this thread */
    unsigned n;
} dw_map_uses;

dw_map_uses dw_map_begin(void);
dw_status dw_map_end(const dw_map_uses *outer, dw_error *err);

/* ---- for the guard ---- */

/* Whether the guard's handler is the one that SIGBUS calls now. */
bool dw_guard_is_active(void);

/* The entry whose mapping holds ADDRESS, or NULL. Safe in a signal handler. */
dw_mapped *dw_mapped_find(const void *address);

/* The size of the pages of its mapping, and its file. Safe in a signal handler while the
 * mapping is in use. */
size_t dw_mapped_page(const dw_mapped *entry);
const char *dw_mapped_path(const dw_mapped *entry);

/* Notes that this thread met a lost page. Safe in a signal handler. */
void dw_mapped_lose(dw_mapped *entry);

#endif
