#include "codec/parts.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "tensor/tensor_list.h"

typedef struct job {
    const dw_tensor *tensors;
    size_t n_tensors;
    const dw_part *parts;
    size_t n_parts;
    unsigned n_threads;
    const dw_progress *progress;
    dw_stage_sink sink; /* sees whole tensors */
    void *sink_context;
    dw_patch *patch; /* takes what devices keep; NULL: there are none */

    uint64_t bytes_total; /* of the slices of all parts */
    uint64_t bytes_done;  /* of the parts before */
    uint64_t bytes_now;   /* of the current part */
    dw_digest state;      /* floor and shares so far */
} job;

/* Slices come with the parts from outside, so a fault in them means a damaged version. */
static dw_status blame_parts(dw_status status, dw_error *err)
{
    if (status != DW_INVALID)
        return status;
    if (err)
        err->code = DW_CORRUPT;
    return DW_CORRUPT;
}

/* Checks that all slices fit and none overlap, and adds up their bytes. */
static dw_status check_slices(job *j, dw_error *err)
{
    size_t n = 0;
    for (size_t p = 0; p < j->n_parts; p++)
        n += j->parts[p].n_slices;
    dw_slice *all = dw_alloc_array(n, sizeof *all);
    if (!all)
        return dw_fail_memory(err, NULL);
    n = 0;
    for (size_t p = 0; p < j->n_parts; p++)
        for (size_t i = 0; i < j->parts[p].n_slices; i++)
            all[n++] = j->parts[p].slices[i];
    dw_slice_list list;
    dw_status status =
        blame_parts(dw_slices_open(&list, j->tensors, j->n_tensors, all, n, err), err);
    dw_free(all);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; i < list.n; i++)
        j->bytes_total += list.tensors[i].n_bytes;
    dw_slices_release(&list);
    return DW_OK;
}

/* Reports a part's progress as part of the whole. */
static int report_part(void *context, uint64_t done, uint64_t total)
{
    const job *j = context;
    uint64_t now = total ? (uint64_t)((unsigned __int128)j->bytes_now * done / total) : 0;
    return j->progress->report(j->progress->context, j->bytes_done + now, j->bytes_total);
}

typedef struct remap {
    const job *job;
    const dw_slice *slices;
} remap;

static dw_status take_slice(void *context, size_t t, uint64_t first,
                            const dw_decoded *changes, dw_error *err)
{
    const remap *r = context;
    const dw_slice *s = &r->slices[t];
    return r->job->sink(r->job->sink_context, s->tensor,
                        dw_slice_first_unit(r->job->tensors, s) + first, changes, err);
}

/* Gives the patch what devices keep of a part. */
static dw_status take_kept(const job *j, const dw_part *part, dw_stage *stage,
                           dw_error *err)
{
    if (!j->patch || !dw_tensors_on_device(j->tensors, j->n_tensors))
        return DW_OK;
    size_t *tensor_of = dw_alloc_array(part->n_slices, sizeof *tensor_of);
    if (!tensor_of)
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < part->n_slices; i++)
        tensor_of[i] = part->slices[i].tensor;
    return dw_patch_keep(j->patch, stage, tensor_of, err);
}

static dw_status stage_part(job *j, const dw_part *part, dw_error *err)
{
    dw_slice_list list;
    dw_stage *stage = NULL;
    dw_stage_result result = {0};
    dw_digest *digests = NULL;
    dw_status status = dw_slices_open(&list, j->tensors, j->n_tensors, part->slices,
                                      part->n_slices, err);
    if (status != DW_OK)
        return status;
    j->bytes_now = 0;
    for (size_t i = 0; i < list.n; i++)
        j->bytes_now += list.tensors[i].n_bytes;
    digests = dw_alloc_array(list.n, sizeof *digests);
    status = digests ? dw_stage_open(&stage, part->delta, list.tensors, list.n,
                                     j->n_threads, err)
                     : dw_fail_memory(err, NULL);
    if (status == DW_OK) {
        remap r = {j, part->slices};
        dw_apply_options options = {.struct_bytes = sizeof options,
                                    .base_digests = part->base_digests,
                                    .new_digests = digests};
        if (j->progress && j->progress->report)
            options.progress = (dw_progress){report_part, j};
        status = dw_stage_verify(&result, stage, &options, take_slice, &r, err);
    }
    if (status == DW_OK)
        status = take_kept(j, part, stage, err);
    if (status == DW_OK) {
        j->state = dw_digest_plus(
            j->state, dw_slices_share(j->tensors, part->slices, digests, list.n));
        if (part->new_digests && list.n > 0)
            memcpy(part->new_digests, digests, list.n * sizeof *digests);
    }
    if (part->result)
        *part->result = result;
    j->bytes_done += j->bytes_now;
    dw_stage_close(stage);
    dw_free(digests);
    dw_slices_release(&list);
    return status;
}

static dw_status stage_parts(job *j, dw_error *err)
{
    dw_status status = check_slices(j, err);
    if (status != DW_OK)
        return status;
    j->state = dw_state_floor(j->tensors, j->n_tensors);
    for (size_t p = 0; status == DW_OK && p < j->n_parts; p++)
        status = stage_part(j, &j->parts[p], err);
    return status;
}

dw_status dw_parts_stage_memory(dw_patch **out, const dw_tensor *tensors,
                                size_t n_tensors, const dw_part *parts, size_t n_parts,
                                unsigned n_threads, const dw_progress *progress,
                                dw_error *err)
{
    *out = NULL;
    dw_patch *patch;
    dw_status status = dw_tensors_check_placed(tensors, n_tensors, err);
    if (status == DW_OK)
        status = dw_patch_new(&patch, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    patch->in_heap = true;
    job j = {.tensors = tensors,
             .n_tensors = n_tensors,
             .parts = parts,
             .n_parts = n_parts,
             .n_threads = n_threads,
             .progress = progress,
             .sink = dw_patch_take,
             .sink_context = patch,
             .patch = patch};
    status = stage_parts(&j, err);
    if (status != DW_OK) {
        dw_patch_free(patch);
        return status;
    }
    dw_patch_sort(patch);
    *out = patch;
    return DW_OK;
}

/* ---- into a file ---- */

static dw_status check_goal(const job *j, const dw_patch_goal *goal, const char *path,
                            dw_error *err)
{
    if (!goal->has_digest)
        return DW_OK;
    uint64_t n_bytes =
        0; /* no byte is covered twice, so equal sums mean that all are covered */
    for (size_t t = 0; t < j->n_tensors; t++)
        n_bytes += j->tensors[t].n_bytes;
    if (j->bytes_total == n_bytes && j->state != goal->state)
        return dw_fail(err, DW_CORRUPT, path,
                       "the parts lead to another model state than version %" PRIu64
                       " has",
                       goal->version);
    return DW_OK;
}

dw_status dw_parts_stage_file(const char *path, const dw_tensor *tensors,
                              size_t n_tensors, const dw_part *parts, size_t n_parts,
                              const dw_patch_goal *goal, unsigned n_threads,
                              const dw_progress *progress, dw_error *err)
{
    dw_patch_writer *writer;
    dw_status status = dw_tensors_check(tensors, n_tensors, err);
    if (status == DW_OK)
        status = dw_patch_writer_open(&writer, path, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    job j = {.tensors = tensors,
             .n_tensors = n_tensors,
             .parts = parts,
             .n_parts = n_parts,
             .n_threads = n_threads,
             .progress = progress,
             .sink = dw_patch_writer_take,
             .sink_context = writer};
    status = stage_parts(&j, err);
    if (status == DW_OK)
        status = check_goal(&j, goal, path, err);
    if (status != DW_OK) {
        dw_patch_writer_abort(writer);
        return status;
    }
    return dw_patch_writer_commit(writer, goal, err);
}
