/* labels: threads */
#include "unit/suite.h"

#include "codec/class_block.h"
#include "random_model.h"
#include "temp_dir.h"
#include "inner.h"

/* The four ways to write a delta. */
static const struct {
    dw_codec codec;
    unsigned layout;
} forms[] = {
    {DW_CODEC_CLASS, 0}, {DW_CODEC_GAP, 3}, {DW_CODEC_RAW, 1}, {DW_CODEC_RAW, 3}};
enum { N_FORMS = 4 };

static dw_diff_options options_of(size_t form)
{
    dw_diff_options o;
    dw_diff_options_init(&o);
    o.codec = forms[form].codec;
    o.trl_layout = forms[form].layout;
    o.n_threads = 1;
    o.base_version = 41;
    o.new_version = 42;
    return o;
}

static void check_ok(dw_status status, const dw_error *err)
{
    if (status != DW_OK)
        print_error("%s: %s\n", err->where, err->text);
    assert_int_equal(status, DW_OK);
}

static dw_delta *diff(const model *base, const model *next,
                      const dw_diff_options *options)
{
    dw_delta *delta;
    dw_error err;
    check_ok(dw_delta_diff(&delta, base->tensors, next->tensors, base->n, options, &err),
             &err);
    return delta;
}

static byte_buffer encoded(const dw_delta *delta)
{
    byte_buffer b = {0};
    assert_int_equal(dw_delta_write(delta, buffer_take, &b, NULL), DW_OK);
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    assert_int_equal(info.n_bytes, b.n_bytes);
    return b;
}

static dw_digest state_of(const model *m)
{
    dw_digest *digests = calloc(m->n + 1, sizeof *digests), state;
    assert_int_equal(dw_digest_tensors(digests, &state, m->tensors, m->n, 1, NULL, NULL),
                     DW_OK);
    free(digests);
    return state;
}

/* Checks the info of the handle against the change it was made from. */
static void check_info(const dw_delta *delta, size_t form, const model *base,
                       const model *next)
{
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    assert_int_equal(info.codec, forms[form].codec);
    assert_int_equal(info.trl_layout, forms[form].layout);
    assert_true(info.has_digests);
    assert_int_equal(info.base_version, 41);
    assert_int_equal(info.new_version, 42);
    assert_true(info.base_state == state_of(base));
    assert_true(info.new_state == state_of(next));
    assert_int_equal(info.n_model_tensors, base->n);
    uint64_t n_elems = 0, n_changed = 0;
    size_t n_tensors = 0;
    for (size_t i = 0; i < base->n; i++) {
        const dw_tensor *t = &base->tensors[i], *u = model_find(next, t->name);
        const unsigned width = dw_dtype_element(t->dtype).width;
        uint64_t n = 0;
        for (uint64_t e = 0; e < dw_tensor_units(t); e++)
            n += dw_element_load(t->data, e, width) != dw_element_load(u->data, e, width);
        n_elems += dw_tensor_units(t);
        n_changed += n;
        n_tensors += n > 0;
        for (size_t k = 0; n > 0 && k < info.n_tensors; k++) {
            dw_delta_tensor_info d;
            dw_delta_tensor(delta, k, &d);
            if (strcmp(d.name, t->name) != 0)
                continue;
            assert_int_equal(d.n_changed, n);
            assert_int_equal(d.dtype, t->dtype);
            assert_int_equal(d.n_dims, t->n_dims);
            assert_true(d.base_digest == dw_digest_bytes(t->data, t->n_bytes));
            assert_true(d.new_digest == dw_digest_bytes(u->data, u->n_bytes));
            n = 0; /* found */
        }
        assert_int_equal(n, 0);
    }
    assert_int_equal(info.n_model_elems, n_elems);
    assert_int_equal(info.n_changed, n_changed);
    assert_int_equal(info.n_tensors, n_tensors);
}

/* Both ways to apply DELTA to copies of BASE give NEXT. */
static void check_apply(const dw_delta *delta, const model *base, const model *next,
                        unsigned n_threads)
{
    dw_error err;
    model a = model_copy(base, true), b = model_copy(base, true);
    dw_digest *digests = calloc(base->n + 1, sizeof *digests);
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.n_threads = n_threads;
    options.new_digests = digests;
    check_ok(dw_delta_apply(delta, a.tensors, a.n, &options, &err), &err);
    assert_true(model_equal(&a, next));
    for (size_t i = 0; i < a.n; i++)
        assert_true(digests[i] ==
                    dw_digest_bytes(a.tensors[i].data, a.tensors[i].n_bytes));

    dw_patch *patch;
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    options.new_digests = NULL;
    check_ok(dw_delta_stage(&patch, delta, b.tensors, b.n, &options, &err), &err);
    assert_true(model_equal(&b, base));
    assert_int_equal(dw_patch_changed(patch), info.n_changed);
    assert_true(dw_patch_bytes(patch) >= 5 * info.n_changed);
    for (int again = 0; again < 2; again++) { /* applying it twice gives the same */
        check_ok(dw_patch_apply(patch, b.tensors, b.n, n_threads, &err), &err);
        assert_true(model_equal(&b, next));
    }
    dw_patch_free(patch);
    free(digests);
    model_free(&a);
    model_free(&b);
}

TEST(test_round_trips)
{
    static const unsigned per_mille[] = {0, 1, 30, 500, 1000};
    for (size_t form = 0; form < N_FORMS; form++)
        for (size_t p = 0; p < 5; p++)
            for (unsigned n_threads = 1; n_threads <= 4; n_threads += 3) {
                model base = model_random(form > 0), next = model_copy(&base, true);
                model_change(&next, per_mille[p]);
                dw_diff_options options = options_of(form);
                options.n_threads = n_threads;
                dw_delta *delta = diff(&base, &next, &options), *again;
                check_info(delta, form, &base, &next);
                check_apply(delta, &base, &next, n_threads);

                /* through memory, and through a file */
                dw_error err;
                byte_buffer bytes = encoded(delta);
                check_ok(
                    dw_delta_open_bytes(&again, bytes.bytes, bytes.n_bytes, "b", &err),
                    &err);
                check_info(again, form, &base, &next);
                check_apply(again, &base, &next, n_threads);
                byte_buffer twice = encoded(again);
                assert_int_equal(twice.n_bytes, bytes.n_bytes);
                assert_memory_equal(twice.bytes, bytes.bytes, bytes.n_bytes);
                dw_delta_close(again);

                check_ok(dw_delta_save(delta, temp_path("d"), &err), &err);
                check_ok(dw_delta_open(&again, temp_path("d"), &err), &err);
                check_apply(again, &base, &next, n_threads);
                dw_delta_close(again);
                size_t n_file;
                uint8_t *file = get_file(temp_path("d"), &n_file);
                assert_int_equal(n_file, bytes.n_bytes);
                assert_memory_equal(file, bytes.bytes, n_file);

                free(file);
                free(twice.bytes);
                free(bytes.bytes);
                dw_delta_close(delta);
                model_free(&base);
                model_free(&next);
            }
}

/* One tensor over several blocks, changed in some of them and at every edge. */
TEST(test_several_blocks)
{
    static const dw_dtype dtypes[] = {DW_BF16, DW_F32};
    for (size_t k = 0; k < 2; k++) {
        const unsigned width = dw_dtype_element(dtypes[k]).width;
        const uint64_t n_block = dw_block_elems(width);
        const uint64_t dims[] = {3 * n_block + 12345};
        model base = model_new(1);
        model_set(&base, 0, "w", dtypes[k], 1, dims, 3);
        model_fill(&base);
        model next = model_copy(&base, false);
        const uint64_t at[] = {
            0, 7, n_block - 1, 2 * n_block, 3 * n_block - 1, 3 * n_block, dims[0] - 1};
        for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
            uint64_t x = dw_element_load(next.tensors[0].data, at[i], width);
            dw_element_store(next.tensors[0].data, at[i], width, x ^ 1);
        }
        for (size_t form = 0; form < N_FORMS; form++) {
            byte_buffer first = {0};
            for (unsigned n_threads = 1; n_threads <= 4; n_threads++) {
                dw_diff_options options = options_of(form);
                options.n_threads = n_threads;
                dw_delta *delta = diff(&base, &next, &options);
                dw_delta_tensor_info t;
                dw_delta_tensor(delta, 0, &t);
                assert_int_equal(t.n_changed, 7);
                assert_int_equal(t.n_blocks, form ? 0 : 4);
                assert_int_equal(t.n_class_blocks, form ? 0 : 3);
                if (n_threads == 1 || n_threads == 4)
                    check_apply(delta, &base, &next, n_threads);
                /* the same bytes in every case */
                byte_buffer bytes = encoded(delta);
                if (n_threads == 1)
                    first = bytes;
                assert_int_equal(bytes.n_bytes, first.n_bytes);
                assert_memory_equal(bytes.bytes, first.bytes, first.n_bytes);
                if (n_threads > 1)
                    free(bytes.bytes);
                dw_delta_close(delta);
            }
            free(first.bytes);
        }
        model_free(&base);
        model_free(&next);
    }
}

/* The comparison is exact: payloads of NaN and the sign of zero count. */
TEST(test_every_bit_counts)
{
    static uint16_t old[] = {0x0000, 0x7fc0, 0xff80, 0x0001, 0x3f80};
    static uint16_t new_[] = {0x8000, 0x7fc1, 0x7f80, 0x8001, 0x3f80};
    static const uint64_t dims[] = {5};
    for (size_t form = 0; form < N_FORMS; form++) {
        uint16_t weights[5];
        memcpy(weights, old, sizeof weights);
        const dw_tensor base = {"a", DW_BF16, 1, dims, 10, weights, 0, NULL};
        const dw_tensor next = {"a", DW_BF16, 1, dims, 10, new_, 0, NULL};
        dw_diff_options options = options_of(form);
        dw_delta *delta;
        assert_int_equal(dw_delta_diff(&delta, &base, &next, 1, &options, NULL), DW_OK);
        dw_delta_info info;
        dw_delta_get_info(delta, &info);
        assert_int_equal(info.n_changed, 4);
        assert_int_equal(dw_delta_apply(delta, &base, 1, NULL, NULL), DW_OK);
        assert_memory_equal(weights, new_, sizeof weights);
        dw_delta_close(delta);
    }
}

TEST(test_update_base_and_digests)
{
    for (size_t form = 0; form < N_FORMS; form++) {
        model base = model_random(form > 0), old = model_copy(&base, false);
        model next = model_copy(&base, true);
        model_change(&next, 50);
        dw_digest base_digests[64], new_digests[64];
        assert_true(base.n <= 64);
        for (size_t i = 0; i < base.n; i++)
            base_digests[i] =
                dw_digest_bytes(base.tensors[i].data, base.tensors[i].n_bytes);
        dw_diff_options options = options_of(form);
        dw_delta *plain = diff(&base, &next, &options);
        assert_true(model_equal(&base, &old)); /* not changed */

        options.base_digests = base_digests;
        options.new_digests = new_digests;
        options.update_base = true;
        options.n_threads = 3;
        dw_delta *delta = diff(&base, &next, &options);
        assert_true(model_equal(&base, &next));
        for (size_t i = 0; i < next.n; i++) /* in the order of NEXT */
            assert_true(new_digests[i] ==
                        dw_digest_bytes(next.tensors[i].data, next.tensors[i].n_bytes));
        byte_buffer a = encoded(plain), b = encoded(delta);
        assert_int_equal(a.n_bytes, b.n_bytes);
        assert_memory_equal(a.bytes, b.bytes, a.n_bytes);
        check_apply(delta, &old, &next, 2);
        free(a.bytes);
        free(b.bytes);
        dw_delta_close(plain);
        dw_delta_close(delta);
        model_free(&base);
        model_free(&old);
        model_free(&next);
    }
}

/* With the caller's digests the base is not read, and the result is the same. */
TEST(test_apply_with_digests)
{
    model base = model_random(false), next = model_copy(&base, false);
    model_change(&next, 20);
    dw_delta *delta = diff(&base, &next, NULL);
    dw_digest digests[64], after[64];
    for (size_t i = 0; i < base.n; i++)
        digests[i] = dw_digest_bytes(base.tensors[i].data, base.tensors[i].n_bytes);
    dw_apply_options options = {.struct_bytes = sizeof options,
                                .n_threads = 1,
                                .base_digests = digests,
                                .new_digests = after};
    digests[5] ^= 1; /* a wrong one is noticed, and nothing written */
    model a = model_copy(&base, false);
    assert_int_equal(dw_delta_apply(delta, a.tensors, a.n, &options, NULL), DW_STALE);
    assert_true(model_equal(&a, &base));
    digests[5] ^= 1;
    assert_int_equal(dw_delta_apply(delta, a.tensors, a.n, &options, NULL), DW_OK);
    assert_true(model_equal(&a, &next));
    for (size_t i = 0; i < a.n; i++)
        assert_true(after[i] ==
                    dw_digest_bytes(next.tensors[i].data, next.tensors[i].n_bytes));
    dw_delta_close(delta);
    model_free(&a);
    model_free(&base);
    model_free(&next);
}

/* A recoded delta has the same bytes as a diff into that codec. */
TEST(test_recode)
{
    model base = model_random(true);
    model next = model_copy(&base, false);
    model_change(&next, 60);
    for (size_t from = 0; from < N_FORMS; from++)
        for (size_t to = 0; to < N_FORMS; to++) {
            dw_diff_options options = options_of(from);
            dw_delta *delta = diff(&base, &next, &options), *recoded;
            dw_diff_options wanted = options_of(to);
            dw_delta *direct = diff(&base, &next, &wanted);
            wanted.base_version = wanted.new_version = 7; /* the delta keeps its own */
            wanted.n_threads = 2;
            dw_error err;
            check_ok(
                dw_delta_recode(&recoded, delta, base.tensors, base.n, &wanted, &err),
                &err);
            check_info(recoded, to, &base, &next);
            byte_buffer a = encoded(direct), b = encoded(recoded);
            assert_int_equal(a.n_bytes, b.n_bytes);
            assert_memory_equal(a.bytes, b.bytes, a.n_bytes);
            free(a.bytes);
            free(b.bytes);
            /* it fails with the wrong weights */
            dw_delta_close(recoded);
            assert_int_equal(
                dw_delta_recode(&recoded, delta, next.tensors, next.n, &wanted, &err),
                DW_STALE);
            assert_null(recoded);
            dw_delta_close(delta);
            dw_delta_close(direct);
        }
    model_free(&base);
    model_free(&next);
}

TEST(test_recode_several_blocks)
{
    model base = model_new(2);
    const uint64_t dims[] = {(5u << 20) / 2}, small[] = {100};
    model_set(&base, 0, "w", DW_BF16, 1, dims, 1);
    model_set(&base, 1, "b", DW_F32, 1, small, 0);
    model_fill(&base);
    model next = model_copy(&base, true);
    model_change(&next, 2);
    /* the middle block does not change */
    memcpy((uint8_t *)model_find(&next, "w")->data + (2u << 20),
           (uint8_t *)base.tensors[0].data + (2u << 20), 2u << 20);
    for (size_t from = 0; from < 2; from++)
        for (size_t to = 0; to < N_FORMS; to++) {
            dw_diff_options options = options_of(from), wanted = options_of(to);
            dw_delta *delta = diff(&base, &next, &options), *recoded;
            assert_int_equal(
                dw_delta_recode(&recoded, delta, base.tensors, base.n, &wanted, NULL),
                DW_OK);
            check_apply(recoded, &base, &next, 2);
            dw_delta_close(delta);
            dw_delta_close(recoded);
        }
    model_free(&base);
    model_free(&next);
}

/* ---- sizes --------------------------------------------------------------------- */

/* If everything is replaced by noise, a delta is at most 1 % larger than the model. */
TEST(test_never_much_larger_than_the_model)
{
    for (unsigned dtype = 0; dtype < DW_DTYPE_COUNT; dtype++) {
        model base = model_new(3);
        const uint64_t dims[] = {64, 700};
        model_set(&base, 0, "model.layers.0.mlp.up_proj.weight", (dw_dtype)dtype, 2, dims,
                  0);
        model_set(&base, 1, "model.layers.1.mlp.up_proj.weight", (dw_dtype)dtype, 2, dims,
                  0);
        model_set(&base, 2, "model.layers.2.mlp.up_proj.weight", (dw_dtype)dtype, 2, dims,
                  0);
        model_fill(&base);
        model next = model_copy(&base, false);
        for (size_t i = 0; i < 3; i++)
            for (uint64_t b = 0; b < next.tensors[i].n_bytes; b++)
                ((uint8_t *)next.tensors[i].data)[b] = (uint8_t)random64();
        dw_delta *delta = diff(&base, &next, NULL);
        dw_delta_info info;
        dw_delta_get_info(delta, &info);
        assert_true((double)info.n_bytes <= 1.01 * (double)model_bytes(&base) + 600);
        check_apply(delta, &base, &next, 2);
        dw_delta_close(delta);
        model_free(&base);
        model_free(&next);
    }
}

/* A tensor with one change costs tens of bytes. */
TEST(test_20000_tensors)
{
    enum { N = 20000 };
    model base = model_new(N);
    for (size_t i = 0; i < N; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%zu.experts.%zu.w", i / 128, i % 128);
        const uint64_t dims[] = {3, 5};
        model_set(&base, i, name, DW_BF16, 2, dims, 0);
    }
    model_fill(&base);
    model next = model_copy(&base, false); /* a shuffled one would take long to compare */
    for (size_t i = 0; i < N; i++)
        ((uint8_t *)next.tensors[i].data)[i % 30] ^= 1;
    for (size_t form = 0; form < N_FORMS; form++) {
        dw_diff_options options = options_of(form);
        options.n_threads = 2;
        dw_delta *delta = diff(&base, &next, &options), *again;
        byte_buffer bytes = encoded(delta);
        assert_true(form > 0 || bytes.n_bytes < 60u * N);
        assert_int_equal(
            dw_delta_open_bytes(&again, bytes.bytes, bytes.n_bytes, "b", NULL), DW_OK);
        model copy = model_copy(&base, false);
        assert_int_equal(dw_delta_apply(again, copy.tensors, copy.n, NULL, NULL), DW_OK);
        assert_true(model_equal(&copy, &next));
        model_free(&copy);
        free(bytes.bytes);
        dw_delta_close(again);
        dw_delta_close(delta);
    }
    model_free(&base);
    model_free(&next);
}

/* ---- tensors that share memory ---------------------------------------------------- */

enum { TIED = 3000 };

static void tie(dw_tensor tensors[3], uint16_t *tied, uint16_t *own)
{
    static const uint64_t dims[] = {TIED};
    tensors[0] = (dw_tensor){"embed", DW_BF16, 1, dims, 2 * TIED, tied, 0, NULL};
    tensors[1] = (dw_tensor){"head", DW_BF16, 1, dims, 2 * TIED, tied, 0, NULL};
    tensors[2] = (dw_tensor){"own", DW_BF16, 1, dims, 2 * TIED, own, 0, NULL};
}

TEST(test_tied_tensors)
{
    static uint16_t old[TIED], old_own[TIED], new_[TIED], new_own[TIED];
    static uint16_t tied[TIED], own[TIED];
    const dw_element element = dw_dtype_element(DW_BF16);
    for (size_t form = 0; form < N_FORMS; form++)
        for (int update = 0; update < 2; update++)
            for (unsigned per_mille = 50; per_mille <= 1000; per_mille += 950) {
                fill_weights(old, TIED, element);
                fill_weights(old_own, TIED, element);
                memcpy(new_, old, sizeof old);
                memcpy(new_own, old_own, sizeof old);
                change_weights(new_, TIED, element, per_mille);
                change_weights(new_own, TIED, element, per_mille);
                memcpy(tied, old, sizeof old);
                memcpy(own, old_own, sizeof old);
                dw_tensor base[3], next[3];
                tie(base, tied, own);
                tie(next, new_, new_own);
                dw_diff_options options = options_of(form);
                options.update_base = update;
                dw_delta *delta;
                dw_error err;
                check_ok(dw_delta_diff(&delta, base, next, 3, &options, &err), &err);
                assert_memory_equal(tied, update ? new_ : old, sizeof tied);
                memcpy(tied, old, sizeof old);
                memcpy(own, old_own, sizeof old);
                check_ok(dw_delta_apply(delta, base, 3, NULL, &err), &err);
                assert_memory_equal(tied, new_, sizeof tied);
                assert_memory_equal(own, new_own, sizeof own);

                dw_patch *patch;
                memcpy(tied, old, sizeof old);
                memcpy(own, old_own, sizeof old);
                check_ok(dw_delta_stage(&patch, delta, base, 3, NULL, &err), &err);
                check_ok(dw_patch_apply(patch, base, 3, 1, &err), &err);
                assert_memory_equal(tied, new_, sizeof tied);
                dw_patch_free(patch);
                dw_delta_close(delta);
            }
}

/* ---- progress -------------------------------------------------------------------- */

typedef struct watch {
    uint64_t last, total;
    unsigned n_calls, stop_at; /* the call that stops it, from 1; 0: never */
    bool restarts;             /* recoding goes over the model twice */
} watch;

static int report(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    watch *w = context;
    assert_true(bytes_done <= bytes_total);
    assert_true(w->restarts || bytes_done >= w->last);
    assert_true(w->restarts || w->n_calls == 0 || w->total == bytes_total);
    w->last = bytes_done;
    w->total = bytes_total;
    return ++w->n_calls == w->stop_at;
}

TEST(test_progress_and_cancelling)
{
    model base = model_random(true), next = model_copy(&base, false);
    model_change(&next, 40);
    dw_delta *whole = diff(&base, &next, NULL);
    for (size_t form = 0; form < N_FORMS; form++)
        for (unsigned stop_at = 0; stop_at <= 5; stop_at++) {
            const dw_status wanted = stop_at ? DW_CANCELLED : DW_OK;
            dw_error err;
            watch w = {.stop_at = stop_at};
            dw_diff_options options = options_of(form);
            options.progress = (dw_progress){report, &w};
            dw_delta *delta;
            assert_int_equal(
                dw_delta_diff(&delta, base.tensors, next.tensors, base.n, &options, &err),
                wanted);
            if (stop_at) {
                assert_null(delta);
                assert_int_equal(err.code, DW_CANCELLED);
                assert_int_equal(w.n_calls, stop_at);
            } else {
                assert_true(w.n_calls > 5 && w.last == w.total);
                assert_int_equal(w.total, model_bytes(&base));
                dw_delta_close(delta);
            }
            w = (watch){.stop_at = stop_at, .restarts = true};
            dw_delta *recoded;
            assert_int_equal(
                dw_delta_recode(&recoded, whole, base.tensors, base.n, &options, &err),
                wanted);
            dw_delta_close(recoded);

            w = (watch){.stop_at = stop_at};
            dw_apply_options apply = {
                .struct_bytes = sizeof apply, .n_threads = 1, .progress = {report, &w}};
            dw_patch *patch;
            assert_int_equal(
                dw_delta_stage(&patch, whole, base.tensors, base.n, &apply, &err),
                wanted);
            dw_patch_free(patch);
            w = (watch){.stop_at = stop_at};
            model a = model_copy(&base, false);
            assert_int_equal(dw_delta_apply(whole, a.tensors, a.n, &apply, &err), wanted);
            assert_true(model_equal(&a, stop_at ? &base : &next));
            model_free(&a);
        }
    dw_delta_close(whole);
    model_free(&base);
    model_free(&next);
}

/* ---- refused -----------------------------------------------------------------
 */

static void check_diff_fails(const dw_tensor *base, const dw_tensor *next, size_t n,
                             const dw_diff_options *options, dw_status status,
                             const char *text)
{
    dw_delta *delta = (dw_delta *)1;
    dw_error err;
    assert_int_equal(dw_delta_diff(&delta, base, next, n, options, &err), status);
    assert_int_equal(err.code, status);
    assert_string_equal(err.text, text);
    assert_null(delta);
}

TEST(test_other_models)
{
    static uint8_t data[16];
    static const uint64_t d8[] = {8}, d24[] = {2, 4};
    const dw_tensor base[2] = {{"b", DW_U8, 1, d8, 8, data, 0, NULL},
                               {"a", DW_U8, 1, d8, 8, data, 0, NULL}};
    dw_tensor next[2] = {base[0], base[1]};
    next[0].name = "c";
    check_diff_fails(base, next, 2, NULL, DW_MISMATCH,
                     "tensor 'b': the new version lacks it");
    next[0].name = "aa";
    check_diff_fails(base, next, 2, NULL, DW_MISMATCH,
                     "tensor 'aa': the old version lacks it");
    next[0] = base[0];
    next[0].dtype = DW_I8;
    check_diff_fails(base, next, 2, NULL, DW_MISMATCH,
                     "tensor 'b': it is U8 [8] here, but I8 [8] in the weights");
    next[0] = base[0];
    next[0].n_dims = 2;
    next[0].dims = d24;
    check_diff_fails(base, next, 2, NULL, DW_MISMATCH,
                     "tensor 'b': it is U8 [8] here, but U8 [2,4] in the weights");
    next[0] = next[1];
    check_diff_fails(base, next, 2, NULL, DW_INVALID,
                     "tensor 'a': the list has this name twice");
}

TEST(test_options)
{
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.codec = DW_CODEC_GAP;
    options.trl_layout = 1;
    check_diff_fails(NULL, NULL, 0, &options, DW_INVALID,
                     "TRL's layout 1 has no gaps: use codec raw");
    options.codec = DW_CODEC_RAW;
    options.trl_layout = 2;
    check_diff_fails(NULL, NULL, 0, &options, DW_INVALID,
                     "TRL layout 2 is unknown: 1 or 3");
    assert_string_equal(dw_codec_name(DW_CODEC_CLASS), "class");
    assert_string_equal(dw_codec_name(DW_CODEC_GAP), "gap");
    assert_string_equal(dw_codec_name(DW_CODEC_RAW), "raw");
}

TEST(test_empty_models)
{
    for (size_t form = 0; form < N_FORMS; form++) {
        dw_diff_options options = options_of(form);
        dw_delta *delta, *again;
        assert_int_equal(dw_delta_diff(&delta, NULL, NULL, 0, &options, NULL), DW_OK);
        byte_buffer bytes = encoded(delta);
        assert_int_equal(
            dw_delta_open_bytes(&again, bytes.bytes, bytes.n_bytes, NULL, NULL), DW_OK);
        dw_delta_info info;
        dw_delta_get_info(again, &info);
        assert_int_equal(info.n_tensors + info.n_changed + info.n_model_elems, 0);
        assert_int_equal(dw_delta_apply(again, NULL, 0, NULL, NULL), DW_OK);
        free(bytes.bytes);
        dw_delta_close(again);
        dw_delta_close(delta);
    }
    dw_delta_close(NULL);
    dw_patch_free(NULL);
}

TEST(test_names)
{
    static char longest[1025];
    memset(longest, 'n', 1024);
    const char *const names[] = {"a",     "a.idx",          "a.idx.idx",
                                 "a.val", "a\"\\\x01/../b", "\xc3\xa9\xf0\x9f\x8c\x8d",
                                 longest};
    enum { N = sizeof names / sizeof names[0] };
    for (size_t form = 0; form < N_FORMS; form++) {
        model base = model_new(N);
        for (size_t i = 0; i < N; i++)
            model_set(&base, i, names[i], DW_F32, 0, NULL, 0);
        model_fill(&base);
        model next = model_copy(&base, true);
        model_change(&next, 1000);
        dw_diff_options options = options_of(form);
        dw_delta *delta = diff(&base, &next, &options), *again;
        byte_buffer bytes = encoded(delta);
        dw_error err;
        check_ok(dw_delta_open_bytes(&again, bytes.bytes, bytes.n_bytes, "b", &err),
                 &err);
        check_apply(again, &base, &next, 1);
        free(bytes.bytes);
        dw_delta_close(again);
        dw_delta_close(delta);
        model_free(&base);
        model_free(&next);
    }
}

TEST(test_name_too_long)
{
    static char name[1026];
    memset(name, 'n', 1025);
    uint8_t old = 1, new_ = 2;
    const dw_tensor base = {name, DW_U8, 0, NULL, 1, &old, 0, NULL},
                    next = {name, DW_U8, 0, NULL, 1, &new_, 0, NULL};
    dw_delta *delta;
    dw_error err;
    assert_int_equal(dw_delta_diff(&delta, &base, &next, 1, NULL, &err), DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "the name is longer than 1024 bytes"));
}

/* ---- writing ---------------------------------------------------------------------- */

static dw_status refuse(void *context, const void *bytes, size_t n_bytes, dw_error *err)
{
    (void)bytes;
    (void)n_bytes;
    (void)err;
    return --*(int *)context < 0 ? DW_IO : DW_OK;
}

TEST(test_sink_that_stops)
{
    model base = model_random(false), next = model_copy(&base, false);
    model_change(&next, 40);
    dw_delta *delta = diff(&base, &next, NULL);
    for (int n = 0; n < 3; n++) {
        int left = n;
        assert_int_equal(dw_delta_write(delta, refuse, &left, NULL), DW_IO);
        assert_int_equal(left, -1);
    }
    dw_delta_close(delta);
    model_free(&base);
    model_free(&next);
}

TEST(test_save_fails_cleanly)
{
    dw_delta *delta;
    dw_error err;
    size_t n_files = count_files(temp_dir);
    assert_int_equal(dw_delta_diff(&delta, NULL, NULL, 0, NULL, NULL), DW_OK);
    assert_int_equal(dw_delta_save(delta, temp_path("no/such/dir"), &err), DW_NOT_FOUND);
    assert_int_equal(count_files(temp_dir), n_files);
    dw_delta_close(delta);
    assert_int_equal(dw_delta_open(&delta, temp_path("nothing"), &err), DW_NOT_FOUND);
    assert_null(delta);
    assert_int_equal(dw_delta_open(&delta, temp_dir, &err), DW_INVALID);
    put_text(temp_path("text"), "hello");
    assert_int_equal(dw_delta_open(&delta, temp_path("text"), &err), DW_CORRUPT);
    put_text(temp_path("empty"), "");
    assert_int_equal(dw_delta_open(&delta, temp_path("empty"), &err), DW_CORRUPT);
}

/* F32 masters against BF16 weights: rounding before or during the diff gives the same
 * bytes and the same base, with and without tied tensors. */
TEST(test_rounding_in_passing)
{
    enum { N = 40000 };
    static float masters[N];
    static uint16_t base[N], rounded[N], copy[N];
    static const uint64_t dims[] = {N};
    for (size_t form = 0; form < N_FORMS; form++)
        for (unsigned tied = 0; tied < 2; tied++) {
            for (size_t i = 0; i < N; i++) {
                masters[i] = (float)(1 + random_below(9999)) * 1e-4f;
                base[i] = copy[i] = 0;
            }
            dw_cast_bf16(base, masters, N);
            for (size_t i = 0; i < N; i += 1 + random_below(90))
                masters[i] *= 1.01f;
            dw_cast_bf16(rounded, masters, N);
            memcpy(copy, base, sizeof base);
            const dw_tensor old[] = {{"a", DW_BF16, 1, dims, 2 * N, base, 0, NULL},
                                     {"b", DW_BF16, 1, dims, 2 * N, base, 0, NULL}},
                            new[] = {{"a", DW_F32, 1, dims, 4 * N, masters, 0, NULL},
                                     {"b", DW_F32, 1, dims, 4 * N, masters, 0, NULL}},
                            plain[] = {{"a", DW_BF16, 1, dims, 2 * N, rounded, 0, NULL},
                                       {"b", DW_BF16, 1, dims, 2 * N, rounded, 0, NULL}};
            dw_diff_options options = options_of(form);
            dw_delta *wanted, *got;
            dw_error err = {0};
            assert_int_equal(dw_delta_diff(&got, old, new, 1 + tied, &options, &err),
                             DW_MISMATCH); /* it must be asked for */
            check_ok(dw_delta_diff(&wanted, old, plain, 1 + tied, &options, &err), &err);
            options.round_next = options.update_base = true;
            check_ok(dw_delta_diff(&got, old, new, 1 + tied, &options, &err), &err);
            byte_buffer a = encoded(wanted), b = encoded(got);
            assert_int_equal(a.n_bytes, b.n_bytes);
            assert_memory_equal(a.bytes, b.bytes, a.n_bytes);
            assert_memory_equal(base, rounded, sizeof base);
            assert_memory_not_equal(base, copy, sizeof base);
            free(a.bytes);
            free(b.bytes);
            dw_delta_close(wanted);
            dw_delta_close(got);
        }
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
