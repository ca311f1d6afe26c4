/* Sharded publishes: ranks as threads, each with a publisher of its own. */
/* labels: threads */
#include <pthread.h>

#include "unit/suite.h"

#include "base/error.h"
#include "deltawire/checkpoint.h"
#include "publish/publisher.h"
#include "stream/record.h"
#include "unit/collective.h"
#include "unit/late_store.h"
#include "unit/pass_store.h"
#include "unit/temp_dir.h"
#include "unit/world.h"
#include "inner.h"

#define MAX_RANKS  4
#define MAX_SHARDS 16

typedef struct rank {
    dw_store *store;
    dw_publish_options options;
    const dw_tensor *tensors; /* NULL: those of the kit */
    size_t n_tensors;         /* 0: as many as the kit has */
    dw_shard shards[MAX_SHARDS];
    uint8_t *data; /* the rank's own copy of what it owns */
    size_t offsets[MAX_SHARDS];
    dw_publisher *p;
    char step[32];
    dw_status status;
    dw_error error;
    dw_publish_report report;
    uint64_t ticket;
} rank;

typedef struct job {
    size_t n;
    rank ranks[MAX_RANKS];
    char name[32];
} job;

static uint64_t elems_of(const dw_tensor *t)
{
    uint64_t n = 0;
    assert_true(dw_shape_size(t->dtype, t->n_dims, t->dims, &n, NULL));
    return n;
}

static uint64_t bytes_of(const dw_tensor *t, uint64_t n)
{
    return n * dw_dtype_bits(t->dtype) / 8;
}

static void add_shard(rank *r, size_t tensor, uint64_t first, uint64_t n)
{
    const dw_tensor *t = &k.tensors[tensor];
    const size_t i = r->options.n_shards++;
    assert_true(i < MAX_SHARDS);
    r->offsets[i] = (size_t)((uint8_t *)t->data - k.bytes) + bytes_of(t, first);
    r->shards[i] = (dw_shard){tensor, first, n, malloc(bytes_of(t, n) + 1)};
}

/* Every rank takes the weights of its part from the model. */
static void load(job *j)
{
    for (size_t i = 0; i < j->n; i++)
        for (size_t s = 0; s < j->ranks[i].options.n_shards; s++) {
            const rank *r = &j->ranks[i];
            const dw_shard *shard = &r->shards[s];
            memcpy(shard->data, k.bytes + r->offsets[s],
                   bytes_of(&k.tensors[shard->tensor], shard->n_elems));
        }
}

/* Cuts the model at odd positions. If IDLE, the last of several ranks owns nothing. */
static void make_job(job *j, size_t n, bool idle)
{
    static unsigned n_jobs;
    *j = (job){.n = n};
    snprintf(j->name, sizeof j->name, "job-%u", n_jobs++);
    for (size_t i = 0; i < n; i++) {
        rank *r = &j->ranks[i];
        *r = (rank){.store = store};
        dw_publish_options_init(&r->options);
        r->options.n_threads = 1;
        r->options.rank = (uint32_t)i;
        r->options.n_ranks = (uint32_t)n;
        r->options.job = j->name;
        r->options.shards = r->shards;
        r->options.rank_timeout_ms = 300000;
    }
    const size_t n_busy = idle ? n - 1 : n;
    for (size_t t = KIT_TENSORS; t-- > 0;) {
        const uint64_t total = elems_of(&k.tensors[t]);
        const bool packed = dw_dtype_bits(k.tensors[t].dtype) < 8;
        uint64_t first = 0;
        for (size_t i = 0; i < n_busy; i++) {
            uint64_t end = i + 1 == n_busy ? total : total * (2 * i + 1) / (2 * n_busy);
            if (packed)
                end = end / 2 * 2;
            if (total == 0 && i > 0)
                break; /* an empty tensor has one owner */
            add_shard(&j->ranks[i], t, first, end - first);
            first = end;
        }
    }
    load(j);
}

static void free_job(job *j)
{
    for (size_t i = 0; i < j->n; i++) {
        dw_publisher_close(j->ranks[i].p);
        for (size_t s = 0; s < j->ranks[i].options.n_shards; s++)
            free(j->ranks[i].shards[s].data);
    }
}

/* ---- all ranks at once ---- */

static void *open_rank(void *context)
{
    rank *r = context;
    r->error = (dw_error){0};
    r->status = dw_publisher_open(&r->p, r->store, r->tensors ? r->tensors : k.tensors,
                                  r->n_tensors > 0 ? r->n_tensors : KIT_TENSORS,
                                  &r->options, &r->error);
    return NULL;
}

static void *publish_rank(void *context)
{
    rank *r = context;
    r->error = (dw_error){0};
    r->status = dw_publisher_publish(
        r->p, &r->ticket,
        &(dw_publish_note){.struct_bytes = sizeof(dw_publish_note), .step = r->step},
        &r->error);
    if (r->status != DW_OK)
        return NULL;
    r->status = dw_publisher_wait(r->p, r->ticket, UINT_MAX, NULL, &r->report, &r->error);
    return NULL;
}

/* Runs FN for the ranks whose bit is set. */
static void run_ranks(job *j, void *(*fn)(void *), unsigned which)
{
    pthread_t threads[MAX_RANKS];
    for (size_t i = 0; i < j->n; i++)
        if (which >> i & 1)
            assert_int_equal(pthread_create(&threads[i], NULL, fn, &j->ranks[i]), 0);
    for (size_t i = 0; i < j->n; i++)
        if (which >> i & 1)
            pthread_join(threads[i], NULL);
    for (size_t i = 0; i < j->n; i++)
        if (which >> i & 1)
            assert_told(j->ranks[i].status, &j->ranks[i].error);
}

#define ALL 15u

static void expect_all(const job *j, dw_status wanted)
{
    for (size_t i = 0; i < j->n; i++)
        if (wanted == DW_OK)
            assert_ok(j->ranks[i].status, &j->ranks[i].error);
        else
            assert_fails(j->ranks[i].status, wanted, &j->ranks[i].error);
}

/* All ranks get the weights, as an attempt of their own, whose number is the step. */
static size_t next_step(job *j)
{
    const size_t attempt = kit_keep(&k);
    for (size_t i = 0; i < j->n; i++)
        snprintf(j->ranks[i].step, sizeof j->ranks[i].step, "%zu", attempt);
    load(j);
    return attempt;
}

static void open_all(job *j)
{
    run_ranks(j, open_rank, ALL);
    expect_all(j, DW_OK);
}

/* From now on rank I waits so long for the others. Ranks that must succeed get a long
 * time: a busy machine may stop a thread for seconds. */
static void limit_rank(job *j, size_t i, unsigned timeout_ms)
{
    j->ranks[i].p->options.rank_timeout_ms = timeout_ms;
}

/* Publishes the model; it must become version WANTED. */
static void publish_all(job *j, uint64_t wanted)
{
    const size_t attempt = next_step(j);
    run_ranks(j, publish_rank, ALL);
    expect_all(j, DW_OK);
    for (size_t i = 0; i < j->n; i++)
        assert_int_equal(dw_publisher_version(j->ranks[i].p), wanted);
    k.reported[attempt] = wanted + 1;
}

/* ---- tests ---- */

TEST(test_rounds)
{
    for (unsigned how = 0; how < 4; how++) {
        begin();
        dw_error err = {0};
        char base[128];
        snprintf(base, sizeof base, "%s/base.safetensors", temp_dir);
        assert_ok(dw_checkpoint_write(base, k.tensors, KIT_TENSORS, NULL, &err), &err);
        uint64_t v = 0;
        static const size_t n_ranks[] = {3, 2, 4, 1};
        for (unsigned start = 0; start < 4; start++) {
            job j; /* each start has another number of ranks */
            make_job(&j, n_ranks[start], how & 2 && n_ranks[start] > 1);
            for (size_t i = 0; i < j.n; i++) {
                j.ranks[i].options.first = how & 1 ? DW_FIRST_BASE : DW_FIRST_ANCHOR;
                j.ranks[i].options.base = how & 1 ? base : NULL;
                j.ranks[i].options.max_object_bytes = 1000;
            }
            open_all(&j);
            static const unsigned changes[] = {20, 0, 1000};
            for (unsigned i = 0; i < 3; i++) {
                kit_step(&k, changes[i]);
                publish_all(&j, ++v);
            }
            free_job(&j);
        }
        dw_follow_options follow;
        dw_follow_options_init(&follow);
        follow.base = base;
        kit_check_stream(&k, store, &follow);
        end();
    }
}

/* A rank that never publishes leaves no commit; the next round covers it. */
TEST(test_dead_rank)
{
    for (unsigned dead = 0; dead < 3; dead++) {
        begin();
        job j;
        make_job(&j, 3, false);
        open_all(&j);
        kit_step(&k, 20);
        publish_all(&j, 1);
        free_job(&j);
        make_job(&j, 3, false);
        open_all(&j);
        for (size_t i = 0; i < 3; i++)
            limit_rank(&j, i, 300);
        kit_step(&k, 20);
        load(&j);
        for (size_t i = 0; i < 3; i++)
            strcpy(j.ranks[i].step, "999");
        run_ranks(&j, publish_rank, ALL & ~(1u << dead));
        for (unsigned i = 0; i < 3; i++)
            if (i != dead)
                assert_int_equal(j.ranks[i].status, DW_UNAVAILABLE);
        assert_int_equal(kit_find(store, "commits/", "", NULL), 2);
        free_job(&j);
        /* the job starts again */
        make_job(&j, 3, false);
        open_all(&j);
        kit_step(&k, 20);
        publish_all(&j, 2);
        kit_step(&k, 20);
        publish_all(&j, 3);
        free_job(&j);
        check_and_end();
    }
}

/* Two ranks that own the same part, and a part that nobody owns: all ranks hear at once
 * which it is. */
TEST(test_wrong_parts)
{
    for (unsigned gap = 0; gap < 2; gap++) {
        begin();
        job j;
        make_job(&j, 3, false);
        dw_shard *shard = &j.ranks[1].shards[0];
        if (gap)
            shard->n_elems--;
        else
            shard->first--;
        run_ranks(&j, open_rank, ALL);
        assert_int_equal(j.ranks[0].status, DW_INVALID);
        for (size_t i = 1; i < 3; i++)
            assert_int_equal(j.ranks[i].status, DW_UNAVAILABLE);
        for (size_t i = 0; i < 3; i++) {
            const char *said = j.ranks[i].error.text;
            assert_non_null(strstr(said, k.tensors[shard->tensor].name));
            assert_non_null(strstr(said, gap ? "no rank has" : "ranks 0 and 1 both"));
        }
        assert_int_equal(kit_find(store, "commits/", "", NULL), 0);
        free_job(&j);
        end();
    }
}

/* A start that reuses the name of a job takes no part in the earlier one. */
TEST(test_job_again)
{
    begin();
    job j, again;
    make_job(&j, 2, false);
    open_all(&j);
    make_job(&again, 2, false);
    for (size_t i = 0; i < 2; i++)
        again.ranks[i].options.job = j.name;
    again.ranks[1].options.rank_timeout_ms = 300;
    open_rank(&again.ranks[1]);
    assert_int_equal(again.ranks[1].status, DW_UNAVAILABLE);
    assert_non_null(strstr(again.ranks[1].error.text, "another `job`"));
    kit_step(&k, 20);
    publish_all(&j, 1); /* undisturbed */
    again.ranks[1].options.rank_timeout_ms = 300000;
    open_all(&again); /* both: then the name does not matter */
    kit_step(&k, 20);
    publish_all(&again, 2);
    free_job(&again);
    for (size_t i = 0; i < 2; i++)
        strcpy(j.ranks[i].step, "99");
    run_ranks(&j, publish_rank, ALL);
    assert_int_equal(j.ranks[0].status, DW_CONFLICT);
    assert_int_not_equal(j.ranks[1].status, DW_OK);
    free_job(&j);
    check_and_end();
}

/* Rank 0 signs commits that name the objects of all ranks: it takes no receipt that
 * anybody may have put. */
TEST(test_unsigned_receipt)
{
    char text[DW_PUBLIC_KEY_TEXT];
    dw_error err = {0};
    dw_sign_key *key = NULL;
    assert_ok(dw_sign_key_create(temp_path("key"), text, &err), &err);
    assert_ok(dw_sign_key_open(&key, temp_path("key"), &err), &err);
    for (int n_signed = 1; n_signed <= 2; n_signed++) {
        begin();
        job j;
        make_job(&j, 2, false);
        for (int i = 0; i < n_signed; i++)
            j.ranks[i].options.sign_key = key;
        if (n_signed == 1)
            j.ranks[1].options.rank_timeout_ms = 1500;
        run_ranks(&j, open_rank, ALL);
        assert_int_equal(j.ranks[0].status, n_signed == 2 ? DW_OK : DW_UNTRUSTED);
        assert_int_equal(kit_find(store, "commits/", "", NULL), n_signed == 2 ? 1 : 0);
        free_job(&j);
        end();
    }
    dw_sign_key_close(key);
}

/* The commit of an abandoned round arrives in the middle of the next, in which a rank has
 * nothing to upload: its part of the version differs from its current weights. */
TEST(test_late_commit)
{
    begin();
    late_store late = {.inner = store};
    store = late_open(&late);
    job j;
    make_job(&j, 2, false);
    open_all(&j);
    late.hold = true;
    kit_step(&k, 100);
    next_step(&j);
    run_ranks(&j, publish_rank, ALL);
    expect_all(&j, DW_UNAVAILABLE);
    /* back to version 0: nothing to upload */
    late.hold = false;
    late.before_others = true;
    memcpy(k.bytes, k.copies[0], k.n_bytes);
    next_step(&j);
    run_ranks(&j, publish_rank, ALL);
    expect_all(&j, DW_UNAVAILABLE);
    publish_all(&j, 2);
    kit_step(&k, 20);
    publish_all(&j, 3);
    free_job(&j);
    end_over(late.inner);
}

/* ---- ranks that lose each other ---- */

/* What one rank does by itself: it publishes steps, each with the weights of that step,
 * and goes on if one fails. */
typedef struct walk {
    rank *r;
    const unsigned *steps; /* 0: the end */
    dw_status last;
} walk;

static void *walk_steps(void *context)
{
    walk *w = context;
    rank *r = w->r;
    for (const unsigned *step = w->steps; *step; step++) {
        for (size_t s = 0; s < r->options.n_shards; s++)
            memcpy(r->shards[s].data, k.copies[*step] + r->offsets[s],
                   bytes_of(&k.tensors[r->shards[s].tensor], r->shards[s].n_elems));
        snprintf(r->step, sizeof r->step, "%u", *step);
        publish_rank(r);
        w->last = r->status;
    }
    return NULL;
}

/* A rank that skips a step, has one more, or repeats one costs at most that version: each
 * version is one step on all ranks. Nobody waits for the limit, which is long. */
TEST(test_lost_ranks)
{
    static const unsigned walks[][2][12] = {
        {{1, 2, 3, 4, 5, 6}, {2, 3, 4, 5, 6}},    /* rank 1 begins later */
        {{2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}},    /* or rank 0 */
        {{1, 2, 4, 6}, {1, 3, 4, 5, 6}},          /* both skip */
        {{1, 2, 2, 2, 3, 6}, {1, 2, 3, 3, 4, 6}}, /* both repeat */
        {{1, 3, 5, 6}, {2, 4, 6}},                /* they meet only at the end */
        {{1, 2, 3, 4, 5, 6}, {6}},
        {{6}, {1, 2, 3, 4, 5, 6}},
    };
    for (size_t i = 0; i < sizeof walks / sizeof *walks; i++) {
        begin();
        job j;
        make_job(&j, 2, false);
        open_all(&j);
        for (unsigned step = 1; step <= 6; step++) {
            kit_step(&k, 50);
            assert_int_equal(kit_keep(&k), step);
        }
        walk w[2] = {{&j.ranks[0], walks[i][0], DW_OK},
                     {&j.ranks[1], walks[i][1], DW_OK}};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, walk_steps, &w[1]), 0);
        walk_steps(&w[0]);
        pthread_join(thread, NULL);
        for (size_t r = 0; r < 2; r++) {
            assert_ok(w[r].last, &j.ranks[r].error);
            assert_int_equal(dw_publisher_version(j.ranks[r].p),
                             kit_find(store, "commits/", "", NULL) - 1);
        }
        free_job(&j);
        check_and_end();
    }
}

/* Without a step, or with one that goes back, ranks could mix steps. */
TEST(test_steps)
{
    begin();
    job j;
    make_job(&j, 2, false);
    open_all(&j);
    static const char *const wrong[] = {"", "last", "-1", "1.5", "9007199254740993"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        strcpy(j.ranks[0].step, wrong[i]);
        publish_rank(&j.ranks[0]);
        assert_int_equal(j.ranks[0].status, DW_INVALID);
    }
    kit_step(&k, 20);
    publish_all(&j, 1);
    kit_step(&k, 20);
    publish_all(&j, 2);
    run_ranks(&j, publish_rank, ALL); /* the same step again is the same version */
    for (size_t i = 0; i < 2; i++) {
        assert_ok(j.ranks[i].status, &j.ranks[i].error);
        assert_int_equal(j.ranks[i].report.version, 2);
    }
    kit_step(&k, 200);
    load(&j);
    run_ranks(&j, publish_rank, ALL); /* unless its weights differ */
    strcpy(j.ranks[0].step, "1");
    expect_all(&j, DW_INVALID);
    publish_rank(&j.ranks[0]);
    assert_int_equal(j.ranks[0].status, DW_INVALID);
    assert_non_null(strstr(j.ranks[0].error.text, "go up"));
    publish_all(&j, 3);
    free_job(&j);
    check_and_end();
}

static dw_status refuse(void *refuses, dw_error *err)
{
    return *(const bool *)refuses ? dw_fail(err, DW_IO, NULL, "no space is left") : DW_OK;
}

/* A rank that fails says so: no rank waits for the limit, which is long, and all name the
 * reason. */
TEST(test_failed_rank)
{
    for (size_t who = 0; who < 3; who++) {
        begin();
        job j;
        bool refuses = false;
        make_job(&j, 3, false);
        j.ranks[who].options.confirm = refuse;
        j.ranks[who].options.confirm_context = &refuses;
        open_all(&j);
        for (uint64_t version = 1; version < 4; version++) {
            kit_step(&k, 20);
            next_step(&j);
            refuses = true;
            run_ranks(&j, publish_rank, ALL);
            for (size_t i = 0; i < 3; i++) {
                assert_int_equal(j.ranks[i].status, i == who ? DW_IO : DW_UNAVAILABLE);
                assert_non_null(strstr(j.ranks[i].error.text, "no space is left"));
            }
            refuses = false;
            kit_step(&k, 20);
            publish_all(&j, version);
        }
        free_job(&j);
        check_and_end();
    }
}

/* The store refuses its part and then its receipt: it tells the others when it can. */
TEST(test_failed_rank_without_a_store)
{
    for (size_t who = 0; who < 3; who++) {
        begin();
        job j;
        kit_faults faults = {
            .kind = STORE_FAULT_DENY, .n = 2, .operation = "put", .part = "0"};
        make_job(&j, 3, false);
        j.ranks[who].store = kit_fault_store(store, &faults);
        open_all(&j);
        kit_step(&k, 20);
        next_step(&j);
        faults.n_seen = 0;
        faults.on = true;
        run_ranks(&j, publish_rank, ALL);
        faults.on = false;
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(j.ranks[i].status, i == who ? DW_DENIED : DW_UNAVAILABLE);
            if (i != who) /* not that they waited in vain */
                assert_non_null(strstr(j.ranks[i].error.text, "access is denied"));
        }
        assert_true(faults.n_seen > faults.n);
        kit_step(&k, 20);
        publish_all(&j, 1);
        dw_store *refuses = j.ranks[who].store;
        free_job(&j);
        dw_store_close(refuses);
        check_and_end();
    }
}

/* A step failed on one rank, and all publish it again, with other weights: what a rank
 * did in the first attempt is no part of the second. */
TEST(test_step_again)
{
    for (size_t who = 0; who < 2; who++) {
        begin();
        job j;
        bool refuses = false;
        make_job(&j, 2, false);
        j.ranks[who].options.confirm = refuse;
        j.ranks[who].options.confirm_context = &refuses;
        open_all(&j);
        for (size_t i = 0; i < 2; i++)
            strcpy(j.ranks[i].step, "1");
        kit_step(&k, 100);
        load(&j);
        refuses = true;
        run_ranks(&j, publish_rank, ALL);
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(j.ranks[i].status, i == who ? DW_IO : DW_UNAVAILABLE);
        refuses = false;
        kit_step(&k, 100);
        assert_int_equal(kit_keep(&k), 1);
        load(&j);
        pthread_t first;
        assert_int_equal(pthread_create(&first, NULL, publish_rank, &j.ranks[0]), 0);
        dw_publisher_drained(j.ranks[0].p, 300); /* it waits for rank 1 */
        publish_rank(&j.ranks[1]);
        pthread_join(first, NULL);
        for (size_t i = 0; i < 2; i++) {
            assert_ok(j.ranks[i].status, &j.ranks[i].error);
            assert_int_equal(j.ranks[i].report.version, 1);
        }
        free_job(&j);
        check_and_end();
    }
}

/* A rank without weights must not take the late commit of an earlier step for that of its
 * own: then it would not come when the step is published again. */
TEST(test_late_commit_idle)
{
    begin();
    late_store late = {.inner = store};
    store = late_open(&late);
    job j;
    make_job(&j, 2, true);
    open_all(&j);
    for (unsigned turn = 0; turn < 2; turn++) {
        late.hold = turn == 0;
        late.before_others = turn == 1;
        kit_step(&k, 100);
        next_step(&j);
        run_ranks(&j, publish_rank, ALL);
        expect_all(&j, DW_UNAVAILABLE);
    }
    run_ranks(&j, publish_rank, ALL);
    for (size_t i = 0; i < 2; i++) {
        assert_ok(j.ranks[i].status, &j.ranks[i].error);
        assert_int_equal(j.ranks[i].report.version, 2);
    }
    free_job(&j);
    end_over(late.inner);
}

/* If another writer takes the stream over, no rank waits for the limit, which is long;
 * nor if a rank does not come any more. */
TEST(test_taken_over)
{
    for (size_t dead = 0; dead <= 3; dead++) {
        begin();
        job j, other;
        make_job(&j, 3, false);
        open_all(&j);
        make_job(&other, 1, false);
        open_all(&other);
        kit_step(&k, 20);
        load(&j);
        for (size_t i = 0; i < 3; i++)
            strcpy(j.ranks[i].step, "5");
        run_ranks(&j, publish_rank, ALL & ~(1u << dead));
        for (size_t i = 0; i < 3; i++)
            if (i != dead)
                assert_int_equal(j.ranks[i].status, DW_CONFLICT);
        free_job(&j);
        free_job(&other);
        end();
    }
}

/* Only rank 0 creates the stream: one that another rank would make of a wrong model would
 * stay. */
TEST(test_wrong_model)
{
    begin();
    job j;
    make_job(&j, 2, false);
    dw_tensor wrong[KIT_TENSORS];
    memcpy(wrong, k.tensors, sizeof wrong);
    wrong[0].name = "another";
    j.ranks[1].tensors = wrong;
    j.ranks[1].options.rank_timeout_ms = 300;
    open_rank(&j.ranks[1]); /* rank 0 does not come */
    assert_int_equal(j.ranks[1].status, DW_UNAVAILABLE);
    assert_int_equal(kit_find(store, "", "", NULL), 0);
    j.ranks[1].options.rank_timeout_ms = 300000;
    run_ranks(&j, open_rank, ALL);
    assert_int_equal(j.ranks[1].status, DW_MISMATCH);
    assert_int_equal(j.ranks[0].status, DW_UNAVAILABLE);
    assert_non_null(strstr(j.ranks[0].error.text, "rank 1"));
    assert_non_null(strstr(j.ranks[0].error.text, "another"));
    free_job(&j);
    make_job(&j, 2, false);
    open_all(&j);
    free_job(&j);
    check_and_end();
}

static void *publish_and_close(void *context)
{
    rank *r = context;
    publish_rank(r);
    dw_publisher_close(r->p);
    r->p = NULL;
    return NULL;
}

/* If a rank is closed, the others hear it at once: their limit is long. What it had taken
 * part in is a version on all ranks. */
TEST(test_closed_rank)
{
    for (size_t gone = 0; gone < 3; gone++) {
        begin();
        job j;
        make_job(&j, 3, false);
        open_all(&j);
        kit_step(&k, 20);
        publish_all(&j, 1);
        dw_publisher_close(j.ranks[gone].p);
        j.ranks[gone].p = NULL;
        for (size_t i = 0; i < 3; i++)
            strcpy(j.ranks[i].step, "999");
        run_ranks(&j, publish_rank, ALL & ~(1u << gone));
        for (size_t i = 0; i < 3; i++) {
            if (i == gone)
                continue;
            assert_int_equal(j.ranks[i].status, DW_UNAVAILABLE);
            assert_non_null(strstr(j.ranks[i].error.text, "its publisher was closed"));
        }
        free_job(&j);
        for (uint64_t version = 2; version < 5; version++) {
            make_job(&j, 3, false);
            open_all(&j);
            kit_step(&k, 20);
            const size_t attempt = next_step(&j);
            run_ranks(&j, publish_and_close, ALL);
            expect_all(&j, DW_OK);
            k.reported[attempt] = version + 1;
            free_job(&j);
        }
        check_and_end();
    }
}

/* A rank that fails before it takes part in an epoch: the others hear why, at once. */
TEST(test_failed_start)
{
    begin();
    job j;
    dw_tensor wrong[KIT_TENSORS];
    memcpy(wrong, k.tensors, sizeof wrong);
    wrong[0].name = "__metadata__";
    const uint8_t keys[1][DW_PUBLIC_KEY_BYTES] = {{7}};
    static const dw_status codes[] = {DW_INVALID, DW_MISMATCH, DW_UNTRUSTED};
    static const char *const says[] = {"__metadata__", "another", "signed"};
    for (size_t i = 0; i < 3; i++) {
        const size_t who = i < 2 ? 0 : 1;
        make_job(&j, 3, false);
        if (who == 0)
            j.ranks[0].tensors = wrong;
        else
            j.ranks[1].options.trust = (dw_trust){keys, 1, NULL};
        run_ranks(&j, open_rank, ALL);
        for (size_t r = 0; r < 3; r++) {
            assert_int_equal(j.ranks[r].status, r == who ? codes[i] : DW_UNAVAILABLE);
            assert_non_null(strstr(j.ranks[r].error.text, says[i]));
        }
        free_job(&j);
        wrong[0].name = "another";
        make_job(&j, 3, false);
        open_all(&j);
        kit_step(&k, 20);
        publish_all(&j, i + 1);
        free_job(&j);
    }
    check_and_end();
}

/* Ranks that agree do not begin a step that one of them refused. */
TEST(test_bad_note)
{
    begin();
    job j;
    collective all;
    collective_open(&all, 2, 300);
    make_job(&j, 2, false);
    for (size_t i = 0; i < j.n; i++) {
        j.ranks[i].options.agree = collective_agree;
        j.ranks[i].options.agree_context = &all;
        j.ranks[i].options.max_wait_ms = 300000;
    }
    open_all(&j);
    limit_rank(&j, 0, 1000); /* it must not wait for rank 1 at all */
    strcpy(j.ranks[0].step, "1");
    strcpy(j.ranks[1].step, "\xff");
    run_ranks(&j, publish_rank, ALL);
    assert_int_equal(j.ranks[0].ticket, DW_TICKET_SKIPPED);
    assert_int_equal(j.ranks[1].ticket, DW_TICKET_SKIPPED);
    assert_non_null(strstr(j.ranks[1].error.text, "UTF-8"));
    limit_rank(&j, 0, 300000);
    kit_step(&k, 20);
    publish_all(&j, 1);
    free_job(&j);
    kit_check_stream(&k, store, NULL);
    collective_close(&all);
    end();
}

/* Every call of one of the ranks fails in turn; rounds go on until one succeeds. */
TEST(test_faults)
{
    static const store_fault kinds[] = {STORE_FAULT_LOST, STORE_FAULT_FAIL,
                                        STORE_FAULT_STALE};
    for (unsigned turn = 0; turn < 12; turn++) {
        const size_t who = turn % 2, kind = turn / 2 % 3;
        begin();
        kit_faults faults = {.kind = kinds[kind], .first = turn / 2, .n = 1 + turn % 4};
        dw_store *faulty = kit_fault_store(store, &faults);
        job j;
        make_job(&j, 2, false);
        j.ranks[who].store = faulty;
        open_all(&j);
        for (size_t i = 0; i < 2; i++)
            limit_rank(&j, i, 400);
        faults.n_seen = 0;
        faults.on = true;
        unsigned n_good = 0;
        for (unsigned i = 0; i < 200 && n_good < 2; i++) {
            kit_step(&k, i % 3 == 1 ? 0 : 20);
            size_t attempt = next_step(&j);
            run_ranks(&j, publish_rank, ALL);
            if (j.ranks[0].status == DW_OK)
                k.reported[attempt] = dw_publisher_version(j.ranks[0].p) + 1;
            n_good += j.ranks[0].status == DW_OK && j.ranks[1].status == DW_OK;
        }
        assert_int_equal(n_good, 2);
        free_job(&j);
        dw_store_close(faulty);
        check_and_end();
    }
}

/* ---- late joiners ---- */

typedef struct meter {
    dw_store *inner;
    _Atomic uint64_t n_bytes; /* of objects that were read */
} meter;

static dw_status meter_get(void *self, const char *key, uint64_t offset, void *into,
                           size_t n, size_t *n_read, const dw_progress *progress,
                           dw_error *err)
{
    meter *m = self;
    dw_status status =
        dw_store_get(m->inner, key, offset, into, n, n_read, progress, err);
    if (status == DW_OK && strncmp(key, "objects/", 8) == 0)
        m->n_bytes += *n_read;
    return status;
}

/* Rank 0 makes folds and anchors, so a follower that joins at version 200 fetches hardly
 * more than the model. */
TEST(test_late_joiner)
{
    enum { N = 200000, RANKS = 3, VERSIONS = 200 };
    const uint64_t dims[] = {N};
    uint16_t *live = calloc(N, 2), *found = calloc(N, 2);
    const dw_tensor tensor = {"t", DW_BF16, 1, dims, 2ull * N, live, 0, NULL};
    const dw_element element = dw_dtype_element(DW_BF16);
    dw_error err = {0};
    job j = {.n = RANKS};
    store = kit_mem_store();
    fill_weights(live, N, element);
    for (size_t i = 0; i < RANKS; i++) {
        rank *r = &j.ranks[i];
        const uint64_t first = N * i / RANKS, last = N * (i + 1) / RANKS;
        *r = (rank){.store = store, .tensors = &tensor, .n_tensors = 1};
        dw_publish_options_init(&r->options);
        r->shards[0] = (dw_shard){0, first, last - first, live + first};
        r->options.shards = r->shards;
        r->options.n_shards = 1;
        r->options.n_threads = 1;
        r->options.rank = (uint32_t)i;
        r->options.n_ranks = RANKS;
        r->options.job = "late";
        r->options.rank_timeout_ms = 300000;
        r->options.spool_dir = temp_dir;
    }
    open_all(&j);
    for (unsigned v = 1; v <= VERSIONS; v++) {
        change_weights(live, N, element, 5);
        for (size_t i = 0; i < RANKS; i++)
            snprintf(j.ranks[i].step, sizeof j.ranks[i].step, "%u", v);
        run_ranks(&j, publish_rank, ALL);
        for (size_t i = 0; i < RANKS; i++)
            assert_ok(j.ranks[i].status, &j.ranks[i].error);
    }
    assert_ok(dw_publisher_drain(j.ranks[0].p, &err), &err);
    assert_true(kit_find(store, "ways/", "-anchor", NULL) > 0);

    meter m = {.inner = store};
    dw_store *metered =
        pass_open(&(dw_store_driver){.name = "meter", .get = meter_get}, &m);
    dw_tensor target = tensor;
    target.data = found;
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.tensors = &target;
    follow.n_tensors = 1;
    follow.tensors_empty = true;
    dw_follower *f;
    assert_ok(dw_follower_open(&f, metered, &follow, &err), &err);
    assert_ok(dw_follower_sync(f, DW_NEWEST, NULL, NULL, &err), &err);
    assert_int_equal(dw_follower_version(f), VERSIONS);
    assert_memory_equal(found, live, 2ull * N);
    print_message("a joiner at version %d fetched %.3f models\n", VERSIONS,
                  (double)m.n_bytes / (2.0 * N));
    assert_true(m.n_bytes * 100 <= 115 * 2ull * N);
    dw_follower_close(f);
    for (size_t i = 0; i < RANKS; i++)
        dw_publisher_close(j.ranks[i].p);
    dw_store_close(metered);
    dw_store_close(store);
    free(live);
    free(found);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
