#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit/suite.h"

#include "base/file.h"
#include "base/mem.h"
#include "failing_allocator.h"
#include "temp_dir.h"

static void assert_content(const char *path, const char *text)
{
    size_t n_bytes;
    uint8_t *bytes = get_file(path, &n_bytes);
    assert_string_equal((char *)bytes, text);
    free(bytes);
}

TEST(test_map)
{
    const char *path = temp_path("mapped");
    put_text(path, "hello");
    dw_map map;
    assert_int_equal(dw_map_open(&map, path, true, NULL), DW_OK);
    assert_int_equal(map.n_bytes, 5);
    map.bytes[0] = 'j';
    assert_int_equal(dw_map_sync(&map, path, NULL), DW_OK);
    dw_map_close(&map);
    assert_null(map.bytes);
    dw_map_close(&map); /* twice does no harm */
    assert_content(path, "jello");
    unlink(path);
}

TEST(test_map_oddities)
{
    const char *path = temp_path("empty");
    put_text(path, "");
    dw_map map;
    dw_error err;
    assert_int_equal(dw_map_open(&map, path, true, &err), DW_OK);
    assert_null(map.bytes);
    assert_int_equal(map.n_bytes, 0);
    assert_int_equal(dw_map_sync(&map, path, &err), DW_OK);
    dw_map_close(&map);
    unlink(path);

    assert_int_equal(dw_map_open(&map, path, false, &err), DW_NOT_FOUND);
    assert_string_equal(err.where, path);
    assert_int_equal(dw_map_open(&map, temp_dir, false, &err), DW_INVALID);
    path = temp_path("fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(dw_map_open(&map, path, false, &err), DW_INVALID);
    unlink(path);
}

TEST(test_new_file_appears_at_commit)
{
    const char *path = temp_path("new");
    dw_new_file file;
    assert_int_equal(dw_new_file_open(&file, path, NULL), DW_OK);
    assert_int_equal(dw_new_file_write(&file, "abc", 3, NULL), DW_OK);
    assert_int_equal(dw_new_file_write(&file, NULL, 0, NULL), DW_OK);
    assert_int_equal(dw_new_file_write(&file, "def", 3, NULL), DW_OK);
    assert_int_equal(dw_new_file_write_at(&file, 1, "B", 1, NULL), DW_OK);
    assert_int_equal(file.n_bytes, 6);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(dw_new_file_commit(&file, NULL), DW_OK);
    assert_content(path, "aBcdef");
    assert_int_equal(count_files(temp_dir), 1);

    assert_int_equal(dw_new_file_open(&file, path, NULL), DW_OK);
    assert_int_equal(dw_new_file_write(&file, "other", 5, NULL), DW_OK);
    dw_new_file_abort(&file);
    dw_new_file_abort(&file);
    assert_content(path, "aBcdef");
    assert_int_equal(count_files(temp_dir), 1);

    assert_int_equal(dw_remove_file(path, NULL), DW_OK);
    assert_int_equal(dw_remove_file(path, NULL), DW_OK);
    assert_int_equal(count_files(temp_dir), 0);
}

/* A killed process may have left names with our process id. */
TEST(test_temporary_names_that_are_taken)
{
    const char *path = temp_path("taken");
    char left[512];
    for (unsigned i = 0; i < 20; i++) {
        snprintf(left, sizeof left, "%s.tmp-%ld-%u", path, (long)getpid(), i);
        put_text(left, "left");
    }
    dw_new_file file;
    assert_int_equal(dw_new_file_open(&file, path, NULL), DW_OK);
    assert_int_equal(dw_new_file_commit(&file, NULL), DW_OK);
    assert_content(left, "left");
    for (unsigned i = 0; i < 20; i++) {
        snprintf(left, sizeof left, "%s.tmp-%ld-%u", path, (long)getpid(), i);
        unlink(left);
    }
    unlink(path);
    assert_int_equal(count_files(temp_dir), 0);
}

TEST(test_new_file_failures)
{
    dw_new_file file;
    dw_error err;
    const char *path = temp_path("no/such/place");
    assert_int_equal(dw_new_file_open(&file, path, &err), DW_NOT_FOUND);
    assert_string_equal(err.where, path);
    assert_null(file.path);

    path = temp_path("dir"); /* only a file can be replaced by a file */
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(dw_new_file_open(&file, path, &err), DW_INVALID);
    rmdir(path);
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_int_equal(dw_new_file_open(&file, path, &err), DW_INVALID);
    assert_int_equal(count_files(temp_dir), 1);
    unlink(path);
}

TEST(test_exists)
{
    bool exists = true;
    dw_error err;
    assert_int_equal(dw_file_exists(temp_path("none"), &exists, &err), DW_OK);
    assert_false(exists);
    assert_int_equal(dw_file_exists(temp_dir, &exists, &err), DW_OK);
    assert_true(exists);
    char long_name[5000];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(dw_file_exists(long_name, &exists, &err), DW_IO);
}

/* A hole is filled before the first store. */
TEST(test_reserve)
{
    const char *path = temp_path("sparse");
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    dw_map map;
    assert_int_equal(dw_map_open(&map, path, true, NULL), DW_OK);
    assert_int_equal(dw_map_reserve(&map, path, NULL), DW_OK);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_true(st.st_blocks * 512 >= 1 << 20);
    dw_map_close(&map);
    close(fd);
    unlink(path);
}

static dw_status write_and_commit(dw_error *err)
{
    dw_new_file file;
    dw_status status = dw_new_file_open(&file, temp_path("alloc"), err);
    if (status != DW_OK)
        return status;
    status = dw_new_file_write(&file, "x", 1, err);
    if (status != DW_OK) {
        dw_new_file_abort(&file);
        return status;
    }
    return dw_new_file_commit(&file, err);
}

static void assert_nothing_written(void)
{
    assert_int_equal(count_files(temp_dir), 0);
}

TEST(test_allocation_failures)
{
    fail_every_allocation(write_and_commit, assert_nothing_written);
    unlink(temp_path("alloc"));
}

static void assert_path(char *path, const char *expected)
{
    assert_string_equal(path, expected);
    dw_free(path);
}

TEST(test_paths)
{
    assert_path(dw_join_path("a", "b"), "a/b");
    assert_path(dw_join_path("a/", "b"), "a/b");
    assert_path(dw_join_path("/", "b"), "/b");
    assert_path(dw_parent_path("a/b"), "a");
    assert_path(dw_parent_path("/a/b"), "/a");
    assert_path(dw_parent_path("/a"), "/");
    assert_path(dw_parent_path("a"), ".");
    assert_path(dw_parent_path("a/"), ".");
    assert_path(dw_parent_path("/a/b//"), "/a");
    assert_path(dw_parent_path("/"), "/");
}

/* Any part of any pages: they become present, and nothing changes. */
TEST(test_prepare)
{
    dw_map map;
    const size_t n = 5 * 4096 + 123;
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 7);
    const char *path = temp_path("pages");
    put_file(path, bytes, n);
    assert_int_equal(dw_map_open(&map, path, true, NULL), DW_OK);
    for (size_t first = 0; first < n; first += 1111)
        for (size_t length = 0; length <= n - first; length += 3333) {
            dw_pages_prepare(map.bytes + first, length, length % 2);
            assert_memory_equal(map.bytes, bytes, n);
        }
    dw_pages_prepare(NULL, 0, true);
    dw_map_close(&map);
    free(bytes);
    unlink(path);
}

TEST(test_ends)
{
    assert_true(dw_name_ends("a.json", ".json"));
    assert_true(dw_name_ends(".json", ".json"));
    assert_false(dw_name_ends("json", ".json"));
    assert_false(dw_name_ends("a.json.x", ".json"));
    assert_true(dw_name_ends("", ""));
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
