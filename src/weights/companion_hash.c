#include "weights/companion_hash.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"

#define READ_BYTES (256u << 10)

bool dw_companion_same_status(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           memcmp(&a->st_mtim, &b->st_mtim, sizeof a->st_mtim) == 0 &&
           memcmp(&a->st_ctim, &b->st_ctim, sizeof a->st_ctim) == 0;
}

/* A file that others change meanwhile gets some hash, which is that of no list. */
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

dw_status dw_companion_hash(uint8_t sha256[DW_SHA256_BYTES], struct stat *st,
                            bool *is_file, bool *is_still, const char *path,
                            dw_error *err)
{
    struct stat now;
    /* a link is not followed, and opening a FIFO must not wait */
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    *is_file = fd >= 0 && fstat(fd, st) == 0 && S_ISREG(st->st_mode);
    dw_status status = DW_OK;
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EIO))
        status = dw_fail_errno(err, path, "open");
    if (*is_file)
        status = hash_file(sha256, fd, (uint64_t)st->st_size, path, err);
    *is_still = *is_file && fstat(fd, &now) == 0 && dw_companion_same_status(st, &now);
    if (fd >= 0)
        close(fd);
    return status;
}
