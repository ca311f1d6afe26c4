/* Tests that need an S3 server: uploads in parts, parallel reads, races for a key, and
 * errors for wrong credentials. The server of DW_TEST_S3_ENDPOINT, with its bucket
 * DW_TEST_S3_BUCKET and credentials in AWS's variables; tests/servers starts some. */
/* labels: threads servers */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "unit/suite.h"

#include "deltawire/store.h"

#define MIB ((size_t)1 << 20)

static dw_error err;
static char url[512];

#define expect(wanted, call)                                                             \
    do {                                                                                 \
        dw_status got_ = (call);                                                         \
        if (got_ != (wanted))                                                            \
            print_error("%s: %s: %s\n", dw_status_name(got_), err.where, err.text);      \
        assert_int_equal(got_, wanted);                                                  \
    } while (0)

static dw_store *open_store(const char *where, unsigned n_connections, size_t part_bytes)
{
    dw_store_options options = {
        .struct_bytes = sizeof options,
        .endpoint = getenv("DW_TEST_S3_ENDPOINT"),
        .n_connections = n_connections,
        .part_bytes = part_bytes,
        .n_tries = 4,
        .deadline_ms = 60000,
    };
    dw_store *store;
    expect(DW_OK, dw_store_open(&store, where, &options, &err));
    return store;
}

static void fill(uint8_t *bytes, uint64_t offset, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t x = (offset + i) / 8 * 0x9e3779b97f4a7c15u;
        bytes[i] = (uint8_t)((x ^ x >> 31) >> 8 * ((offset + i) % 8));
    }
}

static dw_status read_filled(void *context, uint64_t offset, void *into, size_t n_bytes,
                             dw_error *error)
{
    (void)context;
    (void)error;
    fill(into, offset, n_bytes);
    return DW_OK;
}

/* An upload in parts with a short last one; it is read back whole, past the end, and
 * across the borders of the parts. */
TEST(test_large)
{
    dw_store *store = open_store(url, 8, 5 * MIB);
    const size_t n = 41 * MIB + 12345;
    uint8_t *want = malloc(n), *got = malloc(n + MIB);
    fill(want, 0, n);
    dw_source in_memory = {.n_bytes = n, .bytes = want};
    dw_source to_be_read = {.n_bytes = n, .read = read_filled};
    const dw_source *const sources[] = {&in_memory, &to_be_read};
    for (size_t i = 0; i < 2; i++) {
        size_t n_read = 0;
        uint64_t n_bytes = 0;
        expect(DW_OK,
               dw_store_put(store, "large", sources[i], DW_PUT_CREATE, NULL, &err));
        expect(DW_CONFLICT,
               dw_store_put(store, "large", sources[i], DW_PUT_CREATE, NULL, &err));
        expect(DW_OK,
               dw_store_put(store, "large", sources[i], DW_PUT_REPLACE, NULL, &err));
        expect(DW_OK, dw_store_stat(store, "large", &n_bytes, NULL, &err));
        assert_int_equal(n_bytes, n);
        memset(got, 0, n + MIB);
        expect(DW_OK, dw_store_get(store, "large", 0, got, n + MIB, &n_read, NULL, &err));
        assert_int_equal(n_read, n);
        assert_memory_equal(got, want, n);
        size_t offset = 5 * MIB - 7;
        expect(DW_OK,
               dw_store_get(store, "large", offset, got, 30 * MIB, &n_read, NULL, &err));
        assert_int_equal(n_read, 30 * MIB);
        assert_memory_equal(got, want + offset, n_read);
        expect(DW_OK,
               dw_store_get(store, "large", n, got, 20 * MIB, &n_read, NULL, &err));
        assert_int_equal(n_read, 0);
        expect(DW_OK, dw_store_remove(store, "large", &err));
    }
    dw_store_counts counts;
    dw_store_get_counts(store, &counts);
    assert_true(counts.bytes_written >= 4 * n && counts.bytes_read >= 2 * n);
    free(want);
    free(got);
    dw_store_close(store);
}

/* One connection, and the sizes around the end of a part. */
TEST(test_part_edges)
{
    dw_store *store = open_store(url, 1, 5 * MIB);
    uint8_t *want = malloc(11 * MIB), *got = malloc(12 * MIB);
    fill(want, 0, 11 * MIB);
    const size_t sizes[] = {
        0, 1, 5 * MIB - 1, 5 * MIB, 5 * MIB + 1, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n_read = 7;
        dw_source source = {.n_bytes = sizes[i], .bytes = want};
        expect(DW_OK, dw_store_put(store, "edge", &source, DW_PUT_REPLACE, NULL, &err));
        expect(DW_OK, dw_store_get(store, "edge", 0, got, 12 * MIB, &n_read, NULL, &err));
        assert_int_equal(n_read, sizes[i]);
        assert_memory_equal(got, want, n_read);
    }
    expect(DW_OK, dw_store_remove(store, "edge", &err));
    free(want);
    free(got);
    dw_store_close(store);
}

/* ---- races ---- */

enum { N_RACERS = 16, N_RACES = 5 };

typedef struct racer {
    dw_store *store;
    pthread_t thread;
    unsigned number;
    const char *key;
    dw_status status;
} racer;

static void *race(void *argument)
{
    racer *r = argument;
    uint8_t bytes[100];
    memset(bytes, (int)r->number, sizeof bytes);
    dw_source source = {.n_bytes = sizeof bytes, .bytes = bytes};
    r->status = dw_store_put(r->store, r->key, &source, DW_PUT_CREATE, NULL, NULL);
    return NULL;
}

TEST(test_one_winner)
{
    dw_store *store = open_store(url, N_RACERS, 0);
    bool conditional = false;
    expect(DW_OK, dw_store_conditional(store, &conditional, &err));
    if (!conditional)
        skip();
    for (unsigned round = 0; round < N_RACES; round++) {
        char key[32];
        racer racers[N_RACERS];
        unsigned n_winners = 0, winner = 0;
        snprintf(key, sizeof key, "race-%u", round);
        for (unsigned i = 0; i < N_RACERS; i++) {
            racers[i] = (racer){.store = store, .number = i, .key = key};
            pthread_create(&racers[i].thread, NULL, race, &racers[i]);
        }
        for (unsigned i = 0; i < N_RACERS; i++) {
            pthread_join(racers[i].thread, NULL);
            if (racers[i].status == DW_OK) {
                n_winners++;
                winner = i;
            } else {
                assert_int_equal(racers[i].status, DW_CONFLICT);
            }
        }
        assert_int_equal(n_winners, 1);
        uint8_t byte = 255;
        size_t n_read;
        expect(DW_OK, dw_store_get(store, key, 0, &byte, 1, &n_read, NULL, &err));
        assert_int_equal(byte, winner);
        expect(DW_OK, dw_store_remove(store, key, &err));
    }
    dw_store_close(store);
}

/* ---- errors ---- */

static void with_variable(const char *name, const char *value, dw_status wanted,
                          const char *text)
{
    char *old = strdup(getenv(name));
    setenv(name, value, 1);
    dw_store *store = open_store(url, 2, 0);
    uint8_t byte = 0;
    size_t n_read;
    dw_source source = {.n_bytes = 1, .bytes = &byte};
    expect(wanted, dw_store_get(store, "any", 0, &byte, 1, &n_read, NULL, &err));
    assert_non_null(strstr(err.text, text));
    assert_null(strstr(err.text, value));
    assert_null(strstr(err.text, getenv("AWS_SECRET_ACCESS_KEY")));
    expect(wanted, dw_store_put(store, "any", &source, DW_PUT_CREATE, NULL, &err));
    assert_non_null(strstr(err.text, text));
    expect(wanted, dw_store_stat(store, "any", NULL, NULL, &err));
    expect(wanted, dw_store_remove(store, "any", &err));
    dw_store_close(store);
    setenv(name, old, 1);
    free(old);
}

TEST(test_credentials)
{
    with_variable("AWS_SECRET_ACCESS_KEY", "a-secret-that-is-wrong", DW_DENIED,
                  "the secret does not belong to access key");
    with_variable("AWS_ACCESS_KEY_ID", "NOBODYKNOWSTHISKEY", DW_DENIED, "...SKEY");
}

static dw_status ignore_entry(void *context, const dw_store_entry *entry, dw_error *error)
{
    (void)context;
    (void)entry;
    (void)error;
    return DW_OK;
}

TEST(test_no_bucket)
{
    dw_store *store = open_store("s3://there-is-no-such-bucket-4711/x", 2, 0);
    uint8_t byte = 0;
    size_t n_read;
    dw_source source = {.n_bytes = 1, .bytes = &byte};
    expect(DW_UNAVAILABLE, dw_store_stat(store, "any", NULL, NULL, &err));
    assert_non_null(strstr(err.text, "there is no bucket"));
    expect(DW_UNAVAILABLE, dw_store_get(store, "any", 0, &byte, 1, &n_read, NULL, &err));
    assert_non_null(strstr(err.text, "there is no bucket"));
    assert_string_equal(err.where, "s3://there-is-no-such-bucket-4711/x/any");
    expect(DW_UNAVAILABLE,
           dw_store_put(store, "any", &source, DW_PUT_CREATE, NULL, &err));
    assert_non_null(strstr(err.text, "there is no bucket"));
    expect(DW_UNAVAILABLE, dw_store_list(store, "", NULL, ignore_entry, NULL, &err));
    assert_non_null(strstr(err.text, "there is no bucket"));
    expect(DW_UNAVAILABLE, dw_store_remove(store, "any", &err));
    dw_store_close(store);
}

TEST(test_no_server)
{
    dw_store_options options = {
        .struct_bytes = sizeof options, .endpoint = "http://127.0.0.1:1", .n_tries = 2};
    dw_store *store;
    expect(DW_OK, dw_store_open(&store, url, &options, &err));
    expect(DW_UNAVAILABLE, dw_store_stat(store, "any", NULL, NULL, &err));
    assert_non_null(strstr(err.text, "2 tries"));
    dw_store_counts counts;
    dw_store_get_counts(store, &counts);
    assert_int_equal(counts.n_requests, 2);
    assert_int_equal(counts.n_retries, 1);
    dw_store_close(store);
}

int main(void)
{
    const char *bucket = getenv("DW_TEST_S3_BUCKET");
    if (!getenv("DW_TEST_S3_ENDPOINT") || !bucket) {
        fprintf(stderr, "skipped: no DW_TEST_S3_ENDPOINT and DW_TEST_S3_BUCKET\n");
        return 77;
    }
    snprintf(url, sizeof url, "s3://%s/s3_real-%lld-%ld", bucket, (long long)time(NULL),
             (long)getpid());
    return suite_run(NULL, NULL);
}
