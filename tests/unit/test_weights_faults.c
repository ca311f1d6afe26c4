/* Weights that a follower keeps, after faults: a patch that was left without its weights,
 * a store that gives another record, a file that shrinks, no memory at the wrong time. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit/suite.h"

#include "follow/follower.h"
#include "unit/failing_allocator.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"
#include "weights/target_inside.h"

static dw_follow_options follow_into(const char *into)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = into;
    options.n_threads = 1;
    return options;
}

static void assert_tensors(const fixture *x, const dw_tensor *tensors, size_t n,
                           uint64_t version)
{
    const model *m = &x->at[version];
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < m->n; k++)
            if (strcmp(tensors[i].name, m->tensors[k].name) == 0)
                assert_memory_equal(tensors[i].data, m->tensors[k].data,
                                    tensors[i].n_bytes);
}

static void assert_weights(const fixture *x, const dw_follower *f, uint64_t version)
{
    size_t n;
    const dw_tensor *tensors = dw_follower_tensors(f, &n);
    assert_int_equal(dw_follower_version(f), version);
    assert_tensors(x, tensors, n, version);
}

/* ---- a patch without its weights ---- */

static void stage_and_prepare(fixture *x, dw_follower *f, uint64_t version)
{
    uint64_t staged;
    assert_fine(x, dw_follower_stage(f, version, &staged, NULL, &x->err));
    assert_int_equal(staged, version);
    assert_fine(x, dw_follower_prepare(f, &x->err));
}

/* A run is interrupted after it prepared version 4, and somebody removes the weights. The
 * patch must not be applied to the weights that take their place. */
static void fill_again(fixture *x)
{
    char into[128], weights[160];
    snprintf(into, sizeof into, "%s/alone", temp_dir);
    snprintf(weights, sizeof weights, "%s/model.safetensors", into);
    dw_follow_options options = follow_into(into);
    dw_follower *f;
    assert_fine(x, dw_follower_open(&f, x->store, &options, &x->err));
    assert_fine(x, dw_follower_sync(f, 3, NULL, NULL, &x->err));
    stage_and_prepare(x, f, 4);
    dw_follower_close(f);
    assert_int_equal(unlink(weights), 0);
    assert_fine(x, dw_follower_open(&f, x->store, &options, &x->err));
    assert_fine(x, dw_follower_sync(f, 3, NULL, NULL, &x->err));
    assert_weights(x, f, 3);
    assert_fine(x, dw_follower_sync(f, 5, NULL, NULL, &x->err));
    assert_weights(x, f, 5);
    dw_follower_close(f);
}

TEST(test_patch_without_weights)
{
    fixture x;
    fixture_make(&x, "mem:patch-without-weights", 5, 3, 0);
    fill_again(&x);
    fixture_close(&x);
}

/* ---- the highest version ---- */

/* The commit of the highest version is kept only if it is the one that was used. */
TEST(test_highest_of_another)
{
    fixture x;
    fixture_make(&x, "mem:highest", 5, 3, 0);
    char key[DW_KEY_TEXT], into[128], kept[160];
    snprintf(into, sizeof into, "%s/highest", temp_dir);
    snprintf(kept, sizeof kept, "%s/.deltawire/highest.json", into);
    const dw_follow_options options = follow_into(into);
    dw_follower *f;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 5, NULL, NULL, &x.err));

    dw_writer right, other;
    dw_key_commit(key, 4);
    fixture_get(&x, key, &other);
    dw_key_commit(key, 5);
    fixture_get(&x, key, &right);
    fixture_put(&x, key, other.bytes, other.n_bytes); /* another commit */
    assert_int_equal(dw_follower_keep_highest(f, &x.err), DW_UNTRUSTED);
    assert_int_equal(access(kept, F_OK), -1);
    fixture_put(&x, key, right.bytes, right.n_bytes / 2); /* a torn one */
    assert_int_equal(dw_follower_keep_highest(f, &x.err), DW_CORRUPT);
    assert_int_equal(access(kept, F_OK), -1);
    fixture_put(&x, key, right.bytes, right.n_bytes);
    assert_fine(&x, dw_follower_keep_highest(f, &x.err));
    assert_int_equal(access(kept, F_OK), 0);
    dw_writer_release(&right);
    dw_writer_release(&other);
    dw_follower_close(f);
    fixture_close(&x);
}

/* ---- files ---- */

/* The status of a call is that of its error. */
TEST(test_shrunk_status)
{
    fixture x;
    fixture_make(&x, "mem:shrunk-status", 2, 0, 0);
    char into[128], weights[160];
    snprintf(into, sizeof into, "%s/shrunk", temp_dir);
    snprintf(weights, sizeof weights, "%s/model.safetensors", into);
    const dw_follow_options options = follow_into(into);
    dw_follower *f;
    uint64_t newest;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 1, NULL, NULL, &x.err));
    assert_int_equal(truncate(weights, 0), 0);
    assert_int_equal(dw_follower_poll(f, &newest, &x.err), DW_IO);
    assert_int_equal(x.err.code, DW_IO);
    dw_follower_close(f);
    fixture_close(&x);
}

/* ---- prepared ---- */

/* What is prepared cannot be dropped. */
TEST(test_discard_prepared)
{
    fixture x;
    fixture_make(&x, "mem:discard-prepared", 4, 0, 0);
    dw_follow_options options = follow_into(temp_path("prepared"));
    dw_follower *f;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 2, NULL, NULL, &x.err));
    assert_int_equal(dw_target_prepare(f->weights, &x.err), DW_INVALID);
    stage_and_prepare(&x, f, 3);
    assert_int_equal(dw_target_discard(f->weights, &x.err), DW_INVALID);
    assert_fine(&x, dw_follower_apply(f, &x.err));
    assert_int_equal(dw_target_discard(f->weights, &x.err), DW_INVALID);
    assert_fine(&x, dw_follower_finish(f, &x.err));
    assert_weights(&x, f, 3);
    dw_follower_close(f);
    fixture_close(&x);
}

static void damage(dw_target *r)
{
    for (size_t t = 0; t < r->n_tensors; t++)
        if (strcmp(r->tensors[t].name, "count") == 0)
            ((uint8_t *)r->tensors[t].data)[7] ^= 1;
}

/* A run is interrupted while it replaces damaged weights. The next one goes on. */
TEST(test_interrupted_repair)
{
    fixture x;
    fixture_make(&x, "mem:interrupted-repair", 4, 3, 0);
    dw_follow_options options = follow_into(temp_path("interrupted"));
    options.sweep_every = 0;
    dw_follower *f;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 3, NULL, NULL, &x.err));
    damage(f->weights);
    dw_target_distrust(f->weights);
    stage_and_prepare(&x, f, 3); /* from the anchor */
    dw_follower_close(f);        /* as a kill: what is prepared stays */
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 4, NULL, NULL, &x.err));
    assert_weights(&x, f, 4);
    dw_follower_close(f);
    fixture_close(&x);
}

/* ---- no memory ---- */

/* The weights are damaged, and allocation N of the sweep fails. However much the sweep
 * found out, the follower gets to the next version. Returns whether one failed. */
static bool sweep_without_memory(fixture *x, dw_follower *f, size_t n)
{
    assert_fine(x, dw_follower_sync(f, 3, NULL, NULL, &x->err));
    damage(f->weights);
    failing_allocator a;
    failing_allocator_install(&a, n);
    a.once = 1;
    const dw_status status = dw_target_sweep(f->weights, 1, NULL);
    dw_set_allocator(NULL);
    assert_true(status == DW_CORRUPT || status == DW_NO_MEMORY);
    if (status == DW_NO_MEMORY) /* the next one finds the damage */
        (void)dw_target_sweep(f->weights, 1, NULL);
    dw_status last = DW_CORRUPT;
    for (unsigned tries = 0; last == DW_CORRUPT && tries < 2; tries++)
        last = dw_follower_sync(f, 4, NULL, NULL, &x->err);
    assert_fine(x, last);
    assert_weights(x, f, 4);
    return a.has_failed;
}

TEST(test_sweep_without_memory)
{
    fixture x;
    fixture_make(&x, "mem:sweep-without-memory", 4, 3, 0);
    dw_follow_options options = follow_into(temp_path("swept"));
    options.sweep_every = 0;
    dw_follower *f;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    for (size_t n = 0; sweep_without_memory(&x, f, n);)
        n++;
    dw_follower_close(f);
    fixture_close(&x);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
