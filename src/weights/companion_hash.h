/* The bytes of a file in a directory that its user may change at any time. */
#ifndef DW_WEIGHTS_COMPANION_HASH_H
#define DW_WEIGHTS_COMPANION_HASH_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/hash.h"

/* Hashes the regular file PATH. *IS_FILE is false if it is none, or cannot be read; a
 * link is none. ST is its status when it was opened, and *IS_STILL says that it was the
 * same after the last byte: otherwise the hash is that of no file. */
dw_status dw_companion_hash(uint8_t sha256[DW_SHA256_BYTES], struct stat *st,
                            bool *is_file, bool *is_still, const char *path,
                            dw_error *err);

/* Whether both are of one file that did not change in between, judged by its times. */
bool dw_companion_same_status(const struct stat *a, const struct stat *b);

#endif
