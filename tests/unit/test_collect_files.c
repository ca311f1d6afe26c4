/* Companion files in collections, sweeps and copies: whatever version is kept, its files
 * are there. */
#include "deltawire/stream.h"
#include "stream/record.h"
#include "unit/stream_fixture.h"

#define HEAD 12

/* Version V has config.json, which changes every third version; "a" up to version 4; "b"
 * from version 5 on. */
static void files_of(uint64_t v, char text[32], dw_file out[2])
{
    snprintf(text, 32, "[%llu]", (unsigned long long)(v / 3));
    out[0] = v <= 4 ? (dw_file){"a", "A", 1} : (dw_file){"b", "BB", 2};
    out[1] = (dw_file){"config.json", text, strlen(text)};
}

static void make(fixture *x, const char *url)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = 0;
    options.anchor_every = 4;
    options.anchor_factor = 0;
    options.spool_dir = "/tmp";
    options.keep_shortcuts = true;
    char text[32];
    dw_file files[2];
    files_of(0, text, files);
    options.files = files;
    options.n_files = 2;
    options.has_files = true;
    fixture_open(x, url, &options);
    for (uint64_t v = 1; v <= HEAD; v++) {
        uint64_t ticket;
        files_of(v, text, files);
        const dw_publish_note note = {
            .struct_bytes = sizeof note, .files = files, .n_files = 2, .has_files = true};
        model_change(&x->live, 30);
        assert_fine(x, dw_publisher_publish(x->publisher, &ticket, &note, &x->err));
        assert_fine(
            x, dw_publisher_wait(x->publisher, ticket, UINT_MAX, NULL, NULL, &x->err));
        assert_fine(x, dw_publisher_drain(x->publisher, &x->err));
        x->at[x->n++] = model_copy(&x->live, false);
    }
}

/* The versions from FLOOR on have all their files. */
static void assert_files(fixture *x, dw_store *store, uint64_t floor)
{
    dw_stream *s;
    assert_fine(x, dw_stream_open(&s, store, NULL, &x->err));
    for (uint64_t v = floor; v <= HEAD; v++) {
        char text[32];
        dw_file files[2];
        files_of(v, text, files);
        for (size_t i = 0; i < 2; i++) {
            const void *bytes;
            uint64_t n;
            assert_fine(x, dw_stream_read_file(s, v, files[i].name, &bytes, &n, &x->err));
            assert_int_equal(n, files[i].n_bytes);
            assert_memory_equal(bytes, files[i].bytes, n);
        }
    }
    dw_stream_close(s);
}

static dw_status verify(fixture *x, dw_store *store, dw_verify_report *report)
{
    dw_stream *s;
    dw_status status = dw_stream_open(&s, store, NULL, &x->err);
    if (status == DW_OK)
        status = dw_stream_verify(s, NULL, NULL, NULL, report, &x->err);
    dw_stream_close(s);
    return status;
}

static void collect(fixture *x, dw_store *store, uint64_t n_keep, uint64_t floor)
{
    dw_stream *s;
    const dw_collect_options options = {.struct_bytes = sizeof options, .n_keep = n_keep};
    dw_collect_report report;
    assert_fine(x, dw_stream_open(&s, store, NULL, &x->err));
    assert_fine(x, dw_stream_collect(s, &options, &report, &x->err));
    assert_int_equal(report.floor, floor);
    dw_stream_close(s);
}

/* What an attempt at VERSION that was killed before its commit leaves behind. */
static void leave(fixture *x, dw_store *store, uint64_t version, char key[DW_KEY_TEXT])
{
    dw_key_file(key, version, "00000000000000000000000000000000", 0);
    assert_fine(x, dw_store_put_bytes(store, key, "left", 4, DW_PUT_CREATE, &x->err));
}

static bool has(dw_store *store, const char *key)
{
    return dw_store_stat(store, key, NULL, NULL, NULL) == DW_OK;
}

TEST(test_every_floor)
{
    fixture x;
    make(&x, "mem:collect-files");
    /* a; config of 0, 3, 6, 9, 12; b */
    assert_int_equal(fixture_count(&x, x.store, "files/"), 7);
    static const size_t n_left[] = {7, 6, 4, 2}; /* by the floor / 4 */
    for (uint64_t n_keep = 1; n_keep <= HEAD + 1; n_keep++) {
        dw_store *store = fixture_clone(&x);
        const uint64_t floor = (HEAD + 1 - n_keep) / 4 * 4;
        char unmade[DW_KEY_TEXT], leftovers[3][DW_KEY_TEXT];
        dw_verify_report found;
        leave(&x, store, HEAD + 1, unmade); /* an attempt that may still be committed */
        leave(&x, store, 12, leftovers[0]); /* beside the version's own */
        leave(&x, store, 0, leftovers[1]);
        leave(&x, store, 3, leftovers[2]);
        assert_fine(&x, verify(&x, store, &found));
        assert_int_equal(found.n_unnamed, 4);
        collect(&x, store, n_keep, floor);
        assert_true(has(store, unmade));
        for (size_t i = 0; i < 3; i++)
            assert_false(has(store, leftovers[i]));
        assert_files(&x, store, floor);
        assert_fine(&x, verify(&x, store, &found));
        assert_int_equal(found.n_unnamed, 1);
        assert_int_equal(fixture_count(&x, store, "files/"), n_left[floor / 4] + 1);
        collect(&x, store, n_keep, floor); /* nothing is left to do */
        assert_int_equal(fixture_count(&x, store, "files/"), n_left[floor / 4] + 1);
        dw_store_close(store);
    }
    fixture_close(&x);
}

/* The first object of the file NAME of VERSION. */
static void key_of(fixture *x, uint64_t version, const char *name, char key[DW_KEY_TEXT])
{
    dw_stream *s;
    dw_commit_record c;
    assert_fine(x, dw_stream_open(&s, x->store, NULL, &x->err));
    assert_fine(x, dw_stream_read_commit(s, version, &c, &x->err));
    for (size_t i = 0; i < c.files.n; i++)
        if (strcmp(c.files.items[i].name, name) == 0)
            memcpy(key, c.files.items[i].key, DW_KEY_TEXT);
    dw_commit_record_release(&c);
    dw_stream_close(s);
}

TEST(test_faults_are_found_once)
{
    fixture x;
    make(&x, "mem:verify-files");
    char key[DW_KEY_TEXT];
    key_of(&x, 7, "b", key);
    for (int kind = 0; kind < 3; kind++) {
        dw_store *store = fixture_clone(&x);
        dw_verify_report found;
        if (kind == 0)
            assert_fine(&x, dw_store_remove(store, key, &x.err));
        else
            assert_fine(&x, dw_store_put_bytes(store, key, "bbb", kind == 1 ? 2 : 3,
                                               DW_PUT_REPLACE, &x.err));
        assert_int_equal(verify(&x, store, &found),
                         kind == 0 ? DW_NOT_FOUND : DW_CORRUPT);
        assert_int_equal(found.n_faults, 1);
        assert_non_null(strstr(x.err.where, key));
        assert_non_null(strstr(x.err.text, "companion file 'b'"));
        assert_non_null(strstr(x.err.text, "deltawire repair"));
        dw_store_close(store);
    }
    fixture_close(&x);
}

static dw_status copy(fixture *x, dw_store *from, dw_store *to, dw_copy_report *report)
{
    dw_stream *s;
    dw_status status = dw_stream_open(&s, from, NULL, &x->err);
    if (status == DW_OK)
        status = dw_stream_copy(s, to, NULL, report, &x->err);
    dw_stream_close(s);
    return status;
}

TEST(test_copies_have_the_files)
{
    fixture x;
    make(&x, "mem:copy-files");
    for (uint64_t floor = 0; floor <= 8; floor += 4) {
        dw_store *from = fixture_clone(&x), *to;
        char url[40], key[DW_KEY_TEXT];
        dw_copy_report report;
        dw_verify_report found;
        snprintf(url, sizeof url, "mem:copy-files-%u", (unsigned)floor);
        assert_fine(&x, dw_store_open(&to, url, NULL, &x.err));
        if (floor > 0)
            collect(&x, from, HEAD + 1 - floor, floor);
        leave(&x, from, 10, key);
        assert_fine(&x, copy(&x, from, to, &report));
        assert_false(has(to, key));
        assert_files(&x, to, floor);
        assert_fine(&x, verify(&x, to, &found));
        /* nothing to do; then one that the mirror lost */
        assert_fine(&x, copy(&x, from, to, &report));
        assert_int_equal(report.n_objects, 0);
        key_of(&x, floor, "config.json", key);
        assert_fine(&x, dw_store_remove(to, key, &x.err));
        assert_fine(&x, copy(&x, from, to, &report));
        assert_int_equal(report.n_objects, 1);
        assert_files(&x, to, floor);
        dw_store_close(from);
        dw_store_close(to);
    }
    fixture_close(&x);
}

RUN_TESTS(NULL, NULL)
