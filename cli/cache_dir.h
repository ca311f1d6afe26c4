/* Directories in the user's cache: what can be made anew, kept for the next start. */
#ifndef CLI_CACHE_DIR_H
#define CLI_CACHE_DIR_H

#include <stddef.h>

#include <deltawire/error.h>

/* ~/.cache/deltawire/KIND/HASH, the hash of PARTS, each of which may be NULL; on the
 * heap. NULL with ERR filled, which tells to give OPTION instead. */
char *cli_cache_dir(const char *kind, const char *const *parts, size_t n_parts,
                    const char *option, dw_error *err);

#endif
