#include <errno.h>

#include "unit/suite.h"

#include "base/error.h"
#include "base/json.h"

TEST(test_fail_fills_the_record)
{
    dw_error err;
    assert_int_equal(dw_fail(&err, DW_STALE, "file", "n is %d", 3), DW_STALE);
    assert_int_equal(err.code, DW_STALE);
    assert_string_equal(err.where, "file");
    assert_string_equal(err.text, "n is 3");
    assert_int_equal(dw_fail(NULL, DW_IO, "file", "text"), DW_IO);
    dw_fail(&err, DW_IO, NULL, "text");
    assert_string_equal(err.where, "");
}

TEST(test_control_bytes_are_escaped)
{
    dw_error err;
    dw_fail(&err, DW_IO, "a\nb", "\x1b[1m\x7f\xc3\xa9");
    assert_string_equal(err.where, "a\\x0ab");
    assert_string_equal(err.text, "\\x1b[1m\\x7f\xc3\xa9");
    dw_fail(&err, DW_IO, "a\xe2\x80\xae\x1b\x1b", "gpj\xe2\x81\xa6.\xc2\x9b");
    assert_string_equal(err.where, "a\\xe2\\x80\\xae\\x1b\\x1b");
    assert_string_equal(err.text, "gpj\\xe2\\x81\\xa6.\\xc2\\x9b");
}

/* Text of every length near the limit, in characters of 2, 3 and 4 bytes, ends with
 * a whole character. */
TEST(test_cut_at_whole_characters)
{
    static const char *const characters[] = {"\xc3\xa9", "\xe2\x82\xac",
                                             "\xf0\x9f\x98\x80"};
    for (size_t c = 0; c < 3; c++) {
        for (size_t n_before = 0; n_before < 8; n_before++) {
            char text[2 * DW_ERROR_TEXT_SIZE];
            size_t n = n_before;
            memset(text, 'a', n);
            while (n < sizeof text - 8)
                n += (size_t)snprintf(text + n, 8, "%s", characters[c]);
            dw_error err;
            dw_fail(&err, DW_IO, text, "%s", text);
            assert_true(dw_utf8_valid(err.text));
            assert_true(dw_utf8_valid(err.where));
            assert_true(strlen(err.text) > DW_ERROR_TEXT_SIZE - 5);
            assert_true(strlen(err.where) > DW_ERROR_WHERE_SIZE - 5);
            dw_fail_tensor(&err, DW_IO, NULL, text, "the fault");
            assert_true(dw_utf8_valid(err.text));
            assert_non_null(strstr(err.text, "...': the fault"));
        }
    }
    dw_error err;
    dw_fail(&err, DW_IO, "", "whole \xc3\xa9");
    assert_string_equal(err.text, "whole \xc3\xa9");
}

TEST(test_fail_errno)
{
    dw_error err;
    errno = ENOENT;
    assert_int_equal(dw_fail_errno(&err, "f", "open"), DW_NOT_FOUND);
    assert_string_equal(err.text, "cannot open: No such file or directory");
    errno = ENOSPC;
    assert_int_equal(dw_fail_errno(&err, "f", "write"), DW_IO);
    assert_string_equal(err.text, "cannot write: No space left on device");
    assert_int_equal(dw_fail_memory(&err, "f"), DW_NO_MEMORY);
}

TEST(test_status_names)
{
    for (int i = DW_OK; i <= DW_CANCELLED; i++)
        assert_string_not_equal(dw_status_name((dw_status)i), "unknown");
    assert_string_equal(dw_status_name((dw_status)99), "unknown");
}

RUN_TESTS(NULL, NULL)
