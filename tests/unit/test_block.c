#include "unit/suite.h"

#include "codec/block.h"
#include "every_kernel.h"
#include "failing_allocator.h"
#include "random_model.h"

static dw_block_scratch scratch;

static dw_status decode(dw_decoded *out, dw_block_mode mode, const uint8_t *bytes,
                        size_t n_bytes, const uint8_t *old, uint32_t n,
                        dw_element element, const dw_class_map *map, dw_error *err)
{
    dw_note note = dw_note_at(0);
    dw_status status = dw_block_decode(out, &scratch, mode, bytes, n_bytes, old, n,
                                       element, map, &note, err);
    /* in every mode the digest covers the changes */
    dw_digest_moves moves = dw_digest_moves_from(0);
    for (size_t i = 0; status == DW_OK && i < out->n_changes; i++)
        dw_digest_move(&moves, (uint64_t)out->positions[i] * element.width,
                       dw_element_load(old, out->positions[i], element.width),
                       dw_element_load(out->values, i, element.width), element.width);
    if (status == DW_OK)
        assert_true(dw_digest_moves_sum(&note.digest) == dw_digest_moves_sum(&moves));
    return status;
}

static int make_scratch(void **state)
{
    (void)state;
    return dw_block_scratch_init(&scratch, NULL);
}

static int free_scratch(void **state)
{
    (void)state;
    dw_block_scratch_release(&scratch);
    return 0;
}

/* Round trip of one block; returns the mode that was used. */
static dw_block_mode check_round_trip(const uint8_t *old, const uint8_t *new_, uint32_t n,
                                      dw_element element)
{
    const size_t n_plain = (size_t)n * element.width;
    dw_class_map map = dw_class_map_choose(old, n, element);
    dw_note note = dw_note_at(0);
    dw_block_code code;
    assert_int_equal(dw_block_encode(&code, &scratch, (void *)old, new_, n, element, &map,
                                     &note, NULL),
                     DW_OK);
    assert_int_equal(code.mode == DW_BLOCK_SAME, memcmp(old, new_, n_plain) == 0);
    assert_true(code.encoded.n_bytes <= n_plain); /* never larger than the plain block */
    kernel_hash(code.encoded.bytes, code.encoded.n_bytes);
    uint8_t *copy = malloc(code.encoded.n_bytes + 1), *result = malloc(n_plain + 1);
    const size_t n_bytes = code.encoded.n_bytes, n_changes = code.encoded.n_changes;
    if (n_bytes > 0)
        memcpy(copy, code.encoded.bytes, n_bytes);
    memcpy(result, old, n_plain);
    dw_decoded d;
    assert_int_equal(decode(&d, code.mode, copy, n_bytes, old, n, element, &map, NULL),
                     DW_OK);
    assert_int_equal(d.n_changes, n_changes);
    for (size_t i = 0; i < d.n_changes; i++) {
        assert_true(d.positions[i] < n &&
                    (i == 0 || d.positions[i] > d.positions[i - 1]));
        memcpy(result + (size_t)d.positions[i] * element.width,
               (const uint8_t *)d.values + i * element.width, element.width);
    }
    assert_memory_equal(result, new_, n_plain);
    free(copy);
    free(result);
    return code.mode;
}

TEST(test_every_dtype_and_length)
{
    static const unsigned per_mille[] = {0, 20, 300, 1000};
    for (unsigned dtype = 0; dtype < DW_DTYPE_COUNT; dtype++) {
        const dw_element element = dw_dtype_element((dw_dtype)dtype);
        for (uint32_t n = 0; n <= 200; n += 1 + (dtype % 3)) {
            uint8_t *old = malloc((size_t)n * element.width + 1),
                    *new_ = malloc((size_t)n * element.width + 1);
            fill_weights(old + 1, n, element);
            for (size_t p = 0; p < 4; p++) {
                memcpy(new_ + 1, old + 1, (size_t)n * element.width);
                change_weights(new_ + 1, n, element, per_mille[p]);
                check_round_trip(old + 1, new_ + 1, n, element);
            }
            free(old);
            free(new_);
        }
    }
}

/* Each kind of change uses the mode that is made for it. */
TEST(test_modes)
{
    const dw_element element = dw_dtype_element(DW_BF16);
    const uint32_t n = 1u << 18;
    uint8_t *old = malloc(2 * (size_t)n), *new_ = malloc(2 * (size_t)n);
    fill_weights(old, n, element);
    memcpy(new_, old, 2 * (size_t)n);
    assert_int_equal(check_round_trip(old, new_, n, element), DW_BLOCK_SAME);
    change_weights(new_, n, element, 10);
    assert_int_equal(check_round_trip(old, new_, n, element), DW_BLOCK_CLASS);
    fill_weights(new_, n, element); /* other weights */
    assert_int_equal(check_round_trip(old, new_, n, element), DW_BLOCK_PACKED);
    for (uint32_t i = 0; i < n; i++) /* noise */
        dw_store16(new_ + 2 * i, (uint16_t)random64());
    assert_int_equal(check_round_trip(old, new_, n, element), DW_BLOCK_STORED);
    free(old);
    free(new_);
}

TEST(test_wrong_lengths)
{
    const dw_element element = dw_dtype_element(DW_U16);
    const dw_class_map map = dw_class_map_make(element, 0);
    static const uint8_t old[20], stored[22] = {1};
    dw_decoded d;
    dw_error err = {0};
    for (size_t n_bytes = 0; n_bytes <= 22; n_bytes++)
        assert_int_equal(
            decode(&d, DW_BLOCK_STORED, stored, n_bytes, old, 10, element, &map, &err),
            n_bytes == 20 ? DW_OK : DW_CORRUPT);
    assert_int_equal(decode(&d, DW_BLOCK_PACKED, stored, 3, old, 10, element, &map, &err),
                     DW_CORRUPT);
    assert_int_equal(decode(&d, DW_BLOCK_CLASS, stored, 3, old, 10, element, &map, &err),
                     DW_CORRUPT);
    assert_int_equal(err.code, DW_OK); /* the caller fills the error */
}

/* Stored elements that equal the old ones are no changes. */
TEST(test_stored_lists_only_what_differs)
{
    const dw_element element = dw_dtype_element(DW_U8);
    const dw_class_map map = dw_class_map_make(element, 0);
    static const uint8_t old[] = "abcdefgh", stored[] = "abXdefgY";
    dw_decoded d;
    assert_int_equal(decode(&d, DW_BLOCK_STORED, stored, 8, old, 8, element, &map, NULL),
                     DW_OK);
    assert_int_equal(d.n_changes, 2);
    assert_int_equal(d.positions[0], 2);
    assert_int_equal(d.positions[1], 7);
    assert_memory_equal(d.values, "XY", 2);
}

/* ---- allocations -------------------------------------------------------------- */

static uint8_t small_old[64], small_new[64];

static dw_status encode_and_decode(dw_error *err)
{
    const dw_element element = dw_dtype_element(DW_U8);
    const dw_class_map map = dw_class_map_make(element, 0);
    dw_block_scratch s;
    dw_status status = dw_block_scratch_init(&s, err);
    if (status != DW_OK)
        return status;
    dw_block_code code;
    dw_decoded d;
    dw_note note = dw_note_at(0);
    status =
        dw_block_encode(&code, &s, small_old, small_new, 64, element, &map, &note, err);
    if (status == DW_OK)
        status = dw_block_decode(&d, &s, DW_BLOCK_STORED, small_new, 64, small_old, 64,
                                 element, &map, &note, err);
    if (status == DW_OK)
        status = dw_block_scratch_reserve(&s, err);
    dw_block_scratch_release(&s);
    return status;
}

TEST(test_allocations)
{
    for (size_t i = 0; i < 64; i++)
        small_new[i] = (uint8_t)random64();
    fail_every_allocation(encode_and_decode, NULL);
}

static int run(void)
{
    return suite_run(make_scratch, free_scratch);
}

int main(int argc, char **argv)
{
    (void)argc;
    return under_every_kernel(argv, run);
}
