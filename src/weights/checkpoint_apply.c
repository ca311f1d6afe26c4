/* Applying a delta to a checkpoint on disk that follows no stream: stage, prepare, apply
 * and finish, one after the other. */
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/options.h"
#include "codec/delta.h"
#include "weights/target_inside.h"

static dw_status stage_delta(dw_target *r, const dw_delta *delta,
                             const dw_progress *progress, dw_stage_result *result,
                             dw_error *err)
{
    size_t n;
    const dw_tensor *tensors = dw_checkpoint_tensors(r->files.ckpt, &n);
    dw_slice *slices = dw_alloc_array(n, sizeof *slices);
    if (!slices)
        return dw_fail_memory(err, delta->label);
    for (size_t t = 0; t < n; t++)
        slices[t] = dw_slice_whole(tensors, t);
    /* no digests: what is on disk is read and checked */
    const dw_part part = {
        .delta = delta, .slices = slices, .n_slices = n, .result = result};
    const dw_patch_goal goal = {delta->info.has_digests, delta->info.new_state,
                                delta->info.new_version};
    dw_status status = dw_target_stage_parts(r, &part, 1, &goal, progress, err);
    dw_free(slices);
    return status;
}

static dw_status apply_to(dw_target *r, const dw_delta *delta,
                          const dw_progress *progress, dw_apply_report *report,
                          dw_error *err)
{
    dw_stage_result result = {0};
    dw_status status = stage_delta(r, delta, progress, &result, err);
    if (status == DW_STALE && result.base_state == delta->info.new_state) {
        report->already_applied = true;
        if (err)
            *err = (dw_error){0}; /* no error after all */
        result.new_state = delta->info.new_state;
        status = DW_OK;
    }
    if (status != DW_OK)
        return status;
    report->verified = delta->info.has_digests;
    report->new_state = result.new_state;
    report->n_changed = result.n_changed;
    if (report->already_applied)
        return DW_OK;
    status = dw_target_apply(r, err);
    return status == DW_OK ? dw_target_finish(r, true, err) : status;
}

/* The weights of a directory with a record are changed only by its follower. */
static dw_status refuse_follower(const dw_target_files *t, dw_error *err)
{
    dw_patch_seal patch;
    dw_record_kind kind;
    dw_status status = dw_position_read_patch(&patch, &kind, t->dir, err);
    if (status != DW_OK || kind == DW_RECORD_NONE)
        return status;
    return dw_fail(err, DW_CONFLICT, t->path,
                   "a follower keeps these weights at a version of its stream, and only "
                   "it may change them. Write a new checkpoint instead");
}

dw_status dw_checkpoint_apply(const char *path, const dw_delta *delta,
                              const dw_apply_options *given, dw_apply_report *report_,
                              dw_error *err)
{
    dw_apply_options options;
    dw_apply_report report = {0};
    dw_target *r = NULL;
    dw_status status = DW_OPTIONS_TAKE(dw_apply_options, &options, given, err);
    if (status == DW_OK)
        status = dw_target_open_checkpoint(&r, path, options.n_threads, false,
                                           &report.recovered, err);
    if (status == DW_OK && dw_files_judge(r->files.ckpt, err) != DW_FILES_OWN)
        status = DW_CONFLICT;
    if (status == DW_OK)
        status = refuse_follower(&r->files, err);
    if (status == DW_OK)
        status = apply_to(r, delta, &options.progress, &report, err);
    dw_target_close(r);
    if (report_)
        *report_ = report;
    return status;
}

dw_status dw_checkpoint_recover(const char *path, unsigned n_threads, bool *recovered,
                                dw_error *err)
{
    dw_target *r;
    dw_status status =
        dw_target_open_checkpoint(&r, path, n_threads, true, recovered, err);
    dw_target_close(r);
    return status;
}

dw_status dw_checkpoint_pending(const char *path, bool *pending, dw_error *err)
{
    dw_target_files t;
    dw_status status = dw_target_files_find(&t, path, err);
    if (status != DW_OK)
        return status;
    status = dw_target_files_pending(&t, pending, err);
    dw_target_files_release(&t);
    return status;
}
