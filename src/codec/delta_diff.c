/* Making deltas: from two versions, or from another delta. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "codec/digest.h"
#include "codec/encode.h"
#include "codec/stage.h"
#include "codec/trl_delta.h"
#include "tensor/device.h"
#include "tensor/tensor_list.h"

static dw_status check_options(const dw_diff_options *options, dw_error *err)
{
    if (options->codec != DW_CODEC_CLASS && options->trl_layout != 1 &&
        options->trl_layout != 3)
        return dw_fail(err, DW_INVALID, NULL, "TRL layout %u is unknown: 1 or 3",
                       options->trl_layout);
    if (options->codec == DW_CODEC_GAP && options->trl_layout == 1)
        return dw_fail(err, DW_INVALID, NULL,
                       "TRL's layout 1 has no gaps: use codec raw");
    return DW_OK;
}

/* B's shape if its elements are F32 masters. */
static dw_tensor as_masters(dw_tensor b)
{
    b.dtype = DW_F32;
    b.n_bytes *= 2;
    b.first_byte *= 2;
    return b;
}

/* Pairs the two lists by name, ascending. NEXT_OF takes the index in NEXT of each pair.
 */
static dw_status pair_up(dw_encode_pair *pairs, size_t *next_of,
                         const dw_name_index *base, const dw_name_index *next,
                         const dw_diff_options *options, bool is_captured, dw_error *err)
{
    for (size_t i = 0; i < base->n; i++) {
        const dw_tensor *b = &base->tensors[base->order[i]];
        const dw_tensor *n = &next->tensors[next->order[i]];
        int order = strcmp(b->name, n->name);
        if (order != 0)
            return dw_fail_tensor(err, DW_MISMATCH, NULL, order < 0 ? b->name : n->name,
                                  order < 0 ? "the new version lacks it"
                                            : "the old version lacks it");
        dw_tensor wanted = *b;
        if (options->round_next && b->dtype == DW_BF16 && n->dtype == DW_F32)
            wanted = as_masters(*b);
        dw_status status = dw_tensor_same_shape(&wanted, n, NULL, err);
        if (status == DW_OK && wanted.first_byte != n->first_byte)
            status = dw_fail_tensor(err, DW_MISMATCH, NULL, b->name,
                                    "the slices begin at different bytes");
        if (status != DW_OK)
            return status;
        if (b->device != n->device && !(is_captured && !b->device))
            return dw_fail_tensor(err, DW_UNSUPPORTED, NULL, b->name,
                                  "the old version is on %s, the new one on %s. Copy one "
                                  "of them first",
                                  b->device ? b->device->name : "the host",
                                  n->device ? n->device->name : "the host");
        pairs[i] = (dw_encode_pair){.base = *b, .next = *n, .number = base->order[i]};
        if (options->base_digests)
            pairs[i].base_digest = options->base_digests[base->order[i]];
        next_of[i] = next->order[i];
    }
    return DW_OK;
}

/* Applies the delta to tensors that share memory, or are on devices. NEXT is not read
 * again: it may have changed. If it changed while it was compared, two names of one
 * memory can have been read as different values, and BASE cannot hold both. */
static dw_status update_later(const dw_delta *delta, const dw_tensor *base,
                              const dw_name_index *names, const dw_encode_pair *pairs,
                              const dw_diff_options *options, dw_error *err)
{
    dw_apply_options apply;
    dw_apply_options_init(&apply);
    apply.n_threads = options->n_threads;
    apply.base_digests = options->base_digests;
    dw_digest *digests = dw_alloc_array(names->n, sizeof *digests);
    if (!digests)
        return dw_fail_memory(err, NULL);
    dw_status status = dw_delta_apply(delta, base, names->n, &apply, err);
    if (status == DW_OK)
        status = dw_digest_tensors(digests, NULL, base, names->n, options->n_threads,
                                   NULL, err);
    for (size_t i = 0; status == DW_OK && i < names->n; i++)
        if (digests[names->order[i]] != pairs[i].new_digest)
            status = dw_fail_tensor(err, DW_CONFLICT, NULL, pairs[i].base.name,
                                    "the weights changed while they were compared, and "
                                    "it shares memory with another tensor. Compare "
                                    "again while nobody writes them");
    dw_free(digests);
    return status;
}

dw_status dw_delta_diff(dw_delta **out, const dw_tensor *base, const dw_tensor *next,
                        size_t n_tensors, const dw_diff_options *given, dw_error *err)
{
    return dw_delta_diff_captured(out, base, next, n_tensors, given, NULL, err);
}

dw_status dw_delta_diff_captured(dw_delta **out, const dw_tensor *base,
                                 const dw_tensor *next, size_t n_tensors,
                                 const dw_diff_options *given,
                                 const dw_encode_capture *capture, dw_error *err)
{
    *out = NULL;
    dw_diff_options options;
    dw_status status = DW_OPTIONS_TAKE(dw_diff_options, &options, given, err);
    if (status == DW_OK)
        status = check_options(&options, err);
    if (status != DW_OK)
        return status;

    dw_name_index base_names = {0}, next_names = {0};
    dw_encode_pair *pairs = dw_alloc_zeroed(n_tensors, sizeof *pairs);
    size_t *next_of = dw_alloc_array(n_tensors, sizeof *next_of);
    if (!pairs || !next_of)
        status = dw_fail_memory(err, NULL);
    if (status == DW_OK)
        status = dw_tensors_check_placed(base, n_tensors, err);
    if (status == DW_OK)
        status = dw_tensors_check_placed(next, n_tensors, err);
    if (status == DW_OK)
        status = dw_name_index_init(&base_names, base, n_tensors, err);
    if (status == DW_OK)
        status = dw_name_index_init(&next_names, next, n_tensors, err);
    if (status == DW_OK)
        status = pair_up(pairs, next_of, &base_names, &next_names, &options,
                         capture != NULL, err);
    /* if tensors share memory, a store to one would hide the change of the other, so
     * everything is compared first. Devices only compare */
    bool later = false;
    if (status == DW_OK && options.update_base)
        status = dw_tensors_overlap(&later, base, n_tensors, err);
    later = options.update_base && (later || dw_tensors_on_device(base, n_tensors));
    if (status == DW_OK) {
        dw_encode_job job = {.pairs = pairs,
                             .n_pairs = n_tensors,
                             .digests_known = options.base_digests != NULL,
                             .capture = capture};
        options.update_base = options.update_base && !later;
        status = dw_encode(out, &job, &options, err);
    }
    if (status == DW_OK && later) {
        status = update_later(*out, base, &base_names, pairs, &options, err);
        if (status != DW_OK) {
            dw_delta_close(*out);
            *out = NULL;
        }
    }
    for (size_t i = 0; status == DW_OK && options.new_digests && i < n_tensors; i++)
        options.new_digests[next_of[i]] = pairs[i].new_digest;
    dw_name_index_release(&base_names);
    dw_name_index_release(&next_names);
    dw_free(pairs);
    dw_free(next_of);
    return status;
}

/* ---- from another delta ---- */

/* Pairs for a class delta: the base, and the patch's segments of each tensor. */
static void pair_with_patch(dw_encode_pair *pairs, const dw_name_index *names,
                            const dw_patch *patch, const dw_digest *base_digests)
{
    for (size_t i = 0; i < names->n; i++) {
        size_t number = names->order[i];
        size_t low = 0, high = patch->n_segments;
        while (low < high) { /* the first segment of the tensor, or of a later one */
            size_t middle = low + (high - low) / 2;
            if (patch->segments[middle].tensor < number)
                low = middle + 1;
            else
                high = middle;
        }
        size_t end = low;
        while (end < patch->n_segments && patch->segments[end].tensor == number)
            end++;
        pairs[i] = (dw_encode_pair){.base = names->tensors[number],
                                    .base_digest = base_digests[number],
                                    .first_segment = low,
                                    .end_segment = end};
    }
}

static dw_status recode_class(dw_delta **out, const dw_patch *patch,
                              const dw_tensor *tensors, size_t n_tensors,
                              const dw_digest *base_digests,
                              const dw_diff_options *options, dw_error *err)
{
    dw_name_index names = {0};
    dw_encode_pair *pairs = dw_alloc_zeroed(n_tensors, sizeof *pairs);
    dw_status status = pairs ? dw_name_index_init(&names, tensors, n_tensors, err)
                             : dw_fail_memory(err, NULL);
    if (status == DW_OK) {
        pair_with_patch(pairs, &names, patch, base_digests);
        dw_encode_job job = {
            .pairs = pairs, .n_pairs = n_tensors, .digests_known = true, .patch = patch};
        status = dw_encode(out, &job, options, err);
    }
    dw_name_index_release(&names);
    dw_free(pairs);
    return status;
}

static dw_status recode_trl(dw_delta **out, const dw_patch *patch,
                            const dw_tensor *tensors, size_t n_tensors,
                            dw_trl_digests digests, const dw_diff_options *options,
                            const dw_stage_result *result, dw_error *err)
{
    dw_delta *delta = dw_delta_new("delta");
    if (!delta)
        return dw_fail_memory(err, NULL);
    delta->info = (dw_delta_info){
        .codec = options->codec,
        .trl_layout = options->trl_layout,
        .base_version = options->base_version,
        .new_version = options->new_version,
        .base_state = result->base_state,
        .new_state = result->new_state,
        .n_model_tensors = n_tensors,
    };
    for (size_t i = 0; i < n_tensors; i++)
        delta->info.n_model_elems += dw_tensor_units(&tensors[i]);
    dw_status status = dw_trl_write(delta, patch, digests, err);
    if (status != DW_OK)
        dw_delta_close(delta);
    else
        *out = delta;
    return status;
}

dw_status dw_delta_recode(dw_delta **out, const dw_delta *delta, const dw_tensor *tensors,
                          size_t n_tensors, const dw_diff_options *given, dw_error *err)
{
    *out = NULL;
    dw_diff_options options;
    dw_status status = DW_OPTIONS_TAKE(dw_diff_options, &options, given, err);
    if (delta->info.has_digests ||
        delta->info.new_version != 0) { /* it has version numbers */
        options.base_version = delta->info.base_version;
        options.new_version = delta->info.new_version;
    }
    options.update_base = false;
    if (status == DW_OK)
        status = check_options(&options, err);
    if (status == DW_OK)
        status = dw_tensors_check(tensors, n_tensors, err);
    if (status != DW_OK)
        return status;

    dw_patch *patch = NULL;
    dw_digest *base = dw_alloc_array(n_tensors, sizeof *base);
    dw_digest *next = dw_alloc_array(n_tensors, sizeof *next);
    dw_stage *stage = NULL;
    dw_stage_result result;
    if (!base || !next)
        status = dw_fail_memory(err, NULL);
    if (status == DW_OK)
        status = dw_digest_tensors(base, NULL, tensors, n_tensors, options.n_threads,
                                   NULL, err);
    if (status == DW_OK)
        status = dw_patch_new(&patch, tensors, n_tensors, err);
    if (status == DW_OK) {
        patch->in_heap = true;
        status = dw_stage_open(&stage, delta, tensors, n_tensors, options.n_threads, err);
    }
    if (status == DW_OK) {
        dw_apply_options apply = {.struct_bytes = sizeof apply,
                                  .n_threads = options.n_threads,
                                  .base_digests = base,
                                  .new_digests = next,
                                  .progress = options.progress};
        status = dw_stage_verify(&result, stage, &apply, dw_patch_take, patch, err);
    }
    if (status == DW_OK) {
        dw_patch_sort(patch);
        status = options.codec == DW_CODEC_CLASS
                     ? recode_class(out, patch, tensors, n_tensors, base, &options, err)
                     : recode_trl(out, patch, tensors, n_tensors,
                                  (dw_trl_digests){base, next}, &options, &result, err);
    }
    dw_stage_close(stage);
    dw_patch_free(patch);
    dw_free(base);
    dw_free(next);
    return status;
}
