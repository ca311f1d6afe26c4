/* A store that counts the requests that a bucket would get. */
#ifndef DW_TEST_COUNTING_STORE_H
#define DW_TEST_COUNTING_STORE_H

#include "unit/pass_store.h"

#define LIST_PAGE 1000 /* keys in one page of a list */

typedef struct counting_store {
    dw_store *inner;
    atomic_uint n_gets, n_stats, n_pages, n_puts, n_removes;
} counting_store;

/* The number of reading requests. */
static inline unsigned counted_reads(const counting_store *s)
{
    return s->n_gets + s->n_stats + s->n_pages;
}

static inline void counting_reset(counting_store *s)
{
    s->n_gets = s->n_stats = s->n_pages = s->n_puts = s->n_removes = 0;
}

static inline dw_status counting_get(void *self, const char *key, uint64_t offset,
                                     void *into, size_t n, size_t *n_read,
                                     const dw_progress *progress, dw_error *err)
{
    counting_store *s = self;
    s->n_gets++;
    return dw_store_get(s->inner, key, offset, into, n, n_read, progress, err);
}

static inline dw_status counting_put(void *self, const char *key, const dw_source *source,
                                     dw_put_mode mode, const dw_progress *progress,
                                     dw_error *err)
{
    counting_store *s = self;
    s->n_puts++;
    return dw_store_put(s->inner, key, source, mode, progress, err);
}

static inline dw_status counting_stat(void *self, const char *key, uint64_t *n,
                                      int64_t *time, dw_error *err)
{
    counting_store *s = self;
    s->n_stats++;
    return dw_store_stat(s->inner, key, n, time, err);
}

typedef struct counting_list_walk {
    counting_store *store;
    dw_list_fn fn;
    void *context;
    unsigned n;
} counting_list_walk;

static inline dw_status counting_visit(void *context, const dw_store_entry *entry,
                                       dw_error *err)
{
    counting_list_walk *w = context;
    if (w->n > 0 && w->n % LIST_PAGE == 0)
        w->store->n_pages++;
    w->n++;
    return w->fn(w->context, entry, err);
}

static inline dw_status counting_list(void *self, const char *prefix, const char *after,
                                      dw_list_fn fn, void *context, dw_error *err)
{
    counting_store *s = self;
    counting_list_walk w = {s, fn, context, 0};
    s->n_pages++;
    return dw_store_list(s->inner, prefix, after, counting_visit, &w, err);
}

static inline dw_status counting_remove(void *self, const char *key, dw_error *err)
{
    counting_store *s = self;
    s->n_removes++;
    return dw_store_remove(s->inner, key, err);
}

static inline dw_store *counting_open(counting_store *s)
{
    static const dw_store_driver driver = {.struct_bytes = sizeof driver,
                                           .name = "counting",
                                           .get = counting_get,
                                           .put = counting_put,
                                           .stat = counting_stat,
                                           .list = counting_list,
                                           .remove = counting_remove};
    return pass_open(&driver, s);
}

#endif
