/* A small model with a copy of every published state, and helpers to publish, follow and
 * compare. The step in a commit names the copy that the version must equal. */
#ifndef DW_TEST_STREAM_KIT_H
#define DW_TEST_STREAM_KIT_H

#include <limits.h>
#include <stdlib.h>

#include "store/fault_store.h"
#include "deltawire/follow.h"
#include "deltawire/publish.h"
#include "store/store.h"
#include "unit/random_model.h"

#define KIT_TENSORS 6
#define KIT_COPIES  512

typedef struct kit {
    dw_tensor tensors[KIT_TENSORS]; /* not in the order of their names */
    uint8_t *bytes;
    size_t n_bytes;
    uint8_t *copies[KIT_COPIES]; /* by attempt; 0 is version 0 */
    size_t n_copies;
    uint64_t reported[KIT_COPIES]; /* the version that a publish reported, + 1 */
} kit;

static inline void kit_make(kit *k)
{
    static const uint64_t matrix[] = {60, 33}, vector[] = {257}, cube[] = {3, 5, 7},
                          packed[] = {64}, complex[] = {31}, none[] = {0, 4};
    const dw_tensor shapes[KIT_TENSORS] = {
        {"m.weight", DW_BF16, 2, matrix, 0, NULL, 0, NULL},
        {"b.bias", DW_F32, 1, vector, 0, NULL, 0, NULL},
        {"z.count", DW_U8, 3, cube, 0, NULL, 0, NULL},
        {"q.packed", DW_F4, 1, packed, 0, NULL, 0, NULL},
        {"a.complex", DW_C64, 1, complex, 0, NULL, 0, NULL},
        {"n.empty", DW_F16, 2, none, 0, NULL, 0, NULL},
    };
    *k = (kit){0};
    size_t offsets[KIT_TENSORS];
    for (size_t i = 0; i < KIT_TENSORS; i++) {
        k->tensors[i] = shapes[i];
        assert_true(dw_shape_size(shapes[i].dtype, shapes[i].n_dims, shapes[i].dims, NULL,
                                  &k->tensors[i].n_bytes));
        offsets[i] = k->n_bytes;
        k->n_bytes += (k->tensors[i].n_bytes + 7) / 8 * 8;
    }
    k->bytes = calloc(1, k->n_bytes);
    for (size_t i = 0; i < KIT_TENSORS; i++) {
        dw_element element = dw_dtype_element(shapes[i].dtype);
        k->tensors[i].data = k->bytes + offsets[i];
        fill_weights(k->tensors[i].data, k->tensors[i].n_bytes / element.width, element);
    }
    k->copies[k->n_copies++] = memcpy(malloc(k->n_bytes), k->bytes, k->n_bytes);
}

static inline void kit_free(kit *k)
{
    for (size_t i = 0; i < k->n_copies; i++)
        free(k->copies[i]);
    free(k->bytes);
    *k = (kit){0};
}

static inline void kit_step(kit *k, unsigned per_mille)
{
    for (size_t i = 0; i < KIT_TENSORS; i++) {
        dw_element element = dw_dtype_element(k->tensors[i].dtype);
        change_weights(k->tensors[i].data, k->tensors[i].n_bytes / element.width, element,
                       per_mille);
    }
}

/* Copies the weights; returns the copy's number. */
static inline size_t kit_keep(kit *k)
{
    assert_true(k->n_copies < KIT_COPIES);
    k->copies[k->n_copies] = memcpy(malloc(k->n_bytes), k->bytes, k->n_bytes);
    return k->n_copies++;
}

/* Allocates a model like the kit's, with zeros. */
static inline uint8_t *kit_room(const kit *k, dw_tensor out[KIT_TENSORS])
{
    uint8_t *bytes = calloc(1, k->n_bytes);
    for (size_t i = 0; i < KIT_TENSORS; i++) {
        out[i] = k->tensors[i];
        out[i].data = bytes + ((uint8_t *)k->tensors[i].data - k->bytes);
    }
    return bytes;
}

/* ---- statuses ---- */

/* The returned code and the code in the error must be the same. */
static inline void assert_told(dw_status status, const dw_error *err)
{
    if (status != DW_OK && err->code != status)
        print_error("returned %s, reported %s: %s: %s\n", dw_status_name(status),
                    dw_status_name(err->code), err->where, err->text);
    if (status != DW_OK)
        assert_int_equal(err->code, status);
}

static inline void assert_ok(dw_status status, const dw_error *err)
{
    if (status != DW_OK)
        print_error("%s: %s: %s\n", dw_status_name(status), err->where, err->text);
    assert_int_equal(status, DW_OK);
}

static inline void assert_fails(dw_status status, dw_status wanted, const dw_error *err)
{
    if (status != wanted)
        print_error("%s: %s: %s\n", dw_status_name(status), err->where, err->text);
    assert_int_equal(status, wanted);
    assert_told(status, err);
}

/* ---- stores ---- */

/* A new store in memory with a unique name. */
static inline dw_store *kit_mem_store(void)
{
    static unsigned n_stores;
    char url[64];
    dw_error err = {0};
    dw_store *store;
    snprintf(url, sizeof url, "mem:kit-%u", n_stores++);
    assert_ok(dw_store_open(&store, url, NULL, &err), &err);
    return store;
}

typedef struct kit_copying {
    dw_store *from, *to;
} kit_copying;

static inline dw_status kit_copy_object(void *context, const dw_store_entry *entry,
                                        dw_error *err)
{
    const kit_copying *c = context;
    dw_writer bytes = {0};
    dw_status status = dw_store_get_all(c->from, entry->key, 64u << 20, &bytes, err);
    if (status == DW_OK)
        status = dw_store_put_bytes(c->to, entry->key, bytes.bytes, bytes.n_bytes,
                                    DW_PUT_REPLACE, err);
    dw_writer_release(&bytes);
    return status;
}

/* Copies all objects whose keys begin with PREFIX. */
static inline void kit_copy_store(dw_store *from, dw_store *to, const char *prefix)
{
    kit_copying c = {from, to};
    dw_error err = {0};
    assert_ok(dw_store_list(from, prefix, NULL, kit_copy_object, &c, &err), &err);
}

static inline dw_status kit_remove_object(void *context, const dw_store_entry *entry,
                                          dw_error *err)
{
    return dw_store_remove(context, entry->key, err);
}

static inline void kit_remove_all(dw_store *store, const char *prefix)
{
    dw_error err = {0};
    assert_ok(dw_store_list(store, prefix, NULL, kit_remove_object, store, &err), &err);
}

typedef struct kit_finding {
    const char *part;
    char key[512];
    size_t n;
} kit_finding;

static inline dw_status kit_visit(void *context, const dw_store_entry *entry,
                                  dw_error *err)
{
    (void)err;
    kit_finding *f = context;
    if (strstr(entry->key, f->part)) {
        f->n++;
        snprintf(f->key, sizeof f->key, "%s", entry->key);
    }
    return DW_OK;
}

/* Objects below PREFIX with PART in their names; KEY, of 512 bytes or NULL, takes the
 * last. */
static inline size_t kit_find(dw_store *store, const char *prefix, const char *part,
                              char *key)
{
    kit_finding f = {.part = part};
    dw_error err = {0};
    assert_ok(dw_store_list(store, prefix, NULL, kit_visit, &f, &err), &err);
    if (key)
        memcpy(key, f.key, sizeof f.key);
    return f.n;
}

/* Flips a bit in the middle of an object. */
static inline void kit_damage(dw_store *store, const char *key)
{
    dw_error err = {0};
    dw_writer bytes = {0};
    assert_ok(dw_store_get_all(store, key, 64u << 20, &bytes, &err), &err);
    bytes.bytes[bytes.n_bytes / 2] ^= 1;
    assert_ok(
        dw_store_put_bytes(store, key, bytes.bytes, bytes.n_bytes, DW_PUT_REPLACE, &err),
        &err);
    dw_writer_release(&bytes);
}

/* ---- publishing ---- */

/* Publishes the weights as a new attempt and waits for the result. */
static inline dw_status kit_try(kit *k, dw_publisher *p, dw_publish_report *report,
                                dw_error *err)
{
    char step[32];
    size_t attempt = kit_keep(k);
    snprintf(step, sizeof step, "%zu", attempt);
    uint64_t ticket;
    dw_status status = dw_publisher_publish(
        p, &ticket,
        &(dw_publish_note){.struct_bytes = sizeof(dw_publish_note), .step = step}, err);
    if (status == DW_OK)
        status = dw_publisher_wait(p, ticket, UINT_MAX, NULL, report, err);
    if (status == DW_OK)
        k->reported[attempt] = report->version + 1;
    assert_told(status, err);
    return status;
}

/* The same, and it must become version WANTED. */
static inline void kit_publish(kit *k, dw_publisher *p, uint64_t wanted)
{
    dw_error err = {0};
    dw_publish_report report = {0};
    assert_ok(kit_try(k, p, &report, &err), &err);
    assert_int_equal(report.version, wanted);
}

/* Only deltas: no folds, no anchors; one thread. */
static inline dw_publish_options kit_plain_options(const char *spool_dir)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = 0;
    options.anchor_factor = 0;
    options.spool_dir = spool_dir;
    options.n_threads = 1;
    return options;
}

static inline dw_publisher *kit_open(kit *k, dw_store *store,
                                     const dw_publish_options *options)
{
    dw_error err = {0};
    dw_publisher *p;
    assert_ok(dw_publisher_open(&p, store, k->tensors, KIT_TENSORS, options, &err), &err);
    return p;
}

/* ---- comparing ---- */

/* The copy that VERSION must equal, from its commit. */
static inline size_t kit_attempt_of(dw_stream *stream, uint64_t version)
{
    dw_error err = {0};
    dw_version_info info;
    assert_ok(dw_stream_version(stream, version, &info, &err), &err);
    return version == 0 ? 0 : strtoul(info.step, NULL, 10);
}

static inline bool kit_same(const kit *k, const dw_tensor *found, size_t n,
                            const uint8_t *copy)
{
    bool same = n == KIT_TENSORS;
    for (size_t i = 0; same && i < KIT_TENSORS; i++) {
        const dw_tensor *mine = &k->tensors[i], *other = NULL;
        for (size_t t = 0; t < n; t++)
            if (strcmp(found[t].name, mine->name) == 0)
                other = &found[t];
        same = other && memcmp(other->data, copy + ((uint8_t *)mine->data - k->bytes),
                               mine->n_bytes) == 0;
    }
    return same;
}

/* Checks that the weights of F are exactly its version. LOG maps versions to copies. */
static inline void kit_check_follower(const kit *k, dw_follower *f, const size_t *log)
{
    uint64_t at = dw_follower_version(f);
    if (at == DW_NO_VERSION)
        return;
    size_t n;
    const dw_tensor *found = dw_follower_tensors(f, &n);
    if (!kit_same(k, found, n, k->copies[log[at]]))
        print_error("the weights are not version %llu\n", (unsigned long long)at);
    assert_true(kit_same(k, found, n, k->copies[log[at]]));
}

/* Reads the log and finds the copy of each version. No attempt may be two versions, and
 * an attempt with a reported version must be it. Returns the head. */
static inline uint64_t kit_read_log(const kit *k, dw_store *store, size_t log[KIT_COPIES])
{
    dw_error err = {0};
    dw_stream *stream;
    uint64_t head, epoch = 0;
    bool seen[KIT_COPIES] = {false};
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_ok(dw_stream_head(stream, &head, &err), &err);
    assert_true(head < KIT_COPIES);
    for (uint64_t v = 0; v <= head; v++) {
        dw_version_info info;
        assert_ok(dw_stream_version(stream, v, &info, &err), &err);
        assert_true(info.epoch >= epoch);
        epoch = info.epoch;
        log[v] = kit_attempt_of(stream, v);
        assert_true(log[v] < k->n_copies);
        assert_false(seen[log[v]]);
        seen[log[v]] = true;
    }
    for (size_t a = 1; a < k->n_copies; a++)
        if (k->reported[a] > 0) {
            assert_true(k->reported[a] - 1 <= head);
            assert_int_equal(log[k->reported[a] - 1], a);
        }
    dw_stream_close(stream);
    return head;
}

/* Makes a stream with versions up to LAST and with anchors. LOG as in kit_read_log. */
static inline void kit_make_stream(kit *k, dw_store *store, const char *spool_dir,
                                   uint64_t last, unsigned anchor_every, size_t *log)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = spool_dir;
    options.anchor_every = anchor_every;
    options.keep_shortcuts = true; /* every anchor is a way that tests take */
    dw_publisher *p = kit_open(k, store, &options);
    for (uint64_t v = 1; v <= last; v++) {
        kit_step(k, 20);
        kit_publish(k, p, v);
        dw_publisher_drain(p, NULL); /* waits for folds and anchors */
    }
    dw_publisher_close(p);
    kit_read_log(k, store, log);
}

static inline void kit_tell_fault(void *context, const dw_error *fault)
{
    (void)context;
    print_error("%s: %s\n", fault->where, fault->text);
}

/* Checks that all records and objects are good; some may be unnamed. */
static inline void kit_verify(dw_store *store)
{
    dw_error err = {0};
    dw_stream *stream;
    dw_verify_report report;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_ok(dw_stream_verify(stream, kit_tell_fault, NULL, NULL, &report, &err), &err);
    assert_int_equal(report.n_faults, 0);
    dw_stream_close(stream);
}

/* Checks that every version, one by one, and the head from nothing, are as published. */
static inline void kit_check_versions(const kit *k, dw_store *store,
                                      const dw_follow_options *with)
{
    dw_error err = {0};
    size_t log[KIT_COPIES];
    uint64_t head = kit_read_log(k, store, log);
    dw_tensor tensors[KIT_TENSORS];
    dw_follow_options options;
    dw_follow_options_init(&options);
    if (with)
        options = *with;
    options.tensors = tensors;
    options.n_tensors = KIT_TENSORS;
    for (unsigned one_by_one = 0; one_by_one < 2; one_by_one++) {
        uint8_t *bytes = kit_room(k, tensors);
        dw_follower *f;
        assert_ok(dw_follower_open(&f, store, &options, &err), &err);
        for (uint64_t v = one_by_one ? 0 : head; v <= head; v++) {
            assert_ok(dw_follower_sync(f, v, NULL, NULL, &err), &err);
            assert_int_equal(dw_follower_version(f), v);
            kit_check_follower(k, f, log);
        }
        dw_follower_close(f);
        free(bytes);
    }
}

static inline void kit_check_stream(const kit *k, dw_store *store,
                                    const dw_follow_options *with)
{
    kit_check_versions(k, store, with);
    kit_verify(store);
}

/* ---- faults ---- */

/* Calls FIRST to FIRST + N - 1 have the fault. If PART is given, only calls with it in
 * their key count. */
typedef struct kit_faults {
    _Atomic bool on;
    store_fault kind;
    uint64_t first, n;
    const char *operation;   /* or NULL: any */
    const char *part;        /* of the key, or NULL: any */
    _Atomic uint64_t n_seen; /* calls that count */
    bool damaged;            /* a put stored wrong bytes ... */
    bool lost;               /* ... and there is no route around them */
} kit_faults;

/* Objects that cannot be damaged without loss. Hints, shortcuts and epochs are not
 * needed. */
static inline bool kit_is_needed(const char *key)
{
    return strncmp(key, "commits/", 8) == 0 || strcmp(key, "stream.json") == 0 ||
           (strncmp(key, "objects/", 8) == 0 && !strstr(key, "-fold-") &&
            !strstr(key, "-anchor-"));
}

static inline store_fault kit_choose(void *context, uint64_t n, const char *operation,
                                     const char *key)
{
    (void)n;
    kit_faults *f = context;
    if ((f->operation && strcmp(operation, f->operation) != 0) ||
        (f->part && !strstr(key, f->part)))
        return STORE_FAULT_NONE;
    uint64_t i = f->n_seen++;
    if (!f->on || i < f->first || i - f->first >= f->n)
        return STORE_FAULT_NONE;
    if (f->kind == STORE_FAULT_CORRUPT && strcmp(operation, "put") == 0) {
        f->damaged = true;
        f->lost = f->lost || kit_is_needed(key);
    }
    return f->kind;
}

static inline dw_store *kit_fault_store(dw_store *inner, kit_faults *faults)
{
    const store_fault_plan plan = {kit_choose, faults, 2};
    dw_error err = {0};
    dw_store *store;
    assert_ok(fault_store_new(&store, inner, &plan, &err), &err);
    return store;
}

/* Tests one of so many faults; with a slow sanitizer one of FEWER times as many. */
static inline unsigned kit_one_in(unsigned every, unsigned fewer)
{
    const char *sanitizer = getenv("DW_SANITIZE");
    return sanitizer && *sanitizer ? every * fewer : every;
}

#endif
