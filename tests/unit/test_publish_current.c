/* Opens with other weights than those of the newest version. */
#include "unit/suite.h"

#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

static bool is_current(dw_publisher *publisher)
{
    bool is_current = false;
    dw_error err = {0};
    assert_ok(dw_publisher_is_current(publisher, &is_current, &err), &err);
    return is_current;
}

TEST(test_is_current)
{
    kit k;
    kit_make(&k);
    dw_store *store = kit_mem_store();
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *publisher = kit_open(&k, store, &options);
    assert_true(dw_publisher_created(publisher));
    assert_true(is_current(publisher));
    kit_step(&k, 1);
    assert_false(is_current(publisher));
    kit_publish(&k, publisher, 1);
    assert_true(is_current(publisher));
    dw_publisher_close(publisher);
    publisher = kit_open(&k, store, &options);
    assert_false(dw_publisher_created(publisher));
    dw_publisher_close(publisher);
    kit_check_stream(&k, store, NULL);
    dw_store_close(store);
    kit_free(&k);
}

static void check_head(dw_store *store, uint64_t version, const char *step)
{
    dw_stream *stream;
    dw_version_info info;
    uint64_t head;
    dw_error err = {0};
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_ok(dw_stream_head(stream, &head, &err), &err);
    assert_int_equal(head, version);
    assert_ok(dw_stream_version(stream, head, &info, &err), &err);
    assert_string_equal(info.step, step);
    dw_stream_close(stream);
}

/* It makes a version only if weights differ and the caller asks for it. */
TEST(test_opening_publishes)
{
    kit k;
    kit_make(&k);
    dw_store *store = kit_mem_store();
    dw_publish_options options = kit_plain_options(temp_dir);
    options.publish_changed = true;
    options.first_step = "10";
    dw_publisher_close(kit_open(&k, store, &options));
    check_head(store, 0, "10");
    dw_publisher_close(kit_open(&k, store, &options));
    check_head(store, 0, "10");
    kit_step(&k, 10);
    options.publish_changed = false;
    options.first_step = "20";
    dw_publisher_close(kit_open(&k, store, &options));
    check_head(store, 0, "10");
    options.publish_changed = true;
    dw_publisher *publisher = kit_open(&k, store, &options);
    assert_int_equal(dw_publisher_version(publisher), 1);
    assert_true(is_current(publisher));
    check_head(store, 1, "20");
    dw_publisher_close(publisher);
    dw_store_close(store);
    kit_free(&k);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
