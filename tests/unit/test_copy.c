/* Copies of streams: identical bytes, consistent at every moment, never mixed with
 * another stream. */
#include "store/fault_store.h"
#include "unit/stream_fixture.h"

static dw_status copy(fixture *x, dw_store *from, dw_store *to, dw_copy_report *report)
{
    dw_stream *s;
    dw_status status = dw_stream_open(&s, from, NULL, &x->err);
    if (status == DW_OK)
        status = dw_stream_copy(s, to, NULL, report, &x->err);
    dw_stream_close(s);
    return status;
}

static dw_store *open_mirror(fixture *x)
{
    static unsigned n;
    char url[40];
    snprintf(url, sizeof url, "mem:mirror-%u", n++);
    dw_store *store;
    assert_fine(x, dw_store_open(&store, url, NULL, &x->err));
    return store;
}

static void collect(fixture *x, dw_store *store, uint64_t n_keep)
{
    dw_stream *s;
    const dw_collect_options options = {.struct_bytes = sizeof options, .n_keep = n_keep};
    dw_collect_report report;
    assert_fine(x, dw_stream_open(&s, store, NULL, &x->err));
    assert_fine(x, dw_stream_collect(s, &options, &report, &x->err));
    dw_stream_close(s);
}

typedef struct comparison {
    dw_store *other;
    size_t n;
} comparison;

static dw_status compare_entry(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    comparison *c = context;
    uint64_t n_bytes = 0;
    if (strncmp(entry->key, "probe/", 6) == 0)
        return DW_OK;
    assert_int_equal(dw_store_stat(c->other, entry->key, &n_bytes, NULL, NULL), DW_OK);
    assert_int_equal(n_bytes, entry->n_bytes);
    c->n++;
    return DW_OK;
}

static void assert_pulls(fixture *x, dw_store *mirror, uint64_t first, uint64_t last)
{
    dw_follow_report report;
    dw_verify_report found;
    for (uint64_t v = first; v <= last; v++)
        assert_fine(x, fixture_pull(x, mirror, v, &report));
    fixture_verify(x, mirror, &found);
}

TEST(test_mirror)
{
    fixture x;
    fixture_make(&x, "mem:copy", 8, 4, 2);
    dw_store *mirror = open_mirror(&x);
    dw_copy_report report;
    assert_fine(&x, copy(&x, x.store, mirror, &report));
    assert_int_equal(report.head, 8);
    assert_int_equal(report.n_present, 0);
    assert_int_equal(report.n_objects, fixture_count(&x, x.store, "objects/"));
    comparison c = {.other = mirror};
    assert_fine(&x, dw_store_list(x.store, "", NULL, compare_entry, &c, &x.err));
    assert_true(c.n > 20);
    assert_pulls(&x, mirror, 0, 8);

    uint64_t n_objects = report.n_objects;
    assert_fine(&x, copy(&x, x.store, mirror, &report));
    assert_int_equal(report.n_objects, 0);
    assert_int_equal(report.n_bytes, 0);
    assert_int_equal(report.n_present, n_objects);

    fixture_publish(&x);
    assert_fine(&x, copy(&x, x.store, mirror, &report));
    assert_int_equal(report.head, 9);
    assert_int_equal(report.n_objects, 1);
    assert_pulls(&x, mirror, 0, 9);

    /* restores what the copy lost */
    char key[DW_KEY_TEXT];
    fixture_object(&x, 5, key);
    assert_fine(&x, dw_store_remove(mirror, key, &x.err));
    assert_fine(&x, copy(&x, x.store, mirror, &report));
    assert_int_equal(report.n_objects, 1);
    assert_fine(&x, dw_store_put_bytes(mirror, key, "?", 1, DW_PUT_REPLACE, &x.err));
    dw_key_commit(key, 5);
    assert_fine(&x, dw_store_remove(mirror, key, &x.err));
    assert_fine(&x, copy(&x, x.store, mirror, &report));
    assert_int_equal(report.n_objects, 1);
    assert_pulls(&x, mirror, 0, 9);
    dw_store_close(mirror);
    fixture_close(&x);
}

TEST(test_floors)
{
    fixture x;
    fixture_make(&x, "mem:copy-floors", 10, 4, 2);
    dw_store *mirror = open_mirror(&x), *late = open_mirror(&x);
    dw_copy_report report;
    assert_fine(&x, copy(&x, x.store, mirror, &report));
    /* the copy keeps less than the stream, and dropped versions do not come back */
    collect(&x, mirror, 5);
    size_t n_objects = fixture_count(&x, mirror, "objects/");
    assert_fine(&x, copy(&x, x.store, mirror, &report));
    assert_int_equal(report.n_objects, 0);
    assert_int_equal(fixture_count(&x, mirror, "objects/"), n_objects);
    assert_pulls(&x, mirror, 4, 10);
    /* the stream keeps less than the copy */
    collect(&x, x.store, 2);
    fixture_publish(&x);
    assert_fine(&x, copy(&x, x.store, mirror, &report));
    assert_pulls(&x, mirror, 8, 11);
    assert_fine(&x, copy(&x, x.store, late, &report));
    assert_pulls(&x, late, 8, 11);
    assert_int_equal(fixture_count(&x, late, "commits/"), 12); /* the log is complete */
    assert_int_equal(fixture_count(&x, late, "objects/"),
                     fixture_count(&x, x.store, "objects/"));
    dw_store_close(mirror);
    dw_store_close(late);
    fixture_close(&x);
}

TEST(test_conflicts)
{
    fixture x, other;
    dw_copy_report report;
    fixture_make(&x, "mem:copy-conflict", 3, 0, 0);
    fixture_make(&other, "mem:copy-other", 1, 0, 0);
    assert_int_equal(copy(&x, x.store, other.store, &report), DW_CONFLICT);
    assert_non_null(strstr(x.err.text, "another stream"));
    fixture_close(&other);

    /* a copy that somebody publishes to */
    dw_store *mirror = open_mirror(&x);
    assert_fine(&x, copy(&x, x.store, mirror, &report));
    dw_publisher *p;
    uint64_t ticket;
    model theirs = model_copy(&x.live, false);
    model_change(&theirs, 20);
    assert_fine(&x,
                dw_publisher_open(&p, mirror, theirs.tensors, theirs.n, NULL, &x.err));
    for (unsigned i = 0; i < 2; i++) {
        assert_fine(&x, dw_publisher_publish(p, &ticket, NULL, &x.err));
        assert_fine(&x, dw_publisher_wait(p, ticket, UINT_MAX, NULL, NULL, &x.err));
    }
    assert_int_equal(copy(&x, x.store, mirror, &report), DW_CONFLICT);
    assert_non_null(strstr(x.err.text, "version 5"));
    fixture_publish(&x);
    fixture_publish(&x);
    fixture_publish(&x);
    assert_int_equal(copy(&x, x.store, mirror, &report), DW_CONFLICT);
    assert_non_null(strstr(x.err.text, "version 4"));
    dw_publisher_close(p);
    model_free(&theirs);
    dw_store_close(mirror);

    /* damaged objects are not copied */
    char key[DW_KEY_TEXT];
    dw_writer bytes;
    mirror = open_mirror(&x);
    fixture_object(&x, 2, key);
    fixture_get(&x, key, &bytes);
    bytes.bytes[bytes.n_bytes / 2] ^= 1;
    fixture_put(&x, key, bytes.bytes, bytes.n_bytes);
    dw_writer_release(&bytes);
    assert_int_equal(copy(&x, x.store, mirror, &report), DW_CORRUPT);
    dw_follow_report pulled;
    dw_stream *s;
    uint64_t head;
    assert_fine(&x, dw_stream_open(&s, mirror, NULL, &x.err));
    assert_fine(&x, dw_stream_head(s, &head, &x.err));
    assert_int_equal(head, 1); /* it ends a little earlier */
    dw_stream_close(s);
    assert_fine(&x, fixture_pull(&x, mirror, head, &pulled));
    dw_store_close(mirror);
    fixture_close(&x);

    fixture_make(&x, "mem:copy-missing", 4, 2, 0);
    dw_shortcut_record shortcut;
    assert_fine(&x, dw_stream_open(&s, x.store, NULL, &x.err));
    assert_fine(&x, dw_stream_read_shortcut(s, 2, DW_NO_VERSION, &shortcut, &x.err));
    memcpy(key, shortcut.objects.items[0].key, sizeof key);
    dw_shortcut_record_release(&shortcut);
    dw_stream_close(s);
    assert_fine(&x, dw_store_remove(x.store, key, &x.err));
    mirror = open_mirror(&x);
    assert_int_equal(copy(&x, x.store, mirror, &report), DW_NOT_FOUND);
    assert_non_null(strstr(x.err.text, key));
    dw_store_close(mirror);
    fixture_close(&x);
}

/* ---- others at the same time ---- */

typedef struct meanwhile {
    fixture *x;
    dw_store *store;
    uint64_t at;
    bool happened;
    bool cut_off;
} meanwhile;

static store_fault choose(void *context, uint64_t n, const char *operation,
                          const char *key)
{
    (void)operation;
    (void)key;
    meanwhile *m = context;
    if (n < m->at || (m->happened && !m->cut_off))
        return STORE_FAULT_NONE;
    m->happened = true;
    if (m->cut_off)
        return STORE_FAULT_FAIL;
    collect(m->x, m->store, 2);
    return STORE_FAULT_NONE;
}

TEST(test_source_is_collected)
{
    fixture x;
    fixture_make(&x, "mem:copy-collected", 10, 4, 2);
    meanwhile m = {.x = &x};
    do {
        m.store = fixture_clone(&x);
        m.happened = false;
        dw_store *watched, *mirror = open_mirror(&x);
        dw_copy_report report;
        const store_fault_plan plan = {.choose = choose, .context = &m};
        assert_fine(&x, fault_store_new(&watched, m.store, &plan, &x.err));
        assert_fine(&x, copy(&x, watched, mirror, &report));
        assert_pulls(&x, mirror, 8, 10);
        dw_store_close(watched);
        dw_store_close(mirror);
        dw_store_close(m.store);
        m.at++;
    } while (m.happened);
    assert_true(m.at > 20);
    fixture_close(&x);
}

TEST(test_cut_off)
{
    fixture x;
    fixture_make(&x, "mem:copy-cut", 6, 4, 2);
    meanwhile m = {.x = &x, .cut_off = true};
    do {
        m.happened = false;
        dw_store *mirror = open_mirror(&x), *watched;
        dw_copy_report report;
        const store_fault_plan plan = {.choose = choose, .context = &m};
        assert_fine(&x, fault_store_new(&watched, mirror, &plan, &x.err));
        dw_status status = copy(&x, x.store, watched, &report);
        assert_int_equal(status, m.happened ? DW_UNAVAILABLE : DW_OK);
        /* followers of an incomplete copy get the versions that it has */
        dw_stream *s;
        uint64_t head;
        dw_follow_report pulled;
        if (dw_stream_open(&s, mirror, NULL, &x.err) == DW_OK) {
            if (dw_stream_head(s, &head, &x.err) == DW_OK)
                assert_fine(&x, fixture_pull(&x, mirror, head, &pulled));
            dw_stream_close(s);
        }
        assert_fine(&x, copy(&x, x.store, mirror, &report));
        assert_pulls(&x, mirror, 0, 6);
        dw_store_close(watched);
        dw_store_close(mirror);
        m.at++;
    } while (m.happened);
    assert_true(m.at > 20);
    fixture_close(&x);
}

RUN_TESTS(NULL, NULL)
