/* A follower that installs companion files is killed before every system call, and every
 * call is made to fail, as on a full disk. A model that appears in an empty directory has
 * its files, each file is old or new, and none of the user's is touched. The next sync
 * completes the version or goes back, and takes nothing of ours for the user's. */
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

#include "fault/wrong_calls.h"
#include "unit/stream_kit.h"
#include "unit/files_kit.h"

#define HEAD 4

WRAP_OPEN(flags &O_CREAT)
WRAP_PWRITE
WRAP_SYNCS
WRAP_RENAME
WRAP_UNLINK
WRAP_UNLINKAT
WRAP_LINK
WRAP_MKDIR

static const companion_text first[] = {{"config.json", "one"},
                                       {"mine.txt", "theirs"},
                                       {"same.txt", "same"},
                                       {"vocab.txt", "v"},
                                       {NULL, NULL}};
static const companion_text last[] = {{"config.json", "two"},
                                      {"merges.txt", "m"},
                                      {"mine.txt", "theirs"},
                                      {"same.txt", "same"},
                                      {NULL, NULL}};
static const companion_text none[] = {{NULL, NULL}};

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
    files_of[4] = none;
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

/* VERSION 4 has no files. */
static void check_files(uint64_t version)
{
    const bool any = version < 4, is_last = version == 3;
    assert_true(companion_is(into, "config.json", !any ? NULL : is_last ? "two" : "one"));
    assert_true(companion_is(into, "merges.txt", is_last ? "m" : NULL));
    assert_true(companion_is(into, "vocab.txt", any && !is_last ? "v" : NULL));
    assert_true(companion_is(into, "same.txt", any ? "same" : NULL));
    assert_true(companion_is(into, "mine.txt", "mine"));
}

static void check_between(bool is_fresh)
{
    static const companion_text versions[][2] = {{{"config.json", "one"}, {NULL, "two"}},
                                                 {{"vocab.txt", "v"}, {NULL, NULL}},
                                                 {{"merges.txt", NULL}, {NULL, "m"}},
                                                 {{"same.txt", "same"}, {NULL, "same"}}};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        const companion_text *v = versions[i];
        assert_true(companion_is(into, v[0].name, v[0].text) ||
                    companion_is(into, v[0].name, v[1].text) ||
                    (is_fresh && companion_is(into, v[0].name, NULL)));
    }
    if (has(into, "model.safetensors"))
        assert_true(has(into, "config.json") && has(into, "same.txt"));
    assert_true(companion_is(into, "mine.txt", "mine"));
}

/* A sync from version 2, or from nothing, to 3 ends at call STEP. The next one goes on,
 * back, or to a version without files, in turn. False if there is no such call. */
static bool run_one(bool is_fresh, int step)
{
    const uint64_t goals[] = {3, 1, 4}, goal = goals[step % 3];
    dw_error err = {0};
    bool was_reached;
    run_command(is_fresh ? "rm -rf '%s'; mkdir '%s'; echo -n mine >'%s/mine.txt'"
                         : "rm -rf '%s'; cp -a '%s-start' '%s'");
    fflush(NULL);
    const pid_t child = wrong_errno ? -1 : fork();
    if (child == 0) {
        calls_left = step;
        _exit((int)go(3, NULL));
    }
    if (wrong_errno) {
        calls_left = step;
        if (go(3, &err) != DW_OK)
            assert_true(err.text[0] != '\0');
        was_reached = calls_left == NEVER;
        calls_left = NEVER;
    } else {
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        const int code = WEXITSTATUS(status);
        assert_true(code == DW_OK || code == KILLED);
        was_reached = code == KILLED;
    }
    check_between(is_fresh);
    assert_ok(go(goal, &err), &err);
    check_files(goal);
    assert_ok(go(4, &err), &err);
    check_files(4); /* nothing of ours was taken for the user's */
    return was_reached;
}

static void run_all(bool is_fresh)
{
    int n_steps = 0;
    while (run_one(is_fresh, n_steps))
        n_steps++;
    assert_true(n_steps > 40);
}

static void test_fresh(void **state)
{
    wrong_errno = *(int *)*state;
    run_all(true);
}

static void test_update(void **state)
{
    dw_error err = {0};
    wrong_errno = *(int *)*state;
    run_command("rm -rf '%s' '%s-start'; mkdir '%s'");
    run_command("echo -n mine >'%s/mine.txt'");
    assert_ok(go(2, &err), &err);
    run_command("cp -a '%s' '%s-start'");
    run_all(false);
}

int main(void)
{
    static int killed = 0, full = ENOSPC;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_fresh, &killed),
        cmocka_unit_test_prestate(test_update, &killed),
        cmocka_unit_test_prestate(test_fresh, &full),
        cmocka_unit_test_prestate(test_update, &full),
    };
    return cmocka_run_group_tests(tests, make_world, remove_world);
}
