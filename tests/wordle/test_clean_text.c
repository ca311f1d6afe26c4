/* A model's output as JSON: valid UTF-8 is kept, other bytes are replaced. Compared with
 * jansson's own check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "clean_text.h"

static void check(const uint8_t *bytes, size_t n)
{
    json_t *strict = json_stringn((const char *)bytes, n);
    json_t *clean = clean_text((const char *)bytes, n);
    assert_non_null(clean);
    if (strict && !memchr(bytes, 0, n))
        assert_true(json_equal(strict, clean));
    else
        assert_non_null(strstr(json_string_value(clean), "\xef\xbf\xbd"));
    json_decref(strict);
    json_decref(clean);
}

static void every_three_bytes(void **state)
{
    (void)state;
    check((const uint8_t *)"", 0);
    for (unsigned i = 0; i < 1 << 16; i++) {
        const uint8_t lead[] = {(uint8_t)(i >> 8), (uint8_t)i, 'x'};
        const uint8_t tail[] = {(uint8_t)(i >> 8), (uint8_t)i, 0x80, 0xbf};
        check(lead, 1);
        check(lead, 2);
        check(lead, 3);
        check(tail, 3);
        check(tail, 4);
    }
}

static void amid_text(void **state)
{
    (void)state;
    json_t *clean = clean_text("a\xc3\xa4\xff\0b\xf0\x9f", 8);
    assert_string_equal(json_string_value(clean), "a\xc3\xa4\xef\xbf\xbd\xef\xbf\xbd"
                                                  "b\xef\xbf\xbd\xef\xbf\xbd");
    json_decref(clean);
}

/* Offsets count characters; an invalid byte counts as one. */
static void places(void **state)
{
    (void)state;
    static const char text[] = "a\xc3\xa4\xff\xe2\x82\xac"
                               "b";
    static const size_t expected[] = {0, 1, 1, 2, 3, 3, 3, 4, 5, 5};
    clean_place going = {0};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        clean_place from_start = {0};
        clean_text_seek(&going, text, sizeof text - 1, i);
        clean_text_seek(&from_start, text, sizeof text - 1, i);
        assert_int_equal(going.n_characters, expected[i]);
        assert_int_equal(from_start.n_characters, expected[i]);
    }
    clean_place nowhere = {0};
    clean_text_seek(&nowhere, NULL, 0, 7);
    assert_int_equal(nowhere.n_characters, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_three_bytes),
        cmocka_unit_test(amid_text),
        cmocka_unit_test(places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
