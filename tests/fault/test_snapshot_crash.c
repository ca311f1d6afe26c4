/* A follower is killed before every system call. The power may
 * fail then too, so that the control block, the weights or both are as of the last sync.
 * A reader without a writer gets an error, or reads exactly the block's version. The next
 * follower goes on from a version to the end.
 */
/* wrap: open pwrite fsync rename msync unlink link flock mkdir */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/suite.h"

#include "deltawire/follow.h"
#include "fault/wrong_calls.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

#define HEAD 6

static bool noting; /* note what is synced */

/* ---- durable bytes ---- */

static char into[128], synced[128];
static const char *const names[] = {".deltawire/control", "model.safetensors"};
#define N_NAMES (sizeof names / sizeof *names)

static void join(char out[256], const char *dir, size_t name)
{
    snprintf(out, 256, "%s/%s", dir, names[name]);
    for (char *at = out + strlen(dir) + 1; dir == synced && *at; at++)
        if (*at == '/')
            *at = '+';
}

int __real_open(const char *path, int flags, ...);

/* Copies bytes into an existing file. */
static void copy_bytes(const char *from, const char *to)
{
    uint8_t bytes[65536];
    int in = __real_open(from, O_RDONLY);
    int out = __real_open(to, O_WRONLY | O_CREAT, 0666);
    ssize_t n = in >= 0 ? read(in, bytes, sizeof bytes) : 0;
    if (n > 0 && out >= 0 && write(out, bytes, (size_t)n) != n)
        _exit(1);
    close(in);
    close(out);
}

/* Notes that the current bytes of the file PATH are durable, whatever its name is now. */
static void note(const char *path)
{
    for (size_t i = 0; noting && i < N_NAMES; i++) {
        char name[256], shadow[256];
        join(name, into, i);
        join(shadow, synced, i);
        const size_t n = strlen(name);
        if (strncmp(path, name, n) == 0 &&
            (path[n] == '\0' || strncmp(path + n, ".tmp-", 5) == 0))
            copy_bytes(path, shadow);
    }
}

static void note_map(const void *at)
{
    char line[600], path[400];
    FILE *maps = noting ? fopen("/proc/self/maps", "r") : NULL;
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %399s", &from, &to, path) == 3 &&
            from <= (uintptr_t)at && (uintptr_t)at < to)
            note(path);
    }
    if (maps)
        fclose(maps);
}

/* ---- the calls ---- */

WRAP_OPEN(flags &O_CREAT)
WRAP_PWRITE
WRAP_RENAME
WRAP_UNLINK
WRAP_LINK
WRAP_FLOCK
WRAP_MKDIR

int __real_fsync(int fd);
int __wrap_fsync(int fd)
{
    if (fails("fsync"))
        return -1;
    int result = __real_fsync(fd);
    char link[64], path[400];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = '\0';
    note(path);
    return result;
}

int __real_msync(void *at, size_t n, int flags);
int __wrap_msync(void *at, size_t n, int flags)
{
    if (fails("msync"))
        return -1;
    int result = __real_msync(at, n, flags);
    note_map(at);
    return result;
}

/* ---- the follower ---- */

static kit k;
static dw_store *store;
static size_t version_log[KIT_COPIES];

static int make_world(void **state)
{
    temp_dir_make(state);
    kit_make(&k);
    store = kit_mem_store();
    kit_make_stream(&k, store, temp_dir, HEAD, 2, version_log);
    snprintf(into, sizeof into, "%s/into", temp_dir);
    snprintf(synced, sizeof synced, "%s/synced", temp_dir);
    return 0;
}

static int remove_world(void **state)
{
    kit_free(&k);
    dw_store_close(store);
    return temp_dir_remove(state);
}

static dw_status go(const uint64_t *goals, size_t n_goals, uint64_t *version,
                    dw_error *err)
{
    dw_follower *f;
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = into;
    options.n_threads = 1;
    options.sweep_every = 2;
    dw_status status = dw_follower_open(&f, store, &options, err);
    if (status == DW_OK)
        kit_check_follower(&k, f, version_log);
    if (status == DW_OK && version)
        *version = dw_follower_version(f);
    for (size_t i = 0; status == DW_OK && i < n_goals; i++)
        status = dw_follower_sync(f, goals[i], NULL, NULL, err);
    dw_follower_close(f);
    return status;
}

/* The version that a reader finds while nobody writes; DW_NO_VERSION if it must wait. */
static uint64_t read_version(void)
{
    dw_snapshot *s;
    dw_snapshot_view view;
    dw_error err = {0};
    dw_status status = dw_snapshot_open(&s, into, &err);
    if (status != DW_OK) {
        if (status != DW_UNAVAILABLE && status != DW_NOT_FOUND)
            print_error("%s: %s\n", err.where, err.text);
        assert_true(status == DW_UNAVAILABLE || status == DW_NOT_FOUND);
        return DW_NO_VERSION;
    }
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    dw_digest digests[KIT_TENSORS], all = 0;
    assert_int_equal(
        dw_digest_tensors(digests, &all, view.tensors, view.n_tensors, 1, NULL, NULL),
        DW_OK);
    if (all != view.state)
        print_error("it says version %llu, and is not\n",
                    (unsigned long long)view.version);
    assert_true(all == view.state);
    assert_true(
        kit_same(&k, view.tensors, view.n_tensors, k.copies[version_log[view.version]]));
    dw_snapshot_close(s);
    return view.version;
}

static void run_command(const char *format)
{
    char command[600];
    snprintf(command, sizeof command, format, temp_dir, temp_dir, temp_dir, temp_dir);
    assert_int_equal(system(command), 0);
}

/* From version 2 the process goes up by a delta and by an anchor, and down. */
static const uint64_t goals[] = {3, 5, 1};

/* Kills a follower before call number STEP; LOST: 1 the block, 2 the weights. False if it
 * made fewer calls. */
static bool run_one(int step, unsigned lost)
{
    run_command("rm -rf '%s/into' '%s/synced' && cp -a '%s/start' '%s/into'");
    assert_int_equal(mkdir(synced, 0777), 0);
    noting = true;
    for (size_t i = 0; i < N_NAMES; i++) {
        char name[256];
        join(name, into, i);
        if (access(name, F_OK) == 0)
            note(name);
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        calls_left = step;
        _exit((int)go(goals, sizeof goals / sizeof *goals, NULL, NULL));
    }
    noting = false;
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    const bool finished = WEXITSTATUS(status) == DW_OK;
    assert_true(finished || WEXITSTATUS(status) == KILLED);
    for (size_t i = 0; i < N_NAMES; i++) {
        char name[256], shadow[256];
        join(name, into, i);
        join(shadow, synced, i);
        if (lost & (i == 0 ? 1 : 2) && access(name, F_OK) == 0 &&
            access(shadow, F_OK) == 0)
            copy_bytes(shadow, name);
    }
    const uint64_t seen = read_version();
    uint64_t version = DW_NO_VERSION;
    dw_error err = {0};
    const uint64_t goal = 4;
    assert_ok(go(&goal, 1, &version, &err), &err);
    assert_true(version != DW_NO_VERSION);
    assert_true(version == 2 || version == 3 || version == 4 || version == 5 ||
                version == 1);
    if (finished)
        assert_true(version == 1 && seen == 1);
    assert_int_equal(read_version(), 4);
    return !finished;
}

TEST(test_kills)
{
    const uint64_t start = 2;
    dw_error err = {0};
    run_command("rm -rf '%s/into' '%s/start'; mkdir -p '%s/start'; rmdir '%s/start'");
    assert_ok(go(&start, 1, NULL, &err), &err);
    run_command("cp -a '%s/into' '%s/start'");
    int n_steps = 0;
    while (run_one(n_steps, (unsigned)n_steps % 4))
        n_steps++;
    for (int i = 0; i < n_steps; i += 3)
        run_one(i, (unsigned)(i + 1 + i / 4 % 3) % 4);
    assert_true(n_steps > 40); /* or the wrappers were not used */
}

RUN_TESTS(make_world, remove_world)
