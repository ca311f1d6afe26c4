#include "engine/ready.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "weights/own_dir.h"

#define PREFIX "engine-"

/* Whether the engine of the file NAME in OWN is done with PATCH, or has ended. */
static bool is_done(int own, const char *name, const struct stat *patch)
{
    char wanted[80], found[80] = "";
    int fd = openat(own, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return true;
    bool done = true;
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        (void)unlinkat(own, name, 0);
    } else {
        snprintf(wanted, sizeof wanted, "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                 (uint64_t)patch->st_ino, (uint64_t)patch->st_size,
                 (uint64_t)patch->st_mtim.tv_sec * 1000000000 +
                     (uint64_t)patch->st_mtim.tv_nsec);
        const ssize_t n = pread(fd, found, sizeof found - 1, 0);
        done = n > 0 && strcmp(found, wanted) == 0;
    }
    close(fd);
    return done;
}

static bool all_done(const char *path, const struct stat *patch)
{
    bool done = true;
    DIR *own = opendir(path);
    for (struct dirent *e; own && done && (e = readdir(own)) != NULL;)
        if (strncmp(e->d_name, PREFIX, strlen(PREFIX)) == 0)
            done = is_done(dirfd(own), e->d_name, patch);
    if (own)
        closedir(own);
    return done;
}

bool dw_engines_ready(const char *dir, const char *patch, unsigned limit_ms)
{
    struct stat st;
    char *path = dw_join_path(dir, DW_OWN_DIR);
    bool ready = !path || stat(patch, &st) != 0; /* then there is nothing to wait for */
    const uint64_t until = dw_clock_ms() + limit_ms;
    while (!ready && !(ready = all_done(path, &st)) && dw_clock_ms() < until)
        dw_sleep_ms(1);
    dw_free(path);
    return ready;
}
