/* A store whose commits can arrive late. */
#ifndef DW_TEST_LATE_STORE_H
#define DW_TEST_LATE_STORE_H

#include "base/error.h"
#include "unit/pass_store.h"

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

static inline dw_store *late_open(late_store *s)
{
    return pass_open(&(dw_store_driver){.name = "late", .put = late_put}, s);
}

#endif
