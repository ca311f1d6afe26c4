#include "unit/suite.h"
#include <pthread.h>

#include "base/error.h"
#include "store/key_ring.h"

enum { N_THREADS = 8, N_ROUNDS = 50 };

/* Gives the keys k1, k2, ... Its fields need no lock, because calls do not overlap. */
typedef struct counter {
    unsigned n_fetched;
    bool fails, same;
    bool is_closed;
} counter;

static dw_status fetch(void *self, dw_keys *out, dw_error *err)
{
    counter *c = self;
    char name[16];
    if (!c->same)
        c->n_fetched++;
    snprintf(out->origin, sizeof out->origin, "a counter");
    snprintf(name, sizeof name, "k%u", c->n_fetched);
    dw_status status = dw_keys_copy(out, name, "secret", NULL, err);
    return status == DW_OK && c->fails
               ? dw_fail(err, DW_UNAVAILABLE, "counter", "is away")
               : status;
}

static void close_counter(void *self)
{
    ((counter *)self)->is_closed = true;
}

static dw_key_ring *open_ring(counter *c)
{
    const dw_key_source source = {fetch, close_counter, c};
    dw_key_ring *ring;
    assert_int_equal(dw_key_ring_open(&ring, &source, NULL), DW_OK);
    return ring;
}

static void expect_taken(dw_key_ring *ring, const char *access_key)
{
    dw_keys *keys;
    assert_int_equal(dw_key_ring_take(ring, &keys, NULL), DW_OK);
    assert_string_equal(keys->access_key, access_key);
    dw_keys_release(keys);
}

/* ---- many threads ---- */

typedef struct worker {
    pthread_t thread;
    dw_key_ring *ring;
    pthread_barrier_t *barrier;
    unsigned n_wrong;
} worker;

/* In each round all threads have the same keys, and all are refused. */
static void *be_refused(void *argument)
{
    worker *w = argument;
    for (unsigned round = 1; round <= N_ROUNDS; round++) {
        dw_keys *old = NULL, *fresh = NULL;
        char wanted[16];
        bool changed = false;
        snprintf(wanted, sizeof wanted, "k%u", round);
        w->n_wrong += dw_key_ring_take(w->ring, &old, NULL) != DW_OK ||
                      strcmp(old->access_key, wanted) != 0;
        pthread_barrier_wait(w->barrier);
        snprintf(wanted, sizeof wanted, "k%u", round + 1);
        w->n_wrong += !old ||
                      dw_key_ring_renew(w->ring, old, &fresh, &changed, NULL) != DW_OK ||
                      !changed || strcmp(fresh->access_key, wanted) != 0;
        dw_keys_release(old);
        dw_keys_release(fresh);
        pthread_barrier_wait(w->barrier);
    }
    return NULL;
}

TEST(test_one_renewal_serves_all)
{
    counter c = {0};
    dw_key_ring *ring = open_ring(&c);
    worker workers[N_THREADS];
    pthread_barrier_t barrier;
    assert_int_equal(pthread_barrier_init(&barrier, NULL, N_THREADS), 0);
    for (unsigned i = 0; i < N_THREADS; i++) {
        workers[i] = (worker){.ring = ring, .barrier = &barrier};
        assert_int_equal(
            pthread_create(&workers[i].thread, NULL, be_refused, &workers[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].n_wrong, 0);
    }
    assert_int_equal(c.n_fetched, N_ROUNDS + 1);
    pthread_barrier_destroy(&barrier);
    dw_key_ring_close(ring);
    assert_true(c.is_closed);
}

/* ---- one thread ---- */

TEST(test_failures)
{
    counter c = {.fails = true};
    dw_key_ring *ring = open_ring(&c);
    dw_keys *keys, *fresh;
    dw_error err = {0};
    bool changed;
    assert_int_equal(dw_key_ring_take(ring, &keys, &err), DW_UNAVAILABLE);
    assert_null(keys);
    assert_string_equal(err.text, "is away");
    c.fails = false;
    assert_int_equal(dw_key_ring_take(ring, &keys, &err), DW_OK);
    assert_string_equal(keys->access_key, "k2");

    /* refused keys are not used again after a renewal that failed */
    c.fails = true;
    assert_int_equal(dw_key_ring_renew(ring, keys, &fresh, &changed, &err),
                     DW_UNAVAILABLE);
    assert_null(fresh);
    assert_int_equal(dw_key_ring_take(ring, &fresh, &err), DW_UNAVAILABLE);
    c.fails = false;
    expect_taken(ring, "k5");
    dw_keys_release(keys);
    dw_key_ring_close(ring);
}

static dw_status fail_silently(void *self, dw_keys *out, dw_error *err)
{
    (void)out;
    (void)err;
    return *(dw_status *)self;
}

/* What a source says of itself is never taken for a word about an object. */
TEST(test_statuses)
{
    static const dw_status cases[][2] = {
        {DW_UNAVAILABLE, DW_UNAVAILABLE},
        {DW_CORRUPT, DW_UNAVAILABLE},
        {DW_NO_MEMORY, DW_NO_MEMORY},
        {DW_INVALID, DW_INVALID},
        {DW_UNSUPPORTED, DW_UNSUPPORTED},
        {DW_NOT_FOUND, DW_DENIED},
        {DW_IO, DW_DENIED},
        {DW_CONFLICT, DW_DENIED},
        {DW_DENIED, DW_DENIED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_status given = cases[i][0];
        const dw_key_source source = {fail_silently, NULL, &given};
        dw_key_ring *ring;
        dw_keys *keys;
        dw_error err = {0};
        assert_int_equal(dw_key_ring_open(&ring, &source, NULL), DW_OK);
        assert_int_equal(dw_key_ring_take(ring, &keys, &err), cases[i][1]);
        assert_int_equal(err.code, cases[i][1]);
        assert_non_null(strstr(err.text, "without a reason"));
        assert_null(keys);
        dw_key_ring_close(ring);
    }
}

static dw_status take_own(void *self, dw_keys *out, dw_error *err)
{
    dw_keys *keys;
    (void)out;
    return dw_key_ring_take(*(dw_key_ring **)self, &keys, err);
}

/* It would wait for itself. */
TEST(test_a_source_that_needs_its_own_keys)
{
    dw_key_ring *ring;
    dw_keys *keys;
    dw_error err = {0};
    const dw_key_source source = {take_own, NULL, &ring};
    assert_int_equal(dw_key_ring_open(&ring, &source, NULL), DW_OK);
    assert_int_equal(dw_key_ring_take(ring, &keys, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "uses the store that they are for"));
    dw_key_ring_close(ring);
}

TEST(test_a_source_without_new_keys)
{
    counter c = {0};
    dw_key_ring *ring = open_ring(&c);
    dw_keys *keys, *fresh;
    bool changed = true;
    assert_int_equal(dw_key_ring_take(ring, &keys, NULL), DW_OK);
    c.same = true;
    assert_int_equal(dw_key_ring_renew(ring, keys, &fresh, &changed, NULL), DW_OK);
    assert_false(changed);
    dw_keys_release(fresh);
    dw_keys_release(keys);
    c.same = false; /* somebody put new ones there */
    expect_taken(ring, "k2");
    expect_taken(ring, "k2");
    dw_key_ring_close(ring);
}

RUN_TESTS(NULL, NULL)
