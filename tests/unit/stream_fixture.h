/* A stream in memory, made by a publisher, with a copy of the weights at every version.
 */
#ifndef DW_TEST_STREAM_FIXTURE_H
#define DW_TEST_STREAM_FIXTURE_H

#include <limits.h>

#include "unit/suite.h"

#include "deltawire/follow.h"
#include "deltawire/publish.h"
#include "store/store.h"
#include "stream/stream.h"
#include "unit/random_model.h"

#ifndef FIXTURE_VERSIONS
#define FIXTURE_VERSIONS 64
#define FIXTURE_ROWS     60
#endif

typedef struct fixture {
    char url[64];
    dw_store *store;
    dw_publisher *publisher;
    model live;
    model at[FIXTURE_VERSIONS]; /* [n] */
    uint64_t n;
    dw_error err;
} fixture;

#define assert_fine(fix, call)                                                           \
    do {                                                                                 \
        dw_status status_ = (call);                                                      \
        if (status_ != DW_OK)                                                            \
            print_error("%s: %s: %s\n", dw_status_name(status_), (fix)->err.where,       \
                        (fix)->err.text);                                                \
        assert_int_equal(status_, DW_OK);                                                \
    } while (0)

static inline model fixture_model(void)
{
    model m = model_new(4);
    model_set(&m, 0, "layer.weight", DW_BF16, 2, (const uint64_t[]){FIXTURE_ROWS, 70}, 0);
    model_set(&m, 1, "bias", DW_F32, 1, (const uint64_t[]){500}, 0);
    model_set(&m, 2, "count", DW_U8, 3, (const uint64_t[]){3, 5, 7}, 0);
    model_set(&m, 3, "empty", DW_F16, 2, (const uint64_t[]){0, 5}, 0);
    model_fill(&m);
    return m;
}

/* Opens the publisher, which makes version 0. The store's name must be new. */
static inline void fixture_open(fixture *x, const char *url,
                                const dw_publish_options *options)
{
    *x = (fixture){0};
    snprintf(x->url, sizeof x->url, "%s", url);
    assert_fine(x, dw_store_open(&x->store, url, NULL, &x->err));
    x->live = fixture_model();
    dw_publish_options plain;
    dw_publish_options_init(&plain);
    plain.fold_every = 0;
    plain.anchor_factor = 0;
    assert_fine(x, dw_publisher_open(&x->publisher, x->store, x->live.tensors, x->live.n,
                                     options ? options : &plain, &x->err));
    x->at[x->n++] = model_copy(&x->live, false);
}

static inline void fixture_close(fixture *x)
{
    dw_publisher_close(x->publisher);
    for (uint64_t v = 0; v < x->n; v++)
        model_free(&x->at[v]);
    model_free(&x->live);
    dw_store_close(x->store);
    *x = (fixture){0};
}

static inline void fixture_publish(fixture *x)
{
    uint64_t ticket;
    dw_publish_report report;
    model_change(&x->live, 30);
    assert_fine(x, dw_publisher_publish(x->publisher, &ticket, NULL, &x->err));
    assert_fine(
        x, dw_publisher_wait(x->publisher, ticket, UINT_MAX, NULL, &report, &x->err));
    assert_fine(x, dw_publisher_drain(x->publisher, &x->err));
    assert_int_equal(report.version, x->n);
    x->at[x->n++] = model_copy(&x->live, false);
}

/* N versions above 0; anchors each ANCHOR_EVERY (0: none), folds over FOLD. All stay. */
static inline void fixture_make(fixture *x, const char *url, unsigned n_versions,
                                unsigned anchor_every, unsigned fold)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = fold;
    options.anchor_every = anchor_every;
    options.anchor_factor = 0;
    options.spool_dir = "/tmp";
    options.keep_shortcuts = true;
    fixture_open(x, url, &options);
    for (unsigned v = 1; v <= n_versions; v++)
        fixture_publish(x);
}

/* ---- following ---- */

static inline dw_status fixture_pull(fixture *x, dw_store *store, uint64_t version,
                                     dw_follow_report *report)
{
    model memory = fixture_model();
    for (size_t i = 0; i < memory.n; i++)
        memset(memory.tensors[i].data, 0, memory.tensors[i].n_bytes);
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = memory.tensors;
    options.n_tensors = memory.n;
    options.n_threads = 1;
    dw_follower *f = NULL;
    dw_status status = dw_follower_open(&f, store, &options, &x->err);
    if (status == DW_OK)
        status = dw_follower_sync(f, version, NULL, report, &x->err);
    if (status == DW_OK)
        assert_true(model_equal(&memory, &x->at[version]));
    dw_follower_close(f);
    model_free(&memory);
    return status;
}

/* ---- the store's contents ---- */

static inline void fixture_get(fixture *x, const char *key, dw_writer *out)
{
    *out = (dw_writer){0};
    assert_fine(x, dw_store_get_all(x->store, key, DW_RECORD_BYTES, out, &x->err));
}

static inline void fixture_put(fixture *x, const char *key, const void *bytes, size_t n)
{
    assert_fine(x, dw_store_put_bytes(x->store, key, bytes, n, DW_PUT_REPLACE, &x->err));
}

static inline bool fixture_has(fixture *x, const char *key)
{
    return dw_store_stat(x->store, key, NULL, NULL, &x->err) == DW_OK;
}

static inline dw_status count_entry(void *context, const dw_store_entry *entry,
                                    dw_error *err)
{
    (void)entry;
    (void)err;
    ++*(size_t *)context;
    return DW_OK;
}

static inline size_t fixture_count(fixture *x, dw_store *store, const char *prefix)
{
    size_t n = 0;
    assert_fine(x, dw_store_list(store, prefix, NULL, count_entry, &n, &x->err));
    return n;
}

/* The first object of a version's commit. */
static inline void fixture_object(fixture *x, uint64_t version, char key[DW_KEY_TEXT])
{
    dw_stream *s;
    dw_commit_record c;
    assert_fine(x, dw_stream_open(&s, x->store, NULL, &x->err));
    assert_fine(x, dw_stream_read_commit(s, version, &c, &x->err));
    assert_true(c.objects.n > 0);
    memcpy(key, c.objects.items[0].key, DW_KEY_TEXT);
    dw_commit_record_release(&c);
    dw_stream_close(s);
}

static inline void fixture_list_follower(fixture *x, const char *id, uint64_t version)
{
    dw_follower_record r = {.version = version,
                            .host = "here",
                            .status = "following",
                            .message = "",
                            .time = "2026-11-15T05:20:59.123Z"};
    snprintf(r.stream, sizeof r.stream, "%s", dw_publisher_stream_id(x->publisher));
    snprintf(r.id, sizeof r.id, "%s", id);
    char key[DW_KEY_TEXT];
    dw_key_follower(key, id);
    dw_writer bytes = {0};
    assert_fine(x, dw_follower_record_write(&bytes, &r, &x->err));
    fixture_put(x, key, bytes.bytes, bytes.n_bytes);
    dw_writer_release(&bytes);
}

/* Copies all of FROM to a new store. */
typedef struct fixture_clone_walk {
    dw_store *from;
    dw_store *to;
} fixture_clone_walk;

static inline dw_status clone_entry(void *context, const dw_store_entry *entry,
                                    dw_error *err)
{
    fixture_clone_walk *w = context;
    dw_writer bytes = {0};
    dw_status status = dw_store_get_all(w->from, entry->key, 1u << 30, &bytes, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(w->to, entry->key, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_REPLACE, err);
    dw_writer_release(&bytes);
    return status;
}

static inline dw_store *fixture_clone(fixture *x)
{
    static unsigned n;
    char url[80];
    snprintf(url, sizeof url, "mem:clone-%u", n++);
    fixture_clone_walk w = {.from = x->store};
    assert_fine(x, dw_store_open(&w.to, url, NULL, &x->err));
    assert_fine(x, dw_store_list(x->store, "", NULL, clone_entry, &w, &x->err));
    return w.to;
}

static inline void fixture_verify(fixture *x, dw_store *store, dw_verify_report *report)
{
    dw_stream *s;
    assert_fine(x, dw_stream_open(&s, store, NULL, &x->err));
    assert_fine(x, dw_stream_verify(s, NULL, NULL, NULL, report, &x->err));
    dw_stream_close(s);
}

#endif
