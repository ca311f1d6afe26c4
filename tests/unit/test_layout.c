/* labels: threads */
#include "unit/suite.h"

#include "layout/layout_int.h"
#include "codec/patch.h"
#include "codec/stage.h"
#include "failing_allocator.h"
#include "temp_dir.h"
#include "inner.h"

/* ---- a model, and an engine that keeps it in another layout ---- */

enum { Q, K, TURNED, CUT, PACKED, BYTES, WIDE, ELSEWHERE, N_TENSORS };
enum { FUSED, T_TURNED, T_CUT, T_PACKED, T_BYTES, T_WIDE, N_TARGETS };

#define ROWS  64u
#define COLS  96u
#define ELEMS (ROWS * COLS)

typedef struct model {
    dw_tensor tensors[N_TENSORS];
} model;

static const uint64_t square[] = {ROWS, COLS};
static const char *const names[] = {"q",      "k",     "turned", "cut",
                                    "packed", "bytes", "wide",   "elsewhere"};
static const dw_dtype dtypes[] = {DW_BF16, DW_BF16, DW_BF16, DW_BF16,
                                  DW_BF16, DW_I8,   DW_F32,  DW_BF16};

static unsigned width_of(dw_dtype dtype)
{
    return dw_dtype_bits(dtype) / 8;
}

static void model_make(model *m, unsigned seed)
{
    srand(seed);
    for (size_t i = 0; i < N_TENSORS; i++) {
        m->tensors[i] = (dw_tensor){.name = names[i],
                                    .dtype = dtypes[i],
                                    .n_dims = 2,
                                    .dims = square,
                                    .n_bytes = ELEMS * width_of(dtypes[i])};
        uint8_t *bytes = m->tensors[i].data = malloc(m->tensors[i].n_bytes);
        for (size_t k = 0; k < m->tensors[i].n_bytes; k++)
            bytes[k] = (uint8_t)rand();
    }
}

static void model_free(model *m)
{
    for (size_t i = 0; i < N_TENSORS; i++)
        free(m->tensors[i].data);
}

/* The bytes are in blocks of 16 rows, four columns of each row after another, then 128
 * times the sum of each row. */
static const dw_layout_sums sums = {16 * (COLS + 4), 16, 4, 128};

static const uint64_t target_elems[] = {2 * ELEMS + 7,    ELEMS, ROWS * 20, ELEMS,
                                        ROWS *(COLS + 4), ELEMS};
static const dw_dtype target_dtypes[] = {DW_BF16, DW_BF16, DW_BF16,
                                         DW_BF16, DW_I8,   DW_F32};
static const char *const target_names[] = {"fused",    "t_turned", "t_cut",
                                           "t_packed", "t_bytes",  "t_wide"};

typedef struct engine {
    dw_tensor targets[N_TARGETS];
} engine;

static void engine_make(engine *e)
{
    for (size_t i = 0; i < N_TARGETS; i++) {
        e->targets[i] =
            (dw_tensor){.name = target_names[i],
                        .dtype = target_dtypes[i],
                        .n_dims = 1,
                        .dims = &target_elems[i],
                        .n_bytes = target_elems[i] * width_of(target_dtypes[i])};
        e->targets[i].data = calloc(1, e->targets[i].n_bytes);
    }
}

static void engine_free(engine *e)
{
    for (size_t i = 0; i < N_TARGETS; i++)
        free(e->targets[i].data);
}

/* The engine's own loader: K after Q, and padding; a transposed tensor; columns 30 to 49;
 * pairs of rows interleaved, 16 columns at a time, last tile first; and unchanged
 * tensors. ELSEWHERE belongs to another rank. */
static void load_bytes(int8_t *to, const int8_t *from, bool with_sums)
{
    for (size_t r = 0; r < ROWS; r++) {
        int8_t *block = to + r / 16 * sums.n_block;
        int32_t sum = 0;
        for (size_t c = 0; c < COLS; c++) {
            block[(c / 4 * 16 + r % 16) * 4 + c % 4] = from[r * COLS + c];
            sum += 128 * from[r * COLS + c];
        }
        if (with_sums)
            memcpy(block + 16 * COLS + r % 16 * 4, &sum, 4);
    }
}

static void engine_load_weights(engine *e, const model *m, bool with_sums)
{
    uint16_t *fused = e->targets[FUSED].data, *turned = e->targets[T_TURNED].data;
    uint16_t *cut = e->targets[T_CUT].data, *packed = e->targets[T_PACKED].data;
    memcpy(fused, m->tensors[Q].data, ELEMS * 2);
    memcpy(fused + ELEMS, m->tensors[K].data, ELEMS * 2);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < COLS; c++) {
            const size_t i = r * COLS + c;
            turned[c * ROWS + r] = ((uint16_t *)m->tensors[TURNED].data)[i];
            if (c >= 30 && c < 50)
                cut[r * 20 + c - 30] = ((uint16_t *)m->tensors[CUT].data)[i];
            const size_t tile = COLS / 16 - 1 - c / 16;
            packed[((r / 2 * (COLS / 16) + tile) * 16 + c % 16) * 2 + r % 2] =
                ((uint16_t *)m->tensors[PACKED].data)[i];
        }
    load_bytes(e->targets[T_BYTES].data, m->tensors[BYTES].data, with_sums);
    memcpy(e->targets[T_WIDE].data, m->tensors[WIDE].data, ELEMS * 4);
}

static void engine_load(engine *e, const model *m)
{
    engine_load_weights(e, m, true);
}

static bool engine_equal(const engine *a, const engine *b)
{
    for (size_t i = 0; i < N_TARGETS; i++)
        if (memcmp(a->targets[i].data, b->targets[i].data, a->targets[i].n_bytes) != 0)
            return false;
    return true;
}

/* Takes over the sums of B. */
static bool engine_equal_but_sums(engine *a, const engine *b)
{
    for (size_t at = 16 * COLS; at < target_elems[T_BYTES]; at += sums.n_block)
        memcpy((uint8_t *)a->targets[T_BYTES].data + at,
               (const uint8_t *)b->targets[T_BYTES].data + at, 16 * 4);
    return engine_equal(a, b);
}

/* ---- learning ---- */

static dw_status learn_all(dw_layout *l, bool spoil, dw_error *err)
{
    enum { MAX_PASSES = 8 };
    engine passes[MAX_PASSES];
    model spelled;
    unsigned n_passes = 0;
    for (size_t t = 0; t < N_TENSORS; t++) {
        unsigned n = dw_layout_passes(l, dtypes[t]);
        n_passes = n > n_passes ? n : n_passes;
    }
    assert_in_range(n_passes, 1, MAX_PASSES);
    model_make(&spelled, 1);
    for (unsigned pass = 0; pass < n_passes; pass++) {
        for (size_t t = 0; t < N_TENSORS; t++)
            dw_layout_spell(l, t, pass, spelled.tensors[t].data);
        engine_make(&passes[pass]);
        for (size_t i = 0; i < N_TARGETS; i++)
            memset(passes[pass].targets[i].data, i % 2 ? 0 : 0xff,
                   passes[pass].targets[i].n_bytes);
        engine_load_weights(&passes[pass], &spelled, false);
        if (spoil)
            for (size_t i = 0; i < target_elems[T_CUT]; i++)
                ((uint16_t *)passes[pass].targets[T_CUT].data)[i] ^= 0x8000;
    }
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < N_TARGETS; i++) {
        const void *codes[MAX_PASSES];
        for (unsigned pass = 0; pass < n_passes; pass++)
            codes[pass] = passes[pass].targets[i].data;
        uint64_t n_covered;
        status = dw_layout_learn(l, i, codes, &n_covered, err);
        if (status == DW_OK)
            assert_int_equal(n_covered, i == FUSED     ? 2 * ELEMS
                                        : i == T_BYTES ? ELEMS
                                                       : target_elems[i]);
    }
    for (unsigned pass = 0; pass < n_passes; pass++)
        engine_free(&passes[pass]);
    model_free(&spelled);
    return status;
}

static model base, next;
static engine at_base, at_next, live;
static dw_layout *layout;
static const dw_patch_goal goal = {true, 0x123, 9};

/* Stages the change into a patch file. */
static void write_patch(const char *path)
{
    dw_delta *delta;
    dw_stage *stage;
    dw_stage_result result;
    dw_patch_writer *writer;
    dw_apply_options options = {.struct_bytes = sizeof options, .n_threads = 2};
    assert_int_equal(
        dw_delta_diff(&delta, base.tensors, next.tensors, N_TENSORS, NULL, NULL), DW_OK);
    assert_int_equal(dw_patch_writer_open(&writer, path, base.tensors, N_TENSORS, NULL),
                     DW_OK);
    assert_int_equal(dw_stage_open(&stage, delta, base.tensors, N_TENSORS, 2, NULL),
                     DW_OK);
    assert_int_equal(
        dw_stage_verify(&result, stage, &options, dw_patch_writer_take, writer, NULL),
        DW_OK);
    dw_stage_close(stage);
    assert_int_equal(dw_patch_writer_commit(writer, &goal, NULL), DW_OK);
    dw_delta_close(delta);
}

static int set_up(void **state)
{
    model_make(&base, 2);
    model_make(&next, 2);
    for (size_t t = 0; t < N_TENSORS; t++) /* some elements of each */
        for (size_t i = t; i < next.tensors[t].n_bytes; i += 11 + t)
            ((uint8_t *)next.tensors[t].data)[i] ^= 0x81;
    engine_make(&at_base);
    engine_make(&at_next);
    engine_make(&live);
    engine_load(&at_base, &base);
    engine_load(&at_next, &next);
    int failed = temp_dir_make(state);
    if (!failed)
        write_patch(temp_path("patch"));
    return failed ||
           dw_layout_new(&layout, base.tensors, N_TENSORS, live.targets, N_TARGETS,
                         NULL) != DW_OK ||
           learn_all(layout, false, NULL) != DW_OK ||
           dw_layout_end(layout, NULL) != DW_OK ||
           dw_layout_add_sums(layout, T_BYTES, &sums, NULL) != DW_OK;
}

static int tear_down(void **state)
{
    dw_layout_free(layout);
    model_free(&base);
    model_free(&next);
    engine_free(&at_base);
    engine_free(&at_next);
    engine_free(&live);
    return temp_dir_remove(state);
}

static int start_at_base(void **state)
{
    (void)state;
    engine_load(&live, &base);
    return 0;
}

/* ---- tests ---- */

TEST(test_pieces_are_few)
{
    assert_int_equal(dw_layout_pieces(layout), 7);
    assert_int_equal(dw_layout_held(layout, Q), ELEMS);
    assert_int_equal(dw_layout_held(layout, CUT), ROWS * 20);
    assert_int_equal(dw_layout_held(layout, ELSEWHERE), 0);
}

TEST_WITH(test_whole_tensors, start_at_base, NULL)
{
    uint64_t different[N_TENSORS];
    dw_error err;
    assert_int_equal(
        dw_layout_compare(layout, base.tensors, N_TENSORS, 2, different, &err), DW_OK);
    for (size_t t = 0; t < N_TENSORS; t++)
        assert_int_equal(different[t], 0);
    ((uint16_t *)live.targets[T_PACKED].data)[33] ^= 1;
    assert_int_equal(
        dw_layout_compare(layout, base.tensors, N_TENSORS, 2, different, &err), DW_OK);
    for (size_t t = 0; t < N_TENSORS; t++)
        assert_int_equal(different[t], t == PACKED);
    assert_int_equal(dw_layout_write(layout, next.tensors, N_TENSORS, 2, &err), DW_OK);
    assert_true(engine_equal_but_sums(&live, &at_next));
}

TEST(test_patch)
{
    for (unsigned n_threads = 1; n_threads <= 3; n_threads += 2) {
        dw_layout_report report;
        dw_error err;
        dw_digest digests[N_TENSORS], before, after;
        engine_load(&live, &base);
        assert_int_equal(
            dw_layout_apply(layout, temp_path("patch"), n_threads, &report, NULL, &err),
            DW_OK);
        assert_true(engine_equal(&live, &at_next));
        assert_int_equal(report.version, goal.version);
        assert_int_equal(report.state, goal.state);
        assert_in_range(report.n_stored, 1, report.n_changed - 1);
        assert_int_equal(report.n_forgotten, 0);
        dw_digest_tensors(digests, &before, base.tensors, N_TENSORS, 1, NULL, NULL);
        dw_digest_tensors(digests, &after, next.tensors, N_TENSORS, 1, NULL, NULL);
        const dw_digest sum[] = {before, report.moved};
        assert_int_equal(dw_digest_sum(sum, 2), after);
    }
}

TEST_WITH(test_list_is_the_patch, start_at_base, NULL)
{
    dw_layout_stores lists[N_TARGETS];
    dw_layout_report report;
    dw_error err;
    assert_int_equal(
        dw_layout_list(layout, temp_path("patch"), lists, &report, NULL, &err), DW_OK);
    uint64_t n = 0;
    for (size_t i = 0; i < N_TARGETS; i++) {
        uint8_t *data = live.targets[i].data;
        const uint8_t *old = lists[i].old_values, *new_ = lists[i].values;
        const size_t width = lists[i].width;
        n += lists[i].n;
        for (uint64_t k = 0; k < lists[i].n; k++) {
            uint8_t *at = data + (size_t)lists[i].places[k] * width;
            assert_memory_equal(at, old + k * width, width);
            memcpy(at, new_ + k * width, width);
        }
    }
    assert_int_equal(n, report.n_stored);
    assert_true(engine_equal_but_sums(&live, &at_next));
    dw_layout_stores_free(lists, N_TARGETS);
}

TEST_WITH(test_other_weights_are_left_alone, start_at_base, NULL)
{
    dw_layout_report report;
    dw_error err;
    const size_t last = target_elems[T_WIDE] - 1;
    for (size_t i = last; i > last - 40; i--) /* one of them must change */
        ((uint32_t *)live.targets[T_WIDE].data)[i] ^= 0x100;
    engine copy;
    engine_make(&copy);
    for (size_t i = 0; i < N_TARGETS; i++)
        memcpy(copy.targets[i].data, live.targets[i].data, live.targets[i].n_bytes);
    assert_int_equal(dw_layout_apply(layout, temp_path("patch"), 2, &report, NULL, &err),
                     DW_STALE);
    assert_non_null(strstr(err.text, "wide"));
    assert_true(engine_equal(&live, &copy));
    engine_free(&copy);
}

TEST(test_sums_that_do_not_fit)
{
    dw_error err;
    const dw_layout_sums wrong[] = {
        {sums.n_block, 0, 4, 1},         {sums.n_block, 16, 0, 1},
        {sums.n_block + 4, 16, 4, 1},    {16 * 4, 16, 4, 1},
        {sums.n_block, 16, 3, 1},        {0, 16, 4, 1},
        {sums.n_block, 0xffffffff, 4, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(dw_layout_add_sums(layout, T_BYTES, &wrong[i], &err),
                         DW_INVALID);
    assert_int_equal(dw_layout_add_sums(layout, T_WIDE, &sums, &err), DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "t_wide"));
    dw_layout_move(layout, T_BYTES, (uint8_t *)live.targets[T_BYTES].data + 1);
    dw_layout_report report;
    assert_int_equal(dw_layout_apply(layout, temp_path("patch"), 2, &report, NULL, &err),
                     DW_INVALID);
    dw_layout_move(layout, T_BYTES, live.targets[T_BYTES].data);
}

TEST(test_what_cannot_be_learnt)
{
    dw_layout *l;
    dw_layout_report report;
    dw_error err;
    assert_int_equal(
        dw_layout_new(&l, base.tensors, N_TENSORS, live.targets, N_TARGETS, &err), DW_OK);
    assert_int_equal(dw_layout_apply(l, temp_path("patch"), 1, &report, NULL, &err),
                     DW_INVALID);
    assert_int_equal(learn_all(l, true, &err), DW_UNSUPPORTED);
    assert_int_equal(dw_layout_end(l, &err), DW_OK);
    assert_int_equal(dw_layout_held(l, CUT), 0);
    dw_layout_free(l);
}

TEST(test_forgotten_tensors_are_named)
{
    for (int late = 0; late < 2; late++) {
        dw_layout *l;
        dw_layout_report report;
        dw_error err;
        bool forgotten[N_TENSORS];
        engine_load(&live, &base);
        assert_int_equal(
            dw_layout_new(&l, base.tensors, N_TENSORS, live.targets, N_TARGETS, &err),
            DW_OK);
        assert_int_equal(learn_all(l, false, &err), DW_OK);
        if (!late)
            dw_layout_forget(l, K);
        assert_int_equal(dw_layout_end(l, &err), DW_OK);
        if (late)
            dw_layout_forget(l, K);
        assert_int_equal(
            dw_layout_apply(l, temp_path("patch"), 1, &report, forgotten, &err), DW_OK);
        assert_int_equal(report.n_forgotten, 1);
        for (size_t t = 0; t < N_TENSORS; t++)
            assert_int_equal(forgotten[t], t == K);
        memcpy((uint16_t *)live.targets[FUSED].data + ELEMS, next.tensors[K].data,
               ELEMS * 2);
        assert_true(engine_equal_but_sums(&live, &at_next));
        dw_layout_free(l);
    }
}

/* Random order: nearly every element is its own piece. */
TEST(test_shuffled)
{
    enum { N = 400 };
    const uint64_t n = N;
    uint16_t from[N], to[N], codes[N];
    size_t place[N];
    dw_tensor tensor = {"x", DW_BF16, 1, &n, N * 2, from, 0, NULL};
    dw_tensor target = {"y", DW_BF16, 1, &n, N * 2, to, 0, NULL};
    dw_layout *l;
    dw_error err;
    uint64_t n_covered, different;
    srand(5);
    for (size_t i = 0; i < N; i++)
        place[i] = i;
    for (size_t i = N - 1; i > 0; i--) {
        size_t j = (size_t)rand() % (i + 1), keep = place[i];
        place[i] = place[j];
        place[j] = keep;
    }
    assert_int_equal(dw_layout_new(&l, &tensor, 1, &target, 1, &err), DW_OK);
    assert_int_equal(dw_layout_passes(l, DW_BF16), 1);
    dw_layout_spell(l, 0, 0, from);
    for (size_t i = 0; i < N; i++)
        codes[place[i]] = from[i];
    const void *passes[] = {codes};
    assert_int_equal(dw_layout_learn(l, 0, passes, &n_covered, &err), DW_OK);
    assert_int_equal(n_covered, N);
    assert_int_equal(dw_layout_end(l, &err), DW_OK);
    if (dw_layout_is_forgotten(l, 0)) {
        assert_int_equal(dw_layout_held(l, 0), 0);
    } else {
        for (size_t i = 0; i < N; i++)
            from[i] = (uint16_t)rand();
        assert_int_equal(dw_layout_write(l, &tensor, 1, 1, &err), DW_OK);
        for (size_t i = 0; i < N; i++)
            assert_int_equal(to[place[i]], from[i]);
        assert_int_equal(dw_layout_compare(l, &tensor, 1, 1, &different, &err), DW_OK);
        assert_int_equal(different, 0);
    }
    dw_layout_free(l);
}

static dw_status use_layout(dw_error *err)
{
    dw_layout *l;
    dw_layout_report report;
    dw_layout_stores lists[N_TARGETS];
    uint64_t different[N_TENSORS];
    engine_load(&live, &base);
    dw_status status =
        dw_layout_new(&l, base.tensors, N_TENSORS, live.targets, N_TARGETS, err);
    if (status == DW_OK)
        status = learn_all(l, false, err);
    if (status == DW_OK)
        status = dw_layout_end(l, err);
    if (status == DW_OK)
        status = dw_layout_compare(l, base.tensors, N_TENSORS, 1, different, err);
    if (status == DW_OK) {
        status = dw_layout_list(l, temp_path("patch"), lists, &report, NULL, err);
        if (status == DW_OK)
            dw_layout_stores_free(lists, N_TARGETS);
    }
    if (status == DW_OK)
        status = dw_layout_apply(l, temp_path("patch"), 1, &report, NULL, err);
    dw_layout_free(l);
    return status;
}

TEST(test_no_memory)
{
    fail_every_allocation(use_layout, NULL);
}

RUN_TESTS(set_up, tear_down)
