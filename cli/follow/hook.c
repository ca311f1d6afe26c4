#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/mem.h"
#include "progress_bar.h"

#define T_GRACE 2.0 /* seconds from SIGTERM to SIGKILL, and from there to giving up */

static int spawn_shell(const cli_session *s, pid_t *pid, const char *command,
                       char **environment)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    int refused = posix_spawn_file_actions_init(&actions);
    if (refused)
        return refused;
    refused = posix_spawnattr_init(&attributes);
    if (refused) {
        posix_spawn_file_actions_destroy(&actions);
        return refused;
    }
    /* this process ignores it (progress_bar.c), but the command should not */
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGXFSZ);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    /* a process group of its own, so that a signal reaches all its processes once */
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    /* its group is in the background: a read from the terminal would stop it */
    refused = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                               O_RDONLY, 0);
    if (s->json && !refused)
        refused =
            posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    char *copy = strdup(command);
    char *argv[] = {"sh", "-c", copy, NULL};
    if (!copy)
        refused = ENOMEM;
    if (!refused)
        refused = posix_spawn(pid, "/bin/sh", &actions, &attributes, argv, environment);
    free(copy);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return refused;
}

/* False if it cannot even be killed. */
static bool end_group(pid_t pid, int *status)
{
    kill(-pid, SIGTERM);
    kill(-pid, SIGCONT); /* a stopped process would not get the signal */
    bool ended = cli_wait_child_for(pid, T_GRACE, status);
    kill(-pid, SIGKILL); /* also processes that the leader left behind */
    return ended || cli_wait_child_for(pid, T_GRACE, status);
}

dw_status cli_hook_run(const cli_session *s, const char *command, char *const *extra,
                       double limit, cli_hook_end *end, dw_error *err)
{
    *end = (cli_hook_end){0};
    pid_t pid = 0;
    char **environment = dw_environment_extend(extra);
    if (!environment)
        return dw_fail_memory(err, command);
    fflush(stdout);
    errno = spawn_shell(s, &pid, command, environment);
    dw_free(environment);
    if (errno)
        return dw_fail_errno(err, command, "run");
    end->timed_out = !cli_wait_child_for(pid, limit, &end->status);
    if (end->timed_out && !end_group(pid, &end->status))
        return dw_fail(err, DW_UNAVAILABLE, command, "does not end, not even by SIGKILL");
    return DW_OK;
}

const char *cli_hook_fate(char out[32], const cli_hook_end *end)
{
    if (end->timed_out)
        snprintf(out, 32, "timeout");
    else if (WIFSIGNALED(end->status))
        snprintf(out, 32, "signal %d", WTERMSIG(end->status));
    else
        snprintf(out, 32, "exit code %d", WEXITSTATUS(end->status));
    return out;
}
