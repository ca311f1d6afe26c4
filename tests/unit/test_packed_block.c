#include "unit/suite.h"

#include "codec/packed_block.h"
#include "random_model.h"

static dw_packed_scratch *scratch;

static int make_scratch(void **state)
{
    (void)state;
    scratch = dw_packed_scratch_new();
    return scratch ? 0 : -1;
}

static int free_scratch(void **state)
{
    (void)state;
    dw_packed_scratch_free(scratch);
    return 0;
}

static size_t check_round_trip(const uint8_t *elems, uint32_t n, dw_element element)
{
    const size_t n_plain = (size_t)n * element.width;
    const uint8_t *bytes;
    size_t n_bytes = dw_packed_encode(&bytes, scratch, elems, n, element);
    assert_true(n_bytes > 0);
    assert_true(n_bytes <= n_plain + 4 * element.width); /* a head for each plane */
    uint8_t *copy = malloc(n_bytes), *back = malloc(n_plain + !n_plain);
    memcpy(copy, bytes, n_bytes);
    memset(back, 0xcc, n_plain);
    assert_true(dw_packed_decode(back, scratch, copy, n_bytes, n, element));
    assert_memory_equal(back, elems, n_plain);
    free(copy);
    free(back);
    return n_bytes;
}

TEST(test_round_trips)
{
    for (unsigned dtype = 0; dtype < DW_DTYPE_COUNT; dtype++) {
        const dw_element element = dw_dtype_element((dw_dtype)dtype);
        for (uint32_t n = 0; n <= 200; n++) {
            uint8_t *elems = malloc((size_t)n * element.width + 1);
            fill_weights(elems + 1, n, element);
            check_round_trip(elems + 1, n, element);
            for (uint32_t i = 0; i < n * element.width; i++)
                elems[1 + i] = (uint8_t)random64();
            check_round_trip(elems + 1, n, element);
            free(elems);
        }
    }
}

/* Weights pack well because they have few exponents. Noise does not, but adds almost
 * nothing. */
TEST(test_full_blocks)
{
    static const struct {
        dw_dtype dtype;
        double most; /* of the plain size */
    } cases[] = {{DW_BF16, 0.75}, {DW_F32, 0.90}, {DW_F16, 0.98},
                 {DW_F64, 0.95},  {DW_U8, 1.001}, {DW_F8_E4M3, 1.001}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const dw_element element = dw_dtype_element(cases[c].dtype);
        const uint32_t n = element.width <= 2 ? 1u << 20 : (2u << 20) / element.width;
        uint8_t *elems = malloc((size_t)n * element.width);
        fill_weights(elems, n, element);
        size_t n_bytes = check_round_trip(elems, n, element);
        assert_true((double)n_bytes <= cases[c].most * n * element.width);
        for (size_t i = 0; i < (size_t)n * element.width / 8; i++)
            dw_store64(elems + 8 * i, random64());
        check_round_trip(elems, n, element);
        memset(elems, 0x3f, (size_t)n * element.width);
        assert_true(check_round_trip(elems, n, element) < 2000);
        free(elems);
    }
}

/* The bytes of the format: planes from the most significant, floats rotated left by one.
 */
TEST(test_layout)
{
    static const uint8_t bf16[] = {0x80, 0xbf, 0x81, 0x3f}; /* -1, 1 + ulp */
    const uint8_t *bytes;
    size_t n = dw_packed_encode(&bytes, scratch, bf16, 2, dw_dtype_element(DW_BF16));
    assert_int_equal(n, 6);
    assert_memory_equal(bytes, "\x04\x7f\x7f\x04\x01\x02", 6);
    n = dw_packed_encode(&bytes, scratch, bf16, 2, dw_dtype_element(DW_U16));
    assert_int_equal(n, 6);
    assert_memory_equal(bytes, "\x04\xbf\x3f\x04\x80\x81", 6);
}

TEST(test_altered_blocks)
{
    static const dw_dtype dtypes[] = {DW_U8, DW_BF16, DW_F32, DW_F64};
    for (size_t k = 0; k < 4; k++) {
        const dw_element element = dw_dtype_element(dtypes[k]);
        enum { N = 400 };
        uint8_t *elems = malloc((size_t)N * element.width);
        fill_weights(elems, N, element);
        memset(elems + (size_t)N / 2 * element.width, 0, (size_t)N / 2 * element.width);
        const uint8_t *encoded;
        size_t n_bytes = dw_packed_encode(&encoded, scratch, elems, N, element);
        uint8_t *bytes = malloc(n_bytes + 1);
        memcpy(bytes, encoded, n_bytes);
        bytes[n_bytes] = 0;
        assert_false(dw_packed_decode(elems, scratch, bytes, n_bytes + 1, N, element));
        assert_false(dw_packed_decode(elems, scratch, bytes, n_bytes, N - 1, element));
        for (size_t n = 0; n < n_bytes; n++) {
            uint8_t *cut = malloc(n + !n);
            memcpy(cut, bytes, n);
            assert_false(dw_packed_decode(elems, scratch, cut, n, N, element));
            free(cut);
        }
        for (unsigned round = 0; round < 3000; round++) {
            size_t at = random_below(n_bytes);
            uint8_t kept = bytes[at];
            bytes[at] = (uint8_t)random64();
            dw_packed_decode(elems, scratch, bytes, n_bytes, N, element);
            if (round % 4)
                bytes[at] = kept;
        }
        free(bytes);
        free(elems);
    }
}

/* Frames that expand to more, or to less, than the plane. */
TEST(test_wrong_size)
{
    const dw_element element = dw_dtype_element(DW_U8);
    uint8_t elems[1000] = {0}, bytes[64];
    const uint8_t *encoded;
    size_t n_bytes = dw_packed_encode(&encoded, scratch, elems, 1000, element);
    assert_true(n_bytes < sizeof bytes);
    memcpy(bytes, encoded, n_bytes);
    for (uint32_t n = 0; n < 1000; n += 37) {
        uint8_t *small = malloc(n + 1);
        assert_false(dw_packed_decode(small, scratch, bytes, n_bytes, n, element));
        free(small);
    }
    uint8_t *large = malloc(2000);
    assert_false(dw_packed_decode(large, scratch, bytes, n_bytes, 1001, element));
    assert_false(dw_packed_decode(large, scratch, bytes, n_bytes, 2000, element));
    free(large);
}

RUN_TESTS(make_scratch, free_scratch)
