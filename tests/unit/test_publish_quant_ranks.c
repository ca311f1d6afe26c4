/* Quantised publish by several ranks: however the weights are split between them, a
 * follower gets what a plain quantiser makes of the whole model. */
/* labels: threads */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "publish/publisher.h"
#include "stream/listing.h"
#include "unit/pass_store.h"
#include "unit/quant_trainer.h"

enum { N_RANKS = 3, MAX_SHARDS = 4000 };

/* How tensors are split. */
typedef enum split {
    BLOCKS,  /* between blocks of 128 rows: ranks share no scales */
    ROWS,    /* between rows */
    FLAT,    /* anywhere, as a flat buffer is split */
    COLUMNS, /* each row in two, and a third rank without weights */
    TENSORS, /* whole tensors but one, which is split */
} split;

typedef struct rank {
    trainer *m;
    dw_store *store;
    dw_publish_options options;
    dw_shard *shards;
    bool unchanged[N_SOURCE];
    dw_publisher *p;
    dw_publish_report report;
    bool is_current;
    unsigned n_steps;
    char step[16];
    dw_error err;
    dw_status status;
} rank;

static uint64_t width_of(size_t t)
{
    return n_dims[t] == 1 ? 1 : dims[t][n_dims[t] - 1];
}

static void add_shard(rank *r, size_t t, uint64_t first, uint64_t end)
{
    const unsigned size = r->m->tensors[t].dtype == DW_F32 ? 4 : 2;
    assert_true(r->options.n_shards < MAX_SHARDS);
    r->shards[r->options.n_shards++] = (dw_shard){
        t, first, end - first, (uint8_t *)r->m->tensors[t].data + first * size};
}

/* Where the part of rank I begins. */
static uint64_t cut_of(const trainer *m, split how, size_t t, uint32_t i)
{
    static const uint64_t block_rows[N_SOURCE][2] = {
        {7, 30}, {130 + 128, 260}, {640, 1408}, {128, 256}, {1, 60}};
    const uint64_t width = width_of(t);
    if (i == 0 || i == N_RANKS)
        return i == 0 ? 0 : m->n[t];
    switch (how) {
    case BLOCKS:
        return block_rows[t][i - 1] * width;
    case ROWS:
        return m->n[t] / width * i / N_RANKS * width;
    case FLAT:
        return m->n[t] * i / N_RANKS + 5;
    default:
        return t == LARGE ? m->n[t] * i / N_RANKS : t % N_RANKS < i ? m->n[t] : 0;
    }
}

static void split_model(rank *r, split how, uint32_t i)
{
    r->shards = calloc(MAX_SHARDS, sizeof *r->shards);
    for (size_t t = 0; t < N_SOURCE; t++) {
        const uint64_t width = width_of(t), middle = width < 200 ? 9 : 256 + 9;
        if (how != COLUMNS || width == 1) {
            const uint32_t at = how == COLUMNS ? (i == 0 ? 0 : N_RANKS) : i;
            const uint64_t end =
                cut_of(r->m, how, t, at == 0 && how == COLUMNS ? N_RANKS : at + 1);
            if (at < N_RANKS)
                add_shard(r, t, cut_of(r->m, how, t, at), end);
            continue;
        }
        for (uint64_t row = 0; i < 2 && row < r->m->n[t] / width; row++)
            add_shard(r, t, row * width + (i == 0 ? 0 : middle),
                      row * width + (i == 0 ? middle : width));
    }
    r->options.shards = r->shards;
}

static void make_ranks(rank *ranks, trainer *m, dw_store *store,
                       const dw_quant_options *quant, split how, const char *job)
{
    for (uint32_t i = 0; i < N_RANKS; i++) {
        ranks[i] = (rank){.m = m, .store = store, .options = options_of(m, quant)};
        ranks[i].options.rank = i;
        ranks[i].options.n_ranks = N_RANKS;
        ranks[i].options.job = job;
        split_model(&ranks[i], how, i);
    }
}

static void close_ranks(rank *ranks)
{
    for (int i = 0; i < N_RANKS; i++) {
        dw_publisher_close(ranks[i].p);
        ranks[i].p = NULL;
        free(ranks[i].shards);
    }
}

/* ---- what all ranks do at once ---- */

static void *open_rank(void *context)
{
    rank *r = context;
    r->status =
        dw_publisher_open(&r->p, r->store, r->m->tensors, N_SOURCE, &r->options, &r->err);
    return NULL;
}

static const char *next_step(rank *r)
{
    snprintf(r->step, sizeof r->step, "%u", ++r->n_steps);
    return r->step;
}

static void *publish_rank(void *context)
{
    rank *r = context;
    uint64_t ticket;
    dw_publish_note note;
    dw_publish_note_init(&note);
    note.unchanged = r->unchanged;
    note.step = next_step(r);
    r->status = dw_publisher_publish(r->p, &ticket, &note, &r->err);
    if (r->status == DW_OK)
        r->status = dw_publisher_wait(r->p, ticket, UINT_MAX, NULL, &r->report, &r->err);
    return NULL;
}

static void *ask_rank(void *context)
{
    rank *r = context;
    r->status = dw_publisher_is_current(r->p, &r->is_current, &r->err);
    return NULL;
}

static void try_together(rank *ranks, void *(*fn)(void *), int n)
{
    pthread_t others[N_RANKS];
    for (int i = 1; i < n; i++)
        assert_int_equal(pthread_create(&others[i], NULL, fn, &ranks[i]), 0);
    ranks[0].err = (dw_error){0};
    fn(&ranks[0]);
    for (int i = 1; i < n; i++)
        pthread_join(others[i], NULL);
}

static void together(rank *ranks, void *(*fn)(void *))
{
    try_together(ranks, fn, N_RANKS);
    for (int i = 0; i < N_RANKS; i++)
        assert_ok(ranks[i].status, &ranks[i].err);
}

static bool all_current(rank *ranks)
{
    bool current = true;
    together(ranks, ask_rank);
    for (int i = 0; i < N_RANKS; i++)
        current = current && ranks[i].is_current;
    return current;
}

static size_t count_keys(dw_store *store, const char *prefix)
{
    dw_error err = {0};
    dw_listing list;
    assert_ok(dw_listing_load(&list, store, prefix, &err), &err);
    const size_t n = list.n;
    dw_listing_release(&list);
    return n;
}

/* ---- tests ---- */

static void run(dw_quant_scheme scheme, bool from_f32, split how)
{
    const dw_quant_options quant = quant_options(scheme, from_f32);
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    rank ranks[N_RANKS];
    for (int start = 0; start < 2; start++) {
        make_ranks(ranks, &m, store, &quant, how, start ? "second" : "first");
        together(ranks, open_rank);
        check(&m, store, &quant);
        assert_true(all_current(ranks));
        static const unsigned steps[] = {10, 0, 1000};
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            trainer_step(&m, steps[i]);
            assert_int_equal(all_current(ranks), steps[i] == 0);
            together(ranks, publish_rank);
            assert_int_equal(ranks[0].report.unchanged, steps[i] == 0);
            check(&m, store, &quant);
        }
        assert_true(all_current(ranks));
        close_ranks(ranks);
        assert_int_equal(count_keys(store, "maxima/"), (size_t)(start + 1) * N_RANKS);
    }
    kit_verify(store);
    dw_error err = {0};
    dw_stream *stream;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    dw_collect_options collect;
    dw_collect_options_init(&collect);
    collect.n_keep = 1;
    assert_ok(dw_stream_collect(stream, &collect, NULL, &err), &err);
    dw_stream_close(stream);
    assert_int_equal(count_keys(store, "maxima/"), N_RANKS); /* of the last epoch */
    assert_int_equal(count_keys(store, "receipts/"), N_RANKS);
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

static void test_blocks(void **state)
{
    (void)state;
    run(DW_QUANT_FP8_BLOCK, false, BLOCKS);
    run(DW_QUANT_INT8_ROW, false, ROWS);
}

static void test_shared_blocks(void **state)
{
    (void)state;
    run(DW_QUANT_FP8_BLOCK, false, ROWS);
    run(DW_QUANT_FP8_BLOCK, true, FLAT);
    run(DW_QUANT_FP8_BLOCK, false, COLUMNS);
    run(DW_QUANT_FP8_BLOCK, false, TENSORS);
}

static void test_shared_rows(void **state)
{
    (void)state;
    run(DW_QUANT_FP8_ROW, false, FLAT);
    run(DW_QUANT_FP8_ROW, true, COLUMNS);
    run(DW_QUANT_INT8_ROW, false, FLAT);
    run(DW_QUANT_INT8_ROW, false, COLUMNS);
}

/* Rank 0 has the companion files; those of others do not count. */
static void test_files(void **state)
{
    (void)state;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    static const char good[] = "{\"model_type\": \"tiny\"}", other[] = "{\"rank\": 1}";
    const dw_file files[2] = {{"config.json", good, sizeof good - 1},
                              {"config.json", other, sizeof other - 1}};
    rank ranks[N_RANKS];
    make_ranks(ranks, &m, store, &quant, FLAT, "job");
    for (int i = 0; i < 2; i++) {
        ranks[i].options.files = &files[i];
        ranks[i].options.n_files = 1;
        ranks[i].options.has_files = true;
    }
    together(ranks, open_rank);
    trainer_step(&m, 10);
    together(ranks, publish_rank);
    check(&m, store, &quant);
    close_ranks(ranks);
    dw_error err = {0};
    dw_stream *stream;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    for (uint64_t version = 0; version < 2; version++) {
        const void *bytes;
        uint64_t n;
        assert_ok(dw_stream_read_file(stream, version, "config.json", &bytes, &n, &err),
                  &err);
        char text[1024] = "";
        assert_true(n < sizeof text);
        memcpy(text, bytes, n);
        assert_non_null(strstr(text, "\"tiny\""));
        assert_non_null(strstr(text, "weight_block_size"));
    }
    dw_stream_close(stream);
    assert_int_equal(count_keys(store, "files/"), 1); /* version 1 names it again */
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

/* One process that publishes shards shares scales with itself. */
static void test_one_rank(void **state)
{
    (void)state;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    rank r = {.m = &m, .store = store, .options = options_of(&m, &quant)};
    r.shards = calloc(MAX_SHARDS, sizeof *r.shards);
    for (size_t t = 0; t < N_SOURCE; t++) {
        add_shard(&r, t, m.n[t] / 2 + 3, m.n[t]);
        add_shard(&r, t, 0, m.n[t] / 2 + 3);
    }
    r.options.shards = r.shards;
    open_rank(&r);
    assert_ok(r.status, &r.err);
    check(&m, store, &quant);
    trainer_step(&m, 1);
    publish_rank(&r);
    assert_ok(r.status, &r.err);
    check(&m, store, &quant);
    assert_int_equal(count_keys(store, "maxima/"), 0);
    dw_publisher_close(r.p);
    free(r.shards);
    dw_store_close(store);
    trainer_free(&m);
}

/* A rank whose part did not change must quantise it again if the scale changes. */
static void test_unchanged(void **state)
{
    (void)state;
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    rank ranks[N_RANKS];
    make_ranks(ranks, &m, store, &quant, ROWS, "job");
    together(ranks, open_rank);
    together(ranks, publish_rank);
    check(&m, store, &quant);
    const uint64_t cut = cut_of(&m, ROWS, LARGE, 1);
    static const float values[] = {3, 0.1f, 5, 5};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        set(&m, LARGE, cut + 3, values[i]); /* rank 1's, in a block of rank 0 too */
        ranks[0].unchanged[LARGE] = ranks[2].unchanged[LARGE] = true;
        assert_int_equal(all_current(ranks), i == 3);
        together(ranks, publish_rank);
        check(&m, store, &quant);
    }
    close_ranks(ranks);
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

/* A store that may lose replies with commits. */
typedef struct blind_store {
    dw_store *inner;
    _Atomic bool is_blind;
} blind_store;

static dw_status blind_get(void *self, const char *key, uint64_t offset, void *into,
                           size_t n, size_t *n_read, const dw_progress *progress,
                           dw_error *err)
{
    const blind_store *s = self;
    dw_status status = pass_get(self, key, offset, into, n, n_read, progress, err);
    return status == DW_OK && s->is_blind && strncmp(key, "commits/", 8) == 0
               ? dw_fail(err, DW_UNAVAILABLE, key, "lost")
               : status;
}

static dw_status blind_put(void *self, const char *key, const dw_source *source,
                           dw_put_mode mode, const dw_progress *progress, dw_error *err)
{
    return dw_store_put(pass_inner(self), key, source, mode, progress, err);
}

/* A rank that did not hear of a commit publishes the step again: there is nothing to do,
 * because the weights are the same. */
static void test_step_again(void **state)
{
    (void)state;
    static const dw_store_driver driver = {.struct_bytes = sizeof driver,
                                           .name = "blind",
                                           .get = blind_get,
                                           .put = blind_put,
                                           .stat = pass_stat,
                                           .list = pass_list,
                                           .remove = pass_remove};
    trainer m;
    trainer_make(&m);
    blind_store blind = {.inner = kit_mem_store()};
    dw_store *store = pass_open(&driver, &blind);
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    rank ranks[N_RANKS];
    make_ranks(ranks, &m, blind.inner, &quant, FLAT, "job");
    ranks[1].store = store;
    together(ranks, open_rank);
    trainer_step(&m, 10);
    blind.is_blind = true;
    try_together(ranks, publish_rank, N_RANKS);
    assert_ok(ranks[0].status, &ranks[0].err);
    assert_int_equal(ranks[1].status, DW_UNAVAILABLE);
    blind.is_blind = false;
    ranks[1].n_steps--;
    publish_rank(&ranks[1]);
    assert_ok(ranks[1].status, &ranks[1].err);
    assert_int_equal(ranks[1].report.version, 1);
    trainer_step(&m, 10);
    together(ranks, publish_rank);
    check(&m, blind.inner, &quant);
    close_ranks(ranks);
    dw_store_close(store);
    dw_store_close(blind.inner);
    trainer_free(&m);
}

/* All ranks fail at once if one has weights without a scale; the next version covers it.
 */
static void test_not_finite(void **state)
{
    (void)state;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    rank ranks[N_RANKS];
    make_ranks(ranks, &m, store, &quant, ROWS, "job");
    const uint64_t at = cut_of(&m, ROWS, LARGE, 1) + 17;
    uint16_t *weights = m.tensors[LARGE].data;
    const uint16_t good = weights[at];
    static const uint16_t bad[] = {0x7fc0, 0xff80};
    weights[at] = bad[0];
    try_together(ranks, open_rank, N_RANKS);
    for (int i = 0; i < N_RANKS; i++) {
        assert_int_equal(ranks[i].status, DW_NOT_FINITE);
        free(ranks[i].shards);
    }
    assert_non_null(strstr(ranks[0].err.text, names[LARGE]));
    assert_non_null(strstr(ranks[0].err.text, "another rank"));
    char element[64];
    snprintf(element, sizeof element, "element %" PRIu64 " is NaN", at);
    assert_non_null(strstr(ranks[1].err.text, element));
    weights[at] = good;
    make_ranks(ranks, &m, store, &quant, ROWS, "second");
    together(ranks, open_rank);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        trainer_step(&m, 1);
        const uint16_t kept = weights[at];
        weights[at] = bad[k];
        try_together(ranks, publish_rank, N_RANKS);
        for (int i = 0; i < N_RANKS; i++)
            assert_int_equal(ranks[i].status, DW_NOT_FINITE);
        weights[at] = kept;
        together(ranks, publish_rank);
        assert_int_equal(ranks[1].report.version, k + 1);
        check(&m, store, &quant);
    }
    close_ranks(ranks);
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

/* A rank is missing: the others stop waiting, and nothing is committed. */
static void test_missing_rank(void **state)
{
    (void)state;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_ROW, false);
    rank ranks[N_RANKS];
    make_ranks(ranks, &m, store, &quant, FLAT, "first");
    together(ranks, open_rank);
    for (int i = 0; i < N_RANKS; i++) /* read by each wait */
        ranks[i].p->options.rank_timeout_ms = 300;
    trainer_step(&m, 10);
    try_together(ranks, publish_rank, N_RANKS - 1);
    for (int i = 0; i < N_RANKS - 1; i++) {
        assert_int_equal(ranks[i].status, DW_UNAVAILABLE);
        assert_non_null(strstr(ranks[i].err.text, "The next one covers it"));
        assert_int_equal(dw_publisher_version(ranks[i].p), 0);
    }
    /* if the machine is slow, ranks may miss each other too */
    for (int i = 0; i < N_RANKS - 1; i++)
        assert_non_null(strstr(ranks[i].err.text, "did not come in time"));
    close_ranks(ranks);
    make_ranks(ranks, &m, store, &quant, FLAT, "second");
    together(ranks, open_rank);
    together(ranks, publish_rank);
    check(&m, store, &quant);
    close_ranks(ranks);
    /* nor does the job begin without it */
    make_ranks(ranks, &m, store, &quant, FLAT, "third");
    for (int i = 0; i < N_RANKS; i++)
        ranks[i].options.rank_timeout_ms = 300;
    try_together(ranks, open_rank, N_RANKS - 1);
    for (int i = 0; i < N_RANKS; i++) {
        assert_int_equal(ranks[i].status, i == N_RANKS - 1 ? DW_OK : DW_UNAVAILABLE);
        if (i < N_RANKS - 1) /* not that a version is missing */
            assert_non_null(strstr(ranks[i].err.text, "start all ranks again"));
        free(ranks[i].shards);
    }
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

/* One rank asks whether its weights are current: that concerns no other. */
static void test_current_alone(void **state)
{
    (void)state;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    rank ranks[N_RANKS];
    make_ranks(ranks, &m, store, &quant, FLAT, "job");
    together(ranks, open_rank);
    for (int i = 0; i < 2 * N_RANKS; i++) {
        ask_rank(&ranks[i % N_RANKS]);
        assert_ok(ranks[i % N_RANKS].status, &ranks[i % N_RANKS].err);
        assert_true(ranks[i % N_RANKS].is_current);
        trainer_step(&m, 10);
        together(ranks, publish_rank);
        check(&m, store, &quant);
    }
    close_ranks(ranks);
    dw_store_close(store);
    trainer_free(&m);
}

/* ---- a rank that fails by itself ---- */

/* What a trainer does in a step: the next one begins when no rank needs its weights. */
static void *step_rank(void *context)
{
    rank *r = context;
    uint64_t ticket;
    dw_publish_note note;
    dw_publish_note_init(&note);
    note.step = next_step(r);
    r->status = dw_publisher_publish(r->p, &ticket, &note, &r->err);
    if (r->status == DW_OK)
        r->status = dw_publisher_captured(r->p, ticket, UINT_MAX, NULL, &r->err);
    return NULL;
}

/* A rank that failed goes on to the next step, and waits there while rank 0 still waits
 * for its receipt. If that wait ended before rank 0 comes, all later rounds would fail in
 * the same way. */
static void test_rank_ahead(void **state)
{
    (void)state;
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    rank ranks[N_RANKS];
    make_ranks(ranks, &m, store, &quant, FLAT, "job");
    together(ranks, open_rank);
    for (int i = 0; i < N_RANKS; i++) /* read by each wait */
        ranks[i].p->options.rank_timeout_ms = 1000;
    const uint64_t at = m.n[LARGE] / 2; /* in a block that only rank 1 has */
    uint16_t *weights = m.tensors[LARGE].data;
    const uint16_t kept = weights[at];
    weights[at] = 0x7fc0;
    together(ranks, step_rank);
    weights[at] = kept;
    bool committed = false;
    for (int step = 0; step < 20 && !committed; step++) {
        trainer_step(&m, 10);
        together(ranks, step_rank);
        committed = dw_publisher_version(ranks[0].p) > 0;
    }
    assert_true(committed);
    for (int i = 0; i < N_RANKS; i++) {
        dw_publisher_idle(ranks[i].p, UINT_MAX);
        ranks[i].p->options.rank_timeout_ms = 0;
    }
    together(ranks, publish_rank);
    check(&m, store, &quant);
    close_ranks(ranks);
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

/* Some calls of one of the ranks fail; steps go on until versions are committed. */
static void test_faults(void **state)
{
    (void)state;
    static const store_fault kinds[] = {STORE_FAULT_LOST, STORE_FAULT_FAIL,
                                        STORE_FAULT_STALE};
    for (unsigned turn = 0; turn < 24; turn += 4) {
        trainer m;
        trainer_make(&m);
        dw_store *inner = kit_mem_store();
        kit_faults faults = {
            .kind = kinds[turn / 3 % 3], .first = 1 + turn, .n = 1 + turn % 7};
        dw_store *store = kit_fault_store(inner, &faults);
        const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
        rank ranks[N_RANKS];
        make_ranks(ranks, &m, inner, &quant, FLAT, "job");
        ranks[turn % 3].store = store;
        together(ranks, open_rank);
        for (int i = 0; i < N_RANKS; i++) /* read by each wait */
            ranks[i].p->options.rank_timeout_ms = 400;
        faults.n_seen = 0;
        faults.on = true;
        const uint64_t start = dw_publisher_version(ranks[0].p);
        for (int step = 0; step < 200 && dw_publisher_version(ranks[0].p) < start + 2;
             step++) {
            trainer_step(&m, 10);
            try_together(ranks, step_rank, N_RANKS);
        }
        assert_true(dw_publisher_version(ranks[0].p) >= start + 2);
        faults.on = false;
        for (int i = 0; i < N_RANKS; i++) {
            dw_publisher_idle(ranks[i].p, UINT_MAX);
            ranks[i].p->options.rank_timeout_ms = 0;
        }
        together(ranks, publish_rank);
        check(&m, inner, &quant);
        close_ranks(ranks);
        kit_verify(inner);
        dw_store_close(store);
        dw_store_close(inner);
        trainer_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),       cmocka_unit_test(test_shared_blocks),
        cmocka_unit_test(test_shared_rows),  cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_unchanged),    cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_missing_rank), cmocka_unit_test(test_files),
        cmocka_unit_test(test_rank_ahead),   cmocka_unit_test(test_current_alone),
        cmocka_unit_test(test_faults),       cmocka_unit_test(test_step_again),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
