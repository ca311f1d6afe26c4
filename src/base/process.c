#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

void dw_boot_id(char out[DW_BOOT_TEXT])
{
    memset(out, 0, DW_BOOT_TEXT);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read(fd, out, DW_BOOT_TEXT - 1) != DW_BOOT_TEXT - 1)
        out[0] = '\0';
    close(fd);
}

/* When process PID was started; 0 if that is not known, or it is dead and only its parent
 * has not asked for its exit status yet. */
static uint64_t started(uint64_t pid, bool *is_dead)
{
    char path[48], line[512] = "", state;
    uint64_t begun = 0;
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", pid);
    *is_dead = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    const ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    const char *end = n > 0 ? strrchr(line, ')') : NULL; /* after the name */
    if (!end || sscanf(end + 1, " %c", &state) != 1)
        return 0;
    *is_dead = state == 'Z' || state == 'X';
    for (unsigned field = 2; end && field < 22; field++) /* see proc(5) */
        end = strchr(end + 1, ' ');
    return end && sscanf(end, " %" SCNu64, &begun) == 1 ? begun : 0;
}

void dw_process_self(dw_process *out)
{
    struct stat space;
    char boot[DW_BOOT_TEXT], name[DW_BOOT_TEXT + 48];
    bool is_dead;
    memset(out, 0, sizeof *out);
    dw_boot_id(boot);
    if (!boot[0] || stat("/proc/self/ns/pid", &space) != 0)
        return;
    out->begun = started((uint64_t)getpid(), &is_dead);
    if (out->begun == 0)
        return;
    out->pid = (uint64_t)getpid();
    snprintf(name, sizeof name, "%s/%llu", boot, (unsigned long long)space.st_ino);
    snprintf(out->machine, sizeof out->machine, "%016" PRIx64,
             (uint64_t)XXH64(name, strlen(name), 0));
}

bool dw_process_equal(const dw_process *a, const dw_process *b)
{
    return a->pid != 0 && a->pid == b->pid && a->begun == b->begun &&
           strcmp(a->machine, b->machine) == 0;
}

bool dw_process_has_ended(const dw_process *process)
{
    dw_process self;
    bool is_dead;
    dw_process_self(&self);
    if (process->pid == 0 || self.pid == 0 || process->pid > INT32_MAX ||
        strcmp(process->machine, self.machine) != 0)
        return false;
    /* /proc may hide the processes of other users */
    if (kill((pid_t)process->pid, 0) != 0 && errno == ESRCH)
        return true;
    const uint64_t begun = started(process->pid, &is_dead);
    return is_dead || (begun != 0 && begun != process->begun);
}
