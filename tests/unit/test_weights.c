/* A directory of weights: after a process ends at any step, or somebody removes files,
 * the next one goes on.
 */
/* labels: threads */
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/suite.h"

#include "deltawire/checkpoint.h"
#include "deltawire/follow.h"
#include "unit/failing_allocator.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

#define HEAD 9

static kit k;
static dw_store *store;
static char store_dir[128], into[128];
static size_t version_log[KIT_COPIES];

static int make_world(void **state)
{
    temp_dir_make(state);
    kit_make(&k);
    char url[160];
    dw_error err = {0};
    snprintf(store_dir, sizeof store_dir, "%s/store", temp_dir);
    snprintf(url, sizeof url, "file://%s", store_dir); /* children read it too */
    assert_ok(dw_store_open(&store, url, NULL, &err), &err);
    kit_make_stream(&k, store, temp_dir, HEAD, 4, version_log);
    return 0;
}

static int remove_world(void **state)
{
    kit_free(&k);
    dw_store_close(store);
    return temp_dir_remove(state);
}

static void use(const char *name)
{
    snprintf(into, sizeof into, "%s/%s", temp_dir, name);
}

static void run_command(const char *command, const char *arguments)
{
    char line[600];
    snprintf(line, sizeof line, "cd '%s' && %s %s", into, command, arguments);
    assert_int_equal(system(line), 0);
}

static dw_status open_with(dw_follower **f, dw_error *err)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = into;
    options.n_threads = 1;
    options.reader_wait_ms = 20;
    return dw_follower_open(f, store, &options, err);
}

static dw_follower *open_dir(void)
{
    dw_follower *f;
    dw_error err = {0};
    assert_ok(open_with(&f, &err), &err);
    return f;
}

static void go_to(dw_follower *f, uint64_t version)
{
    dw_error err = {0};
    assert_ok(dw_follower_sync(f, version, NULL, NULL, &err), &err);
    assert_int_equal(dw_follower_version(f), version);
    kit_check_follower(&k, f, version_log);
}

static bool dir_is(const char *dir, uint64_t version)
{
    dw_checkpoint *ckpt;
    size_t n;
    if (dw_checkpoint_open(&ckpt, dir, DW_CHECKPOINT_READ, NULL) != DW_OK)
        return false;
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    bool same = kit_same(&k, tensors, n, k.copies[version_log[version]]);
    dw_checkpoint_close(ckpt);
    return same;
}

/* The weights and the block agree, and no other files are left. */
static void check_settled(dw_follower *f, uint64_t version)
{
    dw_error err = {0};
    assert_int_equal(dw_follower_version(f), version);
    assert_true(dir_is(into, version));
    assert_string_equal(dw_follower_dir(f), into);
    dw_snapshot *s;
    dw_snapshot_view view;
    assert_ok(dw_snapshot_open(&s, into, &err), &err);
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    assert_true(view.version == version && view.state == dw_follower_state(f));
    assert_true(
        kit_same(&k, view.tensors, view.n_tensors, k.copies[version_log[version]]));
    dw_snapshot_close(s);
    assert_true(count_files(into) <= 4); /* record, control block, highest version */
}

/* ---- ends of processes ---- */

enum { STAGED, COMMITTED, APPLIED, N_STEPS };

/* A process that goes from FROM to TO, and ends after STEP. */
static void end_after(uint64_t to, int step)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dw_error err = {0};
        dw_follower *f;
        uint64_t staged;
        dw_status status = open_with(&f, &err);
        if (status == DW_OK)
            status = dw_follower_stage(f, to, &staged, NULL, &err);
        if (status == DW_OK && step >= COMMITTED)
            status = dw_follower_prepare(f, &err);
        if (status == DW_OK && step >= APPLIED)
            status = dw_follower_apply(f, &err);
        _exit(status == DW_OK ? 99 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 99);
}

TEST(test_ends)
{
    use("ends");
    dw_follower *f = open_dir();
    go_to(f, 4);
    dw_follower_close(f);
    uint64_t at = 4;
    static const uint64_t goals[] = {5, 6, 2, 3, 9, 0}; /* up, and down */
    for (size_t i = 0; i < sizeof goals / sizeof *goals; i++)
        for (int step = 0; step < N_STEPS; step++) {
            /* a step may lead less far than the goal; the next one starts there */
            f = open_dir();
            uint64_t staged;
            dw_error err = {0};
            assert_ok(dw_follower_stage(f, goals[i], &staged, NULL, &err), &err);
            dw_follower_close(f);
            end_after(goals[i], step);
            f = open_dir();
            at = step >= COMMITTED ? staged : at;
            check_settled(f, at);
            go_to(f, goals[(i + 3) % 6]);
            at = goals[(i + 3) % 6];
            check_settled(f, at);
            dw_follower_close(f);
        }
}

/* Lost weights and block. */
TEST(test_lost)
{
    use("lost");
    static const char *const lost[] = {"model.safetensors", ".deltawire/control",
                                       "model.safetensors .deltawire/state.json"};
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        dw_follower *f = open_dir();
        go_to(f, 3 + i % 2);
        dw_follower_close(f);
        run_command("rm", lost[i]);
        f = open_dir();
        go_to(f, 6);
        check_settled(f, 6);
        dw_follower_close(f);
    }
}

/* ---- trouble ---- */

static dw_status run_all(dw_error *err)
{
    static unsigned n;
    char name[32];
    snprintf(name, sizeof name, "memory-%u", n++ % 3); /* some continue, some begin */
    use(name);
    dw_follower *f = NULL;
    dw_status status = open_with(&f, err);
    if (status == DW_OK)
        status = dw_follower_sync(f, 2, NULL, NULL, err);
    if (status == DW_OK)
        status = dw_follower_sync(f, 5, NULL, NULL, err);
    dw_follower_close(f);
    return status;
}

static void check_whole(void)
{
    dw_error err = {0};
    dw_follower *f;
    assert_ok(open_with(&f, &err), &err);
    kit_check_follower(&k, f, version_log);
    if (dw_follower_version(f) != DW_NO_VERSION)
        check_settled(f, dw_follower_version(f));
    dw_follower_close(f);
    if (strstr(into, "memory-0"))
        run_command("rm", "-f model.safetensors"); /* so that there is something to do */
}

TEST(test_no_memory)
{
    fail_every_allocation(run_all, check_whole);
}

RUN_TESTS(make_world, remove_world)
