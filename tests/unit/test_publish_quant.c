/* Quantised publish, by one process and by several ranks: however the weights are split,
 * a follower gets what a plain quantiser makes of the whole model. */
/* labels: threads */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <unistd.h>

#include "unit/suite.h"

#include "base/error.h"
#include "base/map.h"
#include "publish/publisher.h"
#include "unit/collective.h"
#include "unit/pass_store.h"
#include "unit/quant_trainer.h"
#include "inner.h"

enum { MAX_RANKS = 3, MAX_SHARDS = 4000 };

/* How tensors are split. */
typedef enum split {
    WHOLE,   /* one process, without shards */
    HALVES,  /* one process, with two shards of each tensor */
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
    const char *step; /* NULL: the next number */
    unsigned n_steps;
    dw_error err;
    dw_status status;
} rank;

/* The ranks of one job, with a trainer and a store. */
typedef struct job {
    trainer m;
    dw_store *store;
    dw_quant_options quant;
    split how;
    uint32_t n;
    rank ranks[MAX_RANKS];
    collective all;
    unsigned n_starts;
    char name[16];
} job;

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
        {7, 30}, {130 + 128, 260}, {256, 512}, {128, 256}, {1, 60}};
    const uint64_t width = width_of(t);
    if (i == 0 || i == MAX_RANKS)
        return i == 0 ? 0 : m->n[t];
    switch (how) {
    case BLOCKS:
        return block_rows[t][i - 1] * width;
    case ROWS:
        return m->n[t] / width * i / MAX_RANKS * width;
    case FLAT:
        return m->n[t] * i / MAX_RANKS + 5;
    default:
        return t == LARGE ? m->n[t] * i / MAX_RANKS : t % MAX_RANKS < i ? m->n[t] : 0;
    }
}

static void split_model(rank *r, split how, uint32_t i)
{
    if (how == WHOLE)
        return;
    r->shards = calloc(MAX_SHARDS, sizeof *r->shards);
    r->options.shards = r->shards;
    for (size_t t = 0; t < N_SOURCE; t++) {
        const uint64_t n = r->m->n[t], width = width_of(t);
        const uint64_t middle = how == HALVES ? n / 2 + 3 : width < 200 ? 9 : 256 + 9;
        if (how == HALVES) {
            add_shard(r, t, middle, n);
            add_shard(r, t, 0, middle);
        } else if (how != COLUMNS) {
            add_shard(r, t, cut_of(r->m, how, t, i), cut_of(r->m, how, t, i + 1));
        } else if (width == 1) {
            add_shard(r, t, 0, i == 0 ? n : 0);
        } else {
            for (uint64_t row = 0; i < 2 && row < n / width; row++)
                add_shard(r, t, row * width + (i == 0 ? 0 : middle),
                          row * width + (i == 0 ? middle : width));
        }
    }
}

/* ---- a job ---- */

static void job_make(job *j, dw_quant_scheme scheme, bool from_f32, split how)
{
    *j = (job){.store = kit_mem_store(), .how = how};
    j->quant = quant_options(scheme, from_f32);
    j->n = how <= HALVES ? 1 : MAX_RANKS;
    trainer_make(&j->m);
    collective_open(&j->all, j->n, 60);
}

/* The ranks of the next start. */
static void job_prepare(job *j)
{
    snprintf(j->name, sizeof j->name, "start-%u", j->n_starts++);
    for (uint32_t i = 0; i < j->n; i++) {
        rank *r = &j->ranks[i];
        *r = (rank){.m = &j->m, .store = j->store};
        r->options = options_of(&j->m, &j->quant);
        r->options.rank = i;
        r->options.n_ranks = j->n;
        r->options.job = j->name;
        r->options.agree = collective_agree;
        r->options.agree_context = &j->all;
        split_model(r, j->how, i);
    }
}

static void job_stop(job *j)
{
    for (uint32_t i = 0; i < j->n; i++) {
        dw_publisher_close(j->ranks[i].p);
        free(j->ranks[i].shards);
        j->ranks[i] = (rank){0};
    }
}

static void job_end(job *j)
{
    job_stop(j);
    kit_verify(j->store);
    dw_store_close(j->store);
    collective_close(&j->all);
    trainer_free(&j->m);
}

static void *open_rank(void *context)
{
    rank *r = context;
    r->status =
        dw_publisher_open(&r->p, r->store, r->m->tensors, N_SOURCE, &r->options, &r->err);
    return NULL;
}

static void *publish_rank(void *context)
{
    rank *r = context;
    uint64_t ticket;
    char number[16];
    dw_publish_note note;
    dw_publish_note_init(&note);
    snprintf(number, sizeof number, "%u", ++r->n_steps);
    note.unchanged = r->unchanged;
    note.step = r->step ? r->step : number;
    r->step = NULL;
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

/* The first N ranks at once. */
static void some(job *j, uint32_t n, void *(*fn)(void *))
{
    pthread_t threads[MAX_RANKS];
    for (uint32_t i = 0; i < n; i++) {
        j->ranks[i].err = (dw_error){0};
        assert_int_equal(pthread_create(&threads[i], NULL, fn, &j->ranks[i]), 0);
    }
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void together(job *j, void *(*fn)(void *))
{
    some(j, j->n, fn);
    for (uint32_t i = 0; i < j->n; i++)
        assert_ok(j->ranks[i].status, &j->ranks[i].err);
}

static void job_start(job *j)
{
    job_prepare(j);
    together(j, open_rank);
}

static void job_check(job *j)
{
    check(&j->m, j->store, &j->quant);
}

static bool all_current(job *j)
{
    bool current = true;
    together(j, ask_rank);
    for (uint32_t i = 0; i < j->n; i++)
        current = current && j->ranks[i].is_current;
    return current;
}

/* Rank I failed, with TEXT in its error. */
static void expect(const job *j, uint32_t i, dw_status status, const char *text)
{
    const rank *r = &j->ranks[i];
    if (r->status != status || !strstr(r->err.text, text))
        fail_msg("rank %u: not %d with '%s': %d, %s", i, (int)status, text,
                 (int)r->status, r->err.text);
}

/* ---- tests ---- */

static void run(dw_quant_scheme scheme, bool from_f32, split how, bool in_dir)
{
    job j;
    job_make(&j, scheme, from_f32, how);
    const char *baseline = in_dir ? fresh_path("baseline") : NULL;
    const bool is_row = scheme != DW_QUANT_FP8_BLOCK;
    for (int start = 0; start < 2; start++) {
        job_prepare(&j);
        if (how == WHOLE) {
            j.ranks[0].options.fold_every = 2;
            j.ranks[0].options.anchor_every = 3;
            j.ranks[0].options.baseline_dir = baseline;
        }
        together(&j, open_rank);
        job_check(&j);
        assert_true(all_current(&j));
        static const unsigned steps[] = {10, 0, 1000};
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            trainer_step(&j.m, steps[i]);
            assert_int_equal(all_current(&j), steps[i] == 0);
            together(&j, publish_rank);
            assert_int_equal(j.ranks[0].report.unchanged, steps[i] == 0);
            job_check(&j);
        }
        assert_true(all_current(&j));
        dw_error err = {0};
        dw_digest found;
        if (how == WHOLE) {
            assert_ok(dw_publisher_state(j.ranks[0].p, &found, &err), &err);
            assert_true(found == j.ranks[0].report.state);
            assert_ok(dw_publisher_drain(j.ranks[0].p, &err), &err);
        }
        job_stop(&j);
        /* ranks that share nothing agree only on that */
        if (how == BLOCKS || (how == ROWS && is_row))
            assert_int_equal(j.all.n_rounds, start + 1);
    }
    assert_int_equal(j.all.n_rounds > 0, j.n > 1);
    job_end(&j);
}

TEST(test_cases)
{
    static const struct {
        dw_quant_scheme scheme;
        bool from_f32;
        split how;
        bool in_dir;
    } cases[] = {
        {DW_QUANT_FP8_BLOCK, false, WHOLE, false},
        {DW_QUANT_FP8_BLOCK, true, WHOLE, true},
        {DW_QUANT_FP8_ROW, true, WHOLE, false},
        {DW_QUANT_INT8_ROW, true, WHOLE, true},
        {DW_QUANT_FP8_BLOCK, false, HALVES, false},
        {DW_QUANT_FP8_BLOCK, false, BLOCKS, false},
        {DW_QUANT_INT8_ROW, false, ROWS, false},
        {DW_QUANT_FP8_BLOCK, false, ROWS, false},
        {DW_QUANT_FP8_BLOCK, true, FLAT, false},
        {DW_QUANT_FP8_BLOCK, false, COLUMNS, false},
        {DW_QUANT_FP8_BLOCK, false, TENSORS, false},
        {DW_QUANT_FP8_ROW, true, COLUMNS, false},
        {DW_QUANT_INT8_ROW, false, FLAT, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run(cases[i].scheme, cases[i].from_f32, cases[i].how, cases[i].in_dir);
}

/* A tensor that the caller declares unchanged is not read, nor are its scales made. */
TEST(test_unchanged)
{
    for (int i = 0; i < 2; i++) {
        job j;
        job_make(&j, DW_QUANT_FP8_BLOCK, false, i ? HALVES : WHOLE);
        job_start(&j);
        together(&j, publish_rank);
        trainer_step(&j.m, 10);
        uint16_t *at = j.m.tensors[LARGE].data, kept = at[5];
        at[5] = 0x7fc0; /* nobody sees this NaN */
        j.ranks[0].unchanged[LARGE] = true;
        together(&j, publish_rank);
        at[5] = kept;
        j.ranks[0].unchanged[LARGE] = false;
        together(&j, publish_rank);
        job_check(&j);
        job_end(&j);
    }
}

/* A rank whose part did not change must quantise it again if the scale changes. */
TEST(test_unchanged_part)
{
    job j;
    job_make(&j, DW_QUANT_FP8_BLOCK, false, ROWS);
    job_start(&j);
    together(&j, publish_rank);
    const uint64_t cut = cut_of(&j.m, ROWS, LARGE, 1);
    static const float values[] = {3, 0.1f, 5, 5};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        set(&j.m, LARGE, cut + 3, values[i]); /* rank 1's, in a block of rank 0 too */
        j.ranks[0].unchanged[LARGE] = j.ranks[2].unchanged[LARGE] = true;
        assert_int_equal(all_current(&j), i == 3);
        together(&j, publish_rank);
        job_check(&j);
    }
    job_end(&j);
}

/* Weights that are not finite cannot be quantised. Nothing is published, on no rank, and
 * the next publish covers it. */
TEST(test_not_finite)
{
    static const uint16_t bad[] = {0x7fc0, 0x7f80, 0xff80};
    for (int k = 0; k < 3; k++) {
        job j;
        job_make(&j, DW_QUANT_FP8_BLOCK, false, k == 0 ? WHOLE : ROWS);
        /* of rank 1: in a block of rank 0 too, or in one of its own */
        const uint64_t at = k == 2 ? j.m.n[LARGE] / 2 : cut_of(&j.m, ROWS, LARGE, 1) + 17;
        const uint32_t owner = k == 0 ? 0 : 1;
        uint16_t *weight = (uint16_t *)j.m.tensors[LARGE].data + at;
        char element[64];
        snprintf(element, sizeof element, "element %" PRIu64 " is", at);
        uint16_t good = *weight;
        *weight = bad[0];
        job_prepare(&j);
        some(&j, j.n, open_rank);
        for (uint32_t i = 0; i < j.n; i++)
            expect(&j, i, i == owner || k < 2 ? DW_NOT_FINITE : DW_UNAVAILABLE,
                   i == owner         ? element
                   : i == 0 && k == 1 ? names[LARGE]
                                      : "rank");
        if (k == 0) /* nor is there a stream */
            assert_int_equal(dw_store_stat(j.store, "stream.json", NULL, NULL, NULL),
                             DW_NOT_FOUND);
        job_stop(&j);
        *weight = good;
        job_start(&j);
        for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
            trainer_step(&j.m, 5);
            good = *weight;
            *weight = bad[b];
            some(&j, j.n, publish_rank);
            for (uint32_t i = 0; i < j.n; i++)
                expect(&j, i, i == owner || k < 2 ? DW_NOT_FINITE : DW_UNAVAILABLE,
                       i == owner ? element : "rank");
            *weight = good;
            together(&j, publish_rank);
            assert_int_equal(j.ranks[owner].report.version, b + 1);
            job_check(&j);
        }
        job_end(&j);
    }
}

/* ---- ranks that fail apart from each other ---- */

/* One rank cannot publish: it says why, and the others fail at once. */
TEST(test_rank_fails)
{
    job j;
    job_make(&j, DW_QUANT_FP8_BLOCK, false, FLAT);
    job_start(&j);
    trainer_step(&j.m, 10);
    j.ranks[1].step = "not a number";
    some(&j, j.n, publish_rank);
    expect(&j, 1, DW_INVALID, "step");
    expect(&j, 0, DW_UNAVAILABLE, "another rank failed");
    expect(&j, 2, DW_UNAVAILABLE, "another rank failed");
    together(&j, publish_rank);
    assert_int_equal(j.ranks[2].report.version, 1);
    job_check(&j);
    job_stop(&j);

    /* its weights are in a file of somebody else, which becomes shorter */
    const char *path = temp_path("weights");
    const uint64_t n_bytes = j.m.tensors[LARGE].n_bytes;
    FILE *file = fopen(path, "w");
    assert_int_equal(fwrite(j.m.tensors[LARGE].data, 1, n_bytes, file), n_bytes);
    fclose(file);
    dw_map map;
    dw_error err = {0};
    assert_ok(dw_map_open(&map, path, false, &err), &err);
    job_prepare(&j);
    for (size_t i = 0; i < j.ranks[1].options.n_shards; i++)
        if (j.ranks[1].shards[i].tensor == LARGE)
            j.ranks[1].shards[i].data = map.bytes + j.ranks[1].shards[i].first * 2;
    together(&j, open_rank);
    assert_int_equal(truncate(path, 100), 0);
    some(&j, j.n, publish_rank);
    expect(&j, 1, DW_IO, "");
    expect(&j, 0, DW_UNAVAILABLE, "another rank failed");
    expect(&j, 2, DW_UNAVAILABLE, "another rank failed");
    job_stop(&j);
    dw_map_close(&map);
    job_end(&j);
}

/* Ranks that are at different steps meet at the next one that all of them publish. */
TEST(test_rank_skips)
{
    job j;
    job_make(&j, DW_QUANT_FP8_ROW, false, FLAT);
    job_start(&j);
    trainer_step(&j.m, 10);
    j.ranks[2].n_steps = 1; /* the others publish step 1 */
    pthread_t others[2];
    assert_int_equal(pthread_create(&others[0], NULL, publish_rank, &j.ranks[2]), 0);
    some(&j, 2, publish_rank);
    expect(&j, 0, DW_UNAVAILABLE, "later step");
    expect(&j, 1, DW_UNAVAILABLE, "later step");
    /* to ask about an earlier version is no step either */
    assert_int_equal(pthread_create(&others[1], NULL, publish_rank, &j.ranks[1]), 0);
    ask_rank(&j.ranks[0]);
    expect(&j, 0, DW_UNAVAILABLE, "later step");
    publish_rank(&j.ranks[0]);
    for (int i = 0; i < 2; i++)
        pthread_join(others[i], NULL);
    for (uint32_t i = 0; i < j.n; i++)
        assert_ok(j.ranks[i].status, &j.ranks[i].err);
    assert_int_equal(j.ranks[0].report.version, 1);
    job_check(&j);
    job_end(&j);
}

/* A rank has ended: the collective of the others ends, and so do they. Without one, ranks
 * that share blocks are refused. */
TEST(test_rank_missing)
{
    job j;
    job_make(&j, DW_QUANT_FP8_ROW, false, FLAT);
    job_start(&j);
    j.all.limit_s = 1;
    trainer_step(&j.m, 10);
    some(&j, 2, publish_rank);
    for (uint32_t i = 0; i < 2; i++) {
        expect(&j, i, DW_UNAVAILABLE, "timed out");
        expect(&j, i, DW_UNAVAILABLE, "could not agree on the scales");
        assert_int_equal(dw_publisher_version(j.ranks[i].p), 0);
    }
    job_stop(&j);
    collective_close(&j.all);
    collective_open(&j.all, j.n, 60);
    job_prepare(&j);
    for (uint32_t i = 0; i < j.n; i++)
        j.ranks[i].options.agree = NULL;
    some(&j, j.n, open_rank);
    for (uint32_t i = 0; i < j.n; i++)
        expect(&j, i, DW_INVALID, "`agree`");
    job_stop(&j);
    job_start(&j);
    together(&j, publish_rank);
    job_check(&j);
    job_end(&j);
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

/* A rank that did not hear of a commit publishes the step again, alone: there is nothing
 * to do, because the weights are the same. */
TEST(test_step_again)
{
    job j;
    job_make(&j, DW_QUANT_FP8_BLOCK, false, FLAT);
    blind_store blind = {.inner = j.store};
    dw_store *store =
        pass_open(&(dw_store_driver){.name = "blind", .get = blind_get}, &blind);
    job_prepare(&j);
    j.ranks[1].store = store;
    together(&j, open_rank);
    trainer_step(&j.m, 10);
    blind.is_blind = true;
    some(&j, j.n, publish_rank);
    assert_ok(j.ranks[0].status, &j.ranks[0].err);
    assert_int_equal(j.ranks[1].status, DW_UNAVAILABLE);
    blind.is_blind = false;
    j.ranks[1].n_steps--;
    publish_rank(&j.ranks[1]);
    assert_ok(j.ranks[1].status, &j.ranks[1].err);
    assert_int_equal(j.ranks[1].report.version, 1);
    trainer_step(&j.m, 10);
    together(&j, publish_rank);
    job_check(&j);
    job_stop(&j);
    dw_store_close(store);
    job_end(&j);
}

/* What a trainer does in a step: the next one begins when no rank needs its weights. */
static void *step_rank(void *context)
{
    rank *r = context;
    uint64_t ticket;
    char number[16];
    dw_publish_note note;
    dw_publish_note_init(&note);
    snprintf(number, sizeof number, "%u", ++r->n_steps);
    note.step = number;
    r->status = dw_publisher_publish(r->p, &ticket, &note, &r->err);
    if (r->status == DW_OK)
        r->status = dw_publisher_captured(r->p, ticket, UINT_MAX, NULL, &r->err);
    return NULL;
}

/* Some calls of one of the ranks fail; steps go on until versions are committed. */
TEST(test_faults)
{
    static const store_fault kinds[] = {STORE_FAULT_LOST, STORE_FAULT_FAIL,
                                        STORE_FAULT_STALE};
    for (unsigned turn = 0; turn < 24; turn += 5) {
        job j;
        job_make(&j, DW_QUANT_FP8_BLOCK, false, FLAT);
        kit_faults faults = {
            .kind = kinds[turn / 3 % 3], .first = 1 + turn, .n = 1 + turn % 7};
        dw_store *store = kit_fault_store(j.store, &faults);
        job_prepare(&j);
        j.ranks[turn % 3].store = store;
        together(&j, open_rank);
        for (uint32_t i = 0; i < j.n; i++) /* read by each wait */
            j.ranks[i].p->options.rank_timeout_ms = 400;
        faults.n_seen = 0;
        faults.on = true;
        for (int step = 0; step < 200 && dw_publisher_version(j.ranks[0].p) < 2; step++) {
            trainer_step(&j.m, 10);
            some(&j, j.n, step_rank);
        }
        assert_true(dw_publisher_version(j.ranks[0].p) >= 2);
        faults.on = false;
        for (uint32_t i = 0; i < j.n; i++) {
            dw_publisher *p = j.ranks[i].p;
            (void)dw_publisher_wait(p, p->job.ticket, UINT_MAX, NULL, NULL, NULL);
            p->options.rank_timeout_ms = 0;
        }
        together(&j, publish_rank);
        job_check(&j);
        job_stop(&j);
        dw_store_close(store);
        job_end(&j);
    }
}

/* ---- refused ---- */

static void expect_refused(trainer *m, dw_store *store, const dw_publish_options *options,
                           dw_status status, const char *text)
{
    dw_error err = {0};
    dw_publisher *p;
    assert_fails(dw_publisher_open(&p, store, m->tensors, N_SOURCE, options, &err),
                 status, &err);
    if (!strstr(err.text, text))
        fail_msg("'%s' is not in: %s", text, err.text);
}

static dw_publisher *open_trainer(trainer *m, dw_store *store,
                                  const dw_publish_options *options)
{
    dw_error err = {0};
    dw_publisher *p;
    assert_ok(dw_publisher_open(&p, store, m->tensors, N_SOURCE, options, &err), &err);
    return p;
}

TEST(test_refused)
{
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    dw_publish_options options = options_of(&m, &quant);
    options.first = DW_FIRST_BASE;
    expect_refused(&m, store, &options, DW_INVALID, "base");
    options.first = DW_FIRST_ANCHOR;
    dw_publisher_close(open_trainer(&m, store, &options));

    /* another scheme, none, another rounding, another choice of tensors */
    quant.scheme = DW_QUANT_INT8_ROW;
    expect_refused(&m, store, &options, DW_MISMATCH, "quantised as fp8-block");
    options.quantize = NULL;
    expect_refused(&m, store, &options, DW_MISMATCH, "unquantised");
    options.quantize = &quant;
    quant = quant_options(DW_QUANT_FP8_BLOCK, true);
    expect_refused(&m, store, &options, DW_MISMATCH,
                   "rounded to bf16 first, these weights would be quantised from F32 as");
    quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    static const char *const keep[] = {"*.up_proj.weight"};
    quant.keep = keep;
    quant.n_keep = 1;
    expect_refused(&m, store, &options, DW_MISMATCH,
                   "the same patterns of tensors to keep and to quantise");
    quant.n_keep = 0;
    dw_publisher_close(open_trainer(&m, store, &options));
    check(&m, store, &quant);

    /* memory of the trainer's model */
    dw_error err = {0};
    dw_follow_options follow;
    dw_follow_options_init(&follow);
    follow.tensors = m.tensors;
    follow.n_tensors = N_SOURCE;
    dw_follower *f;
    assert_fails(dw_follower_open(&f, store, &follow, &err), DW_MISMATCH, &err);
    assert_non_null(strstr(err.text, "the stream is quantised as fp8-block"));

    dw_stream *stream;
    dw_stream_info info;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    dw_stream_get_info(stream, &info);
    assert_string_equal(info.quantization, "fp8-block");
    assert_string_equal(info.rounded, "bf16");
    dw_stream_close(stream);
    dw_store_close(store);
    trainer_free(&m);
}

/* ---- companion files ---- */

/* The text of config.json of the newest version. */
static char *read_config(dw_store *store)
{
    dw_error err = {0};
    dw_stream *stream;
    uint64_t head, n;
    const void *bytes;
    assert_ok(dw_stream_open(&stream, store, NULL, &err), &err);
    assert_ok(dw_stream_head(stream, &head, &err), &err);
    assert_ok(dw_stream_read_file(stream, head, "config.json", &bytes, &n, &err), &err);
    char *text = calloc(1, n + 1);
    memcpy(text, bytes, n);
    dw_stream_close(stream);
    return text;
}

static void expect_config(dw_store *store, const char *a, const char *b)
{
    char *text = read_config(store);
    if (!strstr(text, a) || !strstr(text, b))
        fail_msg("not '%s' and '%s': %s", a, b, text);
    free(text);
}

/* config.json says how the weights are quantised. A wrong one is refused, and nothing is
 * published. */
TEST(test_config)
{
    trainer m;
    trainer_make(&m);
    dw_store *store = kit_mem_store();
    const dw_quant_options quant = quant_options(DW_QUANT_FP8_BLOCK, false);
    dw_publish_options options = options_of(&m, &quant);
    static const char good[] = "{\"model_type\": \"qwen3\"}";
    static const char next[] = "{\"model_type\": \"qwen4\"}";
    static const char *const bad[] = {
        "", "not JSON", "[1]",
        "{\"model_type\": ", "{\"quantization_config\": {\"quant_method\": \"gptq\"}}"};
    dw_file files[] = {{"config.json", bad[1], strlen(bad[1])},
                       {"merges.txt", "not JSON either", 15}};
    options.files = files;
    options.n_files = 2;
    options.has_files = true;
    expect_refused(&m, store, &options, DW_INVALID, "JSON");
    files[0] = (dw_file){"config.json", good, sizeof good - 1};
    dw_publisher *p = open_trainer(&m, store, &options);
    expect_config(store, "\"qwen3\"", "weight_block_size");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_error err = {0};
        uint64_t ticket;
        dw_publish_note note;
        dw_publish_note_init(&note);
        files[0] = (dw_file){"config.json", bad[i], strlen(bad[i])};
        note.files = files;
        note.n_files = 2;
        note.has_files = true;
        assert_fails(dw_publisher_publish(p, &ticket, &note, &err), DW_INVALID, &err);
        if (!strstr(err.text, "config.json") && !strstr(err.where, "config.json"))
            fail_msg("does not name the file: %s: %s", err.where, err.text);
    }
    trainer_step(&m, 1);
    rank r = {.m = &m, .p = p};
    publish_rank(&r); /* with the files of version 0 */
    assert_ok(r.status, &r.err);
    expect_config(store, "\"qwen3\"", "weight_block_size");
    dw_publish_note note;
    dw_publish_note_init(&note);
    files[0] = (dw_file){"config.json", next, sizeof next - 1};
    note.files = files;
    note.n_files = 1;
    note.has_files = true;
    uint64_t ticket;
    dw_error err = {0};
    assert_ok(dw_publisher_publish(p, &ticket, &note, &err), &err);
    assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, NULL, &err), &err);
    expect_config(store, "\"qwen4\"", "weight_block_size");
    dw_publisher_close(p);
    kit_verify(store);
    dw_store_close(store);
    trainer_free(&m);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
