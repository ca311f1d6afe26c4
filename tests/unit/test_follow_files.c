/* A follower installs the companion files of the version that it stops at. */
/* wrap: dw_commit_record_write */
#include <stdatomic.h>
#include <sys/stat.h>

#include "unit/suite.h"

#include "unit/counting_store.h"
#include "unit/stream_kit.h"
#include "unit/files_kit.h"
#include "inner.h"

#define HEAD 4

static const companion_text first[] = {
    {"config.json", "{\"v\":0}"}, {"vocab.txt", "a b"}, {NULL, NULL}};
static const companion_text third[] = {
    {"config.json", "{\"v\":3}"}, {"merges.txt", ""}, {NULL, NULL}};
static const companion_text none[] = {{NULL, NULL}};

static kit k;
static dw_store *store;
static size_t version_log[KIT_COPIES];
static char into[128];
static dw_error err;

/* Versions 0 and 1 have the first files, 2 says nothing, 3 has others, 4 has none. */
static int make(void **state)
{
    temp_dir_make(state);
    kit_make(&k);
    store = files_store = kit_mem_store();
    files_of[0] = files_of[1] = first;
    files_of[2] = NULL;
    files_of[3] = third;
    files_of[4] = none;
    kit_make_stream(&k, store, temp_dir, HEAD, 0, version_log);
    snprintf(into, sizeof into, "%s/into", temp_dir);
    err = (dw_error){0};
    return 0;
}

static int end(void **state)
{
    kit_free(&k);
    dw_store_close(store);
    return temp_dir_remove(state);
}

static dw_follow_options options(void)
{
    dw_follow_options o;
    dw_follow_options_init(&o);
    o.into = into;
    o.n_threads = 1;
    return o;
}

static dw_follower *open_follower(const dw_follow_options *o)
{
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, o, &err), &err);
    return f;
}

static dw_follow_report sync_to(dw_follower *f, uint64_t version)
{
    dw_follow_report report;
    assert_ok(dw_follower_sync(f, version, NULL, &report, &err), &err);
    assert_int_equal(dw_follower_version(f), version);
    kit_check_follower(&k, f, version_log);
    assert_false(dw_follower_files_due(f));
    return report;
}

static dw_follow_report pull(uint64_t version)
{
    const dw_follow_options o = options();
    dw_follower *f = open_follower(&o);
    dw_follow_report report = sync_to(f, version);
    dw_follower_close(f);
    return report;
}

#define IS(name, text) assert_true(companion_is(into, name, text))

static const char *in(const char *name)
{
    static char paths[2][300];
    static unsigned turn;
    char *path = paths[turn++ % 2];
    snprintf(path, sizeof paths[0], "%s/%s", into, name);
    return path;
}

static void put_own(const char *name, const char *text)
{
    put_text(in(name), text);
}

/* Nothing is left in the own directory that is not to stay. */
static void check_own(void)
{
    static const char *const known[] = {"state.json", "control", "highest.json"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char name[64];
        snprintf(name, sizeof name, ".deltawire/%s", known[i]);
        n += access(in(name), F_OK) == 0;
    }
    assert_int_equal(count_files(in(".deltawire")), n);
}

/* ---- what the user does between pulls ---- */

typedef enum step_kind {
    END,
    PULL,
    IS_,
    PUT,
    REMOVE,
    LINK,
    HARD_LINK,
    DIRECTORY,
    PIPE,
    FLIP
} step_kind;

typedef struct step {
    step_kind kind;
    const char *name, *text; /* LINK: what it leads to; HARD_LINK: its other name */
    uint64_t version;
    unsigned n_installed, n_removed, n_kept; /* by a pull */
} step;

#define PULLS(version, installed, removed, kept)                                         \
    {                                                                                    \
        PULL, NULL, NULL, version, installed, removed, kept                              \
    }
#define STEP(...)                                                                        \
    {                                                                                    \
        .kind = __VA_ARGS__                                                              \
    }
#define V0     "{\"v\":0}"
#define V3     "{\"v\":3}"
#define RECORD ".deltawire/state.json"

static const step cases[][16] = {
    /* installed, replaced and removed; version 2 says nothing, so they stay */
    {PULLS(1, 2, 0, 0), STEP(IS_, "config.json", V0), STEP(IS_, "vocab.txt", "a b"),
     PULLS(1, 0, 0, 0), PULLS(2, 0, 0, 0), STEP(IS_, "config.json", V0),
     PULLS(3, 2, 1, 0), STEP(IS_, "config.json", V3), STEP(IS_, "merges.txt", ""),
     STEP(IS_, "vocab.txt"), PULLS(0, 2, 1, 0), STEP(IS_, "config.json", V0),
     PULLS(4, 0, 2, 0), STEP(IS_, "config.json")},
    /* on the way to version 3 the files of the versions before it are not fetched */
    {PULLS(3, 2, 0, 0), STEP(IS_, "config.json", V3), STEP(IS_, "vocab.txt")},
    /* what the user removed comes back */
    {PULLS(1, 2, 0, 0), STEP(REMOVE, "vocab.txt"), PULLS(1, 1, 0, 0),
     STEP(IS_, "vocab.txt", "a b"), PULLS(4, 0, 2, 0)},
    /* the user's files stay, also one with the bytes of a version */
    {STEP(PUT, "config.json", "mine"), STEP(PUT, "vocab.txt", "a b"), PULLS(1, 0, 0, 1),
     STEP(IS_, "config.json", "mine"), PULLS(3, 1, 0, 1), STEP(IS_, "vocab.txt", "a b"),
     PULLS(0, 0, 1, 1), PULLS(4, 0, 0, 0), STEP(IS_, "config.json", "mine"),
     STEP(IS_, "vocab.txt", "a b"), STEP(REMOVE, "config.json"), PULLS(3, 2, 0, 0)},
    /* a file of ours that the user edits is the user's, of the same size or not */
    {PULLS(1, 2, 0, 0), STEP(PUT, "config.json", "{edited"),
     STEP(PUT, "vocab.txt", "edited"), PULLS(3, 1, 0, 1),
     STEP(IS_, "config.json", "{edited"), STEP(IS_, "vocab.txt", "edited"),
     PULLS(4, 0, 1, 0), STEP(IS_, "config.json", "{edited"),
     STEP(IS_, "vocab.txt", "edited")},
    /* so is one that comes back with its old bytes after an install without it */
    {PULLS(1, 2, 0, 0), STEP(PUT, "vocab.txt", "edited"), PULLS(1, 0, 0, 1),
     STEP(PUT, "vocab.txt", "a b"), PULLS(3, 2, 0, 0), STEP(IS_, "vocab.txt", "a b")},
    /* links, directories and pipes are never followed, opened or replaced */
    {STEP(PUT, "target", V0), STEP(LINK, "config.json", "target"),
     STEP(PIPE, "vocab.txt"), PULLS(1, 0, 0, 2), STEP(REMOVE, "vocab.txt"),
     STEP(DIRECTORY, "vocab.txt"), PULLS(1, 0, 0, 2), STEP(REMOVE, "config.json"),
     STEP(LINK, "config.json", "nowhere"), PULLS(3, 1, 0, 1), STEP(IS_, "nowhere"),
     STEP(IS_, "target", V0)},
    /* ours, which the user replaced with a link to the same bytes */
    {PULLS(1, 2, 0, 0), STEP(PUT, "target", V0), STEP(REMOVE, "config.json"),
     STEP(LINK, "config.json", "target"), PULLS(3, 1, 1, 1), STEP(IS_, "target", V0),
     PULLS(4, 0, 1, 0), STEP(IS_, "config.json", V0)},
    /* a second name of a file keeps its bytes */
    {PULLS(1, 2, 0, 0), STEP(HARD_LINK, "config.json", "mine"), PULLS(3, 2, 1, 0),
     STEP(IS_, "config.json", V3), STEP(IS_, "mine", V0)},
    /* without the record, or if it is damaged, nothing is ours */
    {PULLS(1, 2, 0, 0), STEP(REMOVE, RECORD), PULLS(1, 0, 0, 0), PULLS(3, 1, 0, 1),
     STEP(IS_, "config.json", V0), PULLS(4, 0, 1, 0), STEP(IS_, "config.json", V0),
     STEP(IS_, "vocab.txt", "a b")},
    {PULLS(1, 2, 0, 0), STEP(FLIP, RECORD), PULLS(3, 1, 0, 1), PULLS(4, 0, 1, 0),
     STEP(IS_, "config.json", V0), STEP(IS_, "vocab.txt", "a b")},
};

static void run_step(const step *s)
{
    char path[300];
    size_t n;
    snprintf(path, sizeof path, "%s", s->name ? in(s->name) : "");
    switch (s->kind) {
    case PULL: {
        const dw_follow_report r = pull(s->version);
        assert_int_equal(r.n_files_installed, s->n_installed);
        assert_int_equal(r.n_files_removed, s->n_removed);
        assert_int_equal(r.n_files_kept, s->n_kept);
        break;
    }
    case IS_:
        IS(s->name, s->text);
        break;
    case PUT:
        put_text(path, s->text);
        break;
    case REMOVE:
        assert_int_equal(remove(path), 0);
        break;
    case LINK:
        assert_int_equal(symlink(s->text, path), 0);
        break;
    case HARD_LINK:
        assert_int_equal(link(path, in(s->text)), 0);
        break;
    case DIRECTORY:
        assert_int_equal(mkdir(path, 0777), 0);
        break;
    case PIPE:
        assert_int_equal(mkfifo(path, 0666), 0);
        break;
    case FLIP: {
        uint8_t *bytes = get_file(path, &n);
        bytes[n / 2] ^= 1;
        put_file(path, bytes, n);
        free(bytes);
        break;
    }
    case END:
        break;
    }
}

TEST_WITH(test_cases, make, end)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(into, sizeof into, "%s/into-%zu", temp_dir, i);
        assert_int_equal(mkdir(into, 0777), 0);
        for (const step *s = cases[i]; s->kind != END; s++) {
            print_message("case %zu, step %zu\n", i, (size_t)(s - cases[i]));
            run_step(s);
        }
        check_own();
    }
}

/* ---- one follower ---- */

TEST_WITH(test_users_file_is_kept, make, end)
{
    assert_int_equal(mkdir(into, 0777), 0);
    put_own("config.json", "mine");
    const dw_follow_options o = options();
    dw_follower *f = open_follower(&o);
    dw_follow_report r = sync_to(f, 1);
    assert_int_equal(r.n_files_installed, 1);
    assert_int_equal(r.n_files_kept, 1);
    size_t n;
    const char *const *kept = dw_follower_files_kept(f, &n);
    assert_int_equal(n, 1);
    assert_non_null(strstr(kept[0], "/into/config.json"));
    IS("config.json", "mine");
    r = sync_to(f, 4);
    assert_int_equal(r.n_files_kept, 0);
    IS("config.json", "mine");
    dw_follower_close(f);
}

TEST_WITH(test_without_files, make, end)
{
    dw_follow_options o = options();
    o.no_files = true;
    dw_follower *f = open_follower(&o);
    dw_follow_report r = sync_to(f, 3);
    assert_int_equal(r.n_files_installed + r.n_files_kept, 0);
    IS("config.json", NULL);
    dw_follower_close(f);
    /* the next one, which wants them, completes the directory at the same version */
    o.no_files = false;
    f = open_follower(&o);
    assert_true(dw_follower_files_due(f));
    r = sync_to(f, 3);
    assert_int_equal(r.n_steps, 0);
    assert_int_equal(r.n_files_installed, 2);
    IS("config.json", "{\"v\":3}");
    dw_follower_close(f);
}

/* A stage alone installs nothing; prepare does, before the weights change. What the user
 * does in between counts. */
TEST_WITH(test_phases, make, end)
{
    const dw_follow_options o = options();
    for (int meddle = 0; meddle < 2; meddle++) {
        dw_follower *f = open_follower(&o);
        uint64_t staged;
        sync_to(f, 0);
        sync_to(f, 2); /* so that the way to version 3 is one step */
        assert_ok(dw_follower_stage(f, 3, &staged, NULL, &err), &err);
        assert_int_equal(staged, 3);
        IS("config.json", V0);
        IS("vocab.txt", "a b");
        if (meddle) {
            put_own("config.json", "mine");
            put_own("merges.txt", "mine");
            put_own("vocab.txt", "mine");
        }
        assert_ok(dw_follower_prepare(f, &err), &err);
        IS("config.json", meddle ? "mine" : V3);
        IS("merges.txt", meddle ? "mine" : "");
        IS("vocab.txt", meddle ? "mine" : NULL);
        assert_ok(dw_follower_apply(f, &err), &err);
        assert_ok(dw_follower_finish(f, &err), &err);
        assert_int_equal(dw_follower_version(f), 3);
        assert_false(dw_follower_files_due(f));
        dw_follower_close(f);
        check_own();
    }
}

/* What is fetched and not installed goes with its follower, or when the next one opens.
 */
TEST_WITH(test_left_over, make, end)
{
    dw_follow_options o = options();
    dw_follower *f = open_follower(&o);
    uint64_t staged;
    sync_to(f, 2);
    assert_ok(dw_follower_stage(f, 3, &staged, NULL, &err), &err);
    assert_int_equal(count_files(in(".deltawire")), 5); /* with two files and the patch */
    dw_follower_close(f);
    check_own();
    put_own(".deltawire/file.tmp-7", "left by a kill");
    put_own(".deltawire/file.tmp-8.tmp-1-2", "left by a kill");
    o.no_files = true;
    dw_follower_close(open_follower(&o));
    check_own();
}

/* A file that is missing or damaged is found before anything changes. */
TEST_WITH(test_bad_object, make, end)
{
    pull(1);
    pull(2);
    char key[512];
    for (int damaged = 0; damaged < 2; damaged++) {
        assert_int_equal(kit_find(store, "files/00000000000000000003", "-0000", key), 1);
        if (damaged)
            kit_damage(store, key);
        else
            kit_remove_all(store, "files/00000000000000000003");
        const dw_follow_options o = options();
        dw_follower *f = open_follower(&o);
        assert_fails(dw_follower_sync(f, 3, NULL, NULL, &err),
                     damaged ? DW_CORRUPT : DW_NOT_FOUND, &err);
        assert_non_null(strstr(err.text, "companion file '"));
        assert_non_null(strstr(err.text, "version 3"));
        assert_int_equal(dw_follower_version(f), 2);
        kit_check_follower(&k, f, version_log);
        IS("config.json", "{\"v\":0}");
        dw_follower_close(f);
        end(state); /* the files come back with a new stream */
        make(state);
        pull(1);
        pull(2);
    }
}

TEST_WITH(test_memory, make, end)
{
    dw_tensor tensors[KIT_TENSORS];
    uint8_t *bytes = kit_room(&k, tensors);
    dw_follow_options o = options();
    o.into = NULL;
    o.tensors = tensors;
    o.n_tensors = KIT_TENSORS;
    dw_follower *f = open_follower(&o);
    dw_follow_report r = sync_to(f, 3);
    assert_int_equal(r.n_files_installed, 0);
    dw_follower_close(f);
    free(bytes);
}

/* The number of reading requests of a follower that goes from nothing to VERSION. */
static unsigned count_requests(uint64_t version, bool no_files)
{
    counting_store counting = {.inner = store};
    dw_store *counted = counting_open(&counting);
    dw_follow_options o = options();
    char other[160];
    snprintf(other, sizeof other, "%s/into-%d", temp_dir, no_files);
    o.into = other;
    o.no_files = no_files;
    dw_follower *f;
    assert_ok(dw_follower_open(&f, counted, &o, &err), &err);
    assert_ok(dw_follower_sync(f, version, NULL, NULL, &err), &err);
    assert_ok(dw_follower_sync(f, version, NULL, NULL, &err), &err);
    dw_follower_close(f);
    dw_store_close(counted);
    return counted_reads(&counting);
}

/* A version without files costs no request more, whether or not files are wanted. */
TEST_WITH(test_requests, make, end)
{
    assert_int_equal(count_requests(2, false), count_requests(2, true));
}

TEST_WITH(test_requests_of_files, make, end)
{
    assert_int_equal(count_requests(1, false), count_requests(1, true) + 2);
}

/* The directory is replaced while it is followed: the new one gets the files too. */
TEST_WITH(test_replaced_directory, make, end)
{
    const dw_follow_options o = options();
    dw_follower *f = open_follower(&o);
    sync_to(f, 1);
    char command[400];
    snprintf(command, sizeof command, "mv '%s' '%s-old'", into, into);
    assert_int_equal(system(command), 0);
    assert_fails(dw_follower_sync(f, 1, NULL, NULL, &err), DW_CONFLICT, &err);
    sync_to(f, 1);
    IS("config.json", "{\"v\":0}");
    dw_follower_close(f);
}

RUN_TESTS(NULL, NULL)
