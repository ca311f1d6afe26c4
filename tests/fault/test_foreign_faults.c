/* Other systems' versions in a store that fails at each of its calls, and with each
 * allocation failing. The model is exactly one version or none; versions are written
 * once, and the next process goes on after the newest one.
 */
#include "unit/suite.h"

#include "store/fault_store.h"
#include "unit/failing_allocator.h"
#include "unit/format_kit.h"

static const dw_foreign_options reading = {.n_threads = 1};
static const struct {
    const char *format;
    dw_foreign_options options;
} writing[] = {
    {"trl", {.n_threads = 1, .trl_layout = 3, .trl_codec = DW_CODEC_GAP}},
    {"slime", {.n_threads = 1, .overwrite = true, .max_shard_bytes = 20}},
};

static int make_world(void **state)
{
    (void)state;
    peer_kit_make();
    return 0;
}

/* Reads all versions, from the base. */
static dw_status import(dw_store *store, dw_error *err)
{
    dw_foreign *f = NULL;
    const dw_format *format;
    const dw_foreign_version *versions;
    size_t n = 0;
    dw_status status = dw_format_detect(&format, store, err);
    if (status == DW_OK)
        status = dw_foreign_open(&f, store, format, &reading, err);
    if (status == DW_OK)
        status = dw_foreign_fill(f, peer_model[0], PEER_TENSORS, 0, NULL, NULL, err);
    if (status == DW_OK)
        status = dw_foreign_list(f, &versions, &n, err);
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        status = dw_foreign_go(f, versions[i].version, NULL, err);
        peer_check_model(f);
    }
    dw_foreign_close(f);
    return status;
}

/* One process: continues after the newest version, up to LAST. */
static dw_status export(dw_store *store, size_t way, uint64_t last, dw_error *err)
{
    dw_foreign *f = NULL;
    const dw_foreign_version *versions;
    size_t n = 0;
    dw_status status = dw_foreign_open(&f, store, dw_format_named(writing[way].format),
                                       &writing[way].options, err);
    if (status == DW_OK)
        status = dw_foreign_list(f, &versions, &n, err);
    const uint64_t newest = n > 0 ? versions[n - 1].version : 0;
    if (status == DW_OK && n > 0)
        status = dw_foreign_go(f, newest, NULL, err);
    if (status == DW_OK && n > 0)
        status = dw_foreign_compare(f, peer_model[newest], PEER_TENSORS, err);
    for (uint64_t v = newest + 1; status == DW_OK && v <= last; v++) {
        dw_foreign_report report;
        status = dw_foreign_write(f, v, peer_model[v], PEER_TENSORS, NULL, &report, err);
        if (status == DW_OK)
            peer_check_model(f);
    }
    dw_foreign_close(f);
    return status;
}

/* ---- a store that fails ---- */

static uint64_t import_once(dw_store *inner, kit_faults *faults)
{
    dw_store *store = kit_fault_store(inner, faults);
    dw_error err = {0};
    assert_told(import(store, &err), &err);
    faults->on = false;
    assert_ok(import(store, &err), &err);
    dw_store_close(store);
    return faults->n_seen;
}

TEST(test_import)
{
    static const store_fault kinds[] = {STORE_FAULT_FAIL, STORE_FAULT_DENY,
                                        STORE_FAULT_SHORT, STORE_FAULT_CORRUPT};
    static const peer_bucket buckets[] = {BUCKET_TRL, BUCKET_SLIME_DELTAS};
    for (size_t b = 0; b < 2; b++) {
        dw_store *store = peer_make_bucket(buckets[b]);
        kit_faults none = {.on = false};
        const uint64_t n_calls = import_once(store, &none) / 2;
        assert_true(n_calls > 20);
        for (uint64_t first = 0; first < n_calls; first++) {
            kit_faults faults = {
                .on = true, .kind = kinds[first % 4], .first = first, .n = 1};
            /* a flipped bit in TRL's weights cannot be distinguished from another weight
             */
            if (faults.kind == STORE_FAULT_CORRUPT && buckets[b] == BUCKET_TRL)
                faults.kind = STORE_FAULT_FAIL;
            import_once(store, &faults);
        }
        dw_store_close(store);
    }
}

/* Calls from FIRST on fail, SPAN of them. Each failure ends the process; the next one
 * goes on. Returns the number of calls without a fault. */
static uint64_t export_stubbornly(size_t way, store_fault kind, uint64_t first,
                                  uint64_t span)
{
    dw_store *inner = kit_mem_store();
    kit_faults faults = {.on = true, .kind = kind, .first = first, .n = span};
    dw_store *store = kit_fault_store(inner, &faults);
    dw_status status = DW_UNAVAILABLE;
    for (unsigned n_tries = 0; status != DW_OK && n_tries < 12; n_tries++) {
        dw_error err = {0};
        status = export(store, way, 4, &err);
        assert_told(status, &err);
    }
    assert_int_equal(status, DW_OK);
    dw_error err = {0};
    assert_ok(export(inner, way, PEER_VERSIONS, &err), &err);
    assert_ok(import(inner, &err), &err);
    const uint64_t n_calls = faults.n_seen;
    dw_store_close(store);
    dw_store_close(inner);
    return n_calls;
}

TEST(test_export)
{
    static const store_fault kinds[] = {STORE_FAULT_FAIL, STORE_FAULT_LOST,
                                        STORE_FAULT_DENY, STORE_FAULT_SHORT};
    for (size_t way = 0; way < 2; way++) {
        const uint64_t n_calls = export_stubbornly(way, STORE_FAULT_NONE, 0, 0);
        assert_true(n_calls > 10);
        for (uint64_t first = 0; first < n_calls; first++)
            for (size_t k = 0; k < 4; k++)
                export_stubbornly(way, kinds[k], first, 1 + first % 3);
    }
}

/* A version that is damaged when it is read back is not reported as written. */
TEST(test_damaged_writes)
{
    for (size_t way = 0; way < 2; way++) {
        dw_store *inner = kit_mem_store();
        dw_error err = {0};
        assert_ok(export(inner, way, 2, &err), &err);
        kit_faults faults = {
            .on = true, .kind = STORE_FAULT_CORRUPT, .operation = "put", .n = 1};
        dw_store *store = kit_fault_store(inner, &faults);
        assert_fails(export(store, way, 3, &err), DW_CORRUPT, &err);
        assert_non_null(strstr(err.text, "version 3"));
        assert_int_not_equal(export(store, way, 4, &err), DW_OK);
        dw_store_close(store);
        dw_store_close(inner);
    }
}

/* ---- allocations ---- */

static dw_store *swept;

static dw_status sweep_import(dw_error *err)
{
    return import(swept, err);
}

TEST(test_allocations)
{
    static const peer_bucket kinds[] = {BUCKET_TRL, BUCKET_SLIME};
    for (size_t k = 0; k < 2; k++) {
        swept = peer_make_bucket(kinds[k]);
        fail_every_allocation(sweep_import, NULL);
        dw_store_close(swept);
    }
}

RUN_TESTS(make_world, NULL)
