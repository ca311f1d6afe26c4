#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "print.h"
#include "stats_model.h"

/* Not every file system can make a file that never had a name. */
static int open_nameless(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    char *path = dw_join_path(dir, "deltawire-stats-XXXXXX");
    fd = path ? mkstemp(path) : -1;
    if (fd >= 0)
        unlink(path);
    dw_free(path);
    return fd;
}

dw_status stats_scratch_map(uint8_t **out, uint64_t n_bytes, const char *work_dir,
                            dw_error *err)
{
    const char *dir = work_dir ? work_dir : getenv("TMPDIR");
    char size[CLI_NUMBER_SIZE];
    *out = NULL;
    if (!dir || !dir[0])
        dir = "/tmp";
    int fd = open_nameless(dir);
    if (fd < 0)
        return dw_fail_errno(err, dir, "make a scratch file");
    /* allocate it now: a store to a page without room on the disk would kill the process
     */
    errno = n_bytes > 0 ? posix_fallocate(fd, 0, (off_t)n_bytes) : 0;
    void *at = NULL;
    if (errno == 0 && n_bytes > 0)
        at = mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int refused = at == MAP_FAILED || errno != 0 ? errno : 0;
    close(fd);
    *out = refused ? NULL : at;
    if (!refused)
        return DW_OK;
    errno = refused;
    return dw_fail(err, DW_IO, dir,
                   "cannot take %s for scratch: %s; name another directory with "
                   "--work",
                   cli_format_size(size, n_bytes),
                   refused == ENOSPC ? "no space left" : "refused by the system");
}

void stats_scratch_unmap(uint8_t *scratch, size_t n_bytes)
{
    if (scratch)
        munmap(scratch, n_bytes);
}
