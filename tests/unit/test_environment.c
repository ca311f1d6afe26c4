#include "unit/suite.h"

#include "base/environment.h"
#include "base/mem.h"

static size_t count(char *const *all, const char *entry)
{
    size_t n = 0;
    for (; *all; all++)
        n += strcmp(*all, entry) == 0;
    return n;
}

/* A name that only begins like another one is another one. */
TEST(test_extend)
{
    assert_int_equal(setenv("DW_TEST_A", "old", 1), 0);
    assert_int_equal(setenv("DW_TEST_AB", "stays", 1), 0);
    char *a = dw_environment_variable("DW_TEST_A", "new=1");
    char *b = dw_environment_variable("DW_TEST_NONE", "");
    assert_string_equal(a, "DW_TEST_A=new=1");
    char *extra[] = {a, b, NULL};
    char **all = dw_environment_extend(extra);
    assert_non_null(all);
    assert_int_equal(count(all, "DW_TEST_A=new=1"), 1);
    assert_int_equal(count(all, "DW_TEST_A=old"), 0);
    assert_int_equal(count(all, "DW_TEST_AB=stays"), 1);
    assert_int_equal(count(all, "DW_TEST_NONE="), 1);
    dw_free(all);
    dw_free(a);
    dw_free(b);
}

RUN_TESTS(NULL, NULL)
