#include "unit/suite.h"

#include "net/retry.h"

TEST(test_waits)
{
    dw_retry r;
    uint64_t wait;
    /* always the longest: threefold, up to 15 s */
    const uint64_t most[] = {300, 900, 2700, 8100, 15000, 15000, 15000, 15000, 15000};
    dw_retry_start(&r, 0, 0, 1000);
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        assert_true(dw_retry_again(&r, 1000, 0, UINT32_MAX, &wait));
        assert_int_equal(wait, most[i]);
        assert_int_equal(r.n_tries, i + 2);
    }
    assert_int_equal(r.n_tries, DW_RETRY_TRIES);
    assert_false(dw_retry_again(&r, 1000, 0, 0, &wait));
    assert_int_equal(r.n_tries, DW_RETRY_TRIES);

    /* always the shortest */
    dw_retry_start(&r, 5, 0, 0);
    for (unsigned i = 0; i < 4; i++) {
        assert_true(dw_retry_again(&r, 0, 0, 0, &wait));
        assert_int_equal(wait, DW_RETRY_LEAST_MS);
    }
    assert_false(dw_retry_again(&r, 0, 0, 0, &wait));
}

TEST(test_deadline)
{
    dw_retry r;
    uint64_t wait;
    dw_retry_start(&r, 0, 1000, 50);
    assert_int_equal(dw_retry_left_ms(&r, 50), 1000);
    assert_int_equal(dw_retry_left_ms(&r, 1049), 1);
    assert_int_equal(dw_retry_left_ms(&r, 1050), 0);
    assert_int_equal(dw_retry_left_ms(&r, 99999), 0);
    assert_true(dw_retry_again(&r, 949, 0, 0, &wait));
    assert_false(dw_retry_again(&r, 950, 0, 0, &wait)); /* it would start too late */
    assert_int_equal(r.n_tries, 2);
}

TEST(test_server_wish)
{
    dw_retry r;
    uint64_t wait;
    dw_retry_start(&r, 0, 10000, 0);
    assert_true(dw_retry_again(&r, 0, 7000, UINT32_MAX, &wait));
    assert_int_equal(wait, 7000);
    /* it does not extend our own waits */
    assert_true(dw_retry_again(&r, 0, 0, UINT32_MAX, &wait));
    assert_int_equal(wait, 900);
    /* no wait past the deadline */
    assert_false(dw_retry_again(&r, 0, 10000, 0, &wait));
}

TEST(test_judge)
{
    const struct {
        int status;
        const char *code;
        dw_retry_verdict verdict;
    } cases[] = {
        {500, "", DW_RETRY_AGAIN},
        {502, "", DW_RETRY_AGAIN},
        {504, "", DW_RETRY_AGAIN},
        {408, "", DW_RETRY_AGAIN},
        {503, "", DW_RETRY_SLOWER},
        {503, "SlowDown", DW_RETRY_SLOWER},
        {429, "", DW_RETRY_SLOWER},
        {500, "SlowDown", DW_RETRY_SLOWER},
        {400, "RequestTimeout", DW_RETRY_AGAIN},
        {200, "InternalError", DW_RETRY_AGAIN},
        {409, "ConditionalRequestConflict", DW_RETRY_AGAIN},
        {409, "", DW_RETRY_FINAL},
        {501, "NotImplemented", DW_RETRY_FINAL},
        {400, "InvalidRequest", DW_RETRY_FINAL},
        {403, "AccessDenied", DW_RETRY_FINAL},
        {404, "NoSuchKey", DW_RETRY_FINAL},
        {412, "PreconditionFailed", DW_RETRY_FINAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(dw_retry_judge(cases[i].status, cases[i].code),
                         cases[i].verdict);
}

TEST(test_retry_after)
{
    assert_int_equal(dw_retry_after_ms(NULL, 0), 0);
    assert_int_equal(dw_retry_after_ms("", 0), 0);
    assert_int_equal(dw_retry_after_ms("soon", 0), 0);
    assert_int_equal(dw_retry_after_ms("-5", 0), 0);
    assert_int_equal(dw_retry_after_ms("0", 0), 0);
    assert_int_equal(dw_retry_after_ms("120", 0), 120000);
    assert_true(dw_retry_after_ms("99999999999999999999999", 0) > 1000000000);
    const char *date = "Thu, 01 Jan 1970 00:01:40 GMT";
    assert_int_equal(dw_retry_after_ms(date, 40000), 60000);
    assert_int_equal(dw_retry_after_ms(date, 100000), 0);
    assert_int_equal(dw_retry_after_ms(date, 200000), 0);
}

RUN_TESTS(NULL, NULL)
