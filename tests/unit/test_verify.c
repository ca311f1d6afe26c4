/* verify finds every kind of damage in a stream, and only damage. */
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"

typedef struct faults {
    unsigned n;
    dw_error first;
} faults;

static void take_fault(void *context, const dw_error *fault)
{
    faults *f = context;
    if (f->n++ == 0)
        f->first = *fault;
}

static dw_status verify(fixture *x, const dw_trust *trust, faults *f,
                        dw_verify_report *report)
{
    dw_stream *s;
    *f = (faults){0};
    dw_status status = dw_stream_open(&s, x->store, trust, &x->err);
    if (status == DW_OK)
        status = dw_stream_verify(s, take_fault, f, NULL, report, &x->err);
    dw_stream_close(s);
    if (status == DW_OK)
        assert_int_equal(f->n, 0);
    else
        assert_int_equal(status, f->first.code);
    return status;
}

/* Expects one fault, at KEY, whose text has WORDS. */
static void assert_fault(fixture *x, dw_status code, const char *key, const char *words)
{
    faults f;
    dw_verify_report report;
    dw_status status = verify(x, NULL, &f, &report);
    if (status != code || !strstr(f.first.where, key))
        print_error("%s: %s: %s\n", dw_status_name(status), f.first.where, f.first.text);
    assert_int_equal(status, code);
    assert_int_equal(f.n, report.n_faults);
    assert_non_null(strstr(f.first.where, key));
    assert_non_null(strstr(f.first.text, words));
}

TEST(test_whole)
{
    fixture x;
    fixture_make(&x, "mem:verify-whole", 8, 4, 2);
    faults f;
    dw_verify_report report;
    assert_fine(&x, verify(&x, NULL, &f, &report));
    assert_int_equal(report.n_versions, 9);
    assert_int_equal(report.n_faults, 0);
    assert_int_equal(report.n_unnamed, 0);
    assert_true(report.n_shortcuts >= 4);
    assert_int_equal(report.n_objects, fixture_count(&x, x.store, "objects/"));
    assert_true(report.n_bytes > 0);

    char key[DW_KEY_TEXT];
    dw_key_object(key, 9, "00112233445566778899aabbccddeeff", NULL, 0);
    fixture_put(&x, key, "left over", 9);
    assert_fine(&x, verify(&x, NULL, &f, &report));
    assert_int_equal(report.n_unnamed, 1);
    assert_int_equal(report.n_orphans, 0);

    /* objects of a version whose commit is missing are no leftovers */
    dw_key_commit(key, 5);
    assert_fine(&x, dw_store_remove(x.store, key, &x.err));
    assert_int_equal(verify(&x, NULL, &f, &report), DW_CORRUPT);
    assert_int_equal(report.n_unnamed, 1);
    assert_int_equal(report.n_orphans, 1);
    fixture_close(&x);
}

TEST(test_objects)
{
    fixture x;
    char key[DW_KEY_TEXT], shortcut[DW_KEY_TEXT];
    fixture_make(&x, "mem:verify-objects", 6, 5, 0);
    dw_writer bytes;
    const uint64_t victims[] = {0, 3, 6}; /* an object of the anchor, and of two deltas */
    for (size_t i = 0; i < 3; i++) {
        fixture_object(&x, victims[i], key);
        fixture_get(&x, key, &bytes);
        assert_fine(&x, dw_store_remove(x.store, key, &x.err));
        assert_fault(&x, DW_NOT_FOUND, key, "missing");
        for (size_t at = 0; at < bytes.n_bytes; at += bytes.n_bytes / 7) {
            bytes.bytes[at] ^= 4;
            fixture_put(&x, key, bytes.bytes, bytes.n_bytes);
            assert_fault(&x, DW_CORRUPT, key, "cp");
            bytes.bytes[at] ^= 4;
        }
        fixture_put(&x, key, bytes.bytes, bytes.n_bytes - 1);
        assert_fault(&x, DW_CORRUPT, key, "bytes");
        dw_write_u8(&bytes, 0);
        fixture_put(&x, key, bytes.bytes, bytes.n_bytes);
        assert_fault(&x, DW_CORRUPT, key, "bytes");
        fixture_put(&x, key, bytes.bytes, bytes.n_bytes - 1);
        dw_writer_release(&bytes);
    }
    /* the anchor at 5 leads past version 3, but nothing leads past 6 */
    dw_key_shortcut(shortcut, 5, DW_NO_VERSION);
    fixture_object(&x, 3, key);
    fixture_put(&x, key, "", 0);
    assert_fault(&x, DW_CORRUPT, key, shortcut);
    fixture_object(&x, 6, shortcut);
    fixture_put(&x, shortcut, "", 0);
    faults f;
    dw_verify_report report;
    assert_int_equal(verify(&x, NULL, &f, &report), DW_CORRUPT);
    assert_int_equal(report.n_faults, 2); /* it goes on after the first */
    fixture_close(&x);
}

/* Rewrites commit VERSION with CHANGE, and all later ones so that the chain of hashes is
 * valid. */
static void rewrite(fixture *x, uint64_t version,
                    void (*change)(fixture *, dw_commit_record *))
{
    dw_stream *s;
    assert_fine(x, dw_stream_open(&s, x->store, NULL, &x->err));
    uint8_t parent[DW_SHA256_BYTES] = {0};
    for (uint64_t v = version; v < x->n; v++) {
        dw_commit_record c;
        char key[DW_KEY_TEXT];
        dw_writer bytes = {0};
        assert_fine(x, dw_stream_read_commit(s, v, &c, &x->err));
        if (v == version)
            change(x, &c);
        else
            memcpy(c.parent_sha256, parent, sizeof parent);
        assert_fine(x, dw_commit_record_write(&bytes, &c, NULL, &x->err));
        memcpy(parent, c.seal.sha256, sizeof parent);
        dw_key_commit(key, v);
        fixture_put(x, key, bytes.bytes, bytes.n_bytes);
        dw_writer_release(&bytes);
        dw_commit_record_release(&c);
    }
    dw_stream_close(s);
}

static void name_other_objects(fixture *x, dw_commit_record *c)
{
    dw_stream *s;
    dw_commit_record other;
    assert_fine(x, dw_stream_open(&s, x->store, NULL, &x->err));
    assert_fine(x, dw_stream_read_commit(s, c->version + 1, &other, &x->err));
    dw_objects own = c->objects;
    c->objects = other.objects;
    other.objects = own;
    dw_commit_record_release(&other);
    dw_stream_close(s);
}

static void lower_epoch(fixture *x, dw_commit_record *c)
{
    (void)x;
    c->epoch = 0;
}

static void change_state(fixture *x, dw_commit_record *c)
{
    (void)x;
    c->state ^= 1;
}

static void change_writer(fixture *x, dw_commit_record *c)
{
    (void)x;
    c->writer[0] = c->writer[0] == '0' ? '1' : '0';
}

TEST(test_commits)
{
    const struct {
        uint64_t version;
        void (*change)(fixture *, dw_commit_record *);
        dw_status code;
        const char *words;
    } cases[] = {
        {3, name_other_objects, DW_CORRUPT, "another record's object"},
        {3, lower_epoch, DW_UNTRUSTED, "had been replaced"},
        {0, change_state, DW_CORRUPT, "the anchor's weights have the state"},
        {2, change_state, DW_CORRUPT, "not what the commits say"},
        {4, change_writer, DW_UNTRUSTED, "replaced"},
        {0, change_writer, DW_UNTRUSTED, "belongs to"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture x;
        char url[40];
        snprintf(url, sizeof url, "mem:verify-commits-%zu", i);
        fixture_make(&x, url, 5, 0, 0);
        rewrite(&x, cases[i].version, cases[i].change);
        faults f;
        dw_verify_report report;
        dw_status status = verify(&x, NULL, &f, &report);
        if (status != cases[i].code || !strstr(f.first.text, cases[i].words))
            print_error("case %zu: %s: %s\n", i, f.first.where, f.first.text);
        assert_int_equal(status, cases[i].code);
        assert_non_null(strstr(f.first.text, cases[i].words));
        fixture_close(&x);
    }
}

TEST(test_chain)
{
    fixture x;
    char key[DW_KEY_TEXT];
    dw_writer bytes, other;
    fixture_make(&x, "mem:verify-chain", 5, 0, 0);
    dw_key_commit(key, 2);
    fixture_get(&x, key, &bytes);
    assert_fine(&x, dw_store_remove(x.store, key, &x.err));
    assert_fault(&x, DW_CORRUPT, key, "hole");
    fixture_put(&x, key, "{}", 2);
    assert_fault(&x, DW_CORRUPT, key, "cp");
    dw_key_commit(key, 3);
    fixture_get(&x, key, &other);
    dw_key_commit(key, 2);
    fixture_put(&x, key, other.bytes, other.n_bytes);
    assert_fault(&x, DW_UNTRUSTED, key, "copied");
    /* another record of the version, which the next one does not name */
    dw_commit_record c;
    assert_fine(&x, dw_commit_record_parse(&c, bytes.bytes, bytes.n_bytes, key, &x.err));
    c.created[0] = '\0';
    dw_writer again = {0};
    assert_fine(&x, dw_commit_record_write(&again, &c, NULL, &x.err));
    fixture_put(&x, key, again.bytes, again.n_bytes);
    dw_key_commit(key, 3);
    assert_fault(&x, DW_UNTRUSTED, key, "rewritten");
    dw_commit_record_release(&c);
    dw_writer_release(&again);
    dw_key_commit(key, 2);
    fixture_put(&x, key, bytes.bytes, bytes.n_bytes);
    dw_writer_release(&bytes);
    dw_writer_release(&other);

    dw_key_epoch(key, 1);
    fixture_get(&x, key, &bytes);
    assert_fine(&x, dw_store_remove(x.store, key, &x.err));
    dw_key_commit(key, 0);
    assert_fault(&x, DW_NOT_FOUND, key, "epoch 1");
    dw_key_epoch(key, 1);
    fixture_put(&x, key, "rubbish", 7);
    assert_fault(&x, DW_CORRUPT, key, "cp");
    fixture_put(&x, key, bytes.bytes, bytes.n_bytes);
    dw_writer_release(&bytes);
    faults f;
    dw_verify_report report;
    assert_fine(&x, verify(&x, NULL, &f, &report));
    fixture_close(&x);
}

TEST(test_ways)
{
    fixture x;
    char key[DW_KEY_TEXT];
    fixture_make(&x, "mem:verify-shortcuts", 6, 0, 3);
    dw_key_shortcut(key, 6, 3);
    assert_true(fixture_has(&x, key));
    dw_writer bytes;
    fixture_get(&x, key, &bytes);
    dw_shortcut_record shortcut;
    assert_fine(
        &x, dw_shortcut_record_parse(&shortcut, bytes.bytes, bytes.n_bytes, key, &x.err));
    uint8_t *ends[] = {shortcut.commit_sha256, shortcut.from_sha256};
    for (size_t i = 0; i < 2; i++) {
        dw_writer changed = {0};
        ends[i][5] ^= 1;
        assert_fine(&x, dw_shortcut_record_write(&changed, &shortcut, NULL, &x.err));
        ends[i][5] ^= 1;
        fixture_put(&x, key, changed.bytes, changed.n_bytes);
        assert_fault(&x, DW_UNTRUSTED, key, i ? "made from" : "made for");
        dw_writer_release(&changed);
    }
    fixture_put(&x, key, bytes.bytes, bytes.n_bytes - 1);
    assert_fault(&x, DW_CORRUPT, key, "Remove it");
    char object[DW_KEY_TEXT];
    memcpy(object, shortcut.objects.items[0].key, sizeof object);
    fixture_put(&x, key, bytes.bytes, bytes.n_bytes);
    assert_fine(&x, dw_store_remove(x.store, object, &x.err));
    assert_fault(&x, DW_NOT_FOUND, object, "missing");
    dw_shortcut_record_release(&shortcut);
    dw_writer_release(&bytes);
    fixture_close(&x);
}

TEST(test_trust)
{
    fixture x;
    dw_sign_key *key = NULL;
    dw_error err = {0};
    uint8_t public_key[1][DW_PUBLIC_KEY_BYTES];
    char text[DW_PUBLIC_KEY_TEXT];
    const char *path = temp_path("key");
    assert_int_equal(dw_sign_key_create(path, text, &err), DW_OK);
    assert_int_equal(dw_sign_key_open(&key, path, &err), DW_OK);
    dw_sign_key_public(key, public_key[0]);
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.sign_key = key;
    fixture_open(&x, "mem:verify-trust", &options);
    fixture_publish(&x);
    fixture_publish(&x);
    const dw_trust trust = {(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])public_key, 1, NULL};
    faults f;
    dw_verify_report report;
    assert_fine(&x, verify(&x, &trust, &f, &report));
    rewrite(&x, 2, change_writer); /* writes it unsigned */
    assert_int_equal(verify(&x, &trust, &f, &report), DW_UNTRUSTED);
    assert_non_null(strstr(f.first.text, "not signed"));
    fixture_close(&x);
    dw_sign_key_close(key);
}

static int stop_at_half(void *context, uint64_t n_done, uint64_t n_total)
{
    assert_true(n_done <= n_total);
    *(uint64_t *)context = n_done;
    return n_done > n_total / 2;
}

TEST(test_cancel)
{
    fixture x;
    fixture_make(&x, "mem:verify-cancel", 4, 1, 0);
    dw_stream *s;
    uint64_t n_done = 0;
    const dw_progress progress = {stop_at_half, &n_done};
    assert_fine(&x, dw_stream_open(&s, x.store, NULL, &x.err));
    assert_fine(&x, dw_stream_verify(s, NULL, NULL, NULL, NULL, &x.err));
    assert_int_equal(dw_stream_verify(s, NULL, NULL, &progress, NULL, &x.err),
                     DW_CANCELLED);
    assert_true(n_done > 0);
    dw_stream_close(s);
    fixture_close(&x);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
