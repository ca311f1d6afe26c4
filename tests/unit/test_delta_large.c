/* A tensor of more than 2^32 elements. It is a mapping of zero pages, and few of them are
 * ever allocated. */
/* labels: slow */
#include <sys/mman.h>

#include "unit/suite.h"

#include "deltawire/deltawire.h"

static const uint64_t dims[] = {(1ull << 32) + 5000};

static uint8_t *map_zeros(void)
{
    void *p = mmap(NULL, dims[0], PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static uint8_t *old, *new_;

static const uint64_t at[] = {
    0, 5, 1ull << 31, (1ull << 32) - 1, 1ull << 32, (1ull << 32) + 4999};
enum { N_AT = sizeof at / sizeof at[0] };

static void change(uint8_t *weights, uint8_t value)
{
    for (size_t i = 0; i < N_AT; i++)
        weights[at[i]] = value ? (uint8_t)(value + i) : 0;
}

TEST(test_class)
{
    const dw_tensor base = {"w", DW_U8, 1, dims, dims[0], old, 0, NULL};
    const dw_tensor next = {"w", DW_U8, 1, dims, dims[0], new_, 0, NULL};
    change(new_, 9);
    dw_delta *delta;
    dw_delta_info info;
    dw_error err;
    assert_int_equal(dw_delta_diff(&delta, &base, &next, 1, NULL, &err), DW_OK);
    dw_delta_get_info(delta, &info);
    assert_int_equal(info.n_changed, N_AT);
    assert_true(info.n_model_elems == dims[0]);
    assert_true(info.n_bytes < 10000); /* a byte for each block, and little more */

    dw_patch *patch;
    dw_digest after, zeros = 0;
    dw_apply_options options = {
        .struct_bytes = sizeof options, .base_digests = &zeros, .new_digests = &after};
    assert_int_equal(dw_delta_stage(&patch, delta, &base, 1, &options, &err), DW_OK);
    assert_int_equal(dw_patch_changed(patch), N_AT);
    assert_int_equal(dw_patch_apply(patch, &base, 1, 2, &err), DW_OK);
    for (size_t i = 0; i < N_AT; i++)
        assert_int_equal(old[at[i]], 9 + i);
    change(old, 0);
    dw_patch_free(patch);

    assert_int_equal(dw_delta_apply(delta, &base, 1, &options, &err), DW_OK);
    for (size_t i = 0; i < N_AT; i++)
        assert_int_equal(old[at[i]], 9 + i);
    assert_true(dw_digest_state(&base, &after, 1) == info.new_state);
    change(old, 0);
    dw_delta_close(delta);
}

/* Gaps are limited to 32 bits, positions to 31. */
TEST(test_trl)
{
    const dw_tensor base = {"w", DW_U8, 1, dims, dims[0], old, 0, NULL};
    const dw_tensor next = {"w", DW_U8, 1, dims, dims[0], new_, 0, NULL};
    const dw_digest zeros = 0;
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.codec = DW_CODEC_GAP;
    options.base_digests = &zeros;
    dw_delta *delta;
    dw_error err;
    dw_apply_options apply = {.struct_bytes = sizeof apply, .base_digests = &zeros};
    assert_int_equal(dw_delta_diff(&delta, &base, &next, 1, &options, &err), DW_OK);
    assert_int_equal(dw_delta_apply(delta, &base, 1, &apply, &err), DW_OK);
    for (size_t i = 0; i < N_AT; i++)
        assert_int_equal(old[at[i]], 9 + i);
    change(old, 0);
    dw_delta_close(delta);

    change(new_, 0);
    new_[(1ull << 32) + 1] = 1; /* a single change, too far from the start */
    assert_int_equal(dw_delta_diff(&delta, &base, &next, 1, &options, &err),
                     DW_UNSUPPORTED);
    assert_string_equal(err.text, "tensor 'w': a gap passes 32 bits: use codec class");
    options.codec = DW_CODEC_RAW;
    assert_int_equal(dw_delta_diff(&delta, &base, &next, 1, &options, &err),
                     DW_UNSUPPORTED);
    assert_string_equal(err.text,
                        "tensor 'w': positions pass 31 bits: use codec class or gap");
}

int main(void)
{
    if (getenv("DW_SANITIZE") && *getenv("DW_SANITIZE"))
        return 77;
    old = map_zeros();
    new_ = map_zeros();
    if (!old || !new_)
        return 77;
    return suite_run(NULL, NULL);
}
