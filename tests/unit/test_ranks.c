/* Sharded publishes: ranks as threads, each with a publisher of its own. */
/* labels: threads */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "deltawire/checkpoint.h"
#include "publish/publisher.h"
#include "stream/record.h"
#include "unit/late_store.h"
#include "unit/stream_kit.h"
#include "unit/temp_dir.h"

#define MAX_RANKS  4
#define MAX_SHARDS 16

typedef struct rank {
    kit *k;
    dw_store *store;
    dw_publish_options options;
    dw_shard shards[MAX_SHARDS];
    uint8_t *data; /* the rank's own copy of what it owns */
    size_t offsets[MAX_SHARDS];
    dw_publisher *p;
    char step[32];
    dw_status status;
    dw_error error;
    dw_publish_report report;
    uint64_t ticket;
    const void *receipt;
    size_t n_receipt;
} rank;

typedef struct job {
    kit *k;
    dw_store *store;
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
    const dw_tensor *t = &r->k->tensors[tensor];
    const size_t i = r->options.n_shards++;
    assert_true(i < MAX_SHARDS);
    r->offsets[i] = (size_t)((uint8_t *)t->data - r->k->bytes) + bytes_of(t, first);
    r->shards[i] = (dw_shard){tensor, first, n, malloc(bytes_of(t, n) + 1)};
}

/* Every rank takes the weights of its part from the model. */
static void load(job *j)
{
    for (size_t i = 0; i < j->n; i++)
        for (size_t s = 0; s < j->ranks[i].options.n_shards; s++) {
            const rank *r = &j->ranks[i];
            const dw_shard *shard = &r->shards[s];
            memcpy(shard->data, j->k->bytes + r->offsets[s],
                   bytes_of(&j->k->tensors[shard->tensor], shard->n_elems));
        }
}

/* Cuts the model at odd positions. If IDLE, the last of several ranks owns nothing. */
static void make_job(job *j, kit *k, dw_store *store, size_t n, bool idle,
                     dw_receipts receipts)
{
    static unsigned n_jobs;
    *j = (job){.k = k, .store = store, .n = n};
    snprintf(j->name, sizeof j->name, "job-%u", n_jobs++);
    for (size_t i = 0; i < n; i++) {
        rank *r = &j->ranks[i];
        *r = (rank){.k = k, .store = store};
        dw_publish_options_init(&r->options);
        r->options.n_threads = 1;
        r->options.rank = (uint32_t)i;
        r->options.n_ranks = (uint32_t)n;
        r->options.job = j->name;
        r->options.receipts = receipts;
        r->options.shards = r->shards;
        r->options.rank_timeout_ms = 300000;
    }
    const size_t n_busy = idle ? n - 1 : n;
    for (size_t t = KIT_TENSORS; t-- > 0;) {
        const uint64_t total = elems_of(&k->tensors[t]);
        const bool packed = dw_dtype_bits(k->tensors[t].dtype) < 8;
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
    r->status = dw_publisher_open(&r->p, r->store, r->k->tensors, KIT_TENSORS,
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
    if (r->options.receipts == DW_RECEIPTS_CALLER)
        r->status =
            dw_publisher_receipt(r->p, r->ticket, &r->receipt, &r->n_receipt, &r->error);
    else
        r->status =
            dw_publisher_wait(r->p, r->ticket, UINT_MAX, NULL, &r->report, &r->error);
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

static void open_all(job *j)
{
    run_ranks(j, open_rank, ALL);
    for (size_t i = 0; i < j->n; i++)
        assert_ok(j->ranks[i].status, &j->ranks[i].error);
}

/* From now on rank I waits so long for the others. Ranks that must succeed get a long
 * time: a busy machine may stop a thread for seconds. */
static void limit_rank(job *j, size_t i, unsigned timeout_ms)
{
    j->ranks[i].p->options.rank_timeout_ms = timeout_ms;
}

/* Rank 0 commits from the receipts that the caller carried; the others accept the
 * outcome. */
static dw_status settle_by_caller(job *j, const void *const *receipts,
                                  const size_t *n_bytes, size_t n)
{
    const void *outcome;
    size_t n_outcome;
    dw_error err = {0};
    dw_status status = dw_publisher_commit(j->ranks[0].p, j->ranks[0].ticket, receipts,
                                           n_bytes, n, &outcome, &n_outcome, &err);
    assert_told(status, &err);
    for (size_t i = 1; i < j->n; i++) {
        rank *r = &j->ranks[i];
        r->error = (dw_error){0};
        dw_status accepted =
            dw_publisher_accept(r->p, r->ticket, outcome, n_outcome, &r->error);
        assert_told(accepted, &r->error);
        assert_int_equal(accepted == DW_OK, status == DW_OK);
    }
    return status;
}

static dw_status commit_by_caller(job *j)
{
    const void *receipts[MAX_RANKS];
    size_t n_bytes[MAX_RANKS];
    for (size_t i = 0; i < j->n; i++) {
        receipts[i] = j->ranks[j->n - 1 - i].receipt; /* in any order */
        n_bytes[i] = j->ranks[j->n - 1 - i].n_receipt;
    }
    return settle_by_caller(j, receipts, n_bytes, j->n);
}

/* Publishes the model; it must become version WANTED. */
static void publish_all(job *j, uint64_t wanted)
{
    size_t attempt = kit_keep(j->k);
    for (size_t i = 0; i < j->n; i++)
        snprintf(j->ranks[i].step, sizeof j->ranks[i].step, "%zu", attempt);
    load(j);
    run_ranks(j, publish_rank, ALL);
    for (size_t i = 0; i < j->n; i++)
        assert_ok(j->ranks[i].status, &j->ranks[i].error);
    if (j->ranks[0].options.receipts == DW_RECEIPTS_CALLER)
        assert_int_equal(commit_by_caller(j), DW_OK);
    for (size_t i = 0; i < j->n; i++)
        assert_int_equal(dw_publisher_version(j->ranks[i].p), wanted);
    j->k->reported[attempt] = wanted + 1;
}

/* ---- tests ---- */

static void test_rounds(void **state)
{
    (void)state;
    for (unsigned how = 0; how < 8; how++) {
        kit k;
        kit_make(&k);
        dw_error err = {0};
        dw_store *store = kit_mem_store();
        char base[128];
        snprintf(base, sizeof base, "%s/base.safetensors", temp_dir);
        assert_ok(dw_checkpoint_write(base, k.tensors, KIT_TENSORS, NULL, &err), &err);
        const dw_receipts receipts = how & 1 ? DW_RECEIPTS_CALLER : DW_RECEIPTS_STORE;
        uint64_t v = 0;
        static const size_t n_ranks[] = {3, 2, 4, 1};
        for (unsigned start = 0; start < 4; start++) {
            job j; /* each start has another number of ranks */
            make_job(&j, &k, store, n_ranks[start], how & 4 && n_ranks[start] > 1,
                     receipts);
            for (size_t i = 0; i < j.n; i++) {
                j.ranks[i].options.first = how & 2 ? DW_FIRST_BASE : DW_FIRST_ANCHOR;
                j.ranks[i].options.base = how & 2 ? base : NULL;
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
        dw_store_close(store);
        kit_free(&k);
    }
}

/* A rank that never publishes leaves no commit; the next round covers it. */
static void test_dead_rank(void **state)
{
    (void)state;
    for (unsigned dead = 0; dead < 3; dead++) {
        kit k;
        kit_make(&k);
        dw_store *store = kit_mem_store();
        job j;
        make_job(&j, &k, store, 3, false, DW_RECEIPTS_STORE);
        open_all(&j);
        kit_step(&k, 20);
        publish_all(&j, 1);
        free_job(&j);
        make_job(&j, &k, store, 3, false, DW_RECEIPTS_STORE);
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
        make_job(&j, &k, store, 3, false, DW_RECEIPTS_STORE);
        open_all(&j);
        kit_step(&k, 20);
        publish_all(&j, 2);
        kit_step(&k, 20);
        publish_all(&j, 3);
        free_job(&j);
        kit_check_stream(&k, store, NULL);
        dw_store_close(store);
        kit_free(&k);
    }
}

/* After a round that fails on all ranks, the next one covers it without a restart. */
static void test_failed_round(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    dw_store *store = kit_mem_store();
    job j;
    make_job(&j, &k, store, 3, false, DW_RECEIPTS_CALLER);
    open_all(&j);
    kit_step(&k, 20);
    publish_all(&j, 1);
    /* a receipt is missing */
    kit_step(&k, 20);
    load(&j);
    run_ranks(&j, publish_rank, ALL);
    const void *old[3];
    size_t n_old[3];
    for (size_t i = 0; i < 3; i++) {
        old[i] = memcpy(malloc(j.ranks[i].n_receipt), j.ranks[i].receipt,
                        j.ranks[i].n_receipt);
        n_old[i] = j.ranks[i].n_receipt;
    }
    assert_int_equal(settle_by_caller(&j, old, n_old, 2), DW_INVALID);
    /* an old one among the new ones */
    load(&j);
    run_ranks(&j, publish_rank, ALL);
    const void *mixed[] = {j.ranks[0].receipt, old[1], j.ranks[2].receipt};
    const size_t n_mixed[] = {j.ranks[0].n_receipt, n_old[1], j.ranks[2].n_receipt};
    assert_int_equal(settle_by_caller(&j, mixed, n_mixed, 3), DW_MISMATCH);
    /* one twice */
    load(&j);
    run_ranks(&j, publish_rank, ALL);
    const void *twice[] = {j.ranks[0].receipt, j.ranks[1].receipt, j.ranks[1].receipt};
    const size_t n_twice[] = {j.ranks[0].n_receipt, j.ranks[1].n_receipt,
                              j.ranks[1].n_receipt};
    assert_int_equal(settle_by_caller(&j, twice, n_twice, 3), DW_INVALID);
    /* random bytes */
    load(&j);
    run_ranks(&j, publish_rank, ALL);
    const void *rubbish[] = {j.ranks[0].receipt, "{}", j.ranks[2].receipt};
    const size_t n_rubbish[] = {j.ranks[0].n_receipt, 2, j.ranks[2].n_receipt};
    assert_int_equal(settle_by_caller(&j, rubbish, n_rubbish, 3), DW_CORRUPT);
    assert_int_equal(kit_find(store, "commits/", "", NULL), 2);
    kit_step(&k, 20);
    publish_all(&j, 2);
    /* of another epoch */
    free_job(&j);
    make_job(&j, &k, store, 3, false, DW_RECEIPTS_CALLER);
    open_all(&j);
    load(&j);
    run_ranks(&j, publish_rank, ALL);
    mixed[0] = j.ranks[0].receipt;
    mixed[2] = j.ranks[2].receipt;
    const size_t n_other[] = {j.ranks[0].n_receipt, n_old[1], j.ranks[2].n_receipt};
    assert_int_equal(settle_by_caller(&j, mixed, n_other, 3), DW_MISMATCH);
    kit_step(&k, 20);
    publish_all(&j, 3);
    free_job(&j);
    for (size_t i = 0; i < 3; i++)
        free((void *)old[i]);
    kit_check_stream(&k, store, NULL);
    dw_store_close(store);
    kit_free(&k);
}

/* Two ranks that own the same part, and a part that nobody owns. */
static void test_wrong_parts(void **state)
{
    (void)state;
    for (unsigned gap = 0; gap < 2; gap++) {
        kit k;
        kit_make(&k);
        dw_store *store = kit_mem_store();
        job j;
        make_job(&j, &k, store, 2, false, DW_RECEIPTS_STORE);
        for (size_t i = 0; i < 2; i++)
            j.ranks[i].options.rank_timeout_ms = 1500;
        dw_shard *shard = &j.ranks[1].shards[0];
        if (gap)
            shard->n_elems--;
        else
            shard->first--;
        run_ranks(&j, open_rank, ALL);
        assert_int_not_equal(j.ranks[0].status, DW_OK);
        assert_int_not_equal(j.ranks[1].status, DW_OK);
        assert_int_equal(kit_find(store, "commits/", "", NULL), 0);
        free_job(&j);
        dw_store_close(store);
        kit_free(&k);
    }
}

/* A receipt that another process of the same rank put. */
static void test_two_of_a_rank(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    dw_store *store = kit_mem_store();
    job j;
    make_job(&j, &k, store, 2, false, DW_RECEIPTS_STORE);
    open_all(&j);
    char key[DW_KEY_TEXT];
    dw_error err = {0};
    dw_key_receipt(key, 1, 1, 1, 1);
    assert_ok(dw_store_put_bytes(store, key, "{}", 2, DW_PUT_CREATE, &err), &err);
    kit_step(&k, 20);
    load(&j);
    run_ranks(&j, publish_rank, ALL);
    assert_int_equal(j.ranks[0].status, DW_CORRUPT);
    assert_int_equal(j.ranks[1].status, DW_CONFLICT);
    publish_all(&j, 1);
    free_job(&j);
    kit_check_stream(&k, store, NULL);
    dw_store_close(store);
    kit_free(&k);
}

/* Rank 0 signs commits that name the objects of all ranks: it takes no receipt that
 * anybody may have put. */
static void test_unsigned_receipt(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    char path[128];
    char text[DW_PUBLIC_KEY_TEXT];
    dw_error err = {0};
    dw_sign_key *key = NULL;
    snprintf(path, sizeof path, "%s/key", temp_dir);
    assert_ok(dw_sign_key_create(path, text, &err), &err);
    assert_ok(dw_sign_key_open(&key, path, &err), &err);
    for (int n_signed = 1; n_signed <= 2; n_signed++) {
        dw_store *store = kit_mem_store();
        job j;
        make_job(&j, &k, store, 2, false, DW_RECEIPTS_STORE);
        for (int i = 0; i < n_signed; i++)
            j.ranks[i].options.sign_key = key;
        if (n_signed == 1)
            j.ranks[1].options.rank_timeout_ms = 1500;
        run_ranks(&j, open_rank, ALL);
        assert_int_equal(j.ranks[0].status, n_signed == 2 ? DW_OK : DW_UNTRUSTED);
        assert_int_equal(kit_find(store, "commits/", "", NULL), n_signed == 2 ? 1 : 0);
        free_job(&j);
        dw_store_close(store);
    }
    dw_sign_key_close(key);
    kit_free(&k);
}

/* The commit of an abandoned round arrives in the middle of the next, in which a rank has
 * nothing to upload: its part of the version differs from its current weights. */
static void test_late_commit(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    late_store late = {.inner = kit_mem_store()};
    dw_store *store = late_open(&late);
    job j;
    make_job(&j, &k, store, 2, false, DW_RECEIPTS_STORE);
    open_all(&j);
    limit_rank(&j, 1, 500); /* no outcome comes; rank 0 has the receipt of rank 1 */
    late.hold = true;
    kit_step(&k, 100);
    size_t attempt = kit_keep(&k);
    load(&j);
    for (size_t i = 0; i < 2; i++)
        snprintf(j.ranks[i].step, sizeof j.ranks[i].step, "%zu", attempt);
    run_ranks(&j, publish_rank, ALL);
    assert_int_equal(j.ranks[0].status, DW_UNAVAILABLE);
    assert_int_equal(j.ranks[1].status, DW_UNAVAILABLE);
    /* back to version 0: nothing to upload */
    late.hold = false;
    late.before_others = true;
    memcpy(k.bytes, k.copies[0], k.n_bytes);
    load(&j);
    run_ranks(&j, publish_rank, ALL);
    assert_int_equal(j.ranks[0].status, DW_UNAVAILABLE);
    assert_int_equal(j.ranks[1].status, DW_UNAVAILABLE);
    limit_rank(&j, 1, 300000);
    publish_all(&j, 2);
    kit_step(&k, 20);
    publish_all(&j, 3);
    free_job(&j);
    kit_check_stream(&k, late.inner, NULL);
    dw_store_close(store);
    dw_store_close(late.inner);
    kit_free(&k);
}

/* Every call of one of the ranks fails in turn; rounds go on until one succeeds. */
static void test_faults(void **state)
{
    (void)state;
    static const dw_fault_kind kinds[] = {DW_FAULT_LOST, DW_FAULT_FAIL, DW_FAULT_STALE};
    for (unsigned turn = 0; turn < 12; turn++) {
        const size_t who = turn % 2, kind = turn / 2 % 3;
        kit k;
        kit_make(&k);
        dw_store *inner = kit_mem_store();
        kit_faults faults = {.kind = kinds[kind], .first = turn / 2, .n = 1 + turn % 4};
        dw_store *store = kit_fault_store(inner, &faults);
        job j;
        make_job(&j, &k, inner, 2, false,
                 turn % 5 == 0 ? DW_RECEIPTS_CALLER : DW_RECEIPTS_STORE);
        j.ranks[who].store = store;
        open_all(&j);
        for (size_t i = 0; i < 2; i++)
            limit_rank(&j, i, 400);
        faults.n_seen = 0;
        faults.on = true;
        unsigned n_good = 0;
        for (unsigned i = 0; i < 200 && n_good < 2; i++) {
            kit_step(&k, i % 3 == 1 ? 0 : 20);
            size_t attempt = kit_keep(&k);
            load(&j);
            for (size_t r = 0; r < 2; r++)
                snprintf(j.ranks[r].step, sizeof j.ranks[r].step, "%zu", attempt);
            run_ranks(&j, publish_rank, ALL);
            dw_status status = j.ranks[0].status;
            if (j.ranks[0].options.receipts == DW_RECEIPTS_CALLER) {
                if (status == DW_OK && j.ranks[1].status == DW_OK) {
                    status = commit_by_caller(&j);
                } else { /* a rank that has uploaded must learn that the round failed */
                    dw_error err = {0};
                    const void *outcome;
                    size_t n_outcome;
                    if (status == DW_OK)
                        assert_int_not_equal(
                            dw_publisher_commit(j.ranks[0].p, j.ranks[0].ticket, NULL,
                                                NULL, 0, &outcome, &n_outcome, &err),
                            DW_OK);
                    if (j.ranks[1].status == DW_OK)
                        assert_int_not_equal(dw_publisher_accept(j.ranks[1].p,
                                                                 j.ranks[1].ticket, "", 1,
                                                                 &err),
                                             DW_OK);
                    status = DW_UNAVAILABLE;
                }
            }
            if (status == DW_OK)
                k.reported[attempt] = dw_publisher_version(j.ranks[0].p) + 1;
            n_good += status == DW_OK && j.ranks[1].status == DW_OK;
        }
        assert_int_equal(n_good, 2);
        free_job(&j);
        kit_check_stream(&k, inner, NULL);
        dw_store_close(store);
        dw_store_close(inner);
        kit_free(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds),           cmocka_unit_test(test_dead_rank),
        cmocka_unit_test(test_failed_round),     cmocka_unit_test(test_wrong_parts),
        cmocka_unit_test(test_two_of_a_rank),    cmocka_unit_test(test_late_commit),
        cmocka_unit_test(test_unsigned_receipt), cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
