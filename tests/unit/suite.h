/* What every test in C begins with, and the list of a file's tests: TEST(name) defines
 * one and puts it there, so none is forgotten. RUN_TESTS, or suite_run in a main of its
 * own, runs them in their order. */
#ifndef DW_TEST_SUITE_H
#define DW_TEST_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct CMUnitTest suite_tests[64];
static size_t n_suite_tests;

static inline void suite_add(struct CMUnitTest test)
{
    if (n_suite_tests == sizeof suite_tests / sizeof *suite_tests)
        abort();
    suite_tests[n_suite_tests++] = test;
}

#define TEST(name) TEST_WITH(name, NULL, NULL)
#define TEST_WITH(name, set_up, tear_down)                                               \
    static void name(void **state);                                                      \
    __attribute__((constructor)) static void name##_add(void)                            \
    {                                                                                    \
        suite_add((struct CMUnitTest)cmocka_unit_test_setup_teardown(name, set_up,       \
                                                                     tear_down));        \
    }                                                                                    \
    static void name(__attribute__((unused)) void **state)

/* SET_UP and TEAR_DOWN run once; the result is main's. */
static inline int suite_run(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    return _cmocka_run_group_tests("tests", suite_tests, n_suite_tests, set_up,
                                   tear_down);
}

#define RUN_TESTS(set_up, tear_down)                                                     \
    int main(void)                                                                       \
    {                                                                                    \
        return suite_run(set_up, tear_down);                                             \
    }

#endif
