/* A bit flips in a follower's weights, in memory or in mapped files: it is found within
 * `sweep_every` versions. In memory, no version is reported any more until the caller
 * goes on; a directory is mended at once. Either way the weights are fetched again. */
#include "follow/follower.h"
#include "weights/target_inside.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"

#define EVERY 4

/* Follows version by version from FIRST on until something is wrong. */
static dw_status follow_on(fixture *x, dw_follower *f, uint64_t first)
{
    dw_status status = DW_OK;
    for (uint64_t v = first; status == DW_OK && v < first + EVERY; v++)
        status = dw_follower_sync(f, v, NULL, NULL, &x->err);
    return status;
}

static void assert_weights(fixture *x, dw_follower *f, uint64_t version)
{
    size_t n;
    const dw_tensor *tensors = dw_follower_tensors(f, &n);
    assert_int_equal(dw_follower_version(f), version);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < x->at[version].n; k++)
            if (strcmp(tensors[i].name, x->at[version].tensors[k].name) == 0)
                assert_memory_equal(tensors[i].data, x->at[version].tensors[k].data,
                                    tensors[i].n_bytes);
}

static void sweep_in(const char *into, bool reopen)
{
    static unsigned n;
    char url[64];
    snprintf(url, sizeof url, "mem:live-sweep-%u", n++);
    fixture x;
    fixture_make(&x, url, 12, 0, 0);
    model memory = fixture_model();
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = into;
    options.tensors = into ? NULL : memory.tensors;
    options.n_tensors = memory.n;
    options.sweep_every = EVERY;
    dw_follower *f;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 3, NULL, NULL, &x.err));
    const dw_target *now = f->weights;
    for (size_t t = 0; t < now->n_tensors; t++)
        if (strcmp(now->tensors[t].name, "count") == 0)
            ((uint8_t *)now->tensors[t].data)[7] ^= 1;
    const dw_status status = follow_on(&x, f, 4);
    dw_follow_report totals;
    dw_follower_totals(f, &totals);
    if (into) {
        assert_fine(&x, status);
        assert_int_equal(totals.n_healed, 1);
        assert_weights(&x, f, 3 + EVERY);
    } else {
        assert_int_equal(status, DW_CORRUPT);
        assert_non_null(strstr(x.err.text, "count"));
        assert_int_equal(dw_follower_version(f), DW_NO_VERSION);
    }
    if (reopen) {
        dw_follower_close(f);
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    }
    assert_fine(&x, dw_follower_sync(f, 9, NULL, NULL, &x.err));
    assert_weights(&x, f, 9);
    assert_fine(&x, dw_follower_sync(f, 12, NULL, NULL, &x.err));
    assert_weights(&x, f, 12);
    dw_follower_close(f);
    model_free(&memory);
    fixture_close(&x);
}

TEST(test_memory)
{
    sweep_in(NULL, false);
}

TEST(test_directory)
{
    sweep_in(temp_path("one"), false);
    sweep_in(temp_path("again"), true);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
