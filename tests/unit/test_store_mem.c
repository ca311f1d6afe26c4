#include "unit/suite.h"

#include "failing_allocator.h"
#include "store/store.h"

static dw_store *open_mem(const char *url)
{
    dw_store *store;
    assert_int_equal(dw_store_open(&store, url, NULL, NULL), DW_OK);
    return store;
}

TEST(test_names)
{
    dw_store *first = open_mem("mem:a"), *same = open_mem("mem:a");
    dw_store *other = open_mem("mem:b");
    assert_int_equal(dw_store_put_bytes(first, "k", "xyz", 3, DW_PUT_CREATE, NULL),
                     DW_OK);
    assert_int_equal(dw_store_put_bytes(same, "k", "abc", 3, DW_PUT_CREATE, NULL),
                     DW_CONFLICT);
    assert_int_equal(dw_store_stat(other, "k", NULL, NULL, NULL), DW_NOT_FOUND);
    dw_store_close(first);
    uint64_t n_bytes;
    assert_int_equal(dw_store_stat(same, "k", &n_bytes, NULL, NULL), DW_OK);
    assert_int_equal(n_bytes, 3);
    dw_store_close(same);
    same = open_mem("mem:a"); /* it was removed with its last handle */
    assert_int_equal(dw_store_stat(same, "k", NULL, NULL, NULL), DW_NOT_FOUND);
    dw_store_close(other);
    dw_store_close(same);
}

static dw_status take(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    strcat(context, entry->key);
    return DW_OK;
}

static dw_status use_memory(dw_error *err)
{
    dw_store *store;
    dw_status status = dw_store_open(&store, "mem:memory", NULL, err);
    char listed[64] = "";
    if (status == DW_OK)
        status = dw_store_put_bytes(store, "b", "1", 1, DW_PUT_CREATE, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(store, "a", "2", 1, DW_PUT_CREATE, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(store, "b", "33", 2, DW_PUT_REPLACE, err);
    if (status == DW_OK)
        status = dw_store_list(store, "", NULL, take, listed, err);
    if (status == DW_OK)
        assert_string_equal(listed, "ab");
    dw_store_close(store);
    return status;
}

TEST(test_out_of_memory)
{
    fail_every_allocation(use_memory, NULL);
}

RUN_TESTS(NULL, NULL)
