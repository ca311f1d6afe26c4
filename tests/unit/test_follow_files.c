/* A follower installs the companion files of the version that it stops at. */
/* wrap: dw_commit_record_write */
#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "unit/companion_kit.h"
#include "unit/counting_store.h"
#include "unit/stream_kit.h"
#include "unit/files_stream.h"

#define HEAD 4

static const companion_text first[] = {
    {"config.json", "{\"v\":0}"}, {"vocab.txt", "a b"}, {NULL, NULL}};
static const companion_text third[] = {
    {"config.json", "{\"v\":3}"}, {"merges.txt", ""}, {NULL, NULL}};
static const companion_text none[] = {{NULL, NULL}};

static kit k;
static dw_store *store;
static size_t version_log[KIT_COPIES];
static char into[128];
static dw_error err;

/* Versions 0 and 1 have the first files, 2 says nothing, 3 has others, 4 has none. */
static int make(void **state)
{
    temp_dir_make(state);
    kit_make(&k);
    store = files_store = kit_mem_store();
    files_of[0] = files_of[1] = first;
    files_of[2] = NULL;
    files_of[3] = third;
    files_of[4] = none;
    kit_make_stream(&k, store, temp_dir, HEAD, 0, version_log);
    snprintf(into, sizeof into, "%s/into", temp_dir);
    err = (dw_error){0};
    return 0;
}

static int end(void **state)
{
    kit_free(&k);
    dw_store_close(store);
    return temp_dir_remove(state);
}

static dw_follow_options options(void)
{
    dw_follow_options o;
    dw_follow_options_init(&o);
    o.into = into;
    o.n_threads = 1;
    return o;
}

static dw_follower *open_follower(const dw_follow_options *o)
{
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, o, &err), &err);
    return f;
}

static dw_follow_report sync_to(dw_follower *f, uint64_t version)
{
    dw_follow_report report;
    assert_ok(dw_follower_sync(f, version, NULL, &report, &err), &err);
    assert_int_equal(dw_follower_version(f), version);
    kit_check_follower(&k, f, version_log);
    assert_false(dw_follower_files_due(f));
    return report;
}

static dw_follow_report pull(uint64_t version)
{
    const dw_follow_options o = options();
    dw_follower *f = open_follower(&o);
    dw_follow_report report = sync_to(f, version);
    dw_follower_close(f);
    return report;
}

#define IS(name, text) assert_true(companion_is(into, name, text))

static void put_own(const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", into, name);
    put_text(path, text);
}

static void test_versions(void **state)
{
    (void)state;
    dw_follow_report r = pull(1);
    assert_int_equal(r.n_files_installed, 2);
    IS("config.json", "{\"v\":0}");
    IS("vocab.txt", "a b");
    r = pull(2); /* says nothing: they stay */
    assert_int_equal(r.n_files_installed + r.n_files_removed, 0);
    IS("config.json", "{\"v\":0}");
    r = pull(3);
    assert_int_equal(r.n_files_installed, 2);
    assert_int_equal(r.n_files_removed, 1);
    IS("config.json", "{\"v\":3}");
    IS("merges.txt", "");
    IS("vocab.txt", NULL);
    r = pull(0); /* back */
    IS("config.json", "{\"v\":0}");
    IS("vocab.txt", "a b");
    r = pull(4);
    assert_int_equal(r.n_files_removed, 2);
    IS("config.json", NULL);
}

/* On the way to version 3, the files of the versions before it are not fetched. */
static void test_route(void **state)
{
    (void)state;
    dw_follow_report r = pull(3);
    assert_int_equal(r.n_files_installed, 2);
    assert_int_equal(r.n_files_removed, 0);
    IS("config.json", "{\"v\":3}");
    IS("vocab.txt", NULL);
}

static void test_users_file_is_kept(void **state)
{
    (void)state;
    assert_int_equal(mkdir(into, 0777), 0);
    put_own("config.json", "mine");
    const dw_follow_options o = options();
    dw_follower *f = open_follower(&o);
    dw_follow_report r = sync_to(f, 1);
    assert_int_equal(r.n_files_installed, 1);
    assert_int_equal(r.n_files_kept, 1);
    size_t n;
    const char *const *kept = dw_follower_files_kept(f, &n);
    assert_int_equal(n, 1);
    assert_non_null(strstr(kept[0], "/into/config.json"));
    IS("config.json", "mine");
    r = sync_to(f, 4);
    assert_int_equal(r.n_files_kept, 0);
    IS("config.json", "mine");
    dw_follower_close(f);
}

static void test_without_files(void **state)
{
    (void)state;
    dw_follow_options o = options();
    o.no_files = true;
    dw_follower *f = open_follower(&o);
    dw_follow_report r = sync_to(f, 3);
    assert_int_equal(r.n_files_installed + r.n_files_kept, 0);
    IS("config.json", NULL);
    dw_follower_close(f);
    /* the next one, which wants them, completes the directory at the same version */
    o.no_files = false;
    f = open_follower(&o);
    assert_true(dw_follower_files_due(f));
    r = sync_to(f, 3);
    assert_int_equal(r.n_steps, 0);
    assert_int_equal(r.n_files_installed, 2);
    IS("config.json", "{\"v\":3}");
    dw_follower_close(f);
}

/* A stage alone installs nothing; prepare does, before the weights change. */
static void test_phases(void **state)
{
    (void)state;
    pull(1);
    pull(2);
    const dw_follow_options o = options();
    dw_follower *f = open_follower(&o);
    uint64_t staged;
    assert_ok(dw_follower_stage(f, 3, &staged, NULL, &err), &err);
    IS("config.json", "{\"v\":0}");
    assert_ok(dw_follower_prepare(f, &err), &err);
    IS("config.json", "{\"v\":3}");
    assert_ok(dw_follower_apply(f, &err), &err);
    assert_ok(dw_follower_finish(f, &err), &err);
    assert_int_equal(dw_follower_version(f), 3);
    assert_false(dw_follower_files_due(f));
    dw_follower_close(f);
}

/* A file that is missing or damaged is found before anything changes. */
static void test_bad_object(void **state)
{
    (void)state;
    pull(1);
    pull(2);
    char key[512];
    for (int damaged = 0; damaged < 2; damaged++) {
        assert_int_equal(kit_find(store, "files/00000000000000000003", "-0000", key), 1);
        if (damaged)
            kit_damage(store, key);
        else
            kit_remove_all(store, "files/00000000000000000003");
        const dw_follow_options o = options();
        dw_follower *f = open_follower(&o);
        assert_fails(dw_follower_sync(f, 3, NULL, NULL, &err),
                     damaged ? DW_CORRUPT : DW_NOT_FOUND, &err);
        assert_non_null(strstr(err.text, "companion file '"));
        assert_non_null(strstr(err.text, "version 3"));
        assert_int_equal(dw_follower_version(f), 2);
        kit_check_follower(&k, f, version_log);
        IS("config.json", "{\"v\":0}");
        dw_follower_close(f);
        end(state); /* the files come back with a new stream */
        make(state);
        pull(1);
        pull(2);
    }
}

static void test_memory(void **state)
{
    (void)state;
    dw_tensor tensors[KIT_TENSORS];
    uint8_t *bytes = kit_room(&k, tensors);
    dw_follow_options o = options();
    o.into = NULL;
    o.tensors = tensors;
    o.n_tensors = KIT_TENSORS;
    dw_follower *f = open_follower(&o);
    dw_follow_report r = sync_to(f, 3);
    assert_int_equal(r.n_files_installed, 0);
    dw_follower_close(f);
    free(bytes);
}

/* The number of reading requests of a follower that goes from nothing to VERSION. */
static unsigned count_requests(uint64_t version, bool no_files)
{
    counting_store counting = {.inner = store};
    dw_store *counted = counting_open(&counting);
    dw_follow_options o = options();
    char other[160];
    snprintf(other, sizeof other, "%s/into-%d", temp_dir, no_files);
    o.into = other;
    o.no_files = no_files;
    dw_follower *f;
    assert_ok(dw_follower_open(&f, counted, &o, &err), &err);
    assert_ok(dw_follower_sync(f, version, NULL, NULL, &err), &err);
    assert_ok(dw_follower_sync(f, version, NULL, NULL, &err), &err);
    dw_follower_close(f);
    dw_store_close(counted);
    return counted_reads(&counting);
}

/* A version without files costs no request more, whether or not files are wanted. */
static void test_requests(void **state)
{
    (void)state;
    assert_int_equal(count_requests(2, false), count_requests(2, true));
}

static void test_requests_of_files(void **state)
{
    (void)state;
    assert_int_equal(count_requests(1, false), count_requests(1, true) + 2);
}

/* The directory is replaced while it is followed: the new one gets the files too. */
static void test_replaced_directory(void **state)
{
    (void)state;
    const dw_follow_options o = options();
    dw_follower *f = open_follower(&o);
    sync_to(f, 1);
    char command[400];
    snprintf(command, sizeof command, "mv '%s' '%s-old'", into, into);
    assert_int_equal(system(command), 0);
    assert_fails(dw_follower_sync(f, 1, NULL, NULL, &err), DW_CONFLICT, &err);
    sync_to(f, 1);
    IS("config.json", "{\"v\":0}");
    dw_follower_close(f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make, end)
    const struct CMUnitTest tests[] = {
        TEST(test_versions),
        TEST(test_route),
        TEST(test_users_file_is_kept),
        TEST(test_without_files),
        TEST(test_phases),
        TEST(test_bad_object),
        TEST(test_memory),
        TEST(test_requests),
        TEST(test_requests_of_files),
        TEST(test_replaced_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
