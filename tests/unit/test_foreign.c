/* Versions of TRL and slime: listed, read, written, refused. tests/format has readers and
 * writers in Python that do not use the library. */
#include "unit/suite.h"

#include "unit/format_kit.h"

static int make_kit(void **state)
{
    (void)state;
    peer_kit_make();
    return 0;
}

static dw_foreign *open_foreign(dw_store *store, const dw_foreign_options *options)
{
    static const dw_foreign_options none = {.n_threads = 2};
    dw_error err = {0};
    dw_foreign *f;
    const dw_format *format;
    assert_ok(dw_format_detect(&format, store, &err), &err);
    assert_ok(dw_foreign_open(&f, store, format, options ? options : &none, &err), &err);
    return f;
}

static uint64_t list(dw_foreign *f, size_t *n)
{
    dw_error err = {0};
    const dw_foreign_version *versions;
    assert_ok(dw_foreign_list(f, &versions, n, &err), &err);
    return *n > 0 ? versions[*n - 1].version : DW_NO_VERSION;
}

static dw_foreign *open_bucket(dw_store *store)
{
    size_t n;
    dw_foreign *f = open_foreign(store, NULL);
    list(f, &n);
    return f;
}

static void fill_base(dw_foreign *f, unsigned version)
{
    dw_error err = {0};
    assert_ok(
        dw_foreign_fill(f, peer_model[version], PEER_TENSORS, version, NULL, NULL, &err),
        &err);
}

static void go(dw_foreign *f, uint64_t version)
{
    dw_error err = {0};
    assert_ok(dw_foreign_go(f, version, NULL, &err), &err);
    assert_int_equal(dw_foreign_at(f), version);
    peer_check_model(f);
}

static void go_wrong(dw_foreign *f, uint64_t version, dw_status wanted, const char *text)
{
    dw_error err = {0};
    assert_fails(dw_foreign_go(f, version, NULL, &err), wanted, &err);
    if (!strstr(err.text, text))
        fail_msg("not '%s': %s", text, err.text);
    peer_check_model(f);
}

/* ---- names and lists ---- */

TEST(test_names)
{
    static const struct {
        const char *format;
        const char *key;
        uint64_t version; /* UINT64_MAX: none */
    } cases[] = {
        {"trl", "anchors/step_000001.safetensors", 1},
        {"trl", "deltas/step_123456.safetensors", 123456},
        {"trl", "deltas/step_1234567.safetensors", 1234567},
        {"trl", "deltas/step_0123456.safetensors", UINT64_MAX},
        {"trl", "deltas/step_00001.safetensors", UINT64_MAX},
        {"trl", "deltas/step_000001.safetensors.tmp", UINT64_MAX},
        {"trl", "deltas/step_.safetensors", UINT64_MAX},
        {"trl", "deltas/step_99999999999999999999.safetensors", UINT64_MAX},
        {"slime", "weight_v000007/model.safetensors.index.json", 7},
        {"slime", "weight_v000007/model-00000-of-00001.safetensors", UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const dw_format *format = dw_format_named(cases[i].format);
        dw_foreign_version found;
        assert_string_equal(dw_format_name(format), cases[i].format);
        const bool is_one = format->parse(cases[i].key, &found);
        assert_int_equal(is_one, cases[i].version != UINT64_MAX);
        if (is_one)
            assert_int_equal(found.version, cases[i].version);
        if (is_one)
            assert_int_equal(found.is_anchor, cases[i].key[0] == 'a');
    }
    assert_null(dw_format_named("floppy"));
}

TEST(test_detect)
{
    dw_error err = {0};
    const dw_format *format;
    static const char *const wanted[] = {"trl", "slime", "slime"};
    dw_store *store = kit_mem_store();
    assert_fails(dw_format_detect(&format, store, &err), DW_NOT_FOUND, &err);
    peer_put_text(store, "deltas/step_x.safetensors", "");
    peer_put_text(store, "weight_v000001/model-00000-of-00001.safetensors", "");
    assert_fails(dw_format_detect(&format, store, &err), DW_NOT_FOUND, &err);
    dw_store_close(store);
    for (peer_bucket kind = 0; kind < N_BUCKETS; kind++) {
        store = peer_make_bucket(kind);
        assert_ok(dw_format_detect(&format, store, &err), &err);
        assert_string_equal(dw_format_name(format), wanted[kind]);
        peer_put_text(store, "stream.json", "{}"); /* a deltawire stream wins */
        assert_fails(dw_format_detect(&format, store, &err), DW_NOT_FOUND, &err);
        dw_store_close(store);
    }
}

TEST(test_list)
{
    dw_error err = {0};
    dw_store *store = kit_mem_store();
    dw_foreign_facts facts;
    const dw_foreign_version *versions;
    size_t n;
    peer_put_anchor(store, 1, PEER_TENSORS);
    dw_foreign *f = open_bucket(store);
    /* numbers of seven digits come after those of six, unlike their names */
    peer_put_text(store, "deltas/step_1000000.safetensors", "x");
    peer_put_text(store, "deltas/step_999999.safetensors", "x");
    peer_put_text(store, "deltas/step_000001.safetensors", "x"); /* the anchor wins */
    peer_put_text(store, "deltas/readme.txt", "x");
    assert_ok(dw_foreign_list(f, &versions, &n, &err), &err);
    assert_int_equal(n, 3);
    assert_true(versions[0].version == 1 && versions[0].is_anchor);
    assert_true(versions[1].version == 999999 && versions[2].version == 1000000);
    assert_ok(dw_foreign_look(f, 1, &facts, &err), &err);
    assert_true(facts.is_whole);
    assert_fails(dw_foreign_look(f, 999999, &facts, &err), DW_CORRUPT, &err);
    assert_fails(dw_foreign_look(f, 2, &facts, &err), DW_NOT_FOUND, &err);
    dw_foreign_close(f);
    dw_store_close(store);
}

TEST(test_facts)
{
    for (peer_bucket kind = 0; kind < N_BUCKETS; kind++) {
        dw_error err = {0};
        dw_store *store = peer_make_bucket(kind);
        dw_foreign *f = open_bucket(store);
        dw_foreign_facts facts, again;
        for (unsigned v = 1; v <= PEER_VERSIONS; v++) {
            if (!peer_has_version(kind, v))
                continue;
            assert_ok(dw_foreign_look(f, v, &facts, &err), &err);
            const bool whole = (kind == BUCKET_TRL && (v == 1 || v == 4)) ||
                               (kind == BUCKET_SLIME && v == 4);
            assert_int_equal(facts.is_whole, whole);
            if (!whole)
                assert_int_equal(facts.base, kind == BUCKET_TRL && v == 6 ? 4 : v - 1);
        }
        /* a version that is written again has another mark */
        if (kind == BUCKET_TRL)
            peer_put_delta(store, 3, 6, "raw");
        else
            peer_put_slime(store, 3, 6, false, "xxh3-128");
        assert_ok(dw_foreign_look(f, 6, &again, &err), &err);
        assert_memory_not_equal(facts.mark, again.mark, sizeof facts.mark);
        dw_foreign_close(f);
        dw_store_close(store);
    }
}

/* ---- reading ---- */

TEST(test_from_version_to_version)
{
    for (peer_bucket kind = 0; kind < N_BUCKETS; kind++) {
        dw_store *store = peer_make_bucket(kind);
        dw_foreign *f = open_bucket(store);
        if (kind != BUCKET_TRL)
            fill_base(f, 0);
        for (uint64_t v = 1; v <= PEER_VERSIONS; v++)
            if (peer_has_version(kind, v))
                go(f, v);
        if (kind != BUCKET_SLIME_DELTAS)
            go(f, kind == BUCKET_TRL ? 2 : 4); /* back */
        go(f, 6);
        dw_foreign_close(f);
        f = open_bucket(store);
        fill_base(f, 2);
        go(f, 6); /* many at once */
        dw_foreign_close(f);
        dw_store_close(store);
    }
}

/* A delta of the new run must not be applied to weights of the old one. */
TEST(test_a_run_that_is_started_again)
{
    for (unsigned is_filled = 0; is_filled < 2; is_filled++) {
        size_t n;
        dw_store *store = kit_mem_store();
        peer_put_anchor(store, 1, PEER_TENSORS);
        peer_put_delta(store, 1, 2, "raw");
        dw_foreign *f = open_bucket(store);
        if (is_filled)
            fill_base(f, 2);
        else
            go(f, 2);
        peer_put_delta(store, 0, 2, "raw");
        peer_put_delta(store, 2, 3, "raw");
        list(f, &n);
        go_wrong(f, 3, DW_STALE, "a run was started again");
        assert_int_equal(dw_foreign_at(f), DW_NO_VERSION);
        peer_put_anchor(store, 4, PEER_TENSORS); /* a whole one is right in any case */
        list(f, &n);
        go(f, 4);
        dw_foreign_close(f);
        dw_store_close(store);
    }
}

TEST(test_an_anchor_that_leaves_out)
{
    dw_store *store = kit_mem_store();
    peer_put_anchor(store, 1, PEER_TENSORS);
    peer_put_delta(store, 1, 2, "raw");
    peer_put_anchor(store, 3, 2); /* c.rare does not change in 3 */
    dw_foreign *f = open_bucket(store);
    go(f, 3); /* over 1 and 2 */
    dw_foreign_close(f);
    dw_store_close(store);
}

TEST(test_nothing_to_start_from)
{
    dw_store *store = peer_make_bucket(BUCKET_SLIME_DELTAS);
    dw_foreign *f = open_bucket(store);
    go_wrong(f, 3, DW_NOT_FOUND, "the engine's own model");
    kit_remove_all(store, "weight_v000002");
    size_t n;
    list(f, &n);
    go_wrong(f, 4, DW_NOT_FOUND, "the chain is broken");
    go_wrong(f, 9, DW_NOT_FOUND, "version 9 is not there");
    dw_foreign_close(f);
    dw_store_close(store);
    store = kit_mem_store();
    peer_put_delta(store, 1, 2, "raw");
    peer_put_delta(store, 0, 0, "raw");
    f = open_bucket(store);
    go_wrong(f, 2, DW_NOT_FOUND, "no whole anchor before it");
    go_wrong(f, 0, DW_NOT_FOUND, "no whole anchor before it");
    dw_foreign_close(f);
    dw_store_close(store);
}

/* What is damaged, of another model or not supported is refused by name. */
TEST(test_refused_versions)
{
    size_t n;
    dw_error err = {0};
    dw_store *store = peer_make_bucket(BUCKET_SLIME);
    dw_foreign *f = open_bucket(store);
    fill_base(f, 2);
    peer_put_text(store, "weight_v000005/model.safetensors.index.json",
                  "{\"metadata\":{\"base_version\":\"000002\",\"delta_encoding\":\"xor\","
                  "\"compression_format\":\"zstd\",\"checksum_format\":\"blake3\"},"
                  "\"weight_map\":{}}");
    list(f, &n);
    go_wrong(f, 5, DW_UNSUPPORTED, "blake3");
    assert_int_equal(dw_foreign_at(f), 2);
    assert_ok(dw_foreign_fill(f, peer_model[1], PEER_TENSORS, 2, NULL, NULL, &err), &err);
    go_wrong(f, 3, DW_CORRUPT, "not the version it starts from"); /* wrong weights */
    assert_int_equal(dw_foreign_at(f), DW_NO_VERSION);
    kit_remove_all(store, "weight_v000004/model-00001");
    go_wrong(f, 4, DW_NOT_FOUND, "still being written, or lost");
    dw_tensor other[PEER_TENSORS];
    memcpy(other, peer_model[0], sizeof other);
    other[0].name = "a.other";
    assert_ok(dw_foreign_fill(f, other, PEER_TENSORS, 0, NULL, NULL, &err), &err);
    assert_fails(dw_foreign_go(f, 1, NULL, &err), DW_MISMATCH, &err);
    assert_non_null(strstr(err.text, "a.weight"));
    dw_foreign_close(f);
    dw_store_close(store);
    store = kit_mem_store();
    peer_put_anchor(store, 1, PEER_TENSORS);
    peer_put_delta(store, 1, 2, "nvcomp_cascaded");
    f = open_bucket(store);
    go_wrong(f, 2, DW_UNSUPPORTED, "nvcomp_cascaded");
    go(f, 1);
    dw_foreign_close(f);
    dw_store_close(store);
}

/* ---- hostile records ---- */

static const struct {
    dw_status wanted;
    const char *text; /* of the error */
    const char *record;
} records[] = {
    {DW_OK, "", "{\"weight_map\":{\"a\":\"m.safetensors\"}}"},
    {DW_CORRUPT, "strict JSON", "{"},
    {DW_CORRUPT, "JSON", "{\"weight_map\":{},\"weight_map\":{}}"},
    {DW_CORRUPT, "not a JSON object", "[]"},
    {DW_CORRUPT, "no weight_map", "{\"weight_map\":[]}"},
    {DW_CORRUPT, "no tensors", "{\"weight_map\":{}}"},
    {DW_CORRUPT, "not a string", "{\"weight_map\":{\"a\":3}}"},
    {DW_CORRUPT, "plain name", "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}"},
    {DW_CORRUPT, "plain name", "{\"weight_map\":{\"a\":\"x/y.safetensors\"}}"},
    {DW_CORRUPT, "says that it is 000008",
     "{\"metadata\":{\"version\":\"000008\"},\"weight_map\":{\"a\":\"m.safetensors\"}}"},
    {DW_CORRUPT, "no delta_encoding",
     "{\"metadata\":{\"base_version\":\"000006\"},\"weight_map\":{}}"},
    {DW_CORRUPT, "must name",
     "{\"metadata\":{\"delta_encoding\":\"xor\"},\"weight_map\":{}}"},
    {DW_CORRUPT, "must name",
     "{\"metadata\":{\"delta_encoding\":\"xor\",\"base_version\":\"-1\"},"
     "\"weight_map\":{}}"},
    {DW_CORRUPT, "checksum_format is no text",
     "{\"metadata\":{\"delta_encoding\":\"xor\",\"base_version\":\"000006\","
     "\"compression_format\":\"zstd\",\"checksum_format\":3},\"weight_map\":{}}"},
    {DW_CORRUPT, "does not come before it",
     "{\"metadata\":{\"delta_encoding\":\"xor\",\"base_version\":\"000007\","
     "\"compression_format\":\"zstd\"},\"weight_map\":{}}"},
};

TEST(test_hostile_records)
{
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        dw_error err = {0};
        dw_foreign_facts facts;
        dw_store *store = kit_mem_store();
        peer_put_text(store, "weight_v000007/model.safetensors.index.json",
                      records[i].record);
        peer_put_text(store, "weight_v000007/m.safetensors", ""); /* for the mark */
        dw_foreign *f = open_bucket(store);
        dw_status status = dw_foreign_look(f, 7, &facts, &err);
        if (status != records[i].wanted || !strstr(err.text, records[i].text))
            fail_msg("%s: %s, %s", records[i].record, dw_status_name(status), err.text);
        dw_foreign_close(f);
        dw_store_close(store);
    }
}

TEST(test_hostile_trl)
{
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
        dw_foreign_facts facts;
        dw_store *store = kit_mem_store();
        dw_writer file = {0};
        const bool cut = i == sizeof cases / sizeof *cases;
        dw_write_u64(&file, cut ? UINT64_MAX : strlen(cases[i].header));
        dw_write_text(&file, cut ? "{}" : cases[i].header);
        peer_put(store, cases[cut ? 0 : i].key, file.bytes, file.n_bytes);
        dw_writer_release(&file);
        dw_foreign *f = open_bucket(store);
        assert_fails(dw_foreign_look(f, 7, &facts, &err), DW_CORRUPT, &err);
        assert_non_null(strstr(err.text, cut ? "cut off" : cases[i].text));
        dw_foreign_close(f);
        dw_store_close(store);
    }
}

/* ---- writing ---- */

typedef struct way {
    const char *format;
    dw_foreign_options options;
} way;

static const way ways[] = {
    {"trl", {.n_threads = 2, .trl_layout = 1, .trl_codec = DW_CODEC_RAW}},
    {"trl", {.trl_layout = 3, .trl_codec = DW_CODEC_RAW, .whole_every = 4}},
    {"trl", {.n_threads = 2, .trl_layout = 3, .trl_codec = DW_CODEC_GAP}},
    {"slime", {.n_threads = 2}},
    {"slime", {.overwrite = true, .max_shard_bytes = 20, .whole_every = 3}},
};
#define N_WAYS (sizeof ways / sizeof *ways)

static dw_foreign *open_way(dw_store *store, const way *w)
{
    dw_error err = {0};
    dw_foreign *f;
    assert_ok(dw_foreign_open(&f, store, dw_format_named(w->format), &w->options, &err),
              &err);
    return f;
}

static dw_foreign_report write_version(dw_foreign *f, uint64_t version, unsigned of)
{
    dw_error err = {0};
    dw_foreign_report report;
    assert_ok(
        dw_foreign_write(f, version, peer_model[of], PEER_TENSORS, NULL, &report, &err),
        &err);
    assert_int_equal(dw_foreign_at(f), version);
    return report;
}

/* Each version as it was written, and the last one from nothing. */
static void check_bucket(dw_store *store, uint64_t first, uint64_t last)
{
    size_t n;
    dw_foreign *f = open_foreign(store, NULL);
    assert_int_equal(list(f, &n), last);
    assert_int_equal(n, last - first + 1);
    go(f, last);
    for (uint64_t v = first; v <= last; v++)
        go(f, v);
    dw_foreign_close(f);
}

TEST(test_every_way)
{
    for (size_t i = 0; i < N_WAYS; i++) {
        const unsigned every = ways[i].options.whole_every;
        dw_store *store = kit_mem_store();
        dw_foreign *f = open_way(store, &ways[i]);
        for (unsigned v = 1; v <= PEER_VERSIONS; v++) {
            const dw_foreign_report report = write_version(f, v, v);
            assert_int_equal(report.is_whole, v == 1 || (every && v % every == 0));
            assert_int_equal(report.n_changed > 0, v > 1);
            assert_true(report.n_objects > 0 && report.n_bytes > 0);
        }
        dw_foreign_close(f);
        check_bucket(store, 1, PEER_VERSIONS);
        if (ways[i].options.max_shard_bytes)
            assert_true(kit_find(store, "", ".safetensors", NULL) > 2 * PEER_VERSIONS);
        dw_store_close(store);
    }
}

/* Nothing changes; numbers are skipped; TRL's own rule for anchors. */
TEST(test_numbers)
{
    for (size_t i = 0; i < N_WAYS; i++) {
        way w = ways[i];
        w.options.whole_every = 0;
        dw_error err = {0};
        dw_foreign_report report;
        dw_store *store = kit_mem_store();
        dw_foreign *f = open_way(store, &w);
        write_version(f, 7, 1);
        report = write_version(f, 8, 1);
        assert_true(report.n_changed == 0 && !report.is_whole);
        assert_true(write_version(f, 11, 2).is_whole);
        assert_int_equal(dw_foreign_write(f, UINT64_MAX - 2, peer_model[3], PEER_TENSORS,
                                          NULL, &report, &err),
                         DW_INVALID);
        for (uint64_t v = 12; v <= 21; v++) {
            const unsigned due = w.options.trl_layout == 1 ? 10 : 20;
            report = write_version(f, v, 3);
            assert_int_equal(report.is_whole, w.options.trl_layout && v % due == 0);
        }
        dw_foreign_close(f);
        dw_store_close(store);
    }
}

TEST(test_refused_targets)
{
    dw_error err = {0};
    dw_foreign *f;
    dw_foreign_report report;
    dw_tensor other[PEER_TENSORS];
    memcpy(other, peer_model[1], sizeof other);
    other[0].dtype = DW_F16;
    for (size_t i = 2; i < 4; i++) { /* trl, slime */
        dw_store *store = kit_mem_store();
        f = open_way(store, &ways[i]);
        if (i == 2)
            assert_fails(dw_foreign_write(f, 1, other, PEER_TENSORS, NULL, &report, &err),
                         DW_UNSUPPORTED, &err);
        assert_int_equal(kit_find(store, "", "", NULL), 0);
        write_version(f, 1, 1);
        const size_t n_objects = kit_find(store, "", "", NULL);
        assert_fails(dw_foreign_write(f, 2, other, PEER_TENSORS, NULL, &report, &err),
                     DW_MISMATCH, &err);
        assert_fails(dw_foreign_write(f, 2, peer_model[2], 2, NULL, &report, &err),
                     DW_MISMATCH, &err);
        assert_fails(dw_foreign_compare(f, peer_model[2], PEER_TENSORS, &err),
                     DW_MISMATCH, &err);
        assert_ok(dw_foreign_compare(f, peer_model[1], PEER_TENSORS, &err), &err);
        assert_int_equal(kit_find(store, "", "", NULL), n_objects);
        dw_foreign_close(f);
        assert_fails(dw_foreign_open(&f, store, dw_format_named(ways[5 - i].format),
                                     &ways[5 - i].options, &err),
                     DW_CONFLICT, &err);
        assert_null(f);
        dw_store_close(store);
    }
    dw_store *store = kit_mem_store();
    dw_publisher *ours;
    assert_ok(dw_publisher_open(&ours, store, peer_model[0], PEER_TENSORS, NULL, &err),
              &err);
    dw_publisher_close(ours);
    assert_fails(
        dw_foreign_open(&f, store, dw_format_named("trl"), &ways[2].options, &err),
        DW_CONFLICT, &err);
    dw_store_close(store);
}

/* The second writer gets an error, and the versions of the first stay. */
TEST(test_two_writers)
{
    for (size_t i = 0; i < N_WAYS; i++) {
        dw_error err = {0};
        dw_foreign_report report;
        way w = ways[i];
        w.options.whole_every = 0;
        dw_store *store = kit_mem_store();
        dw_foreign *a = open_way(store, &w);
        write_version(a, 1, 1);
        dw_foreign *b = open_bucket(store);
        b->options = w.options;
        go(b, 1);
        write_version(a, 2, 2);
        dw_status status =
            dw_foreign_write(b, 2, peer_model[5], PEER_TENSORS, NULL, &report, &err);
        assert_told(status, &err);
        assert_true(status == DW_CONFLICT || status == DW_UNAVAILABLE);
        dw_foreign_close(b);
        dw_foreign_close(a);
        check_bucket(store, 1, 2);
        dw_store_close(store);
    }
}

/* Objects that a killed process left are not taken for a part of the version. */
TEST(test_leftovers)
{
    dw_store *store = kit_mem_store();
    dw_foreign *f = open_way(store, &ways[3]);
    write_version(f, 1, 1);
    peer_put_text(store, "weight_v000002/model-00000-of-00001.safetensors", "rubbish");
    peer_put_text(store, "weight_v000002/model-00007-of-00009.safetensors", "rubbish");
    write_version(f, 2, 2);
    dw_foreign_close(f);
    check_bucket(store, 1, 2);
    assert_int_equal(kit_find(store, "", "-00007-of-00009.safetensors", NULL), 0);
    dw_store_close(store);
}

RUN_TESTS(make_kit, NULL)
