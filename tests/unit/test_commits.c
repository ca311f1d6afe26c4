/* Commits in a store whose answers are wrong: only what it returns was committed. */
#include "unit/suite.h"

#include "base/error.h"
#include "unit/pass_store.h"

/* Answers some creates of commits without storing anything. */
typedef struct lying_store {
    dw_store *inner;
    dw_status answer;
    _Atomic unsigned n_lies; /* that are left */
    _Atomic bool has_epochs; /* says that it has every epoch */
} lying_store;

static dw_status lying_stat(void *self, const char *key, uint64_t *n, int64_t *time,
                            dw_error *err)
{
    lying_store *s = self;
    if (!s->has_epochs || strncmp(key, "epochs/", 7) != 0)
        return pass_stat(self, key, n, time, err);
    if (n)
        *n = 100;
    if (time)
        *time = 0;
    return DW_OK;
}

static dw_status lying_put(void *self, const char *key, const dw_source *source,
                           dw_put_mode mode, const dw_progress *progress, dw_error *err)
{
    lying_store *s = self;
    if (s->n_lies == 0 || strncmp(key, "commits/", 8) != 0)
        return dw_store_put(s->inner, key, source, mode, progress, err);
    s->n_lies--;
    return s->answer == DW_OK ? DW_OK : dw_fail(err, s->answer, key, "it exists");
}

static dw_store *lying_open(lying_store *s)
{
    return pass_open(
        &(dw_store_driver){.name = "lying", .put = lying_put, .stat = lying_stat}, s);
}

static kit k;

static void check_log(dw_store *store, uint64_t wanted)
{
    size_t log[KIT_COPIES];
    assert_int_equal(kit_read_log(&k, store, log), wanted);
}

static void publish_with_lies(dw_status answer)
{
    dw_error err = {0};
    dw_publish_report report = {0};
    dw_publish_options options = kit_plain_options(NULL);
    lying_store lying = {.inner = kit_mem_store(), .answer = answer};
    dw_store *store = lying_open(&lying);
    kit_make(&k);

    /* version 0 */
    dw_publisher *p;
    lying.n_lies = 100;
    assert_fails(dw_publisher_open(&p, store, k.tensors, KIT_TENSORS, &options, &err),
                 DW_UNAVAILABLE, &err);
    assert_int_equal(kit_find(lying.inner, "commits/", "", NULL), 0);
    lying.n_lies = 1;
    p = kit_open(&k, store, &options);
    check_log(lying.inner, 0);

    kit_step(&k, 20);
    lying.n_lies = 1;
    kit_publish(&k, p, 1); /* sent again */
    check_log(lying.inner, 1);

    kit_step(&k, 20);
    lying.n_lies = 100;
    assert_fails(kit_try(&k, p, &report, &err), DW_UNAVAILABLE, &err);
    assert_non_null(strstr(err.text, "does not return it"));
    check_log(lying.inner, 1);

    lying.n_lies = 0;
    kit_step(&k, 20);
    kit_publish(&k, p, 2);
    check_log(lying.inner, 2);

    dw_publisher_close(p);
    dw_store_close(store);
    dw_store_close(lying.inner);
    kit_free(&k);
}

TEST(test_lies)
{
    publish_with_lies(DW_OK);
    publish_with_lies(DW_CONFLICT);
}

/* A writer does not stop because of an epoch that nobody has claimed. */
TEST(test_epoch_of_nobody)
{
    dw_error err = {0};
    dw_publish_report report = {0};
    dw_publish_options options = kit_plain_options(NULL);
    lying_store lying = {.inner = kit_mem_store()};
    dw_store *store = lying_open(&lying);
    kit_make(&k);
    dw_publisher *p = kit_open(&k, store, &options);
    lying.has_epochs = true;
    for (uint64_t v = 1; v < 4; v++) {
        kit_step(&k, 20);
        kit_publish(&k, p, v);
    }
    dw_publisher_close(kit_open(&k, store, &options)); /* now somebody has */
    kit_step(&k, 20);
    assert_fails(kit_try(&k, p, &report, &err), DW_CONFLICT, &err);
    check_log(lying.inner, 3);
    dw_publisher_close(p);
    dw_store_close(store);
    dw_store_close(lying.inner);
    kit_free(&k);
}

RUN_TESTS(NULL, NULL)
