#define _GNU_SOURCE /* fallocate */
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"

/* ---- the list of files of others ---- */

struct dw_mapped {
    const uint8_t *first;
    size_t n_bytes;
    int fd;
    char *path;
    dw_mapped *next; /* in the list */
};

static dw_mapped *list;
static pthread_rwlock_t list_lock = PTHREAD_RWLOCK_INITIALIZER;

static void list_add(dw_mapped *m)
{
    pthread_rwlock_wrlock(&list_lock);
    m->next = list;
    list = m;
    pthread_rwlock_unlock(&list_lock);
}

static void list_remove(const dw_mapped *m)
{
    pthread_rwlock_wrlock(&list_lock);
    dw_mapped **at = &list;
    while (*at && *at != m)
        at = &(*at)->next;
    if (*at)
        *at = m->next;
    pthread_rwlock_unlock(&list_lock);
}

/* The file of others that holds BYTES, or NULL. It stays as long as its mapping. */
static const dw_mapped *find(const void *bytes)
{
    pthread_rwlock_rdlock(&list_lock);
    const dw_mapped *m = list;
    while (m && (uintptr_t)bytes - (uintptr_t)m->first >= m->n_bytes)
        m = m->next;
    pthread_rwlock_unlock(&list_lock);
    return m;
}

/* ---- faults ---- */

static dw_status fail_lost(const dw_mapped *m, dw_error *err)
{
    struct stat st;
    if (fstat(m->fd, &st) == 0 && (uint64_t)st.st_size < m->n_bytes)
        return dw_fail(err, DW_IO, m->path,
                       "the file shrank from %zu to %" PRIu64
                       " bytes while it was in use. Replace files by renaming, never in "
                       "place",
                       m->n_bytes, (uint64_t)st.st_size);
    return dw_fail(err, DW_IO, m->path,
                   "a part of the file could not be reached while it was in use: it "
                   "shrank for a while, or its disk failed");
}

dw_status dw_map_check(const dw_map *map, dw_error *err)
{
    struct stat st;
    const dw_mapped *m = map->entry;
    if (!m)
        return DW_OK;
    if (fstat(m->fd, &st) != 0)
        return dw_fail_errno(err, m->path, "stat");
    return (uint64_t)st.st_size < m->n_bytes ? fail_lost(m, err) : DW_OK;
}

dw_status dw_map_explain(const void *bytes, dw_error *err)
{
    const dw_mapped *m = find(bytes);
    return m ? fail_lost(m, err) : DW_OK;
}

/* ---- mapping ---- */

static dw_status map_file(dw_map *out, bool writable, const char *path, dw_error *err)
{
    if (out->n_bytes == 0)
        return DW_OK;
    const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    dw_mapped *m = dw_alloc_zeroed(1, sizeof *m);
    char *copy = dw_copy_string(path);
    if (!m || !copy) {
        dw_free(m);
        dw_free(copy);
        return dw_fail_memory(err, path);
    }
    void *bytes = mmap(NULL, out->n_bytes, protection, MAP_SHARED, out->fd, 0);
    if (bytes == MAP_FAILED) {
        dw_free(m);
        dw_free(copy);
        return dw_fail_errno(err, path, "map");
    }
    *m = (dw_mapped){bytes, out->n_bytes, out->fd, copy, NULL};
    out->entry = m;
    out->bytes = bytes;
    if (!writable)
        list_add(m);
    return DW_OK;
}

dw_status dw_map_open(dw_map *out, const char *path, bool writable, dw_error *err)
{
    *out = (dw_map){.fd = -1};
    /* without O_NONBLOCK, opening a FIFO would wait */
    out->fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
    if (out->fd < 0)
        return dw_fail_errno(err, path, "open");
    struct stat st;
    dw_status status = DW_OK;
    if (fstat(out->fd, &st) != 0)
        status = dw_fail_errno(err, path, "stat");
    else if (!S_ISREG(st.st_mode))
        status = dw_fail(err, DW_INVALID, path, "not a regular file");
    if (status == DW_OK) {
        out->n_bytes = (size_t)st.st_size;
        status = map_file(out, writable, path, err);
    }
    if (status != DW_OK)
        dw_map_close(out);
    return status;
}

dw_status dw_map_open_fd(dw_map *out, int fd, size_t n_bytes, bool writable,
                         const char *path, dw_error *err)
{
    *out = (dw_map){.n_bytes = n_bytes, .fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)};
    dw_status status = out->fd < 0 ? dw_fail_errno(err, path, "map")
                                   : map_file(out, writable, path, err);
    if (status != DW_OK)
        dw_map_close(out);
    return status;
}

dw_status dw_map_sync(dw_map *map, const char *path, dw_error *err)
{
    if (map->n_bytes > 0 && msync(map->bytes, map->n_bytes, MS_SYNC) != 0)
        return dw_fail_errno(err, path, "sync");
    if (fsync(map->fd) != 0)
        return dw_fail_errno(err, path, "sync");
    return dw_map_check(map, err);
}

void dw_map_close(dw_map *map)
{
    if (map->entry) {
        list_remove(map->entry);
        munmap(map->bytes, map->n_bytes);
        dw_free(map->entry->path);
        dw_free(map->entry);
    }
    if (map->fd >= 0)
        close(map->fd);
    *map = (dw_map){.fd = -1};
}

dw_status dw_map_reserve(dw_map *map, const char *path, dw_error *err)
{
    struct stat st;
    if (map->n_bytes == 0)
        return DW_OK;
    /* these calls would also extend a file that shrank, with zeros */
    dw_status status = dw_map_check(map, err);
    if (status != DW_OK)
        return status;
    if (fallocate(map->fd, FALLOC_FL_UNSHARE_RANGE | FALLOC_FL_KEEP_SIZE, 0,
                  (off_t)map->n_bytes) == 0)
        return DW_OK;
    if (errno == ENOSPC || errno == EDQUOT)
        return dw_fail_errno(err, path, "make room for the stores");
    /* the filesystem has no shared blocks or not that call, but the file may still have
     * holes
     */
    if (fstat(map->fd, &st) != 0)
        return dw_fail_errno(err, path, "stat");
    if ((uint64_t)st.st_blocks * 512 >= map->n_bytes)
        return DW_OK;
    if (fallocate(map->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)map->n_bytes) == 0)
        return DW_OK;
    if (errno == EOPNOTSUPP)
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
        errno != EINVAL || !write)
        return;
    for (size_t i = 0; i < n; i += page) /* a kernel before 5.14 */
        __atomic_fetch_or(start + i, 0, __ATOMIC_RELAXED);
}

/* ---- bytes that may be in a file of others ---- */

void dw_loan_release(dw_loan *loan)
{
    dw_free(loan->bytes);
    *loan = (dw_loan){0};
}

dw_status dw_loan_reserve(dw_loan *loan, size_t n_bytes, dw_error *err)
{
    if (loan->n_room >= n_bytes)
        return DW_OK;
    dw_loan_release(loan);
    loan->bytes = dw_alloc(n_bytes);
    if (!loan->bytes)
        return dw_fail_memory(err, NULL);
    loan->n_room = n_bytes;
    return DW_OK;
}

static dw_status read_file(uint8_t *into, const dw_mapped *m, const void *bytes,
                           size_t n_bytes, dw_error *err)
{
    off_t offset = (const uint8_t *)bytes - m->first;
    while (n_bytes > 0) {
        const ssize_t n = pread(m->fd, into, n_bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dw_fail_errno(err, m->path, "read");
        if (n == 0)
            return fail_lost(m, err);
        into += n;
        offset += n;
        n_bytes -= (size_t)n;
    }
    return DW_OK;
}

dw_status dw_map_read(const void **out, dw_loan *loan, const void *bytes, size_t n_bytes,
                      dw_error *err)
{
    const dw_mapped *m = n_bytes > 0 ? find(bytes) : NULL;
    *out = bytes;
    if (!m)
        return DW_OK;
    dw_status status = dw_loan_reserve(loan, n_bytes, err);
    if (status != DW_OK)
        return status;
    *out = loan->bytes;
    return read_file(loan->bytes, m, bytes, n_bytes, err);
}

dw_status dw_map_read_positions(const uint8_t **out, dw_loan *loan, const void *elems,
                                const uint32_t *positions, size_t n, unsigned width,
                                dw_error *err)
{
    const size_t first = n > 0 ? (size_t)positions[0] * width : 0;
    const size_t end = n > 0 ? ((size_t)positions[n - 1] + 1) * width : 0;
    const void *bytes;
    dw_status status =
        dw_map_read(&bytes, loan, (const uint8_t *)elems + first, end - first, err);
    /* computed as a number, because the result may be before the loan's first byte */
    *out = (const uint8_t *)((uintptr_t)bytes - first);
    return status;
}

dw_status dw_map_copy(void *to, const void *from, size_t n_bytes, dw_error *err)
{
    const dw_mapped *m = n_bytes > 0 ? find(from) : NULL;
    if (m)
        return read_file(to, m, from, n_bytes, err);
    if (n_bytes > 0)
        memcpy(to, from, n_bytes);
    return DW_OK;
}
