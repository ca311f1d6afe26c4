/* The public calls before and after they reach a driver; tests/store/conformance.c tests
 * whole stores. */
#include "unit/suite.h"

#include "base/mem.h"
#include "failing_allocator.h"
#include "store/store.h"

TEST(test_keys)
{
    static const char *const valid[] = {"a", "a/b", "-_.=+@", "...", "a/.b", "0", "a.."};
    static const char *const invalid[] = {"",   "/",   "a/",    "/a",   "a//b", ".",
                                          "..", "a/.", "./a",   "a/..", "a b",  "a\t",
                                          "a%", "a~",  "a\x80", "a:b",  "a,b",  "a\\b"};
    for (size_t i = 0; i < sizeof valid / sizeof valid[0]; i++)
        assert_true(dw_store_key_valid(valid[i]));
    for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++)
        assert_false(dw_store_key_valid(invalid[i]));
    assert_false(dw_store_key_valid(NULL));
    char key[514];
    memset(key, 'k', 513);
    key[513] = '\0';
    assert_false(dw_store_key_valid(key));
    key[512] = '\0';
    assert_true(dw_store_key_valid(key));
}

TEST(test_urls)
{
    static const char *const refused[] = {
        "",      "mem:",     "mem:a b",       "az://b",  "https://x/",     "c:/windows",
        "MEM:x", "mem:../x", "file:relative", "file://", "file://host/dir"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        dw_store *store = (dw_store *)&state;
        dw_error err = {0};
        assert_int_equal(dw_store_open(&store, refused[i], NULL, &err), DW_INVALID);
        assert_null(store);
        assert_true(err.text[0] != '\0');
    }
    dw_store *store;
    assert_int_equal(dw_store_open(&store, NULL, NULL, NULL), DW_INVALID);
    assert_int_equal(dw_store_open(&store, "mem:x", NULL, NULL), DW_OK);
    assert_string_equal(dw_store_url(store), "mem:x");
    dw_store_close(store);
    dw_store_close(NULL);
}

static const dw_store_driver good_driver;

/* Secrets in URLs are refused and not repeated. */
TEST(test_no_passwords)
{
    static const char *const urls[] = {
        "s3://key:hunter2@bucket/prefix", "gs://hunter2@bucket",
        "hf://hunter2@buckets/a/b",       "file://u:hunter2@host/dir",
        "nosuch://u:hunter2@host",        "https://hunter2@host/a"};
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        dw_store *store;
        dw_error err = {0};
        for (int own_driver = 0; own_driver < 2; own_driver++) {
            assert_int_equal(own_driver
                                 ? dw_store_new(&store, urls[i], &good_driver, NULL, &err)
                                 : dw_store_open(&store, urls[i], NULL, &err),
                             DW_INVALID);
            assert_null(strstr(err.text, "hunter2"));
            assert_null(strstr(err.where, "hunter2"));
        }
    }
    dw_error err;
    dw_store *store;
    assert_int_equal(dw_store_open(&store, "odd:hunter2", NULL, &err), DW_INVALID);
    assert_null(strstr(err.text, "hunter2"));
    assert_string_equal(err.where, "");
}

/* ---- a scripted driver --------------------------------------------
 */

typedef struct script {
    const char *const *keys; /* to list; NULL at the end */
    uint64_t n_object;       /* bytes of every object */
    uint64_t n_max;          /* the largest get */
    unsigned n_calls, n_asked, n_closed;
    dw_status status;
    bool conditional;
} script;

static dw_status say_get(void *self, const char *key, uint64_t offset, void *into,
                         size_t n_bytes, size_t *n_read, const dw_progress *progress,
                         dw_error *err)
{
    (void)key, (void)progress, (void)err;
    script *s = self;
    s->n_calls++;
    s->n_max = n_bytes > s->n_max ? n_bytes : s->n_max;
    uint64_t left = offset < s->n_object ? s->n_object - offset : 0;
    *n_read = left < n_bytes ? (size_t)left : n_bytes;
    for (size_t i = 0; i < *n_read; i++)
        ((uint8_t *)into)[i] = (uint8_t)((offset + i) * 31 >> 3);
    return s->status;
}

static dw_status say_put(void *self, const char *key, const dw_source *source,
                         dw_put_mode mode, const dw_progress *progress, dw_error *err)
{
    (void)key, (void)source, (void)mode, (void)progress, (void)err;
    ((script *)self)->n_calls++;
    return ((script *)self)->status;
}

static dw_status say_stat(void *self, const char *key, uint64_t *n_bytes,
                          int64_t *modified_ms, dw_error *err)
{
    (void)key, (void)err;
    *n_bytes = ((script *)self)->n_object; /* never NULL */
    *modified_ms = 5;
    return DW_OK;
}

static dw_status say_list(void *self, const char *prefix, const char *after,
                          dw_list_fn fn, void *context, dw_error *err)
{
    (void)prefix, (void)after;
    script *s = self;
    for (size_t i = 0; s->keys[i]; i++) {
        dw_status status = fn(context, &(dw_store_entry){s->keys[i], i, 0}, err);
        if (status != DW_OK)
            return status;
    }
    return DW_OK;
}

static dw_status say_remove(void *self, const char *key, dw_error *err)
{
    (void)key, (void)err;
    return ((script *)self)->status;
}

static dw_status say_conditional(void *self, bool *conditional, dw_error *err)
{
    (void)err;
    script *s = self;
    s->n_asked++;
    *conditional = s->conditional;
    return s->status;
}

static void say_close(void *self)
{
    ((script *)self)->n_closed++;
}

static const dw_store_driver good_driver = {
    .struct_bytes = sizeof(dw_store_driver),
    .name = "script",
    .get = say_get,
    .put = say_put,
    .stat = say_stat,
    .list = say_list,
    .remove = say_remove,
    .conditional = say_conditional,
    .close = say_close,
};

static dw_store *open_script(script *s)
{
    dw_store *store;
    assert_int_equal(dw_store_new(&store, "script://x", &good_driver, s, NULL), DW_OK);
    return store;
}

TEST(test_drivers)
{
    dw_store *store;
    dw_error err;
    script s = {0};
    dw_store_driver bad = good_driver;
    bad.struct_bytes = offsetof(dw_store_driver, require) - 1;
    assert_int_equal(dw_store_new(&store, "x:", &bad, &s, &err), DW_INVALID);
    bad = good_driver; /* one that was built for 0.1 */
    bad.struct_bytes = offsetof(dw_store_driver, require);
    bad.close = NULL;
    assert_int_equal(dw_store_new(&store, "x:", &bad, &s, &err), DW_OK);
    assert_int_equal(dw_store_require(store, "stream.json", &err), DW_OK);
    dw_store_close(store);
    bad = good_driver;
    bad.list = NULL;
    assert_int_equal(dw_store_new(&store, "x:", &bad, &s, &err), DW_INVALID);
    assert_int_equal(dw_store_new(&store, "x:", NULL, &s, &err), DW_INVALID);
    assert_int_equal(dw_store_new(&store, NULL, &good_driver, &s, &err), DW_INVALID);
    assert_int_equal(s.n_closed, 0); /* it stays the caller's */
    store = open_script(&s);
    assert_string_equal(dw_store_url(store), "script://x");
    assert_int_equal(dw_store_stat(store, "a", NULL, NULL, NULL), DW_OK);
    dw_store_close(store);
    assert_int_equal(s.n_closed, 1);
    bad = good_driver; /* a driver with only the required functions */
    bad.close = NULL;
    bad.conditional = NULL;
    assert_int_equal(dw_store_new(&store, "x:", &bad, &s, &err), DW_OK);
    bool conditional = false;
    assert_int_equal(dw_store_conditional(store, &conditional, &err), DW_OK);
    assert_true(conditional);
    dw_store_close(store);
    assert_int_equal(s.n_closed, 1);
}

/* Wrong arguments never reach a driver. */
TEST(test_arguments)
{
    script s = {0};
    dw_store *store = open_script(&s);
    uint8_t bytes[4];
    size_t n;
    dw_error err;
    dw_source source = {.n_bytes = 4, .bytes = bytes};
    assert_int_equal(dw_store_get(store, "a ", 0, bytes, 4, &n, NULL, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "'a '"));
    assert_int_equal(dw_store_get(store, NULL, 0, bytes, 4, &n, NULL, &err), DW_INVALID);
    assert_int_equal(dw_store_get(store, "a", 0, NULL, 4, &n, NULL, &err), DW_INVALID);
    assert_string_equal(err.where, "script://x/a");
    assert_int_equal(dw_store_get(store, "a", 0, bytes, 4, NULL, NULL, &err), DW_INVALID);
    assert_int_equal(dw_store_get(store, "a", UINT64_MAX, bytes, 4, &n, NULL, &err),
                     DW_INVALID);
    assert_int_equal(dw_store_get(store, "a", INT64_MAX - 3, bytes, 4, &n, NULL, &err),
                     DW_INVALID);
    assert_int_equal(dw_store_put(store, "a", NULL, DW_PUT_CREATE, NULL, &err),
                     DW_INVALID);
    assert_int_equal(
        dw_store_put(store, "a", &(dw_source){.n_bytes = 1}, DW_PUT_CREATE, NULL, &err),
        DW_INVALID);
    assert_int_equal(dw_store_put(store, "a", &source, (dw_put_mode)2, NULL, &err),
                     DW_INVALID);
    source.n_bytes = 1ull << 63;
    assert_int_equal(dw_store_put(store, "a", &source, DW_PUT_CREATE, NULL, &err),
                     DW_INVALID);
    assert_int_equal(dw_store_list(store, "", NULL, NULL, NULL, &err), DW_INVALID);
    assert_int_equal(s.n_calls, 0);
    assert_int_equal(dw_store_put(store, "a", &(dw_source){0}, DW_PUT_CREATE, NULL, &err),
                     DW_OK);
    assert_int_equal(dw_store_get(store, "a", INT64_MAX - 4, bytes, 4, &n, NULL, &err),
                     DW_OK);
    assert_int_equal(s.n_calls, 2);
    dw_store_close(store);
}

TEST(test_conditional_is_kept)
{
    for (int yes = 0; yes < 2; yes++) {
        script s = {.conditional = yes, .status = DW_UNAVAILABLE};
        dw_store *store = open_script(&s);
        bool conditional = !yes;
        assert_int_equal(dw_store_conditional(store, &conditional, NULL), DW_UNAVAILABLE);
        s.status = DW_OK;
        for (int i = 0; i < 3; i++) {
            assert_int_equal(dw_store_conditional(store, &conditional, NULL), DW_OK);
            assert_int_equal(conditional, yes);
        }
        assert_int_equal(s.n_asked, 2); /* a failure is not an answer */
        dw_store_close(store);
    }
}

static dw_status append_key(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    strcat(context, entry->key);
    strcat(context, " ");
    return DW_OK;
}

/* The entries of a driver are checked. */
TEST(test_foreign_lists)
{
    static const char *const odd[] = {"a",    "k/../b", "k/1", "k/2/", "k/2",
                                      "k/3 ", "k/4",    "l",   NULL};
    static const char *const twice[] = {"k/1", "k/2", "k/2", NULL};
    static const char *const back[] = {"k/3", "k/2", NULL};
    char all[100] = "";
    dw_error err;
    script s = {.keys = odd};
    dw_store *store = open_script(&s);
    assert_int_equal(dw_store_list(store, "k/", "k/1", append_key, all, &err), DW_OK);
    assert_string_equal(all, "k/2 k/4 ");
    s.keys = twice;
    all[0] = '\0';
    assert_int_equal(dw_store_list(store, "", NULL, append_key, all, &err),
                     DW_UNSUPPORTED);
    assert_string_equal(all, "k/1 k/2 ");
    s.keys = back;
    assert_int_equal(dw_store_list(store, "", NULL, append_key, all, &err),
                     DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "k/2"));
    dw_store_close(store);
}

TEST(test_get_all)
{
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 200000, 3000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int slack = -1; slack < 2; slack++) {
            if (sizes[i] == 0 && slack < 0)
                continue;
            script s = {.n_object = sizes[i]};
            dw_store *store = open_script(&s);
            dw_writer out = {0};
            dw_error err;
            dw_write_text(&out, "head");
            size_t max_bytes = sizes[i] + (size_t)slack;
            dw_status status = dw_store_get_all(store, "some/key", max_bytes, &out, &err);
            if (slack < 0) {
                char limit[32];
                snprintf(limit, sizeof limit, "%zu", max_bytes);
                assert_int_equal(status, DW_CORRUPT);
                assert_non_null(strstr(err.text, "some/key"));
                assert_non_null(strstr(err.text, limit));
                assert_int_equal(out.n_bytes, 4);
            } else {
                assert_int_equal(status, DW_OK);
                assert_int_equal(out.n_bytes, 4 + sizes[i]);
                for (size_t j = 0; j < sizes[i]; j++)
                    assert_int_equal(out.bytes[4 + j], (uint8_t)(j * 31 >> 3));
            }
            if (sizes[i] < 65536)
                assert_int_equal(s.n_calls, 1); /* a small object is one request */
            assert_true(s.n_max <= 1 << 20);    /* a hostile one takes no memory */
            dw_writer_release(&out);
            dw_store_close(store);
        }
    script s = {.status = DW_DENIED, .n_object = 10};
    dw_store *store = open_script(&s);
    dw_writer out = {0};
    assert_int_equal(dw_store_get_all(store, "key", 100, &out, NULL), DW_DENIED);
    assert_int_equal(out.n_bytes, 0);
    dw_writer_release(&out);
    dw_store_close(store);
}

static dw_status use_memory(dw_error *err)
{
    static script s = {.n_object = 100000};
    dw_store *store;
    dw_writer out = {0};
    dw_status status = dw_store_new(&store, "script://x", &good_driver, &s, err);
    if (status == DW_OK)
        status = dw_store_get_all(store, "key", SIZE_MAX, &out, err);
    dw_writer_release(&out);
    dw_store_close(store);
    return status;
}

TEST(test_out_of_memory)
{
    fail_every_allocation(use_memory, NULL);
}

TEST(test_helpers)
{
    script s = {0};
    dw_store *store = open_script(&s);
    char where[DW_STORE_WHERE], small[8];
    assert_string_equal(dw_store_where(store, "a/b", where, sizeof where),
                        "script://x/a/b");
    assert_string_equal(dw_store_where(store, "a/b", small, sizeof small), "script:");
    assert_int_equal(dw_store_put_bytes(store, "a", "xyz", 3, DW_PUT_CREATE, NULL),
                     DW_OK);
    dw_store_counts counts;
    dw_store_get_counts(store, &counts);
    assert_int_equal(counts.n_requests, 1);
    assert_int_equal(counts.bytes_written, 3);
    s.status = DW_CONFLICT;
    assert_int_equal(dw_store_put_bytes(store, "a", "xyz", 3, DW_PUT_CREATE, NULL),
                     DW_CONFLICT);
    dw_store_get_counts(store, &counts);
    assert_int_equal(counts.n_requests, 2);
    assert_int_equal(counts.bytes_written, 3);
    dw_store_close(store);
}

RUN_TESTS(NULL, NULL)
