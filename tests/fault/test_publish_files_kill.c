/* A publisher is killed after it stored companion files, before the commit that names
 * them. The next one publishes as if nothing had happened, and a collector removes what
 * is left over. */
/* wrap: dw_commit_record_write */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/suite.h"

#include "stream/listing.h"
#include "stream/record.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

static bool dies;

dw_status __real_dw_commit_record_write(dw_writer *out, dw_commit_record *record,
                                        const dw_sign_key *sign, dw_error *err);
dw_status __wrap_dw_commit_record_write(dw_writer *out, dw_commit_record *record,
                                        const dw_sign_key *sign, dw_error *err)
{
    if (dies)
        kill(getpid(), SIGKILL);
    return __real_dw_commit_record_write(out, record, sign, err);
}

/* Opens the stream, which publishes version 0, and then one more with TEXT. */
static dw_status publish(dw_store *store, kit *k, const char *text, dw_error *err)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = 0;
    options.spool_dir = temp_dir;
    const dw_file file = {"config.json", text, strlen(text)};
    options.files = &file;
    options.n_files = 1;
    options.has_files = true;
    options.publish_changed = true;
    dw_publisher *p;
    dw_status status =
        dw_publisher_open(&p, store, k->tensors, KIT_TENSORS, &options, err);
    if (status == DW_OK)
        dw_publisher_close(p);
    return status;
}

static dw_store *open_store(void)
{
    dw_error err = {0};
    dw_store *store;
    char url[PATH_MAX + 8];
    snprintf(url, sizeof url, "file://%s", temp_path("stream"));
    assert_ok(dw_store_open(&store, url, NULL, &err), &err);
    return store;
}

static void publish_and_die(kit *k, const char *text)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dw_error err = {0};
        dies = true;
        (void)publish(open_store(), k, text, &err);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static size_t n_files(dw_store *store)
{
    dw_error err = {0};
    dw_listing list;
    assert_ok(dw_listing_load(&list, store, "files/", &err), &err);
    const size_t n = list.n;
    dw_listing_release(&list);
    return n;
}

static void expect(dw_store *store, uint64_t version, const char *text)
{
    dw_error err = {0};
    dw_stream *stream;
    uint64_t head, n;
    const void *bytes;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_ok(dw_stream_head(stream, &head, &err), &err);
    assert_int_equal(head, version);
    assert_ok(dw_stream_read_file(stream, head, "config.json", &bytes, &n, &err), &err);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(bytes, text, n);
    dw_stream_close(stream);
}

TEST(test_killed_before_the_commit)
{
    kit k;
    kit_make(&k);
    dw_store *store = open_store();
    dw_error err = {0};
    for (uint64_t version = 0; version < 3; version++) {
        const size_t n_before = version == 0 ? 0 : n_files(store);
        publish_and_die(&k, "{\"killed\": 1}");
        assert_int_equal(n_files(store), n_before + 1);
        char text[32];
        snprintf(text, sizeof text, "{\"version\": %d}", (int)version);
        assert_ok(publish(store, &k, text, &err), &err);
        expect(store, version, text);
        assert_int_equal(n_files(store), n_before + 2);
        kit_step(&k, 10);
    }
    dw_stream *stream;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    dw_collect_options collect;
    dw_collect_options_init(&collect);
    collect.n_keep = 3;
    assert_ok(dw_stream_collect(stream, &collect, NULL, &err), &err);
    dw_stream_close(stream);
    assert_int_equal(n_files(store), 3);
    expect(store, 2, "{\"version\": 2}");
    kit_verify(store);
    dw_store_close(store);
    kit_free(&k);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
