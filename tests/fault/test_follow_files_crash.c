/* A follower that installs companion files is killed before every system call. A model
 * that appears in an empty directory has its files; the next sync completes the version,
 * and no file of the user's is touched. */
/* wrap: dw_commit_record_write open pwrite fsync rename msync unlink unlinkat link mkdir
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "unit/companion_kit.h"
#include "unit/stream_kit.h"
#include "unit/files_stream.h"

#define HEAD 3

enum { KILLED = 99, NEVER = -1 };

static int calls_left = NEVER;

static void before_call(void)
{
    if (calls_left != NEVER && calls_left-- == 0)
        _exit(KILLED);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    unsigned mode = flags & O_CREAT ? va_arg(args, unsigned) : 0;
    va_end(args);
    if (flags & O_CREAT)
        before_call();
    return __real_open(path, flags, mode);
}

ssize_t __real_pwrite(int fd, const void *bytes, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    before_call();
    return __real_pwrite(fd, bytes, n, offset);
}

/* The power does not fail here: a sync need not happen. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    (void)fd;
    before_call();
    return 0;
}

int __wrap_msync(void *at, size_t n, int flags);
int __wrap_msync(void *at, size_t n, int flags)
{
    (void)at;
    (void)n;
    (void)flags;
    before_call();
    return 0;
}

#define WRAP(name, parameters, arguments)                                                \
    int __real_##name parameters;                                                        \
    int __wrap_##name parameters;                                                        \
    int __wrap_##name parameters                                                         \
    {                                                                                    \
        before_call();                                                                   \
        return __real_##name arguments;                                                  \
    }

WRAP(rename, (const char *from, const char *to), (from, to))
WRAP(unlink, (const char *path), (path))
WRAP(unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
WRAP(link, (const char *from, const char *to), (from, to))
WRAP(mkdir, (const char *path, mode_t mode), (path, mode))

static const companion_text first[] = {
    {"config.json", "one"}, {"mine.txt", "theirs"}, {"vocab.txt", "v"}, {NULL, NULL}};
static const companion_text last[] = {
    {"config.json", "two"}, {"merges.txt", "m"}, {"mine.txt", "theirs"}, {NULL, NULL}};

static kit k;
static dw_store *store;
static size_t version_log[KIT_COPIES];
static char into[128];

static int make_world(void **state)
{
    temp_dir_make(state);
    kit_make(&k);
    store = files_store = kit_mem_store();
    files_of[0] = files_of[1] = files_of[2] = first;
    files_of[3] = last;
    kit_make_stream(&k, store, temp_dir, HEAD, 0, version_log);
    snprintf(into, sizeof into, "%s/into", temp_dir);
    return 0;
}

static int remove_world(void **state)
{
    kit_free(&k);
    dw_store_close(store);
    return temp_dir_remove(state);
}

static dw_status go(uint64_t goal, dw_error *err)
{
    dw_follower *f;
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = into;
    options.n_threads = 1;
    options.sweep_every = 0;
    dw_status status = dw_follower_open(&f, store, &options, err);
    if (status == DW_OK)
        status = dw_follower_sync(f, goal, NULL, NULL, err);
    if (status == DW_OK)
        kit_check_follower(&k, f, version_log);
    dw_follower_close(f);
    return status;
}

static void run_command(const char *format)
{
    char command[600];
    snprintf(command, sizeof command, format, into, into, into);
    assert_int_equal(system(command), 0);
}

static bool has(const char *dir, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%.300s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static void check_dir(const char *dir, uint64_t version)
{
    assert_true(companion_is(dir, "config.json", version == 3 ? "two" : "one"));
    assert_true(companion_is(dir, "merges.txt", version == 3 ? "m" : NULL));
    assert_true(companion_is(dir, "vocab.txt", version == 3 ? NULL : "v"));
    assert_true(companion_is(dir, "mine.txt", "mine"));
}

/* A sync from version START, or from nothing, to GOAL is killed before call STEP. */
static bool run_one(bool is_fresh, uint64_t goal, int step)
{
    run_command(is_fresh ? "rm -rf '%s'; mkdir '%s'; echo -n mine >'%s/mine.txt'"
                         : "rm -rf '%s'; cp -a '%s-start' '%s'");
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        calls_left = step;
        _exit((int)go(goal, NULL));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    const int code = WEXITSTATUS(status);
    assert_true(code == DW_OK || code == KILLED);
    if (has(into, "model.safetensors"))
        assert_true(has(into, "config.json") && has(into, "mine.txt"));
    dw_error err = {0};
    assert_ok(go(goal, &err), &err);
    check_dir(into, goal);
    return code == KILLED;
}

static void test_kills(void **state)
{
    (void)state;
    dw_error err = {0};
    int n_steps = 0;
    while (run_one(true, 3, n_steps))
        n_steps++;
    assert_true(n_steps > 40);
    run_command("rm -rf '%s' '%s-start'; mkdir '%s'");
    run_command("echo -n mine >'%s/mine.txt'");
    assert_ok(go(2, &err), &err);
    run_command("cp -a '%s' '%s-start'");
    for (n_steps = 0; run_one(false, 3, n_steps);)
        n_steps++;
    assert_true(n_steps > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kills),
    };
    return cmocka_run_group_tests(tests, make_world, remove_world);
}
