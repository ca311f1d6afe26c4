/* Tests of a follower whose tensors are in the memory of devices, for the fake driver and
 * for real ones. The publisher works on the CPU.
 */
#ifndef TESTS_CUDA_FOLLOW_SUITE_H
#define TESTS_CUDA_FOLLOW_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "follow/base.h"
#include "follow/follower.h"
#include "tensor/device.h"
#include "unit/random_parts.h"
#include "unit/stream_fixture.h"
#include "weights/target_inside.h"

static dw_device *devices[2]; /* the includer opens them; they may be one machine's */

/* ---- models on devices ---- */

/* A model, some of whose tensors are on devices. */
typedef struct placed {
    size_t n;
    dw_tensor *tensors;
    const model *shape; /* names and dims */
} placed;

/* Bit I of ON_DEVICE: tensor I, modulo 32, is on a device. They take turns. */
static inline placed place_model(const model *m, unsigned on_device)
{
    placed p = {m->n, calloc(m->n + 1, sizeof *p.tensors), m};
    dw_error err = {0};
    for (size_t i = 0; i < m->n; i++) {
        dw_tensor *t = &p.tensors[i];
        *t = m->tensors[i];
        t->device = on_device >> i % 32 & 1 ? devices[i % 2] : NULL;
        if (!t->device) {
            t->data = malloc(t->n_bytes + 1);
            memcpy(t->data, m->tensors[i].data, t->n_bytes);
            continue;
        }
        const dw_device_ops *ops = t->device->ops;
        assert_int_equal(ops->alloc(&t->data, t->device, t->n_bytes, "a test", &err),
                         DW_OK);
        assert_int_equal(
            ops->write(t->device, t->data, m->tensors[i].data, t->n_bytes, &err), DW_OK);
    }
    return p;
}

static inline void placed_free(placed *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->tensors[i].device)
            p->tensors[i].device->ops->free(p->tensors[i].device, p->tensors[i].data);
        else
            free(p->tensors[i].data);
    free(p->tensors);
}

static inline bool placed_is(const placed *p, const model *m)
{
    bool same = true;
    for (size_t i = 0; i < p->n; i++) {
        const dw_tensor *t = &p->tensors[i], *u = model_find(m, t->name);
        uint8_t *bytes = malloc(t->n_bytes + 1);
        dw_error err = {0};
        assert_int_equal(dw_place_copy((dw_place){NULL, bytes},
                                       (dw_place){t->device, t->data}, t->n_bytes, &err),
                         DW_OK);
        same &= memcmp(bytes, u->data, t->n_bytes) == 0;
        free(bytes);
    }
    return same;
}

/* Changes one byte of tensor T. */
static inline void placed_flip(placed *p, size_t t, uint64_t at)
{
    uint8_t byte;
    const dw_place place = {p->tensors[t].device, (uint8_t *)p->tensors[t].data + at};
    assert_int_equal(dw_place_copy((dw_place){NULL, &byte}, place, 1, NULL), DW_OK);
    byte ^= 0x10;
    assert_int_equal(dw_place_copy(place, (dw_place){NULL, &byte}, 1, NULL), DW_OK);
}

static inline dw_follow_options follow_into(const placed *p)
{
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = p->tensors;
    options.n_tensors = p->n;
    options.n_threads = 1;
    options.spool_dir = "/tmp";
    return options;
}

/* A stream in memory of its own. */
static inline void make_stream(fixture *x, unsigned n_versions, unsigned anchor_every)
{
    static unsigned n;
    char url[64];
    snprintf(url, sizeof url, "mem:cuda-follow-%u", n++);
    fixture_make(x, url, n_versions, anchor_every, 0);
}

/* ---- tests ---- */

#define ALL_ON 0xfu

/* Version by version, with all tensors on devices and with some. */
static void test_versions(void **state)
{
    (void)state;
    fixture x;
    make_stream(&x, 5, 0);
    static const unsigned places[] = {ALL_ON, 1, 2, 5, 0};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        placed p = place_model(&x.at[0], places[i]);
        const dw_follow_options options = follow_into(&p);
        dw_follower *f;
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        assert_int_equal(dw_follower_version(f), 0);
        for (uint64_t v = 1; v <= 5; v++) {
            uint64_t staged;
            dw_follow_report report;
            assert_fine(&x, dw_follower_stage(f, v, &staged, NULL, &x.err));
            assert_int_equal(staged, v);
            assert_true(placed_is(&p, &x.at[v - 1])); /* they serve meanwhile */
            assert_fine(&x, dw_follower_apply(f, &x.err));
            assert_true(placed_is(&p, &x.at[v]));
            assert_fine(&x, dw_follower_finish(f, &x.err));
            assert_int_equal(dw_follower_version(f), v);
            dw_follower_totals(f, &report);
            assert_true(report.n_changed > 0);
        }
        dw_follower_close(f);
        /* the next process finds out what they are */
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        assert_int_equal(dw_follower_version(f), 5);
        dw_follower_close(f);
        placed_free(&p);
    }
    fixture_close(&x);
}

/* Memory that is declared empty is filled from an anchor; weights that are no version are
 * replaced by one. */
static void test_anchors(void **state)
{
    (void)state;
    fixture x;
    make_stream(&x, 5, 3);
    for (unsigned empty = 0; empty < 2; empty++)
        for (unsigned on = 0; on < 2; on++) {
            model garbage = model_copy(&x.at[0], false);
            model_fill(&garbage);
            placed p = place_model(&garbage, on ? ALL_ON : 6);
            dw_follow_options options = follow_into(&p);
            options.tensors_empty = empty;
            dw_follower *f;
            uint64_t staged;
            assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
            assert_true(dw_follower_version(f) == DW_NO_VERSION);
            assert_fine(&x, dw_follower_stage(f, 4, &staged, NULL, &x.err));
            assert_int_equal(staged, 3);
            assert_true(placed_is(&p, empty ? &x.at[3] : &garbage));
            assert_fine(&x, dw_follower_apply(f, &x.err));
            assert_fine(&x, dw_follower_finish(f, &x.err));
            assert_int_equal(dw_follower_version(f), 3);
            assert_true(placed_is(&p, &x.at[3]));
            assert_fine(&x, dw_follower_sync(f, 5, NULL, NULL, &x.err));
            assert_true(placed_is(&p, &x.at[5]));
            /* and back, from version 0 */
            assert_fine(&x, dw_follower_sync(f, 1, NULL, NULL, &x.err));
            assert_true(placed_is(&p, &x.at[1]));
            dw_follower_close(f);
            placed_free(&p);
            model_free(&garbage);
        }
    fixture_close(&x);
}

/* Somebody changes a weight between stage and apply: nothing is stored, and the weights
 * are no version. The next sync starts from an anchor. */
static void test_mismatch(void **state)
{
    (void)state;
    fixture x;
    make_stream(&x, 3, 0);
    for (size_t t = 0; t < 3; t++) {
        placed p = place_model(&x.at[1], t == 2 ? 0x7 : ALL_ON);
        dw_follow_options options = follow_into(&p);
        options.at = 1;
        dw_follower *f;
        uint64_t staged;
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        assert_int_equal(dw_follower_version(f), 1);
        assert_fine(&x, dw_follower_stage(f, 2, &staged, NULL, &x.err));
        /* an element that the step replaces, by neither its old value nor its new one */
        const unsigned width = dw_dtype_element(p.tensors[t].dtype).width;
        const uint8_t *old = x.at[1].tensors[t].data, *new_ = x.at[2].tensors[t].data;
        model expected = model_copy(&x.at[1], false);
        for (uint64_t e = 0; e < p.tensors[t].n_bytes; e += width)
            if (memcmp(old + e, new_ + e, width) != 0) {
                placed_flip(&p, t, e);
                ((uint8_t *)expected.tensors[t].data)[e] ^= 0x10;
                if (memcmp((uint8_t *)expected.tensors[t].data + e, new_ + e, width) != 0)
                    break;
            }
        assert_int_equal(dw_follower_apply(f, &x.err), DW_CORRUPT);
        assert_int_equal(x.err.code, DW_CORRUPT);
        assert_non_null(strstr(x.err.text, p.tensors[t].name));
        assert_true(placed_is(&p, &expected));
        assert_true(dw_follower_version(f) == DW_NO_VERSION);
        assert_int_equal(dw_follower_apply(f, &x.err),
                         DW_INVALID); /* nothing is staged */
        assert_fine(&x, dw_follower_sync(f, 3, NULL, NULL, &x.err));
        assert_true(placed_is(&p, &x.at[3]));
        dw_follower_close(f);
        placed_free(&p);
        model_free(&expected);
    }
    fixture_close(&x);
}

/* A weight that no step touches is found by the sweep; one that makes a block of the next
 * step decode to something else is found when it is staged. */
static void test_sweep(void **state)
{
    (void)state;
    fixture x;
    make_stream(&x, 3, 0);
    placed p = place_model(&x.at[0], ALL_ON);
    dw_follow_options options = follow_into(&p);
    options.sweep_every = 1;
    dw_follower *f;
    uint64_t staged;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_stage(f, 1, &staged, NULL, &x.err));
    uint64_t at = 0;
    const uint8_t *old = x.at[0].tensors[2].data, *new_ = x.at[1].tensors[2].data;
    while (old[at] != new_[at])
        at++;
    placed_flip(&p, 2, at);
    assert_fine(&x, dw_follower_apply(f, &x.err));
    assert_int_equal(dw_follower_finish(f, &x.err), DW_CORRUPT);
    assert_true(dw_follower_version(f) == DW_NO_VERSION);
    assert_fine(&x, dw_follower_sync(f, 2, NULL, NULL, &x.err));
    assert_true(placed_is(&p, &x.at[2]));
    dw_follower_close(f);
    placed_free(&p);
    fixture_close(&x);
}

/* Damaged objects: the verdict is the CPU's, and the weights stay. */
static void test_damage(void **state)
{
    (void)state;
    fixture x;
    char key[DW_KEY_TEXT];
    dw_writer bytes = {0};
    make_stream(&x, 2, 0);
    fixture_object(&x, 2, key);
    assert_fine(&x, dw_store_get_all(x.store, key, 1 << 20, &bytes, &x.err));
    bytes.bytes[bytes.n_bytes - 40] ^= 1;
    fixture_put(&x, key, bytes.bytes, bytes.n_bytes);
    dw_status verdicts[2];
    for (unsigned on = 0; on < 2; on++) {
        placed p = place_model(&x.at[0], on ? ALL_ON : 0);
        const dw_follow_options options = follow_into(&p);
        dw_follower *f;
        assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
        verdicts[on] = dw_follower_sync(f, 2, NULL, NULL, &x.err);
        assert_true(verdicts[on] != DW_OK);
        assert_int_equal(dw_follower_version(f), 1);
        assert_true(placed_is(&p, &x.at[1]));
        dw_follower_close(f);
        placed_free(&p);
    }
    assert_int_equal(verdicts[0], verdicts[1]);
    dw_writer_release(&bytes);
    fixture_close(&x);
}

/* A version in several deltas, of slices that begin anywhere. */
static void test_parts(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 12; round++) {
        model base = model_random(false);
        model next = model_copy(&base, false);
        model_change(&next, round % 3 == 2 ? 950 : 40);
        parts list = parts_make(&base, &next, DW_CODEC_CLASS);
        for (size_t i = 0; i < CUT_PARTS; i++)
            if ((round + i) % 2)
                list.list[i].base_digests = list.base_digests[i];
        placed p = place_model(&base, round % 4 == 3 ? 0x55555555u : ~0u);
        dw_patch *patch;
        dw_error err = {0};
        dw_status status = dw_parts_stage_memory(&patch, p.tensors, p.n, list.list,
                                                 CUT_PARTS, 1, NULL, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(status, DW_OK);
        assert_true(placed_is(&p, &base));
        uint64_t n_changed = 0;
        for (size_t i = 0; i < CUT_PARTS; i++)
            n_changed += list.deltas[i]->info.n_changed;
        assert_int_equal(dw_patch_changed(patch), n_changed);
        for (unsigned again = 0; again < 2; again++) { /* it may be repeated */
            assert_int_equal(dw_patch_apply(patch, p.tensors, p.n, 1, &err), DW_OK);
            assert_true(placed_is(&p, &next));
        }
        /* only for the memory that was staged */
        placed other = place_model(&base, ~0u);
        if (patch->n_kept > 0 && patch->kept[0].n > 0)
            assert_int_equal(dw_patch_apply(patch, other.tensors, other.n, 1, &err),
                             DW_INVALID);
        dw_patch_free(patch);
        placed_free(&other);
        placed_free(&p);
        parts_free(&list);
        model_free(&base);
        model_free(&next);
    }
}

/* The functions of delta.h, and two tensors that share memory. */
static void test_deltas(void **state)
{
    (void)state;
    model base = fixture_model(), next = model_copy(&base, false);
    model_change(&next, 40);
    dw_delta *delta;
    dw_error err = {0};
    dw_digest state_before = 0, state_after = 0;
    assert_int_equal(
        dw_delta_diff(&delta, base.tensors, next.tensors, base.n, NULL, &err), DW_OK);
    placed p = place_model(&base, 5);
    dw_digest digests[4];
    assert_int_equal(
        dw_digest_tensors(digests, &state_before, p.tensors, p.n, 1, NULL, &err), DW_OK);
    assert_true(state_before == delta->info.base_state);
    uint8_t hashes[2][DW_SHA256_BYTES]; /* of a base */
    assert_int_equal(dw_base_hash(hashes[0], base.tensors, base.n, 1, &err), DW_OK);
    assert_int_equal(dw_base_hash(hashes[1], p.tensors, p.n, 1, &err), DW_OK);
    assert_memory_equal(hashes[0], hashes[1], DW_SHA256_BYTES);
    assert_int_equal(dw_delta_verify(delta, p.tensors, p.n, NULL, &err), DW_OK);
    assert_true(placed_is(&p, &base));
    assert_int_equal(dw_delta_apply(delta, p.tensors, p.n, NULL, &err), DW_OK);
    assert_true(placed_is(&p, &next));
    assert_int_equal(
        dw_digest_tensors(digests, &state_after, p.tensors, p.n, 1, NULL, &err), DW_OK);
    assert_true(state_after == delta->info.new_state);
    assert_int_equal(dw_delta_apply(delta, p.tensors, p.n, NULL, &err), DW_STALE);
    assert_true(placed_is(&p, &next));
    dw_delta_close(delta);
    placed_free(&p);
    model_free(&base);
    model_free(&next);

    const uint64_t dims[] = {3000};
    base = model_new(2);
    model_set(&base, 0, "embed", DW_BF16, 1, dims, 0);
    model_set(&base, 1, "head", DW_BF16, 1, dims, 0);
    model_fill(&base);
    memcpy(base.tensors[1].data, base.tensors[0].data, base.tensors[0].n_bytes);
    next = model_copy(&base, false);
    model_change(&next, 40);
    memcpy(next.tensors[1].data, next.tensors[0].data, next.tensors[0].n_bytes);
    assert_int_equal(
        dw_delta_diff(&delta, base.tensors, next.tensors, base.n, NULL, &err), DW_OK);
    p = place_model(&base, 1);
    free(p.tensors[1].data);
    p.tensors[1].data = p.tensors[0].data;
    p.tensors[1].device = p.tensors[0].device;
    assert_int_equal(dw_delta_apply(delta, p.tensors, p.n, NULL, &err), DW_OK);
    assert_true(placed_is(&p, &next));
    p.tensors[1].device = NULL;
    p.tensors[1].data = NULL;
    placed_free(&p);
    dw_delta_close(delta);
    model_free(&base);
    model_free(&next);
}

/* What a device cannot do is refused by name. */
static void test_refused(void **state)
{
    (void)state;
    fixture x;
    make_stream(&x, 1, 0);
    model wide = model_new(4);
    for (size_t i = 0; i < 4; i++)
        model_set(&wide, i, x.live.tensors[i].name,
                  i == 0 ? DW_F32 : x.live.tensors[i].dtype, x.live.tensors[i].n_dims,
                  x.live.tensors[i].dims, 0);
    model_fill(&wide);
    placed p = place_model(&wide, ALL_ON);
    dw_follow_options options = follow_into(&p);
    options.widen = true;
    options.tensors_empty = true;
    dw_follower *f;
    assert_int_equal(dw_follower_open(&f, x.store, &options, &x.err), DW_UNSUPPORTED);
    assert_non_null(strstr(x.err.text, "layer.weight"));
    placed_free(&p);
    /* tensors that are not widened may be on devices */
    p = place_model(&wide, ALL_ON & ~1u);
    options.tensors = p.tensors;
    assert_fine(&x, dw_follower_open(&f, x.store, &options, &x.err));
    assert_fine(&x, dw_follower_sync(f, 1, NULL, NULL, &x.err));
    assert_int_equal(dw_follower_version(f), 1);
    dw_follower_close(f);
    placed_free(&p);
    model_free(&wide);
    fixture_close(&x);
}

#endif
