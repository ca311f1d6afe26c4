#include "store/key_ring.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "net/credentials.h"

enum {
    EARLY_MS = 300000, /* renewed so long before they expire, or a quarter of the rest */
    AGAIN_MS = 10000,  /* after a failed renewal, while the old keys are good */
    LEAST_MS = 200,
    GRACE_MS = 60000, /* fresh keys that are expired by our clock: the clock is wrong */
};

struct dw_key_ring {
    dw_key_source source;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t renewed;
    bool is_renewing;
    pthread_t renewer;   /* if it is */
    uint64_t n_renewals; /* ended, with any result */
    dw_status last;      /* of the last one, and its fault */
    dw_error fault;
    dw_keys *keys;    /* NULL: none yet */
    bool is_refused;  /* by a server */
    uint64_t good_ms; /* of the clock that never goes back; UINT64_MAX: for ever */
    uint64_t due_ms;
};

void dw_keys_wipe(dw_keys *keys)
{
    dw_secret_free(keys->access_key);
    dw_secret_free(keys->secret_key);
    dw_secret_free(keys->session_token);
    keys->access_key = keys->secret_key = keys->session_token = NULL;
}

void dw_keys_release(dw_keys *keys)
{
    if (!keys || atomic_fetch_sub(&keys->n_users, 1) > 1)
        return;
    dw_keys_wipe(keys);
    dw_free(keys);
}

/* ---- opening and closing ---- */

static void close_source(const dw_key_source *source)
{
    if (source->close)
        source->close(source->self);
}

dw_status dw_key_ring_open(dw_key_ring **out, const dw_key_source *source, dw_error *err)
{
    dw_key_ring *ring = dw_alloc_zeroed(1, sizeof *ring);
    bool good = ring && dw_condition_init(&ring->renewed);
    if (good && pthread_mutex_init(&ring->lock, NULL) != 0) {
        pthread_cond_destroy(&ring->renewed);
        good = false;
    }
    *out = good ? ring : NULL;
    if (!good) {
        dw_free(ring);
        close_source(source);
        return dw_fail_memory(err, NULL);
    }
    ring->source = *source;
    return DW_OK;
}

void dw_key_ring_close(dw_key_ring *ring)
{
    if (!ring)
        return;
    dw_keys_release(ring->keys);
    close_source(&ring->source);
    pthread_cond_destroy(&ring->renewed);
    pthread_mutex_destroy(&ring->lock);
    dw_free(ring);
}

/* ---- renewing ---- */

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_keys(const dw_keys *a, const dw_keys *b)
{
    return same_text(a->access_key, b->access_key) &&
           same_text(a->secret_key, b->secret_key) &&
           same_text(a->session_token, b->session_token);
}

static uint64_t early_ms(uint64_t left_ms)
{
    return left_ms / 4 < EARLY_MS ? left_ms / 4 : EARLY_MS;
}

static uint64_t at_least(uint64_t ms)
{
    return ms > LEAST_MS ? ms : LEAST_MS;
}

static void keep(dw_key_ring *ring, dw_keys *keys)
{
    const uint64_t now_ms = dw_clock_ms();
    ring->is_refused = ring->is_refused && ring->keys && same_keys(ring->keys, keys);
    dw_keys_release(ring->keys);
    ring->keys = keys;
    ring->good_ms = ring->due_ms = UINT64_MAX;
    if (keys->expires_ms == 0)
        return;
    const int64_t by_clock_ms = keys->expires_ms - dw_wall_clock_ms();
    const uint64_t left_ms = by_clock_ms > 0 ? (uint64_t)by_clock_ms : GRACE_MS;
    ring->good_ms = now_ms + left_ms;
    ring->due_ms = now_ms + at_least(left_ms - early_ms(left_ms));
}

/* The keys of the source, checked. */
static dw_status fetch(dw_key_ring *ring, dw_keys **out, dw_error *err)
{
    dw_keys *keys = dw_alloc_zeroed(1, sizeof *keys);
    *out = NULL;
    if (!keys)
        return dw_fail_memory(err, NULL);
    atomic_init(&keys->n_users, 1);
    dw_status status = ring->source.fetch(ring->source.self, keys, err);
    const char *const words[] = {keys->access_key, keys->secret_key, keys->session_token};
    for (size_t i = 0; status == DW_OK && i < sizeof words / sizeof *words; i++)
        if (words[i] && (!*words[i] || !dw_is_header_word(words[i])))
            status = dw_fail(err, DW_INVALID, NULL,
                             "credentials from %s: one is empty, or holds a space or "
                             "another character that it cannot have",
                             keys->origin);
    if (status == DW_OK)
        *out = keys;
    else
        dw_keys_release(keys);
    return status;
}

/* The status of a source as one of its requests can have it: that a file or an answer of
 * the source is missing or damaged says nothing about an object of the store. */
static dw_status judge(dw_status status, dw_error *fault)
{
    switch (status) {
    case DW_OK:
    case DW_UNAVAILABLE:
    case DW_NO_MEMORY:
    case DW_INVALID:
    case DW_UNSUPPORTED:
        break;
    case DW_CORRUPT: /* cut off */
        status = DW_UNAVAILABLE;
        break;
    default:
        status = DW_DENIED;
    }
    fault->code = status;
    if (status != DW_OK && !*fault->text)
        dw_fail(fault, status, NULL, "the source of the keys failed without a reason");
    return status;
}

/* With the lock, which is left while the source is asked. */
static void renew(dw_key_ring *ring)
{
    dw_keys *keys;
    dw_error fault = {0};
    ring->is_renewing = true;
    ring->renewer = pthread_self();
    pthread_mutex_unlock(&ring->lock);
    dw_status status = judge(fetch(ring, &keys, &fault), &fault);
    pthread_mutex_lock(&ring->lock);
    ring->is_renewing = false;
    ring->n_renewals++;
    ring->last = status;
    ring->fault = fault;
    const uint64_t now_ms = dw_clock_ms();
    if (status == DW_OK) {
        keep(ring, keys);
    } else if (ring->keys && ring->good_ms > now_ms) {
        const uint64_t wait_ms = (ring->good_ms - now_ms) / 4;
        ring->due_ms = now_ms + at_least(wait_ms < AGAIN_MS ? wait_ms : AGAIN_MS);
    }
    pthread_cond_broadcast(&ring->renewed);
}

/* Renews, or waits for the thread that does. */
static dw_status renew_once(dw_key_ring *ring, dw_error *err)
{
    const uint64_t n_before = ring->n_renewals;
    if (ring->is_renewing && pthread_equal(ring->renewer, pthread_self()))
        return dw_fail(err, DW_INVALID, NULL,
                       "the function that gives credentials uses the store that they "
                       "are for: use another one there");
    if (!ring->is_renewing)
        renew(ring);
    while (ring->n_renewals == n_before)
        pthread_cond_wait(&ring->renewed, &ring->lock);
    if (ring->last != DW_OK && err)
        *err = ring->fault;
    return ring->last;
}

static dw_keys *share(dw_key_ring *ring)
{
    atomic_fetch_add(&ring->keys->n_users, 1);
    return ring->keys;
}

dw_status dw_key_ring_take(dw_key_ring *ring, dw_keys **out, dw_error *err)
{
    dw_status status = DW_OK;
    pthread_mutex_lock(&ring->lock);
    const uint64_t now_ms = dw_clock_ms();
    const bool usable = ring->keys && !ring->is_refused && now_ms < ring->good_ms;
    if (!usable)
        status = renew_once(ring, err);
    else if (now_ms >= ring->due_ms && !ring->is_renewing)
        renew(ring); /* if that fails, the old ones are still good */
    *out = status == DW_OK ? share(ring) : NULL;
    pthread_mutex_unlock(&ring->lock);
    return status;
}

dw_status dw_key_ring_renew(dw_key_ring *ring, const dw_keys *keys, dw_keys **out,
                            bool *changed, dw_error *err)
{
    dw_status status = DW_OK;
    pthread_mutex_lock(&ring->lock);
    if (same_keys(ring->keys, keys)) {
        ring->is_refused = true;
        status = renew_once(ring, err);
    }
    *out = status == DW_OK ? share(ring) : NULL;
    *changed = *out && !same_keys(*out, keys);
    pthread_mutex_unlock(&ring->lock);
    return status;
}

/* ---- for reports ---- */

const char *dw_keys_end(const dw_keys *keys)
{
    size_t n = keys->access_key ? strlen(keys->access_key) : 0;
    return n > 8 ? keys->access_key + n - 4 : "";
}

void dw_key_ring_facts(dw_key_ring *ring, dw_store_facts *out)
{
    if (!ring) {
        snprintf(out->keys, sizeof out->keys, "none: requests are not signed");
        return;
    }
    pthread_mutex_lock(&ring->lock);
    const dw_keys *keys = ring->keys;
    if (keys) {
        snprintf(out->keys, sizeof out->keys, "%s", keys->origin);
        snprintf(out->place, sizeof out->place, "%s", keys->place);
        snprintf(out->key_end, sizeof out->key_end, "%s", dw_keys_end(keys));
        out->keys_expire_ms = keys->expires_ms;
    }
    pthread_mutex_unlock(&ring->lock);
}

/* ---- keys that are there ---- */

dw_status dw_keys_copy(dw_keys *out, const char *access_key, const char *secret_key,
                       const char *token, dw_error *err)
{
    out->access_key = dw_copy_string(access_key);
    out->secret_key = dw_copy_string(secret_key);
    out->session_token = token ? dw_copy_string(token) : NULL;
    return out->access_key && out->secret_key && (!token || out->session_token)
               ? DW_OK
               : dw_fail_memory(err, NULL);
}

static dw_status fetch_fixed(void *self, dw_keys *out, dw_error *err)
{
    const dw_keys *keys = self;
    snprintf(out->origin, sizeof out->origin, "%s", keys->origin);
    return dw_keys_copy(out, keys->access_key, keys->secret_key, keys->session_token,
                        err);
}

static void close_fixed(void *self)
{
    dw_keys_release(self);
}

dw_status dw_key_ring_fixed(dw_key_ring **out, const char *access_key,
                            const char *secret_key, const char *token, const char *origin,
                            dw_error *err)
{
    *out = NULL;
    dw_keys *keys = dw_alloc_zeroed(1, sizeof *keys);
    if (!keys)
        return dw_fail_memory(err, NULL);
    atomic_init(&keys->n_users, 1);
    snprintf(keys->origin, sizeof keys->origin, "%s", origin);
    dw_status status = dw_keys_copy(keys, access_key, secret_key, token, err);
    if (status != DW_OK) {
        dw_keys_release(keys);
        return status;
    }
    const dw_key_source source = {fetch_fixed, close_fixed, keys};
    return dw_key_ring_open(out, &source, err);
}

/* ---- the caller's function ---- */

typedef struct called {
    dw_status (*credentials)(void *context, dw_credentials *out, dw_error *err);
    void *context;
    bool token_only;
} called;

static dw_status fetch_called(void *self, dw_keys *out, dw_error *err)
{
    const called *c = self;
    dw_credentials given = {0};
    snprintf(out->origin, sizeof out->origin, "the program's own function");
    dw_status status = c->credentials(c->context, &given, err);
    if (status != DW_OK)
        return status;
    out->expires_ms = given.expires_ms;
    if (c->token_only ? !given.session_token : !given.access_key || !given.secret_key)
        status = dw_fail(err, DW_INVALID, NULL, "%s gives no %s", out->origin,
                         c->token_only ? "access token" : "access key or no secret key");
    else if (c->token_only)
        status = (out->session_token = dw_copy_string(given.session_token))
                     ? DW_OK
                     : dw_fail_memory(err, NULL);
    else
        status = dw_keys_copy(out, given.access_key, given.secret_key,
                              given.session_token, err);
    if (given.release)
        given.release(&given);
    return status;
}

dw_status dw_key_ring_called(dw_key_ring **out, const dw_store_options *options,
                             bool token_only, dw_error *err)
{
    *out = NULL;
    called *c = dw_alloc_zeroed(1, sizeof *c);
    if (!c)
        return dw_fail_memory(err, NULL);
    *c = (called){options->credentials, options->credentials_context, token_only};
    const dw_key_source source = {fetch_called, dw_free, c};
    return dw_key_ring_open(out, &source, err);
}
