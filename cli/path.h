/* Paths, and whether there can be a new file at one. */
#ifndef CLI_PATH_H
#define CLI_PATH_H

#include <deltawire/error.h>

#define CLI_TEMPORARY ".tmp-" /* after the name of what is under construction */

/* DIR/NAME on the heap, or NULL. */
char *cli_path_join(const char *dir, const char *name);

/* The directory that PATH stands in, on the heap, or NULL. */
char *cli_path_parent(const char *path);

/* The N-th temporary name beside PATH, PATH.tmp-PID-N as the library has it, on the heap,
 * or NULL. Any of them may be taken. */
char *cli_path_temporary(const char *path, unsigned n);

/* Fails where no file can be made at PATH, or one there be replaced: to be told before
 * the long work, not after it. */
dw_status cli_path_check_output(const char *path, dw_error *err);

/* Makes the directory and those above it, where they are not there, for this user alone.
 */
dw_status cli_path_make_directories(const char *path, dw_error *err);

#endif
