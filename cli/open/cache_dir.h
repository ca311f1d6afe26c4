/* Directories in the user's cache: copies of models that can be made again, kept for the
 * next start.
 *
 *     ~/.cache/deltawire/baselines/HASH    the copy that `publish` compares with
 *     ~/.cache/deltawire/mirrors/HASH      the copies of `mirror`
 *
 * Each holds a note, .deltawire-cache, with the URL it is for. A process that uses the
 * directory holds a shared lock on the note. `deltawire cache --prune` removes a
 * directory only if it gets the exclusive lock.
 */
#ifndef CLI_CACHE_DIR_H
#define CLI_CACHE_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <deltawire/base.h>

/* Returns ~/.cache/deltawire/KIND/HASH, with the hash of PARTS, each of which may be
 * NULL. Free it with dw_free. After an error it returns NULL, and ERR advises to give
 * OPTION. */
char *cli_cache_dir(const char *kind, const char *const *parts, size_t n_parts,
                    const char *option, dw_error *err);

typedef struct cli_cache_state {
    bool is_new;      /* it is still empty */
    bool same_parent; /* the parent directory of a directory store is the same as at the
                        last use. If the stream is gone, it was then removed, not
                        unmounted or moved. Always true for other stores */
} cli_cache_state;

/* Makes the directory if needed, and locks it until this process ends. */
dw_status cli_cache_use(const char *dir, const char *url, cli_cache_state *out,
                        dw_error *err);

/* Locks the directory, if it exists, before its first use. */
void cli_cache_hold(const char *dir);

/* Notes the time, and that the copy in DIR is of the stream that is at URL now. */
dw_status cli_cache_note(const char *dir, const char *url, dw_error *err);

/* Renames DIR to DIR.of-TIME: its copy is of a stream that was removed. */
dw_status cli_cache_set_aside(const char *dir, dw_error *err);

typedef struct cli_cached {
    char *path;
    char *url;        /* "" if it is not known: its note is lost */
    uint64_t n_bytes; /* on disk */
    time_t t_used;
    bool is_aside; /* its stream was replaced by another one at the same URL */
    bool in_use;
} cli_cached;

/* Lists the cache, sorted by path. Free the list with cli_cache_free. */
dw_status cli_cache_list(cli_cached **out, size_t *n, dw_error *err);
void cli_cache_free(cli_cached *list, size_t n);

/* Removes a directory with its contents. DW_CONFLICT if it is in use. */
dw_status cli_cache_remove(const cli_cached *cached, dw_error *err);

#endif
