/* Options and driver tables across versions of the library: a caller passes the struct of
 * the header that it was built with, and the library reads only that much. */
#include "unit/suite.h"

#include "base/options.h"
#include "deltawire/deltawire.h"
#include "agent/agent.h"
#include "engine/rollout.h"

/* ---- a struct that grew ---- */

typedef struct old_options {
    size_t struct_bytes;
    uint64_t n_first;
} old_options;

typedef struct now_options {
    size_t struct_bytes;
    uint64_t n_first;
    uint64_t n_second;
} now_options;

typedef struct next_options {
    size_t struct_bytes;
    uint64_t n_first;
    uint64_t n_second;
    const char *third;
} next_options;

static dw_status take(now_options *out, const void *given, dw_error *err)
{
    *out = (now_options){.struct_bytes = sizeof *out, .n_first = 1, .n_second = 2};
    return dw_options_take(out, sizeof *out, given, "now_options", err);
}

TEST(test_none)
{
    now_options got;
    assert_int_equal(take(&got, NULL, NULL), DW_OK);
    assert_int_equal(got.struct_bytes, sizeof got);
    assert_int_equal(got.n_first, 1);
    assert_int_equal(got.n_second, 2);
}

TEST(test_old_caller)
{
    struct {
        old_options options;
        uint64_t beyond; /* the library must not read it */
    } caller = {{.struct_bytes = sizeof(old_options), .n_first = 5}, .beyond = 77};
    now_options got;
    assert_int_equal(take(&got, &caller.options, NULL), DW_OK);
    assert_int_equal(got.struct_bytes, sizeof got);
    assert_int_equal(got.n_first, 5);
    assert_int_equal(got.n_second, 2);
}

TEST(test_new_caller)
{
    next_options caller = {.struct_bytes = sizeof caller, .n_second = 6};
    now_options got;
    assert_int_equal(take(&got, &caller, NULL), DW_OK);
    assert_int_equal(got.struct_bytes, sizeof got);
    assert_int_equal(got.n_second, 6);
    caller.third = "set";
    dw_error err = {0};
    assert_int_equal(take(&got, &caller, &err), DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "now_options"));
}

TEST(test_no_size)
{
    static const size_t sizes[] = {0,
                                   1,
                                   sizeof(size_t),
                                   sizeof(size_t) + 1,
                                   SIZE_MAX,
                                   SIZE_MAX - sizeof(size_t) + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const now_options given = {.struct_bytes = sizes[i]};
        now_options got;
        dw_error err = {0};
        assert_int_equal(take(&got, &given, &err), DW_INVALID);
        assert_non_null(strstr(err.text, "sizeof(now_options)"));
    }
}

/* ---- each struct of the API ---- */

/* Room for a struct that is larger than today's. */
typedef union larger {
    size_t struct_bytes;
    unsigned char bytes[1024];
} larger;

static dw_store *store;
static dw_stream *stream;

#define OPENER(name, type, call)                                                         \
    static dw_status name(const void *given, dw_error *err)                              \
    {                                                                                    \
        const type *options = given;                                                     \
        return call;                                                                     \
    }

static union {
    dw_delta *delta;
    dw_compactor *compactor;
    dw_follower *follower;
    dw_publisher *publisher;
    dw_store *store;
} out;

OPENER(apply, dw_apply_options, dw_checkpoint_apply("/none", NULL, options, NULL, err))
OPENER(collect, dw_collect_options, dw_stream_collect(stream, options, NULL, err))
OPENER(compact, dw_compact_options,
       dw_compactor_open(&out.compactor, store, options, err))
OPENER(diff, dw_diff_options, dw_delta_diff(&out.delta, NULL, NULL, 0, options, err))
OPENER(follow, dw_follow_options, dw_follower_open(&out.follower, store, options, err))
OPENER(publish, dw_publish_options,
       dw_publisher_open(&out.publisher, store, NULL, 0, options, err))
OPENER(repair, dw_publish_options, dw_stream_repair(store, NULL, 0, options, NULL, err))
OPENER(replay, dw_replay_options,
       dw_stream_replay(store, NULL, options, NULL, NULL, NULL, err))
OPENER(store_driver, dw_store_driver, dw_store_new(&out.store, "x:", options, NULL, err))
OPENER(store_open, dw_store_options, dw_store_open(&out.store, "mem:x", options, err))
OPENER(write_file, dw_checkpoint_write_options,
       dw_checkpoint_write("/none", NULL, 0, options, err))

/* A missing size and unknown members are refused before anything else is checked. */
TEST(test_every_struct)
{
    static const struct {
        dw_status (*call)(const void *given, dw_error *err);
        size_t n_bytes;
        const char *type;
    } calls[] = {
        {apply, sizeof(dw_apply_options), "dw_apply_options"},
        {collect, sizeof(dw_collect_options), "dw_collect_options"},
        {compact, sizeof(dw_compact_options), "dw_compact_options"},
        {diff, sizeof(dw_diff_options), "dw_diff_options"},
        {follow, sizeof(dw_follow_options), "dw_follow_options"},
        {publish, sizeof(dw_publish_options), "dw_publish_options"},
        {repair, sizeof(dw_publish_options), "dw_publish_options"},
        {replay, sizeof(dw_replay_options), "dw_replay_options"},
        {store_driver, sizeof(dw_store_driver), "dw_store_driver"},
        {store_open, sizeof(dw_store_options), "dw_store_options"},
        {write_file, sizeof(dw_checkpoint_write_options), "dw_checkpoint_write_options"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        larger given = {.struct_bytes = 0};
        dw_error err = {0};
        assert_int_equal(calls[i].call(&given, &err), DW_INVALID);
        assert_non_null(strstr(err.text, calls[i].type));
        assert_true(calls[i].n_bytes < sizeof given);
        given.struct_bytes = sizeof given;
        given.bytes[sizeof given - 1] = 1;
        assert_int_equal(calls[i].call(&given, &err), DW_UNSUPPORTED);
        assert_non_null(strstr(err.text, calls[i].type));
    }
}

/* An older program's options: those of a diff before its last member was added. */
TEST(test_shorter_options)
{
    dw_diff_options options;
    dw_diff_options_init(&options);
    memset(&options.progress, 0xee, sizeof options.progress); /* must not be read */
    options.struct_bytes = offsetof(dw_diff_options, progress);
    uint64_t dims[] = {4};
    float old_values[4] = {1, 2, 3, 4}, new_values[4] = {1, 2, 5, 4};
    const dw_tensor base = {"w", DW_F32, 1, dims, sizeof old_values, old_values, 0, NULL};
    const dw_tensor next = {"w", DW_F32, 1, dims, sizeof new_values, new_values, 0, NULL};
    dw_delta *delta;
    dw_error err = {0};
    assert_int_equal(dw_delta_diff(&delta, &base, &next, 1, &options, &err), DW_OK);
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    assert_int_equal(info.n_changed, 1);
    dw_delta_close(delta);
}

RUN_TESTS(NULL, NULL)
