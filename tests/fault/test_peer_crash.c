/* A follower of another system's versions is killed before every system call that writes,
 * also between the stores and the record of the version, where applying a XOR twice would
 * undo it. The next process finds exactly one version, and goes on.
 */
/* labels: slow */
/* wrap: open pwrite fsync rename msync unlink flock */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fault/peer_process.h"
#include "fault/wrong_calls.h"

/* The power stays on (test_snapshot_crash.c cuts it). */
WRAP_OPEN(flags &O_CREAT)
WRAP_PWRITE
WRAP_SYNCS
WRAP_RENAME
WRAP_UNLINK
WRAP_FLOCK

/* ---- kills ---- */

/* Up by a delta, over a whole version if there is one, and down. */
static const uint64_t goals[] = {3, 4, 1};

/* Kills the process before call number STEP; false if it made fewer calls. */
static bool run_one(dw_store *store, bool from_start, int step)
{
    run_command(from_start ? "rm -rf '%s/into' && cp -a '%s/start' '%s/into'"
                           : "rm -rf '%s/into'");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        calls_left = step;
        _exit((int)go(store, goals, sizeof goals / sizeof *goals, NULL, NULL));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    const bool finished = WEXITSTATUS(status) == DW_OK;
    assert_true(finished || WEXITSTATUS(status) == KILLED);
    uint64_t version = 77;
    dw_error err = {0};
    const uint64_t goal = 6;
    assert_ok(go(store, &goal, 1, &version, &err), &err);
    assert_true(version <= 4 || version == DW_NO_VERSION);
    if (from_start)
        assert_true(version != DW_NO_VERSION && version <= 4);
    if (finished)
        assert_int_equal(version, 1);
    return !finished;
}

static void kill_everywhere(peer_bucket kind, int stride)
{
    dw_store *store = peer_make_bucket(kind);
    dw_error err = {0};
    const uint64_t start = 2;
    int n_steps = 0;
    run_command("rm -rf '%s/into' '%s/start'");
    assert_ok(go(store, &start, 1, NULL, &err), &err);
    run_command("mv '%s/into' '%s/start'");
    while (run_one(store, true, n_steps))
        n_steps += stride;
    assert_true(n_steps > 30); /* or the wrappers were not used */
    for (int i = 0; run_one(store, false, i); i += 5)
        ;
    dw_store_close(store);
}

static void test_kill_trl(void **state)
{
    (void)state;
    kill_everywhere(BUCKET_TRL, 3);
}

static void test_kill_slime(void **state)
{
    (void)state;
    kill_everywhere(BUCKET_SLIME, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_trl),
        cmocka_unit_test(test_kill_slime),
    };
    return cmocka_run_group_tests(tests, make_world, temp_dir_remove);
}
