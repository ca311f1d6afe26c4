/* file://DIR, a store in a directory.
 *
 *     DIR/KEY           an object; slashes of the key are directories
 *     DIR/.deltawire~/  objects under construction; '~' stands in no key
 *
 * An object is written under construction, synced, and then linked (create) or renamed
 * (replace) to its name; the directory is synced before the put returns. So a name leads
 * to a whole and durable object at any time, and a create is won by only one writer.
 * Since a killed process can leave a directory that was made but not synced, a put syncs
 * every directory on the way to its key, whoever made it.
 *
 * Below DIR no symbolic link is followed, so that what a stranger put there leads nowhere
 * else.
 *
 * The first put makes DIR. Once a stream is open (`require`), DIR is never made again: it
 * may be a mount point whose file system is away. Each call opens DIR by its path and
 * looks for the required object: if it is missing, the store is absent. A write also
 * compares device and inode with those that the call before saw.
 */
#ifndef DW_STORE_DIR_H
#define DW_STORE_DIR_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "deltawire/store.h"

/* URL is file:///DIR or a plain path. */
dw_status dw_dir_store_open(dw_store **out, const char *url, dw_error *err);

/* ---- shared by dir.c, dir_put.c and dir_list.c ---- */

#define DW_DIR_TEMPORARY ".deltawire~"

typedef struct dw_dir {
    char *root; /* absolute */
    char *url;
    atomic_bool prepared; /* a put of this handle has made the root and tidied */

    pthread_mutex_t lock; /* guards what follows */
    char *required;       /* the key that the root must hold; NULL: it may be made */
    dev_t device;         /* of the root that the last call saw */
    ino_t inode;
} dw_dir;

/* For a failed system call on KEY (may be ""): appends what errno says, and what to do.
 */
dw_status dw_dir_fail(const dw_dir *d, const char *key, const char *doing, dw_error *err);

/* The same with a fault in words. */
dw_status dw_dir_fail_text(const dw_dir *d, dw_status code, const char *key,
                           const char *fault, dw_error *err);

/* What the root is opened for. */
typedef enum dw_dir_use { DW_DIR_READ, DW_DIR_WRITE } dw_dir_use;

/* Opens the root; -1 with errno. ESTALE: the store is absent, or, for a write, another
 * directory came in its place since the last call. */
int dw_dir_open_root(dw_dir *d, dw_dir_use use);

/* Opens a directory below FD, no link; -1 with errno. */
int dw_dir_open_below(int fd, const char *name);

/* Opens the directory below ROOT that holds KEY and points NAME at the last part of it;
 * -1 with errno. Takes ROOT, which may be -1 with errno. MAKE makes what is missing, and
 * makes all of them durable. */
int dw_dir_open_parent(int root, const char *key, bool make, const char **name);

/* fsync of a directory, or 0 if the filesystem has no such thing. */
int dw_dir_sync(int fd);

dw_status dw_dir_put(void *self, const char *key, const dw_source *source,
                     dw_put_mode mode, const dw_progress *progress, dw_error *err);
dw_status dw_dir_list(void *self, const char *prefix, const char *after, dw_list_fn fn,
                      void *context, dw_error *err);

#endif
