/* dw_checkpoint_apply, and a held checkpoint that takes a version in parts, are killed
 * before and inside every system call, and each call also fails in turn. The checkpoint
 * is then the old version or the new one, or there is a patch file that leads to the new
 * one. */
/* wrap: open pwrite fsync rename msync unlink mmap flock */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/suite.h"

#include "weights/target_inside.h"
#include "fault/wrong_calls.h"
#include "unit/disk_model.h"
#include "unit/random_parts.h"

WRAP_OPEN(true)
WRAP_PWRITE
WRAP_FSYNC
WRAP_RENAME
WRAP_MSYNC
WRAP_UNLINK
WRAP_FLOCK
WRAP_CALL(void *, MAP_FAILED, mmap,
          (void *at, size_t n, int protection, int flags, int fd, off_t offset),
          (at, n, protection, flags, fd, offset))

/* ---- what is left behind
 * ------------------------------------------------------------------ */

static const dw_apply_options one_thread = {.struct_bytes = sizeof one_thread,
                                            .n_threads = 1};

/* After a fault: the state is one that the header describes, and the header's function
 * repairs it. */
static void check_and_repair(const disk_model *d, bool by_recover)
{
    const bool has_patch = disk_has_patch(d), is_old = disk_is_old(d);
    dw_error err = {0};
    if (!has_patch)
        assert_true(is_old || disk_is_new(d));
    if (by_recover) {
        bool recovered;
        assert_int_equal(dw_checkpoint_recover(d->path, 0, &recovered, &err), DW_OK);
        assert_int_equal(recovered, has_patch);
        if (has_patch)
            assert_true(disk_is_new(d));
        else
            assert_int_equal(disk_is_old(d), is_old);
    }
    dw_apply_report report;
    dw_status status = dw_checkpoint_apply(d->path, d->delta, &one_thread, &report, &err);
    if (status != DW_OK)
        print_error("%s: %s\n", err.where, err.text);
    assert_int_equal(status, DW_OK);
    assert_true(disk_is_new(d));
    assert_false(disk_has_patch(d));
    assert_true(disk_is_tidy(d)); /* files of a killed process are gone */
}

TEST(test_killed_at_every_call)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        disk_model d;
        disk_make(&d, "kill", sharded, 300);
        unsigned n_patches = 0, n_steps = 0;
        for (bool finished = false; !finished; n_steps++) {
            disk_reset(&d);
            fflush(NULL);
            pid_t child = fork();
            if (child == 0) {
                calls_left = (int)n_steps;
                wrong_errno = 0;
                _exit((int)dw_checkpoint_apply(d.path, d.delta, &one_thread, NULL, NULL));
            }
            int status;
            assert_int_equal(waitpid(child, &status, 0), child);
            assert_true(WIFEXITED(status));
            finished = WEXITSTATUS(status) == DW_OK;
            assert_true(finished || WEXITSTATUS(status) == KILLED);
            n_patches += disk_has_patch(&d);
            if (!disk_has_patch(&d) && n_patches == 0)
                assert_true(disk_is_old(&d)); /* no change before the patch exists */
            if (finished)
                assert_true(disk_is_new(&d) && disk_is_tidy(&d));
            check_and_repair(&d, n_steps % 2);
        }
        assert_true(n_steps > 15); /* or the wrappers were not used */
        assert_true(n_patches > 3);
        disk_free(&d);
    }
}

/* If a recovery is killed, another one follows. */
TEST(test_killed_while_recovering)
{
    disk_model d;
    disk_make(&d, "kill_recover", true, 300);
    for (unsigned first = 16; first < 40; first += 4)
        for (int second = 0; second < 28; second += 3) {
            disk_reset(&d);
            for (int round = 0; round < 2; round++) {
                pid_t child = fork();
                if (child == 0) {
                    bool recovered;
                    calls_left = round ? second : (int)first;
                    wrong_errno = 0;
                    if (round)
                        _exit((int)dw_checkpoint_recover(d.path, 0, &recovered, NULL));
                    _exit((int)dw_checkpoint_apply(d.path, d.delta, &one_thread, NULL,
                                                   NULL));
                }
                int status;
                assert_int_equal(waitpid(child, &status, 0), child);
            }
            check_and_repair(&d, second % 2);
        }
    disk_free(&d);
}

TEST(test_every_call_fails)
{
    static const int errors[] = {EIO, ENOSPC, EDQUOT};
    for (int sharded = 0; sharded < 2; sharded++)
        for (size_t e = 0; e < 3; e++) {
            disk_model d;
            disk_make(&d, "fail", sharded, 300);
            unsigned n_steps = 0, n_failed = 0;
            for (bool reached = true; reached; n_steps++) {
                disk_reset(&d);
                dw_error err = {0};
                calls_left = (int)n_steps;
                wrong_errno = errors[e];
                dw_status status =
                    dw_checkpoint_apply(d.path, d.delta, &one_thread, NULL, &err);
                reached = calls_left == NEVER;
                calls_left = NEVER;
                if (status != DW_OK) {
                    n_failed++;
                    assert_int_equal(status, DW_IO);
                    assert_int_equal(err.code, DW_IO);
                    assert_non_null(strstr(err.text, strerror(errors[e])));
                    assert_true(strlen(err.where) > 0);
                    if (!disk_has_patch(&d))
                        assert_true(disk_is_old(&d) || disk_is_new(&d));
                } else {
                    assert_true(disk_is_new(&d));
                }
                assert_true(disk_is_tidy(&d)); /* no half file is left */
                check_and_repair(&d, n_steps % 2);
            }
            assert_true(n_failed > 15 && n_failed + 3 >= n_steps);
            disk_free(&d);
        }
}

/* ---- held, and a version in parts ---- */

typedef struct held {
    disk_model disk;
    parts parts;
    dw_patch_goal goal;
} held;

static void held_make(held *h, const char *name, bool sharded)
{
    disk_make(&h->disk, name, sharded, 300);
    h->parts = parts_make(&h->disk.old_model, &h->disk.new_model, DW_CODEC_CLASS);
    h->goal = parts_goal(&h->parts, &h->disk.new_model);
}

static void held_free(held *h)
{
    parts_free(&h->parts);
    disk_free(&h->disk);
}

static dw_status stage_in(dw_target *r, const held *h, dw_error *err)
{
    return dw_target_stage_parts(r, h->parts.list, CUT_PARTS, &h->goal, NULL, err);
}

/* All steps, the staging twice. */
static dw_status run_steps(const held *h, bool sweep, dw_error *err)
{
    dw_target *r;
    dw_status status = dw_target_open_checkpoint(&r, h->disk.path, 1, false, NULL, err);
    for (int i = 0; status == DW_OK && i < 2; i++)
        status = stage_in(r, h, err);
    if (status == DW_OK)
        status = dw_target_prepare(r, err);
    if (status == DW_OK)
        status = dw_target_apply(r, err);
    if (status == DW_OK)
        status = dw_target_finish(r, sweep, err);
    dw_target_close(r);
    return status;
}

/* The next open finds one whole version and no other files. */
static void check_next_open(const held *h)
{
    const bool has_patch = disk_has_patch(&h->disk), is_old = disk_is_old(&h->disk);
    if (!has_patch)
        assert_true(is_old || disk_is_new(&h->disk));
    dw_target *r;
    bool recovered;
    assert_int_equal(
        dw_target_open_checkpoint(&r, h->disk.path, 1, false, &recovered, NULL), DW_OK);
    assert_int_equal(recovered, has_patch);
    assert_null(dw_target_staged_path(r));
    assert_true(disk_is_tidy(&h->disk) && !disk_has_patch(&h->disk));
    assert_true(has_patch || !is_old ? disk_is_new(&h->disk) : disk_is_old(&h->disk));
    if (disk_is_old(&h->disk)) {
        assert_int_equal(stage_in(r, h, NULL), DW_OK);
        assert_int_equal(dw_target_apply(r, NULL), DW_OK);
        assert_int_equal(dw_target_finish(r, false, NULL), DW_OK);
    }
    dw_target_close(r);
    assert_true(disk_is_new(&h->disk) && disk_is_tidy(&h->disk));
}

TEST(test_held_killed_at_every_call)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        held h;
        held_make(&h, "held_kill", sharded);
        unsigned n_patches = 0, n_staged = 0, n_steps = 0;
        for (bool finished = false; !finished; n_steps++) {
            disk_reset(&h.disk);
            fflush(NULL);
            pid_t child = fork();
            if (child == 0) {
                calls_left = (int)n_steps;
                wrong_errno = 0;
                _exit((int)run_steps(&h, n_steps % 2, NULL));
            }
            int status;
            assert_int_equal(waitpid(child, &status, 0), child);
            assert_true(WIFEXITED(status));
            finished = WEXITSTATUS(status) == DW_OK;
            assert_true(finished || WEXITSTATUS(status) == KILLED);
            if (disk_has_patch(&h.disk))
                n_patches++;
            else if (n_patches == 0)
                assert_true(disk_is_old(&h.disk)); /* staging writes no weights */
            n_staged += n_patches == 0 && !disk_is_tidy(&h.disk);
            if (finished)
                assert_true(disk_is_new(&h.disk) && disk_is_tidy(&h.disk));
            check_next_open(&h);
        }
        assert_true(n_steps > 25 && n_patches > 3 && n_staged > 5);
        held_free(&h);
    }
}

/* Between prepare and apply: an engine may take its time to pause. */
TEST(test_held_killed_when_prepared)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        held h;
        held_make(&h, "held_prepared", sharded);
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            dw_target *r;
            if (dw_target_open_checkpoint(&r, h.disk.path, 1, false, NULL, NULL) !=
                    DW_OK ||
                stage_in(r, &h, NULL) != DW_OK || dw_target_prepare(r, NULL) != DW_OK)
                _exit(1);
            _exit(KILLED);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == KILLED);
        assert_true(disk_is_old(&h.disk) && disk_has_patch(&h.disk));
        check_next_open(&h);
        held_free(&h);
    }
}

TEST(test_held_every_call_fails)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        held h;
        held_make(&h, "held_fail", sharded);
        unsigned n_steps = 0, n_failed = 0;
        for (bool reached = true; reached; n_steps++) {
            disk_reset(&h.disk);
            dw_error err = {0};
            calls_left = (int)n_steps;
            wrong_errno = ENOSPC;
            dw_status status = run_steps(&h, n_steps % 2, &err);
            reached = calls_left == NEVER;
            calls_left = NEVER;
            n_failed += status != DW_OK;
            if (status != DW_OK) {
                assert_int_equal(status, DW_IO);
                assert_non_null(strstr(err.text, strerror(ENOSPC)));
            } else {
                assert_true(disk_is_new(&h.disk));
            }
            assert_true(disk_is_tidy(&h.disk)); /* no staged file is left */
            check_next_open(&h);
        }
        assert_true(n_failed > 25 && n_failed + 3 >= n_steps);
        held_free(&h);
    }
}

/* A failed step is repeated while the checkpoint is still held. */
TEST(test_held_steps_repeat)
{
    held h;
    held_make(&h, "held_again", true);
    for (int step = 0; step < 5; step++) { /* stage, prepare, apply, finish; discard */
        unsigned n_steps = 0;
        for (bool reached = true; reached; n_steps++) {
            dw_target *r;
            disk_reset(&h.disk);
            assert_int_equal(
                dw_target_open_checkpoint(&r, h.disk.path, 1, false, NULL, NULL), DW_OK);
            for (int s = 0; s < 4; s++) {
                dw_status status = DW_IO;
                for (int attempt = 0; status != DW_OK && attempt < 2; attempt++) {
                    const bool now = attempt == 0 && s == step % 4;
                    if (now) {
                        calls_left = (int)n_steps;
                        wrong_errno = EIO;
                    }
                    if (step == 4 && s == 0) {
                        calls_left = NEVER;
                        assert_int_equal(stage_in(r, &h, NULL), DW_OK);
                        calls_left = now ? (int)n_steps : NEVER;
                        status = dw_target_discard(r, NULL);
                    } else {
                        status = s == 0   ? stage_in(r, &h, NULL)
                                 : s == 1 ? dw_target_prepare(r, NULL)
                                 : s == 2 ? dw_target_apply(r, NULL)
                                          : dw_target_finish(r, n_steps % 2, NULL);
                    }
                    if (now)
                        reached = calls_left == NEVER;
                    calls_left = NEVER;
                }
                assert_int_equal(status, DW_OK);
                if (step == 4 && s == 0)
                    break;
            }
            dw_target_close(r);
            assert_true(disk_is_tidy(&h.disk) && !disk_has_patch(&h.disk));
            assert_true(step == 4 ? disk_is_old(&h.disk) : disk_is_new(&h.disk));
        }
        assert_true(step == 2 || n_steps > 2); /* the stores are no system calls */
    }
    held_free(&h);
}

/* The same for a delta's own file: whole and synced, or absent. */
TEST(test_saving)
{
    disk_model d;
    disk_make(&d, "save", false, 300);
    for (int replaces = 0; replaces < 2; replaces++) {
        unsigned n_steps = 0;
        for (bool reached = true; reached; n_steps++) {
            const char *path = temp_path("delta");
            dw_error err;
            size_t n;
            unlink(path);
            if (replaces)
                put_text(path, "older");
            size_t n_files = count_files(temp_dir);
            calls_left = (int)n_steps;
            wrong_errno = ENOSPC;
            dw_status status = dw_delta_save(d.delta, path, &err);
            reached = calls_left == NEVER;
            calls_left = NEVER;
            dw_delta *again;
            if (status == DW_OK ||
                (access(path, F_OK) == 0 && dw_delta_open(&again, path, NULL) == DW_OK &&
                 (dw_delta_close(again), true))) {
                assert_int_equal(count_files(temp_dir), n_files + !replaces);
            } else {
                assert_int_equal(status, DW_IO);
                assert_non_null(strstr(err.text, "No space left on device"));
                assert_int_equal(count_files(temp_dir), n_files);
                if (replaces) {
                    uint8_t *bytes = get_file(path, &n);
                    assert_string_equal((char *)bytes, "older");
                    free(bytes);
                }
            }
        }
        assert_true(n_steps > 5);
    }
    disk_free(&d);
}

/* Killed at any instant, during stores on several threads. */
TEST(test_killed_at_random)
{
    disk_model d;
    disk_make(&d, "random", true, 60000);
    for (unsigned round = 0; round < 25; round++) {
        disk_reset(&d);
        pid_t child = fork();
        if (child == 0) {
            dw_apply_options two = {.struct_bytes = sizeof two, .n_threads = 2};
            _exit((int)dw_checkpoint_apply(d.path, d.delta, &two, NULL, NULL));
        }
        usleep((useconds_t)random_below(60000));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        check_and_repair(&d, round % 2);
    }
    disk_free(&d);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
