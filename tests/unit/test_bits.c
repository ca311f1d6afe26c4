#include "unit/suite.h"

#include "base/bits.h"
#include "random_model.h"

enum { ROOM = 1 << 16 };

static uint8_t room[ROOM + 8];

static uint64_t low_bits(uint64_t v, unsigned n_bits)
{
    return n_bits == 0 ? 0 : v & ~0ull >> (64 - n_bits);
}

/* Every width at every bit offset, zeros, ones and random values. */
TEST(test_round_trip)
{
    static const uint64_t values[] = {0, 1, ~0ull, 0xaaaaaaaaaaaaaaaaull, 1ull << 63};
    for (unsigned offset = 0; offset < 8; offset++)
        for (unsigned n_bits = 0; n_bits <= 64; n_bits++) {
            dw_bit_writer w = {.at = room};
            uint64_t written[6];
            dw_put_bits(&w, low_bits(0x55, offset), offset);
            for (size_t i = 0; i < 6; i++) {
                written[i] = low_bits(i < 5 ? values[i] : random64(), n_bits);
                if (n_bits <= 56 && i % 2)
                    dw_put_bits(&w, written[i], n_bits);
                else
                    dw_put_wide(&w, written[i], n_bits);
            }
            size_t n_bytes = (size_t)(dw_finish_bits(&w) - room);
            assert_int_equal(n_bytes, (offset + 6 * n_bits + 7) / 8);

            dw_bit_reader r = {room, n_bytes, 0};
            assert_int_equal(dw_get_bits(&r, offset), low_bits(0x55, offset));
            for (size_t i = 0; i < 6; i++) {
                uint64_t v = n_bits <= 56 && !(i % 2) ? dw_get_bits(&r, n_bits)
                                                      : dw_get_wide(&r, n_bits);
                assert_true(v == written[i]);
            }
            assert_int_equal(r.bit, offset + 6 * n_bits);
            assert_true(dw_bits_spent(&r));
        }
}

TEST(test_mixed_widths)
{
    enum { N = 5000 };
    static uint64_t values[N];
    static unsigned widths[N];
    dw_bit_writer w = {.at = room};
    uint64_t n_bits = 0;
    for (size_t i = 0; i < N; i++) {
        widths[i] = (unsigned)random_below(65);
        values[i] = low_bits(random64(), widths[i]);
        dw_put_wide(&w, values[i], widths[i]);
        n_bits += widths[i];
    }
    size_t n_bytes = (size_t)(dw_finish_bits(&w) - room);
    assert_int_equal(n_bytes, (n_bits + 7) / 8);
    /* a block of the exact size, so that ASan notices a read past it */
    uint8_t *exact = malloc(n_bytes);
    memcpy(exact, room, n_bytes);
    dw_bit_reader r = {exact, n_bytes, 0};
    for (size_t i = 0; i < N; i++) {
        assert_false(i < N - 64 && dw_bits_spent(&r));
        assert_true(dw_get_wide(&r, widths[i]) == values[i]);
    }
    assert_true(dw_bits_spent(&r));
    free(exact);
}

/* n values of b bits: least significant bit first, bytes in order. */
TEST(test_layout)
{
    dw_bit_writer w = {.at = room};
    dw_put_bits(&w, 0x5, 3);
    dw_put_bits(&w, 0x1ff, 9);
    dw_put_bits(&w, 0, 1);
    dw_put_bits(&w, 0x3, 2);
    assert_int_equal(dw_finish_bits(&w) - room, 2);
    assert_int_equal(room[0], 0xfd); /* 11111 101 */
    assert_int_equal(room[1], 0x6f); /* 0 11 0 1111 */
}

static unsigned golomb_bits(uint32_t v)
{
    unsigned n = 63 - (unsigned)__builtin_clzll((uint64_t)v + 1);
    return 2 * n + 1;
}

static void check_golomb(uint32_t v)
{
    dw_bit_writer w = {.at = room};
    dw_put_bits(&w, 1, 1 + v % 7);
    dw_put_golomb(&w, v);
    dw_put_bits(&w, 5, 3);
    size_t n_bytes = (size_t)(dw_finish_bits(&w) - room);
    dw_bit_reader r = {room, n_bytes, 0};
    dw_get_bits(&r, 1 + v % 7);
    uint64_t before = r.bit;
    assert_int_equal(dw_get_golomb(&r), v);
    assert_int_equal(r.bit - before, golomb_bits(v));
    assert_int_equal(dw_get_bits(&r, 3), 5);
    assert_true(dw_bits_spent(&r));
}

TEST(test_golomb)
{
    for (uint32_t v = 0; v < 70000; v++)
        check_golomb(v);
    for (unsigned k = 10; k < 32; k++)
        for (int d = -2; d <= 1; d++)
            check_golomb((1u << k) + (uint32_t)d);
    check_golomb(UINT32_MAX - 1);
}

/* After an invalid number the reader is never spent. */
TEST(test_golomb_refused)
{
    static const uint8_t zeros[8], late[8] = {0, 0, 0, 0, 1, 0xff, 0xff, 0xff};
    for (size_t n = 0; n <= 8; n++) {
        dw_bit_reader r = {zeros, n, 0};
        assert_int_equal(dw_get_golomb(&r), 0);
        assert_false(dw_bits_spent(&r));
        dw_bit_reader again = {late, n, 0};
        dw_get_golomb(&again);
        assert_false(dw_bits_spent(&again));
    }
}

TEST(test_spent)
{
    static const uint8_t bytes[] = {0xff, 0x07};
    dw_bit_reader r = {bytes, 2, 0};
    assert_false(dw_bits_spent(&r));
    r.bit = 8; /* a byte too many */
    assert_false(dw_bits_spent(&r));
    r.bit = 10; /* the padding is not zero */
    assert_false(dw_bits_spent(&r));
    for (r.bit = 11; r.bit <= 16; r.bit++)
        assert_true(dw_bits_spent(&r));
    for (r.bit = 17; r.bit < 100; r.bit++)
        assert_false(dw_bits_spent(&r));
    dw_bit_reader empty = {NULL, 0, 0};
    assert_true(dw_bits_spent(&empty));
    assert_int_equal(dw_get_bits(&empty, 1), 0);
    assert_false(dw_bits_spent(&empty));
}

/* All bits past the end are zeros. */
TEST(test_overrun)
{
    memset(room, 0xff, 16);
    for (size_t n_bytes = 0; n_bytes <= 16; n_bytes++) {
        uint8_t *exact = malloc(n_bytes + 1);
        memcpy(exact, room, n_bytes);
        for (unsigned at = 0; at < 200; at++) {
            dw_bit_reader r = {exact, n_bytes, at};
            uint64_t v = dw_get_wide(&r, 64);
            uint64_t n_good = at < 8 * n_bytes ? 8 * n_bytes - at : 0;
            assert_true(v == (n_good >= 64 ? ~0ull : (1ull << n_good) - 1));
            assert_int_equal(dw_bits_spent(&r), n_good == 64);
        }
        free(exact);
    }
}

RUN_TESTS(NULL, NULL)
