#include "cache_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "hash.h"
#include "path.h"

#define HASH_DIGITS 16

/* The parts with line ends between them, on the heap. */
static char *join(const char *const *parts, size_t n_parts)
{
    size_t n_bytes = 1;
    for (size_t i = 0; i < n_parts; i++)
        n_bytes += (parts[i] ? strlen(parts[i]) : 0) + 1;
    char *text = calloc(n_bytes, 1);
    for (size_t i = 0; text && i < n_parts; i++) {
        strcat(text, i > 0 ? "\n" : "");
        strcat(text, parts[i] ? parts[i] : "");
    }
    return text;
}

char *cli_cache_dir(const char *kind, const char *const *parts, size_t n_parts,
                    const char *option, dw_error *err)
{
    char digits[HASH_DIGITS + 1], name[2 * HASH_DIGITS + 64];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool own = cache && cache[0] == '/';
    if (!own && !home) {
        cli_error_set(err, DW_INVALID, option,
                      "neither HOME nor XDG_CACHE_HOME is set: name a directory");
        return NULL;
    }
    char *text = join(parts, n_parts), *path = NULL;
    if (text) {
        cli_hash_text(digits, HASH_DIGITS, text);
        snprintf(name, sizeof name, "%sdeltawire/%s/%s", own ? "" : ".cache/", kind,
                 digits);
        path = cli_path_join(own ? cache : home, name);
    }
    free(text);
    if (!path)
        cli_error_set(err, DW_NO_MEMORY, option, "out of memory");
    return path;
}
