#include "store/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "store/store.h"

#define PIECE ((size_t)8 << 20) /* bytes of a get between two progress reports */

/* ---- errors ------------------------------------------------------------------- */

dw_status dw_dir_fail_text(const dw_dir *d, dw_status code, const char *key,
                           const char *fault, dw_error *err)
{
    char where[DW_STORE_WHERE];
    snprintf(where, sizeof where, "%s%s%s", d->url, key[0] ? "/" : "", key);
    return dw_fail(err, code, where, "%s", fault);
}

dw_status dw_dir_fail(const dw_dir *d, const char *key, const char *doing, dw_error *err)
{
    int number = errno;
    char reason[128], text[DW_ERROR_TEXT_SIZE];
    if (strerror_r(number, reason, sizeof reason) != 0)
        snprintf(reason, sizeof reason, "error %d", number);
    bool is_full = number == ENOSPC || number == EDQUOT;
    bool is_denied = number == EACCES || number == EPERM;
    snprintf(
        text, sizeof text, "cannot %s: %s%s%.400s", doing, reason,
        is_full
            ? "; free some room, or remove old objects, on the disk of this directory: "
            : "",
        is_full ? d->root : "");
    if (number == ESTALE)
        return dw_dir_fail_text(
            d, DW_UNAVAILABLE, "",
            "the store is absent: its directory is missing, empty or another one. Mount "
            "its file system, or move the directory back",
            err);
    const bool is_away = number == ENOTCONN || number == EHOSTDOWN || number == ETIMEDOUT;
    dw_status code = is_denied          ? DW_DENIED
                     : is_away          ? DW_UNAVAILABLE
                     : number == ENOENT ? DW_NOT_FOUND
                                        : DW_IO;
    return dw_dir_fail_text(d, code, key, text, err);
}

static dw_status not_there(const dw_dir *d, const char *key, dw_error *err)
{
    return dw_dir_fail_text(d, DW_NOT_FOUND, key, "there is no such object", err);
}

/* Whether errno means that there is no such object. That includes a file in place of a
 * directory of the key, and a part of the key that is too long for a file name. */
static bool means_missing(int number)
{
    return number == ENOENT || number == ENOTDIR || number == ENAMETOOLONG;
}

/* ---- walking -------------------------------------------------------------------- */

int dw_dir_sync(int fd)
{
    /* some filesystems cannot sync a directory: EINVAL */
    return fsync(fd) == 0 || errno == EINVAL ? 0 : -1;
}

int dw_dir_open_below(int fd, const char *name)
{
    return openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int step_down(int fd, const char *name, bool make)
{
    int below = dw_dir_open_below(fd, name);
    if (below < 0 && make && errno == ENOENT &&
        (mkdirat(fd, name, 0777) == 0 || errno == EEXIST))
        below = dw_dir_open_below(fd, name);
    if (below >= 0 && make && dw_dir_sync(fd) != 0) {
        int number = errno;
        close(below);
        errno = number;
        return -1;
    }
    return below;
}

int dw_dir_open_parent(int root, const char *key, bool make, const char **name)
{
    int fd = root;
    for (const char *slash; fd >= 0 && (slash = strchr(key, '/')); key = slash + 1) {
        char part[DW_MAX_KEY + 1];
        snprintf(part, sizeof part, "%.*s", (int)(slash - key), key);
        int below = step_down(fd, part, make);
        int number = errno;
        close(fd);
        errno = number;
        fd = below;
    }
    *name = key;
    return fd;
}

/* ---- the root --------------------------------------------------------------------- */

static int close_with(int fd, int number)
{
    close(fd);
    errno = number;
    return -1;
}

/* Whether ROOT holds the required key and, for a write, is the directory that the last
 * call saw. Owns ROOT. The lock is held. */
static int check_root(dw_dir *d, int root, dw_dir_use use)
{
    struct stat st, required;
    if (fstat(root, &st) != 0)
        return close_with(root, errno);
    if (fstatat(root, d->required, &required, AT_SYMLINK_NOFOLLOW) != 0)
        return close_with(root, means_missing(errno) ? ESTALE : errno);
    const bool is_same = st.st_dev == d->device && st.st_ino == d->inode;
    d->device = st.st_dev;
    d->inode = st.st_ino;
    return is_same || use == DW_DIR_READ ? root : close_with(root, ESTALE);
}

int dw_dir_open_root(dw_dir *d, dw_dir_use use)
{
    int root = open(d->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    pthread_mutex_lock(&d->lock);
    if (d->required && root >= 0)
        root = check_root(d, root, use);
    else if (d->required && means_missing(errno))
        errno = ESTALE;
    pthread_mutex_unlock(&d->lock);
    return root;
}

static dw_status dir_require(void *self, const char *key, dw_error *err)
{
    dw_dir *d = self;
    char *copy = dw_copy_string(key);
    if (!copy)
        return dw_fail_memory(err, d->url);
    pthread_mutex_lock(&d->lock);
    char *old = d->required;
    d->required = copy;
    pthread_mutex_unlock(&d->lock);
    dw_free(old);
    int root = dw_dir_open_root(d, DW_DIR_READ);
    if (root < 0)
        return dw_dir_fail(d, "", "open", err);
    close(root);
    return DW_OK;
}

/* ---- objects ---------------------------------------------------------------------- */

/* Opens the regular file of KEY. */
static dw_status open_object(dw_dir *d, const char *key, int *fd, struct stat *st,
                             dw_error *err)
{
    const char *name;
    *fd = -1;
    int dir = dw_dir_open_parent(dw_dir_open_root(d, DW_DIR_READ), key, false, &name);
    if (dir >= 0) {
        /* without O_NONBLOCK, opening a FIFO would wait */
        *fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        int number = errno;
        close(dir);
        errno = number;
    }
    if (*fd < 0 && errno == ELOOP)
        return dw_dir_fail_text(
            d, DW_UNSUPPORTED, key,
            "it is a symbolic link, which a directory store does not follow", err);
    if (*fd < 0 && means_missing(errno))
        return not_there(d, key, err);
    if (*fd < 0)
        return dw_dir_fail(d, key, "open", err);
    dw_status status = DW_OK;
    if (fstat(*fd, st) != 0)
        status = dw_dir_fail(d, key, "stat", err);
    else if (S_ISDIR(st->st_mode))
        status = not_there(d, key, err); /* a directory: the beginning of longer keys */
    else if (!S_ISREG(st->st_mode))
        status =
            dw_dir_fail_text(d, DW_UNSUPPORTED, key, "it is not a regular file", err);
    if (status != DW_OK)
        close(*fd);
    return status;
}

static dw_status read_range(const dw_dir *d, const char *key, int fd, uint64_t offset,
                            uint8_t *into, size_t n_bytes, size_t *n_read,
                            const dw_progress *progress, dw_error *err)
{
    for (size_t at = 0;;) {
        dw_status status = dw_store_progress(progress, at, n_bytes, d->url, err);
        if (status != DW_OK)
            return status;
        size_t n_wanted = n_bytes - at < PIECE ? n_bytes - at : PIECE;
        ssize_t n = n_wanted ? pread(fd, into + at, n_wanted, (off_t)(offset + at)) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dw_dir_fail(d, key, "read", err);
        at += (size_t)n;
        if (n == 0) {
            *n_read = at;
            return DW_OK;
        }
    }
}

static dw_status dir_get(void *self, const char *key, uint64_t offset, void *into,
                         size_t n_bytes, size_t *n_read, const dw_progress *progress,
                         dw_error *err)
{
    dw_dir *d = self;
    int fd;
    struct stat st;
    dw_status status = open_object(d, key, &fd, &st, err);
    if (status != DW_OK)
        return status;
    status = read_range(d, key, fd, offset, into, n_bytes, n_read, progress, err);
    close(fd);
    return status;
}

static dw_status dir_stat(void *self, const char *key, uint64_t *n_bytes,
                          int64_t *modified_ms, dw_error *err)
{
    dw_dir *d = self;
    int fd;
    struct stat st;
    dw_status status = open_object(d, key, &fd, &st, err);
    if (status != DW_OK)
        return status;
    close(fd);
    *n_bytes = (uint64_t)st.st_size;
    *modified_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
    return DW_OK;
}

static dw_status dir_remove(void *self, const char *key, dw_error *err)
{
    dw_dir *d = self;
    const char *name;
    int dir = dw_dir_open_parent(dw_dir_open_root(d, DW_DIR_WRITE), key, false, &name);
    if (dir < 0)
        return means_missing(errno) ? DW_OK : dw_dir_fail(d, key, "open", err);
    dw_status status = DW_OK;
    if (unlinkat(dir, name, 0) == 0) {
        if (dw_dir_sync(dir) != 0)
            status = dw_dir_fail(d, key, "sync the directory", err);
    } else if (!means_missing(errno) && errno != EISDIR) {
        status = dw_dir_fail(d, key, "remove", err);
    }
    close(dir);
    return status;
}

/* A path that can be made: the nearest directory above it that exists lets us write. */
static bool may_make(const char *path)
{
    char at[PATH_MAX];
    snprintf(at, sizeof at, "%s", path);
    for (char *slash; access(at, F_OK) != 0 && (slash = strrchr(at, '/')) != NULL;)
        slash[slash == at] = '\0';
    return access(at, W_OK | X_OK) == 0;
}

static void dir_facts(void *self, dw_store_facts *out)
{
    const dw_dir *d = self;
    snprintf(out->keys, sizeof out->keys, "none needed: this process's rights to files");
    out->absent = access(d->root, F_OK) != 0 && errno == ENOENT;
    out->may_make = out->absent && may_make(d->root);
}

static void dir_close(void *self)
{
    dw_dir *d = self;
    if (d) {
        pthread_mutex_destroy(&d->lock);
        dw_free(d->required);
        dw_free(d->root);
        dw_free(d->url);
        dw_free(d);
    }
}

/* ---- opening ---------------------------------------------------------------------- */

/* The path of a file: URL, with %XX decoded. */
static dw_status path_of_url(dw_writer *path, const char *url, dw_error *err)
{
    const char *at = url + strlen("file:");
    if (strncmp(at, "//localhost/", 12) == 0)
        at += 11;
    else if (strncmp(at, "///", 3) == 0)
        at += 2;
    if (at[0] != '/' || at[1] == '/')
        return dw_fail(err, DW_INVALID, url,
                       "a file URL has an absolute path and no host: file:///DIR; a "
                       "relative path is written without file:");
    for (; *at; at++) {
        int high = at[0] == '%' ? dw_hex_digit(at[1]) : -1;
        int low = high >= 0 ? dw_hex_digit(at[2]) : -1;
        int byte = at[0] == '%' ? high * 16 + low : (unsigned char)at[0];
        if ((at[0] == '%' && (low < 0 || byte == 0)) || at[0] == '?' || at[0] == '#')
            return dw_fail(
                err, DW_INVALID, url,
                "'%c' in a file URL begins no valid escape: write %%25 for %%, "
                "%%3F for ? and %%23 for #",
                at[0]);
        at += at[0] == '%' ? 2 : 0;
        dw_write_u8(path, (uint8_t)byte);
    }
    return DW_OK;
}

static dw_status absolute_path(dw_writer *path, const char *relative, dw_error *err)
{
    char here[PATH_MAX];
    if (relative[0] != '/') {
        if (!getcwd(here, sizeof here))
            return dw_fail_errno(err, relative, "find the current directory");
        dw_write_text(path, here);
        dw_write_text(path, "/");
    }
    dw_write_text(path, relative);
    return DW_OK;
}

static void write_url(dw_writer *url, const char *path)
{
    dw_write_text(url, "file://");
    for (; *path; path++) {
        unsigned char c = (unsigned char)*path;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c >= '0' && c <= '9') || strchr("-_./=+@~:,", c);
        if (plain)
            dw_write_u8(url, c);
        else
            dw_write_format(url, "%%%02X", c);
    }
    dw_write_u8(url, 0);
}

static dw_status find_root(dw_dir *d, const char *url, dw_error *err)
{
    dw_writer path = {0}, full_url = {0};
    bool is_url = strncmp(url, "file:", 5) == 0;
    dw_status status =
        is_url ? path_of_url(&path, url, err) : absolute_path(&path, url, err);
    while (status == DW_OK && !path.failed && path.n_bytes > 1 &&
           path.bytes[path.n_bytes - 1] == '/')
        path.n_bytes--;
    dw_write_u8(&path, 0);
    if (status == DW_OK && !path.failed)
        write_url(&full_url, (char *)path.bytes);
    if (status == DW_OK && (path.failed || full_url.failed))
        status = dw_fail_memory(err, url);
    if (status != DW_OK) {
        dw_writer_release(&path);
        dw_writer_release(&full_url);
        return status;
    }
    d->root = (char *)path.bytes;
    d->url = (char *)full_url.bytes;
    struct stat st;
    if (stat(d->root, &st) == 0 && !S_ISDIR(st.st_mode))
        return dw_dir_fail_text(d, DW_INVALID, "", "not a directory", err);
    return DW_OK;
}

dw_status dw_dir_store_open(dw_store **out, const char *url, dw_error *err)
{
    static const dw_store_driver driver = {
        .struct_bytes = sizeof(dw_store_driver),
        .name = "file",
        .get = dir_get,
        .put = dw_dir_put,
        .stat = dir_stat,
        .list = dw_dir_list,
        .remove = dir_remove,
        .close = dir_close,
        .require = dir_require,
        .facts = dir_facts,
    };
    *out = NULL;
    dw_dir *d = dw_alloc_zeroed(1, sizeof *d);
    if (!d)
        return dw_fail_memory(err, url);
    pthread_mutex_init(&d->lock, NULL);
    dw_status status = find_root(d, url, err);
    if (status == DW_OK)
        status = dw_store_new(out, d->url, &driver, d, err);
    if (status != DW_OK)
        dir_close(d);
    return status;
}
