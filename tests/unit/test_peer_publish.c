/* Versions written for TRL and slime, read back by their readers. tests/format has
 * readers in Python that do not use the library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "compat/peer_publish_int.h"
#include "deltawire/checkpoint.h"
#include "compat/peer_publish.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

#define N_TENSORS  5
#define N_VERSIONS 40

/* ---- a model, and its copies of each version ---- */

typedef struct net {
    dw_tensor tensors[N_TENSORS]; /* not in the order of their names */
    uint8_t *bytes;
    size_t n_bytes;
    uint8_t *copies[N_VERSIONS]; /* by version; NULL: none */
} net;

static void net_make(net *m, dw_peer_format format)
{
    static const uint64_t matrix[] = {60, 33}, vector[] = {257}, cube[] = {3, 5, 7},
                          none[] = {0, 4}, wide[] = {1, 70000};
    const bool plain = format == DW_PEER_TRL;
    const dw_tensor shapes[N_TENSORS] = {
        {"m.weight", DW_BF16, 2, matrix, 0, NULL, 0, NULL},
        {"b.bias", plain ? DW_BF16 : DW_F32, 1, vector, 0, NULL, 0, NULL},
        {"z.\"count", plain ? DW_BF16 : DW_U8, 3, cube, 0, NULL, 0, NULL},
        {"n.empty", DW_BF16, 2, none, 0, NULL, 0, NULL},
        {"a.wide", DW_BF16, 2, wide, 0, NULL, 0, NULL},
    };
    *m = (net){0};
    size_t offsets[N_TENSORS];
    for (size_t i = 0; i < N_TENSORS; i++) {
        m->tensors[i] = shapes[i];
        assert_true(dw_shape_size(shapes[i].dtype, shapes[i].n_dims, shapes[i].dims, NULL,
                                  &m->tensors[i].n_bytes));
        offsets[i] = m->n_bytes;
        m->n_bytes += (m->tensors[i].n_bytes + 7) / 8 * 8;
    }
    m->bytes = calloc(1, m->n_bytes);
    for (size_t i = 0; i < N_TENSORS; i++) {
        dw_element element = dw_dtype_element(shapes[i].dtype);
        m->tensors[i].data = m->bytes + offsets[i];
        fill_weights(m->tensors[i].data, m->tensors[i].n_bytes / element.width, element);
    }
}

static void net_step(net *m)
{
    for (size_t i = 0; i < N_TENSORS; i++) {
        dw_element element = dw_dtype_element(m->tensors[i].dtype);
        change_weights(m->tensors[i].data, m->tensors[i].n_bytes / element.width, element,
                       20);
    }
}

static void net_keep(net *m, uint64_t version)
{
    assert_true(version < N_VERSIONS);
    free(m->copies[version]);
    m->copies[version] = memcpy(malloc(m->n_bytes), m->bytes, m->n_bytes);
}

static void net_free(net *m)
{
    for (size_t v = 0; v < N_VERSIONS; v++)
        free(m->copies[v]);
    free(m->bytes);
}

static bool net_is(const net *m, const dw_tensor *found, size_t n, uint64_t version)
{
    bool same = n == N_TENSORS && m->copies[version];
    for (size_t i = 0; same && i < N_TENSORS; i++) {
        const dw_tensor *mine = &m->tensors[i], *other = NULL;
        for (size_t t = 0; t < n; t++)
            if (strcmp(found[t].name, mine->name) == 0)
                other = &found[t];
        const size_t at = (size_t)((uint8_t *)mine->data - m->bytes);
        same = other && other->dtype == mine->dtype && other->n_dims == mine->n_dims &&
               (mine->n_bytes == 0 ||
                memcmp(other->data, m->copies[version] + at, mine->n_bytes) == 0);
    }
    return same;
}

static void remove_files(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char file[600];
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        unlink(file);
    }
    if (dir)
        closedir(dir);
}

/* TEMP_DIR/NAME or, if possible, a path in memory, because thousands of syncs take long.
 * Valid until the fourth next call. */
static const char *shared_path(const char *name)
{
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    if (access("/dev/shm", W_OK) == 0)
        snprintf(path, sizeof paths[0], "/dev/shm/%s-%s", strrchr(temp_dir, '/') + 1,
                 name);
    else
        snprintf(path, sizeof paths[0], "%s", temp_path(name));
    return path;
}

/* An empty directory there. */
static const char *fresh_dir(const char *name)
{
    const char *path = shared_path(name);
    remove_files(path);
    return path;
}

/* ---- the formats and options ---- */

typedef struct way {
    const char *name;
    dw_peer_format format;
    unsigned layout;
    dw_codec codec;
    unsigned whole_every;
    dw_peer_delta delta;
    dw_peer_checksum checksum;
    uint64_t max_shard_bytes;
} way;

static const way ways[] = {
    {.name = "trl 1", .format = DW_PEER_TRL, .layout = 1, .codec = DW_CODEC_RAW},
    {.name = "trl 3 raw",
     .format = DW_PEER_TRL,
     .layout = 3,
     .codec = DW_CODEC_RAW,
     .whole_every = 4},
    {.name = "trl 3 gap", .format = DW_PEER_TRL, .layout = 3, .codec = DW_CODEC_GAP},
    {.name = "slime", .format = DW_PEER_SLIME},
    {.name = "slime overwrite",
     .format = DW_PEER_SLIME,
     .delta = DW_PEER_OVERWRITE,
     .checksum = DW_PEER_ADLER32,
     .max_shard_bytes = 1000,
     .whole_every = 3},
    {.name = "slime shards", .format = DW_PEER_SLIME, .max_shard_bytes = 5000},
};
#define N_WAYS (sizeof ways / sizeof *ways)

static dw_peer_publish_options options_of(const way *w)
{
    dw_peer_publish_options o;
    dw_peer_publish_options_init(&o, w->format);
    o.trl_layout = w->layout ? w->layout : o.trl_layout;
    o.trl_codec = w->codec ? w->codec : o.trl_codec;
    o.whole_every = w->whole_every;
    o.delta = w->delta;
    o.checksum = w->checksum;
    o.max_shard_bytes = w->max_shard_bytes;
    o.n_threads = 2;
    return o;
}

static dw_peer_publisher *open_publisher(dw_store *store, net *m,
                                         const dw_peer_publish_options *options)
{
    dw_error err = {0};
    dw_peer_publisher *p;
    assert_ok(dw_peer_publisher_open(&p, store, m->tensors, N_TENSORS, options, &err),
              &err);
    return p;
}

static dw_peer_publish_report publish(dw_peer_publisher *p, net *m, uint64_t version)
{
    dw_error err = {0};
    dw_peer_publish_report report;
    assert_ok(dw_peer_publisher_publish(p, version, &report, &err), &err);
    net_keep(m, report.version);
    assert_int_equal(p->newest, report.version);
    return report;
}

static int end(void **state)
{
    rmdir(fresh_dir("reader"));
    rmdir(fresh_dir("kept"));
    return temp_dir_remove(state);
}

/* Checks that every listed version, one by one, and the newest from nothing, is as
 * published under that number. Returns how many there are. */
static size_t check_versions(const net *m, dw_store *store)
{
    dw_error err = {0};
    size_t n = 0;
    for (unsigned one_by_one = 0; one_by_one < 2; one_by_one++) {
        dw_peer *peer;
        dw_peer_replica *r;
        dw_peer_replica_options options;
        const uint64_t *listed;
        uint64_t versions[N_VERSIONS];
        assert_ok(dw_peer_open(&peer, store, &err), &err);
        assert_ok(dw_peer_list(peer, &listed, &n, &err), &err);
        assert_in_range(n, 1, N_VERSIONS);
        memcpy(versions, listed, n * sizeof *versions);
        dw_peer_replica_options_init(&options);
        options.into = fresh_dir("reader");
        options.n_threads = 1;
        assert_ok(dw_peer_replica_open(&r, peer, &options, &err), &err);
        for (size_t i = one_by_one ? 0 : n - 1; i < n; i++) {
            size_t n_tensors;
            assert_ok(dw_peer_replica_sync(r, versions[i], NULL, NULL, &err), &err);
            const dw_tensor *found = dw_peer_replica_tensors(r, &n_tensors);
            if (!net_is(m, found, n_tensors, versions[i]))
                fail_msg("version %llu is not what was published",
                         (unsigned long long)versions[i]);
        }
        dw_peer_replica_close(r);
        dw_peer_close(peer);
    }
    return n;
}

/* ---- tests ---- */

static void test_every_way(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WAYS; i++) {
        const way *w = &ways[i];
        net m;
        net_make(&m, w->format);
        dw_store *store = kit_mem_store();
        dw_peer_publish_options options = options_of(w);
        dw_peer_publisher *p = open_publisher(store, &m, &options);
        assert_int_equal(p->newest, DW_NO_VERSION);
        for (uint64_t v = 1; v <= 7; v++) {
            if (v != 1 && v != 5) /* nothing changes in 5 */
                net_step(&m);
            dw_peer_publish_report report = publish(p, &m, DW_NO_VERSION);
            assert_int_equal(report.version, v);
            assert_false(report.was_there);
            assert_int_equal(report.n_changed > 0, v != 1 && v != 5);
            const bool due = w->whole_every && v % w->whole_every == 0;
            assert_int_equal(report.is_whole, v == 1 || due);
            assert_true(report.n_objects > 0);
        }
        dw_peer_publisher_close(p);
        assert_int_equal(check_versions(&m, store), 7);
        /* a version is one TRL file, or an index with shards */
        if (w->format == DW_PEER_TRL)
            assert_int_equal(kit_find(store, "", "", NULL), 7);
        if (w->max_shard_bytes == 1000)
            assert_true(kit_find(store, "", ".safetensors", NULL) > 2 * 7);
        dw_store_close(store);
        net_free(&m);
    }
}

/* With the baseline, without it, and with one that is behind. */
static void test_a_restart_goes_on(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WAYS; i++) {
        net m;
        net_make(&m, ways[i].format);
        dw_store *store = kit_mem_store();
        dw_peer_publish_options options = options_of(&ways[i]);
        const char *kept = fresh_dir("kept");
        for (uint64_t v = 1; v <= 6; v++) {
            options.baseline_dir = v == 3 || v == 4 ? NULL : kept;
            dw_peer_publisher *p = open_publisher(store, &m, &options);
            net_step(&m);
            assert_int_equal(publish(p, &m, DW_NO_VERSION).version, v);
            dw_peer_publisher_close(p);
        }
        assert_int_equal(check_versions(&m, store), 6);
        dw_store_close(store);
        net_free(&m);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WAYS; i++) {
        const way *w = &ways[i];
        dw_error err = {0};
        dw_peer_publish_report report;
        net m;
        net_make(&m, w->format);
        dw_store *store = kit_mem_store();
        dw_peer_publish_options options = options_of(w);
        options.whole_every = 0;
        options.first_version = 10;
        dw_peer_publisher *p = open_publisher(store, &m, &options);
        net_step(&m);
        assert_int_equal(publish(p, &m, DW_NO_VERSION).version, 10);
        /* again, and with other weights */
        assert_true(publish(p, &m, 10).was_there);
        net_step(&m);
        assert_fails(dw_peer_publisher_publish(p, 10, &report, &err), DW_CONFLICT, &err);
        assert_fails(dw_peer_publisher_publish(p, 8, &report, &err), DW_CONFLICT, &err);
        assert_false(publish(p, &m, 11).is_whole);
        /* if a number is skipped it cannot be a delta, because readers go one by one */
        net_step(&m);
        assert_true(publish(p, &m, 14).is_whole);
        dw_peer_publisher_close(p);
        assert_int_equal(check_versions(&m, store), 3);
        dw_store_close(store);
        net_free(&m);
    }
}

/* TRL's own rule: 1 and every multiple. */
static void test_anchors_of_trl(void **state)
{
    (void)state;
    for (unsigned layout = 1; layout <= 3; layout += 2) {
        net m;
        net_make(&m, DW_PEER_TRL);
        dw_store *store = kit_mem_store();
        dw_peer_publish_options options;
        dw_peer_publish_options_init(&options, DW_PEER_TRL);
        options.trl_layout = layout;
        options.trl_codec = layout == 1 ? DW_CODEC_RAW : DW_CODEC_GAP;
        options.first_version = 0;
        dw_peer_publisher *p = open_publisher(store, &m, &options);
        for (uint64_t v = 0; v <= 21; v++) {
            net_step(&m);
            const unsigned every = layout == 1 ? 10 : 20;
            assert_int_equal(publish(p, &m, v).is_whole, v == 1 || v % every == 0);
        }
        dw_peer_publisher_close(p);
        assert_int_equal(check_versions(&m, store), 22);
        dw_store_close(store);
        net_free(&m);
    }
}

static void expect_refusal(dw_store *store, const dw_tensor *tensors, size_t n,
                           const dw_peer_publish_options *options, dw_status wanted,
                           const char *text)
{
    dw_error err = {0};
    dw_peer_publisher *p;
    const size_t n_objects = kit_find(store, "", "", NULL);
    assert_fails(dw_peer_publisher_open(&p, store, tensors, n, options, &err), wanted,
                 &err);
    assert_null(p);
    if (!strstr(err.text, text) && !strstr(err.where, text))
        fail_msg("not '%s': %s: %s", text, err.where, err.text);
    assert_int_equal(kit_find(store, "", "", NULL), n_objects);
}

static void test_refusals(void **state)
{
    (void)state;
    net mixed, plain;
    net_make(&mixed, DW_PEER_SLIME);
    net_make(&plain, DW_PEER_TRL);
    dw_store *store = kit_mem_store();
    dw_peer_publish_options trl, slime;
    dw_peer_publish_options_init(&trl, DW_PEER_TRL);
    dw_peer_publish_options_init(&slime, DW_PEER_SLIME);
    expect_refusal(store, mixed.tensors, N_TENSORS, &trl, DW_UNSUPPORTED, "b.bias");
    dw_peer_publish_options wrong = trl;
    wrong.trl_layout = 1; /* it has no gaps */
    expect_refusal(store, plain.tensors, N_TENSORS, &wrong, DW_INVALID, "layout 1");

    /* the store holds another format, another model, or a deltawire stream */
    dw_peer_publisher *p = open_publisher(store, &plain, &slime);
    publish(p, &plain, DW_NO_VERSION);
    dw_peer_publisher_close(p);
    expect_refusal(store, plain.tensors, N_TENSORS, &trl, DW_CONFLICT, "slime");
    expect_refusal(store, mixed.tensors, N_TENSORS, &slime, DW_MISMATCH, "b.bias");
    expect_refusal(store, plain.tensors, N_TENSORS - 1, &slime, DW_MISMATCH, "a.wide");
    dw_store_close(store);

    store = kit_mem_store();
    dw_error err = {0};
    dw_publisher *ours;
    assert_ok(dw_publisher_open(&ours, store, plain.tensors, N_TENSORS, NULL, &err),
              &err);
    dw_publisher_close(ours);
    expect_refusal(store, plain.tensors, N_TENSORS, &slime, DW_CONFLICT, "stream");
    dw_store_close(store);
    net_free(&mixed);
    net_free(&plain);
}

/* A directory that cannot be the baseline is found before anything is written. */
static void test_a_directory_of_others(void **state)
{
    (void)state;
    net m, other;
    dw_peer_publish_options slime, trl;
    net_make(&m, DW_PEER_TRL);
    net_make(&other, DW_PEER_SLIME);
    dw_peer_publish_options_init(&slime, DW_PEER_SLIME);
    dw_peer_publish_options_init(&trl, DW_PEER_TRL);
    slime.baseline_dir = trl.baseline_dir = fresh_dir("kept");
    dw_store *store = kit_mem_store();
    dw_peer_publisher *p = open_publisher(store, &m, &slime);
    publish(p, &m, DW_NO_VERSION);
    dw_peer_publisher_close(p);
    dw_store_close(store);
    store = kit_mem_store();
    expect_refusal(store, m.tensors, N_TENSORS, &trl, DW_MISMATCH, "another stream");
    expect_refusal(store, other.tensors, N_TENSORS, &slime, DW_MISMATCH, "b.bias");
    dw_peer_publisher_close(open_publisher(store, &m, &slime));
    dw_store_close(store);
    net_free(&m);
    net_free(&other);
}

/* Two writers: the second one gets an error, and the existing versions stay whole. */
static void test_two_writers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WAYS; i++) {
        dw_error err = {0};
        dw_peer_publish_report report;
        net m, other;
        net_make(&m, ways[i].format);
        net_make(&other, ways[i].format);
        memcpy(other.bytes, m.bytes, m.n_bytes);
        dw_store *store = kit_mem_store();
        dw_peer_publish_options options = options_of(&ways[i]);
        options.whole_every = 0;
        dw_peer_publisher *a = open_publisher(store, &m, &options);
        publish(a, &m, DW_NO_VERSION);
        dw_peer_publisher *b = open_publisher(store, &other, &options);
        net_step(&m);
        net_step(&other);
        publish(a, &m, DW_NO_VERSION);
        dw_status status = dw_peer_publisher_publish(b, DW_NO_VERSION, &report, &err);
        assert_told(status, &err);
        assert_true(status == DW_CONFLICT || status == DW_UNAVAILABLE);
        assert_int_equal(check_versions(&m, store), 2);
        dw_peer_publisher_close(b);
        dw_peer_publisher_close(a);
        dw_store_close(store);
        net_free(&m);
        net_free(&other);
    }
}

/* Objects that a killed process left are not taken for a part of the version. */
static void test_leftovers(void **state)
{
    (void)state;
    static const struct {
        dw_peer_format format;
        const char *keys[2];
    } cases[] = {
        {DW_PEER_SLIME,
         {"weight_v000002/model-00000-of-00001.safetensors",
          "weight_v000002/model-00007-of-00009.safetensors"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_error err = {0};
        net m;
        net_make(&m, cases[i].format);
        dw_store *store = kit_mem_store();
        dw_peer_publish_options options;
        dw_peer_publish_options_init(&options, cases[i].format);
        dw_peer_publisher *p = open_publisher(store, &m, &options);
        publish(p, &m, DW_NO_VERSION);
        for (size_t k = 0; k < 2; k++)
            assert_ok(dw_store_put_bytes(store, cases[i].keys[k], "rubbish", 7,
                                         DW_PUT_CREATE, &err),
                      &err);
        net_step(&m);
        publish(p, &m, DW_NO_VERSION);
        dw_peer_publisher_close(p);
        assert_int_equal(check_versions(&m, store), 2);
        assert_int_equal(kit_find(store, "", cases[i].keys[1], NULL), 0);
        dw_store_close(store);
        net_free(&m);
    }
}

/* ---- faults ---- */

static const store_fault kinds[] = {STORE_FAULT_FAIL,    STORE_FAULT_LOST,
                                    STORE_FAULT_DENY,    STORE_FAULT_SHORT,
                                    STORE_FAULT_CORRUPT, STORE_FAULT_STALE};
#define N_KINDS (sizeof kinds / sizeof *kinds)

/* Tries until it succeeds; the faults end after a while. */
static void publish_stubbornly(dw_store *store, net *m,
                               const dw_peer_publish_options *options, uint64_t version,
                               dw_peer_publisher **p)
{
    for (unsigned n_tries = 0; n_tries < 12; n_tries++) {
        dw_error err = {0};
        dw_peer_publish_report report;
        dw_status status = DW_OK;
        if (!*p)
            status =
                dw_peer_publisher_open(p, store, m->tensors, N_TENSORS, options, &err);
        assert_told(status, &err);
        if (status == DW_OK)
            status = dw_peer_publisher_publish(*p, version, &report, &err);
        assert_told(status, &err);
        if (status == DW_OK) {
            assert_int_equal(report.version, version);
            return;
        }
    }
    fail_msg("version %llu is never done", (unsigned long long)version);
}

/* Three versions to a store whose calls FIRST to FIRST + SPAN - 1 have the fault; then
 * one more by another process. Returns the number of calls. */
static uint64_t run_one(const way *w, store_fault kind, uint64_t first, uint64_t span)
{
    net m;
    net_make(&m, w->format);
    dw_store *inner = kit_mem_store();
    kit_faults faults = {.on = true, .kind = kind, .first = first, .n = span};
    dw_store *store = kit_fault_store(inner, &faults);
    dw_peer_publish_options options = options_of(w);
    options.n_threads = 1;
    options.baseline_dir = fresh_dir("kept");
    dw_peer_publisher *p = NULL;
    for (uint64_t v = 1; v <= 3; v++) {
        net_step(&m);
        net_keep(&m, v);
        publish_stubbornly(store, &m, &options, v, &p);
    }
    dw_peer_publisher_close(p);
    const uint64_t n_calls = faults.n_seen;
    dw_store_close(store);
    p = open_publisher(inner, &m, &options);
    net_step(&m);
    assert_int_equal(publish(p, &m, DW_NO_VERSION).version, 4);
    dw_peer_publisher_close(p);
    assert_int_equal(check_versions(&m, inner), 4);
    dw_store_close(inner);
    net_free(&m);
    return n_calls;
}

/* Tests one in EVERY of all calls and kinds of faults. EVERY shares no factor with
 * N_KINDS. */
static void run_all(uint64_t span, unsigned every)
{
    static const size_t picked[] = {2, 4, 5}; /* trl 3 gap, slime overwrite and shards */
    every = kit_one_in(every, 7);
    unsigned turn = 0;
    for (size_t i = 0; i < sizeof picked / sizeof *picked; i++) {
        const way *w = &ways[picked[i]];
        const uint64_t n_calls = run_one(w, STORE_FAULT_NONE, 0, 0);
        assert_true(n_calls > 10);
        for (uint64_t first = 0; first < n_calls; first++)
            for (size_t k = 0; k < N_KINDS; k++)
                if (turn++ % every == 0)
                    run_one(w, kinds[k], first, span);
    }
}

static void test_every_call_fails_once(void **state)
{
    (void)state;
    run_all(1, 5);
}

static void test_three_calls_in_a_row(void **state)
{
    (void)state;
    run_all(3, 11);
}

/* The read-back of version 2 is cut short, or it is not listed, and the weights change
 * before the next try: version 2 stays the same, and the new weights become the next one.
 */
static void test_weights_move_on(void **state)
{
    (void)state;
    static const struct {
        store_fault kind;
        const char *operation;
        uint64_t n_lists; /* the lists that leave it out */
    } cases[] = {{STORE_FAULT_SHORT, "get", 1},
                 {STORE_FAULT_CORRUPT, "get", 1},
                 {STORE_FAULT_STALE, "list", 1},
                 {STORE_FAULT_STALE, "list", 2}};
    static const size_t picked[] = {0, 2, 4, 5};
    for (size_t i = 0; i < 4 * 4; i++) {
        const way *w = &ways[picked[i / 4]];
        dw_error err = {0};
        dw_peer_publish_report report;
        net m;
        /* for the others the list would also hide version 1 */
        if (cases[i % 4].kind == STORE_FAULT_STALE && w->format != DW_PEER_TRL)
            continue;
        net_make(&m, w->format);
        dw_store *inner = kit_mem_store();
        kit_faults faults = {.kind = cases[i % 4].kind,
                             .operation = cases[i % 4].operation,
                             .part = w->format == DW_PEER_TRL ? "delta" : "weight_v",
                             .n = 100};
        dw_store *store = kit_fault_store(inner, &faults);
        dw_peer_publish_options options = options_of(w);
        options.whole_every = 0;
        options.baseline_dir = fresh_dir("kept");
        dw_peer_publisher *p = open_publisher(store, &m, &options);
        net_step(&m);
        publish(p, &m, 1);
        net_step(&m);
        net_keep(&m, 2);
        faults.on = true;
        faults.first = faults.n_seen;
        assert_told(dw_peer_publisher_publish(p, 2, &report, &err), &err);
        for (uint64_t n = 1; n < cases[i % 4].n_lists; n++) {
            net_step(&m);
            assert_told(dw_peer_publisher_publish(p, DW_NO_VERSION, &report, &err), &err);
        }
        faults.on = false;
        net_step(&m);
        dw_status status = dw_peer_publisher_publish(p, DW_NO_VERSION, &report, &err);
        if (status == DW_UNAVAILABLE) /* listed only at the next look */
            status = dw_peer_publisher_publish(p, DW_NO_VERSION, &report, &err);
        assert_ok(status, &err);
        assert_int_equal(report.version, 3);
        net_keep(&m, 3);
        dw_peer_publisher_close(p);
        assert_int_equal(check_versions(&m, inner), 3);
        dw_store_close(store);
        dw_store_close(inner);
        net_free(&m);
    }
}

/* The caller's own files always stay in the directory that it named. */
static void test_files_of_others_stay(void **state)
{
    (void)state;
    char path[600];
    net m;
    net_make(&m, DW_PEER_SLIME);
    dw_peer_publish_options options;
    dw_peer_publish_options_init(&options, DW_PEER_SLIME);
    const char *kept = options.baseline_dir = fresh_dir("kept");
    for (unsigned run = 0; run < 2; run++) { /* the second finds another run's version */
        dw_store *store = kit_mem_store();
        net_step(&m);
        dw_peer_publisher *p = open_publisher(store, &m, &options);
        publish(p, &m, DW_NO_VERSION);
        dw_peer_publisher_close(p);
        if (run == 0) {
            snprintf(path, sizeof path, "%s/notes.txt", kept);
            FILE *file = fopen(path, "w");
            assert_non_null(file);
            fclose(file);
        }
        assert_int_equal(access(path, F_OK), 0);
        dw_store_close(store);
    }
    net_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_way),
        cmocka_unit_test(test_a_restart_goes_on),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_anchors_of_trl),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_a_directory_of_others),
        cmocka_unit_test(test_two_writers),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_weights_move_on),
        cmocka_unit_test(test_files_of_others_stay),
        cmocka_unit_test(test_every_call_fails_once),
        cmocka_unit_test(test_three_calls_in_a_row),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, end);
}
