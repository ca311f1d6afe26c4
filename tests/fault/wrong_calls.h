/* System calls that go wrong: the process is killed before one, or inside a write, or the
 * call fails. A test names the calls in its line `wrap:`, and has a WRAP_ of each.
 * Include after cmocka.h. */
#ifndef DW_TEST_WRONG_CALLS_H
#define DW_TEST_WRONG_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NEVER = -1, KILLED = 99 };

static int calls_left = NEVER; /* until the one that goes wrong; NEVER from then on */
static int wrong_errno;        /* what it fails with; 0: the process ends instead */
static const char *wrong_call; /* which one it was */

static inline bool goes_wrong(const char *call)
{
    if (calls_left == NEVER || calls_left-- > 0)
        return false;
    calls_left = NEVER;
    wrong_call = call;
    return true;
}

/* Ends the process, or sets errno. */
static inline bool go_wrong(void)
{
    if (wrong_errno == 0)
        _exit(KILLED);
    errno = wrong_errno;
    return true;
}

static inline bool fails(const char *call)
{
    return goes_wrong(call) && go_wrong();
}

#define WRAP_CALL(type, bad, name, parameters, arguments)                                \
    type __real_##name parameters;                                                       \
    type __wrap_##name parameters;                                                       \
    type __wrap_##name parameters                                                        \
    {                                                                                    \
        return fails(#name) ? (bad) : __real_##name arguments;                           \
    }

/* COUNTS: whether a call with `flags` is one of those that can go wrong. */
#define WRAP_OPEN(counts)                                                                \
    int __real_open(const char *path, int flags, ...);                                   \
    int __wrap_open(const char *path, int flags, ...);                                   \
    int __wrap_open(const char *path, int flags, ...)                                    \
    {                                                                                    \
        va_list args;                                                                    \
        va_start(args, flags);                                                           \
        const unsigned mode = flags & O_CREAT ? va_arg(args, unsigned) : 0;              \
        va_end(args);                                                                    \
        return (counts) && fails("open") ? -1 : __real_open(path, flags, mode);          \
    }

/* Half of it is written. */
#define WRAP_PWRITE                                                                      \
    ssize_t __real_pwrite(int fd, const void *bytes, size_t n, off_t offset);            \
    ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t offset);            \
    ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t offset)             \
    {                                                                                    \
        if (!goes_wrong("pwrite"))                                                       \
            return __real_pwrite(fd, bytes, n, offset);                                  \
        if (n > 1 && __real_pwrite(fd, bytes, n / 2, offset) < 0)                        \
            return -1;                                                                   \
        return go_wrong() ? -1 : 0;                                                      \
    }

/* fsync and msync while the power stays on: nothing need happen. */
#define WRAP_SYNCS                                                                       \
    int __wrap_fsync(int fd);                                                            \
    int __wrap_fsync(int fd)                                                             \
    {                                                                                    \
        (void)fd;                                                                        \
        return fails("fsync") ? -1 : 0;                                                  \
    }                                                                                    \
    int __wrap_msync(void *at, size_t n, int flags);                                     \
    int __wrap_msync(void *at, size_t n, int flags)                                      \
    {                                                                                    \
        (void)at, (void)n, (void)flags;                                                  \
        return fails("msync") ? -1 : 0;                                                  \
    }

#define WRAP_FSYNC WRAP_CALL(int, -1, fsync, (int fd), (fd))
#define WRAP_MSYNC                                                                       \
    WRAP_CALL(int, -1, msync, (void *at, size_t n, int flags), (at, n, flags))
#define WRAP_RENAME                                                                      \
    WRAP_CALL(int, -1, rename, (const char *from, const char *to), (from, to))
#define WRAP_LINK   WRAP_CALL(int, -1, link, (const char *from, const char *to), (from, to))
#define WRAP_UNLINK WRAP_CALL(int, -1, unlink, (const char *path), (path))
#define WRAP_UNLINKAT                                                                    \
    WRAP_CALL(int, -1, unlinkat, (int dir, const char *path, int flags),                 \
              (dir, path, flags))
#define WRAP_MKDIR                                                                       \
    WRAP_CALL(int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
#define WRAP_FLOCK WRAP_CALL(int, -1, flock, (int fd, int operation), (fd, operation))

#endif
