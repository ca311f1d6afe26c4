#define _GNU_SOURCE /* renameat2 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/process.h"
#include "store/dir.h"
#include "store/store.h"

#define PIECE     ((size_t)1 << 20)
#define NAME_SIZE 96
#define ONE_DAY_S (24 * 60 * 60)

/* An object under construction. */
typedef struct draft {
    int dir; /* DIR/.deltawire~ */
    int fd;
    char name[NAME_SIZE]; /* BOOT-PID-N; empty once it is gone */
} draft;

/* ---- drafts, and those of killed processes ----------------------------- */

/* Makes and locks a file with an unused name; 0, or -1 with errno. */
static int draft_make(draft *made)
{
    static atomic_uint counter;
    char boot[DW_BOOT_TEXT];
    dw_boot_id(boot);
    for (;;) {
        snprintf(made->name, sizeof made->name, "%s-%ld-%u", boot[0] ? boot : "unknown",
                 (long)getpid(), atomic_fetch_add(&counter, 1));
        made->fd = openat(made->dir, made->name,
                          O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (made->fd < 0 && errno == EEXIST)
            continue; /* process numbers repeat; in containers they are the same each time
                       */
        if (made->fd < 0) {
            made->name[0] = '\0';
            return -1;
        }
        /* a process that removes old drafts may have removed it before the lock; without
         * locks (ENOLCK) only the age of a draft counts */
        struct stat st;
        if (!(flock(made->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) &&
            !(fstat(made->fd, &st) == 0 && st.st_nlink == 0))
            return 0;
        close(made->fd);
    }
}

static void draft_release(draft *made)
{
    if (made->name[0])
        unlinkat(made->dir, made->name, 0);
    if (made->fd >= 0)
        close(made->fd);
    if (made->dir >= 0)
        close(made->dir);
}

/* A draft is dead if its writer ran under this kernel and no longer holds its lock, or if
 * nothing was written to it for a day by the filesystem's own clock, which is the time of
 * MADE, a new file. If it is alive after all, on another machine with a source that
 * stalled for a day, its put fails at the end; no object is harmed. */
static void remove_if_dead(const draft *made, const char *boot, const char *name)
{
    struct stat now, st;
    int fd = openat(made->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    bool dead = fstat(fd, &st) == 0 && fstat(made->fd, &now) == 0 &&
                st.st_mtim.tv_sec + ONE_DAY_S < now.st_mtim.tv_sec;
    if (!dead && boot[0] && strncmp(name, boot, strlen(boot)) == 0)
        dead = flock(fd, LOCK_EX | LOCK_NB) == 0;
    /* remove it before the lock is released: the name may be used again then */
    if (dead)
        unlinkat(made->dir, name, 0);
    close(fd);
}

static void remove_dead_drafts(const draft *made)
{
    char boot[DW_BOOT_TEXT];
    dw_boot_id(boot);
    int fd = openat(made->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *e; stream && (e = readdir(stream)) != NULL;)
        if (e->d_name[0] != '.' && strcmp(e->d_name, made->name) != 0)
            remove_if_dead(made, boot, e->d_name);
    if (stream)
        closedir(stream);
    else if (fd >= 0)
        close(fd);
}

/* ---- the directory itself --------------------------------------------------------- */

/* Does not make a root that must already hold a key: such a store is absent. */
static dw_status make_root(dw_dir *d, dw_error *err)
{
    pthread_mutex_lock(&d->lock);
    const bool is_made = d->required != NULL;
    pthread_mutex_unlock(&d->lock);
    if (is_made)
        return DW_OK;
    if (dw_make_dirs(d->root, 0777))
        return DW_OK;
    return errno == ENOMEM ? dw_fail_memory(err, d->url)
                           : dw_dir_fail(d, "", "make the directory", err);
}

/* Begins an object. *ROOT takes the open root; the caller closes it. */
static dw_status draft_open(dw_dir *d, const char *key, draft *made, int *root,
                            dw_error *err)
{
    *root = -1;
    *made = (draft){-1, -1, ""};
    bool is_first = !atomic_load(&d->prepared);
    dw_status status = is_first ? make_root(d, err) : DW_OK;
    if (status != DW_OK)
        return status;
    *root = dw_dir_open_root(d, DW_DIR_WRITE);
    if (*root < 0 && errno == ENOENT) { /* it was removed since the last put */
        status = make_root(d, err);
        if (status != DW_OK)
            return status;
        *root = dw_dir_open_root(d, DW_DIR_WRITE);
    }
    if (*root >= 0 && (mkdirat(*root, DW_DIR_TEMPORARY, 0777) == 0 || errno == EEXIST))
        made->dir = dw_dir_open_below(*root, DW_DIR_TEMPORARY);
    if (made->dir < 0 || draft_make(made) != 0)
        return dw_dir_fail(d, key, "make a file under construction", err);
    if (is_first) {
        remove_dead_drafts(made);
        atomic_store(&d->prepared, true);
    }
    return DW_OK;
}

/* ---- the bytes ----------------------------------------------------------------------
 */

static dw_status write_piece(const dw_dir *d, const char *key, int fd, uint64_t offset,
                             const uint8_t *bytes, size_t n_bytes, dw_error *err)
{
    while (n_bytes > 0) {
        ssize_t n = pwrite(fd, bytes, n_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dw_dir_fail(d, key, "write", err);
        bytes += n;
        offset += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return DW_OK;
}

static dw_status write_source(const dw_dir *d, const char *key, int fd,
                              const dw_source *source, const dw_progress *progress,
                              dw_error *err)
{
    const uint64_t total = source->n_bytes;
    uint8_t *buffer = NULL;
    if (!source->bytes && total > 0) {
        buffer = dw_alloc(total < PIECE ? (size_t)total : PIECE);
        if (!buffer)
            return dw_fail_memory(err, d->url);
    }
    dw_status status = DW_OK;
    for (uint64_t at = 0; status == DW_OK;) {
        status = dw_store_progress(progress, at, total, d->url, err);
        if (status != DW_OK || at == total)
            break;
        size_t n = total - at < PIECE ? (size_t)(total - at) : PIECE;
        const uint8_t *bytes = buffer;
        if (buffer)
            status = source->read(source->context, at, buffer, n, err);
        else
            bytes = (const uint8_t *)source->bytes + at;
        if (status == DW_OK)
            status = write_piece(d, key, fd, at, bytes, n, err);
        at += n;
    }
    dw_free(buffer);
    if (status == DW_OK && fsync(fd) != 0)
        status = dw_dir_fail(d, key, "sync", err);
    return status;
}

/* ---- the name -----------------------------------------------------------------------
 */

/* The error for a name that is taken. A writer that was killed may find its own object
 * there and rely on it, so the name is made durable first. */
static dw_status fail_taken(const dw_dir *d, const char *key, int dir, const char *name,
                            dw_error *err)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
        return dw_dir_fail_text(d, DW_UNSUPPORTED, key,
                                S_ISDIR(st.st_mode)
                                    ? "longer keys begin with this one and a slash; a "
                                      "directory store cannot hold both"
                                    : "it exists and is not a regular file",
                                err);
    if (dw_dir_sync(dir) != 0)
        return dw_dir_fail(d, key, "sync the directory", err);
    return dw_dir_fail_text(d, DW_CONFLICT, key, "there is such an object already", err);
}

/* Gives the draft its name, if the name is free. */
static dw_status create_name(const dw_dir *d, const char *key, draft *made, int dir,
                             const char *name, dw_error *err)
{
    if (linkat(made->dir, made->name, dir, name, 0) == 0)
        return DW_OK;
    if (errno == EEXIST) {
        /* over NFS the reply to a successful link can be lost; then the second try finds
         * that the draft itself has the name */
        struct stat ours, there;
        if (fstat(made->fd, &ours) == 0 &&
            fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
            ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
            return DW_OK;
        return fail_taken(d, key, dir, name, err);
    }
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK)
        return dw_dir_fail(d, key, "link into place", err);
    if (renameat2(made->dir, made->name, dir, name, RENAME_NOREPLACE) == 0) {
        made->name[0] = '\0';
        return DW_OK;
    }
    if (errno == EEXIST)
        return fail_taken(d, key, dir, name, err);
    if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)
        return dw_dir_fail_text(d, DW_UNSUPPORTED, key,
                                "this filesystem can neither link nor rename without "
                                "replacing, so that a create is not safe here",
                                err);
    return dw_dir_fail(d, key, "rename into place", err);
}

static dw_status replace_name(const dw_dir *d, const char *key, draft *made, int dir,
                              const char *name, dw_error *err)
{
    if (renameat(made->dir, made->name, dir, name) == 0) {
        made->name[0] = '\0';
        return DW_OK;
    }
    if (errno == EISDIR || errno == EEXIST || errno == ENOTEMPTY)
        return fail_taken(d, key, dir, name, err);
    return dw_dir_fail(d, key, "rename into place", err);
}

static dw_status open_parent(const dw_dir *d, int root, const char *key, int *dir,
                             const char **name, dw_error *err)
{
    *dir = dw_dir_open_parent(fcntl(root, F_DUPFD_CLOEXEC, 0), key, true, name);
    if (*dir >= 0 && strlen(*name) <= NAME_MAX)
        return DW_OK;
    if (*dir < 0 && (errno == ENOTDIR || errno == ELOOP))
        return dw_dir_fail_text(d, DW_UNSUPPORTED, key,
                                "this key needs a directory, but an object or a link has "
                                "its name; a directory store cannot hold both",
                                err);
    if (*dir >= 0 || errno == ENAMETOOLONG)
        return dw_dir_fail_text(d, DW_UNSUPPORTED, key,
                                "a part of the key is longer than a file name can be",
                                err);
    return dw_dir_fail(d, key, "make the directory", err);
}

dw_status dw_dir_put(void *self, const char *key, const dw_source *source,
                     dw_put_mode mode, const dw_progress *progress, dw_error *err)
{
    dw_dir *d = self;
    draft made;
    int root, dir = -1;
    const char *name;
    struct stat st;
    dw_status status = draft_open(d, key, &made, &root, err);
    /* use the same root, so that no name gets into a directory that replaced it */
    if (status == DW_OK)
        status = open_parent(d, root, key, &dir, &name, err);
    /* this saves writing an object that would be refused; the link decides */
    if (status == DW_OK && mode == DW_PUT_CREATE &&
        fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        status = fail_taken(d, key, dir, name, err);
    if (status == DW_OK)
        status = write_source(d, key, made.fd, source, progress, err);
    if (status == DW_OK)
        status = mode == DW_PUT_CREATE ? create_name(d, key, &made, dir, name, err)
                                       : replace_name(d, key, &made, dir, name, err);
    if (status == DW_OK && dw_dir_sync(dir) != 0)
        status = dw_dir_fail(d, key, "sync the directory", err);
    draft_release(&made);
    if (dir >= 0)
        close(dir);
    if (root >= 0)
        close(root);
    return status;
}
