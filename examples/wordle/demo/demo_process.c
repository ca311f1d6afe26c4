#include "demo_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fail.h"
#include "program.h"

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* ---- starting ---- */

static int open_log(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

/* Between fork and exec; does not return. */
static _Noreturn void become(char *const argv[], int out, int trouble, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDONLY);
    if (getppid() == parent && null >= 0 && dup2(null, 0) == 0 && dup2(out, 1) == 1 &&
        dup2(trouble, 2) == 2)
        execvp(argv[0], argv);
    dprintf(trouble, "%s: cannot be started: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* The words of PREFIX, which is cut up, and then those of ARGV. */
static bool join(char *words[], char *prefix, char *const argv[])
{
    size_t n = 0;
    char *rest = NULL;
    for (char *w = strtok_r(prefix, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
        if (n + 1 >= DEMO_MAX_ARGUMENTS)
            return false;
        words[n++] = w;
    }
    while (*argv && n + 1 < DEMO_MAX_ARGUMENTS)
        words[n++] = *argv++;
    words[n] = NULL;
    return *argv == NULL;
}

dw_status demo_start(demo_process *p, const char *dir, const char *name,
                     const char *prefix, char *const argv[], dw_error *err)
{
    char trouble_path[DEMO_PATH_BYTES], before[DEMO_PATH_BYTES];
    char *words[DEMO_MAX_ARGUMENTS];
    *p = (demo_process){0};
    snprintf(p->name, sizeof p->name, "%s", name);
    snprintf(before, sizeof before, "%s", prefix);
    if (snprintf(p->log, sizeof p->log, "%s/%s.log", dir, name) >= (int)sizeof p->log ||
        !join(words, before, argv))
        return wordle_fail(err, DW_INVALID, name, "has too long a command line");
    snprintf(trouble_path, sizeof trouble_path, "%s/%s.err", dir, name);
    int out = open_log(p->log), trouble = open_log(trouble_path);
    const pid_t parent = getpid();
    pid_t pid = out >= 0 && trouble >= 0 ? fork() : -1;
    if (pid == 0)
        become(words, out, trouble, parent);
    if (out >= 0)
        close(out);
    if (trouble >= 0)
        close(trouble);
    if (pid < 0)
        return wordle_fail(err, DW_IO, name, "cannot be started: %s", strerror(errno));
    setpgid(pid, pid);
    p->pid = pid;
    return DW_OK;
}

/* ---- ending ---- */

bool demo_runs(demo_process *p)
{
    if (p->pid > 0 && waitpid(p->pid, &p->status, WNOHANG) == p->pid)
        p->pid = 0;
    return p->pid > 0;
}

void demo_kill_now(demo_process *p)
{
    if (!demo_runs(p))
        return;
    kill(-p->pid, SIGKILL);
    waitpid(p->pid, &p->status, 0);
    p->pid = 0;
}

static dw_status interrupted(const demo_process *p, dw_error *err)
{
    return wordle_fail(err, DW_CANCELLED, p->name, "interrupted");
}

void demo_end(demo_process *const *all, size_t n, unsigned grace_ms)
{
    const uint64_t began_ms = program_clock_ms();
    size_t n_left = 0;
    for (size_t i = 0; i < n; i++)
        if (demo_runs(all[i]))
            kill(-all[i]->pid, SIGTERM);
    do {
        n_left = 0;
        for (size_t i = 0; i < n; i++)
            n_left += demo_runs(all[i]);
        if (n_left > 0)
            nap();
    } while (n_left > 0 && program_clock_ms() - began_ms < grace_ms);
    for (size_t i = 0; i < n; i++)
        demo_kill_now(all[i]);
}

void demo_last_words(const demo_process *p, char *out, size_t room)
{
    char path[DEMO_PATH_BYTES], line[512];
    snprintf(path, sizeof path, "%.*s.err", (int)strlen(p->log) - 4, p->log);
    snprintf(out, room, "it said nothing");
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0])
            snprintf(out, room, "%s", line);
    }
    fclose(file);
}

dw_status demo_run(const char *dir, const char *name, const char *prefix,
                   char *const argv[], dw_error *err)
{
    demo_process p;
    dw_status status = demo_start(&p, dir, name, prefix, argv, err);
    if (status != DW_OK)
        return status;
    while (demo_runs(&p)) {
        if (program_is_to_end()) {
            demo_kill_now(&p);
            return interrupted(&p, err);
        }
        nap();
    }
    if (WIFEXITED(p.status) && WEXITSTATUS(p.status) == 0)
        return DW_OK;
    char why[512];
    demo_last_words(&p, why, sizeof why);
    return wordle_fail(err, DW_CONFLICT, name, "failed: %s", why);
}

/* ---- addresses ---- */

static bool find_address(const demo_process *p, const char *says, char *url, size_t room)
{
    char line[512];
    const size_t n = strlen(says);
    bool found = false;
    FILE *file = fopen(p->log, "r");
    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file))
        if (strchr(line, '\n') && strncmp(line, says, n) == 0 && line[n] == ' ') {
            line[strcspn(line, "\n")] = '\0';
            snprintf(url, room, "%s", line + n + 1);
            found = true;
        }
    fclose(file);
    return found;
}

dw_status demo_address(demo_process *p, const char *says, char *url, size_t room,
                       unsigned timeout_ms, dw_error *err)
{
    const uint64_t began_ms = program_clock_ms();
    while (demo_runs(p) && program_clock_ms() - began_ms < timeout_ms) {
        if (find_address(p, says, url, room))
            return DW_OK;
        if (program_is_to_end())
            return interrupted(p, err);
        nap();
    }
    char why[512];
    demo_last_words(p, why, sizeof why);
    return wordle_fail(err, DW_UNAVAILABLE, p->name, "is not %s anything: %s", says, why);
}

/* ---- what is left ---- */

dw_status demo_janitor(const char *dir, int *fd, dw_error *err)
{
    int ends[2];
    pid_t pid = pipe(ends) == 0 ? fork() : -1;
    if (pid < 0)
        return wordle_fail(err, DW_IO, dir, "has nobody to remove it: %s",
                           strerror(errno));
    if (pid == 0) {
        char byte, *name = strdup(dir);
        setsid();
        close(ends[1]);
        close(1); /* a reader of the demo's output must not wait for this */
        close(2);
        while (read(ends[0], &byte, 1) < 0 && errno == EINTR)
            ;
        for (int again = 0; again < 100 && name; again++) {
            /* killed processes may still be writing */
            pid_t remover = fork();
            if (remover == 0) {
                execlp("rm", "rm", "-rf", "--", name, (char *)NULL);
                _exit(127);
            }
            if (remover > 0)
                waitpid(remover, NULL, 0);
            if (access(name, F_OK) != 0)
                break;
            nap();
        }
        _exit(0);
    }
    close(ends[0]);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    *fd = ends[1];
    return DW_OK;
}
