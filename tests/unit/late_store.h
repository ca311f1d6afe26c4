/* A store whose commits can arrive late. */
#ifndef DW_TEST_LATE_STORE_H
#define DW_TEST_LATE_STORE_H

#include "base/error.h"
#include "unit/stream_kit.h"

/* A store that can hold commits back until a test releases them. */
typedef struct late_store {
    dw_store *inner;
    _Atomic bool hold;          /* commits from now on */
    _Atomic bool before_others; /* a held commit arrives just before the next one */
    char key[256];
    uint8_t *bytes;
    size_t n_bytes;
} late_store;

static inline void late_arrive(late_store *s)
{
    dw_error err = {0};
    dw_status status =
        dw_store_put_bytes(s->inner, s->key, s->bytes, s->n_bytes, DW_PUT_CREATE, &err);
    assert_true(status == DW_OK || status == DW_CONFLICT);
    free(s->bytes);
    s->bytes = NULL;
}

static inline dw_status late_get(void *self, const char *key, uint64_t offset, void *into,
                                 size_t n, size_t *n_read, const dw_progress *progress,
                                 dw_error *err)
{
    late_store *s = self;
    return dw_store_get(s->inner, key, offset, into, n, n_read, progress, err);
}

static inline dw_status late_put(void *self, const char *key, const dw_source *source,
                                 dw_put_mode mode, const dw_progress *progress,
                                 dw_error *err)
{
    late_store *s = self;
    if (s->before_others && s->bytes && strncmp(key, "commits/", 8) == 0)
        late_arrive(s);
    if (!s->hold || strncmp(key, "commits/", 8) != 0)
        return dw_store_put(s->inner, key, source, mode, progress, err);
    if (!s->bytes) {
        snprintf(s->key, sizeof s->key, "%s", key);
        s->n_bytes = (size_t)source->n_bytes;
        s->bytes = memcpy(malloc(s->n_bytes), source->bytes, s->n_bytes);
    }
    return dw_fail(err, DW_UNAVAILABLE, key, "held back");
}

static inline dw_status late_stat(void *self, const char *key, uint64_t *n, int64_t *time,
                                  dw_error *err)
{
    return dw_store_stat(((late_store *)self)->inner, key, n, time, err);
}

static inline dw_status late_list(void *self, const char *prefix, const char *after,
                                  dw_list_fn fn, void *context, dw_error *err)
{
    return dw_store_list(((late_store *)self)->inner, prefix, after, fn, context, err);
}

static inline dw_status late_remove(void *self, const char *key, dw_error *err)
{
    return dw_store_remove(((late_store *)self)->inner, key, err);
}

static inline dw_store *late_open(late_store *s)
{
    static const dw_store_driver driver = {.struct_bytes = sizeof driver,
                                           .name = "late",
                                           .get = late_get,
                                           .put = late_put,
                                           .stat = late_stat,
                                           .list = late_list,
                                           .remove = late_remove};
    dw_error err = {0};
    dw_store *store;
    assert_ok(dw_store_new(&store, dw_store_url(s->inner), &driver, s, &err), &err);
    return store;
}

#endif
