/* file://DIR, a store in a directory.
 *
 *     DIR/KEY           an object; slashes of the key are directories
 *     DIR/.deltawire~/  objects under construction; no key contains '~'
 *
 * An object is written to a temporary file, synced, and then linked (create) or renamed
 * (replace) to its name. The directory is synced before the put returns. So a name always
 * belongs to a whole and durable object, and only one writer wins a create. A killed
 * process can leave a directory that was made but not synced, so a put syncs every
 * directory on the path of its key.
 *
 * Below DIR no symbolic link is followed, so that nobody can lead a key out of DIR.
 *
 * The first put makes DIR. Once a stream is open (`require`), DIR is never made again: it
 * may be a mount point whose file system is away. Each call opens DIR by its path and
 * looks for the required object. If that is missing, the store is absent. A write also
 * compares device and inode with those of the last call.
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
    atomic_bool
        prepared; /* a put of this handle has made the root and removed old drafts */

    pthread_mutex_t lock; /* guards what follows */
    char *required;       /* the key that the root must hold; NULL: it may be made */
    dev_t device;         /* of the root that the last call saw */
    ino_t inode;
} dw_dir;

/* For a failed system call on KEY (may be ""): appends the text of errno and the next
 * step.
 */
dw_status dw_dir_fail(const dw_dir *d, const char *key, const char *doing, dw_error *err);

/* The same with a text for the fault. */
dw_status dw_dir_fail_text(const dw_dir *d, dw_status code, const char *key,
                           const char *fault, dw_error *err);

/* What the root is opened for. */
typedef enum dw_dir_use { DW_DIR_READ, DW_DIR_WRITE } dw_dir_use;

/* Opens the root; -1 with errno. ESTALE: the store is absent or, for a write, another
 * directory replaced it since the last call. */
int dw_dir_open_root(dw_dir *d, dw_dir_use use);

/* Opens a directory below FD, but no link; -1 with errno. */
int dw_dir_open_below(int fd, const char *name);

/* Opens the directory below ROOT that holds KEY, and points NAME at the last part of KEY;
 * -1 with errno. Owns ROOT, which may be -1 with errno. With MAKE it makes missing
 * directories, and makes all of them durable. */
int dw_dir_open_parent(int root, const char *key, bool make, const char **name);

/* fsync of a directory; 0 if the filesystem does not support it. */
int dw_dir_sync(int fd);

dw_status dw_dir_put(void *self, const char *key, const dw_source *source,
                     dw_put_mode mode, const dw_progress *progress, dw_error *err);
dw_status dw_dir_list(void *self, const char *prefix, const char *after, dw_list_fn fn,
                      void *context, dw_error *err);

#endif
