#include "unit/suite.h"

#include "random_model.h"

/* From OLD to NEW and back to NEW, on bit patterns. */
static void check_pair(uint64_t old, uint64_t new_, unsigned bits, bool is_float)
{
    uint64_t move = dw_move_between(old, new_, bits, is_float);
    assert_true(bits == 64 || move >> bits == 0);
    assert_true(dw_move_apply(old, move, bits, is_float) == new_);
}

TEST(test_all_pairs_of_8_bits)
{
    for (int is_float = 0; is_float < 2; is_float++)
        for (uint64_t a = 0; a < 256; a++)
            for (uint64_t b = 0; b < 256; b++)
                if (a != b)
                    check_pair(a, b, 8, is_float);
}

/* Every move changes the element, and every move within the element's bits is valid. */
TEST(test_all_moves_of_8_bits)
{
    for (int is_float = 0; is_float < 2; is_float++)
        for (uint64_t a = 0; a < 256; a++)
            for (uint64_t move = 0; move < 256; move++) {
                uint64_t b = dw_move_apply(a, move, 8, is_float);
                assert_true(b < 256 && b != a);
            }
}

/* The mapping to numbers is one to one for all 16-bit patterns, in order of value. */
TEST(test_rank)
{
    static bool seen[65536];
    for (uint64_t x = 0; x < 65536; x++) {
        uint64_t rank = dw_element_rank(x, 16, true) & 0xffff;
        assert_false(seen[rank]);
        seen[rank] = true;
        assert_true((dw_element_unrank(rank, 16, true) & 0xffff) == x);
        assert_true(dw_element_rank(x, 16, false) == x);
    }
    /* -inf < -1 < -0 < +0 < smallest < 1 < inf < NaN, as BF16 */
    static const uint64_t ascending[] = {0xff80, 0xbf80, 0x8001, 0x8000, 0x0000,
                                         0x0001, 0x3f80, 0x7f80, 0x7fc0};
    for (size_t i = 1; i < sizeof ascending / sizeof ascending[0]; i++)
        assert_true((dw_element_rank(ascending[i - 1], 16, true) & 0xffff) <
                    (dw_element_rank(ascending[i], 16, true) & 0xffff));
}

/* Neighbours are one step apart: the smallest codes, 0 up and 1 down. */
TEST(test_one_step)
{
    static const struct {
        uint64_t old, new_;
        unsigned bits;
        bool is_float;
        uint64_t move;
    } cases[] = {
        {0x3f80, 0x3f81, 16, true, 0},  {0x3f81, 0x3f80, 16, true, 1},
        {0xbf80, 0xbf81, 16, true, 1},  {0xbf81, 0xbf80, 16, true, 0},
        {0x8000, 0x0000, 16, true, 0},  {0x0000, 0x8000, 16, true, 1},
        {0x0000, 0x0001, 16, true, 0},  {0x8000, 0x8001, 16, true, 1},
        {0xffff, 0x0000, 16, false, 0}, {0x0000, 0xffff, 16, false, 1},
        {0x7fff, 0x8000, 16, false, 0}, {0xff, 0, 8, false, 0},
        {5, 8, 64, false, 4},           {8, 5, 64, false, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_true(dw_move_between(cases[i].old, cases[i].new_, cases[i].bits,
                                    cases[i].is_float) == cases[i].move);
}

/* Edges of each type against each other and against random patterns. */
TEST(test_wide_pairs)
{
    static const unsigned mantissa[] = {7, 10, 23, 52};
    static const unsigned widths[] = {16, 16, 32, 64};
    for (size_t f = 0; f < 4; f++) {
        const unsigned bits = widths[f], m = mantissa[f];
        const uint64_t sign = 1ull << (bits - 1), mask = ~0ull >> (64 - bits);
        const uint64_t inf = (sign - 1) & ~((1ull << m) - 1);
        uint64_t edges[24] = {0,          1,
                              2,          inf,
                              inf - 1,    inf + 1,
                              sign - 1,   (1ull << m) - 1,
                              1ull << m,  inf | 1ull << (m - 1),
                              inf | 0x55, (sign >> 1)};
        for (size_t i = 0; i < 12; i++)
            edges[12 + i] = edges[i] | sign;
        for (int is_float = 0; is_float < 2; is_float++)
            for (size_t a = 0; a < 24; a++) {
                for (size_t b = 0; b < 24; b++)
                    if (edges[a] != edges[b])
                        check_pair(edges[a], edges[b], bits, is_float);
                for (size_t i = 0; i < 500; i++) {
                    uint64_t x = random64() & mask, y = random64() & mask;
                    if (x != edges[a]) {
                        check_pair(edges[a], x, bits, is_float);
                        check_pair(x, edges[a], bits, is_float);
                    }
                    if (x != y)
                        check_pair(x, y, bits, is_float);
                    uint64_t move = random64() & mask;
                    assert_true(dw_move_apply(x, move, bits, is_float) != x);
                }
            }
    }
}

TEST(test_load_and_store)
{
    uint8_t bytes[64];
    for (unsigned width = 1; width <= 8; width *= 2)
        for (unsigned shift = 0; shift < 8; shift++)
            for (uint64_t i = 0; i < 6; i++) {
                uint64_t v = random64() >> (64 - 8 * width);
                memset(bytes, 0xcc, sizeof bytes);
                dw_element_store(bytes + shift, i, width, v);
                assert_true(dw_element_load(bytes + shift, i, width) == v);
                for (size_t b = 0; b < sizeof bytes; b++)
                    if (b < shift + i * width || b >= shift + (i + 1) * width)
                        assert_int_equal(bytes[b], 0xcc);
            }
}

RUN_TESTS(NULL, NULL)
