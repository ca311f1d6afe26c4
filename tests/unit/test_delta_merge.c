#include <pthread.h>

#include "unit/suite.h"

#include "codec/delta.h"
#include "codec/delta_merge.h"
#include "failing_allocator.h"
#include "random_cut.h"

static byte_buffer encoded(const dw_delta *delta)
{
    byte_buffer b = {0};
    assert_int_equal(dw_delta_write(delta, buffer_take, &b, NULL), DW_OK);
    return b;
}

static dw_delta *diff(const dw_tensor *base, const dw_tensor *next, size_t n)
{
    dw_delta *delta;
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.base_version = 41;
    options.new_version = 42;
    assert_int_equal(dw_delta_diff(&delta, base, next, n, &options, NULL), DW_OK);
    return delta;
}

/* The deltas of a cut's parts, and one delta of all slices. */
static dw_delta *diff_parts(dw_delta *parts[CUT_PARTS], const model *base,
                            const model *next, const cut *c)
{
    dw_slice *all = malloc(sizeof *all);
    size_t n_all = 0;
    dw_slice_list from, to;
    for (size_t p = 0; p < CUT_PARTS; p++) {
        assert_int_equal(
            dw_slices_open(&from, base->tensors, base->n, c->slices[p], c->n[p], NULL),
            DW_OK);
        assert_int_equal(
            dw_slices_open(&to, next->tensors, next->n, c->slices[p], c->n[p], NULL),
            DW_OK);
        parts[p] = diff(from.tensors, to.tensors, from.n);
        dw_slices_release(&from);
        dw_slices_release(&to);
        all = realloc(all, (n_all + c->n[p] + 1) * sizeof *all);
        memcpy(all + n_all, c->slices[p], c->n[p] * sizeof *all);
        n_all += c->n[p];
    }
    assert_int_equal(dw_slices_open(&from, base->tensors, base->n, all, n_all, NULL),
                     DW_OK);
    assert_int_equal(dw_slices_open(&to, next->tensors, next->n, all, n_all, NULL),
                     DW_OK);
    dw_delta *one = diff(from.tensors, to.tensors, from.n);
    dw_slices_release(&from);
    dw_slices_release(&to);
    free(all);
    return one;
}

TEST(test_same_bytes)
{
    for (unsigned round = 0; round < 20; round++) {
        model base = model_random(false), next = model_copy(&base, false);
        model_change(&next, round % 5 * 60);
        cut c = cut_random(&base);
        dw_delta *parts[CUT_PARTS], *merged;
        dw_delta *one = diff_parts(parts, &base, &next, &c);
        byte_buffer kept[CUT_PARTS] = {{0}};
        for (size_t p = 0; round % 2 && p < CUT_PARTS; p++) { /* as they are received */
            kept[p] = encoded(parts[p]);
            dw_delta_close(parts[p]);
            assert_int_equal(dw_delta_open_bytes(&parts[p], kept[p].bytes,
                                                 kept[p].n_bytes, "part", NULL),
                             DW_OK);
        }
        assert_int_equal(dw_delta_merge(&merged, parts, CUT_PARTS, NULL), DW_OK);
        for (size_t p = 0; p < CUT_PARTS; p++)
            assert_null(parts[p]);
        byte_buffer a = encoded(merged), b = encoded(one);
        assert_int_equal(a.n_bytes, b.n_bytes);
        assert_memory_equal(a.bytes, b.bytes, a.n_bytes);
        assert_int_equal(merged->info.n_bytes, a.n_bytes);
        dw_delta_close(merged);
        dw_delta_close(one);
        for (size_t p = 0; p < CUT_PARTS; p++)
            free(kept[p].bytes);
        free(a.bytes);
        free(b.bytes);
        cut_free(&c);
        model_free(&base);
        model_free(&next);
    }
}

static model small, small_next;

static void make_small(void)
{
    static const uint64_t d[] = {50};
    small = model_new(2);
    model_set(&small, 0, "a", DW_BF16, 1, d, 0);
    model_set(&small, 1, "b", DW_F32, 1, d, 0);
    model_fill(&small);
    small_next = model_copy(&small, false);
    model_change(&small_next, 300);
}

TEST(test_refused)
{
    make_small();
    dw_error err;
    dw_delta *merged, *two[2] = {diff(small.tensors, small_next.tensors, 1),
                                 diff(small.tensors, small_next.tensors, 1)};
    assert_int_equal(dw_delta_merge(&merged, two, 0, &err), DW_INVALID);
    assert_int_equal(dw_delta_merge(&merged, two, 2, &err), DW_INVALID);
    assert_string_equal(err.text, "tensor 'a': two deltas to be merged change it");
    assert_null(merged);
    dw_delta_close(two[1]);
    dw_diff_options options;
    dw_diff_options_init(&options);
    assert_int_equal(dw_delta_diff(&two[1], small.tensors + 1, small_next.tensors + 1, 1,
                                   &options, NULL),
                     DW_OK);
    assert_int_equal(dw_delta_merge(&merged, two, 2, &err), DW_MISMATCH);
    assert_string_equal(err.text,
                        "it leads from version 0 to 1, the others from 41 to 42");
    dw_delta_close(two[1]);
    options.codec = DW_CODEC_GAP;
    assert_int_equal(dw_delta_diff(&two[1], small.tensors + 1, small_next.tensors + 1, 1,
                                   &options, NULL),
                     DW_OK);
    assert_int_equal(dw_delta_merge(&merged, two, 2, &err), DW_INVALID);
    assert_string_equal(err.text, "a delta with codec gap cannot be merged");
    two[0]->info.n_model_elems = UINT64_MAX;
    dw_delta_close(two[1]);
    two[1] = diff(small.tensors + 1, small_next.tensors + 1, 1);
    assert_int_equal(dw_delta_merge(&merged, two, 2, &err), DW_INVALID);
    assert_string_equal(err.text, "impossible counts");
    dw_delta_close(two[0]);
    dw_delta_close(two[1]);
    model_free(&small);
    model_free(&small_next);
}

static byte_buffer small_parts[2];

static dw_status merge_two(dw_error *err)
{
    dw_delta *two[2] = {NULL, NULL}, *merged = NULL;
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < 2; i++)
        status = dw_delta_open_bytes(&two[i], small_parts[i].bytes,
                                     small_parts[i].n_bytes, "part", err);
    if (status == DW_OK)
        status = dw_delta_merge(&merged, two, 2, err);
    dw_delta_close(merged);
    dw_delta_close(two[0]);
    dw_delta_close(two[1]);
    return status;
}

TEST(test_no_memory)
{
    make_small();
    for (size_t i = 0; i < 2; i++) {
        dw_delta *delta = diff(small.tensors + i, small_next.tensors + i, 1);
        small_parts[i] = encoded(delta);
        dw_delta_close(delta);
    }
    fail_every_allocation(merge_two, NULL);
    free(small_parts[0].bytes);
    free(small_parts[1].bytes);
    model_free(&small);
    model_free(&small_next);
}

/* ---- ranges of the encoded file ---- */

typedef struct reading {
    dw_delta *delta;
    byte_buffer whole;
    uint64_t seed;
} reading;

static void *read_ranges(void *context)
{
    const reading *r = context;
    uint64_t seed = r->seed;
    uint8_t *into = malloc(r->whole.n_bytes + 1);
    size_t n_wrong = 0;
    for (unsigned round = 0; round < 2000; round++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        size_t first = (size_t)(seed >> 33) % (r->whole.n_bytes + 1);
        size_t n = (size_t)(seed >> 20) % (r->whole.n_bytes - first + 1);
        if (round % 2)
            n = n % 40;
        into[n] = 0xa5;
        n_wrong += dw_delta_read_at(r->delta, first, into, n, NULL) != DW_OK ||
                   memcmp(into, r->whole.bytes + first, n) != 0 || into[n] != 0xa5;
    }
    free(into);
    return n_wrong ? (void *)r : NULL;
}

TEST(test_read_at)
{
    for (unsigned codec = 0; codec < 3; codec++) {
        model base = model_random(codec > 0), next = model_copy(&base, false);
        model_change(&next, 100);
        dw_diff_options options;
        dw_diff_options_init(&options);
        options.codec = (dw_codec)codec;
        dw_delta *delta;
        assert_int_equal(
            dw_delta_diff(&delta, base.tensors, next.tensors, base.n, &options, NULL),
            DW_OK);
        reading readings[3];
        pthread_t threads[3];
        byte_buffer whole = encoded(delta);
        for (size_t i = 0; i < 3; i++) {
            readings[i] = (reading){delta, whole, random64()};
            pthread_create(&threads[i], NULL, read_ranges, &readings[i]);
        }
        for (size_t i = 0; i < 3; i++) {
            void *wrong;
            pthread_join(threads[i], &wrong);
            assert_null(wrong);
        }
        uint8_t byte;
        dw_error err;
        const uint64_t n = whole.n_bytes;
        assert_int_equal(dw_delta_read_at(delta, n, &byte, 0, &err), DW_OK);
        assert_int_equal(dw_delta_read_at(delta, n - 1, &byte, 1, &err), DW_OK);
        assert_int_equal(byte, whole.bytes[n - 1]);
        assert_int_equal(dw_delta_read_at(delta, n, &byte, 1, &err), DW_INVALID);
        assert_int_equal(dw_delta_read_at(delta, n + 1, &byte, 0, &err), DW_INVALID);
        assert_int_equal(dw_delta_read_at(delta, 1, &byte, SIZE_MAX, &err), DW_INVALID);
        free(whole.bytes);
        dw_delta_close(delta);
        model_free(&base);
        model_free(&next);
    }
}

RUN_TESTS(NULL, NULL)
