/* labels: single */
/* Files that shrink while they are mapped: each case runs in a child, which must end by
 * itself, after an error that names the file. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/suite.h"

#include "deltawire/deltawire.h"
#include "unit/temp_dir.h"
#include "inner.h"

enum { N_TENSORS = 3, N_ELEMS = 150000 };

/* ---- in the parent ---- */

static void remove_files(void)
{
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", temp_dir, temp_dir);
    assert_int_equal(system(command), 0);
}

static void assert_survives(void (*child)(void))
{
    remove_files();
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGBUS, SIG_DFL); /* cmocka has a handler of its own */
        child();
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    if (!WIFEXITED(how))
        print_error("ended by signal %d\n", WTERMSIG(how));
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
}

/* A test that runs in a child. */
#define SHRINK_TEST(name)                                                                \
    static void name(void);                                                              \
    TEST(test_##name)                                                                    \
    {                                                                                    \
        assert_survives(name);                                                           \
    }                                                                                    \
    static void name(void)

/* ---- in the child ---- */

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                      \
            _exit(1);                                                                    \
        }                                                                                \
    } while (0)

static dw_error error;

#define CHECK_OK(call)                                                                   \
    do {                                                                                 \
        if ((call) != DW_OK) {                                                           \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, error.where, error.text);     \
            _exit(1);                                                                    \
        }                                                                                \
    } while (0)

/* The call fails because the file that ends with NAME shrank. */
#define CHECK_SHRANK(call, name)                                                         \
    do {                                                                                 \
        error = (dw_error){0};                                                           \
        dw_status status_ = (call);                                                      \
        if (status_ != DW_IO || error.code != DW_IO || !ends_with(error.where, name)) {  \
            fprintf(stderr, "line %d: %s: %s: %s\n", __LINE__, dw_status_name(status_),  \
                    error.where, error.text);                                            \
            _exit(1);                                                                    \
        }                                                                                \
        CHECK(strstr(error.text, "shrank"));                                             \
    } while (0)

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static uint16_t weights[N_TENSORS][N_ELEMS];
static dw_tensor tensors[N_TENSORS];

static void make_weights(unsigned version)
{
    static const uint64_t dims[] = {N_ELEMS};
    static const char *const names[] = {"a", "b", "c"};
    for (size_t t = 0; t < N_TENSORS; t++) {
        for (size_t i = 0; i < N_ELEMS; i++)
            weights[t][i] = (uint16_t)(0x3c00 + i % 977 + (i % 61 == 0 ? version : 0));
        tensors[t] = (dw_tensor){.name = names[t],
                                 .dtype = DW_BF16,
                                 .n_dims = 1,
                                 .dims = dims,
                                 .n_bytes = sizeof weights[t],
                                 .data = weights[t]};
    }
}

static void write_checkpoint(const char *name, unsigned version)
{
    make_weights(version);
    CHECK_OK(dw_checkpoint_write(temp_path(name), tensors, N_TENSORS, NULL, &error));
}

static dw_checkpoint *open_checkpoint(const char *name)
{
    dw_checkpoint *ckpt;
    CHECK_OK(dw_checkpoint_open(&ckpt, temp_path(name), DW_CHECKPOINT_READ, &error));
    return ckpt;
}

static const dw_tensor *tensors_of(const dw_checkpoint *ckpt)
{
    size_t n;
    const dw_tensor *list = dw_checkpoint_tensors(ckpt, &n);
    CHECK(n == N_TENSORS);
    return list;
}

/* The file that a progress function truncates at its first call, when the work has begun.
 */
static struct cut {
    char path[512];
    off_t n_bytes; /* negative: so many bytes less */
    bool done;
} cut;

static void cut_now(const char *path, off_t n_bytes)
{
    struct stat st;
    CHECK(stat(path, &st) == 0);
    CHECK(truncate(path, n_bytes < 0 ? st.st_size + n_bytes : n_bytes) == 0);
}

static int cut_once(void *context, uint64_t n_done, uint64_t n_total)
{
    (void)context;
    (void)n_done;
    (void)n_total;
    if (!cut.done)
        cut_now(cut.path, cut.n_bytes);
    cut.done = true;
    return 0;
}

static dw_progress cut_later(const char *path, off_t n_bytes)
{
    cut = (struct cut){.n_bytes = n_bytes};
    snprintf(cut.path, sizeof cut.path, "%s", path);
    return (dw_progress){.report = cut_once};
}

static const off_t cuts[] = {0, 5000, N_ELEMS * 3, -100};
enum { N_CUTS = sizeof cuts / sizeof cuts[0] };

/* ---- checkpoints ---- */

static void diff_checkpoints(bool cut_new, dw_codec codec)
{
    for (size_t i = 0; i < N_CUTS; i++) {
        write_checkpoint("old.safetensors", 0);
        write_checkpoint("new.safetensors", 1);
        dw_checkpoint *old = open_checkpoint("old.safetensors");
        dw_checkpoint *new_ = open_checkpoint("new.safetensors");
        const char *name = cut_new ? "new.safetensors" : "old.safetensors";
        dw_diff_options options;
        dw_diff_options_init(&options);
        options.codec = codec;
        options.n_threads = 2;
        options.progress = cut_later(temp_path(name), cuts[i]);
        dw_delta *delta;
        CHECK_SHRANK(dw_delta_diff(&delta, tensors_of(old), tensors_of(new_), N_TENSORS,
                                   &options, &error),
                     name);
        CHECK_SHRANK(dw_checkpoint_check(cut_new ? new_ : old, &error), name);
        CHECK_OK(dw_checkpoint_check(cut_new ? old : new_, &error));
        dw_checkpoint_close(old);
        dw_checkpoint_close(new_);
    }
}

SHRINK_TEST(diff_new)
{
    diff_checkpoints(true, DW_CODEC_CLASS);
    diff_checkpoints(true, DW_CODEC_GAP);
}

SHRINK_TEST(diff_old)
{
    diff_checkpoints(false, DW_CODEC_CLASS);
    diff_checkpoints(false, DW_CODEC_GAP);
}

SHRINK_TEST(digest)
{
    for (size_t i = 0; i < N_CUTS; i++) {
        write_checkpoint("old.safetensors", 0);
        dw_checkpoint *ckpt = open_checkpoint("old.safetensors");
        dw_digest digests[N_TENSORS], state;
        const dw_progress progress = cut_later(temp_path("old.safetensors"), cuts[i]);
        CHECK_SHRANK(dw_digest_tensors(digests, &state, tensors_of(ckpt), N_TENSORS, 1,
                                       &progress, &error),
                     "old.safetensors");
        dw_checkpoint_close(ckpt);
    }
}

SHRINK_TEST(copy_checkpoint)
{
    write_checkpoint("old.safetensors", 0);
    dw_checkpoint *ckpt = open_checkpoint("old.safetensors");
    cut_now(temp_path("old.safetensors"), 5000);
    CHECK_SHRANK(dw_checkpoint_write(temp_path("copy.safetensors"), tensors_of(ckpt),
                                     N_TENSORS, NULL, &error),
                 "old.safetensors");
    CHECK(access(temp_path("copy.safetensors"), F_OK) != 0);
    dw_checkpoint_close(ckpt);
}

static void save_delta(const char *name)
{
    write_checkpoint("old.safetensors", 0);
    dw_checkpoint *old = open_checkpoint("old.safetensors");
    make_weights(1);
    dw_delta *delta;
    CHECK_OK(dw_delta_diff(&delta, tensors_of(old), tensors, N_TENSORS, NULL, &error));
    CHECK_OK(dw_delta_save(delta, temp_path(name), &error));
    dw_delta_close(delta);
    dw_checkpoint_close(old);
}

/* An open delta has already been read. */
SHRINK_TEST(shrinking_delta)
{
    save_delta("delta");
    dw_delta *delta;
    CHECK_OK(dw_delta_open(&delta, temp_path("delta"), &error));
    cut_now(temp_path("delta"), 0);
    CHECK_OK(
        dw_checkpoint_apply(temp_path("old.safetensors"), delta, NULL, NULL, &error));
    dw_delta_close(delta);
}

/* ---- publishers ---- */

static dw_store *open_store(void)
{
    dw_store *store;
    CHECK_OK(dw_store_open(&store, temp_path("stream"), NULL, &error));
    return store;
}

static dw_publisher *open_publisher(dw_store *store, const dw_tensor *list,
                                    const char *baseline)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.baseline_dir = baseline;
    options.n_threads = 2;
    dw_publisher *p;
    CHECK_OK(dw_publisher_open(&p, store, list, N_TENSORS, &options, &error));
    return p;
}

static dw_status publish(dw_publisher *p)
{
    dw_publish_report report;
    uint64_t ticket;
    dw_status status = dw_publisher_publish(p, &ticket, NULL, &error);
    if (status == DW_OK)
        status = dw_publisher_wait(p, ticket, UINT32_MAX, NULL, &report, &error);
    dw_publisher_drained(p, UINT32_MAX);
    return status;
}

static void remove_dir(const char *name)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", temp_path(name));
    CHECK(system(command) == 0);
}

/* All committed versions can be followed, and the last one equals the weights. */
static void check_stream(dw_store *store, uint64_t version)
{
    static uint16_t room[N_TENSORS][N_ELEMS];
    dw_tensor into[N_TENSORS];
    for (size_t t = 0; t < N_TENSORS; t++) {
        into[t] = tensors[t];
        into[t].data = room[t];
    }
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = into;
    options.n_tensors = N_TENSORS;
    dw_follower *f;
    CHECK_OK(dw_follower_open(&f, store, &options, &error));
    CHECK_OK(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &error));
    CHECK(dw_follower_version(f) == version);
    CHECK(memcmp(room, weights, sizeof room) == 0);
    dw_follower_close(f);
}

/* The trainer publishes a checkpoint that it mapped. */
SHRINK_TEST(publish_checkpoint)
{
    write_checkpoint("live.safetensors", 0);
    dw_store *store = open_store();
    dw_checkpoint *ckpt = open_checkpoint("live.safetensors");
    dw_publisher *p = open_publisher(store, tensors_of(ckpt), NULL);
    cut_now(temp_path("live.safetensors"), 5000);
    CHECK_SHRANK(publish(p), "live.safetensors");
    CHECK_SHRANK(publish(p), "live.safetensors");
    make_weights(0);
    check_stream(store, 0);
    dw_publisher_close(p);
    dw_checkpoint_close(ckpt);
    dw_store_close(store);
}

/* The baseline of a trainer: the next publish reads it back from the stream. */
SHRINK_TEST(publish_baseline)
{
    static const char file[] = "base/model.safetensors";
    for (size_t i = 0; i < N_CUTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "stream-%zu", i);
        dw_store *store;
        CHECK_OK(dw_store_open(&store, temp_path(name), NULL, &error));
        make_weights(0);
        dw_publisher *p = open_publisher(store, tensors, temp_path("base"));
        make_weights(1);
        CHECK_OK(publish(p));
        cut_now(temp_path(file), cuts[i]);
        make_weights(2);
        CHECK_OK(publish(p));
        check_stream(store, 2);
        make_weights(3);
        CHECK_OK(publish(p));
        check_stream(store, 3);
        dw_publisher_close(p);
        dw_store_close(store);
        remove_dir("base");
    }
}

/* Nobody reads the control block of a baseline, so a publish need not fail. */
SHRINK_TEST(baseline_control)
{
    dw_store *store = open_store();
    make_weights(0);
    dw_publisher *p = open_publisher(store, tensors, temp_path("base"));
    cut_now(temp_path("base/" DW_CONTROL_NAME), 0);
    for (unsigned v = 1; v < 4; v++) {
        make_weights(v);
        CHECK_OK(publish(p));
        check_stream(store, v);
    }
    dw_publisher_close(p);
    dw_store_close(store);
}

/* ---- followers ---- */

static void make_stream(dw_store *store, unsigned n_versions)
{
    make_weights(0);
    dw_publisher *p = open_publisher(store, tensors, NULL);
    for (unsigned v = 1; v < n_versions; v++) {
        make_weights(v);
        CHECK_OK(publish(p));
    }
    dw_publisher_close(p);
}

static dw_follower *open_follower(dw_store *store, const char *dir)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = temp_path(dir);
    dw_follower *f;
    CHECK_OK(dw_follower_open(&f, store, &options, &error));
    CHECK_OK(dw_follower_sync(f, 1, NULL, NULL, &error));
    return f;
}

/* The next call starts over, and ends with the newest version on the disk. */
static void check_recovery(dw_follower *f, const char *path)
{
    CHECK_OK(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &error));
    CHECK(dw_follower_version(f) == 2);
    dw_checkpoint *ckpt;
    make_weights(2);
    CHECK_OK(dw_checkpoint_open(&ckpt, path, DW_CHECKPOINT_READ, &error));
    const dw_tensor *list = tensors_of(ckpt);
    for (size_t t = 0; t < N_TENSORS; t++)
        CHECK(memcmp(list[t].data, weights[t], sizeof weights[t]) == 0);
    dw_checkpoint_close(ckpt);
}

SHRINK_TEST(follow)
{
    static const char file[] = "model.safetensors";
    for (size_t i = 0; i < N_CUTS; i++) {
        char dir[32], path[512];
        snprintf(dir, sizeof dir, "into-%zu", i);
        snprintf(path, sizeof path, "%s/%s", temp_path(dir), file);
        dw_store *store = open_store();
        if (i == 0)
            make_stream(store, 3);
        dw_follower *f = open_follower(store, dir);
        cut_now(path, cuts[i]);
        CHECK_SHRANK(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &error), file);
        CHECK(dw_follower_version(f) == DW_NO_VERSION);
        check_recovery(f, path);
        dw_follower_close(f);
        dw_store_close(store);
    }
}

/* The weights shrink after the stage: the stores notice it. */
SHRINK_TEST(follow_at_the_stores)
{
    dw_store *store = open_store();
    make_stream(store, 3);
    dw_follower *f = open_follower(store, "into");
    uint64_t staged;
    CHECK_OK(dw_follower_stage(f, 2, &staged, NULL, &error));
    CHECK_OK(dw_follower_prepare(f, &error));
    cut_now(temp_path("into/model.safetensors"), 5000);
    CHECK_SHRANK(dw_follower_apply(f, &error), "model.safetensors");
    CHECK(dw_follower_version(f) == DW_NO_VERSION);
    check_recovery(f, temp_path("into/model.safetensors"));
    dw_follower_close(f);
    dw_store_close(store);
}

SHRINK_TEST(follow_staged_file)
{
    dw_store *store = open_store();
    make_stream(store, 3);
    dw_follower *f = open_follower(store, "into");
    uint64_t staged;
    CHECK_OK(dw_follower_stage(f, 2, &staged, NULL, &error));
    cut_now(dw_follower_update(f).patch, 100);
    CHECK_SHRANK(dw_follower_apply(f, &error), ".staged");
    CHECK(dw_follower_version(f) == DW_NO_VERSION); /* it was prepared */
    check_recovery(f, temp_path("into/model.safetensors"));
    dw_follower_close(f);
    dw_store_close(store);
}

SHRINK_TEST(control_block)
{
    dw_store *store = open_store();
    make_stream(store, 3);
    dw_follower *f = open_follower(store, "into");
    cut_now(temp_path("into/" DW_CONTROL_NAME), 0);
    CHECK_SHRANK(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &error), DW_CONTROL_NAME);
    CHECK(dw_follower_version(f) == DW_NO_VERSION);
    check_recovery(f, temp_path("into/model.safetensors")); /* with a new block */
    dw_snapshot *s;
    dw_snapshot_view view;
    CHECK_OK(dw_snapshot_open(&s, temp_path("into"), &error));
    CHECK_OK(dw_snapshot_hold(s, 0, &view, &error));
    CHECK(view.version == 2);
    dw_snapshot_close(s);
    dw_follower_close(f);
    dw_store_close(store);
}

SHRINK_TEST(snapshot)
{
    dw_store *store = open_store();
    make_stream(store, 2);
    dw_follower *f = open_follower(store, "into");
    dw_snapshot *s;
    dw_snapshot_view view;
    CHECK_OK(dw_snapshot_open(&s, temp_path("into"), &error));
    CHECK_OK(dw_snapshot_look(s, 100, &view, &error));
    CHECK(dw_snapshot_unchanged(s, &view));
    cut_now(temp_path("into/model.safetensors"), 5000);
    CHECK(!dw_snapshot_unchanged(s, &view));
    CHECK_SHRANK(dw_snapshot_hold(s, 100, &view, &error), "model.safetensors");
    CHECK_SHRANK(dw_snapshot_look(s, 100, &view, &error), "model.safetensors");
    cut_now(temp_path("into/" DW_CONTROL_NAME), 0);
    CHECK_SHRANK(dw_snapshot_hold(s, 100, &view, &error), DW_CONTROL_NAME);
    CHECK(!dw_snapshot_unchanged(s, &view));
    CHECK(dw_snapshot_version(s) == UINT64_MAX);
    dw_snapshot_release(s);
    dw_snapshot_close(s);
    dw_follower_close(f);
    dw_store_close(store);
}

/* The library installs nothing by itself. */
SHRINK_TEST(no_handlers)
{
    struct sigaction now;
    diff_new();
    CHECK(sigaction(SIGBUS, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
