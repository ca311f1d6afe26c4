#include "process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "role.h"

#define LOG_TAIL 4000

char soak_dir[64];

static void die(const char *what)
{
    perror(what);
    exit(2);
}

void soak_begin(void)
{
    const char *root = getenv("SOAK_ROOT");
    root = root ? root : getenv("TMPDIR");
    snprintf(soak_dir, sizeof soak_dir, "%s/deltawire-soak-XXXXXX",
             root && *root && strlen(root) < 40 ? root : "/tmp");
    if (!mkdtemp(soak_dir))
        die(soak_dir);
}

void soak_remove_tree(const char *path)
{
    char command[SOAK_PATH + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0)
        printf("cannot remove %s\n", path);
}

static void print_log(const char *path)
{
    char tail[LOG_TAIL + 1];
    FILE *log = fopen(path, "rb");
    if (!log)
        return;
    fseek(log, 0, SEEK_END);
    long n = ftell(log);
    fseek(log, n > LOG_TAIL ? n - LOG_TAIL : 0, SEEK_SET);
    tail[fread(tail, 1, LOG_TAIL, log)] = '\0';
    fclose(log);
    printf("the end of what the processes said:\n%s", tail);
}

int soak_end(bool good)
{
    char log[SOAK_PATH];
    snprintf(log, sizeof log, "%s/log", soak_dir);
    if (!good)
        print_log(log);
    if (!getenv("SOAK_KEEP"))
        soak_remove_tree(soak_dir);
    else
        printf("everything is in %s\n", soak_dir);
    return good ? 0 : 1;
}

void soak_subdir(char out[SOAK_PATH], const char *name)
{
    snprintf(out, SOAK_PATH, "%s/%s", soak_dir, name);
    mkdir(out, 0777); /* may exist */
}

void soak_store_url(char out[SOAK_PATH], const char *name)
{
    const char *root = getenv("DW_TEST_STORE");
    if (root && *root)
        snprintf(out, SOAK_PATH, "%s/%s/%s", root, strrchr(soak_dir, '/') + 1, name);
    else
        snprintf(out, SOAK_PATH, "file://%s/store-%s", soak_dir, name);
}

static dw_status remove_entry(void *context, const dw_store_entry *entry, dw_error *err)
{
    return dw_store_remove(context, entry->key, err);
}

bool soak_store_empty(const char *url)
{
    dw_store *store;
    dw_error err = {0};
    dw_status status = soak_store_open(&store, url, &err);
    if (status == DW_OK) {
        status = dw_store_list(store, "", NULL, remove_entry, store, &err);
        dw_store_close(store);
    }
    if (status != DW_OK)
        soak_say("cannot empty the store", status, &err);
    return status == DW_OK;
}

uint64_t soak_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void soak_sleep_ms(uint64_t ms)
{
    const struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

uint64_t soak_env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void say_start(const char *const argv[], size_t n)
{
    char line[4096];
    int at = snprintf(line, sizeof line, "[%d] starts", (int)getpid());
    for (size_t i = 0; i < n; i++)
        at += snprintf(line + at, sizeof line - (size_t)at, " %.200s", argv[i]);
    line[at++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)at) != at)
        _exit(SOAK_FAULT);
}

pid_t soak_start_program(const char *program, const char *const argv[], size_t n)
{
    char log[SOAK_PATH];
    char *args[32] = {(char *)program};
    for (size_t i = 0; i < n && i < 30; i++)
        args[i + 1] = (char *)argv[i];
    snprintf(log, sizeof log, "%s/log", soak_dir);
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        die("fork");
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(SOAK_FAULT);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd >= 0)
        dup2(fd, STDERR_FILENO);
    say_start(argv, n);
    execv(args[0], args);
    perror(args[0]);
    _exit(SOAK_FAULT);
}

pid_t soak_start(const char *const argv[], size_t n)
{
    return soak_start_program(SOAK_ROLE, argv, n);
}

bool soak_has_ended(pid_t pid, bool *good)
{
    int status;
    if (waitpid(pid, &status, WNOHANG) != pid)
        return false;
    bool killed = WIFSIGNALED(status) &&
                  (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM);
    bool left = WIFEXITED(status) &&
                (WEXITSTATUS(status) == SOAK_FINE || WEXITSTATUS(status) == SOAK_FENCED);
    if (!killed && !left) {
        printf("process %d ended with %s %d\n", (int)pid,
               WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        *good = false;
    }
    return true;
}
