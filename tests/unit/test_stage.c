/* labels: threads */
#include "unit/suite.h"

#include "codec/stage.h"
#include "random_model.h"

static model base, next;
static dw_delta *deltas[3]; /* class, gap, raw v1 */

static int make_models(void **state)
{
    (void)state;
    base = model_new(4);
    const uint64_t dims[] = {40, 50}, few[] = {3};
    model_set(&base, 0, "w", DW_BF16, 2, dims, 0);
    model_set(&base, 1, "v", DW_F32, 2, dims, 0);
    model_set(&base, 2, "untouched", DW_U8, 1, few, 0);
    model_set(&base, 3, "u", DW_I64, 1, few, 0);
    model_fill(&base);
    next = model_copy(&base, false);
    model_change(&next, 30);
    memcpy(next.tensors[2].data, base.tensors[2].data, 3);
    ((uint8_t *)next.tensors[3].data)[0] ^= 1;
    for (unsigned i = 0; i < 3; i++) {
        dw_diff_options o;
        dw_diff_options_init(&o);
        o.codec = (dw_codec)i;
        o.trl_layout = i == 2 ? 1 : 3;
        o.base_version = 7;
        o.new_version = 8;
        if (dw_delta_diff(&deltas[i], base.tensors, next.tensors, base.n, &o, NULL) !=
            DW_OK)
            return -1;
    }
    return 0;
}

static int free_models(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++)
        dw_delta_close(deltas[i]);
    model_free(&base);
    model_free(&next);
    return 0;
}

/* All three ways to use a delta on these tensors fail in the same way, and write nothing.
 */
static void check_refused(const dw_delta *delta, const model *m, dw_status status,
                          const char *text)
{
    model copy = model_copy(m, false);
    for (unsigned way = 0; way < 3; way++)
        for (unsigned n_threads = 1; n_threads <= 3; n_threads += 2) {
            dw_apply_options options = {.struct_bytes = sizeof options,
                                        .n_threads = n_threads};
            dw_patch *patch = NULL;
            dw_delta *recoded = NULL;
            dw_error err = {0};
            dw_status got =
                way == 0 ? dw_delta_apply(delta, copy.tensors, copy.n, &options, &err)
                : way == 1
                    ? dw_delta_stage(&patch, delta, copy.tensors, copy.n, &options, &err)
                    : dw_delta_recode(&recoded, delta, copy.tensors, copy.n, NULL, &err);
            assert_string_equal(err.text, text);
            assert_int_equal(got, status);
            assert_int_equal(err.code, status);
            assert_null(patch);
            assert_null(recoded);
            assert_true(model_equal(&copy, m));
        }
    model_free(&copy);
}

TEST(test_already_applied)
{
    for (unsigned i = 0; i < 3; i++)
        check_refused(deltas[i], &next, DW_STALE, "the weights are at version 8 already");
}

TEST(test_wrong_base)
{
    static const struct {
        const char *tensor;
        uint64_t element;
        const char *text;
    } cases[] = {
        {"w", 0, "tensor 'w'"},
        {"w", 1999, "tensor 'w'"},
        {"v", 500, "tensor 'v'"},
        {"u", 2, "tensor 'u'"},
        {"untouched", 1, "a tensor it does not touch"},
    };
    for (unsigned i = 0; i < 3; i++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
            for (unsigned bit = 0; bit < 8; bit += 7) {
                model other = model_copy(&base, false);
                const dw_tensor *t = model_find(&other, cases[c].tensor);
                const unsigned width = dw_dtype_element(t->dtype).width;
                ((uint8_t *)t->data)[cases[c].element * width] ^= (uint8_t)(1u << bit);
                char text[200];
                snprintf(
                    text, sizeof text,
                    "the weights are not version 7, which this delta starts from: %s "
                    "differs",
                    cases[c].text);
                check_refused(deltas[i], &other, DW_STALE, text);
                model_free(&other);
            }
}

/* Completely different weights: blocks do not even decode, and the error still names the
 * base. */
TEST(test_other_weights)
{
    for (unsigned i = 0; i < 3; i++)
        for (unsigned round = 0; round < 20; round++) {
            model other = model_copy(&base, false);
            model_fill(&other);
            dw_error err;
            assert_int_equal(
                dw_delta_apply(deltas[i], other.tensors, other.n, NULL, &err), DW_STALE);
            model_free(&other);
        }
}

TEST(test_other_models)
{
    static const uint64_t dims_t[] = {50, 40}, few[] = {4};
    static const struct {
        size_t tensor;
        const char *name;
        dw_dtype dtype;
        uint32_t n_dims;
        const uint64_t *dims;
        const char *text;
    } cases[] = {
        {0, "x", DW_BF16, 2, dims_t,
         "tensor 'w': the weights have no tensor of that name"},
        {0, "w", DW_BF16, 2, dims_t,
         "tensor 'w': it is BF16 [40,50] here, but BF16 [50,40] in the weights"},
        {0, "w", DW_F16, 2, dims_t,
         "tensor 'w': it is BF16 [40,50] here, but F16 [50,40] in the weights"},
        {3, "u", DW_I64, 1, few,
         "tensor 'u': it is I64 [3] here, but I64 [4] in the weights"},
        {3, "u", DW_I64, 0, NULL,
         "tensor 'u': it is I64 [3] here, but I64 [] in the weights"},
    };
    for (unsigned i = 0; i < 3; i++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            model other = model_new(base.n);
            for (size_t t = 0; t < base.n; t++) {
                const dw_tensor *b = &base.tensors[t];
                bool same = t != cases[c].tensor;
                model_set(&other, t, same ? b->name : cases[c].name,
                          same ? b->dtype : cases[c].dtype,
                          same ? b->n_dims : cases[c].n_dims,
                          same ? b->dims : cases[c].dims, 0);
            }
            check_refused(deltas[i], &other, DW_MISMATCH, cases[c].text);
            model_free(&other);
        }
}

TEST(test_other_counts)
{
    for (unsigned i = 0; i < 3; i++) {
        model more = model_new(5);
        for (size_t t = 0; t < 5; t++) {
            const dw_tensor *b = &base.tensors[t % 4];
            model_set(&more, t, t == 4 ? "more" : b->name, b->dtype, b->n_dims, b->dims,
                      0);
            memcpy(more.tensors[t].data, b->data, b->n_bytes);
        }
        check_refused(
            deltas[i], &more, DW_MISMATCH,
            "the delta is for a model of 4 tensors and 4006 elements, but these "
            "weights have 5 and 6006");
        more.n = 5;
        dw_tensor twice[4] = {base.tensors[0], base.tensors[1], base.tensors[2],
                              base.tensors[0]};
        dw_error err;
        assert_int_equal(dw_delta_apply(deltas[i], twice, 4, NULL, &err), DW_INVALID);
        assert_string_equal(err.text, "tensor 'w': the list has this name twice");
        model_free(&more);
    }
}

/* The counts match but an unchanged tensor has another name: only the state shows it. */
TEST(test_other_untouched_tensor)
{
    for (unsigned i = 0; i < 3; i++) {
        model other = model_copy(&base, false);
        free((void *)other.tensors[2].name);
        other.tensors[2].name = strdup("renamed");
        check_refused(deltas[i], &other, DW_STALE,
                      "the weights are not version 7, which this delta starts from: a "
                      "tensor it does not touch differs");
        model_free(&other);
    }
}

/* ---- the sink ---------------------------------------------------------------------- */

static dw_status count_changes(void *context, size_t t, uint64_t first,
                               const dw_decoded *changes, dw_error *err)
{
    (void)err;
    assert_true(t < base.n);
    assert_true(first < dw_tensor_units(&base.tensors[t]));
    *(uint64_t *)context += changes->n_changes;
    return DW_OK;
}

static dw_status refuse_changes(void *context, size_t t, uint64_t first,
                                const dw_decoded *changes, dw_error *err)
{
    (void)context;
    (void)t;
    (void)first;
    (void)changes;
    (void)err;
    return DW_IO;
}

TEST(test_verify_then_repeat)
{
    for (unsigned i = 0; i < 3; i++) {
        dw_stage *stage;
        dw_stage_result result;
        dw_delta_info info;
        dw_delta_get_info(deltas[i], &info);
        dw_apply_options options = {.struct_bytes = sizeof options, .n_threads = 1};
        assert_int_equal(dw_stage_open(&stage, deltas[i], base.tensors, base.n, 1, NULL),
                         DW_OK);
        uint64_t n = 0, again = 0;
        assert_int_equal(
            dw_stage_verify(&result, stage, &options, count_changes, &n, NULL), DW_OK);
        assert_int_equal(n, info.n_changed);
        assert_int_equal(result.n_changed, info.n_changed);
        assert_true(result.base_state == info.base_state);
        assert_true(result.new_state == info.new_state);
        assert_int_equal(dw_stage_repeat(stage, count_changes, &again, NULL), DW_OK);
        assert_int_equal(again, n);
        assert_int_equal(dw_stage_verify(&result, stage, &options, NULL, NULL, NULL),
                         DW_OK);
        assert_int_equal(
            dw_stage_verify(&result, stage, &options, refuse_changes, NULL, NULL), DW_IO);
        dw_stage_close(stage);
    }
    dw_stage_close(NULL);
}

/* Errors in the caller's tensors are reported by every function that takes them. */
TEST(test_callers_tensors)
{
    static const uint64_t shape[] = {4};
    uint16_t old[4] = {1, 2, 3, 4}, new_[4] = {1, 2, 3, 5};
    const dw_tensor good = {"w", DW_U16, 1, shape, sizeof old, old, 0, NULL};
    const dw_tensor changed = {"w", DW_U16, 1, shape, sizeof new_, new_, 0, NULL};
    dw_delta *delta, *again;
    dw_patch *patch;
    dw_digest digest;
    assert_int_equal(dw_delta_diff(&delta, &good, &changed, 1, NULL, NULL), DW_OK);
    for (unsigned fault = 0; fault < 3; fault++) {
        dw_tensor t = good;
        if (fault == 0)
            t.name = NULL;
        else if (fault == 1)
            t.data = NULL;
        else
            t.dims = NULL;
        assert_int_equal(dw_delta_diff(&again, &t, &changed, 1, NULL, NULL), DW_INVALID);
        assert_int_equal(dw_delta_diff(&again, &good, &t, 1, NULL, NULL), DW_INVALID);
        assert_int_equal(dw_delta_verify(delta, &t, 1, NULL, NULL), DW_INVALID);
        assert_int_equal(dw_delta_apply(delta, &t, 1, NULL, NULL), DW_INVALID);
        assert_int_equal(dw_delta_stage(&patch, delta, &t, 1, NULL, NULL), DW_INVALID);
        assert_null(patch);
        assert_int_equal(dw_delta_recode(&again, delta, &t, 1, NULL, NULL), DW_INVALID);
        assert_int_equal(dw_digest_tensors(&digest, NULL, &t, 1, 1, NULL, NULL),
                         DW_INVALID);
    }
    dw_delta_close(delta);
}

RUN_TESTS(make_models, free_models)
