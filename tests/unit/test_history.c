/* A store that disappears, comes back as an older copy, or loses commits: nobody writes
 * into an empty directory, commits after a lost version, or takes it for 'nothing new'.
 */
/* labels: threads */
#include <sys/stat.h>
#include <unistd.h>

#include "unit/suite.h"

#include "follow/follower.h"
#include "stream/record.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

static void shell(const char *format, ...)
{
    char command[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

static dw_store *open_store(const char *url)
{
    dw_error err = {0};
    dw_store *store;
    assert_ok(dw_store_open(&store, url, NULL, &err), &err);
    return store;
}

static dw_follower *open_follower(dw_store *store, const char *dir)
{
    dw_error err = {0};
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = dir;
    options.id = "one";
    options.n_threads = 1;
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, &options, &err), &err);
    return f;
}

static void follower_fails(dw_store *store, const char *dir, dw_status wanted)
{
    dw_error err = {0};
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = dir;
    options.n_threads = 1;
    dw_follower *f;
    assert_fails(dw_follower_open(&f, store, &options, &err), wanted, &err);
    assert_null(f);
}

static void publish_to(kit *k, dw_publisher *p, uint64_t version)
{
    dw_error err = {0};
    kit_step(k, 20);
    kit_publish(k, p, version);
    assert_ok(dw_publisher_drain(p, &err), &err);
}

static void publish_fails(kit *k, dw_publisher *p, dw_status wanted)
{
    dw_error err = {0};
    dw_publish_report report;
    kit_step(k, 20);
    assert_fails(kit_try(k, p, &report, &err), wanted, &err);
}

static void sync_to(dw_follower *f, uint64_t version)
{
    dw_error err = {0};
    assert_ok(dw_follower_sync(f, version, NULL, NULL, &err), &err);
    assert_int_equal(dw_follower_version(f), version);
}

static dw_status poll(dw_follower *f, uint64_t *newest, dw_error *err)
{
    *err = (dw_error){0};
    return dw_follower_poll(f, newest, err);
}

static void remove_commit(dw_store *store, uint64_t version)
{
    dw_error err = {0};
    char key[DW_KEY_TEXT];
    dw_key_commit(key, version);
    assert_ok(dw_store_remove(store, key, &err), &err);
}

/* ---- directories ---- */

TEST_WITH(test_absent_directory, temp_dir_make, temp_dir_remove)
{
    kit k;
    kit_make(&k);
    dw_store *store = open_store(temp_path("deep/store"));
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *p = kit_open(&k, store, &options);
    publish_to(&k, p, 1);
    dw_follower *f = open_follower(store, temp_path("follower"));
    sync_to(f, 1);

    dw_stream *stream;
    dw_error err = {0};
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    for (int is_empty = 0; is_empty < 2; is_empty++) {
        /* moved away, or an empty mount point */
        shell("mv %s/deep %s/away", temp_dir, temp_dir);
        if (is_empty)
            shell("mkdir -p %s/deep/store", temp_dir);
        uint64_t newest;
        publish_fails(&k, p, DW_UNAVAILABLE);
        assert_fails(poll(f, &newest, &err), DW_UNAVAILABLE, &err);
        assert_non_null(strstr(err.text, "absent"));
        assert_fails(dw_follower_report(f, "following", NULL, &err), DW_UNAVAILABLE,
                     &err);
        const dw_collect_options collect = {.struct_bytes = sizeof collect, .n_keep = 1};
        assert_fails(dw_stream_collect(stream, &collect, NULL, &err), DW_UNAVAILABLE,
                     &err);
        assert_fails(dw_store_put_bytes(store, "a/b", "x", 1, DW_PUT_REPLACE, &err),
                     DW_UNAVAILABLE, &err);
        assert_fails(dw_store_remove(store, "a/b", &err), DW_UNAVAILABLE, &err);
        if (is_empty)
            assert_int_equal(count_files(temp_path("deep/store")), 0);
        else
            assert_int_not_equal(access(temp_path("deep"), F_OK), 0);
        shell("rm -rf %s/deep && mv %s/away %s/deep", temp_dir, temp_dir, temp_dir);
    }
    dw_stream_close(stream);
    /* the next version covers the failed one */
    publish_to(&k, p, 2);
    publish_to(&k, p, 3);
    sync_to(f, 3);
    assert_ok(dw_follower_report(f, "following", NULL, &err), &err);
    dw_follower_close(f);
    dw_publisher_close(p);
    kit_check_stream(&k, store, NULL);
    dw_store_close(store);
    kit_free(&k);
}

TEST_WITH(test_older_directory, temp_dir_make, temp_dir_remove)
{
    kit k;
    kit_make(&k);
    dw_store *store = open_store(temp_path("store"));
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *p = kit_open(&k, store, &options);
    publish_to(&k, p, 1);
    shell("cp -a %s/store %s/older", temp_dir, temp_dir);
    publish_to(&k, p, 2);
    publish_to(&k, p, 3);
    dw_follower *f = open_follower(store, temp_path("follower"));
    sync_to(f, 3);

    shell("cd %s && mv store newer && mv older store", temp_dir);
    uint64_t newest;
    dw_error err = {0};
    kit_step(&k, 20);
    dw_publish_report report;
    /* the first write finds another directory; then its log is checked */
    assert_fails(kit_try(&k, p, &report, &err), DW_UNAVAILABLE, &err);
    publish_fails(&k, p, DW_UNTRUSTED);
    assert_fails(poll(f, &newest, &err), DW_UNTRUSTED, &err);
    assert_non_null(strstr(err.text, "older copy"));
    assert_int_equal(kit_find(store, "commits/", "", NULL), 2);

    shell("cd %s && mv store older && mv newer store", temp_dir);
    assert_ok(poll(f, &newest, &err), &err);
    assert_int_equal(newest, 3);
    publish_to(&k, p, 4);
    sync_to(f, 4);
    dw_follower_close(f);
    dw_publisher_close(p);
    kit_check_stream(&k, store, NULL);
    dw_store_close(store);
    kit_free(&k);
}

/* Swaps the directories just before a commit is put: after all checks. */
static bool swap_now;

static store_fault swap_before_commit(void *context, uint64_t n, const char *operation,
                                      const char *key)
{
    (void)context;
    (void)n;
    if (swap_now && strcmp(operation, "put") == 0 && strncmp(key, "commits/", 8) == 0) {
        swap_now = false;
        shell("cd %s && mv store newer && mv older store", temp_dir);
    }
    return STORE_FAULT_NONE;
}

TEST_WITH(test_swap_before_commit, temp_dir_make, temp_dir_remove)
{
    kit k;
    kit_make(&k);
    dw_store *inner = open_store(temp_path("store")), *store;
    const store_fault_plan plan = {.choose = swap_before_commit};
    dw_error err = {0};
    assert_ok(fault_store_new(&store, inner, &plan, &err), &err);
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *p = kit_open(&k, store, &options);
    publish_to(&k, p, 1);
    shell("cp -a %s/store %s/older", temp_dir, temp_dir);
    publish_to(&k, p, 2);
    swap_now = true;
    publish_fails(&k, p, DW_UNTRUSTED);
    assert_int_equal(kit_find(store, "commits/", "", NULL), 2);
    shell("cd %s && rm -r store && mv newer store", temp_dir);
    assert_int_equal(kit_find(store, "commits/", "", NULL), 3);
    publish_to(&k, p, 3);
    dw_publisher_close(p);
    kit_check_stream(&k, inner, NULL);
    dw_store_close(store);
    dw_store_close(inner);
    kit_free(&k);
}

/* ---- any store ---- */

TEST_WITH(test_lost_parent, temp_dir_make, temp_dir_remove)
{
    kit k;
    kit_make(&k);
    dw_store *store = kit_mem_store();
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *p = kit_open(&k, store, &options);
    for (uint64_t v = 1; v <= 3; v++)
        publish_to(&k, p, v);
    remove_commit(store, 3);
    publish_fails(&k, p, DW_UNTRUSTED);
    assert_int_equal(kit_find(store, "commits/", "", NULL), 3);
    dw_publisher_close(p);

    /* the number of a lost version is not used again */
    char own[512];
    dw_error err = {0};
    const size_t n_epochs = kit_find(store, "epochs/", "", NULL);
    assert_fails(dw_publisher_open(&p, store, k.tensors, KIT_TENSORS, &options, &err),
                 DW_CORRUPT, &err);
    assert_non_null(strstr(err.text, "version 3 was committed, but it is missing"));
    assert_int_equal(kit_find(store, "epochs/", "", NULL), n_epochs);
    assert_ok(dw_store_remove(store, DW_KEY_LATEST, &err), &err);

    /* an epoch that is gone before its first commit */
    p = kit_open(&k, store, &options);
    kit_find(store, "epochs/", "", own);
    assert_ok(dw_store_remove(store, own, &err), &err);
    publish_fails(&k, p, DW_UNTRUSTED);
    assert_int_equal(kit_find(store, "commits/", "", NULL), 3);
    dw_publisher_close(p);
    dw_store_close(store);
    kit_free(&k);
}

typedef struct tally {
    unsigned n_fence, n_commits, n_other;
} tally;

static store_fault count_requests(void *context, uint64_t n, const char *operation,
                                  const char *key)
{
    (void)n;
    tally *t = context;
    if (strncmp(key, "objects/", 8) == 0 || strcmp(key, "latest.json") == 0 ||
        strcmp(operation, "put") == 0)
        return STORE_FAULT_NONE;
    if (strncmp(key, "epochs/", 7) == 0)
        t->n_fence++;
    else if (strncmp(key, "commits/", 8) == 0)
        t->n_commits++;
    else
        t->n_other++;
    return STORE_FAULT_NONE;
}

/* Two requests more than the fence for each commit, also for the first of an epoch: its
 * parent is read before, and it is read back. */
TEST_WITH(test_requests, temp_dir_make, temp_dir_remove)
{
    kit k;
    kit_make(&k);
    tally t;
    dw_store *inner = kit_mem_store(), *store;
    const store_fault_plan plan = {.choose = count_requests, .context = &t};
    dw_error err = {0};
    assert_ok(fault_store_new(&store, inner, &plan, &err), &err);
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher_close(kit_open(&k, store, &options));
    dw_publisher *p = kit_open(&k, store, &options);
    for (uint64_t v = 1; v <= 3; v++) {
        t = (tally){0};
        publish_to(&k, p, v);
        assert_int_equal(t.n_fence, 1);
        assert_int_equal(t.n_commits, 2);
        assert_int_equal(t.n_other, 0);
    }
    dw_publisher_close(p);
    dw_store_close(store);
    dw_store_close(inner);
    kit_free(&k);
}

/* ---- holes ---- */

static void put_hint(dw_store *store, uint64_t version)
{
    dw_error err = {0};
    dw_stream *stream;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    dw_latest_record latest = {.version = version};
    strcpy(latest.stream, dw_stream_id(stream));
    dw_writer bytes = {0};
    assert_ok(dw_latest_record_write(&bytes, &latest, &err), &err);
    assert_ok(dw_store_put_bytes(store, DW_KEY_LATEST, bytes.bytes, bytes.n_bytes,
                                 DW_PUT_REPLACE, &err),
              &err);
    dw_writer_release(&bytes);
    dw_stream_close(stream);
}

static void check_log(dw_store *store, dw_status wanted, unsigned n_faults)
{
    dw_error err = {0};
    dw_stream *stream;
    dw_verify_report report;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_fails(dw_stream_check_log(stream, &err), wanted, &err);
    assert_fails(dw_stream_verify(stream, NULL, NULL, NULL, &report, &err), wanted, &err);
    assert_int_equal(report.n_faults, n_faults);
    dw_stream_close(stream);
}

TEST_WITH(test_holes, temp_dir_make, temp_dir_remove)
{
    kit k;
    kit_make(&k);
    size_t log[KIT_COPIES];
    dw_error err = {0};
    uint64_t newest;
    dw_store *store = kit_mem_store();
    kit_make_stream(&k, store, temp_dir, 2, 0, log);
    dw_follower *f = open_follower(store, temp_path("follower"));
    sync_to(f, 2);
    assert_ok(poll(f, &newest, &err), &err);
    check_log(store, DW_OK, 0);

    /* a hint is only a hint: the version that it names must exist */
    put_hint(store, 1000);
    assert_ok(poll(f, &newest, &err), &err);
    assert_int_equal(newest, 2);
    check_log(store, DW_CORRUPT, 1); /* but it is reported */
    put_hint(store, 0);
    assert_ok(poll(f, &newest, &err), &err);
    check_log(store, DW_OK, 0);

    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *p = kit_open(&k, store, &options);
    for (uint64_t v = 3; v <= 5; v++)
        publish_to(&k, p, v);
    dw_publisher_close(p);
    dw_store *copy = kit_mem_store();
    kit_copy_store(store, copy, "");
    remove_commit(store, 3);
    assert_fails(poll(f, &newest, &err), DW_CORRUPT, &err);
    assert_int_equal(newest, 5);
    assert_fails(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), DW_CORRUPT, &err);
    assert_int_equal(dw_follower_version(f), 2);
    check_log(store, DW_CORRUPT, 1);
    dw_follower_close(f);

    /* without a hint the commits are listed */
    assert_ok(dw_store_remove(store, DW_KEY_LATEST, &err), &err);
    f = open_follower(store, temp_path("follower"));
    assert_fails(poll(f, &newest, &err), DW_CORRUPT, &err);
    kit_copy_store(copy, store, "commits/");
    sync_to(f, 5);
    check_log(store, DW_OK, 0);
    dw_follower_close(f);

    /* versions that were read before the gap was found */
    f = open_follower(store, temp_path("second"));
    sync_to(f, 1);
    remove_commit(store, 4);
    put_hint(store, 5);
    assert_fails(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), DW_CORRUPT, &err);
    dw_follower_close(f);
    dw_store_close(copy);
    dw_store_close(store);
    kit_free(&k);
}

/* ---- rollbacks ---- */

TEST_WITH(test_rollback, temp_dir_make, temp_dir_remove)
{
    kit k;
    kit_make(&k);
    size_t log[KIT_COPIES];
    dw_store *store = kit_mem_store(), *newer = kit_mem_store();
    kit_make_stream(&k, store, temp_dir, 5, 2, log);
    kit_copy_store(store, newer, "");
    const char *dir = temp_path("follower");
    dw_follower *f = open_follower(store, dir);
    sync_to(f, 5);
    sync_to(f, 3); /* an explicit goal */
    dw_follower_close(f);
    f = open_follower(store, dir);
    assert_int_equal(dw_follower_version(f), 3);
    sync_to(f, 1);
    sync_to(f, 4); /* not the highest either */
    dw_follower_close(f);

    /* the store offers less */
    remove_commit(store, 5);
    put_hint(store, 4);
    follower_fails(store, dir, DW_UNTRUSTED);
    /* another version 5 */
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *p = kit_open(&k, store, &options);
    publish_to(&k, p, 5);
    dw_publisher_close(p);
    follower_fails(store, dir, DW_UNTRUSTED);

    /* the newer copy is back */
    f = open_follower(newer, dir);
    assert_int_equal(dw_follower_version(f), 4);
    sync_to(f, 5);
    sync_to(f, 2);
    dw_follower_close(f);

    /* a damaged record is ignored, and raises no alarm */
    char path[600];
    snprintf(path, sizeof path, "%s/.deltawire/highest.json", dir);
    size_t n;
    uint8_t *bytes = get_file(path, &n);
    bytes[n / 2] ^= 1;
    put_file(path, bytes, n);
    free(bytes);
    f = open_follower(newer, dir);
    sync_to(f, 5);
    dw_follower_close(f);
    dw_store_close(store);
    dw_store_close(newer);
    kit_free(&k);
}

/* A running follower notices it too, and its weights do not change. */
TEST_WITH(test_rollback_while_running, temp_dir_make, temp_dir_remove)
{
    kit k;
    kit_make(&k);
    size_t log[KIT_COPIES];
    dw_error err = {0};
    uint64_t newest;
    dw_store *store = kit_mem_store();
    kit_make_stream(&k, store, temp_dir, 5, 2, log);
    dw_follower *f = open_follower(store, temp_path("follower"));
    sync_to(f, 5);
    sync_to(f, 3);
    remove_commit(store, 5);
    put_hint(store, 4);
    assert_fails(poll(f, &newest, &err), DW_UNTRUSTED, &err);
    assert_fails(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), DW_UNTRUSTED, &err);
    assert_int_equal(dw_follower_version(f), 3);
    kit_check_follower(&k, f, log);
    dw_follower_close(f);
    dw_store_close(store);
    kit_free(&k);
}

static void open_publisher_fails(kit *k, dw_store *store,
                                 const dw_publish_options *options, dw_status wanted)
{
    dw_error err = {0};
    dw_publisher *p;
    assert_fails(dw_publisher_open(&p, store, k->tensors, KIT_TENSORS, options, &err),
                 wanted, &err);
    assert_null(p);
    assert_non_null(strstr(err.text, "empty directory"));
}

TEST_WITH(test_baseline_ahead, temp_dir_make, temp_dir_remove)
{
    kit k;
    kit_make(&k);
    dw_store *store = kit_mem_store(), *empty = kit_mem_store();
    dw_publish_options options = kit_plain_options(temp_dir);
    options.baseline_dir = temp_path("baseline");
    dw_publisher *p = kit_open(&k, store, &options);
    for (uint64_t v = 1; v <= 3; v++)
        publish_to(&k, p, v);
    dw_publisher_close(p);
    remove_commit(store, 3);
    put_hint(store, 2);
    const size_t n_epochs = kit_find(store, "epochs/", "", NULL);
    open_publisher_fails(&k, store, &options, DW_UNTRUSTED);
    assert_int_equal(kit_find(store, "epochs/", "", NULL), n_epochs);
    /* no new stream is made in a store that is absent */
    open_publisher_fails(&k, empty, &options, DW_UNAVAILABLE);
    assert_int_equal(kit_find(empty, "", "", NULL), 0);
    /* the next step that the message names */
    options.baseline_dir = temp_path("baseline2");
    p = kit_open(&k, store, &options);
    publish_to(&k, p, 3);
    dw_publisher_close(p);
    dw_store_close(store);
    dw_store_close(empty);
    kit_free(&k);
}

RUN_TESTS(NULL, NULL)
