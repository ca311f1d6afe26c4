/* Tests the guarantees of store.h on a real store: that of DW_TEST_STORE, else one in
 * memory and one in a directory. It uses a fresh prefix, which it empties at the end.
 * DW_TEST_SKIP names a test to leave out. */
/* labels: threads */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "unit/suite.h"

#include "deltawire/store.h"

#define MIB ((size_t)1 << 20)

static dw_store *store;
static dw_error err;

/* On any other status, prints the store's error. */
#define expect(wanted, call)                                                             \
    do {                                                                                 \
        dw_status got_ = (call);                                                         \
        if (got_ != (wanted))                                                            \
            print_error("%s: %s: %s\n", dw_status_name(got_), err.where, err.text);      \
        assert_int_equal(got_, wanted);                                                  \
    } while (0)

/* ---- objects whose bytes depend on their position --------------------------------- */

static uint8_t byte_at(uint64_t seed, uint64_t i)
{
    uint64_t x = (i / 8 + seed) * 0x9e3779b97f4a7c15u;
    return (uint8_t)((x ^ x >> 29) >> 8 * (i % 8));
}

static void fill(uint64_t seed, uint64_t offset, uint8_t *into, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        into[i] = byte_at(seed, offset + i);
}

typedef struct pattern {
    uint64_t seed, n_bytes;
    atomic_uint n_reads;
    dw_status fails; /* the error of reads past the first half */
} pattern;

static dw_status read_pattern(void *context, uint64_t offset, void *into, size_t n_bytes,
                              dw_error *error)
{
    pattern *p = context;
    atomic_fetch_add(&p->n_reads, 1);
    if (offset > p->n_bytes || n_bytes > p->n_bytes - offset)
        return DW_INVALID; /* a store must not read past the end */
    if (p->fails != DW_OK && offset + n_bytes > p->n_bytes / 2) {
        if (error) {
            error->code = p->fails;
            strcpy(error->text, "the source broke");
        }
        return p->fails;
    }
    fill(p->seed, offset, into, n_bytes);
    return DW_OK;
}

static dw_status put_pattern(const char *key, uint64_t seed, size_t n_bytes,
                             dw_put_mode mode)
{
    uint8_t *bytes = malloc(n_bytes + 1);
    fill(seed, 0, bytes, n_bytes);
    dw_status status = dw_store_put(
        store, key, &(dw_source){.n_bytes = n_bytes, .bytes = bytes}, mode, NULL, &err);
    free(bytes);
    return status;
}

/* Whether a get of the range returns exactly the object's bytes, and writes nothing else.
 */
static bool range_is(const char *key, uint64_t seed, size_t n_object, uint64_t offset,
                     size_t n_bytes)
{
    uint8_t *bytes = malloc(n_bytes + 1);
    memset(bytes, 0xa5, n_bytes + 1);
    size_t n_read = SIZE_MAX, n_there = 0;
    if (offset < n_object)
        n_there = n_object - offset < n_bytes ? n_object - (size_t)offset : n_bytes;
    dw_error error = {0};
    dw_status status =
        dw_store_get(store, key, offset, bytes, n_bytes, &n_read, NULL, &error);
    bool good = status == DW_OK && n_read == n_there && bytes[n_bytes] == 0xa5;
    for (size_t i = 0; good && i < n_there; i++)
        good = bytes[i] == byte_at(seed, offset + i);
    if (!good)
        print_error("get of %zu at %llu of '%s': %s, %zu bytes: %s\n", n_bytes,
                    (unsigned long long)offset, key, dw_status_name(status), n_read,
                    error.text);
    free(bytes);
    return good;
}

static bool object_is(const char *key, uint64_t seed, size_t n_bytes)
{
    return range_is(key, seed, n_bytes, 0, n_bytes + 100);
}

/* ---- tests ---------------------------------------------------------------------------
 */

TEST(test_missing)
{
    uint8_t byte;
    size_t n_read;
    expect(DW_NOT_FOUND,
           dw_store_get(store, "missing/object", 0, &byte, 1, &n_read, NULL, &err));
    assert_int_equal(err.code, DW_NOT_FOUND);
    assert_true(err.text[0] != '\0' && err.where[0] != '\0');
    expect(DW_NOT_FOUND, dw_store_get(store, "missing", 0, NULL, 0, &n_read, NULL, &err));
    expect(DW_NOT_FOUND, dw_store_stat(store, "missing/object", NULL, NULL, &err));
    expect(DW_OK, dw_store_remove(store, "missing/object", &err));
    assert_int_equal(dw_store_get(store, "missing", 0, &byte, 1, &n_read, NULL, NULL),
                     DW_NOT_FOUND);
}

TEST(test_create_and_replace)
{
    expect(DW_OK, put_pattern("modes/a", 1, 1000, DW_PUT_CREATE));
    assert_true(object_is("modes/a", 1, 1000));
    expect(DW_CONFLICT, put_pattern("modes/a", 2, 1000, DW_PUT_CREATE));
    assert_int_equal(err.code, DW_CONFLICT);
    assert_true(object_is("modes/a", 1, 1000));
    expect(DW_OK, put_pattern("modes/a", 3, 70000, DW_PUT_REPLACE)); /* longer */
    assert_true(object_is("modes/a", 3, 70000));
    expect(DW_OK, put_pattern("modes/a", 4, 10, DW_PUT_REPLACE)); /* shorter */
    assert_true(object_is("modes/a", 4, 10));
    expect(DW_OK, put_pattern("modes/new", 5, 10, DW_PUT_REPLACE)); /* replaces nothing */
    assert_true(object_is("modes/new", 5, 10));
    expect(DW_OK, dw_store_remove(store, "modes/a", &err));
    expect(DW_NOT_FOUND, dw_store_stat(store, "modes/a", NULL, NULL, &err));
    expect(DW_OK, dw_store_remove(store, "modes/a", &err)); /* twice is no error */
    expect(DW_OK, put_pattern("modes/a", 6, 10, DW_PUT_CREATE));
    assert_true(object_is("modes/a", 6, 10));
}

TEST(test_sizes)
{
    static const size_t sizes[] = {0,       1,           4096,     65536,
                                   5 * MIB, 5 * MIB + 1, 40 * MIB, 40 * MIB + 1234};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char key[64];
        uint64_t n_bytes = 0;
        int64_t modified_ms = -1;
        snprintf(key, sizeof key, "sizes/%zu", sizes[i]);
        expect(DW_OK, put_pattern(key, i, sizes[i], DW_PUT_CREATE));
        expect(DW_OK, dw_store_stat(store, key, &n_bytes, &modified_ms, &err));
        assert_int_equal(n_bytes, sizes[i]);
        int64_t age_ms = (int64_t)time(NULL) * 1000 - modified_ms;
        assert_true(modified_ms == 0 || (age_ms > -86400000 && age_ms < 86400000));
        expect(DW_OK, dw_store_stat(store, key, NULL, NULL, &err));
        assert_true(object_is(key, i, sizes[i]));
        /* the same through a function, in pieces that the store chooses */
        pattern p = {.seed = i + 100, .n_bytes = sizes[i]};
        dw_source source = {.n_bytes = sizes[i], .read = read_pattern, .context = &p};
        expect(DW_OK, dw_store_put(store, key, &source, DW_PUT_REPLACE, NULL, &err));
        assert_true(p.n_reads > 0 || sizes[i] == 0);
        assert_true(object_is(key, i + 100, sizes[i]));
        expect(DW_OK, dw_store_remove(store, key, &err));
    }
}

TEST(test_ranges)
{
    const size_t n = 3 * MIB + 17;
    expect(DW_OK, put_pattern("ranges/object", 9, n, DW_PUT_REPLACE));
    static const struct {
        uint64_t offset;
        size_t n_bytes;
    } ranges[] = {
        {0, 0},
        {0, 1},
        {1, 1},
        {0, 3 * MIB + 17},
        {0, 3 * MIB + 18},
        {3 * MIB + 16, 1},
        {3 * MIB + 16, 2},
        {3 * MIB + 17, 1},
        {3 * MIB + 18, 1},
        {3 * MIB + 17, 0},
        {1000 * MIB, 5},
        {1ull << 40, 1000},
        {12345, 1 * MIB},
        {2 * MIB, 5 * MIB},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        assert_true(range_is("ranges/object", 9, n, ranges[i].offset, ranges[i].n_bytes));
    expect(DW_OK, put_pattern("ranges/empty", 9, 0, DW_PUT_REPLACE));
    assert_true(range_is("ranges/empty", 9, 0, 0, 0));
    assert_true(range_is("ranges/empty", 9, 0, 0, 10));
    assert_true(range_is("ranges/empty", 9, 0, 7, 10));
}

TEST(test_invalid)
{
    char long_key[514];
    memset(long_key, 'k', 513);
    for (size_t i = 100; i < 513; i += 100)
        long_key[i] = '/';
    long_key[513] = '\0';
    const char *const invalid[] = {
        "",     "/a",       "a/",     "a//b",  ".",    "..",   "../a", "a/../b",
        "a/..", "a/./b",    "a b",    "a\\b",  "a\nb", "a%2f", "a~",   "a:b",
        "a*",   "\xc3\xa4", long_key, "a?b=c", "a#b",  "./a",  "/",
    };
    uint8_t byte = 0;
    size_t n_read;
    dw_source source = {.n_bytes = 1, .bytes = &byte};
    for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++) {
        const char *key = invalid[i];
        assert_false(dw_store_key_valid(key));
        expect(DW_INVALID, dw_store_get(store, key, 0, &byte, 1, &n_read, NULL, &err));
        expect(DW_INVALID, dw_store_put(store, key, &source, DW_PUT_CREATE, NULL, &err));
        expect(DW_INVALID, dw_store_stat(store, key, NULL, NULL, &err));
        expect(DW_INVALID, dw_store_remove(store, key, &err));
    }
    /* unusual keys: the longest, and every allowed byte */
    static const char odd[] = "odd/AZaz09-_.=+@/...x/..y/.z/-/=";
    long_key[512] = '\0';
    const char *const valid[] = {long_key, odd};
    for (size_t i = 0; i < 2; i++) {
        assert_true(dw_store_key_valid(valid[i]));
        expect(DW_OK, put_pattern(valid[i], 7, 33, DW_PUT_CREATE));
        assert_true(object_is(valid[i], 7, 33));
        expect(DW_CONFLICT, put_pattern(valid[i], 8, 33, DW_PUT_CREATE));
        expect(DW_OK, dw_store_remove(store, valid[i], &err));
    }
}

/* ---- lists ---------------------------------------------------------------------------
 */

#define MAX_LISTED 1500

typedef struct listed {
    char keys[MAX_LISTED][80];
    uint64_t n_bytes[MAX_LISTED];
    size_t n;
    size_t stop_at; /* 0: never */
} listed;

static listed seen;

static dw_status take_entry(void *context, const dw_store_entry *entry, dw_error *error)
{
    (void)error;
    listed *l = context;
    if (l->n == MAX_LISTED || strlen(entry->key) >= sizeof l->keys[0])
        return DW_MISMATCH;
    strcpy(l->keys[l->n], entry->key);
    l->n_bytes[l->n++] = entry->n_bytes;
    return l->n == l->stop_at ? DW_STALE : DW_OK;
}

static dw_status list(const char *prefix, const char *after)
{
    seen = (listed){.stop_at = seen.stop_at};
    return dw_store_list(store, prefix, after, take_entry, &seen, &err);
}

static void assert_listed(const char *prefix, const char *after, const char *wanted)
{
    char all[1024] = "";
    expect(DW_OK, list(prefix, after));
    for (size_t i = 0; i < seen.n; i++) {
        strcat(all, i ? " " : "");
        strcat(all, seen.keys[i]);
    }
    assert_string_equal(all, wanted);
}

TEST(test_list_order)
{
    assert_listed("l/", NULL, "");
    /* '-' and '.' come before '/', '0' after it: not the order of a directory walk */
    static const char *const keys[] = {
        "l/b",   "l/a/b", "l/a-b", "l/a.b",     "l/a0", "l/a/c",
        "l/a/B", "l/a=",  "l/B",   "l/a+x/y/z", "l2",   "l-/x"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        expect(DW_OK, put_pattern(keys[i], i, i, DW_PUT_CREATE));
    assert_listed("l/", NULL,
                  "l/B l/a+x/y/z l/a-b l/a.b l/a/B l/a/b l/a/c l/a0 l/a= l/b");
    assert_listed("l", NULL,
                  "l-/x l/B l/a+x/y/z l/a-b l/a.b l/a/B l/a/b l/a/c l/a0 l/a= l/b l2");
    assert_listed("l/a/", NULL, "l/a/B l/a/b l/a/c");
    assert_listed("l/a", NULL, "l/a+x/y/z l/a-b l/a.b l/a/B l/a/b l/a/c l/a0 l/a=");
    assert_listed("l/a/b", NULL, "l/a/b");
    assert_listed("l/a/bb", NULL, "");
    assert_listed("l/x", NULL, "");
    assert_listed("l/a+x/y", NULL, "l/a+x/y/z");
    assert_listed("l/a/b/", NULL, "");
    assert_listed("l/", "l/a/b", "l/a/c l/a0 l/a= l/b");
    assert_listed("l/", "l/a/", "l/a/B l/a/b l/a/c l/a0 l/a= l/b");
    assert_listed("l/", "l/a/zz", "l/a0 l/a= l/b");
    assert_listed("l/a/", "l/a/b", "l/a/c");
    assert_listed("l/a/", "l/a", "l/a/B l/a/b l/a/c");
    assert_listed("l/a/", "l/b", "");
    assert_listed("l/", "l/b", "");
    assert_listed("l/", "", "l/B l/a+x/y/z l/a-b l/a.b l/a/B l/a/b l/a/c l/a0 l/a= l/b");
    assert_listed("l/", "A", "l/B l/a+x/y/z l/a-b l/a.b l/a/B l/a/b l/a/c l/a0 l/a= l/b");
    expect(DW_OK, list("l/", NULL));
    assert_int_equal(seen.n_bytes[0], 8); /* l/B */
    assert_int_equal(seen.n_bytes[9], 0); /* l/b */
    expect(DW_INVALID, list("l b", NULL));
    expect(DW_INVALID, list("l", "\xff"));
    expect(DW_INVALID, list(NULL, NULL));
    /* a function that stops the list */
    seen.stop_at = 3;
    expect(DW_STALE, list("l/", NULL));
    assert_int_equal(seen.n, 3);
    seen.stop_at = 0;
}

static dw_status use_store(void *context, const dw_store_entry *entry, dw_error *error)
{
    (void)error;
    unsigned *n = context;
    ++*n;
    expect(DW_OK, dw_store_remove(store, entry->key, &err));
    expect(DW_OK, put_pattern("used/meanwhile", 1, 5, DW_PUT_REPLACE));
    return DW_OK;
}

/* 1,200 keys are more than a page of any server. */
TEST(test_list_many)
{
    char key[64];
    for (unsigned i = 0; i < 1200; i++) {
        snprintf(key, sizeof key, "many/%020u", (i * 7 + 3) % 1200);
        expect(DW_OK, put_pattern(key, i, 3, DW_PUT_CREATE));
    }
    expect(DW_OK, list("many/", NULL));
    assert_int_equal(seen.n, 1200);
    for (unsigned i = 0; i < 1200; i++) {
        snprintf(key, sizeof key, "many/%020u", i);
        assert_string_equal(seen.keys[i], key);
    }
    snprintf(key, sizeof key, "many/%020u", 1050);
    expect(DW_OK, list("many/", key));
    assert_int_equal(seen.n, 149);
    unsigned n = 0; /* the function may use the store, even on listed objects */
    expect(DW_OK, dw_store_list(store, "many/", NULL, use_store, &n, &err));
    assert_int_equal(n, 1200);
    assert_listed("many/", NULL, "");
}

/* ---- several at once --------------------------------------------------------------- */

#define N_THREADS 16

typedef struct racer {
    pthread_t thread;
    unsigned number;
    dw_status status;
    bool good, may_miss; /* may_miss: see replaced_is_there */
    char key[32];
} racer;

static pthread_barrier_t start_line;

static void *race_to_create(void *argument)
{
    racer *r = argument;
    uint8_t bytes[1000];
    dw_error error;
    memset(bytes, (int)r->number, sizeof bytes);
    dw_source source = {.n_bytes = sizeof bytes, .bytes = bytes};
    pthread_barrier_wait(&start_line);
    r->status = dw_store_put(store, r->key, &source, DW_PUT_CREATE, NULL, &error);
    return NULL;
}

TEST(test_one_creator_wins)
{
    bool conditional;
    expect(DW_OK, dw_store_conditional(store, &conditional, &err));
    if (!conditional) {
        print_message("skipped: %s cannot create conditionally\n", dw_store_url(store));
        skip();
    }
    for (unsigned round = 0; round < 10; round++) {
        racer racers[N_THREADS] = {0};
        pthread_barrier_init(&start_line, NULL, N_THREADS);
        for (unsigned i = 0; i < N_THREADS; i++) {
            racers[i].number = i;
            snprintf(racers[i].key, sizeof racers[i].key, "race%u/commit", round);
            pthread_create(&racers[i].thread, NULL, race_to_create, &racers[i]);
        }
        unsigned n_won = 0, winner = 0;
        for (unsigned i = 0; i < N_THREADS; i++) {
            pthread_join(racers[i].thread, NULL);
            if (racers[i].status == DW_OK) {
                n_won++;
                winner = i;
            } else {
                assert_int_equal(racers[i].status, DW_CONFLICT);
            }
        }
        pthread_barrier_destroy(&start_line);
        assert_int_equal(n_won, 1);
        uint8_t bytes[1001];
        size_t n_read;
        expect(DW_OK, dw_store_get(store, racers[0].key, 0, bytes, sizeof bytes, &n_read,
                                   NULL, &err));
        assert_int_equal(n_read, 1000);
        for (size_t i = 0; i < n_read; i++)
            assert_int_equal(bytes[i], winner);
    }
}

/* Swift may open a file that another PUT has just replaced and removed, and then answers
 * 404 for an object that was never absent. It is the server without conditional create.
 * Readers of replaced objects (the hint, reports) treat them as absent and go on. */
static bool replaced_is_there(bool may_miss, dw_error *failure)
{
    dw_status status = dw_store_stat(store, "shared/replaced", NULL, NULL, failure);
    return status == DW_OK || (may_miss && status == DW_NOT_FOUND);
}

static void *read_and_replace(void *argument)
{
    racer *r = argument;
    dw_source source = {.n_bytes = 1000, .bytes = (uint8_t[1000]){0}};
    dw_error failure = {0};
    r->good = true;
    for (unsigned i = 0; i < 8 && r->good; i++)
        r->good = range_is("shared/object", 77, 2 * MIB, r->number * 1000 + i, MIB) &&
                  dw_store_put(store, "shared/replaced", &source, DW_PUT_REPLACE, NULL,
                               &failure) == DW_OK &&
                  replaced_is_there(r->may_miss, &failure);
    if (!r->good)
        print_error("thread %u: %s\n", r->number,
                    failure.text[0] ? failure.text : "it read other bytes");
    return NULL;
}

TEST(test_concurrent_use)
{
    racer racers[N_THREADS] = {0};
    bool conditional;
    expect(DW_OK, dw_store_conditional(store, &conditional, &err));
    expect(DW_OK, put_pattern("shared/object", 77, 2 * MIB, DW_PUT_REPLACE));
    for (unsigned i = 0; i < N_THREADS; i++) {
        racers[i].number = i;
        racers[i].may_miss = !conditional;
        pthread_create(&racers[i].thread, NULL, read_and_replace, &racers[i]);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(racers[i].thread, NULL);
        assert_true(racers[i].good);
    }
}

/* ---- stopping ------------------------------------------------------------------------
 */

typedef struct watcher {
    unsigned n_calls, stop_at; /* 0: never */
    uint64_t done, total;
    bool backwards;
} watcher;

static int watch(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    watcher *w = context;
    w->backwards = w->backwards || bytes_done < w->done || bytes_done > bytes_total;
    w->done = bytes_done;
    w->total = bytes_total;
    return ++w->n_calls == w->stop_at;
}

TEST(test_cancel)
{
    const size_t n = 20 * MIB;
    pattern p = {.seed = 5, .n_bytes = n};
    dw_source source = {.n_bytes = n, .read = read_pattern, .context = &p};
    watcher w = {.stop_at = 1};
    dw_progress progress = {watch, &w};
    expect(DW_CANCELLED,
           dw_store_put(store, "cancel/a", &source, DW_PUT_CREATE, &progress, &err));
    assert_int_equal(err.code, DW_CANCELLED);
    expect(DW_NOT_FOUND, dw_store_stat(store, "cancel/a", NULL, NULL, &err));
    w = (watcher){0};
    expect(DW_OK,
           dw_store_put(store, "cancel/a", &source, DW_PUT_CREATE, &progress, &err));
    assert_true(w.n_calls > 0 && !w.backwards);
    assert_int_equal(w.total, n);
    /* a replace that is stopped leaves the old object */
    p.seed = 6;
    w = (watcher){.stop_at = 1};
    expect(DW_CANCELLED,
           dw_store_put(store, "cancel/a", &source, DW_PUT_REPLACE, &progress, &err));
    assert_true(object_is("cancel/a", 5, n));
    uint8_t *bytes = malloc(n);
    size_t n_read;
    w = (watcher){.stop_at = 1};
    expect(DW_CANCELLED,
           dw_store_get(store, "cancel/a", 0, bytes, n, &n_read, &progress, &err));
    w = (watcher){0};
    expect(DW_OK, dw_store_get(store, "cancel/a", 0, bytes, n, &n_read, &progress, &err));
    assert_true(w.n_calls > 0 && !w.backwards);
    free(bytes);
    progress = (dw_progress){0}; /* no function */
    expect(DW_OK,
           dw_store_put(store, "cancel/b", &source, DW_PUT_CREATE, &progress, &err));
}

/* If a source fails, its own error is returned and the object does not change. */
TEST(test_source_fails)
{
    pattern p = {.n_bytes = 12 * MIB, .fails = DW_UNTRUSTED};
    dw_source source = {.n_bytes = p.n_bytes, .read = read_pattern, .context = &p};
    expect(DW_UNTRUSTED,
           dw_store_put(store, "broken/a", &source, DW_PUT_CREATE, NULL, &err));
    assert_string_equal(err.text, "the source broke");
    expect(DW_NOT_FOUND, dw_store_stat(store, "broken/a", NULL, NULL, &err));
    expect(DW_OK, put_pattern("broken/a", 5, 100, DW_PUT_CREATE));
    expect(DW_UNTRUSTED,
           dw_store_put(store, "broken/a", &source, DW_PUT_REPLACE, NULL, &err));
    assert_true(object_is("broken/a", 5, 100));
}

TEST(test_counts)
{
    dw_store_counts before, after;
    dw_store_get_counts(store, &before);
    expect(DW_OK, put_pattern("counts/a", 1, 1000, DW_PUT_REPLACE));
    assert_true(object_is("counts/a", 1, 1000));
    dw_store_get_counts(store, &after);
    assert_true(after.n_requests >= before.n_requests + 2);
    assert_true(after.bytes_written >= before.bytes_written + 1000);
    assert_true(after.bytes_read >= before.bytes_read + 1000);
}

/* ---- where ----------------------------------------------------------------------------
 */

static char base_url[512];

static int open_fresh(void **state)
{
    (void)state;
    char url[600];
    unsigned char random[8];
    FILE *f = fopen("/dev/urandom", "rb");
    if (!f || fread(random, 1, 8, f) != 8)
        return -1;
    fclose(f);
    uint64_t number;
    memcpy(&number, random, 8);
    snprintf(url, sizeof url, "%s/conformance-%016llx", base_url,
             (unsigned long long)number);
    print_message("store: %s\n", url);
    if (dw_store_open(&store, url, NULL, &err) == DW_OK)
        return 0;
    print_error("%s: %s\n", err.where, err.text);
    return -1;
}

static dw_status remove_entry(void *context, const dw_store_entry *entry, dw_error *error)
{
    return dw_store_remove(context, entry->key, error);
}

static int remove_all(void **state)
{
    (void)state;
    dw_status status = dw_store_list(store, "", NULL, remove_entry, store, &err);
    if (status != DW_OK)
        print_error("%s: %s\n", err.where, err.text);
    dw_store_close(store);
    return status != DW_OK;
}

static int run_on(const char *url)
{
    snprintf(base_url, sizeof base_url, "%s", url);
    return suite_run(open_fresh, remove_all);
}

int main(void)
{
    const char *url = getenv("DW_TEST_STORE"), *left_out = getenv("DW_TEST_SKIP");
    if (left_out)
        cmocka_set_skip_filter(left_out);
    if (url && url[0])
        return run_on(url);
    char dir[] = "/tmp/deltawire-test-XXXXXX", text[64], command[64];
    if (!mkdtemp(dir))
        return 1;
    snprintf(text, sizeof text, "file://%s", dir);
    int n_failed = run_on("mem:tests") + run_on(text);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command) != 0 || n_failed != 0;
}
