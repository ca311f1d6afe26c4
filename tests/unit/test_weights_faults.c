/* Weights that a follower keeps, after faults: a patch that was left without its weights,
 * a store that gives another record, a file that shrinks, no memory at the wrong time. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "follow/follower.h"
#include "unit/failing_allocator.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"
#include "weights/replica.h"

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
static void fill_again(fixture *x, const char *name, const char *weights_dir)
{
    char into[128], weights[160];
    snprintf(into, sizeof into, "%s/%s", temp_dir, name);
    snprintf(weights, sizeof weights, "%s/model.safetensors", into);
    dw_follow_options options = follow_into(into);
    options.weights_dir = weights_dir;
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

static void test_patch_without_weights(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:patch-without-weights", 5, 3, 0);
    fill_again(&x, "alone", NULL);
    assert_int_equal(mkdir(temp_path("memory"), 0777), 0);
    fill_again(&x, "kept", temp_path("memory"));
    fixture_close(&x);
}

/* ---- the highest version ---- */

/* The commit of the highest version is kept only if it is the one that was used. */
static void test_highest_of_another(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:highest", 5, 3, 0);
    char key[DW_KEY_TEXT], into[128], kept[160];
    snprintf(into, sizeof into, "%s/highest", temp_dir);
    snprintf(kept, sizeof kept, "%s/.deltawire-highest.json", into);
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
static void test_shrunk_status(void **state)
{
    (void)state;
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

/* ---- two copies ---- */

/* What is prepared cannot be dropped: the copy that is not read is at the new version. */
static void test_discard_prepared(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:discard-prepared", 4, 0, 0);
    dw_follow_options options = follow_into(temp_path("two"));
    options.n_copies = 2;
    dw_follower *f;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 2, NULL, NULL, &x.err));
    assert_int_equal(dw_weights_prepare(f->weights, false, &x.err), DW_INVALID);
    stage_and_prepare(&x, f, 3);
    assert_int_equal(dw_weights_discard(f->weights, &x.err), DW_INVALID);
    assert_fine(&x, dw_follower_apply(f, &x.err));
    assert_int_equal(dw_weights_discard(f->weights, &x.err), DW_INVALID);
    assert_fine(&x, dw_follower_finish(f, &x.err));
    assert_weights(&x, f, 3);
    const dw_replica *twin = f->weights->twin;
    assert_int_equal(twin->at.version, 3);
    assert_tensors(&x, twin->tensors, twin->n_tensors, 3);
    dw_follower_close(f);
    fixture_close(&x);
}

static void damage(dw_replica *r)
{
    for (size_t t = 0; r && t < r->n_tensors; t++)
        if (strcmp(r->tensors[t].name, "count") == 0)
            ((uint8_t *)r->tensors[t].data)[7] ^= 1;
}

/* The control block of INTO, with a reader that holds COPY. */
static dw_control *hold(const char *into, unsigned copy, int *fd)
{
    char path[160];
    bool taken;
    snprintf(path, sizeof path, "%s/" DW_CONTROL_NAME, into);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(*fd >= 0);
    dw_control *control =
        mmap(NULL, DW_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    assert_true(control != MAP_FAILED);
    assert_int_equal(dw_control_lock_bytes(*fd, DW_CONTROL_SLOT_OFFSET(0),
                                           sizeof(dw_control_slot), &taken, path, NULL),
                     DW_OK);
    assert_true(taken);
    __atomic_store_n(&control->slots[0].holds, copy + 1, __ATOMIC_SEQ_CST);
    return control;
}

/* A reader holds the copy that is being made the same again. Once it lets go, the next
 * stage goes on. */
static void test_align_held(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:align-held", 4, 3, 0);
    dw_follow_options options = follow_into(temp_path("held"));
    options.n_copies = 2;
    options.sweep_every = 0;
    options.reader_wait_ms = 1;
    dw_follower *f;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 2, NULL, NULL, &x.err));
    dw_weights *w = f->weights;
    damage(w->twin);
    dw_replica_distrust(w->twin);
    int fd;
    dw_control *control = hold(options.into, w->twin->copy, &fd);
    uint64_t staged;
    assert_int_equal(dw_follower_stage(f, 3, &staged, NULL, &x.err), DW_UNAVAILABLE);
    dw_control_drop(control, 0);
    stage_and_prepare(&x, f, 3);
    assert_fine(&x, dw_follower_apply(f, &x.err));
    assert_fine(&x, dw_follower_finish(f, &x.err));
    assert_weights(&x, f, 3);
    dw_follower_close(f);
    munmap(control, DW_CONTROL_BYTES);
    close(fd);
    fixture_close(&x);
}

/* A run is interrupted while it replaces damaged weights. The next one goes on. */
static void test_interrupted_repair(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:interrupted-repair", 4, 3, 0);
    for (unsigned n_copies = 1; n_copies <= 2; n_copies++) {
        dw_follow_options options = follow_into(temp_path(n_copies == 1 ? "i1" : "i2"));
        options.n_copies = n_copies;
        options.sweep_every = 0;
        dw_follower *f;
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        assert_fine(&x, dw_follower_sync(f, 3, NULL, NULL, &x.err));
        damage(f->weights->now);
        dw_replica_distrust(f->weights->now);
        stage_and_prepare(&x, f, 3); /* from the anchor */
        dw_follower_close(f);        /* as a kill: what is prepared stays */
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        assert_fine(&x, dw_follower_sync(f, 4, NULL, NULL, &x.err));
        assert_weights(&x, f, 4);
        dw_follower_close(f);
    }
    fixture_close(&x);
}

/* ---- no memory ---- */

/* All copies are damaged, and allocation N of the sweep fails. However much the sweep
 * found out, the follower gets to the next version. Returns whether one failed. */
static bool sweep_without_memory(fixture *x, dw_follower *f, size_t n)
{
    assert_fine(x, dw_follower_sync(f, 3, NULL, NULL, &x->err));
    damage(f->weights->now);
    damage(f->weights->twin);
    failing_allocator a;
    failing_allocator_install(&a, n);
    a.once = 1;
    const dw_status status = dw_weights_sweep(f->weights, 1, NULL);
    dw_set_allocator(NULL);
    assert_true(status == DW_CORRUPT || status == DW_NO_MEMORY);
    if (status == DW_NO_MEMORY) /* the next one finds the damage */
        (void)dw_weights_sweep(f->weights, 1, NULL);
    dw_status last = DW_CORRUPT;
    for (unsigned tries = 0; last == DW_CORRUPT && tries < 2; tries++)
        last = dw_follower_sync(f, 4, NULL, NULL, &x->err);
    assert_fine(x, last);
    assert_weights(x, f, 4);
    return a.has_failed;
}

static void test_sweep_without_memory(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:sweep-without-memory", 4, 3, 0);
    for (unsigned n_copies = 1; n_copies <= 2; n_copies++) {
        dw_follow_options options = follow_into(temp_path(n_copies == 1 ? "a" : "b"));
        options.n_copies = n_copies;
        options.sweep_every = 0;
        dw_follower *f;
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        for (size_t n = 0; sweep_without_memory(&x, f, n);)
            n++;
        dw_follower_close(f);
    }
    fixture_close(&x);
}

/* The sweep found one copy damaged. The other one is damaged too. */
static void test_both_copies_damaged(void **state)
{
    (void)state;
    fixture x;
    fixture_make(&x, "mem:both-damaged", 4, 3, 0);
    dw_follow_options options = follow_into(temp_path("both"));
    options.n_copies = 2;
    options.sweep_every = 0;
    dw_follower *f;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 3, NULL, NULL, &x.err));
    damage(f->weights->now);
    damage(f->weights->twin);
    dw_replica_distrust(f->weights->twin);
    assert_int_equal(dw_follower_sync(f, 4, NULL, NULL, &x.err), DW_CORRUPT);
    assert_non_null(strstr(x.err.text, "count"));
    assert_fine(&x, dw_follower_sync(f, 4, NULL, NULL, &x.err));
    assert_weights(&x, f, 4);
    dw_follower_close(f);
    fixture_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patch_without_weights),
        cmocka_unit_test(test_highest_of_another),
        cmocka_unit_test(test_shrunk_status),
        cmocka_unit_test(test_discard_prepared),
        cmocka_unit_test(test_align_held),
        cmocka_unit_test(test_interrupted_repair),
        cmocka_unit_test(test_sweep_without_memory),
        cmocka_unit_test(test_both_copies_damaged),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
