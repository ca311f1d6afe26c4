/* Mapped files.
 *
 * If a mapped file shrinks, a touch of its lost pages raises SIGBUS, and the process
 * dies. So only own files are touched: those mapped for writing, which their owner locks.
 * A file of others is mapped for its addresses only, and this module lists it. Code that
 * handles bytes that may be in one uses dw_map_read, which reads them with pread and
 * reports a short file as an error. For all other memory it does nothing.
 */
#ifndef DW_BASE_MAP_H
#define DW_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deltawire/base.h"

typedef struct dw_mapped dw_mapped; /* an entry of the list */

typedef struct dw_map {
    uint8_t *bytes; /* NULL for an empty file */
    size_t n_bytes;
    int fd; /* kept open while mapped; -1 when closed */
    dw_mapped *entry;
} dw_map;

/* Maps a whole regular file; WRITABLE maps it shared, as an own file. */
dw_status dw_map_open(dw_map *out, const char *path, bool writable, dw_error *err);
/* Maps the first N_BYTES of FD, which stays the caller's. PATH is for errors. */
dw_status dw_map_open_fd(dw_map *out, int fd, size_t n_bytes, bool writable,
                         const char *path, dw_error *err);
dw_status dw_map_sync(dw_map *map, const char *path, dw_error *err);
void dw_map_close(dw_map *map);

/* DW_IO if the file is now shorter than its mapping. */
dw_status dw_map_check(const dw_map *map, dw_error *err);

/* Makes room on the disk for stores through a writable map. A page that is a hole, or
 * shared with a copy of the file, needs a block at its first store, and a full disk would
 * then raise SIGBUS. */
dw_status dw_map_reserve(dw_map *map, const char *path, dw_error *err);

/* Makes the pages of BYTES present, and writable if WRITE, so that the next access causes
 * no page fault. Ignores errors: that access will report them. */
void dw_pages_prepare(void *bytes, size_t n_bytes, bool write);

/* ---- bytes that may be in a file of others ---- */

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

/* Makes the elements of ELEMS from the first of the N ascending POSITIONS to the last
 * readable. *OUT points to where element 0 would be, so that positions can be used as
 * indices. */
dw_status dw_map_read_positions(const uint8_t **out, dw_loan *loan, const void *elems,
                                const uint32_t *positions, size_t n, unsigned width,
                                dw_error *err);

/* Copies FROM, which may be in a file of others, to TO, which may not. */
dw_status dw_map_copy(void *to, const void *from, size_t n_bytes, dw_error *err);

/* The error of a system call that reported a bad address for BYTES: names the file of
 * others that lost them. DW_OK if they are in none. */
dw_status dw_map_explain(const void *bytes, dw_error *err);

#endif
