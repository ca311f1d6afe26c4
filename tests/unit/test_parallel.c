#include <stdatomic.h>

#include "unit/suite.h"

#include "base/error.h"
#include "base/parallel.h"
#include "failing_allocator.h"

enum { N_ITEMS = 1000, N_WORKERS = 4, NO_ITEM = N_ITEMS };

typedef struct job {
    atomic_uint times[N_ITEMS]; /* each item was done */
    size_t failing_from;
    uint64_t last_done; /* as reported */
    uint64_t stop_at;
} job;

static dw_status do_item(void *context, size_t i, unsigned worker, dw_error *err)
{
    job *j = context;
    if (worker >= N_WORKERS)
        return dw_fail(err, DW_INVALID, NULL, "worker %u", worker);
    if (i >= j->failing_from)
        return dw_fail(err, DW_CORRUPT, "item", "%zu", i);
    atomic_fetch_add(&j->times[i], 1);
    return DW_OK;
}

TEST(test_every_item_once)
{
    for (unsigned n_workers = 1; n_workers <= N_WORKERS; n_workers++) {
        job j = {.failing_from = NO_ITEM};
        assert_int_equal(dw_parallel(n_workers, N_ITEMS, do_item, &j, NULL, NULL), DW_OK);
        for (size_t i = 0; i < N_ITEMS; i++)
            assert_int_equal(j.times[i], 1);
    }
    assert_int_equal(dw_parallel(1, 0, do_item, NULL, NULL, NULL), DW_OK);
}

/* Items are handed out in order, so the lowest failing item is always begun. */
TEST(test_lowest_failure_wins)
{
    for (int round = 0; round < 50; round++) {
        job j = {.failing_from = 100};
        dw_error err;
        assert_int_equal(dw_parallel(N_WORKERS, N_ITEMS, do_item, &j, NULL, &err),
                         DW_CORRUPT);
        assert_string_equal(err.where, "item");
        assert_string_equal(err.text, "100");
    }
    job j = {.failing_from = 0};
    assert_int_equal(dw_parallel(2, N_ITEMS, do_item, &j, NULL, NULL), DW_CORRUPT);
}

static uint64_t item_bytes(const void *context, size_t i)
{
    (void)context;
    (void)i;
    return 10;
}

static int report(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    job *j = context;
    assert_true(bytes_done >= j->last_done);
    assert_true(bytes_total == N_ITEMS * 10);
    j->last_done = bytes_done;
    return bytes_done >= j->stop_at;
}

TEST(test_progress)
{
    job j = {.failing_from = NO_ITEM, .stop_at = UINT64_MAX};
    const dw_parallel_progress progress = {{report, &j}, N_ITEMS * 10, item_bytes};
    assert_int_equal(dw_parallel(2, N_ITEMS, do_item, &j, &progress, NULL), DW_OK);
    assert_int_equal(j.last_done, N_ITEMS * 10);
}

TEST(test_cancel)
{
    job j = {.failing_from = NO_ITEM, .stop_at = 100};
    const dw_parallel_progress progress = {{report, &j}, N_ITEMS * 10, item_bytes};
    dw_error err;
    assert_int_equal(dw_parallel(1, N_ITEMS, do_item, &j, &progress, &err), DW_CANCELLED);
    assert_int_equal(err.code, DW_CANCELLED);
    assert_int_equal(j.times[9], 1);
    assert_int_equal(j.times[10], 0);
}

TEST(test_worker_count)
{
    assert_int_equal(dw_worker_count(4, 100), 4);
    assert_int_equal(dw_worker_count(4, 2), 2);
    assert_int_equal(dw_worker_count(4, 0), 1);
    assert_true(dw_worker_count(0, 1000) >= 1);
    assert_true(dw_worker_count(100000, 1000000) <= 256);
}

static dw_status run_job(dw_error *err)
{
    job j = {.failing_from = NO_ITEM};
    return dw_parallel(2, N_ITEMS, do_item, &j, NULL, err);
}

TEST(test_allocation_failures)
{
    fail_every_allocation(run_job, NULL);
}

RUN_TESTS(NULL, NULL)
