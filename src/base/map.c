#define _GNU_SOURCE /* fallocate, process_vm_writev */
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"

#define COPY_BYTES (1u << 20) /* the size of a piece in dw_map_copy */

/* ---- the list of mapped files ----
 *
 * A signal handler reads it, so readers take no lock: entries are never freed, only used
 * again, and each has a sequence number that is odd while the entry changes. */

struct dw_mapped {
    atomic_uint sequence;
    atomic_uintptr_t first;
    atomic_size_t n_bytes; /* 0: the entry is free */
    int fd;
    char *path;
    size_t page_bytes;
    atomic_bool lost; /* the guard replaced a page */
};

#define GROUP_ENTRIES 64

typedef struct group {
    dw_mapped entries[GROUP_ENTRIES];
    _Atomic(struct group *) next;
} group;

static group first_group;
static atomic_size_t n_listed;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER; /* for writers */

/* Initial-exec, because the first access in a signal handler must not allocate. */
static _Thread_local dw_map_uses uses __attribute__((tls_model("initial-exec")));

/* False if there is no room. */
static bool note_use(dw_mapped *m)
{
    for (unsigned i = 0; i < uses.n; i++)
        if (uses.entries[i] == m)
            return true;
    if (uses.n == DW_MAP_USES)
        return false;
    uses.entries[uses.n++] = m;
    return true;
}

static dw_mapped *find_free(void)
{
    for (group *g = &first_group;;) {
        for (size_t i = 0; i < GROUP_ENTRIES; i++)
            if (atomic_load(&g->entries[i].n_bytes) == 0)
                return &g->entries[i];
        group *next = atomic_load(&g->next);
        if (!next) {
            next = dw_alloc_zeroed(1, sizeof *next);
            if (!next)
                return NULL;
            atomic_store(&g->next, next);
        }
        g = next;
    }
}

/* The size of the pages that a file is mapped in. */
static size_t find_page_bytes(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC
               ? (size_t)fs.f_bsize
               : (size_t)sysconf(_SC_PAGESIZE);
}

static dw_mapped *list_add(const void *bytes, size_t n_bytes, int fd, const char *path)
{
    char *copy = dw_copy_string(path);
    if (!copy)
        return NULL;
    pthread_mutex_lock(&list_lock);
    dw_mapped *m = find_free();
    if (m) {
        atomic_fetch_add(&m->sequence, 1);
        m->fd = fd;
        m->path = copy;
        m->page_bytes = find_page_bytes(fd);
        atomic_store(&m->lost, false);
        atomic_store(&m->first, (uintptr_t)bytes);
        atomic_store(&m->n_bytes, n_bytes);
        atomic_fetch_add(&m->sequence, 1);
        atomic_fetch_add(&n_listed, 1);
    } else {
        dw_free(copy);
    }
    pthread_mutex_unlock(&list_lock);
    return m;
}

static void list_remove(dw_mapped *m)
{
    pthread_mutex_lock(&list_lock);
    atomic_fetch_add(&m->sequence, 1);
    atomic_store(&m->n_bytes, 0);
    dw_free(m->path);
    m->path = NULL;
    atomic_fetch_add(&m->sequence, 1);
    atomic_fetch_sub(&n_listed, 1);
    pthread_mutex_unlock(&list_lock);
}

static bool holds(dw_mapped *m, uintptr_t address)
{
    for (;;) {
        const unsigned before = atomic_load(&m->sequence);
        const uintptr_t first = atomic_load(&m->first);
        const size_t n_bytes = atomic_load(&m->n_bytes);
        if (before % 2 == 1)
            return false; /* being added or removed: nobody may use its bytes yet */
        if (atomic_load(&m->sequence) == before)
            return address - first < n_bytes;
    }
}

dw_mapped *dw_mapped_find(const void *address)
{
    if (atomic_load_explicit(&n_listed, memory_order_relaxed) == 0)
        return NULL;
    for (group *g = &first_group; g; g = atomic_load(&g->next))
        for (size_t i = 0; i < GROUP_ENTRIES; i++)
            if (holds(&g->entries[i], (uintptr_t)address))
                return &g->entries[i];
    return NULL;
}

size_t dw_mapped_page(const dw_mapped *entry)
{
    return entry->page_bytes;
}

const char *dw_mapped_path(const dw_mapped *entry)
{
    return entry->path;
}

void dw_mapped_lose(dw_mapped *entry)
{
    atomic_store(&entry->lost, true);
    if (!note_use(entry))
        uses.entries[0] = entry; /* one lost file is enough to fail */
}

/* ---- faults ---- */

static dw_status fail_lost(const dw_mapped *m, dw_error *err)
{
    struct stat st;
    const size_t n_bytes = atomic_load(&m->n_bytes);
    if (fstat(m->fd, &st) == 0 && (uint64_t)st.st_size < n_bytes)
        return dw_fail(err, DW_IO, m->path,
                       "the file shrank from %zu to %" PRIu64
                       " bytes while it was in use. Replace files by renaming, never in "
                       "place",
                       n_bytes, (uint64_t)st.st_size);
    return dw_fail(err, DW_IO, m->path,
                   "a part of the file could not be reached while it was in use: it "
                   "shrank for a while, or its disk failed");
}

static dw_status check_entry(const dw_mapped *m, dw_error *err)
{
    struct stat st;
    if (fstat(m->fd, &st) != 0)
        return dw_fail_errno(err, m->path, "stat");
    return atomic_load(&m->lost) || (uint64_t)st.st_size < atomic_load(&m->n_bytes)
               ? fail_lost(m, err)
               : DW_OK;
}

dw_status dw_map_check(const dw_map *map, dw_error *err)
{
    return map->entry ? check_entry(map->entry, err) : DW_OK;
}

dw_status dw_map_explain(const void *bytes, dw_error *err)
{
    const dw_mapped *m = dw_mapped_find(bytes);
    return m ? fail_lost(m, err) : DW_OK;
}

dw_map_uses dw_map_begin(void)
{
    const dw_map_uses outer = uses;
    uses.n = 0;
    return outer;
}

dw_status dw_map_end(const dw_map_uses *outer, dw_error *err)
{
    dw_status status = DW_OK;
    for (unsigned i = 0; status == DW_OK && i < uses.n; i++)
        status = check_entry(uses.entries[i], err);
    uses = *outer;
    return status;
}

/* ---- mapping ---- */

static dw_status map_file(dw_map *out, bool writable, const char *path, dw_error *err)
{
    if (out->n_bytes == 0)
        return DW_OK;
    const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    void *bytes = mmap(NULL, out->n_bytes, protection, MAP_SHARED, out->fd, 0);
    if (bytes == MAP_FAILED)
        return dw_fail_errno(err, path, "map");
    out->entry = list_add(bytes, out->n_bytes, out->fd, path);
    if (!out->entry) {
        munmap(bytes, out->n_bytes);
        return dw_fail_memory(err, path);
    }
    out->bytes = bytes;
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
    if (map->entry)
        list_remove(map->entry);
    if (map->bytes)
        munmap(map->bytes, map->n_bytes);
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
        errno != EINVAL || !dw_map_may_touch(bytes))
        return;
    /* a kernel before 5.14 */
    for (size_t i = 0; i < n; i += page)
        if (write)
            __atomic_fetch_or(start + i, 0, __ATOMIC_RELAXED);
        else
            (void)*(volatile uint8_t *)(start + i);
}

/* ---- bytes that may be in a mapped file ---- */

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

/* The entry of BYTES, if this process must not touch them directly. */
static dw_mapped *find_untouchable(const void *bytes)
{
    dw_mapped *m = dw_mapped_find(bytes);
    return !m || (dw_guard_is_active() && note_use(m)) ? NULL : m;
}

bool dw_map_may_touch(const void *bytes)
{
    return find_untouchable(bytes) == NULL;
}

static dw_status read_file(uint8_t *into, const dw_mapped *m, const void *bytes,
                           size_t n_bytes, dw_error *err)
{
    if (atomic_load(&m->lost))
        return fail_lost(m, err);
    off_t offset = (off_t)((uintptr_t)bytes - atomic_load(&m->first));
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
    const dw_mapped *m = n_bytes > 0 ? find_untouchable(bytes) : NULL;
    *out = bytes;
    if (!m)
        return DW_OK;
    dw_status status = dw_loan_reserve(loan, n_bytes, err);
    *out = loan->bytes;
    return status == DW_OK ? read_file(loan->bytes, m, bytes, n_bytes, err) : status;
}

/* Copies through the mapping. pwrite would extend a file that shrank, and nobody would
 * notice the zeros in between. */
static dw_status store_file(uint8_t *to, const dw_mapped *m, const uint8_t *from,
                            size_t n_bytes, dw_error *err)
{
    while (n_bytes > 0) {
        const struct iovec local = {(void *)(uintptr_t)from, n_bytes};
        const struct iovec there = {to, n_bytes};
        const ssize_t n = process_vm_writev(getpid(), &local, 1, &there, 1, 0);
        if (n > 0) {
            to += n;
            from += n;
            n_bytes -= (size_t)n;
        } else if (n < 0 && (errno == ENOSYS || errno == EPERM)) {
            dw_status status = check_entry(m, err);
            if (status != DW_OK)
                return status;
            memcpy(to, from, n_bytes);
            return check_entry(m, err);
        } else {
            return fail_lost(m, err);
        }
    }
    return DW_OK;
}

dw_status dw_map_store(void *to, const void *from, size_t n_bytes, dw_error *err)
{
    const dw_mapped *m = n_bytes > 0 ? find_untouchable(to) : NULL;
    if (m)
        return store_file(to, m, from, n_bytes, err);
    if (n_bytes > 0)
        memcpy(to, from, n_bytes);
    return DW_OK;
}

dw_status dw_map_copy(void *to, const void *from, size_t n_bytes, dw_error *err)
{
    dw_loan loan = {0};
    dw_status status = DW_OK;
    const dw_map_uses outer = dw_map_begin();
    for (size_t at = 0, n; status == DW_OK && at < n_bytes; at += n) {
        const void *bytes;
        n = n_bytes - at < COPY_BYTES ? n_bytes - at : COPY_BYTES;
        status = dw_map_read(&bytes, &loan, (const uint8_t *)from + at, n, err);
        if (status == DW_OK)
            status = dw_map_store((uint8_t *)to + at, bytes, n, err);
    }
    dw_loan_release(&loan);
    dw_status end = dw_map_end(&outer, status == DW_OK ? err : NULL);
    return status == DW_OK ? end : status;
}
