/* The default name of a follower's reports. */
/* wrap: gethostname */
#include <unistd.h>

#include "unit/suite.h"

#include "deltawire/follow.h"
#include "stream/record.h"

static const char *host = "node-7.cluster";

int __wrap_gethostname(char *name, size_t n_bytes)
{
    snprintf(name, n_bytes, "%s", host);
    return 0;
}

TEST(test_directory)
{
    char a[DW_FOLLOWER_ID_SIZE], b[DW_FOLLOWER_ID_SIZE];
    assert_int_equal(chdir("/tmp"), 0);
    dw_follower_id(a, "/tmp/model", 0);
    assert_int_equal(strncmp(a, "node-7-cluster-", 15), 0);
    assert_true(dw_follower_id_valid(a));
    dw_follower_id(b, "model//", 0);
    assert_string_equal(a, b);
    dw_follower_id(b, "/tmp/model2", 0);
    assert_string_not_equal(a, b);
}

TEST(test_memory)
{
    char id[DW_FOLLOWER_ID_SIZE];
    dw_follower_id(id, NULL, 3);
    assert_string_equal(id, "node-7-cluster-memory-3");
}

TEST(test_long_host)
{
    char id[DW_FOLLOWER_ID_SIZE];
    host = "a-pod-of-a-deployment-with-a-long-name-5f7d8c9b6d-x2x4z.rollouts";
    dw_follower_id(id, NULL, UINT32_MAX);
    assert_true(dw_follower_id_valid(id));
    assert_non_null(strstr(id, "-memory-4294967295"));
    dw_follower_id(id, "model", 0);
    assert_true(dw_follower_id_valid(id));
}

RUN_TESTS(NULL, NULL)
