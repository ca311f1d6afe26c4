/* Finishing an interrupted update of a directory without its stream: the patch file holds
 * the stores, and the record names the version they lead to. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "deltawire/checkpoint.h"
#include "tensor/tensor_list.h"
#include "weights/replica.h"

dw_status dw_weights_interrupted(const char *into, bool *interrupted, dw_error *err)
{
    dw_error fault = {0};
    *interrupted = false;
    dw_status status = dw_checkpoint_pending(into, interrupted, &fault);
    /* without weights there is nothing to write; damaged ones are judged by the open */
    if (status == DW_OK || status == DW_NOT_FOUND || status == DW_CORRUPT ||
        status == DW_UNSUPPORTED || status == DW_INVALID)
        return DW_OK;
    if (err)
        *err = fault;
    return status;
}

dw_status dw_weights_check_interrupted(const char *into, unsigned n_threads,
                                       dw_error *err)
{
    dw_target target = {.lock = -1};
    dw_checkpoint *checkpoint = NULL;
    dw_patch *patch = NULL;
    dw_patch_goal goal;
    size_t n = 0;
    dw_status status = dw_target_identify(&target, into, err);
    const char *path = target.patch_path;
    if (status == DW_OK)
        status = dw_checkpoint_open(&checkpoint, into, DW_CHECKPOINT_READ, err);
    if (status == DW_OK)
        status = dw_patch_open(&patch, &goal, path, err);
    if (status == DW_OK) {
        const dw_tensor *tensors = dw_checkpoint_tensors(checkpoint, &n);
        status = dw_patch_check(patch, tensors, n, n_threads, path, err);
    }
    if (status == DW_OK)
        status = dw_patch_goal_check(&goal, into, path, err);
    dw_patch_free(patch);
    dw_checkpoint_close(checkpoint);
    dw_target_release(&target);
    return status;
}

dw_status dw_weights_check_whole(dw_position *out, const char *into, unsigned n_threads,
                                 dw_error *err)
{
    dw_position at, next;
    dw_record_kind kind;
    dw_checkpoint *checkpoint = NULL;
    dw_digest state = 0;
    size_t n = 0;
    dw_status status = dw_position_read(&at, &next, &kind, into, err);
    if (status == DW_OK)
        status = dw_checkpoint_open(&checkpoint, into, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    const dw_tensor *tensors = dw_checkpoint_tensors(checkpoint, &n);
    dw_digest *digests = dw_alloc_array(n, sizeof *digests);
    status = digests
                 ? dw_digest_tensors(digests, &state, tensors, n, n_threads, NULL, err)
                 : dw_fail_memory(err, into);
    const bool is_at = at.version != DW_NO_VERSION && at.state == state;
    const bool is_next = next.version != DW_NO_VERSION && next.state == state;
    if (status == DW_OK && !is_at && !is_next)
        status = dw_fail(err, DW_CORRUPT, into, "the weights are no version");
    *out = is_next ? next : at;
    dw_free(digests);
    dw_checkpoint_close(checkpoint);
    return status;
}

static dw_status sort_table(dw_tensor **out, const dw_checkpoint *checkpoint, size_t *n,
                            dw_error *err)
{
    const dw_tensor *tensors = dw_checkpoint_tensors(checkpoint, n);
    *out = dw_alloc_array(*n, sizeof **out);
    if (!*out)
        return dw_fail_memory(err, NULL);
    if (*n > 0) {
        memcpy(*out, tensors, *n * sizeof **out);
        qsort(*out, *n, sizeof **out, dw_tensor_compare_names);
    }
    return DW_OK;
}

dw_status dw_weights_recover(const dw_follow_options *options, dw_error *err)
{
    dw_checkpoint *checkpoint = NULL;
    dw_tensor *table = NULL;
    dw_weights *weights = NULL;
    size_t n = 0;
    dw_status status =
        dw_checkpoint_open(&checkpoint, options->into, DW_CHECKPOINT_READ, err);
    if (status == DW_OK)
        status = sort_table(&table, checkpoint, &n, err);
    if (status == DW_OK)
        status = dw_weights_open_dir(&weights, table, n, NULL, options, false, err);
    if (status == DW_OK && weights->now->at.version == DW_NO_VERSION)
        status = dw_fail(err, DW_CORRUPT, options->into,
                         "the interrupted apply was finished, but no record says which "
                         "version the weights are: the stream is needed");
    if (status == DW_OK)
        status = dw_weights_accept(weights, err);
    if (status == DW_OK)
        status = dw_weights_forget_next(weights, err);
    dw_weights_close(weights);
    dw_free(table);
    dw_checkpoint_close(checkpoint);
    return status;
}

dw_status dw_weights_recovered(dw_position *at, const char *into, dw_error *err)
{
    dw_position next;
    dw_record_kind kind;
    dw_status status = dw_position_read(at, &next, &kind, into, err);
    if (status == DW_OK &&
        (at->version == DW_NO_VERSION || next.version != DW_NO_VERSION))
        status = dw_fail(err, DW_NOT_FOUND, into, "no record says which version it is");
    return status;
}
