/* labels: threads */
#include "unit/suite.h"

#include "codec/digest.h"
#include "codec/slice.h"
#include "codec/stage.h"
#include "failing_allocator.h"
#include "random_cut.h"
#include "inner.h"

/* The shares add up wherever bytes are cut. */
TEST(test_shares_of_bytes)
{
    enum { N = 30000 };
    uint8_t *bytes = malloc(N);
    for (size_t i = 0; i < N; i++)
        bytes[i] = (uint8_t)random64();
    for (unsigned round = 0; round < 300; round++) {
        size_t n = random_below(N + 1), a = random_below(n + 1), b = random_below(n + 1);
        if (round % 3 == 0)
            a = a / 4096 * 4096;
        size_t first = a < b ? a : b, second = a < b ? b : a;
        const dw_digest shares[] = {
            dw_digest_share(bytes, first, 0),
            dw_digest_share(bytes + first, second - first, first),
            dw_digest_share(bytes + second, n - second, second),
        };
        assert_true(dw_digest_sum(shares, 3) == dw_digest_bytes(bytes, n));
    }
    assert_true(dw_digest_sum(NULL, 0) == 0);
    const dw_digest large[] = {DW_DIGEST_PRIME - 1, DW_DIGEST_PRIME - 1, 5};
    assert_true(dw_digest_sum(large, 3) == 3);
    free(bytes);
}

/* A share far inside a tensor equals the digest of the tensor with zeros before it. */
TEST(test_share_far_inside)
{
    enum { N = 9u << 20 };
    uint8_t *bytes = calloc(N, 1);
    const size_t firsts[] = {1, 4095, 4096, 4097, 4 << 20, (4 << 20) + 3, 8999999};
    for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
        memset(bytes, 0, N);
        for (size_t k = firsts[i]; k < N; k += 1 + random_below(1000))
            bytes[k] = (uint8_t)random64();
        const uint64_t dims[] = {N - firsts[i]};
        const dw_tensor t = {"w",       DW_U8, 1, dims, dims[0], bytes + firsts[i],
                             firsts[i], NULL};
        dw_digest share;
        assert_int_equal(dw_digest_tensors(&share, NULL, &t, 1, 2, NULL, NULL), DW_OK);
        assert_true(share == dw_digest_bytes(bytes, N));
    }
    free(bytes);
}

/* The digests of slices, computed from all bytes. */
static dw_digest *digests_of(const dw_tensor *tensors, size_t n)
{
    dw_digest *digests = calloc(n + 1, sizeof *digests);
    assert_int_equal(dw_digest_tensors(digests, NULL, tensors, n, 1, NULL, NULL), DW_OK);
    return digests;
}

/* state = floor + shares, for every element type and cuts at any element. */
TEST(test_state_of_parts)
{
    for (unsigned round = 0; round < 40; round++) {
        model m = model_random(false);
        cut c = cut_random(&m);
        dw_digest *whole = digests_of(m.tensors, m.n), *sums = calloc(m.n, sizeof *sums);
        dw_digest found = dw_state_floor(m.tensors, m.n);
        for (size_t p = 0; p < CUT_PARTS; p++) {
            dw_slice_list list;
            assert_int_equal(
                dw_slices_open(&list, m.tensors, m.n, c.slices[p], c.n[p], NULL), DW_OK);
            assert_int_equal(list.n, c.n[p]);
            dw_digest *digests = digests_of(list.tensors, list.n);
            for (size_t i = 0; i < list.n; i++) {
                size_t t = c.slices[p][i].tensor;
                sums[t] = dw_digest_plus(sums[t], digests[i]);
            }
            found = dw_digest_plus(
                found, dw_slices_share(m.tensors, c.slices[p], digests, list.n));
            free(digests);
            dw_slices_release(&list);
        }
        assert_memory_equal(sums, whole, m.n * sizeof *sums);
        assert_true(found == dw_digest_state(m.tensors, whole, m.n));
        free(whole);
        free(sums);
        cut_free(&c);
        model_free(&m);
    }
}

/* A delta of slices carries shares and can be staged, in every codec. */
TEST(test_deltas_of_slices)
{
    for (unsigned round = 0; round < 30; round++) {
        const dw_codec codec = (dw_codec)(round % 3);
        model base = model_random(codec != DW_CODEC_CLASS);
        model next = model_copy(&base, false);
        model_change(&next, round % 2 ? 50 : 900);
        cut c = cut_random(&base);
        for (size_t p = 0; p < CUT_PARTS; p++) {
            dw_slice_list from, to;
            assert_int_equal(
                dw_slices_open(&from, base.tensors, base.n, c.slices[p], c.n[p], NULL),
                DW_OK);
            assert_int_equal(
                dw_slices_open(&to, next.tensors, next.n, c.slices[p], c.n[p], NULL),
                DW_OK);
            dw_digest *old = digests_of(from.tensors, from.n);
            dw_digest *new_ = digests_of(to.tensors, to.n);
            dw_digest *made = calloc(to.n + 1, sizeof *made);
            dw_digest *staged = calloc(to.n + 1, sizeof *staged);
            dw_diff_options options;
            dw_diff_options_init(&options);
            options.codec = codec;
            options.new_digests = made;
            options.base_digests = round % 4 == 0 ? old : NULL;
            dw_delta *delta, *again;
            dw_error err = {0};
            dw_status status =
                dw_delta_diff(&delta, from.tensors, to.tensors, to.n, &options, &err);
            assert_string_equal(err.text, "");
            assert_int_equal(status, DW_OK);
            assert_memory_equal(made, new_, to.n * sizeof *made);
            dw_apply_options apply = {.struct_bytes = sizeof apply,
                                      .base_digests = round % 2 ? old : NULL,
                                      .new_digests = staged};
            assert_int_equal(dw_delta_verify(delta, from.tensors, from.n, &apply, &err),
                             DW_OK);
            assert_memory_equal(staged, new_, to.n * sizeof *staged);
            assert_int_equal(
                dw_delta_recode(&again, delta, from.tensors, from.n, NULL, &err), DW_OK);
            assert_int_equal(dw_delta_apply(again, from.tensors, from.n, NULL, &err),
                             DW_OK);
            dw_delta_close(again);
            dw_delta_close(delta);
            free(old);
            free(new_);
            free(made);
            free(staged);
            dw_slices_release(&from);
            dw_slices_release(&to);
        }
        assert_true(model_equal(&base, &next));
        cut_free(&c);
        model_free(&base);
        model_free(&next);
    }
}

TEST(test_names_and_shapes)
{
    model m = model_new(3);
    static const uint64_t d[] = {4, 5}, none[] = {0};
    model_set(&m, 0, "w", DW_BF16, 2, d, 0);
    model_set(&m, 1, "s", DW_F32, 0, NULL, 0);
    model_set(&m, 2, "e", DW_C64, 1, none, 0);
    const dw_slice slices[] = {{0, 3, 7}, {1, 0, 1}, {0, 10, 10}, {2, 0, 0}};
    dw_slice_list list;
    assert_int_equal(dw_slices_open(&list, m.tensors, 3, slices, 4, NULL), DW_OK);
    assert_string_equal(list.tensors[0].name, "w[3:10]");
    assert_int_equal(list.tensors[0].n_dims, 1);
    assert_int_equal(list.tensors[0].dims[0], 7);
    assert_int_equal(list.tensors[0].n_bytes, 14);
    assert_int_equal(list.tensors[0].first_byte, 6);
    assert_ptr_equal(list.tensors[0].data, (uint8_t *)m.tensors[0].data + 6);
    assert_memory_equal(&list.tensors[1], &m.tensors[1], sizeof(dw_tensor));
    assert_string_equal(list.tensors[2].name, "w[10:20]");
    assert_memory_equal(&list.tensors[3], &m.tensors[2], sizeof(dw_tensor));
    assert_int_equal(dw_slice_first_unit(m.tensors, &slices[2]), 10);
    dw_slices_release(&list);
    const dw_slice all = {0, 0, 20};
    assert_int_equal(dw_slices_open(&list, m.tensors, 3, &all, 1, NULL), DW_OK);
    assert_memory_equal(&list.tensors[0], &m.tensors[0], sizeof(dw_tensor));
    dw_slices_release(&list);
    assert_int_equal(dw_slices_open(&list, m.tensors, 3, NULL, 0, NULL), DW_OK);
    dw_slices_release(&list);
    model_free(&m);
}

TEST(test_units)
{
    static const uint64_t d[] = {16};
    static const struct {
        dw_dtype dtype;
        uint64_t first, unit;
    } cases[] = {{DW_C64, 3, 6}, {DW_F4, 6, 3}, {DW_F6_E2M3, 8, 6}, {DW_F64, 5, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dw_tensor t = {.dtype = cases[i].dtype, .n_dims = 1, .dims = d};
        const dw_slice s = {0, cases[i].first, 4};
        assert_int_equal(dw_slice_first_unit(&t, &s), cases[i].unit);
    }
}

TEST(test_refused)
{
    model m = model_new(4);
    static const uint64_t d[] = {4, 5}, none[] = {0};
    model_set(&m, 0, "w", DW_BF16, 2, d, 0);
    model_set(&m, 1, "f4", DW_F4, 2, d, 0);
    model_set(&m, 2, "f6", DW_F6_E3M2, 2, d, 0);
    model_set(&m, 3, "e", DW_F32, 1, none, 0);
    static const struct {
        dw_slice slices[2];
        const char *text;
    } cases[] = {
        {{{4, 0, 1}, {0, 0, 1}}, "slice of tensor 4, but there are 4"},
        {{{0, 0, 21}, {3, 0, 0}},
         "tensor 'w': a slice of 21 elements from 0 on passes its end"},
        {{{0, 21, 0}, {3, 0, 0}},
         "tensor 'w': a slice of 0 elements from 21 on passes its end"},
        {{{3, 0, 0}, {0, UINT64_MAX, 2}},
         "tensor 'w': a slice of 2 elements from 18446744073709551615 on passes its end"},
        {{{0, 2, UINT64_MAX}, {3, 0, 0}},
         "tensor 'w': a slice of 18446744073709551615 elements from 2 on passes its end"},
        {{{0, 3, 0}, {3, 0, 0}}, "tensor 'w': the slice at 3 is empty"},
        {{{1, 3, 2}, {3, 0, 0}},
         "tensor 'f4': the slice at 3 begins or ends inside a byte"},
        {{{1, 2, 3}, {3, 0, 0}},
         "tensor 'f4': the slice at 2 begins or ends inside a byte"},
        {{{2, 2, 4}, {3, 0, 0}},
         "tensor 'f6': the slice at 2 begins or ends inside a byte"},
        {{{0, 5, 5}, {0, 9, 1}}, "tensor 'w': two slices overlap at element 9"},
        {{{0, 9, 1}, {0, 5, 5}}, "tensor 'w': two slices overlap at element 9"},
        {{{0, 0, 20}, {0, 0, 20}}, "tensor 'w': two slices overlap at element 0"},
        {{{3, 0, 0}, {3, 0, 0}}, "tensor 'e': two slices overlap at element 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dw_slice_list list;
        dw_error err;
        assert_int_equal(dw_slices_open(&list, m.tensors, 4, cases[i].slices, 2, &err),
                         DW_INVALID);
        assert_string_equal(err.text, cases[i].text);
    }
    /* errors of the caller that this file does not check */
    dw_tensor odd = m.tensors[0];
    dw_digest digest;
    odd.first_byte = 3;
    assert_int_equal(dw_digest_tensors(&digest, NULL, &odd, 1, 1, NULL, NULL),
                     DW_INVALID);
    odd.first_byte = UINT64_MAX - 39;
    assert_int_equal(dw_digest_tensors(&digest, NULL, &odd, 1, 1, NULL, NULL),
                     DW_INVALID);
    odd.first_byte = 4;
    dw_delta *delta;
    dw_error err;
    assert_int_equal(dw_delta_diff(&delta, &m.tensors[0], &odd, 1, NULL, &err),
                     DW_MISMATCH);
    assert_string_equal(err.text, "tensor 'w': the slices begin at different bytes");
    model_free(&m);
}

static model small;
static const dw_slice two[] = {{0, 1, 2}, {0, 4, 3}};

static dw_status open_two(dw_error *err)
{
    dw_slice_list list;
    dw_status status = dw_slices_open(&list, small.tensors, 1, two, 2, err);
    if (status == DW_OK)
        dw_slices_release(&list);
    return status;
}

TEST(test_no_memory)
{
    static const uint64_t d[] = {10};
    small = model_new(1);
    model_set(&small, 0, "w", DW_BF16, 1, d, 0);
    fail_every_allocation(open_two, NULL);
    model_free(&small);
}

RUN_TESTS(NULL, NULL)
