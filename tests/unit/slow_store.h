/* A store that takes some objects slowly, and only once a test allows it. */
#ifndef DW_TEST_SLOW_STORE_H
#define DW_TEST_SLOW_STORE_H

#include <pthread.h>

#include "base/clock.h"
#include "base/error.h"
#include "unit/pass_store.h"

#define SLOW_CHUNK 1000 /* bytes in a millisecond: 1 MB/s */
#define SLOW_LIMIT 300000

typedef struct slow_store {
    dw_store *inner;
    const char *part;     /* objects with this in their names are slow; NULL: none */
    _Atomic bool is_shut; /* slow objects stop after their first bytes */
    _Atomic unsigned n_begun, n_done;
    _Atomic bool was_late; /* one was not released in time */
} slow_store;

/* Waits until the store is open. */
static inline dw_status slow_wait(slow_store *s, const char *key, uint64_t n_done,
                                  uint64_t n_bytes, const dw_progress *progress,
                                  dw_error *err)
{
    dw_status status = DW_OK;
    for (unsigned ms = 0; s->is_shut && status == DW_OK; ms++) {
        if (ms == SLOW_LIMIT)
            s->was_late = true;
        if (ms == SLOW_LIMIT)
            break;
        dw_sleep_ms(1);
        status = dw_store_progress(progress, n_done, n_bytes, key, err);
    }
    return status;
}

static inline dw_status slow_put(void *self, const char *key, const dw_source *source,
                                 dw_put_mode mode, const dw_progress *progress,
                                 dw_error *err)
{
    slow_store *s = self;
    if (!s->part || !strstr(key, s->part) || !source->read)
        return dw_store_put(s->inner, key, source, mode, progress, err);
    const uint64_t n_bytes = source->n_bytes;
    uint8_t *bytes = malloc(n_bytes + 1);
    dw_status status = DW_OK;
    for (uint64_t at = 0; status == DW_OK && at < n_bytes;) {
        const size_t n = n_bytes - at < SLOW_CHUNK ? n_bytes - at : SLOW_CHUNK;
        status = source->read(source->context, at, bytes + at, n, err);
        if (at == 0)
            s->n_begun++;
        at += n;
        dw_sleep_ms(1);
        if (status == DW_OK)
            status = slow_wait(s, key, at, n_bytes, progress, err);
    }
    if (status == DW_OK)
        status = dw_store_put_bytes(s->inner, key, bytes, n_bytes, mode, err);
    s->n_done += status == DW_OK;
    free(bytes);
    return status;
}

static inline dw_store *slow_open(slow_store *s)
{
    return pass_open(&(dw_store_driver){.name = "slow", .put = slow_put}, s);
}

/* Waits until N slow objects have begun. */
static inline void slow_wait_begun(slow_store *s, unsigned n)
{
    for (unsigned ms = 0; s->n_begun < n && ms < SLOW_LIMIT; ms++)
        dw_sleep_ms(1);
    assert_true(s->n_begun >= n);
}

#endif
