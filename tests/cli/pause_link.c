/* To be preloaded: the first linkat to a path that contains PAUSE_AT makes the file
 * PAUSE_GATE.reached and waits for PAUSE_GATE.open. A directory store creates its objects
 * by linkat. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int linkat_fn(int, const char *, int, const char *, int);

static atomic_bool paused;

static void pause_at(const char *gate)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s.reached", gate);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    snprintf(path, sizeof path, "%s.open", gate);
    while (access(path, F_OK) != 0)
        usleep(10000);
}

int linkat(int old_dir, const char *old, int new_dir, const char *new, int flags)
{
    char fd[64], path[PATH_MAX + 256];
    const char *at = getenv("PAUSE_AT"), *gate = getenv("PAUSE_GATE");
    snprintf(fd, sizeof fd, "/proc/self/fd/%d", new_dir);
    const ssize_t n = readlink(fd, path, PATH_MAX);
    if (at && gate && n > 0) {
        snprintf(path + n, sizeof path - (size_t)n, "/%s", new);
        if (strstr(path, at) && !atomic_exchange(&paused, true))
            pause_at(gate);
    }
    linkat_fn *next = (linkat_fn *)dlsym(RTLD_NEXT, "linkat");
    return next(old_dir, old, new_dir, new, flags);
}
