/* The calls of a test's store that only pass on to another store. Such a store is a
 * struct whose first member is `dw_store *inner`. */
#ifndef DW_TEST_PASS_STORE_H
#define DW_TEST_PASS_STORE_H

#include "unit/stream_kit.h"

static inline dw_store *pass_inner(void *self)
{
    return *(dw_store **)self;
}

static inline dw_status pass_get(void *self, const char *key, uint64_t offset, void *into,
                                 size_t n, size_t *n_read, const dw_progress *progress,
                                 dw_error *err)
{
    return dw_store_get(pass_inner(self), key, offset, into, n, n_read, progress, err);
}

static inline dw_status pass_put(void *self, const char *key, const dw_source *source,
                                 dw_put_mode mode, const dw_progress *progress,
                                 dw_error *err)
{
    return dw_store_put(pass_inner(self), key, source, mode, progress, err);
}

static inline dw_status pass_stat(void *self, const char *key, uint64_t *n, int64_t *time,
                                  dw_error *err)
{
    return dw_store_stat(pass_inner(self), key, n, time, err);
}

static inline dw_status pass_list(void *self, const char *prefix, const char *after,
                                  dw_list_fn fn, void *context, dw_error *err)
{
    return dw_store_list(pass_inner(self), prefix, after, fn, context, err);
}

static inline dw_status pass_remove(void *self, const char *key, dw_error *err)
{
    return dw_store_remove(pass_inner(self), key, err);
}

/* Opens it under the URL of the inner store. Calls that OWN does not have pass on. */
static inline dw_store *pass_open(const dw_store_driver *own, void *self)
{
    dw_error err = {0};
    dw_store *store;
    const dw_store_driver driver = {.struct_bytes = sizeof driver,
                                    .name = own->name,
                                    .get = own->get ? own->get : pass_get,
                                    .put = own->put ? own->put : pass_put,
                                    .stat = own->stat ? own->stat : pass_stat,
                                    .list = own->list ? own->list : pass_list,
                                    .remove = own->remove ? own->remove : pass_remove};
    assert_ok(dw_store_new(&store, dw_store_url(pass_inner(self)), &driver, self, &err),
              &err);
    return store;
}

#endif
