/* A follower whose files are replaced or removed at every step: it reports that, has no
 * version, and starts over at the next call. Readers of its snapshot notice the end of
 * the old block. */
#include <sys/stat.h>
#include <unistd.h>

#include "unit/suite.h"

#include "deltawire/checkpoint.h"
#include "deltawire/follow.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"
#include "inner.h"

#define LAST 3

static void shell(const char *command)
{
    char line[512];
    snprintf(line, sizeof line, "cd '%s' && %s", temp_dir, command);
    assert_int_equal(system(line), 0);
}

typedef struct world {
    kit k;
    dw_store *store;
    size_t log[KIT_COPIES];
} world;

static void world_make(world *w)
{
    kit_make(&w->k);
    w->store = kit_mem_store();
    kit_make_stream(&w->k, w->store, temp_dir, LAST, 0, w->log);
}

static void world_end(world *w)
{
    dw_store_close(w->store);
    kit_free(&w->k);
}

static dw_follower *open_ok(const world *w)
{
    dw_error err = {0};
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = temp_path("model");
    options.n_threads = 1;
    dw_follower *f;
    assert_ok(dw_follower_open(&f, w->store, &options, &err), &err);
    return f;
}

/* The files at the path are VERSION, not only the follower's mapping. */
static void check_disk(const world *w, uint64_t version)
{
    dw_error err = {0};
    dw_checkpoint *ckpt;
    size_t n;
    assert_ok(dw_checkpoint_open(&ckpt, temp_path("model"), DW_CHECKPOINT_READ, &err),
              &err);
    const dw_tensor *tensors = dw_checkpoint_tensors(ckpt, &n);
    assert_true(kit_same(&w->k, tensors, n, w->k.copies[w->log[version]]));
    dw_checkpoint_close(ckpt);
}

static const char *const harms[] = {
    "rm -r model",
    "mv model gone",
    "mv model gone && mkdir model",
    "mv model gone && cp -r gone model",
    "rm model/model.safetensors",
    "cp model/model.safetensors new && mv new model/model.safetensors",
    "ln model/model.safetensors name",
    "rm model/.deltawire/control",
};
enum { N_HARMS = sizeof harms / sizeof *harms };

enum { AT_POLL, AT_STAGE, AT_COMMIT, AT_APPLY, AT_SETTLE, N_STEPS };

/* The steps from version 1 to 2, with the harm before one of them. */
static dw_status go(dw_follower *f, unsigned harm_at, const char *harm, dw_error *err)
{
    uint64_t version;
    dw_status status = DW_OK;
    for (unsigned step = AT_POLL; status == DW_OK && step < N_STEPS; step++) {
        if (step == harm_at)
            shell(harm);
        status = step == AT_POLL     ? dw_follower_poll(f, &version, err)
                 : step == AT_STAGE  ? dw_follower_stage(f, 2, &version, NULL, err)
                 : step == AT_COMMIT ? dw_follower_prepare(f, err)
                 : step == AT_APPLY  ? dw_follower_apply(f, err)
                                     : dw_follower_finish(f, err);
    }
    return status;
}

TEST(test_every_step)
{
    world w;
    world_make(&w);
    for (unsigned step = 0; step < N_STEPS; step++)
        for (size_t i = 0; i < N_HARMS; i++) {
            dw_error err = {0};
            shell("rm -rf model gone name");
            dw_follower *f = open_ok(&w);
            assert_ok(dw_follower_sync(f, 1, NULL, NULL, &err), &err);
            dw_status status = go(f, step, harms[i], &err);
            if (status != DW_CONFLICT)
                print_error("'%s' before step %u\n", harms[i], step);
            assert_fails(status, DW_CONFLICT, &err);
            assert_true(dw_follower_version(f) == DW_NO_VERSION);
            assert_int_equal(dw_follower_state(f), 0);
            assert_int_equal(dw_follower_update(f).state, DW_UPDATE_NONE);
            assert_null(dw_follower_update(f).patch);
            assert_ok(dw_follower_sync(f, 2, NULL, NULL, &err), &err);
            assert_int_equal(dw_follower_version(f), 2);
            check_disk(&w, 2);
            assert_ok(dw_follower_sync(f, LAST, NULL, NULL, &err), &err);
            check_disk(&w, LAST);
            kit_check_follower(&w.k, f, w.log);
            dw_follower_close(f);
        }
    world_end(&w);
}

/* Foreign weights that replaced them are not overwritten. */
TEST(test_foreign)
{
    world w;
    world_make(&w);
    dw_error err = {0};
    shell("rm -rf model gone");
    dw_follower *f = open_ok(&w);
    assert_ok(dw_follower_sync(f, 1, NULL, NULL, &err), &err);
    shell("cp model/model.safetensors new && printf x | dd of=new bs=1 seek=2000 "
          "conv=notrunc 2>/dev/null && cp new kept && mv new model/model.safetensors");
    assert_fails(dw_follower_sync(f, 2, NULL, NULL, &err), DW_CONFLICT, &err);
    for (int i = 0; i < 2; i++) {
        assert_fails(dw_follower_sync(f, 2, NULL, NULL, &err), DW_CORRUPT, &err);
        assert_true(dw_follower_version(f) == DW_NO_VERSION);
        size_t n;
        assert_null(dw_follower_tensors(f, &n)[0].data);
    }
    shell("cmp kept model/model.safetensors && rm model/model.safetensors");
    assert_ok(dw_follower_sync(f, 2, NULL, NULL, &err), &err);
    check_disk(&w, 2);
    dw_follower_close(f);
    world_end(&w);
}

/* A reader that has mapped the old block does not wait for it. */
TEST(test_readers)
{
    world w;
    world_make(&w);
    dw_error err = {0};
    shell("rm -rf model gone");
    dw_follower *f = open_ok(&w);
    assert_ok(dw_follower_sync(f, 1, NULL, NULL, &err), &err);
    dw_snapshot *s;
    dw_snapshot_view view;
    assert_ok(dw_snapshot_open(&s, temp_path("model"), &err), &err);
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    assert_int_equal(view.version, 1);
    dw_snapshot_release(s);
    shell("rm -r model");
    assert_fails(dw_follower_sync(f, 2, NULL, NULL, &err), DW_CONFLICT, &err);
    assert_fails(dw_snapshot_hold(s, 0, &view, &err), DW_STALE, &err);
    assert_ok(dw_follower_sync(f, 2, NULL, NULL, &err), &err);
    assert_fails(dw_snapshot_look(s, 0, &view, &err), DW_STALE, &err);
    dw_snapshot_close(s);
    assert_ok(dw_snapshot_open(&s, temp_path("model"), &err), &err);
    assert_ok(dw_snapshot_hold(s, 0, &view, &err), &err);
    assert_int_equal(view.version, 2);
    dw_snapshot_close(s);
    dw_follower_close(f);
    world_end(&w);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
