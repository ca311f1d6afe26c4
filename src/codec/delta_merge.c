#include "codec/delta_merge.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/delta.h"

static dw_status check_mergeable(const dw_delta *delta, const dw_delta_info *first,
                                 dw_error *err)
{
    const dw_delta_info *info = &delta->info;
    if (info->codec != DW_CODEC_CLASS)
        return dw_fail(err, DW_INVALID, delta->label,
                       "a delta with codec %s cannot be merged",
                       dw_codec_name(info->codec));
    if (info->base_version != first->base_version ||
        info->new_version != first->new_version)
        return dw_fail(err, DW_MISMATCH, delta->label,
                       "it leads from version %" PRIu64 " to %" PRIu64
                       ", the others from %" PRIu64 " to %" PRIu64,
                       info->base_version, info->new_version, first->base_version,
                       first->new_version);
    return DW_OK;
}

/* Adds up the counts of the deltas. */
static dw_status sum_up(dw_delta_info *sum, dw_delta **deltas, size_t n, dw_error *err)
{
    *sum = (dw_delta_info){.codec = DW_CODEC_CLASS,
                           .has_digests = true,
                           .base_version = deltas[0]->info.base_version,
                           .new_version = deltas[0]->info.new_version};
    for (size_t i = 0; i < n; i++) {
        const dw_delta_info *info = &deltas[i]->info;
        dw_status status = check_mergeable(deltas[i], &deltas[0]->info, err);
        if (status != DW_OK)
            return status;
        sum->base_state = dw_digest_plus(sum->base_state, info->base_state);
        sum->new_state = dw_digest_plus(sum->new_state, info->new_state);
        sum->n_tensors += info->n_tensors;
        if (__builtin_add_overflow(sum->n_changed, info->n_changed, &sum->n_changed) ||
            __builtin_add_overflow(sum->n_model_tensors, info->n_model_tensors,
                                   &sum->n_model_tensors) ||
            __builtin_add_overflow(sum->n_model_elems, info->n_model_elems,
                                   &sum->n_model_elems))
            return dw_fail(err, DW_INVALID, deltas[i]->label, "impossible counts");
    }
    return DW_OK;
}

static dw_status join_entries(dw_delta *merged, dw_delta **deltas, size_t n,
                              dw_error *err)
{
    const size_t n_entries = merged->info.n_tensors;
    dw_delta_entry *entries = dw_delta_alloc(merged, n_entries, sizeof *entries, err);
    if (!entries)
        return DW_NO_MEMORY;
    merged->entries = entries;
    for (size_t i = 0; i < n; i++) {
        if (deltas[i]->info.n_tensors > 0)
            memcpy(entries, deltas[i]->entries,
                   deltas[i]->info.n_tensors * sizeof *entries);
        entries += deltas[i]->info.n_tensors;
    }
    if (n_entries > 0)
        qsort(merged->entries, n_entries, sizeof *merged->entries, dw_entry_compare);
    for (size_t i = 1; i < n_entries; i++)
        if (dw_entry_compare(&merged->entries[i - 1], &merged->entries[i]) == 0)
            return dw_fail_tensor(err, DW_INVALID, NULL, merged->entries[i].shape.name,
                                  "two deltas to be merged change it");
    return DW_OK;
}

dw_status dw_delta_merge(dw_delta **out, dw_delta **deltas, size_t n, dw_error *err)
{
    *out = NULL;
    if (n == 0)
        return dw_fail(err, DW_INVALID, NULL, "no delta to merge");
    dw_delta *merged = dw_delta_new("delta");
    dw_delta **parts = dw_alloc_array(n, sizeof(dw_delta *));
    dw_status status = merged && parts ? sum_up(&merged->info, deltas, n, err)
                                       : dw_fail_memory(err, NULL);
    if (status == DW_OK)
        status = join_entries(merged, deltas, n, err);
    if (status == DW_OK)
        status = dw_container_write(merged, err);
    if (status != DW_OK) {
        dw_free(parts);
        dw_delta_close(merged);
        return status;
    }
    for (size_t i = 0; i < n; i++) {
        parts[i] = deltas[i];
        deltas[i] = NULL;
    }
    merged->parts = parts;
    merged->n_parts = n;
    *out = merged;
    return DW_OK;
}
