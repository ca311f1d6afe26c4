/* The format of a store, its versions, and their records. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "compat/names.h"
#include "compat/peer_int.h"
#include "unit/peer_kit.h"

static int make_kit(void **state)
{
    (void)state;
    peer_kit_make();
    return 0;
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        dw_peer_format format;
        const char *key;
        uint64_t version; /* UINT64_MAX: none */
    } cases[] = {
        {DW_PEER_TRL, "anchors/step_000001.safetensors", 1},
        {DW_PEER_TRL, "deltas/step_123456.safetensors", 123456},
        {DW_PEER_TRL, "deltas/step_1234567.safetensors", 1234567},
        {DW_PEER_TRL, "deltas/step_0123456.safetensors", UINT64_MAX},
        {DW_PEER_TRL, "deltas/step_00001.safetensors", UINT64_MAX},
        {DW_PEER_TRL, "deltas/step_000001.safetensors.tmp", UINT64_MAX},
        {DW_PEER_TRL, "deltas/step_.safetensors", UINT64_MAX},
        {DW_PEER_TRL, "deltas/step_99999999999999999999.safetensors", UINT64_MAX},
        {DW_PEER_SLIME, "weight_v000007/model.safetensors.index.json", 7},
        {DW_PEER_SLIME, "weight_v000007/model-00000-of-00001.safetensors", UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t version = 0;
        char key[DW_KEY_TEXT];
        bool found = dw_peer_key_version(cases[i].format, cases[i].key, &version);
        assert_int_equal(found, cases[i].version != UINT64_MAX);
        if (!found)
            continue;
        assert_int_equal(version, cases[i].version);
        dw_peer_key(key, cases[i].format, version, cases[i].key[0] == 'a');
        assert_string_equal(key, cases[i].key);
    }
    static const char *const bad[] = {
        "../x.safetensors", "a/b.safetensors",  "x.bin",         "",
        ".safetensors",     "a\\b.safetensors", "/x.safetensors"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(dw_peer_name_is_plain(bad[i]));
    assert_true(dw_peer_name_is_plain("model-00000-of-00001.safetensors"));
}

static void test_formats(void **state)
{
    (void)state;
    dw_peer_format f;
    for (dw_peer_format i = DW_PEER_TRL; i <= DW_PEER_SLIME; i++)
        assert_true(dw_peer_format_from_name(&f, dw_peer_format_name(i)) && f == i);
    assert_string_equal(dw_peer_format_name((dw_peer_format)9), "?");
    assert_false(dw_peer_format_from_name(&f, "?"));
}

static void test_detect(void **state)
{
    (void)state;
    dw_error err = {0};
    dw_peer_format format;
    dw_peer *peer;
    static const dw_peer_format wanted[] = {DW_PEER_TRL, DW_PEER_SLIME, DW_PEER_SLIME};
    dw_store *store = kit_mem_store();
    assert_fails(dw_peer_detect(store, &format, &err), DW_NOT_FOUND, &err);
    assert_fails(dw_peer_open(&peer, store, &err), DW_NOT_FOUND, &err);
    assert_null(peer);
    peer_put_text(store, "deltas/step_x.safetensors", "");
    peer_put_text(store, "weight_v000001/model-00000-of-00001.safetensors", "");
    assert_fails(dw_peer_detect(store, &format, &err), DW_NOT_FOUND, &err);
    dw_store_close(store);
    for (peer_bucket kind = 0; kind < N_BUCKETS; kind++) {
        store = peer_make_bucket(kind);
        assert_ok(dw_peer_detect(store, &format, &err), &err);
        assert_int_equal(format, wanted[kind]);
        peer_put_text(store, "stream.json", "{}"); /* a deltawire stream wins */
        assert_fails(dw_peer_detect(store, &format, &err), DW_NOT_FOUND, &err);
        dw_store_close(store);
    }
}

static void test_list(void **state)
{
    (void)state;
    dw_error err = {0};
    dw_store *store = kit_mem_store();
    dw_peer *peer;
    const uint64_t *versions;
    size_t n;
    peer_put_anchor(store, 1, PEER_TENSORS);
    assert_ok(dw_peer_open(&peer, store, &err), &err);
    assert_int_equal(dw_peer_get_format(peer), DW_PEER_TRL);
    assert_ok(dw_peer_list(peer, &versions, &n, &err), &err);
    assert_int_equal(n, 1);
    /* numbers of seven digits come after those of six, unlike their names */
    peer_put_text(store, "deltas/step_1000000.safetensors", "x");
    peer_put_text(store, "deltas/step_999999.safetensors", "x");
    peer_put_text(store, "deltas/step_000001.safetensors", "x"); /* the anchor wins */
    peer_put_text(store, "deltas/readme.txt", "x");
    assert_ok(dw_peer_list(peer, &versions, &n, &err), &err);
    assert_int_equal(n, 3);
    assert_true(versions[0] == 1 && versions[1] == 999999 && versions[2] == 1000000);
    uint64_t base;
    assert_ok(dw_peer_version_base(peer, 1, &base, &err), &err);
    assert_true(base == DW_NO_VERSION);
    assert_fails(dw_peer_version_base(peer, 999999, &base, &err), DW_CORRUPT, &err);
    assert_fails(dw_peer_version_base(peer, 2, &base, &err), DW_NOT_FOUND, &err);
    dw_peer_close(peer);
    dw_store_close(store);
}

static void test_bases(void **state)
{
    (void)state;
    for (peer_bucket kind = 0; kind < N_BUCKETS; kind++) {
        dw_error err = {0};
        dw_store *store = peer_make_bucket(kind);
        dw_peer *peer;
        uint64_t base;
        assert_ok(dw_peer_open(&peer, store, &err), &err);
        for (unsigned v = 1; v <= PEER_VERSIONS; v++) {
            if (!peer_has_version(kind, v))
                continue;
            assert_ok(dw_peer_version_base(peer, v, &base, &err), &err);
            const bool whole = (kind == BUCKET_TRL && (v == 1 || v == 4)) ||
                               (kind == BUCKET_SLIME && v == 4);
            assert_true(base == (whole                          ? DW_NO_VERSION
                                 : kind == BUCKET_TRL && v == 6 ? 4
                                                                : v - 1));
        }
        dw_peer_close(peer);
        dw_store_close(store);
    }
}

/* A version that is written again is read again. */
static void test_what_changed_is_read_again(void **state)
{
    (void)state;
    dw_error err = {0};
    dw_store *store = peer_make_bucket(BUCKET_SLIME_DELTAS);
    dw_peer *peer;
    uint64_t base;
    const uint64_t *versions;
    size_t n;
    assert_ok(dw_peer_open(&peer, store, &err), &err);
    assert_ok(dw_peer_version_base(peer, 3, &base, &err), &err);
    assert_int_equal(base, 2);
    peer_put_slime(store, 1, 3, DW_PACKING_XOR, DW_CHECKSUM_XXH3_128);
    assert_ok(dw_peer_list(peer, &versions, &n, &err), &err);
    assert_ok(dw_peer_version_base(peer, 3, &base, &err), &err);
    assert_int_equal(base, 1);
    dw_peer_close(peer);
    dw_store_close(store);
}

/* ---- hostile records ---- */

static const struct {
    dw_peer_format format;
    dw_status wanted;
    const char *text; /* of the error */
    const char *record;
} records[] = {
    {DW_PEER_SLIME, DW_OK, "", "{\"weight_map\":{\"a\":\"m.safetensors\"}}"},
    {DW_PEER_SLIME, DW_CORRUPT, "strict JSON", "{"},
    {DW_PEER_SLIME, DW_CORRUPT, "JSON", "{\"weight_map\":{},\"weight_map\":{}}"},
    {DW_PEER_SLIME, DW_CORRUPT, "not a JSON object", "[]"},
    {DW_PEER_SLIME, DW_CORRUPT, "no weight_map", "{\"weight_map\":[]}"},
    {DW_PEER_SLIME, DW_CORRUPT, "no tensors", "{\"weight_map\":{}}"},
    {DW_PEER_SLIME, DW_CORRUPT, "does not name its file", "{\"weight_map\":{\"a\":3}}"},
    {DW_PEER_SLIME, DW_CORRUPT, "plain name",
     "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}"},
    {DW_PEER_SLIME, DW_CORRUPT, "plain name",
     "{\"weight_map\":{\"a\":\"x/y.safetensors\"}}"},
    {DW_PEER_SLIME, DW_CORRUPT, "says that it is 000008",
     "{\"metadata\":{\"version\":\"000008\"},\"weight_map\":{\"a\":\"m.safetensors\"}}"},
    {DW_PEER_SLIME, DW_CORRUPT, "no delta_encoding",
     "{\"metadata\":{\"base_version\":\"000006\"},\"weight_map\":{}}"},
    {DW_PEER_SLIME, DW_CORRUPT, "must name",
     "{\"metadata\":{\"delta_encoding\":\"xor\"},\"weight_map\":{}}"},
    {DW_PEER_SLIME, DW_CORRUPT, "must name",
     "{\"metadata\":{\"delta_encoding\":\"xor\",\"base_version\":\"-1\"},"
     "\"weight_map\":{}}"},
    {DW_PEER_SLIME, DW_CORRUPT, "does not come before it",
     "{\"metadata\":{\"delta_encoding\":\"xor\",\"base_version\":\"000007\","
     "\"compression_format\":\"zstd\"},\"weight_map\":{}}"},
};

static void test_hostile_records(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        dw_error err = {0};
        dw_store *store = kit_mem_store();
        dw_peer *peer;
        uint64_t base;
        char key[DW_KEY_TEXT];
        dw_peer_key(key, records[i].format, 7, true);
        peer_put_text(store, key, records[i].record);
        if (records[i].format == DW_PEER_SLIME) /* its first bytes are read */
            peer_put_text(store, "weight_v000007/m.safetensors", "");
        assert_ok(dw_peer_open(&peer, store, &err), &err);
        dw_status status = dw_peer_version_base(peer, 7, &base, &err);
        if (status != records[i].wanted || !strstr(err.text, records[i].text))
            print_error("%s: %s, %s\n", records[i].record, dw_status_name(status),
                        err.text);
        assert_int_equal(status, records[i].wanted);
        assert_non_null(strstr(err.text, records[i].text));
        dw_peer_close(peer);
        dw_store_close(store);
    }
}

static void test_hostile_trl(void **state)
{
    (void)state;
    static const struct {
        const char *key, *header, *text;
    } cases[] = {
        {"deltas/step_000007.safetensors", "{}", "no delta of TRL's"},
        {"deltas/step_000007.safetensors", "[]", "not a JSON object"},
        {"anchors/step_000007.safetensors", "{\"__metadata__\":{\"sparse\":\"True\"}}",
         "it is a delta, but has the name of an anchor"},
        {"anchors/step_000007.safetensors",
         "{\"__metadata__\":{\"model_version\":\"8\"}}", "says that it is 8"},
    };
    for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) {
        dw_error err = {0};
        dw_store *store = kit_mem_store();
        dw_peer *peer;
        uint64_t base;
        dw_writer file = {0};
        const bool cut = i == sizeof cases / sizeof *cases;
        dw_write_u64(&file, cut ? UINT64_MAX : strlen(cases[i].header));
        dw_write_text(&file, cut ? "{}" : cases[i].header);
        peer_put(store, cases[cut ? 0 : i].key, file.bytes, file.n_bytes);
        dw_writer_release(&file);
        assert_ok(dw_peer_open(&peer, store, &err), &err);
        assert_fails(dw_peer_version_base(peer, 7, &base, &err), DW_CORRUPT, &err);
        assert_non_null(strstr(err.text, cut ? "cut off" : cases[i].text));
        dw_peer_close(peer);
        dw_store_close(store);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_detect),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_bases),
        cmocka_unit_test(test_what_changed_is_read_again),
        cmocka_unit_test(test_hostile_records),
        cmocka_unit_test(test_hostile_trl),
    };
    return cmocka_run_group_tests(tests, make_kit, NULL);
}
