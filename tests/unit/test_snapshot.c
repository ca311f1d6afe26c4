/* Readers of a follower's directory: hold and look, one copy and two, without a writer,
 * after its death, without write access, and with replaced files. */
/* labels: threads */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/suite.h"

#include "deltawire/follow.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

#define HEAD 12

static kit k;
static dw_store *store;
static size_t version_log[KIT_COPIES];

static int make_world(void **state)
{
    temp_dir_make(state);
    kit_make(&k);
    store = kit_mem_store();
    kit_make_stream(&k, store, temp_dir, HEAD, 4, version_log);
    return 0;
}

static int remove_world(void **state)
{
    kit_free(&k);
    dw_store_close(store);
    return temp_dir_remove(state);
}

static char into[128];

static dw_follower *follow(const char *name)
{
    dw_error err = {0};
    dw_follow_options options;
    dw_follow_options_init(&options);
    snprintf(into, sizeof into, "%s/%s", temp_dir, name);
    options.into = into;
    options.n_threads = 1;
    options.reader_wait_ms = 20;
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, &options, &err), &err);
    return f;
}

static void go_to(dw_follower *f, uint64_t version)
{
    dw_error err = {0};
    assert_ok(dw_follower_sync(f, version, NULL, NULL, &err), &err);
}

static dw_snapshot *look_at(const char *dir)
{
    dw_error err = {0};
    dw_snapshot *s;
    assert_ok(dw_snapshot_open(&s, dir, &err), &err);
    return s;
}

static void open_fails(const char *dir, dw_status wanted, const char *text)
{
    dw_error err = {0};
    dw_snapshot *s = (dw_snapshot *)1;
    assert_fails(dw_snapshot_open(&s, dir, &err), wanted, &err);
    assert_null(s);
    if (!strstr(err.text, text))
        print_error("%s\n", err.text);
    assert_non_null(strstr(err.text, text));
}

static bool is_version(const dw_snapshot_view *view, uint64_t version)
{
    dw_digest digests[KIT_TENSORS], all = 0;
    assert_int_equal(
        dw_digest_tensors(digests, &all, view->tensors, view->n_tensors, 1, NULL, NULL),
        DW_OK);
    return view->version == version && view->state == all &&
           kit_same(&k, view->tensors, view->n_tensors, k.copies[version_log[version]]);
}

TEST(test_nothing_there)
{
    open_fails(temp_path("nowhere"), DW_NOT_FOUND, "no follower keeps weights here");
    open_fails(temp_dir, DW_NOT_FOUND, "no follower keeps weights here");
    dw_follower *f = follow("empty");
    open_fails(into, DW_NOT_FOUND, "no version");
    dw_follower_close(f);
    open_fails(into, DW_NOT_FOUND, "no version");
    char path[200];
    snprintf(path, sizeof path, "%s/%s", into, DW_CONTROL_NAME);
    put_text(path, "something");
    open_fails(into, DW_CORRUPT, "no control block");
    char bytes[DW_CONTROL_BYTES] = "DWCTRL0";
    put_file(path, bytes, sizeof bytes);
    open_fails(into, DW_CORRUPT, "no control block");
    f = follow("empty"); /* the follower repairs it */
    go_to(f, 3);
    dw_snapshot *s = look_at(into);
    assert_int_equal(dw_snapshot_version(s), 3);
    dw_snapshot_close(s);
    dw_follower_close(f);
    dw_snapshot_close(NULL);
}

TEST(test_one_copy)
{
    dw_error err = {0};
    dw_follower *f = follow("one");
    go_to(f, 0);
    dw_snapshot *s = look_at(into);
    dw_snapshot_view held, seen;
    const dw_tensor *tensors = NULL;
    for (uint64_t v = 1; v < 8; v++) {
        uint64_t staged;
        assert_int_equal(dw_snapshot_version(s), v - 1);
        assert_ok(dw_snapshot_hold(s, 0, &held, &err), &err);
        assert_true(is_version(&held, v - 1));
        assert_true(!tensors || tensors == held.tensors); /* at the same addresses */
        tensors = held.tensors;
        assert_ok(dw_follower_stage(f, v, &staged, NULL, &err), &err);
        assert_ok(dw_follower_prepare(f, &err), &err);
        assert_fails(dw_follower_apply(f, &err), DW_UNAVAILABLE, &err);
        assert_non_null(strstr(err.text, "has held the weights"));
        assert_true(is_version(&held, v - 1));
        dw_snapshot_release(s);
        assert_ok(dw_snapshot_look(s, 0, &seen, &err), &err);
        assert_true(is_version(&seen, v - 1));
        assert_true(dw_snapshot_unchanged(s, &seen));
        assert_ok(dw_follower_apply(f, &err), &err);
        assert_false(dw_snapshot_unchanged(s, &seen));
        /* readable before it is durable */
        assert_ok(dw_snapshot_hold(s, 0, &held, &err), &err);
        assert_true(is_version(&held, v));
        assert_ok(dw_follower_finish(f, &err), &err); /* writes no weights */
        assert_true(is_version(&held, v));
        dw_snapshot_release(s);
    }
    go_to(f, 3); /* and back */
    assert_ok(dw_snapshot_hold(s, 0, &held, &err), &err);
    assert_true(is_version(&held, 3));
    dw_follower_close(f);
    assert_true(is_version(&held, 3));
    dw_snapshot_close(s); /* while it holds a version */
    s = look_at(into);    /* without a writer */
    f = follow("one");
    go_to(f, 5);
    assert_ok(dw_snapshot_hold(s, 0, &held, &err), &err);
    assert_true(is_version(&held, 5));
    dw_snapshot_close(s);
    dw_follower_close(f);
}

/* The writer dies in the middle of a write. */
TEST(test_dead_writer)
{
    dw_error err = {0};
    dw_follower *f = follow("dead");
    uint64_t staged;
    dw_snapshot_view view;
    go_to(f, 1);
    dw_snapshot *s = look_at(into);
    assert_ok(dw_follower_stage(f, 2, &staged, NULL, &err), &err);
    assert_ok(dw_follower_prepare(f, &err), &err);
    dw_follower_close(f); /* prepared, not begun */
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    assert_true(is_version(&view, 1)); /* a reader from before knows that it is whole */
    dw_snapshot_release(s);
    open_fails(into, DW_UNAVAILABLE, "start it again");
    f = follow("dead");
    assert_int_equal(dw_follower_version(f), 2);
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    assert_true(is_version(&view, 2));
    dw_snapshot_release(s);
    dw_follower_close(f);
    /* during the stores: only the mark is left of it */
    char path[200];
    snprintf(path, sizeof path, "%s/%s", into, DW_CONTROL_NAME);
    int fd = open(path, O_RDWR);
    uint64_t sequence;
    const off_t at = offsetof(dw_control, weights);
    assert_int_equal(pread(fd, &sequence, 8, at), 8);
    sequence |= 1;
    assert_int_equal(pwrite(fd, &sequence, 8, at), 8);
    close(fd);
    open_fails(into, DW_UNAVAILABLE, "start it again");
    assert_fails(dw_snapshot_hold(s, 5, &view, &err), DW_UNAVAILABLE, &err);
    assert_non_null(strstr(err.text, "start it again"));
    assert_fails(dw_snapshot_look(s, 5, &view, &err), DW_UNAVAILABLE, &err);
    assert_int_equal(dw_snapshot_version(s), 2); /* the last one */
    f = follow("dead");
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    assert_true(is_version(&view, 2));
    dw_snapshot_close(s);
    dw_follower_close(f);
}

/* A reader holds the weights while another follower must finish an interrupted apply.
 */
TEST(test_held_at_restart)
{
    dw_error err = {0};
    dw_follower *f = follow("restart");
    uint64_t staged;
    dw_snapshot_view view;
    go_to(f, 1);
    dw_snapshot *s = look_at(into);
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    assert_ok(dw_follower_stage(f, 2, &staged, NULL, &err), &err);
    assert_ok(dw_follower_prepare(f, &err), &err);
    dw_follower_close(f);
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = into;
    options.reader_wait_ms = 10;
    assert_fails(dw_follower_open(&f, store, &options, &err), DW_UNAVAILABLE, &err);
    assert_true(is_version(&view, 1));
    dw_snapshot_release(s);
    f = follow("restart");
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    assert_true(is_version(&view, 2));
    dw_snapshot_close(s);
    dw_follower_close(f);
}

TEST(test_slots)
{
    dw_follower *f = follow("slots");
    go_to(f, 1);
    dw_snapshot *all[DW_CONTROL_SLOTS];
    dw_error err = {0};
    dw_snapshot_view view;
    for (unsigned i = 0; i < DW_CONTROL_SLOTS; i++) {
        all[i] = look_at(into);
        assert_ok(dw_snapshot_hold(all[i], 0, &view, &err), &err);
    }
    open_fails(into, DW_CONFLICT, "all 56 slots");
    assert_fails(dw_follower_sync(f, 2, NULL, NULL, &err), DW_UNAVAILABLE, &err);
    /* a failed open released only its own slots */
    for (unsigned i = 1; i < DW_CONTROL_SLOTS; i++)
        dw_snapshot_close(all[i]);
    assert_fails(dw_follower_sync(f, 2, NULL, NULL, &err), DW_UNAVAILABLE, &err);
    assert_non_null(strstr(err.text, "slot 0"));
    char process[40];
    snprintf(process, sizeof process, "process %ld", (long)getpid());
    assert_non_null(strstr(err.text, process));
    dw_snapshot_close(all[0]);
    go_to(f, 2);
    dw_follower_close(f);
}

/* A reader without write access to the block uses dw_snapshot_look. */
TEST(test_without_rights)
{
    dw_follower *f = follow("rights");
    go_to(f, 1);
    char path[200];
    snprintf(path, sizeof path, "%s/%s", into, DW_CONTROL_NAME);
    assert_int_equal(chmod(path, 0444), 0);
    assert_int_equal(chmod(temp_dir, 0755), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && setuid(65534) != 0)
            _exit(10);
        dw_error err = {0};
        dw_snapshot *s;
        dw_snapshot_view view;
        int code = 0;
        if (dw_snapshot_open(&s, into, &err) != DW_OK)
            _exit(1);
        if (dw_snapshot_hold(s, 0, &view, &err) != DW_UNSUPPORTED)
            code = 2;
        else if (dw_snapshot_look(s, 0, &view, &err) != DW_OK || !is_version(&view, 1))
            code = 3;
        else if (!dw_snapshot_unchanged(s, &view))
            code = 4;
        dw_snapshot_release(s);
        dw_snapshot_close(s);
        _exit(code);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    dw_follower_close(f);
}

/* The files are removed and made again: readers that had mapped them get the new ones. */
TEST(test_other_files)
{
    dw_error err = {0};
    dw_follower *f = follow("files");
    dw_snapshot_view view;
    go_to(f, 1);
    dw_snapshot *s = look_at(into);
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    dw_snapshot_release(s);
    const uint64_t files = view.mark.files;
    const dw_tensor *tensors = view.tensors;
    dw_follower_close(f);
    char path[200];
    snprintf(path, sizeof path, "%s/model.safetensors", into);
    assert_int_equal(unlink(path), 0);
    f = follow("files");
    assert_fails(dw_snapshot_hold(s, 5, &view, &err), DW_NOT_FOUND, &err);
    go_to(f, 6);
    const void *kept = tensors[0].data;
    dw_snapshot_pin(s, true); /* the old mappings stay readable */
    assert_fails(dw_snapshot_hold(s, 0, &view, &err), DW_STALE, &err);
    assert_true(*(const volatile uint8_t *)kept < 256);
    dw_snapshot_pin(s, false);
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    assert_true(is_version(&view, 6));
    assert_true(view.mark.files != files);
    dw_snapshot_pin(s, true); /* the mapping stays readable */
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    dw_snapshot_close(s);
    dw_follower_close(f);
}

RUN_TESTS(make_world, remove_world)
