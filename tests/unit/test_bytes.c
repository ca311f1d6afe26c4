#include "unit/suite.h"

#include "base/bytes.h"
#include "base/json.h"
#include "failing_allocator.h"

TEST(test_reader_stops_at_the_end)
{
    static const uint8_t bytes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    dw_reader r = dw_reader_of(bytes, sizeof bytes);
    assert_true(dw_read_u64(&r) == 0x0807060504030201);
    assert_int_equal(dw_reader_left(&r), 1);
    assert_true(dw_read_u64(&r) == 0);
    assert_true(r.failed);
    assert_int_equal(dw_read_u8(&r), 0); /* though one byte is left */
    assert_null(dw_read_bytes(&r, 0));

    r = dw_reader_of(bytes, sizeof bytes);
    assert_null(dw_read_bytes(&r, UINT64_MAX));
    r = dw_reader_of(NULL, 0);
    assert_int_equal(dw_read_u8(&r), 0);
    assert_true(r.failed);
}

TEST(test_unaligned_words)
{
    uint8_t bytes[9] = {0};
    dw_store16(bytes + 1, 0x0201);
    assert_int_equal(dw_load16(bytes + 1), 0x0201);
    dw_store32(bytes + 1, 0x04030201);
    assert_int_equal(dw_load32(bytes + 1), 0x04030201);
    dw_store64(bytes + 1, 0x0807060504030201);
    assert_true(dw_load64(bytes + 1) == 0x0807060504030201);
    assert_memory_equal(bytes, "\0\1\2\3\4\5\6\7\10", 9);
}

TEST(test_varint_round_trip)
{
    for (unsigned shift = 0; shift < 64; shift++) {
        for (int step = -1; step <= 1; step++) {
            uint64_t v = ((uint64_t)1 << shift) + (uint64_t)(int64_t)step;
            dw_writer w = {0};
            dw_write_varint(&w, v);
            assert_false(w.failed);
            dw_reader r = dw_reader_of(w.bytes, w.n_bytes);
            assert_true(dw_read_varint(&r) == v);
            assert_false(r.failed);
            assert_int_equal(dw_reader_left(&r), 0);
            for (size_t n = 0; n < w.n_bytes; n++) {
                r = dw_reader_of(w.bytes, n);
                assert_true(dw_read_varint(&r) == 0);
                assert_true(r.failed);
            }
            dw_writer_release(&w);
        }
    }
}

static void assert_varint_refused(const char *bytes, size_t n_bytes)
{
    dw_reader r = dw_reader_of(bytes, n_bytes);
    assert_true(dw_read_varint(&r) == 0);
    assert_true(r.failed);
}

TEST(test_varint_has_one_spelling)
{
    assert_varint_refused("\x80\x00", 2);
    assert_varint_refused("\xff\x80\x00", 3);
    assert_varint_refused("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 10);
    assert_varint_refused("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00", 11);
    dw_reader r = dw_reader_of("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 10);
    assert_true(dw_read_varint(&r) == UINT64_MAX);
}

TEST(test_writer_grows)
{
    dw_writer w = {0};
    for (unsigned i = 0; i < 5000; i++)
        dw_write_format(&w, "%04u", i);
    dw_write_text(&w, "");
    dw_write_bytes(&w, NULL, 0);
    assert_false(w.failed);
    assert_int_equal(w.n_bytes, 20000);
    assert_memory_equal(w.bytes + 4 * 1234, "1234", 4);
    dw_writer_release(&w);
    assert_null(w.bytes);
}

TEST(test_writer_formats_long_text)
{
    for (int n = 510; n < 515; n++) {
        dw_writer w = {0};
        dw_write_text(&w, "<");
        dw_write_format(&w, "%*d", n, 7);
        dw_write_text(&w, ">");
        assert_false(w.failed);
        assert_int_equal(w.n_bytes, n + 2);
        assert_memory_equal(w.bytes + n, "7>", 2);
        dw_writer_release(&w);
    }
}

TEST(test_writer_remembers_failure)
{
    failing_allocator a;
    failing_allocator_install(&a, 1);
    dw_writer w = {0};
    dw_write_u64(&w, 1);
    assert_false(w.failed);
    uint8_t block[4096] = {0};
    dw_write_bytes(&w, block, sizeof block);
    assert_true(w.failed);
    dw_write_u8(&w, 1); /* would fit */
    assert_int_equal(w.n_bytes, 8);
    dw_writer_release(&w);
    assert_int_equal(a.n_live, 0);
    dw_set_allocator(NULL);
}

TEST(test_json_string)
{
    dw_writer w = {0};
    dw_write_json_string(&w, "a\"\\/\b\f\n\r\t\x01\x1f\x7f\xc3\xa9");
    dw_write_json_string(&w, "");
    static const char expected[] =
        "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xc3\xa9\"\"\"";
    assert_int_equal(w.n_bytes, sizeof expected - 1);
    assert_memory_equal(w.bytes, expected, w.n_bytes);
    dw_writer_release(&w);
}

TEST(test_valid_text_and_reals)
{
    dw_writer w = {0};
    dw_write_utf8(&w, "a\xff\xc3\xa9\xe2\x82|");
    dw_write_real(&w, 0.1, 9);
    dw_write_text(&w, " ");
    dw_write_real(&w, -3, 9);
    dw_write_text(&w, " ");
    dw_write_real(&w, 1.5e-30, 15);
    static const char expected[] =
        "a\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd|0.1 -3 1.5e-30";
    assert_int_equal(w.n_bytes, sizeof expected - 1);
    assert_memory_equal(w.bytes, expected, w.n_bytes);
    dw_writer_release(&w);
}

TEST(test_utf8)
{
    static const char *const valid[] = {
        "",
        "a\x7f",
        "\xc2\x80",
        "\xdf\xbf",
        "\xe0\xa0\x80",
        "\xed\x9f\xbf",
        "\xee\x80\x80",
        "\xef\xbf\xbf",
        "\xf0\x90\x80\x80",
        "\xf4\x8f\xbf\xbf",
    };
    static const char *const invalid[] = {
        "\x80",
        "\xc0\x80",
        "\xc1\xbf",
        "\xc2",
        "\xc2z",
        "\xe0\x9f\xbf",
        "\xe2\x82",
        "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xf0\x90\x80",
        "\xff",
    };
    for (size_t i = 0; i < sizeof valid / sizeof *valid; i++)
        assert_true(dw_utf8_valid(valid[i]));
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++)
        assert_false(dw_utf8_valid(invalid[i]));
}

RUN_TESTS(NULL, NULL)
