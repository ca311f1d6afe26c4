#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "store/store.h"
#include "publish/publisher.h"
#include "publish/restart.h"

dw_status dw_restart_open(dw_restart *out, const dw_publisher *p, dw_error *err)
{
    const dw_stream_record *r = &p->stream->record;
    *out = (dw_restart){0};
    return dw_scratch_model_make(&out->model, r->tensors, r->n_tensors,
                                 p->options.spool_dir, err);
}

void dw_restart_close(dw_restart *r)
{
    dw_objects_release(&r->objects);
    dw_scratch_model_release(&r->model);
}

dw_status dw_restart_digest(dw_restart *r, const dw_publisher *p, dw_error *err)
{
    const size_t n = p->stream->record.n_tensors;
    dw_digest *digests = dw_alloc_array(n, sizeof *digests);
    dw_status status = digests ? dw_digest_tensors(digests, &r->state, r->model.tensors,
                                                   n, p->options.n_threads, NULL, err)
                               : dw_fail_memory(err, NULL);
    dw_free(digests);
    return status;
}

dw_status dw_restart_upload(dw_restart *r, dw_publisher *p, dw_error *err)
{
    const dw_stream_record *s = &p->stream->record;
    const dw_progress stop = {dw_job_cancelled, p};
    dw_slices all = {0};
    void **data = dw_alloc_array(s->n_tensors, sizeof *data);
    dw_status status = data ? dw_random_id(r->write_id, err) : dw_fail_memory(err, NULL);
    for (size_t t = 0; status == DW_OK && t < s->n_tensors; t++)
        data[t] = r->model.tensors[t].data;
    if (status == DW_OK)
        status = dw_slices_of_covers(&all, NULL, 0, s->tensors, s->n_tensors, err);
    const dw_anchor_spec spec = {
        .store = p->store,
        .table = s->tensors,
        .n_table = s->n_tensors,
        .slices = &all,
        .data = data,
        .share = dw_whole_share(s->tensors, s->n_tensors, r->state),
        .version = dw_commit_next_version(p),
        .is_shortcut = true,
        .write_id = r->write_id,
        .max_object_bytes = p->options.max_anchor_bytes,
        .progress = &stop,
    };
    if (status == DW_OK)
        status = dw_anchor_upload(&r->objects, &spec, err);
    dw_slices_free(&all);
    dw_free(data);
    return status;
}

/* Whether the record of the restart's anchor is there, although its reply was lost. */
static bool is_anchored(dw_publisher *p, const dw_position *position)
{
    dw_shortcut_record found;
    if (dw_stream_read_shortcut(p->stream, position->version, DW_NO_VERSION, &found,
                                NULL) != DW_OK)
        return false;
    const bool is_ours =
        memcmp(found.commit_sha256, position->commit_sha256, DW_SHA256_BYTES) == 0;
    dw_shortcut_record_release(&found);
    return is_ours;
}

dw_status dw_restart_commit(const dw_restart *r, dw_publisher *p,
                            dw_commit_record *commit, dw_error *err)
{
    dw_position position;
    commit->state = r->state;
    commit->content = DW_CONTENT_DELTA;
    commit->restart = true;
    memcpy(commit->write_id, r->write_id, sizeof commit->write_id);
    dw_status status = dw_commit_create(p, commit, &position, err);
    if (status != DW_OK)
        return status;
    status = dw_shortcut_create(p->stream, NULL, &position, &r->objects,
                                p->options.sign_key, err);
    return status == DW_CONFLICT && is_anchored(p, &position) ? DW_OK : status;
}
