#define _GNU_SOURCE /* fallocate */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"

#define TEMPORARY ".tmp-" /* after the name of a file under construction */

dw_status dw_map_open(dw_map *out, const char *path, bool writable, dw_error *err)
{
    *out = (dw_map){.fd = -1};
    /* without O_NONBLOCK a FIFO would be waited for, not refused */
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return dw_fail_errno(err, path, "open");
    struct stat st;
    if (fstat(fd, &st) != 0) {
        dw_status status = dw_fail_errno(err, path, "stat");
        close(fd);
        return status;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return dw_fail(err, DW_INVALID, path, "not a regular file");
    }
    out->n_bytes = (size_t)st.st_size;
    if (out->n_bytes > 0) {
        int protection = PROT_READ | (writable ? PROT_WRITE : 0);
        void *bytes = mmap(NULL, out->n_bytes, protection, MAP_SHARED, fd, 0);
        if (bytes == MAP_FAILED) {
            dw_status status = dw_fail_errno(err, path, "map");
            close(fd);
            return status;
        }
        out->bytes = bytes;
    }
    out->fd = fd;
    return DW_OK;
}

dw_status dw_map_sync(dw_map *map, const char *path, dw_error *err)
{
    if (map->n_bytes > 0 && msync(map->bytes, map->n_bytes, MS_SYNC) != 0)
        return dw_fail_errno(err, path, "sync");
    if (fsync(map->fd) != 0)
        return dw_fail_errno(err, path, "sync");
    return DW_OK;
}

dw_status dw_map_reserve(dw_map *map, const char *path, dw_error *err)
{
    struct stat st;
    if (map->n_bytes == 0)
        return DW_OK;
    if (fallocate(map->fd, FALLOC_FL_UNSHARE_RANGE, 0, (off_t)map->n_bytes) == 0)
        return DW_OK;
    if (errno == ENOSPC || errno == EDQUOT)
        return dw_fail_errno(err, path, "make room for the stores");
    /* a filesystem without shared blocks, or without that call: holes can still be there
     */
    if (fstat(map->fd, &st) != 0)
        return dw_fail_errno(err, path, "stat");
    if ((uint64_t)st.st_blocks * 512 >= map->n_bytes)
        return DW_OK;
    errno = posix_fallocate(map->fd, 0, (off_t)map->n_bytes);
    return errno == 0 ? DW_OK : dw_fail_errno(err, path, "make room for the stores");
}

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

void dw_pages_prepare(void *bytes, size_t n_bytes, bool write)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *start = (uint8_t *)((uintptr_t)bytes & ~(uintptr_t)(page - 1));
    const size_t n = n_bytes + (size_t)((uint8_t *)bytes - start);
    if (n_bytes == 0 ||
        madvise(start, n, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0 ||
        errno != EINVAL)
        return;
    /* a kernel before 5.14 */
    for (size_t i = 0; i < n; i += page)
        if (write)
            __atomic_fetch_or(start + i, 0, __ATOMIC_RELAXED);
        else
            (void)*(volatile uint8_t *)(start + i);
}

dw_status dw_file_exists(const char *path, bool *exists, dw_error *err)
{
    struct stat st;
    *exists = stat(path, &st) == 0;
    if (*exists || errno == ENOENT || errno == ENOTDIR)
        return DW_OK;
    return dw_fail_errno(err, path, "look at");
}

void dw_map_close(dw_map *map)
{
    if (map->bytes)
        munmap(map->bytes, map->n_bytes);
    if (map->fd >= 0)
        close(map->fd);
    *map = (dw_map){.fd = -1};
}

dw_status dw_new_file_open(dw_new_file *out, const char *path, dw_error *err)
{
    static atomic_uint counter;
    *out = (dw_new_file){.fd = -1};
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return dw_fail(err, DW_INVALID, path,
                       "there is something that is no regular file");
    size_t n_bytes = strlen(path) + 48;
    out->path = dw_copy_string(path);
    out->temporary = dw_alloc(n_bytes);
    if (!out->path || !out->temporary) {
        dw_new_file_abort(out);
        return dw_fail_memory(err, path);
    }
    /* a name that is taken is what a killed process left: numbers come back after a
     * reboot, and in a container they are the same each time */
    do {
        snprintf(out->temporary, n_bytes, "%s" TEMPORARY "%ld-%u", path, (long)getpid(),
                 atomic_fetch_add(&counter, 1));
        out->fd = open(out->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (out->fd < 0 && errno == EEXIST);
    if (out->fd < 0) {
        dw_status status = dw_fail_errno(err, path, "create");
        dw_free(out->temporary); /* not ours to remove */
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
    /* some filesystems cannot sync a directory and say so with EINVAL */
    if (fsync(fd) != 0 && errno != EINVAL)
        return dw_fail_errno(err, path, "sync the directory");
    return DW_OK;
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
    /* what can fail for want of memory or descriptors does so before the rename */
    int dir = -1;
    dw_status status = open_parent(&dir, file->path, err);
    if (status == DW_OK && fsync(file->fd) != 0)
        status = dw_fail_errno(err, file->path, "sync");
    if (status == DW_OK && rename(file->temporary, file->path) != 0)
        status = dw_fail_errno(err, file->path, "rename into place");
    if (status == DW_OK) {
        dw_free(file->temporary); /* it is the file now: nothing to remove */
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

dw_status dw_rename_file(const char *from, const char *to, dw_error *err)
{
    return rename(from, to) == 0 ? DW_OK : dw_fail_errno(err, to, "rename into place");
}

dw_status dw_link_file(const char *from, const char *to, dw_error *err)
{
    if (link(from, to) == 0)
        return DW_OK;
    dw_map map;
    dw_new_file file;
    dw_status status = dw_map_open(&map, from, false, err);
    if (status != DW_OK)
        return status;
    status = dw_new_file_open(&file, to, err);
    if (status == DW_OK) {
        status = dw_new_file_write(&file, map.bytes, map.n_bytes, err);
        if (status == DW_OK)
            status = dw_new_file_commit(&file, err);
        else
            dw_new_file_abort(&file);
    }
    dw_map_close(&map);
    return status;
}

dw_status dw_symlink_file(const char *target, const char *path, dw_error *err)
{
    size_t n_bytes = strlen(path) + sizeof TEMPORARY + 20;
    char *temporary = dw_alloc(n_bytes);
    if (!temporary)
        return dw_fail_memory(err, path);
    snprintf(temporary, n_bytes, "%s" TEMPORARY "link", path);
    dw_status status = DW_OK;
    if (unlink(temporary) != 0 && errno != ENOENT)
        status = dw_fail_errno(err, temporary, "remove");
    else if (symlink(target, temporary) != 0 || rename(temporary, path) != 0)
        status = dw_fail_errno(err, path, "link");
    if (status != DW_OK)
        unlink(temporary);
    dw_free(temporary);
    return status;
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
            strncmp(e->d_name + n, TEMPORARY, sizeof TEMPORARY - 1) == 0)
            unlinkat(dirfd(dir), e->d_name, 0);
    }
    if (dir)
        closedir(dir);
    dw_free(dir_path);
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
    const char *slash = strrchr(path, '/');
    if (!slash)
        return dw_copy_string(".");
    size_t n = slash == path ? 1 : (size_t)(slash - path);
    char *dir = dw_alloc(n + 1);
    if (dir) {
        memcpy(dir, path, n);
        dir[n] = '\0';
    }
    return dir;
}
