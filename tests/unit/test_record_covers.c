#include "unit/suite.h"

#include "failing_allocator.h"
#include "stream/record.h"

#define WHOLE SIZE_MAX

/* a: BF16 [4,6]; b: F32 scalar; c: nothing; d: F4 [16]; e: F6 [8] */
static const dw_tensor tensors[] = {
    {"a", DW_BF16, 2, (const uint64_t[]){4, 6}, 48, NULL, 0, NULL},
    {"b", DW_F32, 0, NULL, 4, NULL, 0, NULL},
    {"c", DW_F32, 1, (const uint64_t[]){0}, 0, NULL, 0, NULL},
    {"d", DW_F4, 1, (const uint64_t[]){16}, 8, NULL, 0, NULL},
    {"e", DW_F6_E2M3, 1, (const uint64_t[]){8}, 6, NULL, 0, NULL},
};
enum { N = sizeof tensors / sizeof *tensors };

TEST(test_one_list)
{
    static const struct {
        dw_cover covers[3];
        size_t n;
        const char *fault; /* NULL: good */
    } cases[] = {
        {{{0}}, 0, NULL},
        {{{WHOLE, 0, N}}, 1, NULL},
        {{{WHOLE, 0, N + 1}}, 1, "past the last"},
        {{{WHOLE, 2, 2}}, 1, "empty"},
        {{{WHOLE, 3, 2}}, 1, "empty"},
        {{{WHOLE, N, UINT64_MAX}}, 1, "past the last"},
        {{{0, 0, 24}}, 1, NULL},
        {{{0, 1, 25}}, 1, "tensor 'a': a slice ends at element 25 of 24"},
        {{{0, 5, 5}}, 1, "empty"},
        {{{N, 0, 1}}, 1, "past the last"},
        {{{2, 0, 1}}, 1, "tensor 'c'"},
        {{{3, 2, 16}}, 1, NULL},
        {{{3, 1, 16}}, 1, "whole bytes"},
        {{{3, 0, 3}}, 1, "whole bytes"},
        {{{4, 4, 8}}, 1, NULL},
        {{{4, 2, 8}}, 1, "whole bytes"},
        {{{4, 0, UINT64_MAX}}, 1, "tensor 'e'"},
        {{{0, 0, 3}, {0, 3, 6}, {WHOLE, 1, 5}}, 3, NULL},
        {{{0, 0, 3}, {0, 2, 6}}, 2, "overlaps"},
        {{{0, 3, 6}, {0, 0, 3}}, 2, "ahead"},
        {{{WHOLE, 0, 2}, {1, 0, 1}}, 2, "overlaps"},
        {{{1, 0, 1}, {WHOLE, 1, 2}}, 2, "overlaps"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_error err = {0};
        dw_status status =
            dw_covers_check(cases[i].covers, cases[i].n, tensors, N, "x", &err);
        assert_int_equal(status, cases[i].fault ? DW_CORRUPT : DW_OK);
        if (cases[i].fault && !strstr(err.text, cases[i].fault))
            fail_msg("case %zu: %s", i, err.text);
    }
}

typedef struct pair {
    dw_cover first[3];
    size_t n_first; /* 0: everything */
    dw_cover second[3];
    size_t n_second; /* 0: there is no second object */
    bool is_whole;
    const char *fault; /* of both together; NULL: none */
} pair;

static dw_status check_pair(const pair *p, bool must_cover_all, dw_error *err)
{
    dw_cover first[3], second[3];
    memcpy(first, p->first, sizeof first);
    memcpy(second, p->second, sizeof second);
    dw_object items[2] = {
        {.covers = p->n_first ? first : NULL, .n_covers = p->n_first},
        {.covers = second, .n_covers = p->n_second},
    };
    dw_objects objects = {items, p->n_second ? 2 : 1};
    return dw_objects_check(&objects, tensors, N, must_cover_all, "x", err);
}

TEST(test_several_objects)
{
    static const pair cases[] = {
        {{{0}}, 0, {{0}}, 0, true, NULL},
        {{{0}}, 0, {{WHOLE, 0, 1}}, 1, false, "tensor 'a'"},
        {{{0}}, 0, {{4, 4, 8}}, 1, false, "tensor 'e'"},
        {{{WHOLE, 0, N}}, 1, {{0}}, 0, true, NULL},
        {{{WHOLE, 0, 3}}, 1, {{WHOLE, 3, N}}, 1, true, NULL},
        {{{WHOLE, 3, N}}, 1, {{WHOLE, 0, 3}}, 1, true, NULL},
        {{{WHOLE, 0, 3}}, 1, {{WHOLE, 2, N}}, 1, false, "tensor 'c'"},
        {{{WHOLE, 0, 2}}, 1, {{WHOLE, 3, N}}, 1, false, NULL},
        {{{WHOLE, 1, N}}, 1, {{0}}, 0, false, NULL},
        {{{WHOLE, 0, N - 1}}, 1, {{0}}, 0, false, NULL},
        {{{0, 0, 10}, {WHOLE, 1, 3}, {3, 0, 16}},
         3,
         {{0, 10, 24}, {4, 0, 4}, {4, 4, 8}},
         3,
         true,
         NULL},
        {{{0, 0, 10}, {WHOLE, 1, N}}, 2, {{0, 11, 24}}, 1, false, NULL},
        {{{0, 0, 10}, {WHOLE, 1, N}}, 2, {{0, 10, 23}}, 1, false, NULL},
        {{{0, 0, 10}, {WHOLE, 1, N}}, 2, {{0, 9, 24}}, 1, false, "tensor 'a'"},
        {{{0, 0, 24}}, 1, {{WHOLE, 0, N}}, 1, false, "tensor 'a'"},
        {{{0, 0, 24}, {1, 0, 1}}, 2, {{WHOLE, 3, N}}, 1, false, NULL}, /* c is missing */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_error err = {0};
        dw_status status = check_pair(&cases[i], false, &err);
        if (status != (cases[i].fault ? DW_CORRUPT : DW_OK) ||
            !strstr(err.text, cases[i].fault ? cases[i].fault : ""))
            fail_msg("case %zu: '%s'", i, err.text);
        status = check_pair(&cases[i], true, &err);
        if (status != (cases[i].is_whole ? DW_OK : DW_CORRUPT))
            fail_msg("case %zu, whole: '%s'", i, err.text);
        if (!cases[i].is_whole && !cases[i].fault)
            assert_non_null(strstr(err.text, "no object holds it"));
    }
    const dw_objects none = {0};
    assert_int_equal(dw_objects_check(&none, tensors, N, false, "x", NULL), DW_OK);
    assert_int_equal(dw_objects_check(&none, tensors, N, true, "x", NULL), DW_CORRUPT);
}

static dw_status check_whole(dw_error *err)
{
    return check_pair(&(pair){{{WHOLE, 0, 3}}, 1, {{WHOLE, 3, N}}, 1, true, NULL}, true,
                      err);
}

TEST(test_no_memory)
{
    fail_every_allocation(check_whole, NULL);
}

RUN_TESTS(NULL, NULL)
