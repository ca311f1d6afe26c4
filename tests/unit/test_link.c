#include "unit/suite.h"

#include "net/link.h"

#define MIB (1ull << 20)

/* Ten seconds through a link with RATE for one connection and at most LIMIT for all
 * together, in bytes a millisecond. */
static void use(dw_link *link, uint64_t *now_ms, uint64_t rate, uint64_t limit)
{
    dw_link_begin(link, *now_ms);
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t all = link->n_now * rate;
        *now_ms += 10;
        dw_link_observe(link, 10 * (all < limit ? all : limit), *now_ms);
    }
    dw_link_end(link);
}

TEST(test_grows_while_it_helps)
{
    dw_link link;
    uint64_t now_ms = 5000;
    dw_link_init(&link, 16, 0);
    assert_int_equal(link.n_now, 4);
    use(&link, &now_ms, 50000, UINT64_MAX); /* 50 MB/s each, without end */
    assert_int_equal(link.n_now, 16);

    dw_link_init(&link, 16, 0);
    use(&link, &now_ms, 100000, 300000); /* three are enough */
    assert_int_equal(link.n_now, 4);

    dw_link_init(&link, 16, 0);
    use(&link, &now_ms, 100000, 600000); /* six are enough: nine gain nothing */
    assert_int_equal(link.n_now, 6);

    /* a link that got worse is learnt again */
    for (unsigned i = 0; i < 3; i++)
        use(&link, &now_ms, 10000, 600000);
    assert_int_equal(link.n_now, 16);
}

TEST(test_bounds)
{
    dw_link link;
    uint64_t now_ms = 0;
    dw_link_init(&link, 1, 0);
    assert_int_equal(link.n_now, 1);
    use(&link, &now_ms, 100000, UINT64_MAX);
    assert_int_equal(link.n_now, 1);
    dw_link_slow_down(&link);
    assert_int_equal(link.n_now, 1);

    dw_link_init(&link, 16, 0);
    use(&link, &now_ms, 50000, UINT64_MAX);
    dw_link_slow_down(&link);
    assert_int_equal(link.n_now, 8);
    dw_link_slow_down(&link);
    assert_int_equal(link.n_now, 4);
    use(&link, &now_ms, 50000, UINT64_MAX);
    assert_int_equal(link.n_now, 16);
}

/* The time between two transfers does not count as slowness. */
TEST(test_pause)
{
    dw_link link;
    uint64_t now_ms = 0;
    dw_link_init(&link, 4, 0);
    use(&link, &now_ms, 50000, UINT64_MAX);
    uint64_t rate = link.best_rate;
    now_ms += 3600000;
    use(&link, &now_ms, 50000, UINT64_MAX);
    assert_int_equal(link.best_rate, rate);
    assert_true(link.rate > rate / 10 * 9);
}

TEST(test_parts)
{
    dw_link link;
    dw_link_init(&link, 16, 0);
    assert_int_equal(dw_link_part_bytes(&link, UINT64_MAX), 8 * MIB); /* unknown link */
    link.rate = 1000 * 1000 * 1000;
    assert_int_equal(dw_link_part_bytes(&link, UINT64_MAX), 64 * MIB);
    assert_int_equal(dw_link_part_bytes(&link, 32 * MIB), 8 * MIB);
    assert_int_equal(dw_link_part_bytes(&link, 100 * MIB), 25 * MIB);
    assert_int_equal(dw_link_part_bytes(&link, 0), 8 * MIB);
    link.rate = 80 * MIB;
    assert_int_equal(dw_link_part_bytes(&link, UINT64_MAX), 10 * MIB);
    dw_link_init(&link, 16, 12345);
    link.rate = 1000 * 1000 * 1000;
    assert_int_equal(dw_link_part_bytes(&link, UINT64_MAX), 12345);
}

RUN_TESTS(NULL, NULL)
