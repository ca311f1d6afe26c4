/* F32 masters that are published as BF16, and tensors that the caller declares unchanged.
 */
/* labels: threads */
#include <limits.h>

#include "unit/suite.h"

#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

enum { N_LARGE = 1500003, N_SMALL = 77, N_TENSORS = 4 };

/* A model of masters, and the weights that a follower must have. */
typedef struct trainer {
    float *large, *small;
    uint16_t *plain;
    float single;
    dw_tensor tensors[N_TENSORS];
    bool as_bf16[N_TENSORS];
} trainer;

static const uint64_t large_dims[] = {N_LARGE}, small_dims[] = {7, 11};

static void trainer_make(trainer *m)
{
    *m = (trainer){.large = calloc(N_LARGE, sizeof(float)),
                   .small = calloc(N_SMALL, sizeof(float)),
                   .plain = calloc(N_SMALL, sizeof(uint16_t)),
                   .single = 0.1f,
                   .as_bf16 = {true, false, true, false}};
    for (size_t i = 0; i < N_LARGE; i++)
        m->large[i] = (float)(1 + random_below(1000)) * 1e-5f;
    for (size_t i = 0; i < N_SMALL; i++)
        m->small[i] = (float)i;
    const dw_tensor tensors[] = {
        {"w.large", DW_F32, 1, large_dims, N_LARGE * 4, m->large, 0, NULL},
        {"b.plain", DW_BF16, 2, small_dims, N_SMALL * 2, m->plain, 0, NULL},
        {"a.small", DW_F32, 2, small_dims, N_SMALL * 4, m->small, 0, NULL},
        {"z.kept", DW_F32, 0, NULL, 4, &m->single, 0, NULL}, /* stays F32 */
    };
    memcpy(m->tensors, tensors, sizeof tensors);
}

static void trainer_free(trainer *m)
{
    free(m->large);
    free(m->small);
    free(m->plain);
}

/* Moves PER_MILLE of the masters by less than a BF16 step, or by more. */
static void trainer_step(trainer *m, unsigned per_mille)
{
    for (size_t i = 0; i < N_LARGE; i++)
        if (random_below(1000) < per_mille)
            m->large[i] *= 1 + (float)random_below(100) * 1e-3f;
    m->small[random_below(N_SMALL)] += 1;
    m->plain[random_below(N_SMALL)] += 1;
    m->single += 1;
}

static dw_publish_options options_of(const trainer *m)
{
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.fold_every = 0;
    options.anchor_factor = 0;
    options.spool_dir = temp_dir;
    options.n_threads = 2;
    options.as_bf16 = m->as_bf16;
    return options;
}

static dw_publisher *open_trainer(trainer *m, dw_store *store,
                                  const dw_publish_options *options)
{
    dw_error err = {0};
    dw_publisher *p;
    assert_ok(dw_publisher_open(&p, store, m->tensors, N_TENSORS, options, &err), &err);
    return p;
}

static dw_publish_report publish(dw_publisher *p, const bool *unchanged)
{
    uint64_t ticket;
    dw_error err = {0};
    dw_publish_report report;
    assert_ok(
        dw_publisher_publish(p, &ticket,
                             &(dw_publish_note){.struct_bytes = sizeof(dw_publish_note),
                                                .unchanged = unchanged},
                             &err),
        &err);
    assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err), &err);
    return report;
}

/* A follower's weights are the model's, rounded. */
typedef struct copy {
    uint16_t *large, *small, *plain;
    float single;
} copy;

static void fetch(copy *out, dw_store *store)
{
    *out = (copy){calloc(N_LARGE, 2), calloc(N_SMALL, 2), calloc(N_SMALL, 2), 0};
    const dw_tensor tensors[] = {
        {"w.large", DW_BF16, 1, large_dims, N_LARGE * 2, out->large, 0, NULL},
        {"b.plain", DW_BF16, 2, small_dims, N_SMALL * 2, out->plain, 0, NULL},
        {"a.small", DW_BF16, 2, small_dims, N_SMALL * 2, out->small, 0, NULL},
        {"z.kept", DW_F32, 0, NULL, 4, &out->single, 0, NULL},
    };
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.tensors = tensors;
    options.n_tensors = N_TENSORS;
    options.spool_dir = temp_dir;
    dw_error err = {0};
    dw_follower *f;
    assert_ok(dw_follower_open(&f, store, &options, &err), &err);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), &err);
    dw_follower_close(f);
}

static void copy_free(copy *c)
{
    free(c->large);
    free(c->small);
    free(c->plain);
}

static void check(const trainer *m, dw_store *store)
{
    copy got;
    fetch(&got, store);
    uint16_t *wanted = calloc(N_LARGE, 2);
    dw_cast_bf16(wanted, m->large, N_LARGE);
    assert_memory_equal(wanted, got.large, N_LARGE * 2);
    dw_cast_bf16(wanted, m->small, N_SMALL);
    assert_memory_equal(wanted, got.small, N_SMALL * 2);
    assert_memory_equal(m->plain, got.plain, N_SMALL * 2);
    assert_memory_equal(&m->single, &got.single, 4);
    free(wanted);
    copy_free(&got);
}

/* From hardly a change to all of it, which makes packed and stored blocks; with the
 * baseline in memory, in a directory, and after a new start. */
TEST(test_masters)
{
    const bool in_dir = *state != NULL;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    dw_publish_options options = options_of(&m);
    if (in_dir)
        options.baseline_dir = temp_path("baseline");
    static const unsigned steps[] = {0, 1, 10, 500, 1000};
    dw_publisher *p = open_trainer(&m, store, &options);
    check(&m, store);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        trainer_step(&m, steps[i]);
        if (i == 3) {
            dw_publisher_close(p);
            p = open_trainer(&m, store, &options);
        }
        publish(p, NULL);
        check(&m, store);
    }
    for (size_t i = 0; i < N_LARGE; i++) /* noise, which no codec compresses */
        m.large[i] = (float)(random_below(1u << 30)) * (random_below(2) ? 1.f : -1e-20f);
    publish(p, NULL);
    check(&m, store);
    dw_publisher_close(p);
    dw_store_close(store);
    trainer_free(&m);
}

TEST(test_masters_in_a_dir)
{
    void *yes = &yes;
    test_masters(&yes);
}

/* Two ranks, each with a range of the large tensor that begins anywhere. */
TEST(test_sharded_masters)
{
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    dw_publish_options options = options_of(&m);
    const uint64_t cut = 700001;
    const dw_shard shards[] = {
        {0, cut, N_LARGE - cut, m.large + cut},
        {1, 0, N_SMALL, m.plain},
        {2, 0, N_SMALL, m.small},
        {3, 0, 1, &m.single},
        {0, 0, cut, m.large},
    };
    options.shards = shards;
    options.n_shards = sizeof shards / sizeof *shards;
    dw_publisher *p = open_trainer(&m, store, &options);
    check(&m, store);
    for (unsigned i = 0; i < 3; i++) {
        trainer_step(&m, 10);
        publish(p, NULL);
        check(&m, store);
    }
    dw_publisher_close(p);
    dw_store_close(store);
    trainer_free(&m);
}

TEST(test_refused)
{
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    m.as_bf16[1] = true; /* a tensor that is already BF16 */
    dw_publish_options options = options_of(&m);
    dw_error err = {0};
    dw_publisher *p;
    assert_fails(dw_publisher_open(&p, store, m.tensors, N_TENSORS, &options, &err),
                 DW_INVALID, &err);
    assert_non_null(strstr(err.text, "b.plain"));
    dw_store_close(store);
    trainer_free(&m);
}

/* Tensors declared unchanged are trusted, but only if the stream has what the last
 * publish saw. */
TEST(test_unchanged)
{
    trainer m;
    trainer_make(&m);
    dw_store *inner = kit_mem_store();
    kit_faults faults = {.operation = "put", .n = UINT64_MAX, .kind = STORE_FAULT_DENY};
    dw_store *store = kit_fault_store(inner, &faults);
    dw_publish_options options = options_of(&m);
    dw_publisher *p = open_trainer(&m, store, &options);
    const bool none[N_TENSORS] = {false}, large[N_TENSORS] = {true},
               all[N_TENSORS] = {true, true, true, true};

    trainer_step(&m, 10); /* nothing was published before */
    assert_true(publish(p, all).n_changed > N_LARGE / 200);
    check(&m, inner);

    copy before, after;
    fetch(&before, inner);
    trainer_step(&m, 10);
    assert_in_range(publish(p, large).n_changed, 1,
                    3); /* a false claim, which is trusted */
    fetch(&after, inner);
    assert_memory_equal(before.large, after.large, N_LARGE * 2);
    copy_free(&before);
    copy_free(&after);
    publish(p, none);
    check(&m, inner);

    trainer_step(&m, 10);
    faults.on = true;
    uint64_t ticket;
    dw_error err = {0};
    assert_ok(
        dw_publisher_publish(p, &ticket,
                             &(dw_publish_note){.struct_bytes = sizeof(dw_publish_note),
                                                .unchanged = none},
                             &err),
        &err);
    assert_fails(dw_publisher_wait(p, ticket, UINT_MAX, NULL, NULL, &err), DW_DENIED,
                 &err);
    faults.on = false;
    /* unchanged since the last publish, but that one is not in the stream */
    assert_true(publish(p, all).n_changed > N_LARGE / 200);
    check(&m, inner);
    assert_true(publish(p, all).unchanged);
    dw_publisher_close(p);
    dw_store_close(store);
    dw_store_close(inner);
    trainer_free(&m);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
