/* Damaged data is requested again: a bit that flips in transit costs one request. */
/* labels: threads */
#include <pthread.h>

#include "store/fault_store.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"

#define MAX_KEYS 200

/* Flips a bit of the first N_FLIPS gets of every key with the prefix. */
typedef struct bad_wire {
    const char *prefix;
    unsigned n_flips;
    pthread_mutex_t lock;
    size_t n_keys;
    unsigned n_gets[MAX_KEYS];
    char keys[MAX_KEYS][DW_KEY_TEXT];
    dw_store *store;
} bad_wire;

static store_fault choose(void *context, uint64_t n, const char *operation,
                          const char *key)
{
    (void)n;
    bad_wire *w = context;
    if (strcmp(operation, "get") != 0 || strncmp(key, w->prefix, strlen(w->prefix)) != 0)
        return STORE_FAULT_NONE;
    pthread_mutex_lock(&w->lock);
    size_t i = 0;
    while (i < w->n_keys && strcmp(w->keys[i], key) != 0)
        i++;
    if (i == w->n_keys && i < MAX_KEYS) {
        snprintf(w->keys[i], sizeof w->keys[i], "%s", key);
        w->n_gets[w->n_keys++] = 0;
    }
    bool flips = i < MAX_KEYS && w->n_gets[i]++ < w->n_flips;
    pthread_mutex_unlock(&w->lock);
    return flips ? STORE_FAULT_CORRUPT : STORE_FAULT_NONE;
}

static void wire_open(fixture *x, bad_wire *w, const char *prefix, unsigned n_flips)
{
    *w = (bad_wire){.prefix = prefix, .n_flips = n_flips};
    pthread_mutex_init(&w->lock, NULL);
    const store_fault_plan plan = {.choose = choose, .context = w};
    assert_fine(x, fault_store_new(&w->store, x->store, &plan, &x->err));
}

static void wire_close(bad_wire *w)
{
    assert_true(w->n_keys > 0 && w->n_keys < MAX_KEYS);
    dw_store_close(w->store);
    pthread_mutex_destroy(&w->lock);
}

/* Follows to the head, and verifies everything. */
static dw_status read_all(fixture *x, dw_store *store)
{
    dw_follow_report report;
    dw_verify_report verified;
    dw_stream *s = NULL;
    dw_status status = fixture_pull(x, store, x->n - 1, &report);
    if (status == DW_OK)
        status = dw_stream_open(&s, store, NULL, &x->err);
    if (status == DW_OK)
        status = dw_stream_verify(s, NULL, NULL, NULL, &verified, &x->err);
    dw_stream_close(s);
    return status;
}

TEST(test_records)
{
    static const char *const prefixes[] = {"stream.json", "epochs/", "commits/"};
    fixture x;
    fixture_make(&x, "mem:transfer-records", 6, 3, 2);
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        for (unsigned n_flips = 1; n_flips <= 3; n_flips++) {
            bad_wire w;
            wire_open(&x, &w, prefixes[i], n_flips);
            dw_status status = read_all(&x, w.store);
            if (n_flips < 3) {
                assert_fine(&x, status);
            } else {
                assert_int_equal(status, DW_CORRUPT);
                assert_non_null(strstr(x.err.text, "seal"));
            }
            wire_close(&w);
        }
    fixture_close(&x);
}

TEST(test_signed_records)
{
    fixture x = {0};
    dw_sign_key *key = NULL;
    char text[DW_PUBLIC_KEY_TEXT];
    dw_publish_options options;
    dw_publish_options_init(&options);
    assert_fine(&x, dw_sign_key_create(temp_path("key"), text, NULL));
    assert_fine(&x, dw_sign_key_open(&key, temp_path("key"), NULL));
    options.sign_key = key;
    fixture_open(&x, "mem:transfer-signed", &options);
    fixture_publish(&x);
    for (unsigned n_flips = 2; n_flips <= 3; n_flips++) {
        bad_wire w;
        wire_open(&x, &w, "", n_flips);
        dw_stream *s = NULL;
        dw_status status = dw_stream_open(&s, w.store, NULL, &x.err);
        assert_true(n_flips == 2 ? status == DW_OK
                                 : status == DW_UNTRUSTED || status == DW_CORRUPT);
        dw_stream_close(s);
        wire_close(&w);
    }
    fixture_close(&x);
    dw_sign_key_close(key);
}

TEST(test_objects)
{
    fixture x;
    fixture_make(&x, "mem:transfer-objects", 6, 3, 2);
    bad_wire w;
    wire_open(&x, &w, "objects/", 1);
    assert_fine(&x, read_all(&x, w.store));
    wire_close(&w);
    wire_open(&x, &w, "objects/", 1000);
    assert_int_equal(read_all(&x, w.store), DW_CORRUPT);
    wire_close(&w);
    fixture_close(&x);
}

/* A copy over a bad network equals the stream byte for byte, or is not made. */
TEST(test_mirror)
{
    fixture x;
    fixture_make(&x, "mem:transfer-mirror", 6, 3, 2);
    for (unsigned n_flips = 1; n_flips <= 1000; n_flips *= 1000) {
        bad_wire w;
        wire_open(&x, &w, "", n_flips);
        char url[64];
        snprintf(url, sizeof url, "mem:transfer-to-%u", n_flips);
        dw_stream *s = NULL;
        dw_store *to;
        dw_copy_report report;
        assert_fine(&x, dw_store_open(&to, url, NULL, &x.err));
        dw_status status =
            dw_stream_open(&s, n_flips == 1 ? w.store : x.store, NULL, &x.err);
        assert_fine(&x, status);
        if (n_flips > 1)
            s->store = w.store;
        status = dw_stream_copy(s, to, NULL, &report, &x.err);
        if (n_flips == 1) {
            dw_follow_report followed;
            assert_fine(&x, status);
            assert_fine(&x, fixture_pull(&x, to, x.n - 1, &followed));
        } else {
            assert_int_equal(status, DW_CORRUPT);
            assert_int_equal(fixture_count(&x, to, ""), 0);
        }
        dw_stream_close(s);
        dw_store_close(to);
        wire_close(&w);
    }
    fixture_close(&x);
}

/* If a new name is taken, only an object of the same size can be the one that was put: a
 * proxy may answer for the store. */
TEST(test_taken_name)
{
    dw_store *store;
    dw_error err = {0};
    assert_int_equal(dw_store_open(&store, "mem:transfer-taken", NULL, &err), DW_OK);
    assert_int_equal(
        dw_store_put_bytes(store, "objects/a", "<html>", 6, DW_PUT_CREATE, &err), DW_OK);
    for (uint64_t n_bytes = 5; n_bytes <= 7; n_bytes++) {
        const dw_source source = {.bytes = "weights", .n_bytes = n_bytes};
        dw_object object = {.key = "objects/a"};
        assert_int_equal(dw_object_put(store, &object, &source, NULL, NULL, &err),
                         n_bytes == 6 ? DW_OK : DW_UNAVAILABLE);
    }
    dw_store_close(store);
}

/* ---- a store that reports success and stores nothing ---- */

static store_fault lie(void *context, uint64_t n, const char *operation, const char *key)
{
    (void)n;
    const char *prefix = context;
    return strcmp(operation, "put") == 0 && *prefix &&
                   strncmp(key, prefix, strlen(prefix)) == 0
               ? STORE_FAULT_LIE
               : STORE_FAULT_NONE;
}

TEST(test_a_store_that_lies)
{
    static const char *const prefixes[] = {"objects/", "files/", "commits/"};
    fixture x = {0};
    char prefix[16] = "", file[4] = "{1}";
    dw_store *inner;
    const store_fault_plan plan = {.choose = lie, .context = prefix};
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.when_busy = DW_BUSY_WAIT;
    assert_fine(&x, dw_store_open(&inner, "mem:transfer-lies", NULL, &x.err));
    assert_fine(&x, fault_store_new(&x.store, inner, &plan, &x.err));
    x.live = fixture_model();
    assert_fine(&x, dw_publisher_open(&x.publisher, x.store, x.live.tensors, x.live.n,
                                      &options, &x.err));
    x.at[x.n++] = model_copy(&x.live, false);
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        dw_publish_report report;
        dw_follow_report followed;
        uint64_t ticket;
        dw_publish_note note;
        const dw_file files = {"config.json", file, sizeof file - 1};
        dw_publish_note_init(&note);
        note.has_files = true;
        note.files = &files;
        note.n_files = 1;
        file[1]++;
        snprintf(prefix, sizeof prefix, "%s", prefixes[i]);
        model_change(&x.live, 30);
        assert_fine(&x, dw_publisher_publish(x.publisher, &ticket, &note, &x.err));
        assert_int_equal(
            dw_publisher_wait(x.publisher, ticket, UINT_MAX, NULL, &report, &x.err),
            DW_UNAVAILABLE);
        assert_non_null(strstr(x.err.text, "the store reports that"));
        prefix[0] = '\0';
        assert_fine(&x, fixture_pull(&x, inner, x.n - 1, &followed));
        fixture_publish(&x);
        assert_fine(&x, fixture_pull(&x, inner, x.n - 1, &followed));

        dw_copy_report copied;
        dw_stream *s;
        dw_store *to, *lying;
        char url[32];
        snprintf(url, sizeof url, "mem:transfer-lies-%zu", i);
        assert_fine(&x, dw_store_open(&to, url, NULL, &x.err));
        assert_fine(&x, fault_store_new(&lying, to, &plan, &x.err));
        assert_fine(&x, dw_stream_open(&s, inner, NULL, &x.err));
        snprintf(prefix, sizeof prefix, "%s", prefixes[i]);
        if (i < 2)
            assert_int_equal(dw_stream_copy(s, lying, NULL, &copied, &x.err),
                             DW_UNAVAILABLE);
        prefix[0] = '\0';
        assert_fine(&x, dw_stream_copy(s, lying, NULL, &copied, &x.err));
        assert_fine(&x, fixture_pull(&x, to, x.n - 1, &followed));
        dw_stream_close(s);
        dw_store_close(lying);
        dw_store_close(to);
    }
    fixture_close(&x);
    dw_store_close(inner);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
