/* Directories that follow TRL's and slime's versions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "deltawire/checkpoint.h"
#include "unit/peer_kit.h"
#include "unit/temp_dir.h"

static int make_world(void **state)
{
    temp_dir_make(state);
    peer_kit_make();
    peer_put_base(temp_path("base.safetensors"));
    return 0;
}

static int remove_into(void **state)
{
    char command[200];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s/into'", temp_dir);
    return system(command);
}

typedef struct following {
    dw_store *store;
    dw_peer *peer;
    dw_peer_replica *replica;
    char into[128];
    char base[128];
} following;

static dw_status try_open(following *f, bool with_base, dw_error *err)
{
    dw_peer_replica_options options;
    dw_peer_replica_options_init(&options);
    snprintf(f->into, sizeof f->into, "%s/into", temp_dir);
    snprintf(f->base, sizeof f->base, "%s/base.safetensors", temp_dir);
    options.into = f->into;
    options.base = with_base ? f->base : NULL;
    options.n_threads = 2;
    return dw_peer_replica_open(&f->replica, f->peer, &options, err);
}

/* Owns STORE. */
static following open_store(dw_store *store, bool with_base)
{
    following f = {.store = store};
    dw_error err = {0};
    assert_ok(dw_peer_open(&f.peer, store, &err), &err);
    assert_ok(try_open(&f, with_base, &err), &err);
    return f;
}

static void close_all(following *f)
{
    dw_peer_replica_close(f->replica);
    dw_peer_close(f->peer);
    dw_store_close(f->store);
}

static dw_peer_sync_report go(following *f, uint64_t goal)
{
    dw_error err = {0};
    dw_peer_sync_report report;
    assert_ok(dw_peer_replica_sync(f->replica, goal, NULL, &report, &err), &err);
    assert_int_equal(report.version, dw_peer_replica_version(f->replica));
    peer_check_replica(f->replica, f->into);
    return report;
}

static void go_wrong(following *f, uint64_t goal, dw_status wanted, const char *text)
{
    dw_error err = {0};
    const uint64_t before = dw_peer_replica_version(f->replica);
    assert_fails(dw_peer_replica_sync(f->replica, goal, NULL, NULL, &err), wanted, &err);
    if (!strstr(err.text, text))
        print_error("not '%s': %s\n", text, err.text);
    assert_non_null(strstr(err.text, text));
    assert_int_equal(dw_peer_replica_version(f->replica), before);
    peer_check_replica(f->replica, f->into);
}

static void test_from_version_to_version(void **state)
{
    for (peer_bucket kind = 0; kind < N_BUCKETS; kind++) {
        following f = open_store(peer_make_bucket(kind), kind != BUCKET_TRL);
        assert_int_equal(dw_peer_replica_version(f.replica), DW_NO_VERSION);
        for (uint64_t v = 1; v <= PEER_VERSIONS; v++)
            if (peer_has_version(kind, v)) {
                dw_peer_sync_report report = go(&f, v);
                assert_int_equal(report.n_steps, 1);
                assert_int_equal(report.version, v);
            }
        assert_int_equal(go(&f, DW_NEWEST).n_steps, 0);
        go(&f, 2); /* back */
        assert_int_equal(go(&f, DW_NEWEST).version, PEER_VERSIONS);
        close_all(&f);
        remove_into(state);
    }
}

static void test_position_is_remembered(void **state)
{
    for (peer_bucket kind = 0; kind < N_BUCKETS; kind++) {
        following f = open_store(peer_make_bucket(kind), true);
        go(&f, 3);
        dw_peer_replica_close(f.replica);
        dw_error err = {0};
        assert_ok(try_open(&f, false, &err), &err);
        assert_int_equal(dw_peer_replica_version(f.replica), 3);
        peer_check_replica(f.replica, f.into);
        assert_int_equal(go(&f, 4).from, 3);
        close_all(&f);
        remove_into(state);
    }
}

static void test_proven_is_said(void **state)
{
    (void)state;
    following f = open_store(peer_make_bucket(BUCKET_SLIME), true);
    dw_peer_sync_report report = go(&f, 2);
    assert_true(report.is_verified);
    assert_int_equal(report.n_checked, 5); /* two tensors, then three */
    report = go(&f, 4);                    /* from a whole version */
    assert_false(report.is_verified);
    assert_int_equal(report.n_steps, 1);
    close_all(&f);
}

static void test_a_number_without_a_file(void **state)
{
    (void)state;
    following f = open_store(peer_make_bucket(BUCKET_TRL), false);
    dw_peer_sync_report report = go(&f, 6);
    assert_int_equal(report.n_steps, 2); /* the anchor, and the step over the gap */
    assert_false(report.is_verified);
    go_wrong(&f, 5, DW_NOT_FOUND, "changes nothing has no file");
    go_wrong(&f, 7, DW_NOT_FOUND, "the newest is 6");
    close_all(&f);
}

static void test_an_anchor_that_leaves_out(void **state)
{
    (void)state;
    dw_store *store = kit_mem_store();
    peer_put_anchor(store, 1, PEER_TENSORS);
    peer_put_delta(store, 1, 2, "raw");
    peer_put_anchor(store, 3, 2); /* the third tensor did not change */
    following f = open_store(store, false);
    assert_int_equal(go(&f, 3).n_steps, 3);
    uint64_t start;
    dw_error err = {0};
    assert_ok(dw_peer_version_base(f.peer, 3, &start, &err), &err);
    assert_int_equal(start, 2);
    /* if the first anchor is gone, the local weights still show what is missing */
    assert_ok(dw_store_remove(store, "anchors/step_000001.safetensors", &err), &err);
    go_wrong(&f, 2, DW_NOT_FOUND, "no whole anchor before it");
    close_all(&f);
}

static void test_the_oldest_anchor_is_taken_for_whole(void **state)
{
    (void)state;
    dw_store *store = kit_mem_store();
    peer_put_anchor(store, 4, PEER_TENSORS);
    following f = open_store(store, false);
    go(&f, 4);
    close_all(&f);
}

static void test_nothing_to_start_from(void **state)
{
    dw_store *store = kit_mem_store();
    peer_put_delta(store, 1, 2, "raw");
    following f = open_store(store, false);
    go_wrong(&f, 2, DW_NOT_FOUND, "`base`");
    close_all(&f);
    remove_into(state);
    f = open_store(peer_make_bucket(BUCKET_SLIME_DELTAS), false);
    go_wrong(&f, 2, DW_NOT_FOUND, "the engine's own model");
    close_all(&f);
    remove_into(state);
    store = peer_make_bucket(BUCKET_SLIME_DELTAS);
    kit_remove_all(store, "weight_v000003");
    f = open_store(store, true);
    go(&f, 2);
    go_wrong(&f, 5, DW_NOT_FOUND, "the chain is broken");
    close_all(&f);
}

static void test_a_base_for_trl(void **state)
{
    (void)state;
    dw_store *store = kit_mem_store();
    peer_put_delta(store, 0, 1, "raw");
    peer_put_delta(store, 1, 2, "raw");
    following f = open_store(store, true);
    go(&f, 2);
    close_all(&f);
}

/* Version 0 has no number before it, which is not the version of an empty directory. */
static void test_a_delta_numbered_0(void **state)
{
    (void)state;
    dw_store *store = kit_mem_store();
    peer_put_delta(store, 1, 0, "raw");
    following f = open_store(store, false);
    go_wrong(&f, 0, DW_NOT_FOUND, "no whole anchor before it");
    close_all(&f);
}

/* Back to the base, which is another model now. */
static void test_a_base_of_another_model(void **state)
{
    (void)state;
    dw_error err = {0};
    following f = open_store(peer_make_bucket(BUCKET_SLIME_DELTAS), true);
    go(&f, 2);
    unlink(f.base);
    assert_ok(dw_checkpoint_write(f.base, peer_model[0], PEER_TENSORS - 1, NULL, &err),
              &err);
    go_wrong(&f, 1, DW_MISMATCH, "it is another model");
    unlink(f.base);
    peer_put_base(f.base);
    go(&f, 1);
    close_all(&f);
}

static void test_a_whole_version_that_lacks_some(void **state)
{
    (void)state;
    dw_store *store = kit_mem_store();
    peer_put_slime_whole(store, 1);
    peer_put_slime_whole(store, 2);
    following f = open_store(store, false);
    go(&f, 1);
    peer_put_file(store, "weight_v000003/part.safetensors", peer_model[3], 2, NULL, 0);
    peer_put_text(store, "weight_v000003/model.safetensors.index.json",
                  "{\"metadata\":{},\"weight_map\":{\"a.weight\":\"part.safetensors\","
                  "\"b.norm\":\"part.safetensors\"}}");
    go_wrong(&f, 3, DW_MISMATCH, "not all of it");
    go(&f, 2);
    close_all(&f);
}

static void test_unsupported(void **state)
{
    dw_store *store = kit_mem_store();
    peer_put_anchor(store, 1, PEER_TENSORS);
    peer_put_delta(store, 1, 2, "nvcomp_cascaded");
    following f = open_store(store, false);
    go(&f, 1);
    go_wrong(&f, 2, DW_UNSUPPORTED, "nvcomp_cascaded");
    close_all(&f);
    remove_into(state);
    store = kit_mem_store();
    peer_put_slime_whole(store, 1);
    peer_put_text(store, "weight_v000002/model.safetensors.index.json",
                  "{\"metadata\":{\"base_version\":\"000001\",\"delta_encoding\":\"xor\","
                  "\"compression_format\":\"zstd\",\"checksum_format\":\"blake3\"},"
                  "\"weight_map\":{}}");
    f = open_store(store, false);
    go(&f, 1);
    go_wrong(&f, 2, DW_UNSUPPORTED, "blake3");
    close_all(&f);
}

static void test_a_run_that_was_started_again(void **state)
{
    for (peer_bucket kind = 0; kind < N_BUCKETS; kind++) {
        following f = open_store(peer_make_bucket(kind), true);
        go(&f, 2);
        if (kind == BUCKET_TRL)
            peer_put_delta(f.store, 0, 2, "raw");
        else
            peer_put_slime(f.store, 0, 2, DW_PACKING_XOR, DW_CHECKSUM_XXH3_128);
        go_wrong(&f, 3, DW_STALE, "started again");
        close_all(&f);
        remove_into(state);
    }
}

static void test_other_directories_are_refused(void **state)
{
    dw_error err = {0};
    following f = open_store(peer_make_bucket(BUCKET_TRL), false);
    go(&f, 3);
    following again = {.peer = f.peer};
    assert_fails(try_open(&again, false, &err), DW_CONFLICT, &err); /* it is in use */
    assert_null(again.replica);
    close_all(&f);
    f = (following){.store = peer_make_bucket(BUCKET_SLIME_DELTAS)};
    assert_ok(dw_peer_open(&f.peer, f.store, &err), &err);
    assert_fails(try_open(&f, true, &err), DW_MISMATCH, &err);
    assert_non_null(strstr(err.text, "another stream"));
    close_all(&f);
    remove_into(state);
    assert_int_equal(mkdir(temp_path("into"), 0777), 0);
    peer_put_base(temp_path("into/model.safetensors"));
    f = (following){.store = peer_make_bucket(BUCKET_SLIME_DELTAS)};
    assert_ok(dw_peer_open(&f.peer, f.store, &err), &err);
    assert_fails(try_open(&f, true, &err), DW_CONFLICT, &err);
    assert_non_null(strstr(err.text, "no record"));
    close_all(&f);
}

static void test_a_step_for_another_model(void **state)
{
    (void)state;
    static const uint64_t dims[] = {7};
    dw_store *store = kit_mem_store();
    peer_put_anchor(store, 1, PEER_TENSORS);
    following f = open_store(store, false);
    go(&f, 1);
    const dw_tensor other = {.name = "b.norm",
                             .dtype = DW_BF16,
                             .n_dims = 1,
                             .dims = dims,
                             .n_bytes = 14,
                             .data = peer_bytes[2]};
    peer_put_file(store, "anchors/step_000002.safetensors", &other, 1, NULL, 0);
    go_wrong(&f, 2, DW_MISMATCH, "b.norm");
    close_all(&f);
}

static int cancel(void *context, uint64_t done, uint64_t total)
{
    (void)context, (void)done, (void)total;
    return 1;
}

static void test_cancelled(void **state)
{
    (void)state;
    following f = open_store(peer_make_bucket(BUCKET_SLIME), true);
    go(&f, 2);
    dw_error err = {0};
    const dw_progress stop = {cancel, NULL};
    assert_fails(dw_peer_replica_sync(f.replica, 3, &stop, NULL, &err), DW_CANCELLED,
                 &err);
    assert_int_equal(dw_peer_replica_version(f.replica), 2);
    peer_check_replica(f.replica, f.into);
    close_all(&f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, NULL, remove_into)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_from_version_to_version),
        TEST(test_position_is_remembered),
        TEST(test_proven_is_said),
        TEST(test_a_number_without_a_file),
        TEST(test_an_anchor_that_leaves_out),
        TEST(test_the_oldest_anchor_is_taken_for_whole),
        TEST(test_nothing_to_start_from),
        TEST(test_a_base_for_trl),
        TEST(test_a_delta_numbered_0),
        TEST(test_a_base_of_another_model),
        TEST(test_a_whole_version_that_lacks_some),
        TEST(test_unsupported),
        TEST(test_a_run_that_was_started_again),
        TEST(test_other_directories_are_refused),
        TEST(test_a_step_for_another_model),
        TEST(test_cancelled),
    };
    return cmocka_run_group_tests(tests, make_world, temp_dir_remove);
}
