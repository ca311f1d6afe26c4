/* Every allocation of every operation fails in turn: DW_NO_MEMORY, nothing is leaked or
 * changed, and the next try succeeds. */
#include "unit/suite.h"

#include "unit/disk_model.h"
#include "unit/failing_allocator.h"

static model base, next, target;
static dw_codec codec;
static unsigned layout;
static dw_delta *delta; /* between the two, in CODEC */
static byte_buffer bytes;
static dw_patch *patch;
static const dw_apply_options one_thread = {.struct_bytes = sizeof one_thread,
                                            .n_threads = 1};

static dw_diff_options options_now(void)
{
    dw_diff_options o;
    dw_diff_options_init(&o);
    o.codec = codec;
    o.trl_layout = layout;
    o.n_threads = 1;
    return o;
}

static int make_models(void **state)
{
    base = model_new(5);
    const uint64_t dims[] = {700}, few[] = {9};
    model_set(&base, 0, "sparse", DW_BF16, 1, dims, 0);
    model_set(&base, 1, "dense", DW_F32, 1, dims, 0);
    model_set(&base, 2, "noise", DW_U8, 1, dims, 0);
    model_set(&base, 3, "same", DW_I64, 1, few, 0);
    model_set(&base, 4, "one", DW_F64, 0, NULL, 0);
    model_fill(&base);
    next = model_copy(&base, false);
    change_weights(next.tensors[0].data, 700, dw_dtype_element(DW_BF16), 20);
    fill_weights(next.tensors[1].data, 700, dw_dtype_element(DW_F32));
    fill_weights(next.tensors[2].data, 700, dw_dtype_element(DW_U8));
    change_weights(next.tensors[4].data, 1, dw_dtype_element(DW_F64), 1000);
    return temp_dir_make(state);
}

static int free_models(void **state)
{
    model_free(&base);
    model_free(&next);
    return temp_dir_remove(state);
}

static void untouched(void)
{
    assert_true(model_equal(&target, &base));
}

static dw_status run_diff(dw_error *err)
{
    dw_diff_options o = options_now();
    dw_delta *out;
    dw_digest digests[5];
    o.new_digests = digests;
    dw_status status = dw_delta_diff(&out, target.tensors, next.tensors, base.n, &o, err);
    dw_delta_close(out);
    return status;
}

static dw_status run_open(dw_error *err)
{
    dw_delta *out;
    dw_status status =
        dw_delta_open_bytes(&out, bytes.bytes, bytes.n_bytes, "bytes", err);
    dw_delta_close(out);
    return status;
}

static dw_status run_save_and_open(dw_error *err)
{
    dw_delta *out = NULL;
    dw_status status = dw_delta_save(delta, temp_path("delta"), err);
    if (status == DW_OK)
        status = dw_delta_open(&out, temp_path("delta"), err);
    dw_delta_close(out);
    return status;
}

static void no_file_but_the_delta(void)
{
    assert_true(count_files(temp_dir) <= 1);
}

static dw_status run_apply(dw_error *err)
{
    return dw_delta_apply(delta, target.tensors, target.n, &one_thread, err);
}

static dw_status run_stage(dw_error *err)
{
    dw_patch *out;
    dw_status status =
        dw_delta_stage(&out, delta, target.tensors, target.n, &one_thread, err);
    dw_patch_free(out);
    return status;
}

static dw_status run_patch(dw_error *err)
{
    return dw_patch_apply(patch, target.tensors, target.n, 1, err);
}

static dw_codec recode_to;
static unsigned recode_layout;

static dw_status run_recode(dw_error *err)
{
    dw_diff_options o = options_now();
    dw_delta *out;
    o.codec = recode_to;
    o.trl_layout = recode_layout;
    dw_status status = dw_delta_recode(&out, delta, target.tensors, target.n, &o, err);
    dw_delta_close(out);
    return status;
}

TEST(test_in_memory)
{
    static const struct {
        dw_codec codec;
        unsigned layout;
    } forms[] = {
        {DW_CODEC_CLASS, 3}, {DW_CODEC_GAP, 3}, {DW_CODEC_RAW, 1}, {DW_CODEC_RAW, 3}};
    for (size_t f = 0; f < 4; f++) {
        codec = forms[f].codec;
        layout = forms[f].layout;
        dw_diff_options o = options_now();
        assert_int_equal(
            dw_delta_diff(&delta, base.tensors, next.tensors, base.n, &o, NULL), DW_OK);
        bytes = (byte_buffer){0};
        dw_delta_write(delta, buffer_take, &bytes, NULL);
        target = model_copy(&base, true);
        fail_every_allocation(run_diff, untouched);
        fail_every_allocation(run_open, NULL);
        fail_every_allocation(run_save_and_open, no_file_but_the_delta);
        fail_every_allocation(run_stage, untouched);
        for (size_t to = 0; to < 4; to++) {
            recode_to = forms[to].codec;
            recode_layout = forms[to].layout;
            fail_every_allocation(run_recode, untouched);
        }
        assert_int_equal(dw_delta_stage(&patch, delta, base.tensors, base.n, NULL, NULL),
                         DW_OK);
        fail_every_allocation(run_patch, untouched);
        assert_true(model_equal(&target, &next));
        dw_patch_free(patch);
        model_free(&target);

        target = model_copy(&base, true);
        fail_every_allocation(run_apply, untouched); /* all or nothing */
        assert_true(model_equal(&target, &next));
        model_free(&target);
        free(bytes.bytes);
        dw_delta_close(delta);
    }
}

/* Tied weights use another code path. */
TEST(test_tied)
{
    codec = DW_CODEC_CLASS;
    target = model_copy(&base, false);
    dw_tensor two[2] = {base.tensors[0], base.tensors[0]};
    dw_tensor two_next[2] = {next.tensors[0], next.tensors[0]};
    two[1].name = two_next[1].name = "tied";
    assert_int_equal(dw_delta_diff(&delta, two, two_next, 2, NULL, NULL), DW_OK);
    for (size_t n = 0;; n++) {
        failing_allocator a;
        dw_tensor tied[2] = {two[0], two[1]};
        tied[0].data = tied[1].data = target.tensors[0].data;
        failing_allocator_install(&a, n);
        dw_status status = dw_delta_apply(delta, tied, 2, &one_thread, NULL);
        dw_set_allocator(NULL);
        assert_int_equal(a.n_live, 0);
        if (!a.has_failed) {
            assert_int_equal(status, DW_OK);
            assert_memory_equal(tied[0].data, next.tensors[0].data, 1400);
            break;
        }
        assert_int_equal(status, DW_NO_MEMORY);
        assert_memory_equal(tied[0].data, base.tensors[0].data, 1400);
    }
    dw_delta_close(delta);
    model_free(&target);
}

/* A failure after the patch file appeared leaves it on disk; then the next call finishes
 * the apply. */
TEST(test_on_disk)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        disk_model d;
        disk_make(&d, "disk", sharded, 100);
        bool was_left = false;
        for (size_t n = 0;; n++) {
            failing_allocator a;
            dw_error err = {0};
            dw_apply_report report = {0};
            disk_reset(&d);
            failing_allocator_install(&a, n);
            dw_status status =
                dw_checkpoint_apply(d.path, d.delta, &one_thread, &report, &err);
            dw_set_allocator(NULL);
            assert_int_equal(a.n_live, 0);
            assert_true(disk_is_tidy(&d));
            if (!a.has_failed) {
                assert_int_equal(status, DW_OK);
                assert_true(disk_is_new(&d));
                break;
            }
            assert_int_equal(status, DW_NO_MEMORY);
            assert_int_equal(err.code, DW_NO_MEMORY);
            const bool has_patch = disk_has_patch(&d), is_new = disk_is_new(&d);
            assert_true(is_new || disk_is_old(&d));
            was_left |= has_patch;
            /* the next try */
            assert_int_equal(
                dw_checkpoint_apply(d.path, d.delta, &one_thread, &report, &err), DW_OK);
            assert_true(report.recovered == has_patch);
            assert_true(report.already_applied == (has_patch || is_new));
            assert_true(disk_is_new(&d) && disk_is_tidy(&d) && !disk_has_patch(&d));
        }
        assert_true(was_left);
        disk_free(&d);
    }
}

RUN_TESTS(make_models, free_models)
