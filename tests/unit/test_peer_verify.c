/* Verifies other systems' versions: the faults it finds, and the notes about what it
 * cannot check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "unit/peer_kit.h"
#include "unit/temp_dir.h"

static char notes[2000], faults[4000];

static int make_world(void **state)
{
    temp_dir_make(state);
    peer_kit_make();
    peer_put_base(temp_path("base.safetensors"));
    return 0;
}

static void take_note(void *context, const char *note)
{
    (void)context;
    strncat(notes, note, sizeof notes - strlen(notes) - 1);
}

static void take_fault(void *context, const dw_error *fault)
{
    (void)context;
    strncat(faults, fault->text, sizeof faults - strlen(faults) - 1);
}

/* Verifies STORE, closes it, and returns the result. */
static dw_status sweep(dw_store *store, bool with_base, dw_peer_verify_report *report)
{
    dw_error err = {0};
    dw_peer *peer;
    notes[0] = faults[0] = '\0';
    const dw_peer_verify_options options = {
        .struct_bytes = sizeof options,
        .base = with_base ? temp_path("base.safetensors") : NULL,
        .n_threads = 1,
        .fault = take_fault,
        .note = take_note};
    assert_ok(dw_peer_open(&peer, store, &err), &err);
    dw_status status = dw_peer_verify(peer, &options, report, &err);
    assert_told(status, &err);
    dw_peer_close(peer);
    dw_store_close(store);
    return status;
}

static void test_good_ones(void **state)
{
    (void)state;
    for (peer_bucket kind = 0; kind < N_BUCKETS; kind++) {
        dw_peer_verify_report report;
        assert_int_equal(sweep(peer_make_bucket(kind), true, &report), DW_OK);
        const uint64_t n = kind == BUCKET_TRL ? 5 : 6;
        assert_int_equal(report.n_versions, n);
        assert_int_equal(report.n_replayed, n);
        assert_int_equal(report.n_missing, kind == BUCKET_TRL);
        assert_int_equal(report.n_faults, 0);
        /* two tensors in odd versions, three in even ones; 4 is whole */
        assert_int_equal(report.n_checked, kind == BUCKET_TRL     ? 0
                                           : kind == BUCKET_SLIME ? 12
                                                                  : 15);
        assert_true(report.n_bytes > 0 && report.n_objects >= n);
    }
}

static void test_without_a_base(void **state)
{
    (void)state;
    dw_peer_verify_report report;
    assert_int_equal(sweep(peer_make_bucket(BUCKET_SLIME), false, &report), DW_OK);
    assert_int_equal(report.n_replayed, 3); /* from the whole one on */
    assert_non_null(strstr(notes, "`base`"));
    assert_int_equal(sweep(peer_make_bucket(BUCKET_SLIME_DELTAS), false, &report), DW_OK);
    assert_int_equal(report.n_replayed, 0);
    assert_int_equal(report.n_checked, 0);
}

static void test_a_damaged_object(void **state)
{
    (void)state;
    for (peer_bucket kind = BUCKET_SLIME_DELTAS; kind < N_BUCKETS; kind++) {
        dw_peer_verify_report report;
        dw_store *store = peer_make_bucket(kind);
        dw_error err = {0};
        dw_writer bytes = {0};
        const char *key = "weight_v000003/model-00000-of-00003.safetensors";
        assert_ok(dw_store_get_all(store, key, 1u << 20, &bytes, &err), &err);
        bytes.bytes[bytes.n_bytes - 6] ^= 8;
        peer_put(store, key, bytes.bytes, bytes.n_bytes);
        dw_writer_release(&bytes);
        assert_int_equal(sweep(store, true, &report), DW_CORRUPT);
        assert_int_equal(report.n_faults, 1);
        assert_int_equal(report.n_replayed, 2); /* there is no route beyond it */
        assert_non_null(strstr(notes, "could not be made"));
    }
}

static void test_a_missing_file(void **state)
{
    (void)state;
    dw_peer_verify_report report;
    dw_error err = {0};
    dw_store *store = peer_make_bucket(BUCKET_SLIME_DELTAS);
    assert_ok(
        dw_store_remove(store, "weight_v000006/model-00001-of-00003.safetensors", &err),
        &err);
    assert_int_equal(sweep(store, true, &report), DW_NOT_FOUND);
    assert_int_equal(report.n_replayed, 5);
    assert_non_null(strstr(faults, "still being written"));
    store = peer_make_bucket(BUCKET_SLIME_DELTAS);
    kit_remove_all(store, "weight_v000003");
    assert_int_equal(sweep(store, true, &report), DW_NOT_FOUND);
    assert_non_null(strstr(faults, "nothing leads to version 4"));
}

static void test_a_delta_beyond_its_tensor(void **state)
{
    (void)state;
    dw_store *store = kit_mem_store();
    dw_peer_verify_report report;
    static int32_t indices[] = {3, 80};
    static uint16_t values[] = {1, 2};
    static const uint64_t two[] = {2};
    const dw_tensor pair[] = {
        {.name = "a.weight.idx",
         .dtype = DW_I32,
         .n_dims = 1,
         .dims = two,
         .n_bytes = 8,
         .data = indices},
        {.name = "a.weight.val",
         .dtype = DW_BF16,
         .n_dims = 1,
         .dims = two,
         .n_bytes = 4,
         .data = values},
    };
    const dw_pair metadata[] = {
        {"format", "sparse_weight_patch"}, {"sparse", "True"}, {"encoding", "raw"}};
    peer_put_anchor(store, 1, PEER_TENSORS);
    peer_put_file(store, "deltas/step_000002.safetensors", pair, 2, metadata, 3);
    assert_int_equal(sweep(store, false, &report), DW_CORRUPT);
    assert_int_equal(report.n_faults, 1);
}

static void test_a_base_that_is_not_there(void **state)
{
    (void)state;
    dw_error err = {0};
    dw_store *store = peer_make_bucket(BUCKET_SLIME_DELTAS);
    dw_peer *peer;
    const dw_peer_verify_options options = {.struct_bytes = sizeof options,
                                            .base = "/nowhere"};
    dw_peer_verify_report report;
    assert_ok(dw_peer_open(&peer, store, &err), &err);
    assert_fails(dw_peer_verify(peer, &options, &report, &err), DW_NOT_FOUND, &err);
    assert_int_equal(report.n_faults, 0);
    assert_ok(dw_peer_verify(peer, NULL, NULL, &err), &err);
    dw_peer_close(peer);
    dw_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_ones),
        cmocka_unit_test(test_without_a_base),
        cmocka_unit_test(test_a_damaged_object),
        cmocka_unit_test(test_a_missing_file),
        cmocka_unit_test(test_a_delta_beyond_its_tensor),
        cmocka_unit_test(test_a_base_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, make_world, temp_dir_remove);
}
