/* labels: threads */
#include "unit/suite.h"

#include "codec/delta.h"
#include "failing_allocator.h"
#include "random_parts.h"
#include "temp_dir.h"

static void check_segments(const dw_patch *patch)
{
    for (size_t i = 1; i < patch->n_segments; i++) {
        const dw_segment *a = &patch->segments[i - 1], *b = &patch->segments[i];
        assert_true(a->tensor < b->tensor ||
                    (a->tensor == b->tensor &&
                     a->first + a->positions[a->n - 1] < b->first + b->positions[0]));
    }
}

static void check_applies(const dw_patch *patch, const model *base, const model *next,
                          unsigned n_threads)
{
    check_segments(patch);
    model m = model_copy(base, true);
    assert_int_equal(dw_patch_apply(patch, m.tensors, m.n, n_threads, NULL), DW_OK);
    assert_true(model_equal(&m, next));
    model_free(&m);
}

TEST(test_round_trip)
{
    for (unsigned round = 0; round < 24; round++) {
        const dw_codec codec = (dw_codec)(round % 3);
        const unsigned n_threads = 1 + round % 4;
        model base = model_random(codec != DW_CODEC_CLASS);
        model next = model_copy(&base, false);
        model_change(&next, round % 2 ? 40 : 950);
        parts p = parts_make(&base, &next, codec);
        const dw_patch_goal goal = parts_goal(&p, &next);
        dw_digest *found[CUT_PARTS];
        dw_stage_result results[CUT_PARTS];
        for (size_t i = 0; i < CUT_PARTS; i++) {
            found[i] = calloc(p.cut.n[i] + 1, sizeof(dw_digest));
            p.list[i].new_digests = found[i];
            p.list[i].result = &results[i];
            if ((round + i) % 2)
                p.list[i].base_digests = p.base_digests[i];
        }
        dw_patch *patch;
        dw_error err = {0};
        dw_status status = dw_parts_stage_memory(&patch, base.tensors, base.n, p.list,
                                                 CUT_PARTS, n_threads, NULL, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(status, DW_OK);
        uint64_t n_changed = 0;
        for (size_t i = 0; i < CUT_PARTS; i++) {
            assert_memory_equal(found[i], p.new_digests[i],
                                p.cut.n[i] * sizeof *found[i]);
            assert_true(results[i].new_state == p.deltas[i]->info.new_state);
            n_changed += results[i].n_changed;
            free(found[i]);
            p.list[i].new_digests = NULL;
        }
        assert_int_equal(dw_patch_changed(patch), n_changed);
        check_applies(patch, &base, &next, n_threads);
        dw_patch_free(patch);

        dw_patch_goal read;
        assert_int_equal(dw_parts_stage_file(temp_path("p"), base.tensors, base.n, p.list,
                                             CUT_PARTS, &goal, n_threads, NULL, &err),
                         DW_OK);
        assert_int_equal(dw_patch_open(&patch, &read, temp_path("p"), &err), DW_OK);
        assert_true(read.has_digest && read.state == goal.state && read.version == 42);
        assert_int_equal(dw_patch_check(patch, base.tensors, base.n, 2, "p", &err),
                         DW_OK);
        check_applies(patch, &base, &next, n_threads);
        dw_patch_free(patch);
        parts_free(&p);
        model_free(&base);
        model_free(&next);
    }
}

/* Slices of several blocks, which begin anywhere: segments across the blocks of the
 * tensor. */
TEST(test_large_slices)
{
    static const uint64_t d[] = {5000000}, e[] = {1500000};
    for (unsigned round = 0; round < 3; round++) {
        model base = model_new(2);
        model_set(&base, 0, "w", DW_BF16, 1, d, 0);
        model_set(&base, 1, "v", DW_F64, 1, e, 0);
        model_fill(&base);
        model next = model_copy(&base, false);
        model_change(&next, 5);
        parts p = parts_make(&base, &next, DW_CODEC_CLASS);
        const dw_patch_goal goal = parts_goal(&p, &next);
        dw_patch *patch;
        dw_patch_goal read;
        assert_int_equal(dw_parts_stage_file(temp_path("p"), base.tensors, base.n, p.list,
                                             CUT_PARTS, &goal, 3, NULL, NULL),
                         DW_OK);
        assert_int_equal(dw_patch_open(&patch, &read, temp_path("p"), NULL), DW_OK);
        check_applies(patch, &base, &next, 3);
        dw_patch_free(patch);
        parts_free(&p);
        model_free(&base);
        model_free(&next);
    }
}

/* ---- refused ---- */

static model base, next;
static dw_delta *halves[2];
static const dw_slice slices[2] = {{0, 0, 33}, {0, 33, 67}};
static dw_part two[2];
static dw_patch_goal goal;

static dw_delta *diff_slice(const dw_slice *slice)
{
    dw_slice_list from, to;
    dw_delta *delta;
    assert_int_equal(dw_slices_open(&from, base.tensors, 1, slice, 1, NULL), DW_OK);
    assert_int_equal(dw_slices_open(&to, next.tensors, 1, slice, 1, NULL), DW_OK);
    assert_int_equal(dw_delta_diff(&delta, from.tensors, to.tensors, 1, NULL, NULL),
                     DW_OK);
    dw_slices_release(&from);
    dw_slices_release(&to);
    return delta;
}

static int make_halves(void **state)
{
    static const uint64_t d[] = {100};
    base = model_new(1);
    model_set(&base, 0, "w", DW_BF16, 1, d, 0);
    model_fill(&base);
    next = model_copy(&base, false);
    model_change(&next, 400);
    for (size_t i = 0; i < 2; i++) {
        halves[i] = diff_slice(&slices[i]);
        two[i] = (dw_part){.delta = halves[i], .slices = &slices[i], .n_slices = 1};
    }
    dw_digest digest;
    goal = (dw_patch_goal){.has_digest = true, .version = 7};
    return temp_dir_make(state) || dw_digest_tensors(&digest, &goal.state, next.tensors,
                                                     1, 1, NULL, NULL) != DW_OK;
}

static int free_halves(void **state)
{
    for (size_t i = 0; i < 2; i++)
        dw_delta_close(halves[i]);
    model_free(&base);
    model_free(&next);
    return temp_dir_remove(state);
}

/* They have no effect, in memory or on disk. */
static void check_refused(const dw_part *list, size_t n, dw_status status,
                          const char *text)
{
    dw_patch *patch = (dw_patch *)1;
    dw_error err = {0};
    assert_int_equal(
        dw_parts_stage_memory(&patch, base.tensors, 1, list, n, 2, NULL, &err), status);
    assert_int_equal(err.code, status);
    assert_null(patch);
    assert_non_null(strstr(err.text, text));
    err = (dw_error){0};
    size_t n_files = count_files(temp_dir);
    assert_int_equal(dw_parts_stage_file(temp_path("r"), base.tensors, 1, list, n, &goal,
                                         2, NULL, &err),
                     status);
    assert_non_null(strstr(err.text, text));
    assert_int_equal(count_files(temp_dir), n_files);
}

TEST(test_refused)
{
    const dw_part twice[2] = {two[0], two[0]};
    check_refused(twice, 2, DW_CORRUPT, "two slices overlap at element 0");
    const dw_slice across = {0, 32, 10}, past = {0, 50, 51}, other = {3, 0, 1};
    dw_delta *crossing = diff_slice(&across);
    dw_part list[2] = {two[0], {.delta = crossing, .slices = &across, .n_slices = 1}};
    check_refused(list, 2, DW_CORRUPT, "two slices overlap at element 32");
    list[1].slices = &past;
    check_refused(list, 2, DW_CORRUPT, "passes its end");
    list[1].slices = &other;
    check_refused(list, 2, DW_CORRUPT, "slice of tensor 3");
    dw_delta_close(crossing);
    /* a delta over other slices than the part names */
    list[1] =
        (dw_part){.delta = halves[1], .slices = &(dw_slice){0, 34, 66}, .n_slices = 1};
    check_refused(list, 2, DW_MISMATCH, "no tensor of that name");
    /* the first part is good, the second stale */
    uint8_t *weights = base.tensors[0].data;
    uint16_t kept;
    memcpy(&kept, weights + 198, 2);
    memcpy(weights + 198, &(uint16_t){1}, 2);
    dw_stage_result result = {0};
    list[1] = two[1];
    list[1].result = &result;
    check_refused(list, 2, DW_STALE, "the weights are not version 0");
    memcpy(weights + 198, &kept, 2);
    assert_true(result.base_state != 0 &&
                result.base_state != halves[1]->info.base_state);
}

TEST(test_goal)
{
    dw_error err = {0};
    dw_patch *patch;
    dw_patch_goal wrong = goal, none = {.version = 7}, read;
    wrong.state ^= 1;
    const char *path = temp_path("g");
    assert_int_equal(
        dw_parts_stage_file(path, base.tensors, 1, two, 2, &wrong, 1, NULL, &err),
        DW_CORRUPT);
    assert_string_equal(err.text,
                        "the parts lead to another model state than version 7 has");
    assert_int_not_equal(access(path, F_OK), 0);
    /* a single part, with no claim about the rest */
    assert_int_equal(
        dw_parts_stage_file(path, base.tensors, 1, two, 1, &none, 1, NULL, &err), DW_OK);
    assert_int_equal(dw_patch_open(&patch, &read, path, &err), DW_OK);
    assert_false(read.has_digest);
    assert_int_equal(dw_patch_changed(patch), halves[0]->info.n_changed);
    dw_patch_free(patch);
    assert_int_equal(
        dw_parts_stage_file(path, base.tensors, 1, two, 2, &goal, 1, NULL, &err), DW_OK);
    assert_int_equal(
        dw_parts_stage_memory(&patch, base.tensors, 1, NULL, 0, 1, NULL, &err), DW_OK);
    assert_int_equal(dw_patch_changed(patch), 0);
    dw_patch_free(patch);
    assert_int_equal(dw_parts_stage_memory(&patch, &(dw_tensor){.n_bytes = 1}, 1, two, 2,
                                           1, NULL, &err),
                     DW_INVALID);
}

/* ---- progress, memory ---- */

typedef struct watch {
    uint64_t last, total;
    unsigned n_calls, stop_at;
} watch;

static int watch_progress(void *context, uint64_t done, uint64_t total)
{
    watch *w = context;
    assert_true(done >= w->last && done <= total);
    w->last = done;
    w->total = total;
    return ++w->n_calls == w->stop_at;
}

TEST(test_progress)
{
    watch w = {0};
    const dw_progress progress = {watch_progress, &w};
    dw_patch *patch;
    assert_int_equal(
        dw_parts_stage_memory(&patch, base.tensors, 1, two, 2, 1, &progress, NULL),
        DW_OK);
    dw_patch_free(patch);
    assert_int_equal(w.total, 200);
    assert_int_equal(w.last, 200);
    for (unsigned stop_at = 1; stop_at <= 4; stop_at += 3) { /* before either part */
        w = (watch){.stop_at = stop_at};
        assert_int_equal(
            dw_parts_stage_memory(&patch, base.tensors, 1, two, 2, 1, &progress, NULL),
            DW_CANCELLED);
        assert_null(patch);
    }
}

static dw_status stage_both(dw_error *err)
{
    dw_patch *patch;
    dw_status status =
        dw_parts_stage_memory(&patch, base.tensors, 1, two, 2, 1, NULL, err);
    dw_patch_free(patch);
    return status == DW_OK ? dw_parts_stage_file(temp_path("m"), base.tensors, 1, two, 2,
                                                 &goal, 1, NULL, err)
                           : status;
}

TEST(test_no_memory)
{
    fail_every_allocation(stage_both, NULL);
}

RUN_TESTS(make_halves, free_halves)
