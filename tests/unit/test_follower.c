/* Followers: positions, exact versions, foreign directories, rewritten history, trust,
 * and routes around missing or damaged objects. */
/* labels: threads */
#include <sys/stat.h>
#include <unistd.h>

#include "unit/suite.h"

#include "deltawire/checkpoint.h"
#include "follow/follower.h"
#include "stream/record.h"
#include "unit/temp_dir.h"
#include "unit/world.h"
#include "inner.h"

static size_t copies[KIT_COPIES]; /* of the versions in STORE, as in kit_read_log */

/* Publishes versions up to LAST. */
static void fill_stream(kit *of, dw_store *into, const dw_publish_options *options,
                        uint64_t last)
{
    dw_error err = {0};
    dw_publisher *p = kit_open(of, into, options);
    for (uint64_t v = dw_publisher_version(p) + 1; v <= last; v++) {
        kit_step(of, 20);
        kit_publish(of, p, v);
        assert_ok(dw_publisher_drain(p, &err), &err);
    }
    dw_publisher_close(p);
}

/* Begins with versions up to LAST. */
static void begin_with(const dw_publish_options *options, uint64_t last)
{
    begin();
    fill_stream(&k, store, options, last);
    kit_read_log(&k, store, copies);
}

static dw_follow_options into_dir(const char *dir)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = dir;
    options.n_threads = 1;
    return options;
}

/* Memory like the model's, with zeros; ROOM is to be freed. */
static dw_follow_options into_memory(dw_tensor tensors[KIT_TENSORS], uint8_t **room)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    *room = kit_room(&k, tensors);
    options.tensors = tensors;
    options.n_tensors = KIT_TENSORS;
    return options;
}

static dw_follower *open_ok(dw_store *from, const dw_follow_options *options)
{
    dw_error err = {0};
    dw_follower *f;
    assert_ok(dw_follower_open(&f, from, options, &err), &err);
    return f;
}

static void open_fails(dw_store *from, const dw_follow_options *options, dw_status wanted)
{
    dw_error err = {0};
    dw_follower *f;
    assert_fails(dw_follower_open(&f, from, options, &err), wanted, &err);
    assert_null(f);
}

static void sync_ok(dw_follower *f, uint64_t goal)
{
    dw_error err = {0};
    assert_ok(dw_follower_sync(f, goal, NULL, NULL, &err), &err);
    assert_int_equal(dw_follower_version(f), goal);
    kit_check_follower(&k, f, copies);
}

/* The sync fails, and the weights do not change. */
static void sync_fails(dw_follower *f, uint64_t goal, dw_status wanted)
{
    dw_error err = {0};
    const uint64_t at = dw_follower_version(f);
    assert_fails(dw_follower_sync(f, goal, NULL, NULL, &err), wanted, &err);
    assert_true(dw_follower_version(f) == at);
    kit_check_follower(&k, f, copies);
}

/* ---- positions ---- */

TEST(test_positions)
{
    dw_error err = {0};
    dw_follow_options options = into_dir(temp_path("positions"));
    begin();
    open_fails(store, &options, DW_NOT_FOUND); /* no stream */
    dw_publish_options publish = kit_plain_options(temp_dir);
    publish.anchor_every = 4;
    fill_stream(&k, store, &publish, 9);
    kit_read_log(&k, store, copies);
    static const uint64_t goals[] = {0, 1, 7, 6, 2, 9, 0, 5};
    for (size_t i = 0; i < sizeof goals / sizeof *goals; i++) {
        dw_follower *f = open_ok(store, &options);
        assert_true(dw_follower_version(f) == (i == 0 ? DW_NO_VERSION : goals[i - 1]));
        kit_check_follower(&k, f, copies);
        sync_ok(f, goals[i]);
        sync_fails(f, 10, DW_NOT_FOUND); /* not there yet */
        sync_fails(f, 1ull << 50, DW_NOT_FOUND);
        dw_follower_close(f);
    }
    /* step by step: staging does not change the weights */
    dw_follower *f = open_ok(store, &options);
    uint64_t staged;
    assert_ok(dw_follower_stage(f, 6, &staged, NULL, &err), &err);
    assert_int_equal(staged, 6);
    assert_int_equal(dw_follower_version(f), 5);
    kit_check_follower(&k, f, copies);
    assert_non_null(dw_follower_update(f).patch);
    dw_follower_close(f); /* dropped */
    f = open_ok(store, &options);
    assert_int_equal(dw_follower_version(f), 5);
    assert_fails(dw_follower_apply(f, &err), DW_INVALID, &err);
    assert_fails(dw_follower_finish(f, &err), DW_INVALID, &err);
    assert_ok(dw_follower_stage(f, 6, &staged, NULL, &err), &err);
    assert_ok(dw_follower_apply(f, &err), &err);
    assert_fails(dw_follower_stage(f, 7, &staged, NULL, &err), DW_INVALID, &err);
    dw_follower_close(f); /* applied, not finished: the next one finishes it */
    f = open_ok(store, &options);
    assert_int_equal(dw_follower_version(f), 6);
    kit_check_follower(&k, f, copies);
    dw_follower_close(f);
    end();
}

static bool is_staged(const dw_follower *f, uint64_t version, dw_digest *digest)
{
    const dw_update update = dw_follower_update(f);
    *digest = update.digest;
    return update.state != DW_UPDATE_NONE && update.version == version;
}

/* The staged, prepared and applied versions, as reported to engines. */
TEST(test_commit)
{
    dw_error err = {0};
    dw_publish_options publish = kit_plain_options(temp_dir);
    begin_with(&publish, 5);
    char dir[128];
    snprintf(dir, sizeof dir, "%s/commit", temp_dir);
    dw_tensor tensors[KIT_TENSORS];
    uint8_t *bytes = kit_room(&k, tensors);
    for (int in_dir = 0; in_dir < 2; in_dir++) {
        dw_follow_options options = into_dir(in_dir ? dir : NULL);
        options.tensors = in_dir ? NULL : tensors;
        options.n_tensors = KIT_TENSORS;
        options.tensors_empty = !in_dir;
        bool pending = true;
        uint64_t staged;
        dw_digest digest;
        dw_follow_report totals;
        assert_ok(dw_follower_pending(dir, &pending, &err), &err); /* nothing there */
        assert_false(pending);
        dw_follower *f = open_ok(store, &options);
        assert_fails(dw_follower_prepare(f, &err), DW_INVALID, &err);
        assert_int_equal(dw_follower_update(f).state, DW_UPDATE_NONE);
        assert_int_equal(dw_follower_state(f), 0);
        /* filled while it is staged */
        assert_ok(dw_follower_stage(f, 0, &staged, NULL, &err), &err);
        assert_int_equal(dw_follower_version(f), 0);
        assert_true(is_staged(f, 0, &digest));
        assert_true(digest == dw_follower_state(f) && digest != 0);
        assert_null(dw_follower_update(f).patch);
        assert_ok(dw_follower_prepare(f, &err), &err);
        assert_ok(dw_follower_apply(f, &err), &err);
        assert_ok(dw_follower_finish(f, &err), &err);
        assert_int_equal(dw_follower_update(f).state, DW_UPDATE_NONE);
        /* patched */
        const dw_digest before = dw_follower_state(f);
        assert_ok(dw_follower_stage(f, 1, &staged, NULL, &err), &err);
        assert_ok(dw_follower_stage(f, 1, &staged, NULL, &err), &err);
        assert_true(is_staged(f, 1, &digest));
        assert_true(digest != before && dw_follower_state(f) == before);
        char path[160] = "";
        if (in_dir) {
            snprintf(path, sizeof path, "%s", dw_follower_update(f).patch);
            assert_string_equal(dw_follower_dir(f), dir);
        } else {
            assert_null(dw_follower_update(f).patch);
            assert_null(dw_follower_dir(f));
        }
        for (int i = 0; i < 2; i++) {
            assert_ok(dw_follower_prepare(f, &err), &err);
            kit_check_follower(&k, f, copies); /* not written yet */
            assert_int_equal(dw_follower_version(f), 0);
            assert_true(is_staged(f, 1, &digest));
            if (in_dir) {
                assert_string_not_equal(dw_follower_update(f).patch, path);
                assert_int_equal(access(dw_follower_update(f).patch, F_OK), 0);
                assert_ok(dw_follower_pending(dir, &pending, &err), &err);
                assert_true(pending);
            }
            assert_fails(dw_follower_stage(f, 2, &staged, NULL, &err), DW_INVALID, &err);
            assert_fails(dw_follower_finish(f, &err), DW_INVALID, &err);
        }
        assert_ok(dw_follower_apply(f, &err), &err);
        assert_ok(dw_follower_apply(f, &err), &err); /* already done */
        assert_fails(dw_follower_stage(f, 2, &staged, NULL, &err), DW_INVALID, &err);
        assert_ok(dw_follower_finish(f, &err), &err);
        assert_int_equal(dw_follower_version(f), 1);
        assert_true(dw_follower_state(f) == digest);
        kit_check_follower(&k, f, copies);
        dw_follower_totals(f, &totals);
        assert_true(totals.from == DW_NO_VERSION && totals.version == 1);
        assert_int_equal(totals.n_steps, 2);
        assert_true(totals.n_objects > 1 && totals.n_changed > 0);
        /* prepared, then sync: to that version, and on */
        for (uint64_t goal = 2; goal <= 4; goal += 2) {
            assert_ok(dw_follower_stage(f, goal, &staged, NULL, &err), &err);
            assert_ok(dw_follower_prepare(f, &err), &err);
            sync_ok(f, goal);
        }
        /* prepared, and left so: the next one writes at once */
        assert_ok(dw_follower_stage(f, 5, &staged, NULL, &err), &err);
        assert_ok(dw_follower_prepare(f, &err), &err);
        dw_follower_close(f);
        if (!in_dir)
            continue;
        assert_ok(dw_follower_pending(dir, &pending, &err), &err);
        assert_true(pending);
        f = open_ok(store, &options);
        assert_int_equal(dw_follower_version(f), 5);
        kit_check_follower(&k, f, copies);
        assert_ok(dw_follower_pending(dir, &pending, &err), &err);
        assert_false(pending);
        dw_follower_close(f);
    }
    free(bytes);
    end();
}

/* ---- directories ---- */

TEST(test_foreign_directories)
{
    dw_store *others = kit_mem_store();
    dw_publish_options publish = kit_plain_options(temp_dir);
    dw_error err = {0};
    char dir[128], path[160];
    snprintf(dir, sizeof dir, "%s/foreign", temp_dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    begin_with(&publish, 3);
    dw_follow_options options = into_dir(dir);
    assert_int_equal(mkdir(dir, 0777), 0);
    /* somebody's weights of the same shapes */
    kit_step(&k, 10);
    assert_ok(dw_checkpoint_write(path, k.tensors, KIT_TENSORS, NULL, &err), &err);
    size_t n_before, n_after;
    uint8_t *before = get_file(path, &n_before);
    open_fails(store, &options, DW_CONFLICT);
    uint8_t *after = get_file(path, &n_after);
    assert_int_equal(n_before, n_after);
    assert_memory_equal(before, after, n_after);
    free(before);
    free(after);
    /* another model */
    assert_ok(dw_checkpoint_write(path, k.tensors, KIT_TENSORS - 1, NULL, &err), &err);
    open_fails(store, &options, DW_MISMATCH);
    /* weights of a version, without a record: recognised */
    memcpy(k.bytes, k.copies[copies[3]], k.n_bytes);
    assert_ok(dw_checkpoint_write(path, k.tensors, KIT_TENSORS, NULL, &err), &err);
    dw_follower *f = open_ok(store, &options), *second;
    assert_int_equal(dw_follower_version(f), 3);
    /* two at once */
    assert_fails(dw_follower_open(&second, store, &options, &err), DW_CONFLICT, &err);
    dw_follower_close(f);
    /* another stream, even of the same weights */
    fill_stream(&k, others, &publish, 1);
    open_fails(others, &options, DW_MISMATCH);
    /* changed by hand behind the record: they are fetched again */
    size_t n;
    uint8_t *bytes = get_file(path, &n);
    bytes[n - 1] ^= 1;
    put_file(path, bytes, n);
    bytes[n - 1] ^= 1;
    f = open_ok(store, &options);
    assert_true(dw_follower_version(f) == DW_NO_VERSION);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), &err);
    assert_int_equal(dw_follower_version(f), 3);
    dw_follow_report totals;
    dw_follower_totals(f, &totals);
    assert_int_equal(totals.n_healed, 1);
    dw_follower_close(f);
    after = get_file(path, &n_after);
    assert_int_equal(n, n_after);
    assert_memory_equal(bytes, after, n);
    free(after);
    free(bytes);
    /* memory of another shape */
    dw_follow_options memory;
    dw_follow_options_init(&memory);
    memory.tensors = k.tensors;
    memory.n_tensors = KIT_TENSORS - 1;
    open_fails(store, &memory, DW_MISMATCH);
    memory.n_tensors = KIT_TENSORS;
    static const uint64_t dims[] = {258};
    const uint64_t *right = k.tensors[1].dims;
    k.tensors[1].dims = dims;
    open_fails(store, &memory, DW_MISMATCH);
    k.tensors[1].dims = right;
    memory.into = dir;
    open_fails(store, &memory, DW_INVALID); /* both */
    memory.into = NULL;
    memory.id = "../x";
    open_fails(store, &memory, DW_INVALID);
    dw_store_close(others);
    end();
}

/* ---- history ---- */

/* A stream with the same id as that in STORE, which differs after version 2. */
static kit other;
static dw_store *twin;

static void part(const dw_publish_options *options)
{
    begin();
    twin = kit_mem_store();
    fill_stream(&k, store, options, 2);
    kit_copy_store(store, twin, "");
    kit_make(&other);
    fill_stream(&other, twin, options, 7);
    fill_stream(&k, store, options, 5);
    kit_read_log(&k, store, copies);
}

static void unpart(void)
{
    kit_free(&other);
    dw_store_close(twin);
    end();
}

TEST(test_rewritten_history)
{
    for (unsigned how = 0; how < 6; how++) {
        const bool in_dir = how & 1, anchors = how & 2;
        dw_publish_options publish = kit_plain_options(temp_dir);
        publish.anchor_every = anchors ? 1 : 0;
        if (how & 4)
            publish.fold_every = 2;
        part(&publish);
        char dir[128];
        snprintf(dir, sizeof dir, "%s/rewritten-%u", temp_dir, how);
        dw_tensor tensors[KIT_TENSORS];
        uint8_t *room = kit_room(&k, tensors);
        dw_follow_options options = into_dir(in_dir ? dir : NULL);
        options.tensors = in_dir ? NULL : tensors;
        options.n_tensors = KIT_TENSORS;
        dw_follower *f = open_ok(store, &options);
        sync_ok(f, 4);
        /* the store now holds the other one */
        kit_remove_all(store, "");
        kit_copy_store(twin, store, "");
        sync_fails(f, 5, DW_UNTRUSTED);
        sync_fails(f, 7, DW_UNTRUSTED);
        sync_fails(f, 7, DW_UNTRUSTED);
        sync_fails(f, 3, DW_UNTRUSTED); /* going back is refused too */
        dw_follower_close(f);
        if (in_dir)
            open_fails(store, &options, DW_UNTRUSTED);
        free(room);
        unpart();
    }
}

TEST(test_rollback)
{
    dw_publish_options publish = kit_plain_options(temp_dir);
    part(&publish);
    dw_follow_options options = into_dir(temp_path("rollback"));
    dw_follower *f = open_ok(store, &options);
    sync_ok(f, 5);
    for (uint64_t v = 4; v <= 5; v++) {
        char key[DW_KEY_TEXT];
        dw_error err = {0};
        dw_key_commit(key, v);
        assert_ok(dw_store_remove(store, key, &err), &err);
    }
    sync_fails(f, 3, DW_UNTRUSTED);
    dw_follower_close(f);
    open_fails(store, &options, DW_UNTRUSTED);
    unpart();
}

/* ---- trust ---- */

static dw_sign_key *make_key(const char *name, uint8_t public_key[DW_PUBLIC_KEY_BYTES])
{
    dw_error err = {0};
    char text[DW_PUBLIC_KEY_TEXT];
    dw_sign_key *key;
    assert_ok(dw_sign_key_create(temp_path(name), text, &err), &err);
    assert_ok(dw_sign_key_open(&key, temp_path(name), &err), &err);
    dw_sign_key_public(key, public_key);
    return key;
}

static void copy_as(dw_store *in, const char *from, const char *to)
{
    dw_error err = {0};
    dw_writer bytes = {0};
    assert_ok(dw_store_get_all(in, from, 1 << 20, &bytes, &err), &err);
    assert_ok(
        dw_store_put_bytes(in, to, bytes.bytes, bytes.n_bytes, DW_PUT_REPLACE, &err),
        &err);
    dw_writer_release(&bytes);
}

TEST(test_trust)
{
    uint8_t keys[2][DW_PUBLIC_KEY_BYTES];
    dw_sign_key *key = make_key("key-a", keys[0]), *foreign = make_key("key-b", keys[1]);
    dw_store *copy = kit_mem_store();
    dw_publish_options publish = kit_plain_options(temp_dir);
    publish.sign_key = key;
    publish.trust = (dw_trust){(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])keys, 1, NULL};
    begin_with(&publish, 3);
    dw_tensor tensors[KIT_TENSORS];
    uint8_t *room;
    dw_follow_options options = into_memory(tensors, &room);
    options.trust = publish.trust;
    kit_check_stream(&k, store, &options);
    options.trust.keys = (const uint8_t(*)[DW_PUBLIC_KEY_BYTES]) & keys[1];
    open_fails(store, &options, DW_UNTRUSTED);
    options.trust = publish.trust;

    /* version 4 by somebody else: unsigned, by another key */
    dw_publish_options others = kit_plain_options(temp_dir);
    others.new_key = true;
    for (unsigned i = 0; i < 2; i++) {
        kit_remove_all(copy, "");
        kit_copy_store(store, copy, "");
        others.sign_key = i == 0 ? NULL : foreign;
        size_t n_copies = k.n_copies;
        fill_stream(&k, copy, &others, 4);
        k.reported[n_copies] = 0; /* not in the other log */
        memset(room, 0, k.n_bytes);
        dw_follower *f = open_ok(copy, &options);
        sync_ok(f, 3);
        sync_fails(f, 4, DW_UNTRUSTED);
        dw_follower_close(f);
    }
    /* version 3 again as version 4; an altered record; an altered object */
    char key3[DW_KEY_TEXT], key4[DW_KEY_TEXT], object[512];
    dw_key_commit(key3, 3);
    dw_key_commit(key4, 4);
    for (unsigned i = 0; i < 3; i++) {
        kit_remove_all(copy, "");
        kit_copy_store(store, copy, "");
        if (i == 0) {
            copy_as(copy, key3, key4);
        } else if (i == 1) {
            dw_error err = {0};
            dw_writer bytes = {0};
            assert_ok(dw_store_get_all(copy, key3, 1 << 20, &bytes, &err), &err);
            char *text = calloc(1, bytes.n_bytes + 1);
            memcpy(text, bytes.bytes, bytes.n_bytes);
            char *changed = strstr(text, "\"changed\":");
            assert_non_null(changed);
            changed[10] = changed[10] == '1' ? '2' : '1';
            assert_ok(
                dw_store_put_bytes(copy, key3, text, bytes.n_bytes, DW_PUT_REPLACE, &err),
                &err);
            free(text);
            dw_writer_release(&bytes);
        } else {
            kit_find(copy, "objects/00000000000000000003-", "", object);
            kit_damage(copy, object);
        }
        memset(room, 0, k.n_bytes);
        dw_follower *f = open_ok(copy, &options);
        sync_ok(f, i == 0 ? 3 : 2);
        sync_fails(f, i == 0 ? 4 : 3, i == 2 ? DW_CORRUPT : DW_UNTRUSTED);
        dw_follower_close(f);
    }
    /* a writer with trusted keys does not continue after a version that it does not trust
     */
    kit_remove_all(copy, "");
    kit_copy_store(store, copy, "");
    others.sign_key = foreign;
    fill_stream(&k, copy, &others, 4);
    dw_publisher *p;
    dw_error err = {0};
    kit_step(&k, 10);
    assert_fails(dw_publisher_open(&p, copy, k.tensors, KIT_TENSORS, &publish, &err),
                 DW_UNTRUSTED, &err);
    free(room);
    dw_sign_key_close(key);
    dw_sign_key_close(foreign);
    dw_store_close(copy);
    end();
}

/* ---- routes around damage ---- */

/* Damage to the store, and whether the head can still be rebuilt. */
TEST(test_detours)
{
    dw_store *copy = kit_mem_store();
    dw_publish_options publish = kit_plain_options(temp_dir);
    publish.fold_every = 4;
    publish.anchor_every = 6;
    begin_with(&publish, 10); /* a fold 0-4, an anchor at 6, 6-10 */
    static const char *const broken[][5] = {
        {"objects/00000000000000000010-", "-fold-"},
        {"objects/00000000000000000006-", "-anchor-"},
        {"ways/00000000000000000006-anchor", ""},
        {"ways/00000000000000000010-", ""},
        {"objects/00000000000000000006-", "-anchor-", "objects/00000000000000000010-",
         "-fold-"},
        {"commits/00000000000000000009", "", "latest.json", ""},
        {"objects/00000000000000000003-", ""},
        {"commits/00000000000000000003", "", "latest.json", ""},
        {"latest.json", "", "floor.json", ""},
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        for (unsigned remove = 0; remove < 2; remove++)
            for (unsigned start = 0; start < 3; start++) {
                dw_error err = {0};
                char key[512];
                kit_remove_all(copy, "");
                kit_copy_store(store, copy, "");
                assert_ok(
                    dw_store_put_bytes(copy, "floor.json", "{}", 2, DW_PUT_REPLACE, &err),
                    &err);
                dw_tensor tensors[KIT_TENSORS];
                uint8_t *room;
                dw_follow_options options = into_memory(tensors, &room);
                dw_follower *f = open_ok(copy, &options);
                if (start > 0)
                    sync_ok(f, start == 1 ? 2 : 7);
                for (size_t n = 0; n < 4 && broken[i][n]; n += 2) {
                    assert_true(kit_find(copy, broken[i][n], broken[i][n + 1], key) > 0);
                    if (remove)
                        assert_ok(dw_store_remove(copy, key, &err), &err);
                    else
                        kit_damage(copy, key);
                }
                dw_status status = dw_follower_sync(f, 10, NULL, NULL, &err);
                if (status != DW_OK)
                    print_error("case %zu, %u, from %u\n", i, remove, start);
                assert_ok(status, &err);
                assert_int_equal(dw_follower_version(f), 10);
                kit_check_follower(&k, f, copies);
                dw_follower_close(f);
                free(room);
            }
    dw_store_close(copy);
    end();
}

/* A shortcut of another history is ignored if the commits are good. */
/* A stream that is gone is distinguished from one without news. */
TEST(test_gone)
{
    dw_error err = {0};
    begin();
    dw_publish_options publish = kit_plain_options(temp_dir);
    fill_stream(&k, store, &publish, 1);
    dw_follow_options options = into_dir(temp_path("gone"));
    dw_follower *f = open_ok(store, &options);
    uint64_t newest;
    assert_fails(dw_follower_sync(f, DW_NO_VERSION, NULL, NULL, &err), DW_INVALID, &err);
    assert_fails(dw_follower_stage(f, DW_NO_VERSION, &newest, NULL, &err), DW_INVALID,
                 &err);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), &err);
    kit_remove_all(store, "");
    f->seen_ms = 0; /* as if some time had passed */
    assert_fails(dw_follower_poll(f, &newest, &err), DW_UNAVAILABLE, &err);
    assert_non_null(strstr(err.text, "not there any more"));
    assert_int_equal(dw_follower_version(f), 1);
    dw_follower_close(f);
    end();
}

TEST(test_foreign_way)
{
    dw_publish_options publish = kit_plain_options(temp_dir);
    publish.fold_every = 4;
    part(&publish);
    /* the twin's writer opened at 2 and folded to 6; take its shortcut unchanged
     */
    char shortcut[512], object[512];
    kit_find(twin, "ways/", "-from-", shortcut);
    kit_find(twin, "objects/", "-fold-", object);
    kit_copy_store(twin, store, shortcut);
    kit_copy_store(twin, store, object);
    fill_stream(&k, store, &publish, 7);
    kit_read_log(&k, store, copies);
    dw_error err = {0};
    assert_ok(dw_store_remove(store, "latest.json", &err), &err);
    dw_tensor tensors[KIT_TENSORS];
    uint8_t *room;
    dw_follow_options options = into_memory(tensors, &room);
    dw_follower *f = open_ok(store, &options);
    sync_ok(f, 2);
    sync_ok(f, 7);
    dw_follower_close(f);
    free(room);
    unpart();
}

TEST(test_collected)
{
    dw_publish_options publish = kit_plain_options(temp_dir);
    publish.anchor_every = 4;
    begin_with(&publish, 6);
    dw_tensor tensors[KIT_TENSORS];
    uint8_t *room;
    dw_follow_options options = into_memory(tensors, &room);
    dw_follower *slow = open_ok(store, &options);
    sync_ok(slow, 1);
    /* the store after a collection with the floor at 4 */
    dw_error err = {0};
    dw_stream *stream;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    dw_floor_record floor = {.version = 4};
    memcpy(floor.stream, dw_stream_id(stream), sizeof floor.stream);
    dw_stream_close(stream);
    dw_writer bytes = {0};
    assert_ok(dw_floor_record_write(&bytes, &floor, &err), &err);
    assert_ok(dw_store_put_bytes(store, DW_KEY_FLOOR, bytes.bytes, bytes.n_bytes,
                                 DW_PUT_REPLACE, &err),
              &err);
    dw_writer_release(&bytes);
    for (unsigned v = 0; v <= 4; v++) {
        char prefix[64], key[512];
        snprintf(prefix, sizeof prefix, "objects/%020u-", v);
        kit_find(store, prefix, "-0000", key);
        if (!strstr(key, "-anchor-"))
            assert_ok(dw_store_remove(store, key, &err), &err);
        else if (v == 4) { /* the commit's own object is the other one */
            kit_finding found = {.part = ""};
            assert_ok(dw_store_list(store, prefix, NULL, kit_visit, &found, &err), &err);
            assert_int_equal(found.n, 2);
        }
    }
    dw_status status = dw_follower_sync(slow, 3, NULL, NULL, &err);
    assert_fails(status, DW_NOT_FOUND, &err);
    assert_int_equal(dw_follower_version(slow), 1);
    kit_check_follower(&k, slow, copies);
    sync_ok(slow, 6); /* over the anchor */
    dw_follower_close(slow);
    memset(room, 0, k.n_bytes);
    dw_follower *f = open_ok(store, &options);
    status = dw_follower_sync(f, 2, NULL, NULL, &err);
    assert_fails(status, DW_NOT_FOUND, &err);
    assert_non_null(strstr(err.text, "collected"));
    sync_ok(f, 5);
    dw_follower_close(f);
    free(room);
    end();
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
