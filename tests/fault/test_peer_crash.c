/* A directory that follows another system's versions, killed before every system call
 * that writes: between the stores and the file that remembers them too, where a XOR done
 * twice would undo itself. The next one finds exactly a version, and goes on. Then a
 * store that fails at every one of its calls.
 */
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

#include "unit/peer_kit.h"
#include "unit/temp_dir.h"

enum { KILLED = 99, NEVER = -1 };

static int calls_left = NEVER; /* until the one that is not made any more */

static void before_call(void)
{
    if (calls_left != NEVER && calls_left-- == 0)
        _exit(KILLED);
}

#define WRAP(type, name, parameters, arguments)                                          \
    type __real_##name parameters;                                                       \
    type __wrap_##name parameters;                                                       \
    type __wrap_##name parameters                                                        \
    {                                                                                    \
        before_call();                                                                   \
        return __real_##name arguments;                                                  \
    }

WRAP(ssize_t, pwrite, (int fd, const void *bytes, size_t n, off_t at), (fd, bytes, n, at))

/* The power stays on, so that nothing need be waited for (test_snapshot_crash.c cuts it).
 */
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
    (void)at, (void)n, (void)flags;
    before_call();
    return 0;
}

WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, unlink, (const char *path), (path))
WRAP(int, flock, (int fd, int operation), (fd, operation))

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

/* ---- the process ---- */

static char into[128], base[128];

static int make_world(void **state)
{
    temp_dir_make(state);
    peer_kit_make();
    snprintf(into, sizeof into, "%s/into", temp_dir);
    snprintf(base, sizeof base, "%s/base.safetensors", temp_dir);
    peer_put_base(base);
    return 0;
}

static void run_command(const char *format)
{
    char command[600];
    snprintf(command, sizeof command, format, temp_dir, temp_dir, temp_dir);
    assert_int_equal(system(command), 0);
}

static dw_status go(dw_store *store, const uint64_t *goals, size_t n_goals,
                    uint64_t *version, dw_error *err)
{
    dw_peer *peer;
    dw_peer_replica *r = NULL;
    dw_peer_replica_options options;
    dw_peer_replica_options_init(&options);
    options.into = into;
    options.base = base;
    options.n_threads = 1;
    dw_status status = dw_peer_open(&peer, store, err);
    if (status == DW_OK)
        status = dw_peer_replica_open(&r, peer, &options, err);
    if (status == DW_OK && version) {
        *version = dw_peer_replica_version(r);
        peer_check_replica(r, into);
    }
    for (size_t i = 0; status == DW_OK && i < n_goals; i++) {
        status = dw_peer_replica_sync(r, goals[i], NULL, NULL, err);
        if (version)
            peer_check_replica(r, into);
    }
    dw_peer_replica_close(r);
    dw_peer_close(peer);
    return status;
}

/* ---- kills ---- */

/* Up by a delta, over a whole version where there is one, and down. */
static const uint64_t goals[] = {3, 4, 1};

/* Kills the process before call number STEP; false where it made fewer. */
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

static void kill_everywhere(peer_bucket kind)
{
    dw_store *store = peer_make_bucket(kind);
    dw_error err = {0};
    const uint64_t start = 2;
    int n_steps = 0;
    run_command("rm -rf '%s/into' '%s/start'");
    assert_ok(go(store, &start, 1, NULL, &err), &err);
    run_command("mv '%s/into' '%s/start'");
    while (run_one(store, true, n_steps))
        n_steps++;
    assert_true(n_steps > 30); /* or the wrappers are not in the way */
    for (int i = 0; run_one(store, false, i); i += 3)
        ;
    dw_store_close(store);
}

static void test_kill_trl(void **state)
{
    (void)state;
    kill_everywhere(BUCKET_TRL);
}

static void test_kill_slime(void **state)
{
    (void)state;
    kill_everywhere(BUCKET_SLIME);
}

static void test_kill_skyrl(void **state)
{
    (void)state;
    kill_everywhere(BUCKET_SKYRL);
}

/* ---- a store that fails ---- */

static void fail_once(peer_bucket kind, dw_store *inner, kit_faults *faults)
{
    static const uint64_t way[] = {2, 3, DW_LATEST};
    dw_store *store = kit_fault_store(inner, faults);
    dw_error err = {0};
    run_command("rm -rf '%s/into'");
    uint64_t version;
    dw_status status = go(store, way, 3, &version, &err);
    assert_told(status, &err);
    if (faults->kind == DW_FAULT_DELAY)
        assert_int_equal(status, DW_OK);
    faults->on = false;
    assert_ok(go(store, way, 3, &version, &err), &err);
    assert_true(version == DW_NO_VERSION || version == 0 ||
                peer_has_version(kind, version));
    dw_store_close(store);
}

static void test_store_faults(void **state)
{
    (void)state;
    static const dw_fault_kind kinds[] = {DW_FAULT_FAIL, DW_FAULT_DENY, DW_FAULT_SHORT,
                                          DW_FAULT_STALE, DW_FAULT_CORRUPT};
    static const peer_bucket buckets[] = {BUCKET_TRL, BUCKET_SLIME_DELTAS, BUCKET_SKYRL};
    for (size_t b = 0; b < 3; b++) {
        dw_store *store = peer_make_bucket(buckets[b]);
        kit_faults none = {.on = false};
        fail_once(buckets[b], store, &none);
        const uint64_t n_calls = none.n_seen;
        assert_true(n_calls > 20);
        for (uint64_t first = 0; first < n_calls; first++) {
            const dw_fault_kind kind = kinds[(first + b) % 5];
            /* a flipped bit of TRL's weights cannot be told from another weight */
            if (kind == DW_FAULT_CORRUPT && buckets[b] == BUCKET_TRL)
                continue;
            kit_faults faults = {.on = true, .kind = kind, .first = first, .n = 1};
            fail_once(buckets[b], store, &faults);
        }
        dw_store_close(store);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_trl),
        cmocka_unit_test(test_kill_slime),
        cmocka_unit_test(test_kill_skyrl),
        cmocka_unit_test(test_store_faults),
    };
    return cmocka_run_group_tests(tests, make_world, temp_dir_remove);
}
