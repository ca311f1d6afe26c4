/* labels: single */
/* Layouts whose targets are on the host and on two devices, over a fake driver. */
#include "unit/suite.h"

#include "codec/patch.h"
#include "codec/stage.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_driver.h"
#include "cuda/fake.h"
#include "deltawire/deltawire.h"
#include "temp_dir.h"
#include "unit/random_model.h"
#include "layout/layout.h"
#include "inner.h"

enum { Q, K, TURNED, BYTES, WIDE, N };
enum { FUSED, T_TURNED, T_BYTES, T_WIDE, N_TARGETS };
enum { ROWS = 96, COLS = 130, ELEMS = ROWS * COLS, PADDING = 5 };

static const uint64_t dims[2] = {ROWS, COLS};
static const uint64_t n_elems[N_TARGETS] = {2 * ELEMS + PADDING, ELEMS, ELEMS, ELEMS};
static const dw_dtype dtypes[N] = {DW_BF16, DW_BF16, DW_BF16, DW_I8, DW_F32};
static const dw_dtype target_dtypes[N_TARGETS] = {DW_BF16, DW_BF16, DW_I8, DW_F32};
static const char *const names[N] = {"q", "k", "turned", "bytes", "wide"};
static const char *const target_names[N_TARGETS] = {"qk", "t_turned", "t_bytes",
                                                    "t_wide"};

static model base, next;
static dw_layout *layout;
static dw_device *devices[2];
static dw_tensor live[N_TARGETS]; /* T_WIDE is on the host */
static uint8_t *at_base[N_TARGETS], *at_next[N_TARGETS];

static unsigned width_of(dw_dtype dtype)
{
    return dw_dtype_bits(dtype) / 8;
}

static size_t target_bytes(size_t i)
{
    return n_elems[i] * width_of(target_dtypes[i]);
}

/* The engine's own loader. */
static void load(uint8_t *const *targets, const model *m)
{
    memcpy(targets[FUSED], m->tensors[K].data, ELEMS * 2);
    memcpy(targets[FUSED] + (ELEMS + PADDING) * 2, m->tensors[Q].data, ELEMS * 2);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < COLS; c++)
            memcpy(targets[T_TURNED] + (c * ROWS + r) * 2,
                   (uint8_t *)m->tensors[TURNED].data + (r * COLS + c) * 2, 2);
    memcpy(targets[T_BYTES], m->tensors[BYTES].data, ELEMS);
    memcpy(targets[T_WIDE], m->tensors[WIDE].data, ELEMS * 4);
}

static void targets_make(uint8_t **targets)
{
    for (size_t i = 0; i < N_TARGETS; i++)
        targets[i] = calloc(1, target_bytes(i));
}

static void targets_free(uint8_t **targets)
{
    for (size_t i = 0; i < N_TARGETS; i++)
        free(targets[i]);
}

static void learn(void)
{
    enum { PASSES = 4 };
    uint8_t *passes[PASSES][N_TARGETS];
    model spelled = model_new(N);
    unsigned n_passes = 0;
    for (size_t t = 0; t < N; t++) {
        const unsigned n = dw_layout_passes(layout, dtypes[t]);
        n_passes = n > n_passes ? n : n_passes;
        model_set(&spelled, t, names[t], dtypes[t], 2, dims, 0);
    }
    assert_in_range(n_passes, 1, PASSES);
    for (unsigned pass = 0; pass < n_passes; pass++) {
        for (size_t t = 0; t < N; t++)
            dw_layout_spell(layout, t, pass, spelled.tensors[t].data);
        targets_make(passes[pass]);
        load(passes[pass], &spelled);
    }
    for (size_t i = 0; i < N_TARGETS; i++) {
        const void *codes[PASSES];
        uint64_t n_covered;
        for (unsigned pass = 0; pass < n_passes; pass++)
            codes[pass] = passes[pass][i];
        assert_int_equal(dw_layout_learn(layout, i, codes, &n_covered, NULL), DW_OK);
    }
    for (unsigned pass = 0; pass < n_passes; pass++)
        targets_free(passes[pass]);
    model_free(&spelled);
    assert_int_equal(dw_layout_end(layout, NULL), DW_OK);
}

static void write_patch(void)
{
    dw_delta *delta;
    dw_stage *stage;
    dw_stage_result result;
    dw_patch_writer *writer;
    const dw_patch_goal goal = {true, 0x123, 9};
    dw_apply_options options = {.struct_bytes = sizeof options, .n_threads = 1};
    assert_int_equal(dw_delta_diff(&delta, base.tensors, next.tensors, N, NULL, NULL),
                     DW_OK);
    assert_int_equal(
        dw_patch_writer_open(&writer, temp_path("patch"), base.tensors, N, NULL), DW_OK);
    assert_int_equal(dw_stage_open(&stage, delta, base.tensors, N, 1, NULL), DW_OK);
    assert_int_equal(
        dw_stage_verify(&result, stage, &options, dw_patch_writer_take, writer, NULL),
        DW_OK);
    dw_stage_close(stage);
    assert_int_equal(dw_patch_writer_commit(writer, &goal, NULL), DW_OK);
    dw_delta_close(delta);
}

static void put(uint8_t *const *bytes)
{
    for (size_t i = 0; i < N_TARGETS; i++)
        if (live[i].device)
            assert_int_equal(live[i].device->ops->write(live[i].device, live[i].data,
                                                        bytes[i], live[i].n_bytes, NULL),
                             DW_OK);
        else
            memcpy(live[i].data, bytes[i], live[i].n_bytes);
}

static void assert_live(uint8_t *const *bytes)
{
    for (size_t i = 0; i < N_TARGETS; i++) {
        uint8_t *found = malloc(live[i].n_bytes);
        if (live[i].device)
            assert_int_equal(live[i].device->ops->read(live[i].device, found,
                                                       live[i].data, live[i].n_bytes,
                                                       NULL),
                             DW_OK);
        else
            memcpy(found, live[i].data, live[i].n_bytes);
        assert_memory_equal(found, bytes[i], live[i].n_bytes);
        free(found);
    }
}

static int set_up(void **state)
{
    if (fake_open(state) != 0 || temp_dir_make(state) != 0)
        return -1;
    base = model_new(N);
    next = model_new(N);
    for (size_t t = 0; t < N; t++) {
        model_set(&base, t, names[t], dtypes[t], 2, dims, 0);
        model_set(&next, t, names[t], dtypes[t], 2, dims, 0);
    }
    model_fill(&base);
    for (size_t t = 0; t < N; t++) {
        memcpy(next.tensors[t].data, base.tensors[t].data, base.tensors[t].n_bytes);
        for (size_t i = t; i < next.tensors[t].n_bytes; i += 11 + t)
            ((uint8_t *)next.tensors[t].data)[i] ^= 0x81;
    }
    targets_make(at_base);
    targets_make(at_next);
    load(at_base, &base);
    load(at_next, &next);
    write_patch();
    for (uint32_t d = 0; d < 2; d++)
        assert_int_equal(dw_cuda_device_open(&devices[d], d, &fake_image, NULL), DW_OK);
    for (size_t i = 0; i < N_TARGETS; i++) {
        live[i] = (dw_tensor){.name = target_names[i],
                              .dtype = target_dtypes[i],
                              .n_dims = 1,
                              .dims = &n_elems[i],
                              .n_bytes = target_bytes(i)};
        if (i == T_WIDE) {
            live[i].data = malloc(live[i].n_bytes);
            continue;
        }
        live[i].device = devices[i % 2];
        assert_int_equal(live[i].device->ops->alloc(&live[i].data, live[i].device,
                                                    live[i].n_bytes, "weights", NULL),
                         DW_OK);
    }
    assert_int_equal(dw_layout_new(&layout, base.tensors, N, live, N_TARGETS, NULL),
                     DW_OK);
    learn();
    return 0;
}

static int tear_down(void **state)
{
    dw_layout_free(layout);
    for (size_t i = 0; i < N_TARGETS; i++)
        if (live[i].device)
            live[i].device->ops->free(live[i].device, live[i].data);
        else
            free(live[i].data);
    dw_device_close(devices[0]);
    dw_device_close(devices[1]);
    targets_free(at_base);
    targets_free(at_next);
    model_free(&base);
    model_free(&next);
    return fake.held() == 0 ? temp_dir_remove(state) : -1;
}

static int start_at_base(void **state)
{
    (void)state;
    fake.fail_at(-1, 0, 0);
    put(at_base);
    return 0;
}

static dw_status apply(dw_layout_report *report, dw_error *err)
{
    return dw_layout_apply(layout, temp_path("patch"), 1, report, NULL, err);
}

TEST_WITH(test_patch, start_at_base, NULL)
{
    dw_layout_report report;
    dw_error err;
    dw_digest digests[N], before, after;
    assert_int_equal(apply(&report, &err), DW_OK);
    assert_live(at_next);
    assert_int_equal(report.version, 9);
    assert_int_equal(report.n_stored, report.n_changed);
    dw_digest_tensors(digests, &before, base.tensors, N, 1, NULL, NULL);
    dw_digest_tensors(digests, &after, next.tensors, N, 1, NULL, NULL);
    assert_int_equal(dw_digest_sum((dw_digest[]){before, report.moved}, 2), after);
}

/* One element of each target is another one: nothing changes, anywhere. */
TEST_WITH(test_other_weights_are_left_alone, start_at_base, NULL)
{
    uint8_t *other[N_TARGETS];
    targets_make(other);
    for (size_t t = 0; t < N_TARGETS; t++) {
        dw_layout_report report;
        dw_error err;
        size_t at = live[t].n_bytes - 1; /* the last byte that changes */
        while (at_base[t][at] == at_next[t][at])
            at--;
        for (int is_next = 0; is_next < 2; is_next++) {
            load(other, &base);
            other[t][at] = is_next ? at_next[t][at] : (uint8_t)(at_base[t][at] ^ 1);
            put(other);
            assert_int_equal(apply(&report, &err), DW_STALE);
            assert_non_null(strstr(err.text, t == T_WIDE ? "wide" : target_names[t]));
            if (t != T_WIDE)
                assert_non_null(strstr(err.text, "1 elements on cuda:"));
            assert_live(other);
        }
    }
    targets_free(other);
}

TEST_WITH(test_two_steps, start_at_base, NULL)
{
    dw_layout_ready *ready;
    dw_layout_report report;
    dw_error err;
    assert_int_equal(dw_layout_prepare(&ready, layout, temp_path("patch"), 1, &err),
                     DW_OK);
    assert_live(at_base);
    dw_layout_move_to(layout, FUSED, live[FUSED].device, live[FUSED].data);
    assert_int_equal(dw_layout_store(ready, 1, &report, NULL, &err), DW_INVALID);
    assert_live(at_base);
    dw_layout_ready_free(ready);
    assert_int_equal(dw_layout_prepare(&ready, layout, temp_path("patch"), 1, &err),
                     DW_OK);
    fake.fail_at(-1, 0, 0);
    assert_int_equal(dw_layout_store(ready, 1, &report, NULL, &err), DW_OK);
    assert_in_range(fake.calls(), 1, 2 * 4); /* clear, launch, copy, wait: no more */
    assert_live(at_next);
    assert_int_equal(dw_layout_store(ready, 1, &report, NULL, &err), DW_INVALID);
    dw_layout_ready_free(ready);
    dw_layout_ready_free(NULL);
    assert_int_equal(dw_layout_prepare(&ready, layout, temp_path("none"), 1, &err),
                     DW_NOT_FOUND);
    assert_null(ready);
}

TEST_WITH(test_whole_tensors, start_at_base, NULL)
{
    uint64_t different[N];
    dw_error err;
    assert_int_equal(dw_layout_compare(layout, base.tensors, N, 1, different, &err),
                     DW_OK);
    for (size_t t = 0; t < N; t++)
        assert_int_equal(different[t], 0);
    assert_int_equal(dw_layout_compare(layout, next.tensors, N, 1, different, &err),
                     DW_OK);
    for (size_t t = 0; t < N; t++)
        assert_in_range(different[t], ELEMS / 16, ELEMS);
    assert_int_equal(dw_layout_write(layout, next.tensors, N, 1, &err), DW_OK);
    assert_live(at_next);
    /* tensors of a device are no checkpoint */
    dw_tensor odd = live[T_BYTES];
    assert_int_equal(dw_layout_compare(layout, &odd, 1, 1, different, &err),
                     DW_UNSUPPORTED);
}

TEST_WITH(test_sums_are_refused, start_at_base, NULL)
{
    dw_layout *l;
    dw_layout_report report;
    dw_error err;
    const dw_layout_sums sums = {COLS * 4, 1, 1, 1};
    assert_int_equal(dw_layout_new(&l, base.tensors, N, live, N_TARGETS, &err), DW_OK);
    assert_int_equal(dw_layout_end(l, &err), DW_OK);
    assert_int_equal(dw_layout_add_sums(l, T_BYTES, &sums, &err), DW_OK);
    assert_int_equal(dw_layout_apply(l, temp_path("patch"), 1, &report, NULL, &err),
                     DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "t_bytes"));
    dw_layout_free(l);
}

/* Every call of the driver fails in turn: the weights stay the old ones. */
TEST_WITH(test_faults, start_at_base, NULL)
{
    dw_layout_report report;
    dw_error err;
    fake.fail_at(-1, 0, 0);
    assert_int_equal(apply(&report, &err), DW_OK);
    const int64_t n_calls = fake.calls(), held = fake.held();
    unsigned n_failed = 0;
    for (int lost = 0; lost < 2; lost++)
        for (int64_t at = 0; at < n_calls; at++) {
            fake.fail_at(-1, 0, 0);
            put(at_base);
            fake.fail_at(at, lost ? 700 : CU_OUT_OF_MEMORY, lost);
            const dw_status status = apply(&report, &err);
            fake.fail_at(-1, 0, 0);
            assert_int_equal(fake.held(), held);
            if (status == DW_OK) { /* while memory was freed */
                assert_live(at_next);
                continue;
            }
            n_failed++;
            assert_int_equal(status, lost ? DW_IO : DW_NO_MEMORY);
            if (!lost)
                assert_live(at_base);
        }
    assert_true(n_failed > 40);
}

RUN_TESTS(set_up, tear_down)
