/* wrap: gethostname */
#include <errno.h>

#include "unit/suite.h"

#include "base/json.h"
#include "base/text.h"

static const char *clean(const char *text)
{
    static char out[DW_HOST_NAME_TEXT];
    dw_text_clean(out, sizeof out, text);
    return out;
}

TEST(test_text_stays_as_it_is)
{
    static const char *const texts[] = {
        "",
        "trainer-3.example.org",
        "b\xc3\xbc"
        "ro",
        "\xe2\x82\xac \xf0\x9f\x9a\x80",
        " ~",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_string_equal(clean(texts[i]), texts[i]);
}

TEST(test_what_a_terminal_obeys_is_replaced)
{
    assert_string_equal(clean("a\x1b[2J\r\n\t\x7f"), "a?[2J????");
    assert_string_equal(clean("\xc2\x9b"
                              "2J\xc2\xa0"),
                        "?2J\xc2\xa0"); /* CSI of C1; the no-break space stays */
    assert_string_equal(clean("\xe2\x80\xae"
                              "txt\xe2\x81\xa6\xe2\x80\xa8\xd8\x9c\xe2\x80\x8f"),
                        "?txt????");
}

TEST(test_what_is_not_shown)
{
    static const char *const hidden[] = {"\x1b",         "\x7f",
                                         "\xc2\x9b",     "\xc2\xad",
                                         "\xe2\x80\x8b", "\xe2\x80\xae",
                                         "\xe2\x81\xa6", "\xe2\x81\xa0",
                                         "\xef\xbb\xbf", "\xf3\xa0\x81\x81"};
    static const char *const shown[] = {"",
                                        "a",
                                        "~",
                                        "\xc2\xa0",
                                        "\xff",
                                        "\xe2\x80",
                                        "\xe2\x80\x93",
                                        "\xe2\x82\xac",
                                        "\xf0\x9f\x9a\x80"};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        assert_int_equal(dw_text_unshown(hidden[i]), strlen(hidden[i]));
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        assert_int_equal(dw_text_unshown(shown[i]), 0);
}

TEST(test_bytes_that_are_not_utf8_are_replaced)
{
    assert_string_equal(clean("a\xff\xfe"
                              "b\xc3"),
                        "a??b?");
    assert_string_equal(clean("\xed\xa0\x80 \xc0\xaf"), "??? ??");
}

TEST(test_long_text_is_cut_after_a_whole_character)
{
    char text[600], out[8];
    memset(text, 'h', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(strlen(clean(text)), DW_HOST_NAME_TEXT - 1);
    dw_text_clean(out, sizeof out, "12345\xe2\x82\xac");
    assert_string_equal(out, "12345");
    dw_text_clean(out, sizeof out, "1234\xe2\x82\xac");
    assert_string_equal(out, "1234\xe2\x82\xac");
    dw_text_clean(out, sizeof out, "\xff\xff\xff\xff\xff\xff\xff\xff\xff");
    assert_string_equal(out, "???????");
}

/* ---- the name of the machine ---- */

static const char *host; /* NULL: the call fails */

int __wrap_gethostname(char *name, size_t n);

int __wrap_gethostname(char *name, size_t n)
{
    if (!host) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strncpy(name, host, n); /* like the system: a truncated name has no NUL */
    return 0;
}

static const char *host_name(const char *name)
{
    static char out[DW_HOST_NAME_TEXT];
    host = name;
    dw_host_name(out);
    assert_true(dw_utf8_valid(out));
    return out;
}

TEST(test_host_names)
{
    char text[600];
    memset(text, 'h', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_string_equal(host_name("trainer-3"), "trainer-3");
    assert_string_equal(host_name("bad\x1b]0;\x07\xff"), "bad?]0;??");
    assert_string_equal(host_name(""), "?");
    assert_string_equal(host_name(NULL), "?");
    assert_int_equal(strlen(host_name(text)), DW_HOST_NAME_TEXT - 1);
}

RUN_TESTS(NULL, NULL)
