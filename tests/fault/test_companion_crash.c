/* A process that installs companion files is killed before every system call, and every
 * call is made to fail, as on a full disk. Each file is then old or new, no file of the
 * user's was touched, and the next run completes the version. */
/* wrap: open pwrite fsync rename unlink unlinkat link */
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

enum { KILLED = 99, NEVER = -1 };

static int calls_left = NEVER;
static bool fails; /* the call fails instead */

static bool before_call(void)
{
    if (calls_left == NEVER || calls_left-- != 0)
        return false;
    if (!fails)
        _exit(KILLED);
    errno = ENOSPC;
    return true;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    unsigned mode = flags & O_CREAT ? va_arg(args, unsigned) : 0;
    va_end(args);
    return flags & O_CREAT && before_call() ? -1 : __real_open(path, flags, mode);
}

ssize_t __real_pwrite(int fd, const void *bytes, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    return before_call() ? -1 : __real_pwrite(fd, bytes, n, offset);
}

#define WRAP(name, parameters, arguments)                                                \
    int __real_##name parameters;                                                        \
    int __wrap_##name parameters;                                                        \
    int __wrap_##name parameters                                                         \
    {                                                                                    \
        return before_call() ? -1 : __real_##name arguments;                             \
    }

/* the power does not fail here: a sync need not happen */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    (void)fd;
    return before_call() ? -1 : 0;
}

WRAP(rename, (const char *from, const char *to), (from, to))
WRAP(unlink, (const char *path), (path))
WRAP(unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
WRAP(link, (const char *from, const char *to), (from, to))

static const companion_text old_files[] = {{"config.json", "old config"},
                                           {"drop.txt", "dropped"},
                                           {"mine.json", "old"},
                                           {"same.txt", "same"},
                                           {NULL, NULL}};
static const companion_text new_files[] = {{"config.json", "new config"},
                                           {"mine.json", "new"},
                                           {"new.txt", "new"},
                                           {"same.txt", "same"},
                                           {NULL, NULL}};
static char dir[128];

static void make_old(void)
{
    char command[400];
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", dir, dir);
    assert_int_equal(system(command), 0);
    dw_companion_counts counts = {0};
    assert_int_equal(companion_once(dir, old_files, &counts, NULL), DW_OK);
    assert_int_equal(counts.n_installed, 4);
    char path[200];
    snprintf(path, sizeof path, "%s/mine.json", dir);
    put_text(path, "edited");
}

static void check_between(void)
{
    assert_true(companion_is(dir, "config.json", "old config") ||
                companion_is(dir, "config.json", "new config"));
    assert_true(companion_is(dir, "drop.txt", "dropped") ||
                companion_is(dir, "drop.txt", NULL));
    assert_true(companion_is(dir, "new.txt", "new") ||
                companion_is(dir, "new.txt", NULL));
    assert_true(companion_is(dir, "same.txt", "same"));
    assert_true(companion_is(dir, "mine.json", "edited"));
}

static void check_new(void)
{
    assert_true(companion_is(dir, "config.json", "new config"));
    assert_true(companion_is(dir, "drop.txt", NULL));
    assert_true(companion_is(dir, "new.txt", "new"));
    assert_true(companion_is(dir, "same.txt", "same"));
    assert_true(companion_is(dir, "mine.json", "edited"));
    assert_int_equal(count_files(dir), 5); /* with the list */
}

/* The next run completes the version, goes back to the one before, or removes all. */
static void go_on(int turn)
{
    static const companion_text none[] = {{NULL, NULL}};
    dw_companion_counts counts = {0};
    dw_error err = {0};
    if (turn == 0) {
        assert_int_equal(companion_once(dir, new_files, &counts, &err), DW_OK);
        check_new();
    } else if (turn == 1) {
        assert_int_equal(companion_once(dir, old_files, &counts, &err), DW_OK);
        assert_true(companion_is(dir, "config.json", "old config"));
        assert_true(companion_is(dir, "drop.txt", "dropped"));
        assert_true(companion_is(dir, "new.txt", NULL));
        assert_int_equal(count_files(dir), 5);
    }
    assert_int_equal(companion_once(dir, none, &counts, &err), DW_OK);
    assert_true(companion_is(dir, "mine.json", "edited"));
    assert_int_equal(count_files(dir), 1); /* nothing of ours was taken for the user's */
}

static bool kill_at(int step, int turn)
{
    make_old();
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        dw_companion_counts counts = {0};
        calls_left = step;
        _exit((int)companion_once(dir, new_files, &counts, NULL));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_true(WEXITSTATUS(status) == DW_OK || WEXITSTATUS(status) == KILLED);
    check_between();
    go_on(turn);
    return WEXITSTATUS(status) == KILLED;
}

static void test_kill_everywhere(void **state)
{
    (void)state;
    for (int turn = 0; turn < 3; turn++) {
        int n_steps = 0;
        while (kill_at(n_steps, turn))
            n_steps++;
        assert_true(n_steps > 15);
    }
}

static bool fail_at(int step, int turn)
{
    make_old();
    dw_companion_counts counts = {0};
    dw_error err = {0};
    fails = true;
    calls_left = step;
    const dw_status status = companion_once(dir, new_files, &counts, &err);
    const bool was_reached = calls_left < 0;
    calls_left = NEVER;
    fails = false;
    if (status != DW_OK)
        assert_true(err.text[0] != '\0');
    check_between();
    go_on(turn);
    return was_reached;
}

static void test_fail_everywhere(void **state)
{
    (void)state;
    for (int turn = 0; turn < 3; turn++) {
        int n_steps = 0;
        while (fail_at(n_steps, turn))
            n_steps++;
        assert_true(n_steps > 15);
    }
}

static int make_world(void **state)
{
    if (temp_dir_make(state) != 0)
        return -1;
    snprintf(dir, sizeof dir, "%s/into", temp_dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_everywhere),
        cmocka_unit_test(test_fail_everywhere),
    };
    return cmocka_run_group_tests(tests, make_world, temp_dir_remove);
}
