/* Other systems' versions in a store that fails at each of its calls, and with each
 * allocation failing: the weights are exactly one version, and a retry succeeds.
 */
/* wrap: fsync msync */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "store/fault_store.h"
#include "fault/peer_process.h"
#include "fault/wrong_calls.h"
#include "unit/failing_allocator.h"

WRAP_SYNCS /* the power stays on */

    /* ---- a store that fails ---- */

    static void
    fail_once(peer_bucket kind, dw_store *inner, kit_faults *faults)
{
    static const uint64_t way[] = {2, 3, DW_NEWEST};
    dw_store *store = kit_fault_store(inner, faults);
    dw_error err = {0};
    run_command("rm -rf '%s/into'");
    uint64_t version;
    dw_status status = go(store, way, 3, &version, &err);
    assert_told(status, &err);
    if (faults->kind == STORE_FAULT_DELAY)
        assert_int_equal(status, DW_OK);
    faults->on = false;
    assert_ok(go(store, way, 3, &version, &err), &err);
    assert_true(version == DW_NO_VERSION || version == 0 ||
                peer_has_version(kind, version));
    dw_store_close(store);
}

static void test_store_faults(void **state)
{
    (void)state;
    static const store_fault kinds[] = {STORE_FAULT_FAIL, STORE_FAULT_DENY,
                                        STORE_FAULT_SHORT, STORE_FAULT_STALE,
                                        STORE_FAULT_CORRUPT};
    static const peer_bucket buckets[] = {BUCKET_TRL, BUCKET_SLIME_DELTAS};
    for (size_t b = 0; b < 2; b++) {
        dw_store *store = peer_make_bucket(buckets[b]);
        kit_faults none = {.on = false};
        fail_once(buckets[b], store, &none);
        const uint64_t n_calls = none.n_seen;
        assert_true(n_calls > 20);
        for (uint64_t first = 0; first < n_calls; first += b == 1 ? 1 : 2) {
            const store_fault kind = kinds[(first + b) % 5];
            /* a flipped bit in TRL's weights cannot be distinguished from another weight
             */
            if (kind == STORE_FAULT_CORRUPT && buckets[b] == BUCKET_TRL)
                continue;
            kit_faults faults = {.on = true, .kind = kind, .first = first, .n = 1};
            fail_once(buckets[b], store, &faults);
        }
        dw_store_close(store);
    }
}

/* ---- allocations ---- */

static dw_store *swept;

static dw_status sweep(dw_error *err)
{
    static const uint64_t newest[] = {DW_NEWEST};
    run_command("rm -rf '%s/into'");
    return go(swept, newest, 1, NULL, err);
}

static void test_allocations(void **state)
{
    (void)state;
    static const peer_bucket kinds[] = {BUCKET_TRL, BUCKET_SLIME};
    for (size_t k = 0; k < 2; k++) {
        swept = peer_make_bucket(kinds[k]);
        for (char digit = '3'; digit <= '6'; digit++) { /* these are enough */
            char prefix[2][32];
            snprintf(prefix[0], 32, "deltas/step_00000%c", digit);
            snprintf(prefix[1], 32, "weight_v00000%c", digit);
            for (size_t i = 0; i < 2; i++)
                kit_remove_all(swept, prefix[i]);
        }
        fail_every_allocation(sweep, NULL);
        dw_store_close(swept);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_faults),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, make_world, temp_dir_remove);
}
