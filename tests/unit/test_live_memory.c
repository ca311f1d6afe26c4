/* Followers of live memory: no byte changes before a version is proven and the engines
 * are paused. */
/* labels: threads */
#include <sys/stat.h>

#include "unit/suite.h"

#include "engine/engine_int.h"
#include "engine/rollout.h"
#include "stream/record.h"
#include "unit/reseal.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"
#include "inner.h"

#define LAST 5 /* version of the stream, with an anchor at 4 */

typedef struct world {
    kit k;
    dw_store *store;
    size_t log[KIT_COPIES];
    uint8_t key[1][DW_PUBLIC_KEY_BYTES];
    dw_tensor tensors[KIT_TENSORS]; /* the live memory */
    uint8_t *room;
    uint8_t *before; /* a copy of it */
} world;

/* A stream, signed if SIGNED. */
static void world_make(world *w, bool is_signed)
{
    *w = (world){0};
    kit_make(&w->k);
    w->store = kit_mem_store();
    dw_error err = {0};
    dw_publish_options options = kit_plain_options(temp_dir);
    options.anchor_every = 4;
    dw_sign_key *key = NULL;
    if (is_signed) {
        char text[DW_PUBLIC_KEY_TEXT];
        unlink(temp_path("key"));
        assert_ok(dw_sign_key_create(temp_path("key"), text, &err), &err);
        assert_ok(dw_sign_key_open(&key, temp_path("key"), &err), &err);
        dw_sign_key_public(key, w->key[0]);
        options.sign_key = key;
    }
    dw_publisher *p = kit_open(&w->k, w->store, &options);
    for (uint64_t v = 1; v <= LAST; v++) {
        kit_step(&w->k, 20);
        kit_publish(&w->k, p, v);
        assert_ok(dw_publisher_drain(p, &err), &err);
    }
    dw_publisher_close(p);
    dw_sign_key_close(key);
    kit_read_log(&w->k, w->store, w->log);
    w->room = kit_room(&w->k, w->tensors);
    w->before = malloc(w->k.n_bytes);
}

static void world_end(world *w)
{
    free(w->room);
    free(w->before);
    dw_store_close(w->store);
    kit_free(&w->k);
}

/* Weights of a running engine that are no version of the stream. */
static void load_others(world *w)
{
    for (size_t i = 0; i < w->k.n_bytes; i++)
        w->room[i] = (uint8_t)(i * 7 + 1);
}

static dw_follow_options in_memory(const world *w, bool is_signed)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = w->tensors;
    options.n_tensors = KIT_TENSORS;
    options.n_threads = 2;
    options.spool_dir = temp_dir;
    if (is_signed)
        options.trust = (dw_trust){w->key, 1, NULL};
    return options;
}

static dw_follower *open_ok(const world *w, const dw_follow_options *options)
{
    dw_error err = {0};
    dw_follower *f;
    assert_ok(dw_follower_open(&f, w->store, options, &err), &err);
    return f;
}

static void sync_ok(const world *w, dw_follower *f, uint64_t goal)
{
    dw_error err = {0};
    assert_ok(dw_follower_sync(f, goal, NULL, NULL, &err), &err);
    assert_int_equal(dw_follower_version(f), goal);
    kit_check_follower(&w->k, f, w->log);
    assert_int_equal(count_files(temp_dir), 0); /* the spool has no name */
}

/* It fails, keeps its version, and changes no byte. */
static void sync_fails(world *w, dw_follower *f, uint64_t goal,
                       const dw_progress *progress, dw_status wanted)
{
    dw_error err = {0};
    const uint64_t at = dw_follower_version(f);
    memcpy(w->before, w->room, w->k.n_bytes);
    assert_fails(dw_follower_sync(f, goal, progress, NULL, &err), wanted, &err);
    assert_memory_equal(w->room, w->before, w->k.n_bytes);
    assert_true(dw_follower_version(f) == at);
}

/* ---- wrong objects ---- */

enum { ALTERED, SHORT, GONE, N_HARMS };

static void do_harm(dw_store *store, const char *key, unsigned harm)
{
    dw_error err = {0};
    dw_writer bytes = {0};
    assert_ok(dw_store_get_all(store, key, 64u << 20, &bytes, &err), &err);
    assert_ok(dw_store_remove(store, key, &err), &err);
    if (harm == ALTERED) /* all weights: everything after the header */
        memset(bytes.bytes + bytes.n_bytes / 2, 0x42, bytes.n_bytes - bytes.n_bytes / 2);
    if (harm != GONE)
        assert_ok(dw_store_put_bytes(store, key, bytes.bytes,
                                     harm == SHORT ? bytes.n_bytes - 9 : bytes.n_bytes,
                                     DW_PUT_REPLACE, &err),
                  &err);
    dw_writer_release(&bytes);
}

/* From weights of no version, and from version 2 over the anchor back to 0. */
TEST(test_altered)
{
    for (int from_version = 0; from_version < 2; from_version++)
        for (unsigned h = ALTERED; h < N_HARMS; h++) {
            world w;
            world_make(&w, true);
            unlink(temp_path("key"));
            unlink(temp_path("key.pub"));
            load_others(&w);
            dw_follow_options options = in_memory(&w, true);
            dw_follower *f = open_ok(&w, &options);
            if (from_version)
                sync_ok(&w, f, 2);
            dw_store *good = kit_mem_store();
            kit_copy_store(w.store, good, "objects/00000000000000000000-");
            char key[512];
            assert_int_equal(kit_find(w.store, "objects/00000000000000000000-", "", key),
                             1);
            do_harm(w.store, key, h);
            sync_fails(&w, f, 0, NULL, h == GONE ? DW_NOT_FOUND : DW_CORRUPT);
            kit_copy_store(good, w.store, "");
            sync_ok(&w, f, 0);
            sync_ok(&w, f, LAST);
            dw_follower_close(f);
            dw_store_close(good);
            world_end(&w);
        }
}

/* The object agrees with its record, but the record has another state. */
TEST(test_wrong_state)
{
    world w;
    world_make(&w, false);
    load_others(&w);
    char key[DW_KEY_TEXT];
    dw_error err = {0};
    dw_writer bytes = {0};
    dw_key_commit(key, 0);
    assert_ok(dw_store_get_all(w.store, key, 1 << 20, &bytes, &err), &err);
    char *text = strndup((char *)bytes.bytes, bytes.n_bytes);
    char *digits = strstr(text, "\"state\":\"");
    assert_non_null(digits);
    digits[9] = digits[9] == '1' ? '2' : '1';
    assert_true(reseal(text, bytes.n_bytes));
    assert_ok(dw_store_put_bytes(w.store, key, text, bytes.n_bytes, DW_PUT_REPLACE, &err),
              &err);
    dw_follow_options options = in_memory(&w, false);
    dw_follower *f = open_ok(&w, &options);
    sync_fails(&w, f, 0, NULL, DW_CORRUPT);
    dw_follower_close(f);
    free(text);
    dw_writer_release(&bytes);
    world_end(&w);
}

static int stop(void *context, uint64_t done, uint64_t total)
{
    (void)context;
    (void)total;
    return done > 0;
}

TEST(test_cancel)
{
    world w;
    world_make(&w, false);
    load_others(&w);
    dw_follow_options options = in_memory(&w, false);
    dw_follower *f = open_ok(&w, &options);
    const dw_progress progress = {.report = stop};
    sync_fails(&w, f, 4, &progress, DW_CANCELLED);
    sync_ok(&w, f, 4);
    dw_follower_close(f);
    world_end(&w);
}

/* A model that is too large for memory goes to a file. Without room for that, nothing
 * changes. */
TEST(test_no_spool)
{
    const uint64_t dims[] = {17u << 20};
    uint8_t *bytes = calloc(2, dims[0]);
    const dw_tensor trained = {"w", DW_U8, 1, dims, dims[0], bytes, 0, NULL};
    const dw_tensor served = {"w", DW_U8, 1, dims, dims[0], bytes + dims[0], 0, NULL};
    dw_error err = {0};
    dw_store *store = kit_mem_store();
    dw_publisher *p;
    dw_publish_options publish = kit_plain_options(temp_dir);
    memset(bytes, 7, dims[0]);
    assert_ok(dw_publisher_open(&p, store, &trained, 1, &publish, &err), &err);
    dw_publisher_close(p);
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = &served;
    options.n_tensors = 1;
    options.spool_dir = "/nowhere";
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, &options, &err), &err);
    assert_fails(dw_follower_sync(f, 0, NULL, NULL, &err), DW_NOT_FOUND, &err);
    assert_true(dw_follower_version(f) == DW_NO_VERSION);
    for (size_t i = 0; i < dims[0]; i++)
        assert_int_equal(bytes[dims[0] + i], 0);
    dw_follower_close(f);
    options.spool_dir = temp_dir;
    assert_ok(dw_follower_open(&f, store, &options, &err), &err);
    assert_ok(dw_follower_sync(f, 0, NULL, NULL, &err), &err);
    assert_memory_equal(bytes, bytes + dims[0], dims[0]);
    dw_follower_close(f);
    dw_store_close(store);
    free(bytes);
}

/* ---- memory that is declared empty ---- */

TEST(test_empty)
{
    world w;
    world_make(&w, false);
    load_others(&w);
    char key[512];
    dw_error err = {0};
    dw_store *good = kit_mem_store();
    kit_copy_store(w.store, good, "objects/00000000000000000000-");
    kit_find(w.store, "objects/00000000000000000000-", "", key);
    do_harm(w.store, key, ALTERED);
    dw_follow_options options = in_memory(&w, false);
    options.tensors_empty = true;
    options.spool_dir = "/nowhere"; /* not needed */
    dw_follower *f = open_ok(&w, &options);
    assert_fails(dw_follower_sync(f, 0, NULL, NULL, &err), DW_CORRUPT, &err);
    assert_true(dw_follower_version(f) == DW_NO_VERSION);
    assert_int_equal(dw_follower_update(f).state, DW_UPDATE_NONE);
    kit_copy_store(good, w.store, "");
    sync_ok(&w, f, 0);
    sync_ok(&w, f, 2);
    /* from now on it is not empty */
    do_harm(w.store, key, ALTERED);
    sync_fails(&w, f, 0, NULL, DW_CORRUPT);
    sync_ok(&w, f, LAST);
    dw_follower_close(f);
    dw_store_close(good);
    world_end(&w);
}

/* ---- pauses ---- */

/* An engine that computes with the memory, and checks it when it is asked. */
typedef struct engine {
    world *w;
    bool paused;
    unsigned n_pauses, n_updates;
    uint64_t version;
} engine;

static void assert_still(const engine *e)
{
    if (!e->paused)
        assert_memory_equal(e->w->room, e->w->before, e->w->k.n_bytes);
}

static dw_status probe(void *self, dw_engine_info *out, dw_error *err)
{
    (void)err;
    engine *e = self;
    assert_still(e);
    *out = (dw_engine_info){.version = e->version};
    return DW_OK;
}

static dw_status pause_engine(void *self, const dw_engine_update *update, dw_error *err)
{
    (void)err;
    (void)update;
    engine *e = self;
    assert_still(e);
    e->paused = true;
    e->n_pauses++;
    return DW_OK;
}

static dw_status update_engine(void *self, const dw_engine_update *update, bool *whole,
                               dw_error *err)
{
    (void)whole;
    (void)err;
    engine *e = self;
    assert_true(e->paused);
    e->version = update->version;
    e->n_updates++;
    return DW_OK;
}

static dw_status resume_engine(void *self, const dw_engine_update *update, dw_error *err)
{
    (void)err;
    (void)update;
    engine *e = self;
    memcpy(e->w->before, e->w->room, e->w->k.n_bytes);
    e->paused = false;
    return DW_OK;
}

static int look(void *context, uint64_t done, uint64_t total)
{
    (void)done;
    (void)total;
    assert_still(context);
    return 0;
}

static const dw_engine_driver driver = {.name = "recording",
                                        .probe = probe,
                                        .pause = pause_engine,
                                        .apply = update_engine,
                                        .resume = resume_engine};

/* Over deltas, an anchor for weights of no version, an anchor back, a fork. */
TEST(test_pause_first)
{
    world w;
    world_make(&w, false);
    dw_store *fork = kit_mem_store();
    dw_publish_options publish = kit_plain_options(temp_dir);
    publish.first = DW_FIRST_FORK;
    publish.fork_store = w.store;
    publish.fork_version = 3;
    dw_publisher *p = kit_open(&w.k, fork, &publish);
    kit_publish(&w.k, p, 1); /* the weights as they are */
    dw_publisher_close(p);
    for (int case_ = 0; case_ < 4; case_++) {
        dw_error err = {0};
        engine e = {.w = &w, .version = DW_NO_VERSION};
        dw_engine *handle;
        load_others(&w);
        memcpy(w.before, w.room, w.k.n_bytes);
        assert_ok(dw_engine_new(&handle, &driver, &e, NULL, NULL, &err), &err);
        dw_follow_options follow = in_memory(&w, false);
        follow.tensors_empty = case_ == 3; /* it is paused nevertheless */
        dw_rollout_options options = {0};
        options.engines = &handle;
        options.n_engines = 1;
        dw_rollout *r;
        const dw_progress progress = {.report = look, .context = &e};
        assert_ok(
            dw_rollout_open(&r, case_ == 2 ? fork : w.store, &follow, &options, &err),
            &err);
        static const uint64_t goals[][3] = {{4, 5, 0}, {2, 5, 4}, {0, 1, 0}, {4, 5, 0}};
        for (size_t i = 0; i < 3; i++) {
            const unsigned n_pauses = e.n_pauses;
            assert_ok(dw_rollout_sync(r, goals[case_][i], &progress, &err), &err);
            assert_true(e.n_pauses > n_pauses);
            assert_false(e.paused);
            assert_int_equal(e.version, goals[case_][i]);
            const uint64_t v = goals[case_][i];
            const uint8_t *copy = case_ != 2
                                      ? w.k.copies[w.log[v]]
                                      : w.k.copies[v == 0 ? w.log[3] : w.k.n_copies - 1];
            size_t n;
            const dw_tensor *found = dw_follower_tensors(dw_rollout_follower(r), &n);
            assert_true(kit_same(&w.k, found, n, copy));
        }
        dw_rollout_close(r);
        dw_engine_close(handle);
    }
    dw_store_close(fork);
    world_end(&w);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
