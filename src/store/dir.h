/* file://DIR, a store in a directory.
 *
 *     DIR/KEY           an object; slashes of the key are directories
 *     DIR/.deltawire~/  objects under construction; '~' stands in no key
 *
 * An object is written under construction, synced, and then linked (create) or renamed
 * (replace) to its name; the directory is synced before the put returns. So a name leads
 * to a whole and durable object at any time, and a create is won by one writer alone.
 * Since a killed process can leave a directory that was made but not synced, a put syncs
 * every directory on the way to its key, whoever made it.
 *
 * Below DIR no symbolic link is followed, so that what a stranger put there leads nowhere
 * else.
 */
#ifndef DW_STORE_DIR_H
#define DW_STORE_DIR_H

#include <stdatomic.h>

#include "deltawire/store.h"

/* URL is file:///DIR or a plain path. */
dw_status dw_dir_store_open(dw_store **out, const char *url, dw_error *err);

/* ---- shared by dir.c, dir_put.c and dir_list.c ---- */

#define DW_DIR_TEMPORARY ".deltawire~"

typedef struct dw_dir {
    char *root; /* absolute */
    char *url;
    atomic_bool prepared; /* a put of this handle has made the root and tidied */
} dw_dir;

/* For a failed system call on KEY (may be ""): appends what errno says, and what to do.
 */
dw_status dw_dir_fail(const dw_dir *d, const char *key, const char *doing, dw_error *err);

/* The same with a fault in words. */
dw_status dw_dir_fail_text(const dw_dir *d, dw_status code, const char *key,
                           const char *fault, dw_error *err);

/* Opens a directory below FD, no link; -1 with errno. */
int dw_dir_open_below(int fd, const char *name);

/* Opens the directory that holds KEY and points NAME at the last part of it; -1 with
 * errno. MAKE makes what is missing, and makes all of them durable. */
int dw_dir_open_parent(const dw_dir *d, const char *key, bool make, const char **name);

/* fsync of a directory, or 0 where the filesystem has no such thing. */
int dw_dir_sync(int fd);

dw_status dw_dir_put(void *self, const char *key, const dw_source *source,
                     dw_put_mode mode, const dw_progress *progress, dw_error *err);
dw_status dw_dir_list(void *self, const char *prefix, const char *after, dw_list_fn fn,
                      void *context, dw_error *err);

#endif
