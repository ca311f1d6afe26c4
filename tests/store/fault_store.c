/* A fault that a call cannot have (half of a stat) has no effect. */
#include "store/fault_store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"

typedef struct fault_store {
    dw_store *inner;
    store_fault_plan plan;
    atomic_ullong n_calls;

    pthread_mutex_t lock; /* guards what follows */
    char **recent;        /* keys put since the last list that was not stale */
    size_t n_recent, n_room;
} fault_store;

/* ---- objects that a stale list leaves out ------------------------------------------ */

static bool is_recent(fault_store *f, const char *key)
{
    bool found = false;
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->n_recent && !found; i++)
        found = strcmp(f->recent[i], key) == 0;
    pthread_mutex_unlock(&f->lock);
    return found;
}

static dw_status add_recent(fault_store *f, const char *key, dw_error *err)
{
    if (is_recent(f, key))
        return DW_OK;
    dw_status status = DW_OK;
    pthread_mutex_lock(&f->lock);
    char *copy = dw_copy_string(key);
    if (copy &&
        dw_grow_array((void **)&f->recent, &f->n_room, f->n_recent, sizeof(char *))) {
        f->recent[f->n_recent++] = copy;
    } else {
        dw_free(copy);
        status = dw_fail_memory(err, dw_store_url(f->inner));
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

static void forget_recent(fault_store *f)
{
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->n_recent; i++)
        dw_free(f->recent[i]);
    f->n_recent = 0;
    pthread_mutex_unlock(&f->lock);
}

/* ---- faults that every call can have -------------------------------------------- */

static dw_status report(const fault_store *f, dw_status code, const char *fault,
                        const char *key, dw_error *err)
{
    char where[DW_STORE_WHERE];
    return dw_fail(err, code, dw_store_where(f->inner, key, where, sizeof where),
                   "fault on purpose: %s", fault);
}

/* Asks the plan. A status other than DW_OK ends the call. */
static dw_status begin(fault_store *f, const char *operation, const char *key,
                       store_fault *kind, uint64_t *n, dw_error *err)
{
    *n = atomic_fetch_add(&f->n_calls, 1);
    *kind = f->plan.choose ? f->plan.choose(f->plan.context, *n, operation, key)
                           : STORE_FAULT_NONE;
    if (*kind == STORE_FAULT_FAIL)
        return report(f, DW_UNAVAILABLE, "the store cannot be reached", key, err);
    if (*kind == STORE_FAULT_DENY)
        return report(f, DW_DENIED, "access is denied", key, err);
    if (*kind == STORE_FAULT_DELAY)
        dw_sleep_ms(f->plan.delay_ms);
    return DW_OK;
}

static dw_status finish(const fault_store *f, store_fault kind, dw_status status,
                        const char *key, dw_error *err)
{
    return kind == STORE_FAULT_LOST
               ? report(f, DW_UNAVAILABLE, "the reply was lost", key, err)
               : status;
}

static dw_status find_nothing(const fault_store *f, const char *key, dw_error *err)
{
    return report(f, DW_NOT_FOUND, "the object is not visible yet", key, err);
}

/* A position that depends only on the number of the call, so that runs repeat. */
static uint64_t place_of_fault(uint64_t n, uint64_t n_bytes)
{
    return (n + 1) * 0x9e3779b97f4a7c15u % n_bytes;
}

/* ---- the calls --------------------------------------------------------------------- */

static dw_status fault_get(void *self, const char *key, uint64_t offset, void *into,
                           size_t n_bytes, size_t *n_read, const dw_progress *progress,
                           dw_error *err)
{
    fault_store *f = self;
    store_fault kind;
    uint64_t n;
    dw_status status = begin(f, "get", key, &kind, &n, err);
    if (status != DW_OK)
        return status;
    if (kind == STORE_FAULT_STALE && is_recent(f, key))
        return find_nothing(f, key, err);
    status = dw_store_get(f->inner, key, offset, into, n_bytes, n_read, progress, err);
    if (status == DW_OK && kind == STORE_FAULT_SHORT)
        *n_read /= 2;
    if (status == DW_OK && kind == STORE_FAULT_CORRUPT && *n_read > 0)
        ((uint8_t *)into)[place_of_fault(n, *n_read)] ^= (uint8_t)(1u << n % 8);
    return finish(f, kind, status, key, err);
}

/* A source with one bit flipped. */
typedef struct flipped {
    const dw_source *source;
    uint64_t at;
    uint8_t mask;
} flipped;

static dw_status read_flipped(void *context, uint64_t offset, void *into, size_t n_bytes,
                              dw_error *err)
{
    const flipped *flip = context;
    dw_status status = dw_source_read(flip->source, offset, into, n_bytes, err);
    if (status == DW_OK && flip->at >= offset && flip->at - offset < n_bytes)
        ((uint8_t *)into)[flip->at - offset] ^= flip->mask;
    return status;
}

static dw_status fault_put(void *self, const char *key, const dw_source *source,
                           dw_put_mode mode, const dw_progress *progress, dw_error *err)
{
    fault_store *f = self;
    store_fault kind;
    uint64_t n;
    dw_status status = begin(f, "put", key, &kind, &n, err);
    if (status != DW_OK)
        return status;
    if (kind == STORE_FAULT_SHORT)
        return report(f, DW_UNAVAILABLE, "the connection broke half way", key, err);
    if (kind == STORE_FAULT_LIE)
        return DW_OK;
    flipped flip = {.source = source, .mask = (uint8_t)(1u << n % 8)};
    dw_source changed = {source->n_bytes, NULL, read_flipped, &flip};
    bool flips = kind == STORE_FAULT_CORRUPT && source->n_bytes > 0;
    if (flips)
        flip.at = place_of_fault(n, source->n_bytes);
    status = dw_store_put(f->inner, key, flips ? &changed : source, mode, progress, err);
    if (status == DW_OK)
        status = add_recent(f, key, err);
    return finish(f, kind, status, key, err);
}

static dw_status fault_stat(void *self, const char *key, uint64_t *n_bytes,
                            int64_t *modified_ms, dw_error *err)
{
    fault_store *f = self;
    store_fault kind;
    uint64_t n;
    dw_status status = begin(f, "stat", key, &kind, &n, err);
    if (status != DW_OK)
        return status;
    if (kind == STORE_FAULT_STALE && is_recent(f, key))
        return find_nothing(f, key, err);
    status = dw_store_stat(f->inner, key, n_bytes, modified_ms, err);
    return finish(f, kind, status, key, err);
}

static dw_status fault_remove(void *self, const char *key, dw_error *err)
{
    fault_store *f = self;
    store_fault kind;
    uint64_t n;
    dw_status status = begin(f, "remove", key, &kind, &n, err);
    if (status != DW_OK)
        return status;
    status = dw_store_remove(f->inner, key, err);
    return finish(f, kind, status, key, err);
}

/* A stale list leaves out the objects put through this store since the last list. If
 * there are none, because others put them, it leaves out those of the latest time. */
typedef struct stale_list {
    fault_store *store;
    dw_list_fn fn;
    void *context;
    bool any_recent;
    int64_t latest_ms;
} stale_list;

static dw_status look_for_newest(void *context, const dw_store_entry *entry,
                                 dw_error *err)
{
    (void)err;
    stale_list *s = context;
    s->any_recent = s->any_recent || is_recent(s->store, entry->key);
    if (entry->modified_ms > s->latest_ms)
        s->latest_ms = entry->modified_ms;
    return DW_OK;
}

static dw_status pass_older(void *context, const dw_store_entry *entry, dw_error *err)
{
    stale_list *s = context;
    bool is_newest = s->any_recent ? is_recent(s->store, entry->key)
                                   : entry->modified_ms >= s->latest_ms;
    return is_newest ? DW_OK : s->fn(s->context, entry, err);
}

static dw_status fault_list(void *self, const char *prefix, const char *after,
                            dw_list_fn fn, void *context, dw_error *err)
{
    fault_store *f = self;
    store_fault kind;
    uint64_t n;
    dw_status status = begin(f, "list", prefix, &kind, &n, err);
    if (status != DW_OK)
        return status;
    if (kind == STORE_FAULT_STALE) {
        stale_list s = {.store = f, .fn = fn, .context = context};
        status = dw_store_list(f->inner, prefix, after, look_for_newest, &s, err);
        return status == DW_OK
                   ? dw_store_list(f->inner, prefix, after, pass_older, &s, err)
                   : status;
    }
    forget_recent(f);
    status = dw_store_list(f->inner, prefix, after, fn, context, err);
    return finish(f, kind, status, prefix, err);
}

static dw_status fault_conditional(void *self, bool *conditional, dw_error *err)
{
    return dw_store_conditional(((fault_store *)self)->inner, conditional, err);
}

static dw_status fault_require(void *self, const char *key, dw_error *err)
{
    return dw_store_require(((fault_store *)self)->inner, key, err);
}

static void fault_counts(const void *self, dw_store_counts *out)
{
    dw_store_get_counts(((const fault_store *)self)->inner, out);
}

static void fault_close(void *self)
{
    fault_store *f = self;
    forget_recent(f);
    pthread_mutex_destroy(&f->lock);
    dw_free(f->recent);
    dw_free(f);
}

dw_status fault_store_new(dw_store **out, dw_store *inner, const store_fault_plan *plan,
                          dw_error *err)
{
    static const dw_store_driver driver = {
        .struct_bytes = sizeof(dw_store_driver),
        .name = "fault",
        .get = fault_get,
        .put = fault_put,
        .stat = fault_stat,
        .list = fault_list,
        .remove = fault_remove,
        .conditional = fault_conditional,
        .counts = fault_counts,
        .close = fault_close,
        .require = fault_require,
    };
    *out = NULL;
    if (!inner || !plan)
        return dw_fail(err, DW_INVALID, NULL,
                       "a store that fails needs another and a plan");
    fault_store *f = dw_alloc_zeroed(1, sizeof *f);
    if (!f)
        return dw_fail_memory(err, dw_store_url(inner));
    f->inner = inner;
    f->plan = *plan;
    pthread_mutex_init(&f->lock, NULL);
    dw_status status = dw_store_new(out, dw_store_url(inner), &driver, f, err);
    if (status != DW_OK)
        fault_close(f);
    return status;
}
