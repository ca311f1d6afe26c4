#include "follow/installed.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <deltawire/stream.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "stream/record_files.h"
#include "inner.h"

#define READ_BYTES (256u << 10)
#define N_TRIES    5

/* ---- one file ---- */

/* A file that others change meanwhile gets some hash, which is that of no record. */
static dw_status hash_file(uint8_t sha256[DW_SHA256_BYTES], int fd, uint64_t n_bytes,
                           const char *path, dw_error *err)
{
    dw_sha256 hash;
    uint8_t *buffer = dw_alloc(READ_BYTES);
    dw_status status = buffer ? dw_sha256_init(&hash, err) : dw_fail_memory(err, path);
    if (status != DW_OK) {
        dw_free(buffer);
        return status;
    }
    for (ssize_t n = 1; status == DW_OK && n_bytes > 0 && n != 0;) {
        n = read(fd, buffer, n_bytes < READ_BYTES ? (size_t)n_bytes : READ_BYTES);
        if (n > 0) {
            dw_sha256_update(&hash, buffer, (size_t)n);
            n_bytes -= (uint64_t)n;
        } else if (n < 0 && errno != EINTR) {
            status = dw_fail_errno(err, path, "read");
        }
    }
    dw_free(buffer);
    if (status == DW_OK)
        return dw_sha256_final(&hash, sha256, err);
    dw_sha256_release(&hash);
    return status;
}

/* Whether a file can be OURS or WANTED. With a hash: whether it is. */
static dw_look compare(const dw_file_entry *found, bool with_hash,
                       const dw_installed *ours, const dw_file_entry *wanted)
{
    dw_look look = {.exists = true};
    for (size_t i = 0; i < ours->list.n; i++) {
        const dw_file_entry *e = &ours->list.items[i];
        look.is_ours |=
            strcmp(e->name, found->name) == 0 &&
            (with_hash ? dw_file_entry_same(e, found) : e->n_bytes == found->n_bytes);
    }
    if (wanted)
        look.is_wanted = with_hash ? dw_file_entry_same(wanted, found)
                                   : wanted->n_bytes == found->n_bytes;
    return look;
}

static dw_status look_at_path(dw_look *out, const char *path, const char *name,
                              const dw_installed *ours, const dw_file_entry *wanted,
                              dw_error *err)
{
    struct stat st;
    *out = (dw_look){0};
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? DW_OK : dw_fail_errno(err, path, "look at");
    out->exists = true;
    if (!S_ISREG(st.st_mode))
        return DW_OK;
    dw_file_entry found = {.name = (char *)name, .n_bytes = (uint64_t)st.st_size};
    const dw_look may_be = compare(&found, false, ours, wanted);
    if (!may_be.is_ours && !may_be.is_wanted)
        return DW_OK;
    /* a link is not followed, and opening a FIFO must not wait */
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EIO
                   ? dw_fail_errno(err, path, "open")
                   : DW_OK;
    dw_status status = DW_OK;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        found.n_bytes = (uint64_t)st.st_size;
        status = hash_file(found.sha256, fd, found.n_bytes, path, err);
        *out = compare(&found, true, ours, wanted);
    }
    close(fd);
    return status;
}

dw_status dw_look_at(dw_look *out, const char *dir, const char *name,
                     const dw_installed *ours, const dw_file_entry *wanted, dw_error *err)
{
    char *path = dw_join_path(dir, name);
    dw_status status = path ? look_at_path(out, path, name, ours, wanted, err)
                            : dw_fail_memory(err, dir);
    dw_free(path);
    return status;
}

/* ---- all files, for callers ---- */

static bool is_repeated(const dw_file_list *list, size_t i)
{
    return i > 0 && strcmp(list->items[i - 1].name, list->items[i].name) == 0;
}

static dw_status report(const dw_look *looks, const dw_installed *ours, const char *dir,
                        dw_fault_fn fn, void *context, dw_error *err)
{
    for (size_t i = 0; i < ours->list.n; i++) {
        dw_error fault;
        if (looks[i].is_ours)
            continue;
        char *path = dw_join_path(dir, ours->list.items[i].name);
        if (!path)
            return dw_fail_memory(err, dir);
        if (!looks[i].exists)
            dw_fail(&fault, DW_NOT_FOUND, path,
                    "the companion file is missing: pull again to install it");
        else
            dw_fail(&fault, DW_CORRUPT, path,
                    "the companion file was changed after it was installed. Remove it "
                    "and pull again to get the version's; if you keep it, it is yours "
                    "from the next pull on");
        fn(context, &fault);
        dw_free(path);
    }
    return DW_OK;
}

/* Looks at all files, and reports the faults unless the record is another one afterwards.
 * While files are installed, those that are missing are not there yet, or were just
 * removed; the next install ends that. */
static dw_status check(bool *is_done, const dw_installed *ours, const char *dir,
                       dw_fault_fn fn, void *context, dw_error *err)
{
    bool any = false;
    dw_installed now = {0};
    dw_look *looks = dw_alloc_zeroed(ours->list.n + 1, sizeof *looks);
    dw_status status = looks ? DW_OK : dw_fail_memory(err, dir);
    for (size_t i = 0; status == DW_OK && i < ours->list.n; i++) {
        status = dw_look_at(&looks[i], dir, ours->list.items[i].name, ours, NULL, err);
        looks[i].is_ours |= (ours->installing && !looks[i].exists) ||
                            is_repeated(&ours->list, i); /* the first one counts */
        any = any || !looks[i].is_ours;
    }
    if (status == DW_OK && any)
        status = dw_position_read_files(&now, dir, err);
    *is_done = status == DW_OK && (!any || dw_installed_same(ours, &now));
    if (*is_done && any)
        status = report(looks, ours, dir, fn, context, err);
    dw_installed_release(&now);
    dw_free(looks);
    return status;
}

/* A follower may be installing files meanwhile. It writes the record first and last, so a
 * fault counts only if the record is the same after it was found. */
dw_status dw_companions_check(const char *dir, dw_fault_fn fn, void *context,
                              size_t *n_files, dw_error *err)
{
    dw_status status = DW_OK;
    bool is_done = false;
    *n_files = 0;
    for (int i = 0; status == DW_OK && !is_done && i < N_TRIES; i++) {
        dw_installed ours;
        status = dw_position_read_files(&ours, dir, err);
        *n_files = 0;
        for (size_t k = 0; k < ours.list.n; k++)
            *n_files += !is_repeated(&ours.list, k);
        if (status == DW_OK)
            status = check(&is_done, &ours, dir, fn, context, err);
        dw_installed_release(&ours);
    }
    return status;
}
