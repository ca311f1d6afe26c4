#define _GNU_SOURCE /* statx */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/mem.h"

#define COPY_BYTES (1u << 20)

bool dw_file_is_own(int fd, const char *path)
{
    struct stat held, named;
    return fstat(fd, &held) == 0 && lstat(path, &named) == 0 &&
           held.st_dev == named.st_dev && held.st_ino == named.st_ino &&
           held.st_nlink == 1;
}

uint64_t dw_file_identity(int dir, const char *path)
{
    struct statx st;
    if (statx(dir, path, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME,
              &st) != 0)
        return 0;
    uint64_t numbers[3] = {st.stx_ino};
    if (st.stx_mask & STATX_BTIME) {
        numbers[1] = (uint64_t)st.stx_btime.tv_sec;
        numbers[2] = st.stx_btime.tv_nsec;
    }
    return XXH64(numbers, sizeof numbers, 0);
}

long dw_lock_holder(int fd)
{
    struct stat st;
    FILE *locks = fstat(fd, &st) == 0 ? fopen("/proc/locks", "re") : NULL;
    char line[256];
    long holder = 0;
    while (locks && holder == 0 && fgets(line, sizeof line, locks)) {
        long pid;
        unsigned device[2];
        uint64_t inode;
        if (sscanf(line, "%*s FLOCK %*s %*s %ld %x:%x:%" SCNu64, &pid, &device[0],
                   &device[1], &inode) == 4 &&
            device[0] == major(st.st_dev) && device[1] == minor(st.st_dev) &&
            inode == st.st_ino)
            holder = pid;
    }
    if (locks)
        fclose(locks);
    return holder > 0 ? holder : 0;
}

dw_status dw_file_exists(const char *path, bool *exists, dw_error *err)
{
    struct stat st;
    *exists = stat(path, &st) == 0;
    if (*exists || errno == ENOENT || errno == ENOTDIR)
        return DW_OK;
    return dw_fail_errno(err, path, "look at");
}

dw_status dw_new_file_open(dw_new_file *out, const char *path, dw_error *err)
{
    return dw_new_file_open_via(out, path, path, err);
}

dw_status dw_new_file_open_via(dw_new_file *out, const char *path, const char *via,
                               dw_error *err)
{
    static atomic_uint counter;
    *out = (dw_new_file){.fd = -1};
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return dw_fail(err, DW_INVALID, path, "it exists and is not a regular file");
    size_t n_bytes = strlen(via) + 48;
    out->path = dw_copy_string(path);
    out->temporary = dw_alloc(n_bytes);
    if (!out->path || !out->temporary) {
        dw_new_file_abort(out);
        return dw_fail_memory(err, path);
    }
    /* a killed process may have left a file of this name: process numbers repeat after a
     * reboot, and in a container they are the same each time */
    do {
        snprintf(out->temporary, n_bytes, "%s" DW_TEMPORARY "%ld-%u", via, (long)getpid(),
                 atomic_fetch_add(&counter, 1));
        out->fd = open(out->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (out->fd < 0 && errno == EEXIST);
    if (out->fd < 0) {
        dw_status status = dw_fail_errno(err, path, "create");
        dw_free(out->temporary); /* another process made it: do not remove it */
        out->temporary = NULL;
        dw_new_file_abort(out);
        return status;
    }
    return DW_OK;
}

dw_status dw_new_file_write_at(dw_new_file *file, uint64_t offset, const void *bytes,
                               size_t n_bytes, dw_error *err)
{
    const uint8_t *at = bytes;
    while (n_bytes > 0) {
        ssize_t n = pwrite(file->fd, at, n_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EFAULT && dw_map_explain(at, err) != DW_OK)
            return DW_IO; /* the source lost bytes, not the target */
        if (n < 0)
            return dw_fail_errno(err, file->path, "write");
        at += n;
        offset += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return DW_OK;
}

dw_status dw_new_file_write(dw_new_file *file, const void *bytes, size_t n_bytes,
                            dw_error *err)
{
    dw_status status = dw_new_file_write_at(file, file->n_bytes, bytes, n_bytes, err);
    if (status == DW_OK)
        file->n_bytes += n_bytes;
    return status;
}

static dw_status open_parent(int *fd, const char *path, dw_error *err)
{
    char *dir = dw_parent_path(path);
    if (!dir)
        return dw_fail_memory(err, path);
    dw_status status = DW_OK;
    *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0)
        status = dw_fail_errno(err, dir, "open the directory");
    dw_free(dir);
    return status;
}

static dw_status sync_directory(int fd, const char *path, dw_error *err)
{
    /* some filesystems cannot sync a directory: EINVAL */
    if (fsync(fd) != 0 && errno != EINVAL)
        return dw_fail_errno(err, path, "sync the directory");
    return DW_OK;
}

/* A process that was killed may have made the directory without a sync, so its name is
 * synced too, if permissions allow it. */
static bool make_dir(const char *path, mode_t mode)
{
    struct stat st;
    if (mkdir(path, mode) == 0) {
        const dw_status status = dw_sync_parent(path, NULL);
        if (status == DW_NO_MEMORY)
            errno = ENOMEM;
        return status == DW_OK;
    }
    const int number = errno;
    const bool is_there = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (is_there)
        dw_sync_parent(path, NULL);
    errno = number;
    return is_there;
}

bool dw_make_dirs(const char *path, mode_t mode)
{
    char *part = dw_copy_string(path);
    if (!part) {
        errno = ENOMEM;
        return false;
    }
    bool good = true;
    for (char *end = part; good && end;) {
        end = strchr(end + 1, '/');
        if (end)
            *end = '\0';
        good = make_dir(part, mode);
        if (end)
            *end = '/';
    }
    const int number = errno;
    dw_free(part);
    errno = number;
    return good;
}

dw_status dw_sync_parent(const char *path, dw_error *err)
{
    int fd = -1;
    dw_status status = open_parent(&fd, path, err);
    if (status != DW_OK)
        return status;
    status = sync_directory(fd, path, err);
    close(fd);
    return status;
}

dw_status dw_new_file_commit(dw_new_file *file, dw_error *err)
{
    /* do everything that needs memory or descriptors before the rename */
    int dir = -1;
    dw_status status = open_parent(&dir, file->path, err);
    if (status == DW_OK && fsync(file->fd) != 0)
        status = dw_fail_errno(err, file->path, "sync");
    if (status == DW_OK && rename(file->temporary, file->path) != 0)
        status = dw_fail_errno(err, file->path, "rename into place");
    if (status == DW_OK) {
        dw_free(file->temporary); /* it has its final name: nothing to remove */
        file->temporary = NULL;
        status = sync_directory(dir, file->path, err);
    }
    if (dir >= 0)
        close(dir);
    dw_new_file_abort(file);
    return status;
}

void dw_new_file_abort(dw_new_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    if (file->temporary)
        unlink(file->temporary);
    dw_free(file->temporary);
    dw_free(file->path);
    *file = (dw_new_file){.fd = -1};
}

/* A full disk is noticed before the first write. */
static dw_status reserve(dw_new_file *file, uint64_t n_bytes, dw_error *err)
{
    const int failed = n_bytes > 0 ? posix_fallocate(file->fd, 0, (off_t)n_bytes) : 0;
    return failed ? dw_fail(err, DW_IO, file->path,
                            "there is no room for a copy of %" PRIu64 " bytes: %s",
                            n_bytes, strerror(failed))
                  : DW_OK;
}

static dw_status copy_bytes(dw_new_file *to, int from, uint64_t n_bytes, dw_error *err)
{
    dw_status status = reserve(to, n_bytes, err);
    uint8_t *buffer = dw_alloc(COPY_BYTES);
    if (status == DW_OK && !buffer)
        status = dw_fail_memory(err, to->path);
    for (uint64_t at = 0; status == DW_OK && at < n_bytes;) {
        const uint64_t left = n_bytes - at;
        const ssize_t n =
            pread(from, buffer, left < COPY_BYTES ? (size_t)left : COPY_BYTES, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = dw_fail_errno(err, to->path, "read the source of the copy");
        else if (n == 0)
            status = dw_fail(err, DW_IO, to->path, "the source of the copy shrank");
        else
            status = dw_new_file_write(to, buffer, (size_t)n, err);
        at += n > 0 ? (uint64_t)n : 0;
    }
    dw_free(buffer);
    return status;
}

/* Both files share their blocks until one of them is written. DW_UNSUPPORTED if the
 * filesystem has no reflinks. */
static dw_status clone_file(int fd, const char *path, const char *via, dw_error *err)
{
    dw_new_file file;
    dw_status status = dw_new_file_open_via(&file, path, via, err);
    if (status != DW_OK)
        return status;
    if (ioctl(file.fd, FICLONE, fd) == 0)
        return dw_new_file_commit(&file, err);
    dw_new_file_abort(&file); /* treat any error as a lack of reflinks */
    return dw_fail(err, DW_UNSUPPORTED, path, "the filesystem has no reflinks");
}

dw_status dw_copy_file(int fd, const char *path, const char *via, dw_error *err)
{
    struct stat st;
    dw_new_file file;
    if (fstat(fd, &st) != 0)
        return dw_fail_errno(err, path, "look at the source of the copy");
    dw_status status = clone_file(fd, path, via, err);
    if (status != DW_UNSUPPORTED)
        return status;
    status = dw_new_file_open_via(&file, path, via, err);
    if (status != DW_OK)
        return status;
    status = copy_bytes(&file, fd, (uint64_t)st.st_size, err);
    if (status == DW_OK)
        return dw_new_file_commit(&file, err);
    dw_new_file_abort(&file);
    return status;
}

dw_status dw_write_file(const char *path, const void *bytes, size_t n_bytes,
                        dw_error *err)
{
    dw_new_file file;
    dw_status status = dw_new_file_open(&file, path, err);
    if (status != DW_OK)
        return status;
    status = dw_new_file_write(&file, bytes, n_bytes, err);
    if (status == DW_OK)
        return dw_new_file_commit(&file, err);
    dw_new_file_abort(&file);
    return status;
}

static dw_status read_all(uint8_t *into, size_t n_bytes, int fd, const char *path,
                          dw_error *err)
{
    for (size_t at = 0; at < n_bytes;) {
        const ssize_t n = pread(fd, into + at, n_bytes - at, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dw_fail_errno(err, path, "read");
        if (n == 0)
            return dw_fail(err, DW_IO, path,
                           "the file shrank from %zu to %zu bytes while it was read",
                           n_bytes, at);
        at += (size_t)n;
    }
    return DW_OK;
}

dw_status dw_read_file(uint8_t **bytes, size_t *n_bytes, const char *path, size_t limit,
                       dw_error *err)
{
    *bytes = NULL;
    *n_bytes = 0;
    /* without O_NONBLOCK, opening a FIFO would wait */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return dw_fail_errno(err, path, "open");
    struct stat st;
    dw_status status = DW_OK;
    if (fstat(fd, &st) != 0)
        status = dw_fail_errno(err, path, "stat");
    else if (!S_ISREG(st.st_mode))
        status = dw_fail(err, DW_INVALID, path, "not a regular file");
    else if ((uint64_t)st.st_size > limit)
        status = dw_fail(err, DW_CORRUPT, path, "%lld bytes are over the limit of %zu",
                         (long long)st.st_size, limit);
    if (status == DW_OK) {
        *n_bytes = (size_t)st.st_size;
        *bytes = dw_alloc(*n_bytes > 0 ? *n_bytes : 1);
        status = *bytes ? read_all(*bytes, *n_bytes, fd, path, err)
                        : dw_fail_memory(err, path);
    }
    close(fd);
    if (status != DW_OK) {
        dw_free(*bytes);
        *bytes = NULL;
    }
    return status;
}

dw_status dw_rename_file(const char *from, const char *to, dw_error *err)
{
    return rename(from, to) == 0 ? DW_OK : dw_fail_errno(err, to, "rename into place");
}

dw_status dw_remove_file(const char *path, dw_error *err)
{
    if (unlink(path) != 0) {
        if (errno == ENOENT)
            return DW_OK;
        return dw_fail_errno(err, path, "remove");
    }
    return dw_sync_parent(path, err);
}

void dw_remove_leftovers(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    char *dir_path = dw_parent_path(path);
    DIR *dir = dir_path ? opendir(dir_path) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        size_t n = strlen(name);
        if (strncmp(e->d_name, name, n) == 0 &&
            strncmp(e->d_name + n, DW_TEMPORARY, sizeof DW_TEMPORARY - 1) == 0)
            unlinkat(dirfd(dir), e->d_name, 0);
    }
    if (dir)
        closedir(dir);
    dw_free(dir_path);
}

bool dw_name_ends(const char *name, const char *end)
{
    const size_t n = strlen(name), n_end = strlen(end);
    return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

char *dw_join_path(const char *dir, const char *name)
{
    size_t n_bytes = strlen(dir) + strlen(name) + 2;
    char *path = dw_alloc(n_bytes);
    if (path) {
        bool slash = dir[0] && dir[strlen(dir) - 1] == '/';
        snprintf(path, n_bytes, "%s%s%s", dir, slash ? "" : "/", name);
    }
    return path;
}

char *dw_parent_path(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    if (n == 0)
        return dw_copy_string(".");
    while (n > 1 && path[n - 1] == '/')
        n--;
    char *dir = dw_alloc(n + 1);
    if (dir) {
        memcpy(dir, path, n);
        dir[n] = '\0';
    }
    return dir;
}
