/* Applying deltas to tensors in memory. */
#include "codec/patch.h"
#include "base/options.h"
#include "codec/stage.h"
#include "kernel/kernel.h"
#include "tensor/tensor_list.h"

dw_status dw_delta_stage(dw_patch **out, const dw_delta *delta, const dw_tensor *tensors,
                         size_t n_tensors, const dw_apply_options *given, dw_error *err)
{
    dw_apply_options options;
    dw_stage_result result;
    dw_stage *stage = NULL;
    dw_patch *patch = NULL;
    *out = NULL;
    dw_status status = DW_OPTIONS_TAKE(dw_apply_options, &options, given, err);
    if (status == DW_OK)
        status = dw_stage_open(&stage, delta, tensors, n_tensors, options.n_threads, err);
    if (status == DW_OK)
        status = dw_patch_new(&patch, tensors, n_tensors, err);
    if (status == DW_OK) {
        patch->in_heap = true;
        status = dw_stage_verify(&result, stage, &options, dw_patch_take, patch, err);
    }
    if (status == DW_OK)
        status = dw_patch_keep(patch, stage, NULL, err);
    dw_stage_close(stage);
    if (status != DW_OK) {
        dw_patch_free(patch);
        return status;
    }
    dw_patch_sort(patch);
    *out = patch;
    return DW_OK;
}

static dw_status scatter_changes(void *context, size_t t, uint64_t first,
                                 const dw_decoded *changes, dw_error *err)
{
    const dw_tensor *tensor = &((const dw_tensor *)context)[t];
    unsigned width = dw_dtype_element(tensor->dtype).width;
    (void)err;
    dw_kernels_get()->scatter[dw_width_index(width)](
        (uint8_t *)tensor->data + first * width, changes->positions, changes->values,
        changes->n_changes);
    return DW_OK;
}

/* If tensors share memory, a store to one changes the base of the other. So everything is
 * decoded to a list first, which costs memory. Devices always work so. */
static dw_status apply_list(const dw_delta *delta, const dw_tensor *tensors,
                            size_t n_tensors, const dw_apply_options *options,
                            dw_error *err)
{
    dw_patch *patch;
    dw_status status = dw_delta_stage(&patch, delta, tensors, n_tensors, options, err);
    if (status == DW_OK)
        status = dw_patch_apply(patch, tensors, n_tensors, 1, err);
    dw_patch_free(patch);
    return status;
}

dw_status dw_delta_verify(const dw_delta *delta, const dw_tensor *tensors,
                          size_t n_tensors, const dw_apply_options *given, dw_error *err)
{
    dw_apply_options options;
    dw_stage_result result;
    dw_stage *stage = NULL;
    dw_status status = DW_OPTIONS_TAKE(dw_apply_options, &options, given, err);
    if (status == DW_OK)
        status = dw_stage_open(&stage, delta, tensors, n_tensors, options.n_threads, err);
    if (status == DW_OK)
        status = dw_stage_verify(&result, stage, &options, NULL, NULL, err);
    dw_stage_close(stage);
    return status;
}

dw_status dw_delta_apply_proven(const dw_delta *delta, const dw_tensor *tensors,
                                size_t n_tensors, const dw_apply_options *options,
                                dw_error *err)
{
    dw_stage_result result;
    dw_stage *stage;
    if (dw_tensors_on_device(tensors, n_tensors))
        return apply_list(delta, tensors, n_tensors, options, err);
    dw_status status =
        dw_stage_open(&stage, delta, tensors, n_tensors, options->n_threads, err);
    /* a block is decoded before the stores to it, and depends on no other block */
    if (status == DW_OK)
        status = dw_stage_verify(&result, stage, options, scatter_changes,
                                 (void *)tensors, err);
    dw_stage_close(stage);
    return status;
}

dw_status dw_delta_apply(const dw_delta *delta, const dw_tensor *tensors,
                         size_t n_tensors, const dw_apply_options *given, dw_error *err)
{
    dw_apply_options options;
    dw_stage_result result;
    dw_stage *stage;
    bool tied;
    dw_status status = DW_OPTIONS_TAKE(dw_apply_options, &options, given, err);
    if (status == DW_OK)
        status = dw_tensors_overlap(&tied, tensors, n_tensors, err);
    if (status == DW_OK && (tied || dw_tensors_on_device(tensors, n_tensors)))
        return apply_list(delta, tensors, n_tensors, &options, err);
    if (status == DW_OK)
        status = dw_stage_open(&stage, delta, tensors, n_tensors, options.n_threads, err);
    if (status != DW_OK)
        return status;
    status = dw_stage_verify(&result, stage, &options, NULL, NULL, err);
    if (status == DW_OK)
        status = dw_stage_repeat(stage, scatter_changes, (void *)tensors, err);
    dw_stage_close(stage);
    return status;
}
