/* What a model writes is carried as JSON: text that is UTF-8 as it is, the rest replaced.
 * jansson's own check is what it is compared with. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_three_bytes),
        cmocka_unit_test(amid_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
