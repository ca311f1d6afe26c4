#include "check_store.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "inner.h"
#include "progress_bar.h"

#define FIRST_BYTES ((size_t)64 << 10)
#define T_TRANSFER  5.0 /* seconds that one may take */
#define N_TRIPS     5
#define N_RACES     3
#define N_LISTED    100

typedef struct trial {
    check_findings *f;
    dw_store *store;
    dw_progress signals;
    char *sent, *received; /* n_room bytes each */
    size_t n_room;
    char listed[1024]; /* an object to read, if nothing may be written; "": none */
    uint64_t n_listed_bytes;
    unsigned n_seen;
} trial;

/* Notes a result. Returns false if nothing more can be found out. */
static bool note(trial *t, check_step step, dw_status status, const dw_error *err)
{
    check_result *result = &t->f->steps[step];
    result->tried = true;
    if (status != DW_OK)
        result->err = *err;
    return status != DW_UNAVAILABLE && status != DW_CANCELLED && status != DW_NO_MEMORY;
}

static bool works(const trial *t, check_step step)
{
    return t->f->steps[step].tried && t->f->steps[step].err.code == DW_OK;
}

static dw_status new_key(trial *t, dw_error *err)
{
    uint8_t random[16];
    char digits[2 * sizeof random + 1];
    dw_status status = dw_random_bytes(random, sizeof random, err);
    if (status == DW_OK) {
        dw_hex_encode(digits, random, sizeof random);
        snprintf(t->f->key, sizeof t->f->key, "probe/%s", digits);
    }
    return status;
}

/* ---- one object ---- */

static dw_status put(trial *t, size_t n_bytes, dw_put_mode mode, dw_error *err)
{
    const dw_source source = {.n_bytes = n_bytes, .bytes = t->sent};
    return dw_store_put(t->store, t->f->key, &source, mode, &t->signals, err);
}

/* Also after a put that failed: a reply may have been lost. */
static dw_status remove_probe(trial *t, dw_error *err)
{
    const dw_status status = dw_store_remove(t->store, t->f->key, err);
    t->f->left = status == DW_OK ? NULL : t->f->key;
    return status;
}

static dw_status get(trial *t, const char *key, uint64_t offset, size_t n_bytes,
                     size_t *n_read, dw_error *err)
{
    return dw_store_get(t->store, key, offset, t->received, n_bytes, n_read, &t->signals,
                        err);
}

static dw_status fail_other(trial *t, const char *key, dw_error *err)
{
    return dw_fail(err, DW_CORRUPT, dw_store_url(t->store),
                   "%s has other bytes than those that were written", key);
}

/* Reads what put wrote. */
static dw_status get_back(trial *t, size_t n_bytes, dw_error *err)
{
    size_t n_read;
    dw_status status = get(t, t->f->key, 0, n_bytes, &n_read, err);
    if (status == DW_OK && (n_read != n_bytes || memcmp(t->sent, t->received, n_read)))
        return fail_other(t, t->f->key, err);
    return status;
}

/* Reads the middle of the N bytes in `received`, which are all of KEY or its start. */
static bool try_range(trial *t, const char *key, size_t n)
{
    size_t n_read;
    dw_error err;
    char *whole = t->received;
    t->received = malloc(n + 1);
    dw_status status = t->received ? get(t, key, n / 4, n / 2, &n_read, &err)
                                   : dw_fail_memory(&err, NULL);
    if (status == DW_OK &&
        (n_read != n / 2 || memcmp(whole + n / 4, t->received, n_read)))
        status = fail_other(t, key, &err);
    free(t->received);
    t->received = whole;
    return note(t, CHECK_RANGE, status, &err);
}

static bool measure(trial *t, check_step step, size_t n_bytes, double since,
                    dw_status status, const dw_error *err)
{
    t->f->steps[step].n_bytes = n_bytes;
    t->f->steps[step].seconds = cli_now() - since;
    return note(t, step, status, err);
}

/* ---- reading ---- */

static dw_status see(void *context, const dw_store_entry *entry, dw_error *err)
{
    trial *t = context;
    if (strncmp(entry->key, "probe/", 6) != 0 && entry->n_bytes > t->n_listed_bytes) {
        snprintf(t->listed, sizeof t->listed, "%s", entry->key);
        t->n_listed_bytes = entry->n_bytes;
    }
    if (++t->n_seen < N_LISTED)
        return cli_check_signal(err);
    return DW_CANCELLED;
}

static bool try_list(trial *t)
{
    dw_error err;
    dw_status status = dw_store_list(t->store, "", NULL, see, t, &err);
    if (t->n_seen >= N_LISTED)
        status = DW_OK;
    return note(t, CHECK_LIST, status, &err);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Reads an object that is not there, as a follower does that asks for the next version.
 */
static bool try_missing(trial *t)
{
    double trips[N_TRIPS];
    for (int i = -1; i < N_TRIPS; i++) { /* the first may have to connect */
        size_t n_read;
        dw_error err = {0};
        const double start = cli_now();
        const dw_status status = get(t, t->f->key, 0, 1, &n_read, &err);
        if (status != DW_NOT_FOUND)
            return note(t, CHECK_READ, status, &err);
        if (i >= 0)
            trips[i] = cli_now() - start;
    }
    qsort(trips, N_TRIPS, sizeof *trips, by_value);
    t->f->round_trip = trips[N_TRIPS / 2];
    return note(t, CHECK_READ, DW_OK, NULL);
}

/* Without the right to write: reads an object of the stream. */
static void read_listed(trial *t)
{
    dw_error err;
    size_t n = t->n_listed_bytes < t->n_room ? (size_t)t->n_listed_bytes : t->n_room;
    const double start = cli_now();
    const dw_status status = get(t, t->listed, 0, n, &n, &err);
    if (status == DW_NOT_FOUND) /* it was collected meanwhile */
        return;
    if (status != DW_OK) {
        note(t, CHECK_READ, status, &err);
        return;
    }
    measure(t, CHECK_DOWNLOAD, n, start, status, &err);
    try_range(t, t->listed, n);
}

/* ---- writing ---- */

/* A store that sends no time has written the object at one. */
static void take_clock(trial *t)
{
    int64_t when_ms;
    const int64_t now_ms = dw_wall_clock_ms();
    dw_store_get_facts(t->store, &t->f->facts);
    if (t->f->facts.has_clock ||
        dw_store_stat(t->store, t->f->key, NULL, &when_ms, NULL) != DW_OK || when_ms == 0)
        return;
    t->f->facts.has_clock = true;
    t->f->facts.clock_offset_ms = when_ms - now_ms;
}

/* One object: written, read, removed. Sets how many bytes the link moves in time. */
static bool try_write(trial *t, size_t *n_bytes)
{
    dw_error err;
    const double start = cli_now();
    dw_status status = put(t, FIRST_BYTES, DW_PUT_REPLACE, &err);
    const double rate = (double)FIRST_BYTES / (cli_now() - start + 1e-6);
    bool goes_on = note(t, CHECK_WRITE, status, &err);
    if (rate * T_TRANSFER < (double)*n_bytes)
        *n_bytes = (size_t)(rate * T_TRANSFER);
    if (status == DW_OK) {
        take_clock(t);
        status = get_back(t, FIRST_BYTES, &err);
        goes_on = note(t, CHECK_READ, status, &err) &&
                  (status != DW_OK || try_range(t, t->f->key, FIRST_BYTES));
        status = remove_probe(t, &err);
        return note(t, CHECK_DELETE, status, &err) && goes_on;
    }
    if (status != DW_DENIED)
        remove_probe(t, &err);
    return goes_on;
}

typedef struct writer {
    trial *t;
    pthread_barrier_t *start;
    char text; /* what it writes */
    dw_status status;
    dw_error err;
} writer;

static void *create(void *context)
{
    writer *w = context;
    const dw_source source = {.n_bytes = 1, .bytes = &w->text};
    pthread_barrier_wait(w->start);
    w->status = dw_store_put(w->t->store, w->t->f->key, &source, DW_PUT_CREATE,
                             &w->t->signals, &w->err);
    return NULL;
}

/* A writer whose reply was lost, or who met the other one, does not know that it has won;
 * the object tells. */
static dw_status judge_race(trial *t, const writer *a, const writer *b, dw_error *err)
{
    const writer *const both[] = {a, b};
    size_t n_read, n_won = 0;
    char won = '\0';
    for (size_t i = 0; i < 2; i++) {
        const writer *w = both[i];
        n_won += w->status == DW_OK;
        won = w->status == DW_OK ? w->text : won;
        if (w->status != DW_OK && w->status != DW_CONFLICT &&
            w->status != DW_UNAVAILABLE) {
            *err = w->err;
            return w->status;
        }
    }
    if (n_won == 2)
        return dw_fail(err, DW_UNSUPPORTED, dw_store_url(t->store),
                       "two writers created the same object, and both were told that "
                       "they did");
    dw_status status = get(t, t->f->key, 0, 1, &n_read, err);
    if (status == DW_NOT_FOUND && n_won == 0) {
        *err = a->status == DW_UNAVAILABLE ? a->err : b->err;
        return err->code;
    }
    if (status == DW_OK && (n_read != 1 || (won && won != t->received[0])))
        return fail_other(t, t->f->key, err);
    return status;
}

static dw_status race(trial *t, dw_error *err)
{
    pthread_t other;
    pthread_barrier_t start;
    dw_error ignored;
    writer a = {.t = t, .start = &start, .text = 'a'}, b = a;
    b.text = 'b';
    dw_status status = new_key(t, err);
    if (status != DW_OK)
        return status;
    pthread_barrier_init(&start, NULL, 2);
    if (pthread_create(&other, NULL, create, &b) == 0) {
        create(&a);
        pthread_join(other, NULL);
        status = judge_race(t, &a, &b, err);
        const dw_status removed = remove_probe(t, status == DW_OK ? err : &ignored);
        status = status == DW_OK ? removed : status;
    } else
        status = dw_fail_memory(err, NULL);
    pthread_barrier_destroy(&start);
    return status;
}

static bool try_create(trial *t)
{
    dw_error err;
    bool conditional;
    dw_status status = dw_store_conditional(t->store, &conditional, &err);
    if (status == DW_OK && !conditional)
        status = dw_fail(&err, DW_UNSUPPORTED, dw_store_url(t->store),
                         "the store cannot create an object only if it does not exist");
    for (int i = 0; status == DW_OK && i < N_RACES; i++)
        status = race(t, &err);
    return note(t, CHECK_CREATE, status, &err);
}

static void try_transfer(trial *t, size_t n_bytes)
{
    dw_error err;
    double start = cli_now();
    dw_status status = new_key(t, &err);
    if (status == DW_OK)
        status = put(t, n_bytes, DW_PUT_REPLACE, &err);
    measure(t, CHECK_UPLOAD, n_bytes, start, status, &err);
    if (status == DW_OK) {
        start = cli_now();
        status = get_back(t, n_bytes, &err);
        measure(t, CHECK_DOWNLOAD, n_bytes, start, status, &err);
    }
    remove_probe(t, &err);
}

/* ---- all of it ---- */

static void try_all(trial *t, size_t n_bytes)
{
    dw_store_get_facts(t->store, &t->f->facts);
    if (t->f->facts.absent) /* it may not be mounted */
        return;
    if (!try_list(t) || !try_missing(t) || !try_write(t, &n_bytes))
        return;
    if (!works(t, CHECK_WRITE) && works(t, CHECK_READ) && t->listed[0])
        read_listed(t);
    else if (works(t, CHECK_READ) && works(t, CHECK_DELETE) && try_create(t))
        try_transfer(t, n_bytes < FIRST_BYTES ? FIRST_BYTES : n_bytes);
}

static void fill(char *bytes, size_t n_bytes)
{
    uint64_t x = 0x9e3779b97f4a7c15u ^ (uint64_t)dw_wall_clock_ms();
    for (size_t i = 0; i < n_bytes; i++) { /* that no proxy can compress */
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes[i] = (char)(x >> 32);
    }
}

dw_status check_store(check_findings *out, dw_store *store, uint64_t n_bytes,
                      dw_error *err)
{
    const size_t n_room = n_bytes > FIRST_BYTES ? (size_t)n_bytes : FIRST_BYTES;
    trial t = {.f = out, .store = store, .signals = cli_signal_hook(), .n_room = n_room};
    out->round_trip = NAN;
    t.sent = malloc(n_room);
    t.received = malloc(n_room);
    dw_status status =
        t.sent && t.received ? new_key(&t, err) : dw_fail_memory(err, NULL);
    if (status == DW_OK) {
        fill(t.sent, n_room);
        try_all(&t, n_room);
        const dw_store_facts before = out->facts;
        dw_store_get_facts(store, &out->facts);
        if (!out->facts.has_clock) {
            out->facts.has_clock = before.has_clock;
            out->facts.clock_offset_ms = before.clock_offset_ms;
        }
        status = cli_check_signal(err);
    }
    free(t.sent);
    free(t.received);
    return status;
}
