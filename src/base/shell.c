#include "base/shell.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/mem.h"

enum {
    GRACE_MS = 2000, /* from SIGTERM to SIGKILL, and from there to giving up */
    TICK_MS = 20,    /* between two checks for an end that did not close the pipe */
};

/* ---- starting ---- */

/* OUT_FD -1: this process's standard error, because its standard output is for data. */
static int set_files(posix_spawn_file_actions_t *actions, int out_fd, int err_fd)
{
    /* its group is not the terminal's foreground group: a read there would stop it */
    int refused =
        posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!refused)
        refused = posix_spawn_file_actions_adddup2(
            actions, out_fd < 0 ? STDERR_FILENO : out_fd, STDOUT_FILENO);
    if (!refused)
        refused = posix_spawn_file_actions_adddup2(actions, err_fd, STDERR_FILENO);
    return refused;
}

/* The command does not inherit this process's ignored and blocked signals. */
static int set_signals(posix_spawnattr_t *attributes)
{
    sigset_t all, none;
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(attributes, &all);
    posix_spawnattr_setsigmask(attributes, &none);
    posix_spawnattr_setpgroup(attributes, 0);
    return posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGDEF |
                                                    POSIX_SPAWN_SETSIGMASK |
                                                    POSIX_SPAWN_SETPGROUP);
}

static int spawn(pid_t *pid, char *command, char **environment, int out_fd, int err_fd)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int refused = posix_spawn_file_actions_init(&actions);
    if (refused)
        return refused;
    refused = posix_spawnattr_init(&attributes);
    if (!refused) {
        char *argv[] = {"sh", "-c", command, NULL};
        refused = set_files(&actions, out_fd, err_fd);
        if (!refused)
            refused = set_signals(&attributes);
        if (!refused)
            refused =
                posix_spawn(pid, "/bin/sh", &actions, &attributes, argv, environment);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return refused;
}

/* ---- the last line of its standard error ---- */

typedef struct line_keeper {
    char line[256]; /* with room for a NUL */
    size_t n;
    bool ended;
} line_keeper;

static void keep(line_keeper *k, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n' || bytes[i] == '\r') {
            k->ended = true;
            continue;
        }
        if (k->ended)
            k->n = 0;
        k->ended = false;
        if (k->n < sizeof k->line - 1)
            k->line[k->n++] = bytes[i];
    }
}

/* ---- waiting ---- */

enum { OUTPUT, FAULTS, N_PIPES };

typedef struct watch {
    pid_t pid;
    int fds[N_PIPES]; /* -1: its other end is closed, or it is not read here */
    line_keeper keeper;
    dw_writer *output;
    size_t n_output;
    int status;
    bool lost; /* other code of this process took the exit code */
} watch;

/* Reads what is there; closes the pipe at its end. Returns the number of bytes. */
static size_t read_some(watch *w, int which)
{
    char bytes[4096];
    ssize_t n = read(w->fds[which], bytes, sizeof bytes);
    if (n > 0 && which == FAULTS)
        keep(&w->keeper, bytes, (size_t)n);
    if (n > 0 && which == OUTPUT && (size_t)n <= DW_SHELL_OUTPUT - w->n_output) {
        dw_write_bytes(w->output, bytes, (size_t)n);
        w->n_output += (size_t)n;
    }
    OPENSSL_cleanse(bytes, sizeof bytes); /* a command may print secrets */
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        close(w->fds[which]);
        w->fds[which] = -1;
    }
    return n > 0 ? (size_t)n : 0;
}

static bool has_ended(watch *w)
{
    pid_t got;
    do
        got = waitpid(w->pid, &w->status, WNOHANG);
    while (got < 0 && errno == EINTR);
    w->lost = got < 0;
    return got != 0;
}

/* Waits until the command has ended (true) or until UNTIL_MS. Background processes that
 * it left may keep the pipe open: they are not waited for. */
static bool wait_until(watch *w, uint64_t until_ms)
{
    for (uint64_t tick_ms = 1;;) {
        if (has_ended(w))
            return true;
        uint64_t now_ms = dw_clock_ms();
        if (now_ms >= until_ms)
            return false;
        uint64_t left_ms = until_ms - now_ms;
        const bool open = w->fds[OUTPUT] >= 0 || w->fds[FAULTS] >= 0;
        uint64_t wait_ms = open ? TICK_MS : tick_ms;
        if (wait_ms > left_ms)
            wait_ms = left_ms;
        struct pollfd pipes[N_PIPES]; /* poll ignores -1 */
        for (int i = 0; i < N_PIPES; i++)
            pipes[i] = (struct pollfd){.fd = w->fds[i], .events = POLLIN};
        if (poll(pipes, N_PIPES, (int)wait_ms) > 0) {
            for (int i = 0; i < N_PIPES; i++)
                if (pipes[i].revents)
                    read_some(w, i);
        } else if (!open && tick_ms < TICK_MS) {
            tick_ms *= 2;
        }
    }
}

static bool wait_for_end(watch *w, unsigned limit_ms, dw_shell_end *end)
{
    bool ended = wait_until(w, dw_clock_ms() + limit_ms);
    end->timed_out = !ended;
    if (!ended) {
        kill(-w->pid, SIGTERM);
        ended = wait_until(w, dw_clock_ms() + GRACE_MS);
        kill(-w->pid, SIGKILL); /* the whole group, even if its leader has ended */
    }
    return ended || wait_until(w, dw_clock_ms() + GRACE_MS);
}

static void take_end(watch *w, dw_shell_end *end)
{
    /* the rest of its output: the pipes do not block and hold no more than this, but
     * background processes may go on writing */
    for (int i = 0; i < N_PIPES; i++)
        for (size_t n_left = 64 << 10; w->fds[i] >= 0 && n_left > 0;) {
            size_t n = read_some(w, i);
            if (n == 0)
                break;
            n_left -= n < n_left ? n : n_left;
        }
    memcpy(end->last_line, w->keeper.line, w->keeper.n);
    end->last_line[w->keeper.n] = '\0';
    end->signal = WIFSIGNALED(w->status) ? WTERMSIG(w->status) : 0;
    end->code = WIFEXITED(w->status) ? WEXITSTATUS(w->status) : -1;
}

static bool open_pipe(int fds[2])
{
    if (pipe(fds) != 0)
        return false;
    for (int i = 0; i < 2; i++)
        fcntl(fds[i], F_SETFD, FD_CLOEXEC);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    return true;
}

static void close_pipe(int fds[2])
{
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static dw_status run(char *command, char **environment, unsigned limit_ms,
                     dw_writer *output, dw_shell_end *end, dw_error *err)
{
    int faults[2] = {-1, -1}, out[2] = {-1, -1};
    if (!open_pipe(faults) || (output && !open_pipe(out))) {
        dw_status status = dw_fail_errno(err, command, "make a pipe");
        close_pipe(faults);
        return status;
    }
    watch w = {.fds = {[OUTPUT] = out[0], [FAULTS] = faults[0]}, .output = output};
    errno = spawn(&w.pid, command, environment, out[1], faults[1]);
    dw_status status = errno ? dw_fail_errno(err, command, "run") : DW_OK;
    close_pipe((int[2]){out[1], faults[1]});
    if (status == DW_OK) {
        end->began = true;
        bool ended = wait_for_end(&w, limit_ms, end);
        take_end(&w, end);
        if (!ended)
            status =
                dw_fail(err, DW_UNAVAILABLE, command, "does not end, even after SIGKILL");
        else if (w.lost)
            status = dw_fail(err, DW_IO, command,
                             "its exit code is lost: this process must not ignore "
                             "SIGCHLD or wait for children that are not its own");
        else if (output && output->failed)
            status = dw_fail_memory(err, command);
    }
    close_pipe(w.fds);
    return status;
}

dw_status dw_shell_run(const char *command, char *const *extra, unsigned limit_ms,
                       dw_writer *output, dw_shell_end *end, dw_error *err)
{
    *end = (dw_shell_end){.code = -1};
    char *copy = dw_copy_string(command);
    char **environment = dw_environment_extend(extra);
    dw_status status = copy && environment
                           ? run(copy, environment, limit_ms, output, end, err)
                           : dw_fail_memory(err, command);
    dw_free(copy);
    dw_free(environment);
    return status;
}
