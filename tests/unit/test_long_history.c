/* labels: slow */
/* What each operation reads from the store of a stream with 2,000 versions. The numbers
 * of requests are exact and are compared with bounds. */
#include <inttypes.h>
#include <stdatomic.h>

#include "unit/suite.h"

#include "deltawire/stream.h"
#include "stream/record.h"
#include "unit/counting_store.h"
#include "unit/temp_dir.h"
#include "inner.h"

#define HEAD         2000
#define ANCHOR_EVERY 700 /* so the newest anchor is of version 1,400 */

static dw_store *plain; /* not counted */
static counting_store counter;
static dw_store *store;
static uint16_t weights[64];
static const uint64_t dims[] = {64};

static dw_tensor tensor_of(void *data)
{
    return (dw_tensor){"w", DW_BF16, 1, dims, sizeof weights, data, 0, NULL};
}

static dw_publish_options publish_options(void)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = temp_dir;
    options.anchor_factor = 0;
    options.anchor_every = ANCHOR_EVERY;
    options.n_threads = 1;
    return options;
}

static void publish(dw_publisher *p, uint64_t version)
{
    dw_error err = {0};
    dw_publish_report report;
    uint64_t ticket;
    weights[version % 64] = (uint16_t)(0x3c00 + version);
    assert_ok(dw_publisher_publish(p, &ticket, NULL, &err), &err);
    assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err), &err);
    assert_int_equal(report.version, version);
    assert_ok(dw_publisher_drain(p, &err), &err); /* folds and anchors */
}

static dw_publisher *open_publisher(dw_store *at)
{
    dw_error err = {0};
    dw_tensor tensor = tensor_of(weights);
    const dw_publish_options options = publish_options();
    dw_publisher *p;
    assert_ok(dw_publisher_open(&p, at, &tensor, 1, &options, &err), &err);
    return p;
}

static int make_history(void **state)
{
    if (temp_dir_make(state) != 0)
        return -1;
    plain = kit_mem_store();
    memset(weights, 0x3f, sizeof weights);
    dw_publisher *p = open_publisher(plain);
    for (uint64_t v = 1; v <= HEAD; v++)
        publish(p, v);
    dw_publisher_close(p);
    counter.inner = plain;
    store = counting_open(&counter);
    return 0;
}

static int drop_history(void **state)
{
    dw_store_close(store);
    dw_store_close(plain);
    return temp_dir_remove(state);
}

/* Ends the count since the last reset. */
static void assert_reads(const char *what, unsigned most)
{
    const unsigned n = counted_reads(&counter);
    print_message("%-28s %4u reads (at most %u): %u gets, %u stats, %u lists\n", what, n,
                  most, counter.n_gets, counter.n_stats, counter.n_pages);
    assert_in_range(n, 1, most);
}

static void put_hint(const dw_writer *hint)
{
    dw_error err = {0};
    assert_ok(dw_store_put_bytes(plain, DW_KEY_LATEST, hint->bytes, hint->n_bytes,
                                 DW_PUT_REPLACE, &err),
              &err);
}

/* Removes the hint; put_hint restores it. */
static void take_hint(dw_writer *hint)
{
    dw_error err = {0};
    *hint = (dw_writer){0};
    assert_ok(dw_store_get_all(plain, DW_KEY_LATEST, DW_LATEST_BYTES, hint, &err), &err);
    assert_ok(dw_store_remove(plain, DW_KEY_LATEST, &err), &err);
}

/* ---- readers ---- */

static void pull(const char *what, unsigned most)
{
    dw_error err = {0};
    dw_follow_options options;
    dw_follow_options_init(&options);
    uint16_t bytes[64] = {0};
    dw_tensor tensor = tensor_of(bytes);
    options.tensors = &tensor;
    options.n_tensors = 1;
    options.spool_dir = temp_dir;
    dw_follower *f;
    counting_reset(&counter);
    assert_ok(dw_follower_open(&f, store, &options, &err), &err);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), &err);
    assert_int_equal(dw_follower_version(f), HEAD);
    assert_reads(what, most);
    dw_follower_close(f);
    assert_memory_equal(bytes, weights, sizeof bytes);
}

TEST(test_pull)
{
    dw_writer hint;
    pull("pull", 160);
    take_hint(&hint);
    pull("pull without a hint", 240);
    put_hint(&hint);
    dw_writer_release(&hint);
}

static dw_follower *open_dir(dw_store *at)
{
    dw_error err = {0};
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = temp_path("behind");
    dw_follower *f;
    assert_ok(dw_follower_open(&f, at, &options, &err), &err);
    return f;
}

/* From three versions behind. The route by an anchor must not be considered. */
static void resume(const char *what, unsigned most)
{
    dw_error err = {0};
    dw_follow_report report;
    dw_follower *f = open_dir(plain);
    assert_ok(dw_follower_sync(f, HEAD - 3, NULL, NULL, &err), &err);
    dw_follower_close(f);
    counting_reset(&counter);
    f = open_dir(store);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, &report, &err), &err);
    assert_int_equal(dw_follower_version(f), HEAD);
    assert_reads(what, most);
    dw_follower_close(f);
}

TEST(test_resume)
{
    dw_writer hint;
    resume("resume", 80);
    take_hint(&hint);
    resume("resume without a hint", 80);
    put_hint(&hint);
    dw_writer_release(&hint);
}

TEST(test_log)
{
    dw_error err = {0};
    dw_stream *stream;
    const dw_edge *shortcuts;
    size_t n_shortcuts;
    uint64_t head, floor;
    counting_reset(&counter);
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_ok(dw_stream_head(stream, &head, &err), &err);
    assert_int_equal(head, HEAD);
    assert_ok(dw_stream_floor(stream, &floor, &err), &err);
    assert_ok(
        dw_stream_shortcuts_to(stream, HEAD - 30, HEAD, &shortcuts, &n_shortcuts, &err),
        &err);
    assert_int_equal(n_shortcuts, 2); /* to 1976 and to 1992 */
    for (size_t i = 0; i < n_shortcuts; i++)
        assert_true(shortcuts[i].to >= HEAD - 30 && shortcuts[i].n_bytes > 0);
    for (uint64_t v = HEAD - 4; v <= HEAD; v++) {
        dw_version_info info;
        assert_ok(dw_stream_version(stream, v, &info, &err), &err);
    }
    assert_reads("log of five versions", 20);
    counting_reset(&counter);
    assert_ok(dw_stream_check_log(stream, &err), &err);
    assert_reads("check of the newest part", 10);
    assert_ok(dw_stream_shortcuts(stream, &shortcuts, &n_shortcuts, &err), &err);
    assert_int_equal(n_shortcuts, 2 + ANCHOR_EVERY / 16 + (HEAD - 2 * ANCHOR_EVERY) / 16);
    dw_stream_close(stream);
}

/* The route is the cheapest, with and without the hint. */
TEST(test_route)
{
    dw_error err = {0};
    dw_stream *stream;
    const dw_edge *edges;
    size_t n, n_with_hint = 0;
    dw_writer hint;
    for (unsigned without = 0; without < 2; without++) {
        if (without)
            take_hint(&hint);
        assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
        counting_reset(&counter);
        assert_ok(dw_stream_route(stream, DW_NO_VERSION, HEAD, &edges, &n, &err), &err);
        assert_reads(without ? "route without a hint" : "route", without ? 60 : 3);
        assert_int_equal(edges[0].from, DW_NO_VERSION);
        assert_int_equal(edges[0].to, 2 * ANCHOR_EVERY);
        assert_int_equal(edges[n - 1].to, HEAD);
        if (without)
            assert_int_equal(n, n_with_hint);
        n_with_hint = n;
        dw_stream_close(stream);
    }
    put_hint(&hint);
    dw_writer_release(&hint);
}

/* A compactor reads what a pull reads. */
TEST(test_compact)
{
    dw_error err = {0};
    dw_compactor *c;
    dw_edge made;
    dw_compact_options options;
    dw_compact_options_init(&options);
    options.work_dir = temp_dir;
    options.anchor_every = 1;
    options.keep_shortcuts = true;
    dw_writer hint;
    take_hint(&hint);
    put_hint(&hint);
    counting_reset(&counter);
    assert_ok(dw_compactor_open(&c, store, &options, &err), &err);
    assert_ok(dw_compactor_step(c, NULL, &made, &err), &err);
    assert_reads("compact", 200);
    assert_int_equal(made.to, HEAD);
    dw_compactor_close(c);
    char key[DW_KEY_TEXT];
    dw_key_shortcut(key, HEAD, DW_NO_VERSION);
    assert_ok(dw_store_remove(plain, key, &err), &err);
    put_hint(&hint);
    dw_writer_release(&hint);
}

/* A mirror reads what it copies. */
TEST(test_copy)
{
    dw_error err = {0};
    dw_stream *stream;
    dw_copy_report first, report;
    char key[512];
    dw_store *mirror = kit_mem_store();
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_ok(dw_stream_copy(stream, mirror, NULL, &first, &err), &err);
    counting_reset(&counter);
    assert_ok(dw_stream_copy(stream, mirror, NULL, &report, &err), &err);
    assert_reads("copy again", 30);
    assert_int_equal(report.n_present, first.n_objects);
    assert_int_equal(report.n_objects, 0);
    /* restores what the copy lost */
    assert_true(kit_find(mirror, "objects/00000000000000001000-", "", key) > 0);
    assert_ok(dw_store_remove(mirror, key, &err), &err);
    counting_reset(&counter);
    assert_ok(dw_stream_copy(stream, mirror, NULL, &report, &err), &err);
    assert_reads("copy of one object", 35);
    assert_int_equal(report.n_objects, 1);
    kit_verify(mirror);
    dw_stream_close(stream);
    dw_store_close(mirror);
}

/* ---- collectors ---- */

/* Returns the number of objects and records that were removed. */
static unsigned collect(const char *what, uint64_t n_keep, unsigned most)
{
    dw_error err = {0};
    dw_stream *stream;
    const dw_collect_options options = {.struct_bytes = sizeof options, .n_keep = n_keep};
    counting_reset(&counter);
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_ok(dw_stream_collect(stream, &options, NULL, &err), &err);
    assert_reads(what, most);
    dw_stream_close(stream);
    return counter.n_removes;
}

TEST(test_collect)
{
    dw_error err = {0};
    char key[DW_KEY_TEXT];
    assert_int_equal(collect("gc of nothing", HEAD, 30), 0);
    dw_key_object(key, 1000, "00000000000000000000000000000000", NULL, 0);
    assert_ok(dw_store_put_bytes(plain, key, "left", 4, DW_PUT_REPLACE, &err), &err);
    assert_int_equal(collect("gc of a leftover", HEAD, 30), 1);
    assert_fails(dw_store_stat(plain, key, NULL, NULL, &err), DW_NOT_FOUND, &err);
    assert_true(collect("gc down to an anchor", 100, 30) > 2 * ANCHOR_EVERY);
    kit_verify(plain);
}

/* ---- writers ---- */

static void publish_cold(const char *what, uint64_t version, unsigned most)
{
    uint16_t kept[64];
    memcpy(kept, weights, sizeof kept);
    memset(weights, 0, sizeof weights); /* so that the baseline is fetched */
    counting_reset(&counter);
    dw_publisher *p = open_publisher(store);
    memcpy(weights, kept, sizeof kept);
    publish(p, version);
    assert_reads(what, most);
    dw_publisher_close(p);
}

TEST(test_publish)
{
    dw_error err = {0};
    publish_cold("cold publish", HEAD + 1, 240);
    assert_ok(dw_store_remove(plain, DW_KEY_LATEST, &err), &err);
    publish_cold("cold publish, no hint", HEAD + 2, 320);
}

/* ---- the search for the newest version ---- */

/* In a log of so many versions. The search reads only names. */
static void search(uint64_t n_versions, uint64_t hole, unsigned most)
{
    dw_error err = {0};
    char key[DW_KEY_TEXT];
    counting_store s = {.inner = kit_mem_store()};
    dw_store *counted = counting_open(&s);
    kit_copy_store(plain, s.inner, DW_KEY_STREAM);
    for (uint64_t v = 0; v < n_versions; v++) {
        dw_key_commit(key, v);
        if (v != hole)
            assert_ok(dw_store_put_bytes(s.inner, key, "{}", 2, DW_PUT_CREATE, &err),
                      &err);
    }
    dw_stream *stream;
    uint64_t head;
    assert_ok(dw_stream_open(&stream, counted, NULL, &err), &err);
    counting_reset(&s);
    assert_ok(dw_stream_head(stream, &head, &err), &err);
    assert_int_equal(head, n_versions - 1);
    print_message("%6" PRIu64 " versions: %u reads\n", n_versions, counted_reads(&s));
    assert_in_range(counted_reads(&s), 1, most);
    dw_stream_close(stream);
    dw_store_close(counted);
    dw_store_close(s.inner);
}

TEST(test_search)
{
    static const uint64_t sizes[] = {1, 999, 1000, 1001, 1999, 2000, 2001, 50000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        search(sizes[i], UINT64_MAX, 40);
    /* versions above a gap are found: these are the ones that are asked for */
    search(5000, 1999, 60);
    search(5000, 3999, 60);
    search(5000, 4998, 60);
}

RUN_TESTS(make_history, drop_history)
