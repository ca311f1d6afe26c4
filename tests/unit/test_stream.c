/* Streams end to end: followers get exactly the committed bits. */
/* labels: threads */
#include "unit/suite.h"

#include "deltawire/follow.h"
#include "deltawire/publish.h"
#include "follow/follower.h"
#include "unit/random_model.h"
#include "unit/temp_dir.h"

#define N_VERSIONS 9

static const uint64_t dims_a[] = {300, 70}, dims_b[] = {1000}, dims_c[] = {3, 5, 7};

/* A small model of several types, and its copies at every version. */
typedef struct small_model {
    dw_tensor tensors[3];
    uint8_t *bytes;
    size_t n_bytes;
} small_model;

static void small_make(small_model *m)
{
    const dw_tensor shapes[] = {
        {"layer.weight", DW_BF16, 2, dims_a, 42000, NULL, 0, NULL},
        {"bias", DW_F32, 1, dims_b, 4000, NULL, 0, NULL},
        {"count", DW_U8, 3, dims_c, 105, NULL, 0, NULL}};
    m->n_bytes = 0;
    for (size_t i = 0; i < 3; i++) {
        m->tensors[i] = shapes[i];
        m->n_bytes += (shapes[i].n_bytes + 7) / 8 * 8;
    }
    m->bytes = calloc(1, m->n_bytes);
    uint8_t *at = m->bytes;
    for (size_t i = 0; i < 3; i++) {
        m->tensors[i].data = at;
        at += (shapes[i].n_bytes + 7) / 8 * 8;
        dw_element element = dw_dtype_element(shapes[i].dtype);
        fill_weights(m->tensors[i].data, shapes[i].n_bytes / element.width, element);
    }
}

static void small_step(small_model *m, double density)
{
    for (size_t i = 0; i < 3; i++) {
        dw_element element = dw_dtype_element(m->tensors[i].dtype);
        uint64_t n = m->tensors[i].n_bytes / element.width;
        for (uint64_t k = 0; k < n; k++)
            if ((double)random_below(1000000) < density * 1e6)
                dw_element_store(
                    m->tensors[i].data, k, element.width,
                    random_move(dw_element_load(m->tensors[i].data, k, element.width),
                                element));
    }
}

static void assert_ok(dw_status status, const dw_error *err)
{
    if (status != DW_OK)
        print_error("%s: %s: %s\n", dw_status_name(status), err->where, err->text);
    assert_int_equal(status, DW_OK);
}

static void publish(dw_publisher *p, uint64_t wanted)
{
    dw_error err = {0};
    uint64_t ticket;
    dw_publish_report report;
    assert_ok(dw_publisher_publish(p, &ticket, NULL, &err), &err);
    assert_ok(dw_publisher_wait(p, ticket, UINT32_MAX, NULL, &report, &err), &err);
    assert_int_equal(report.version, wanted);
}

static void assert_same(const dw_follower *f, const uint8_t *bytes, const small_model *m)
{
    size_t n;
    const dw_tensor *found = dw_follower_tensors(f, &n);
    assert_int_equal(n, 3);
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 3; k++)
            if (strcmp(found[k].name, m->tensors[i].name) == 0) {
                const uint8_t *want = bytes + ((uint8_t *)m->tensors[i].data - m->bytes);
                assert_memory_equal(found[k].data, want, m->tensors[i].n_bytes);
            }
}

TEST(test_publish_and_follow)
{
    dw_error err = {0};
    dw_store *store;
    small_model m;
    uint8_t *versions[N_VERSIONS + 1];
    small_make(&m);
    assert_ok(dw_store_open(&store, "mem:stream", NULL, &err), &err);
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = temp_dir;
    dw_publisher *p;
    assert_ok(dw_publisher_open(&p, store, m.tensors, 3, &options, &err), &err);
    for (size_t v = 0; v <= N_VERSIONS; v++) {
        if (v > 0) {
            small_step(&m, v == 5 ? 0.0 : 0.02);
            publish(p, v);
        }
        versions[v] = malloc(m.n_bytes);
        memcpy(versions[v], m.bytes, m.n_bytes);
    }
    assert_ok(dw_publisher_drain(p, &err), &err);

    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.into = temp_path("into");
    dw_follower *f;
    dw_follow_report report;
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    assert_int_equal(dw_follower_version(f), DW_NO_VERSION);
    const uint64_t goals[] = {3, 4, 7, 2, N_VERSIONS};
    for (size_t i = 0; i < 5; i++) {
        assert_ok(dw_follower_sync(f, goals[i], NULL, &report, &err), &err);
        assert_int_equal(dw_follower_version(f), goals[i]);
        assert_same(f, versions[goals[i]], &m);
    }
    dw_follower_close(f);
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    assert_int_equal(dw_follower_version(f), N_VERSIONS);
    dw_follower_close(f);

    /* resume on another machine, without the baseline */
    dw_publisher_close(p);
    small_step(&m, 0.01);
    assert_ok(dw_publisher_open(&p, store, m.tensors, 3, &options, &err), &err);
    publish(p, N_VERSIONS + 1);
    dw_publisher_close(p);

    small_model memory;
    small_make(&memory);
    dw_follow_options_init(&follow);
    follow.tensors = memory.tensors;
    follow.n_tensors = 3;
    assert_ok(dw_follower_open(&f, store, &follow, &err), &err);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, &report, &err), &err);
    assert_int_equal(dw_follower_version(f), N_VERSIONS + 1);
    assert_memory_equal(memory.bytes, m.bytes, m.n_bytes);
    dw_follower_close(f);

    for (size_t v = 0; v <= N_VERSIONS; v++)
        free(versions[v]);
    free(memory.bytes);
    free(m.bytes);
    dw_store_close(store);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
