/* Rows of versions, told in any order, by commits and by hops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/history.h"

enum { ROOM = 5 };

static dw_history history;

static int begin(void **state)
{
    (void)state;
    return dw_history_init(&history, ROOM) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    dw_history_release(&history);
    return 0;
}

static void commit(uint64_t version)
{
    dw_history_add_commit(&history,
                          &(dw_version_info){.version = version,
                                             .content = DW_CONTENT_DELTA,
                                             .created = "2026-11-15T05:20:59.123Z",
                                             .n_changed = 8,
                                             .n_objects = 1,
                                             .n_bytes = version});
}

static void hop(uint64_t from, uint64_t version)
{
    dw_history_add_hop(
        &history,
        &(dw_rollout_hop){.from = from, .version = version, .n_bytes = 1000 + version},
        42);
}

/* The versions must be those N. */
static void expect_versions(const uint64_t *versions, size_t n)
{
    assert_int_equal(history.n_rows, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(history.rows[i].hop.version, versions[i]);
}

#define EXPECT(...)                                                                      \
    expect_versions((const uint64_t[]){__VA_ARGS__},                                     \
                    sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static void test_order(void **state)
{
    (void)state;
    commit(7);
    commit(6);
    commit(4);
    EXPECT(4, 6, 7);
    commit(5);
    commit(9);
    EXPECT(4, 5, 6, 7, 9);
    commit(3); /* there is no room below */
    EXPECT(4, 5, 6, 7, 9);
    commit(8);
    EXPECT(5, 6, 7, 8, 9);
    commit(10);
    EXPECT(6, 7, 8, 9, 10);
    commit(20);
    EXPECT(7, 8, 9, 10, 20);
    assert_int_equal(dw_history_above(&history, 6), 0);
    assert_int_equal(dw_history_above(&history, 9), 3);
    assert_int_equal(dw_history_above(&history, 10), 4);
    assert_int_equal(dw_history_above(&history, 20), 5);
}

static void test_sequence(void **state)
{
    (void)state;
    commit(3);
    commit(4);
    hop(4, 6);
    assert_int_equal(history.sequence, 0); /* each was the highest */
    commit(5);
    assert_int_equal(history.sequence, 1);
    commit(5); /* as it is already */
    assert_int_equal(history.sequence, 1);
    hop(4, 6);
    assert_int_equal(history.sequence, 2);
    commit(2);
    commit(1); /* left out */
    assert_int_equal(history.sequence, 3);
}

static void test_merge(void **state)
{
    (void)state;
    commit(3);
    assert_false(history.rows[0].applied);
    assert_int_equal(history.rows[0].hop.from, 2);
    assert_int_equal(history.rows[0].time_ms, 1794720059123);
    hop(1, 3);
    assert_true(history.rows[0].applied);
    assert_int_equal(history.rows[0].hop.from, 1);
    assert_int_equal(history.rows[0].time_ms, 42);
    commit(3); /* knows less */
    assert_true(history.rows[0].applied);
    assert_int_equal(history.rows[0].hop.n_bytes, 1003);
    EXPECT(3);
}

static void test_bits(void **state)
{
    (void)state;
    commit(3);
    assert_true(dw_hop_bits_per_change(&history.rows[0].hop) == 3);
    dw_history_add_commit(&history, &(dw_version_info){.version = 4,
                                                       .content = DW_CONTENT_ANCHOR,
                                                       .created = "",
                                                       .n_changed = 8,
                                                       .n_bytes = 8});
    assert_int_equal(history.rows[1].hop.from, DW_NO_VERSION);
    assert_true(dw_hop_bits_per_change(&history.rows[1].hop) == -1);
    hop(4, 5); /* that changed nothing */
    assert_true(dw_hop_bits_per_change(&history.rows[2].hop) == -1);
}

/* Against a table of all that was told. */
static void test_random(void **state)
{
    (void)state;
    enum { N = 40 };
    bool is_told[N] = {0};
    srand(7);
    for (int round = 0; round < 400; round++) {
        const uint64_t version = (uint64_t)rand() % N;
        const uint64_t lowest = history.n_rows < ROOM ? 0 : history.rows[0].hop.version;
        if (rand() % 2)
            commit(version);
        else
            hop(DW_NO_VERSION, version);
        if (version >= lowest)
            is_told[version] = true;
        size_t at = history.n_rows;
        for (uint64_t v = N; v-- > 0 && at > 0;)
            if (is_told[v])
                assert_int_equal(history.rows[--at].hop.version, v);
        assert_int_equal(at, 0);
        if (round % 50 == 49) {
            dw_history_release(&history);
            begin(NULL);
            for (int i = 0; i < N; i++)
                is_told[i] = false;
        }
    }
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {WITH(test_order), WITH(test_sequence),
                                       WITH(test_merge), WITH(test_bits),
                                       WITH(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
