/* Weights outside of the follower's directory: on a disk, in tmpfs, in huge pages if this
 * machine has some. */
/* labels: threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "deltawire/checkpoint.h"
#include "deltawire/snapshot.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

#define HEAD       6
#define HUGE_BYTES (2u << 20)
#define N_HUGE     "16"

static kit k;
static dw_store *store;
static size_t version_log[KIT_COPIES];

/* A directory for weights. */
typedef struct keep {
    const char *name;
    char dir[128];
    bool there, huge;
} keep;

static keep keeps[3];
static char old_pages[32];

static bool write_number(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    bool good = f && fputs(text, f) >= 0;
    return f && fclose(f) == 0 && good;
}

/* Some huge pages, and a filesystem of them. */
static bool mount_huge(const char *dir)
{
    static const char path[] = "/proc/sys/vm/nr_hugepages";
    FILE *f = fopen(path, "r");
    if (!f || !fgets(old_pages, sizeof old_pages, f))
        old_pages[0] = '\0';
    if (f)
        fclose(f);
    char options[48];
    snprintf(options, sizeof options, "pagesize=%u", HUGE_BYTES);
    if (!old_pages[0] ||
        (strtoul(old_pages, NULL, 10) < 16 && !write_number(path, N_HUGE)) ||
        mount("none", dir, "hugetlbfs", 0, options) != 0) {
        print_message(
            "no huge pages here (root, and some memory in one piece, are needed): "
            "not tried\n");
        return false;
    }
    return true;
}

static int make_world(void **state)
{
    temp_dir_make(state);
    snprintf(keeps[0].dir, sizeof keeps[0].dir, "%s/disk", temp_dir);
    snprintf(keeps[1].dir, sizeof keeps[1].dir, "/dev/shm/%s",
             strrchr(temp_dir, '/') + 1);
    snprintf(keeps[2].dir, sizeof keeps[2].dir, "%s/huge", temp_dir);
    keeps[0].name = "disk";
    keeps[1].name = "tmpfs";
    keeps[2].name = "huge pages";
    for (size_t i = 0; i < 3; i++)
        keeps[i].there = mkdir(keeps[i].dir, 0777) == 0;
    keeps[2].there = keeps[2].huge = mount_huge(keeps[2].dir);
    kit_make(&k);
    store = kit_mem_store();
    kit_make_stream(&k, store, temp_dir, HEAD, 4, version_log);
    return 0;
}

static int remove_world(void **state)
{
    kit_free(&k);
    dw_store_close(store);
    if (keeps[2].there) {
        umount(keeps[2].dir);
        write_number("/proc/sys/vm/nr_hugepages", old_pages);
    }
    rmdir(keeps[1].dir);
    return temp_dir_remove(state);
}

/* ---- ---- */

static char into[160];

static dw_status open_with(dw_follower **f, const keep *where, unsigned n_copies,
                           dw_error *err)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = into;
    options.weights_dir = where ? where->dir : NULL;
    options.n_copies = n_copies;
    options.n_threads = 1;
    return dw_follower_open(f, store, &options, err);
}

static dw_follower *open_ok(const keep *where, unsigned n_copies)
{
    dw_follower *f;
    dw_error err = {0};
    assert_ok(open_with(&f, where, n_copies, &err), &err);
    return f;
}

static void go_to(dw_follower *f, uint64_t version)
{
    dw_error err = {0};
    assert_ok(dw_follower_sync(f, version, NULL, NULL, &err), &err);
    assert_int_equal(dw_follower_version(f), version);
    kit_check_follower(&k, f, version_log);
}

static void check_read(uint64_t version)
{
    dw_snapshot *s;
    dw_snapshot_view view;
    dw_error err = {0};
    assert_ok(dw_snapshot_open(&s, into, &err), &err);
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    assert_int_equal(view.version, version);
    assert_true(
        kit_same(&k, view.tensors, view.n_tensors, k.copies[version_log[version]]));
    /* each is aligned for its type */
    for (size_t i = 0; i < view.n_tensors; i++)
        assert_int_equal((uintptr_t)view.tensors[i].data %
                             dw_dtype_element(view.tensors[i].dtype).width,
                         0);
    dw_snapshot_close(s);
}

static void test_kept(void **state)
{
    const keep *where = *state;
    if (!where->there)
        skip();
    for (unsigned n_copies = 1; n_copies <= 2; n_copies++) {
        dw_error err = {0};
        snprintf(into, sizeof into, "%s/into-%s-%u", temp_dir,
                 where->huge ? "huge" : where->name, n_copies);
        char link_path[256], target[256] = "";
        snprintf(link_path, sizeof link_path, "%s/%smodel.safetensors", into,
                 n_copies == 1 ? "" : "copy-1/");
        dw_follower *f = open_ok(where, n_copies);
        go_to(f, 0);
        assert_true(readlink(link_path, target, sizeof target - 1) > 0);
        assert_int_equal(strncmp(target, where->dir, strlen(where->dir)), 0);
        assert_int_equal(count_files(where->dir), n_copies);
        struct stat st;
        assert_int_equal(stat(target, &st), 0);
        if (where->huge)
            assert_int_equal(st.st_size, HUGE_BYTES);
        for (uint64_t v = 1; v <= 4; v++) {
            go_to(f, v);
            check_read(v);
            assert_int_equal(count_files(where->dir), n_copies); /* only the weights */
        }
        /* the patch file is beside the link */
        uint64_t staged;
        bool pending;
        assert_ok(dw_follower_stage(f, 5, &staged, NULL, &err), &err);
        assert_int_equal(strncmp(dw_follower_staged_path(f), into, strlen(into)), 0);
        assert_ok(dw_follower_prepare(f, &err), &err);
        assert_int_equal(count_files(where->dir), n_copies);
        dw_follower_close(f);
        if (n_copies == 1) {
            assert_ok(dw_checkpoint_pending(into, &pending, &err), &err);
            assert_true(pending);
            assert_ok(dw_follower_pending(into, &pending, &err), &err);
            assert_true(pending);
        }
        f = open_ok(where, n_copies);
        assert_int_equal(dw_follower_version(f), 5);
        check_read(5);
        /* named by itself it would have another patch file */
        bool recovered;
        assert_fails(dw_checkpoint_recover(target, 1, &recovered, &err), DW_INVALID,
                     &err);
        /* lost, with a patch that was not applied yet */
        assert_ok(dw_follower_stage(f, 6, &staged, NULL, &err), &err);
        assert_ok(dw_follower_prepare(f, &err), &err);
        dw_follower_close(f);
        char command[300];
        snprintf(command, sizeof command, "rm '%s'/*", where->dir);
        assert_int_equal(system(command), 0);
        dw_snapshot *s;
        assert_fails(dw_snapshot_open(&s, into, &err), DW_NOT_FOUND, &err);
        f = open_ok(where, n_copies);
        assert_true(dw_follower_version(f) == DW_NO_VERSION);
        go_to(f, 2);
        check_read(2);
        assert_int_equal(count_files(where->dir), n_copies);
        /* it stays there, also with another weights_dir */
        dw_follower_close(f);
        f = open_ok(NULL, n_copies);
        go_to(f, 3);
        check_read(3);
        dw_follower_close(f);
        assert_int_equal(count_files(where->dir), n_copies);
        assert_int_equal(system(command), 0);
        f = open_ok(NULL, n_copies); /* but new files are made here */
        go_to(f, 3);
        assert_int_equal(lstat(link_path, &st), 0);
        assert_true(S_ISREG(st.st_mode));
        assert_int_equal(count_files(where->dir), 0);
        dw_follower_close(f);
    }
}

/* Stock readers accept the padded header; see tests/interop for others. */
static void test_refused(void **state)
{
    (void)state;
    dw_error err = {0};
    dw_follower *f;
    snprintf(into, sizeof into, "%s/refused", temp_dir);
    keep nowhere = {"nowhere", "", true, false};
    snprintf(nowhere.dir, sizeof nowhere.dir, "%s/nowhere", temp_dir);
    f = open_ok(&nowhere, 1);
    assert_fails(dw_follower_sync(f, 1, NULL, NULL, &err), DW_NOT_FOUND, &err);
    assert_non_null(strstr(err.where, "nowhere"));
    dw_follower_close(f);
    if (!keeps[2].there)
        return;
    /* uses huge pages from here on, where files cannot be written with write() */
    snprintf(into, sizeof into, "%s/into", keeps[2].dir);
    assert_fails(open_with(&f, NULL, 1, &err), DW_INVALID, &err);
    assert_non_null(strstr(err.text, "`weights_dir`"));
    assert_int_equal(rmdir(into), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"on a disk", test_kept, NULL, NULL, &keeps[0]},
        {"in tmpfs", test_kept, NULL, NULL, &keeps[1]},
        {"in huge pages", test_kept, NULL, NULL, &keeps[2]},
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, make_world, remove_world);
}
