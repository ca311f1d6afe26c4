/* Puts into a directory store: the power fails before every system call, the process is
 * killed there, and each call fails in turn. An object is absent or whole, and exists if
 * its put returned DW_OK. */
/* wrap: open openat pwrite fsync linkat renameat renameat2 mkdir mkdirat unlinkat flock
 */
#include <errno.h>
#include <sys/wait.h>

#include "unit/suite.h"

#include "deltawire/store.h"
#include "fault/lossy_disk.h"
#include "fault/wrong_calls.h"
#include "unit/failing_allocator.h"
#include "unit/temp_dir.h"

/* ---- system calls that go wrong ------------------------------------------------------
 */

static int link_errno, rename2_errno; /* what every such call fails with */

static int note_made(int dir, const char *path, int result)
{
    struct stat st;
    if (lossy && result >= 0 && fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
        lossy_made(&st);
    return result;
}

int __wrap_open(const char *path, int flags, ...)
{
    return fails("open") ? -1 : __real_open(path, flags);
}

int __wrap_openat(int dir, const char *path, int flags, ...)
{
    if (fails("openat"))
        return -1;
    int fd = __real_openat(dir, path, flags, 0666);
    return flags & O_CREAT ? note_made(dir, path, fd) : fd;
}

WRAP_PWRITE

int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    if (fails("fsync"))
        return -1;
    if (lossy)
        lossy_synced(fd);
    return 0;
}

int __real_linkat(int from_dir, const char *from, int dir, const char *to, int flags);
int __wrap_linkat(int from_dir, const char *from, int dir, const char *to, int flags)
{
    errno = link_errno;
    return link_errno || fails("linkat") ? -1
                                         : __real_linkat(from_dir, from, dir, to, flags);
}

WRAP_CALL(int, -1, renameat, (int from_dir, const char *from, int dir, const char *to),
          (from_dir, from, dir, to))

int __real_renameat2(int from_dir, const char *from, int dir, const char *to,
                     unsigned flags);
int __wrap_renameat2(int from_dir, const char *from, int dir, const char *to,
                     unsigned flags)
{
    errno = rename2_errno;
    return rename2_errno || fails("renameat2")
               ? -1
               : __real_renameat2(from_dir, from, dir, to, flags);
}

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
    return fails("mkdir") ? -1 : note_made(AT_FDCWD, path, __real_mkdir(path, mode));
}

int __real_mkdirat(int dir, const char *path, mode_t mode);
int __wrap_mkdirat(int dir, const char *path, mode_t mode)
{
    return fails("mkdirat") ? -1 : note_made(dir, path, __real_mkdirat(dir, path, mode));
}

WRAP_UNLINKAT
WRAP_FLOCK

/* ---- objects
 * ----------------------------------------------------------------------------- */

#define N_OBJECT 3000
enum { ABSENT = 0, TORN = -1 };

/* Version V of any object is N_OBJECT + V bytes of V. */
static dw_status put(dw_store *store, const char *key, int version, dw_put_mode mode,
                     dw_error *err)
{
    uint8_t bytes[N_OBJECT + 9];
    memset(bytes, version, sizeof bytes);
    dw_source source = {.n_bytes = (uint64_t)(N_OBJECT + version), .bytes = bytes};
    return dw_store_put(store, key, &source, mode, NULL, err);
}

static int version_of(dw_store *store, const char *key)
{
    uint8_t bytes[N_OBJECT + 20];
    size_t n_read;
    dw_error err;
    dw_status status =
        dw_store_get(store, key, 0, bytes, sizeof bytes, &n_read, NULL, &err);
    if (status == DW_NOT_FOUND)
        return ABSENT;
    if (status != DW_OK || n_read < N_OBJECT || n_read != N_OBJECT + (size_t)bytes[0])
        return TORN;
    for (size_t i = 0; i < n_read; i++)
        if (bytes[i] != bytes[0])
            return TORN;
    return bytes[0];
}

static dw_store *open_store(const char *dir)
{
    char path[600];
    dw_store *store;
    snprintf(path, sizeof path, "%s/new/store", dir);
    assert_int_equal(dw_store_open(&store, path, NULL, NULL), DW_OK);
    return store;
}

static char disk[128], after[128];

static size_t n_drafts(void)
{
    char path[200];
    snprintf(path, sizeof path, "%s/new/store/.deltawire~", disk);
    return count_files(path);
}

/* ---- a run, and what must be left of it
 * ------------------------------------------------- */

typedef struct life {
    int n_done; /* calls that returned */
} life;

static life *lived;

#define N_CALLS 5

/* Only in a child. */
static void live(void)
{
    dw_store *store = open_store(disk);
    if (put(store, "a/b/one", 1, DW_PUT_CREATE, NULL) != DW_OK)
        _exit(1);
    lived->n_done = 1;
    if (put(store, "top", 1, DW_PUT_CREATE, NULL) != DW_OK)
        _exit(2);
    lived->n_done = 2;
    if (put(store, "a/b/one", 2, DW_PUT_REPLACE, NULL) != DW_OK)
        _exit(3);
    lived->n_done = 3;
    if (put(store, "top", 3, DW_PUT_CREATE, NULL) != DW_CONFLICT)
        _exit(4);
    lived->n_done = 4;
    if (dw_store_remove(store, "top", NULL) != DW_OK)
        _exit(5);
    lived->n_done = N_CALLS;
    dw_store_close(store);
    _exit(0);
}

static void check_life(const char *dir)
{
    dw_store *store = open_store(dir);
    int one = version_of(store, "a/b/one"), top = version_of(store, "top");
    dw_store_close(store);
    int done = lived->n_done;
    bool one_good = done == 0   ? one == ABSENT || one == 1
                    : done == 1 ? one == 1
                    : done == 2 ? one == 1 || one == 2
                                : one == 2;
    bool top_good = done == 0   ? top == ABSENT
                    : done == 1 ? top == ABSENT || top == 1
                    : done < 4  ? top == 1
                    : done == 4 ? top == ABSENT || top == 1
                                : top == ABSENT;
    if (!one_good || !top_good)
        print_error("after %d calls: one %d, top %d\n", done, one, top);
    assert_true(one_good);
    assert_true(top_good);
}

static bool live_until(int n_calls)
{
    lived->n_done = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        calls_left = n_calls;
        wrong_errno = 0;
        live();
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == KILLED);
    return WEXITSTATUS(status) == 0;
}

TEST(test_power_loss)
{
    int n_steps = 0;
    for (bool finished = false; !finished; n_steps++) {
        lossy_reset(disk);
        finished = live_until(n_steps);
        check_life(disk); /* the process was killed, but the power stayed on */
        for (int i = 0; i < 12; i++) {
            lossy_cut(disk, after, i == 0 ? LOSE_NAMES : i == 1 ? KEEP_NAMES : LOSE_SOME);
            check_life(after);
        }
    }
    assert_int_equal(lived->n_done, N_CALLS);
    assert_true(n_steps > 60); /* or the wrappers were not used */
}

/* A killed process leaves names that were not synced. The next one finds them and relies
 * on them, so its results must survive a power failure. */
TEST(test_power_loss_after_a_kill)
{
    unsigned n_conflicts = 0;
    int n_steps = 0;
    for (bool finished = false; !finished; n_steps++) {
        lossy_reset(disk);
        finished = live_until(n_steps);
        dw_store *store = open_store(disk);
        dw_status status = put(store, "a/b/one", 4, DW_PUT_CREATE, NULL);
        n_conflicts += status == DW_CONFLICT;
        int one = version_of(store, "a/b/one");
        assert_true(status == DW_OK ? one == 4 : one == 1 || one == 2);
        assert_true(status == DW_OK || status == DW_CONFLICT);
        assert_int_equal(n_drafts(), 0); /* those of the dead process are gone */
        dw_store_close(store);
        for (int i = 0; i < 6; i++) {
            lossy_cut(disk, after, i == 0 ? LOSE_NAMES : LOSE_SOME);
            store = open_store(after);
            assert_int_equal(version_of(store, "a/b/one"), one);
            dw_store_close(store);
        }
    }
    assert_true(n_conflicts > 20 && n_conflicts < (unsigned)n_steps - 5);
}

/* ---- calls that fail
 * ---------------------------------------------------------------------- */

static size_t count_descriptors(void)
{
    return count_files("/proc/self/fd");
}

/* One call on a new handle whose N'th system call fails; false if it has fewer. NOW is
 * the state before, WANTED the state after the call. */
static bool fail_one(dw_put_mode mode, bool removes, int n, int number, int now,
                     int wanted)
{
    failing_allocator allocator;
    dw_error err = {0};
    size_t n_descriptors = count_descriptors();
    failing_allocator_install(&allocator, SIZE_MAX);
    dw_store *store = open_store(disk);
    calls_left = n;
    wrong_errno = number;
    dw_status status = removes ? dw_store_remove(store, "a/b/one", &err)
                               : put(store, "a/b/one", wanted, mode, &err);
    bool reached = calls_left == NEVER;
    calls_left = NEVER;
    int got = version_of(store, "a/b/one");
    dw_store_close(store);
    dw_set_allocator(NULL);
    assert_int_equal(allocator.n_live, 0);
    assert_int_equal(count_descriptors(), n_descriptors);
    if (status == DW_OK) {
        assert_int_equal(got, wanted);
    } else {
        assert_int_equal(status, DW_IO);
        assert_int_equal(err.code, DW_IO);
        assert_non_null(strstr(err.text, strerror(number)));
        assert_true(strlen(err.where) > 0);
        assert_true(got == now || got == wanted);
        /* done only if the failed call came after the name */
        assert_true(got == now || strcmp(wrong_call, "fsync") == 0);
    }
    if (!reached || strcmp(wrong_call, "unlinkat") != 0)
        assert_int_equal(n_drafts(), 0);
    return reached;
}

TEST(test_every_call_fails)
{
    static const int errors[] = {EIO, ENOSPC, EDQUOT};
    for (size_t e = 0; e < 3; e++)
        for (int kind = 0; kind < 4;
             kind++) { /* create, replace of nothing, of 1, remove */
            int n = 0;
            for (bool reached = true; reached; n++) {
                lossy_reset(disk);
                int now = ABSENT;
                if (kind >= 2) {
                    dw_store *store = open_store(disk);
                    assert_int_equal(put(store, "a/b/one", now = 1, DW_PUT_CREATE, NULL),
                                     DW_OK);
                    dw_store_close(store);
                }
                reached = fail_one(kind == 0 ? DW_PUT_CREATE : DW_PUT_REPLACE, kind == 3,
                                   n, errors[e], now, kind == 3 ? ABSENT : 2);
                /* then it works again, and no drafts are left */
                dw_store *store = open_store(disk);
                assert_int_equal(put(store, "a/b/one", 3, DW_PUT_REPLACE, NULL), DW_OK);
                assert_int_equal(version_of(store, "a/b/one"), 3);
                assert_int_equal(n_drafts(), 0);
                dw_store_close(store);
            }
            assert_true(n > (kind == 3 ? 4 : 25));
        }
}

TEST(test_full_disk_says_what_to_do)
{
    dw_error err;
    lossy_reset(disk);
    dw_store *store = open_store(disk);
    assert_int_equal(put(store, "x", 1, DW_PUT_CREATE, NULL), DW_OK);
    int n = 0;
    for (wrong_call = ""; strcmp(wrong_call, "pwrite") != 0; n++) {
        calls_left = n;
        wrong_errno = ENOSPC;
        put(store, "y", 1, DW_PUT_REPLACE, &err);
        assert_int_equal(calls_left, NEVER);
    }
    assert_int_equal(err.code, DW_IO);
    assert_non_null(strstr(err.text, "free some room"));
    assert_non_null(strstr(err.text, disk));
    assert_non_null(strstr(err.where, "/new/store/y"));
    assert_int_equal(n_drafts(), 0);
    dw_store_close(store);
}

/* A filesystem without links, and one that also cannot rename without replacing. */
TEST(test_no_links)
{
    static const int errors[] = {EPERM, EOPNOTSUPP, EMLINK, ENOSYS};
    for (size_t e = 0; e < 4; e++) {
        dw_error err;
        lossy_reset(disk);
        dw_store *store = open_store(disk);
        link_errno = errors[e];
        assert_int_equal(put(store, "a/one", 1, DW_PUT_CREATE, &err), DW_OK);
        assert_int_equal(version_of(store, "a/one"), 1);
        assert_int_equal(n_drafts(), 0);
        assert_int_equal(put(store, "a/one", 2, DW_PUT_CREATE, &err), DW_CONFLICT);
        rename2_errno = EEXIST; /* somebody was faster, after the first check */
        assert_int_equal(put(store, "a/two", 2, DW_PUT_CREATE, &err), DW_CONFLICT);
        rename2_errno = EINVAL;
        assert_int_equal(put(store, "a/two", 2, DW_PUT_CREATE, &err), DW_UNSUPPORTED);
        assert_non_null(strstr(err.text, "filesystem"));
        assert_int_equal(version_of(store, "a/two"), ABSENT);
        assert_int_equal(put(store, "a/two", 2, DW_PUT_REPLACE, &err), DW_OK);
        link_errno = rename2_errno = 0;
        assert_int_equal(n_drafts(), 0);
        dw_store_close(store);
    }
}

static int set_up(void **state)
{
    lived = mmap(NULL, sizeof *lived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    if (lived == MAP_FAILED || temp_dir_make(state) != 0)
        return -1;
    snprintf(disk, sizeof disk, "%s/disk", temp_dir);
    snprintf(after, sizeof after, "%s/after", temp_dir);
    return 0;
}

RUN_TESTS(set_up, temp_dir_remove)
