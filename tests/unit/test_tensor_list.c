#include "unit/suite.h"

#include "failing_allocator.h"
#include "random_model.h"
#include "tensor/tensor_list.h"

TEST(test_find)
{
    enum { N = 500 };
    static char names[N][16];
    static dw_tensor tensors[N];
    for (size_t n = 0; n <= N; n += 1 + n / 2) {
        for (size_t i = 0; i < n; i++) {
            snprintf(names[i], sizeof names[i], "%zu", (i * 7919) % 1009 * 2);
            tensors[i].name = names[i];
        }
        dw_name_index index;
        assert_int_equal(dw_name_index_init(&index, tensors, n, NULL), DW_OK);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(dw_name_index_find(&index, names[i]), i);
        for (size_t i = 1; i < n; i++)
            assert_true(strcmp(tensors[index.order[i - 1]].name,
                               tensors[index.order[i]].name) < 0);
        assert_true(dw_name_index_find(&index, "") == SIZE_MAX);
        assert_true(dw_name_index_find(&index, "7") == SIZE_MAX);
        assert_true(dw_name_index_find(&index, "zzz") == SIZE_MAX);
        dw_name_index_release(&index);
    }
}

/* Names are sorted by unsigned bytes. */
TEST(test_byte_order)
{
    const dw_tensor tensors[] = {{.name = "\xc3\xa9"},
                                 {.name = ""},
                                 {.name = "Z"},
                                 {.name = "a.b"},
                                 {.name = "a"}};
    static const size_t order[] = {1, 2, 4, 3, 0};
    dw_name_index index;
    assert_int_equal(dw_name_index_init(&index, tensors, 5, NULL), DW_OK);
    assert_memory_equal(index.order, order, sizeof order);
    assert_int_equal(dw_name_index_find(&index, ""), 1);
    dw_name_index_release(&index);
}

TEST(test_twice)
{
    const dw_tensor tensors[] = {{.name = "b"}, {.name = "a"}, {.name = "b"}};
    dw_name_index index;
    dw_error err;
    assert_int_equal(dw_name_index_init(&index, tensors, 3, &err), DW_INVALID);
    assert_string_equal(err.text, "tensor 'b': the list has this name twice");
    assert_null(index.order);
}

TEST(test_same_shape)
{
    static const uint64_t d23[] = {2, 3}, d32[] = {3, 2}, d6[] = {6};
    const dw_tensor wanted = {.name = "w", .dtype = DW_F32, .n_dims = 2, .dims = d23};
    static const struct {
        dw_tensor found;
        const char *text;
    } cases[] = {
        {{.dtype = DW_F32, .n_dims = 2, .dims = d23}, NULL},
        {{.dtype = DW_I32, .n_dims = 2, .dims = d23},
         "tensor 'w': it is F32 [2,3] here, but I32 [2,3] in the weights"},
        {{.dtype = DW_F32, .n_dims = 2, .dims = d32},
         "tensor 'w': it is F32 [2,3] here, but F32 [3,2] in the weights"},
        {{.dtype = DW_F32, .n_dims = 1, .dims = d6},
         "tensor 'w': it is F32 [2,3] here, but F32 [6] in the weights"},
        {{.dtype = DW_F32, .n_dims = 0},
         "tensor 'w': it is F32 [2,3] here, but F32 [] in the weights"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dw_error err = {0};
        dw_status status = dw_tensor_same_shape(&wanted, &cases[i].found, "f", &err);
        assert_int_equal(status, cases[i].text ? DW_MISMATCH : DW_OK);
        if (cases[i].text) {
            assert_string_equal(err.text, cases[i].text);
            assert_string_equal(err.where, "f");
        }
    }
    const dw_tensor scalar = {.name = "s", .dtype = DW_U8};
    assert_int_equal(dw_tensor_same_shape(&scalar, &scalar, NULL, NULL), DW_OK);
    /* a text that does not fit is truncated */
    uint64_t many[64];
    for (size_t i = 0; i < 64; i++)
        many[i] = UINT64_MAX;
    const dw_tensor large = {.name = "w", .dtype = DW_F32, .n_dims = 64, .dims = many};
    dw_error err;
    assert_int_equal(dw_tensor_same_shape(&wanted, &large, NULL, &err), DW_MISMATCH);
    assert_int_equal(dw_tensor_same_shape(&large, &wanted, NULL, &err), DW_MISMATCH);
}

TEST(test_overlap)
{
    static uint8_t room[100];
    static const struct {
        size_t begin[3], n[3];
        bool overlap;
    } cases[] = {
        {{0, 10, 20}, {10, 10, 10}, false}, {{20, 0, 10}, {10, 10, 10}, false},
        {{0, 0, 50}, {10, 10, 10}, true},   {{0, 9, 50}, {10, 10, 10}, true},
        {{0, 20, 5}, {30, 5, 1}, true},     {{0, 0, 5}, {10, 0, 0}, false},
        {{5, 5, 5}, {0, 0, 0}, false},      {{50, 0, 59}, {10, 10, 1}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dw_tensor tensors[3];
        for (size_t t = 0; t < 3; t++)
            tensors[t] =
                (dw_tensor){.n_bytes = cases[i].n[t], .data = room + cases[i].begin[t]};
        bool overlap;
        assert_int_equal(dw_tensors_overlap(&overlap, tensors, 3, NULL), DW_OK);
        assert_int_equal(overlap, cases[i].overlap);
    }
    bool overlap;
    assert_int_equal(dw_tensors_overlap(&overlap, NULL, 0, NULL), DW_OK);
    assert_false(overlap);
}

static dw_status index_two(dw_error *err)
{
    const dw_tensor tensors[] = {{.name = "b"}, {.name = "a"}};
    dw_name_index index;
    dw_status status = dw_name_index_init(&index, tensors, 2, err);
    dw_name_index_release(&index);
    return status;
}

TEST(test_allocations)
{
    fail_every_allocation(index_two, NULL);
}

TEST(test_check)
{
    static const uint64_t shape[] = {3, 2};
    uint16_t data[6];
    const dw_tensor good = {"a", DW_BF16, 2, shape, sizeof data, data, 0, NULL};
    dw_tensor t = good;
    dw_error err;
    assert_int_equal(dw_tensors_check(&t, 1, &err), DW_OK);
    t.n_bytes = 11;
    assert_int_equal(dw_tensors_check(&t, 1, &err), DW_INVALID);
    assert_string_equal(err.text,
                        "tensor 'a': its 11 bytes do not fit its type and shape");
    t = good;
    t.data = NULL;
    assert_int_equal(dw_tensors_check(&t, 1, &err), DW_INVALID);
    assert_string_equal(err.text, "tensor 'a': it has no data");
    t = good;
    t.name = NULL;
    assert_int_equal(dw_tensors_check(&t, 1, &err), DW_INVALID);
    assert_string_equal(err.text, "tensor 0 has no name");
    t = (dw_tensor){"scalar", DW_F32, 0, NULL, 4, data, 0, NULL}; /* a scalar */
    assert_int_equal(dw_tensors_check(&t, 1, &err), DW_OK);
}

RUN_TESTS(NULL, NULL)
