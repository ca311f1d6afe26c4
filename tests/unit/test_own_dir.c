/* Files of others in a follower's directory are never taken for deltawire's own:
 * companion files with names like ours, patches that the record does not name, and what
 * is in the way of .deltawire. */
/* wrap: dw_commit_record_write */
#include <sys/stat.h>

#include "unit/suite.h"

#include "deltawire/checkpoint.h"
#include "deltawire/follow.h"
#include "unit/stream_kit.h"
#include "unit/files_kit.h"

#define HEAD 4
#define WORD "not ours"

static const companion_text like_ours[] = {{"control", WORD},
                                           {"model.safetensors.deltawire-patch", WORD},
                                           {"model.safetensors.deltawire-staged", WORD},
                                           {"model.safetensors.patch", WORD},
                                           {"model.safetensors.staged", WORD},
                                           {"model.safetensors.tmp-1-2", WORD},
                                           {"patch", WORD},
                                           {NULL, NULL}};

static kit k;
static dw_store *store;
static size_t version_log[KIT_COPIES];
static char into[128];
static dw_error err;

static int make(void **state)
{
    temp_dir_make(state);
    kit_make(&k);
    store = files_store = kit_mem_store();
    for (unsigned i = 0; i <= HEAD; i++)
        files_of[i] = like_ours;
    kit_make_stream(&k, store, temp_dir, HEAD, 2, version_log);
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

static dw_status try_open(dw_follower **f, const char *dir)
{
    dw_follow_options o;
    dw_follow_options_init(&o);
    o.into = dir;
    o.n_threads = 1;
    return dw_follower_open(f, store, &o, &err);
}

static dw_follower *open_at(const char *dir, uint64_t version)
{
    dw_follower *f;
    assert_ok(try_open(&f, dir), &err);
    assert_int_equal(dw_follower_version(f), version);
    kit_check_follower(&k, f, version_log);
    return f;
}

static void go_to(dw_follower *f, uint64_t version)
{
    assert_ok(dw_follower_sync(f, version, NULL, NULL, &err), &err);
    assert_int_equal(dw_follower_version(f), version);
    kit_check_follower(&k, f, version_log);
}

static const char *in(const char *name)
{
    static char paths[4][300];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", into, name);
    return path;
}

/* ---- companion files ---- */

TEST_WITH(test_names_like_ours, make, end)
{
    dw_follower *f = open_at(into, DW_NO_VERSION);
    for (uint64_t v = 0; v <= HEAD; v++) {
        go_to(f, v);
        if (v % 2 == 0) { /* the next open is where our own files are looked for */
            dw_follower_close(f);
            f = open_at(into, v);
        }
        for (size_t i = 0; like_ours[i].name; i++)
            assert_true(companion_is(into, like_ours[i].name, WORD));
    }
    dw_follower_close(f);
    dw_snapshot *s;
    assert_ok(dw_snapshot_open(&s, into, &err), &err);
    dw_snapshot_close(s);
}

/* Beside the weights there are only they, the companion files and one hidden directory.
 */
TEST_WITH(test_one_directory, make, end)
{
    dw_follower *f = open_at(into, DW_NO_VERSION);
    go_to(f, 3);
    go_to(f, 1); /* back: one more file of ours */
    uint64_t staged;
    assert_ok(dw_follower_stage(f, 2, &staged, NULL, &err), &err);
    for (int prepared = 0; prepared < 2; prepared++) {
        DIR *dir = opendir(into);
        assert_non_null(dir);
        for (struct dirent *e; (e = readdir(dir)) != NULL;) {
            bool known = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
                         strcmp(e->d_name, ".deltawire") == 0 ||
                         strcmp(e->d_name, "model.safetensors") == 0;
            for (size_t i = 0; like_ours[i].name; i++)
                known = known || strcmp(e->d_name, like_ours[i].name) == 0;
            if (!known)
                print_error("%s\n", e->d_name);
            assert_true(known);
        }
        closedir(dir);
        assert_ok(dw_follower_prepare(f, &err), &err);
    }
    dw_follower_close(f);
}

/* ---- patches ---- */

/* A real patch from version FROM to version TO, made in a directory of its own. */
static uint8_t *make_patch(uint64_t from, uint64_t to, size_t *n_bytes)
{
    static unsigned n;
    char name[32];
    snprintf(name, sizeof name, "patched-%u", n++);
    const char *dir = temp_path(name);
    dw_follower *f;
    uint64_t staged;
    assert_ok(try_open(&f, dir), &err);
    go_to(f, from);
    assert_ok(dw_follower_stage(f, to, &staged, NULL, &err), &err);
    assert_int_equal(staged, to);
    assert_ok(dw_follower_prepare(f, &err), &err);
    uint8_t *bytes = get_file(dw_follower_update(f).patch, n_bytes);
    dw_follower_close(f);
    return bytes;
}

static const char *const patches[] = {
    "model.safetensors.deltawire-patch", ".deltawire-patch",
    ".deltawire/model.safetensors.patch", ".deltawire/patch"};

/* The record names no patch, and there is one. */
TEST_WITH(test_foreign_patch, make, end)
{
    size_t n;
    uint8_t *bytes = make_patch(1, 2, &n);
    for (int real = 0; real < 2; real++)
        for (size_t i = 0; i < sizeof patches / sizeof *patches; i++) {
            bool pending = true;
            dw_follower *f;
            assert_ok(try_open(&f, into), &err);
            go_to(f, 1);
            dw_follower_close(f);
            put_file(in(patches[i]), real ? (const void *)bytes : WORD,
                     real ? n : strlen(WORD));
            assert_ok(dw_follower_pending(into, &pending, &err), &err);
            assert_false(pending);
            f = open_at(into, 1);
            go_to(f, 3);
            dw_follower_close(f);
        }
    free(bytes);
}

/* The record names a patch, and another one is in its place. */
TEST_WITH(test_other_patch, make, end)
{
    size_t n;
    uint8_t *bytes = make_patch(1, 3, &n);
    for (int real = 0; real < 2; real++) {
        dw_follower *f;
        uint64_t staged;
        assert_ok(try_open(&f, into), &err);
        go_to(f, 1);
        assert_ok(dw_follower_stage(f, 2, &staged, NULL, &err), &err);
        assert_int_equal(staged, 2);
        assert_ok(dw_follower_prepare(f, &err), &err);
        char path[300];
        snprintf(path, sizeof path, "%s", dw_follower_update(f).patch);
        dw_follower_close(f); /* as a kill before the first store */
        unlink(path);
        put_file(path, real ? (const void *)bytes : WORD, real ? n : strlen(WORD));
        f = open_at(into, 1);
        assert_int_equal(access(path, F_OK), -1);
        go_to(f, 4);
        dw_follower_close(f);
    }
    free(bytes);
}

/* The patch that the record names is finished, also without the stream. */
TEST_WITH(test_named_patch, make, end)
{
    dw_follower *f = open_at(into, DW_NO_VERSION);
    uint64_t staged;
    bool found = false;
    go_to(f, 1);
    assert_ok(dw_follower_stage(f, 2, &staged, NULL, &err), &err);
    assert_ok(dw_follower_prepare(f, &err), &err);
    dw_follower_close(f);
    assert_ok(dw_follower_pending(into, &found, &err), &err);
    assert_true(found);
    assert_ok(dw_checkpoint_recover(into, 1, &found, &err), &err);
    assert_true(found);
    f = open_at(into, 2);
    dw_follower_close(f);
}

/* ---- what is in the way ---- */

TEST_WITH(test_in_the_way, make, end)
{
    char outside[300];
    dw_follower *f;
    dw_snapshot *s;
    bool pending;
    snprintf(outside, sizeof outside, "%s", temp_path("outside"));
    assert_int_equal(mkdir(outside, 0777), 0);
    put_text(temp_path("outside/state.json"), WORD);
    f = open_at(into, DW_NO_VERSION);
    go_to(f, 1);
    dw_follower_close(f);
    assert_int_equal(rename(in(".deltawire"), in("away")), 0);
    for (int kind = 0; kind < 3; kind++) {
        if (kind == 0)
            put_text(in(".deltawire"), WORD);
        else
            assert_int_equal(symlink(kind == 1 ? outside : "nowhere", in(".deltawire")),
                             0);
        assert_fails(try_open(&f, into), DW_CONFLICT, &err);
        assert_non_null(strstr(err.where, "/.deltawire"));
        assert_fails(dw_snapshot_open(&s, into, &err), DW_CONFLICT, &err);
        assert_fails(dw_checkpoint_pending(into, &pending, &err), DW_CONFLICT, &err);
        assert_fails(dw_checkpoint_recover(into, 1, &pending, &err), DW_CONFLICT, &err);
        struct stat st;
        assert_int_equal(lstat(in(".deltawire"), &st), 0);
        assert_true(kind == 0 ? S_ISREG(st.st_mode) : S_ISLNK(st.st_mode));
        assert_int_equal(unlink(in(".deltawire")), 0);
    }
    assert_int_equal(count_files(outside), 1);
    assert_true(companion_is(outside, "state.json", WORD));
    assert_int_equal(rename(in("away"), in(".deltawire")), 0);
    f = open_at(into, 1);
    dw_follower_close(f);
}

RUN_TESTS(NULL, NULL)
