#include "store/memory.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "store/store.h"

#define PIECE ((size_t)1 << 20) /* bytes of a put between two progress reports */

typedef struct object {
    char *key;
    uint8_t *bytes;
    size_t n_bytes;
    int64_t modified_ms;
} object;

typedef struct mem_store {
    char *url;
    pthread_mutex_t lock; /* guards the objects; no callback runs under it */
    object *objects;      /* in ascending order of keys */
    size_t n_objects, n_room;

    size_t n_handles; /* this and `next` are guarded by all_lock */
    struct mem_store *next;
} mem_store;

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static mem_store *all_stores;

/* Index of the first object whose key is not less than KEY. Call with the lock held. */
static size_t find(const mem_store *s, const char *key, bool *found)
{
    size_t low = 0, high = s->n_objects;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(s->objects[middle].key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low < s->n_objects && strcmp(s->objects[low].key, key) == 0;
    return low;
}

static void object_release(object *o)
{
    dw_free(o->key);
    dw_free(o->bytes);
}

static dw_status fail(const mem_store *s, dw_status code, const char *key,
                      const char *fault, dw_error *err)
{
    return dw_fail(err, code, s->url, "'%s' %s", key, fault);
}

static dw_status mem_get(void *self, const char *key, uint64_t offset, void *into,
                         size_t n_bytes, size_t *n_read, const dw_progress *progress,
                         dw_error *err)
{
    mem_store *s = self;
    bool found;
    size_t n = 0;
    pthread_mutex_lock(&s->lock);
    size_t i = find(s, key, &found);
    if (found && offset < s->objects[i].n_bytes) {
        n = s->objects[i].n_bytes - (size_t)offset;
        n = n < n_bytes ? n : n_bytes;
        if (n > 0)
            memcpy(into, s->objects[i].bytes + offset, n);
    }
    pthread_mutex_unlock(&s->lock);
    if (!found)
        return fail(s, DW_NOT_FOUND, key, "is not there", err);
    dw_status status = dw_store_progress(progress, n, n_bytes, s->url, err);
    *n_read = status == DW_OK ? n : 0;
    return status;
}

static dw_status copy_source(const mem_store *s, object *made, const char *key,
                             const dw_source *source, const dw_progress *progress,
                             dw_error *err)
{
    size_t n_bytes = (size_t)source->n_bytes;
    made->key = dw_copy_string(key);
    made->bytes = source->n_bytes <= SIZE_MAX ? dw_alloc(n_bytes) : NULL;
    made->n_bytes = n_bytes;
    if (!made->key || !made->bytes)
        return dw_fail_memory(err, s->url);
    for (size_t at = 0;;) {
        dw_status status = dw_store_progress(progress, at, n_bytes, s->url, err);
        if (status != DW_OK || at == n_bytes)
            return status;
        size_t n = n_bytes - at < PIECE ? n_bytes - at : PIECE;
        status = dw_source_read(source, at, made->bytes + at, n, err);
        if (status != DW_OK)
            return status;
        at += n;
    }
}

static dw_status mem_put(void *self, const char *key, const dw_source *source,
                         dw_put_mode mode, const dw_progress *progress, dw_error *err)
{
    mem_store *s = self;
    object made = {0};
    dw_status status = copy_source(s, &made, key, source, progress, err);
    if (status != DW_OK) {
        object_release(&made);
        return status;
    }
    pthread_mutex_lock(&s->lock);
    bool found;
    size_t i = find(s, key, &found);
    made.modified_ms = dw_wall_clock_ms();
    if (found && mode == DW_PUT_CREATE) {
        status = fail(s, DW_CONFLICT, key, "is there already", err);
    } else if (found) {
        object old = s->objects[i];
        s->objects[i] = made;
        made = old;
    } else if (!dw_grow_array((void **)&s->objects, &s->n_room, s->n_objects,
                              sizeof(object))) {
        status = dw_fail_memory(err, s->url);
    } else {
        memmove(s->objects + i + 1, s->objects + i, (s->n_objects - i) * sizeof(object));
        s->objects[i] = made;
        s->n_objects++;
        made = (object){0};
    }
    pthread_mutex_unlock(&s->lock);
    object_release(&made);
    return status;
}

static dw_status mem_stat(void *self, const char *key, uint64_t *n_bytes,
                          int64_t *modified_ms, dw_error *err)
{
    mem_store *s = self;
    bool found;
    pthread_mutex_lock(&s->lock);
    size_t i = find(s, key, &found);
    if (found) {
        *n_bytes = s->objects[i].n_bytes;
        *modified_ms = s->objects[i].modified_ms;
    }
    pthread_mutex_unlock(&s->lock);
    return found ? DW_OK : fail(s, DW_NOT_FOUND, key, "is not there", err);
}

static dw_status mem_list(void *self, const char *prefix, const char *after,
                          dw_list_fn fn, void *context, dw_error *err)
{
    mem_store *s = self;
    char key[DW_MAX_KEY + 1] = "";
    /* start at the greater of both; AFTER itself is left out */
    if (after && strcmp(after, prefix) >= 0)
        strcpy(key, after);
    else
        strcpy(key, prefix);
    for (bool is_first = true;; is_first = false) {
        dw_store_entry entry = {.key = key};
        bool found;
        pthread_mutex_lock(&s->lock);
        size_t i = find(s, key, &found);
        if (found && !(is_first && dw_store_listed(key, prefix, after)))
            i++;
        bool is_end =
            i == s->n_objects || !dw_store_listed(s->objects[i].key, prefix, after);
        if (!is_end) {
            strcpy(key, s->objects[i].key);
            entry.n_bytes = s->objects[i].n_bytes;
            entry.modified_ms = s->objects[i].modified_ms;
        }
        pthread_mutex_unlock(&s->lock);
        if (is_end)
            return DW_OK;
        dw_status status = fn(context, &entry, err);
        if (status != DW_OK)
            return status;
    }
}

static dw_status mem_remove(void *self, const char *key, dw_error *err)
{
    (void)err;
    mem_store *s = self;
    bool found;
    object old = {0};
    pthread_mutex_lock(&s->lock);
    size_t i = find(s, key, &found);
    if (found) {
        old = s->objects[i];
        s->n_objects--;
        memmove(s->objects + i, s->objects + i + 1, (s->n_objects - i) * sizeof(object));
    }
    pthread_mutex_unlock(&s->lock);
    object_release(&old);
    return DW_OK;
}

static void mem_close(void *self)
{
    mem_store *s = self;
    pthread_mutex_lock(&all_lock);
    bool is_last = --s->n_handles == 0;
    for (mem_store **link = &all_stores; is_last && *link; link = &(*link)->next)
        if (*link == s) {
            *link = s->next;
            break;
        }
    pthread_mutex_unlock(&all_lock);
    if (!is_last)
        return;
    for (size_t i = 0; i < s->n_objects; i++)
        object_release(&s->objects[i]);
    pthread_mutex_destroy(&s->lock);
    dw_free(s->objects);
    dw_free(s->url);
    dw_free(s);
}

/* The store that URL names, with its handle count increased; NULL if out of memory. */
static mem_store *find_or_make(const char *url)
{
    pthread_mutex_lock(&all_lock);
    mem_store *s = all_stores;
    while (s && strcmp(s->url, url) != 0)
        s = s->next;
    if (s) {
        s->n_handles++;
    } else if ((s = dw_alloc_zeroed(1, sizeof *s)) != NULL) {
        s->url = dw_copy_string(url);
        if (!s->url) {
            dw_free(s);
            s = NULL;
        } else {
            pthread_mutex_init(&s->lock, NULL);
            s->n_handles = 1;
            s->next = all_stores;
            all_stores = s;
        }
    }
    pthread_mutex_unlock(&all_lock);
    return s;
}

dw_status dw_mem_store_open(dw_store **out, const char *url, dw_error *err)
{
    static const dw_store_driver driver = {
        .struct_bytes = sizeof(dw_store_driver),
        .name = "mem",
        .get = mem_get,
        .put = mem_put,
        .stat = mem_stat,
        .list = mem_list,
        .remove = mem_remove,
        .close = mem_close,
    };
    if (!dw_store_key_valid(url + strlen("mem:")))
        return dw_fail(err, DW_INVALID, url,
                       "a store in memory is mem:NAME, of letters, digits and -_./=+@");
    mem_store *s = find_or_make(url);
    if (!s)
        return dw_fail_memory(err, url);
    dw_status status = dw_store_new(out, url, &driver, s, err);
    if (status != DW_OK)
        mem_close(s);
    return status;
}
