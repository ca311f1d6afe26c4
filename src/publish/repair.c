/* Restarts a stream whose newest versions cannot be rebuilt, without a publisher: from a
 * checkpoint, or from the newest version that can be rebuilt. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "codec/digest.h"
#include "store/store.h"
#include "publish/publisher.h"
#include "publish/repair_quant.h"
#include "publish/restart.h"

#define MAX_BROKEN 1000 /* versions at the end of a stream that are passed over */

/* The restart, and the version that its weights come from. */
typedef struct source {
    dw_restart restart;
    uint64_t version; /* DW_NO_VERSION: the caller's */
} source;

/* Whether the tensors have the names, types and shapes of the stream. */
static bool fits(const dw_stream_record *r, const dw_tensor *tensors, size_t n_tensors)
{
    dw_name_index names;
    if (n_tensors != r->n_tensors ||
        dw_name_index_init(&names, tensors, n_tensors, NULL) != DW_OK)
        return false;
    bool good = true;
    for (size_t t = 0; good && t < r->n_tensors; t++) {
        const size_t i = dw_name_index_find(&names, r->tensors[t].name);
        good = i != SIZE_MAX &&
               dw_tensor_same_shape(&r->tensors[t], &tensors[i], NULL, NULL) == DW_OK;
    }
    dw_name_index_release(&names);
    return good;
}

static dw_status take_tensors(source *out, dw_publisher *p, const dw_tensor *tensors,
                              size_t n_tensors, dw_error *err)
{
    const dw_stream_record *r = &p->stream->record;
    if (r->quantized.scheme[0] && !fits(r, tensors, n_tensors))
        return dw_repair_quantize(&out->restart, p, tensors, n_tensors, err);
    if (n_tensors != r->n_tensors)
        return dw_fail(err, DW_MISMATCH, NULL,
                       "there are %zu tensors, but the stream's model has %zu", n_tensors,
                       r->n_tensors);
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    for (size_t t = 0; status == DW_OK && t < r->n_tensors; t++) {
        const size_t i = dw_name_index_find(&names, r->tensors[t].name);
        if (i == SIZE_MAX)
            status = dw_fail_tensor(err, DW_MISMATCH, NULL, r->tensors[t].name,
                                    "the stream has it, but the weights do not");
        else
            status = dw_tensor_same_shape(&r->tensors[t], &tensors[i], NULL, err);
        if (status == DW_OK && tensors[i].n_bytes > 0)
            memcpy(out->restart.model.tensors[t].data, tensors[i].data,
                   (size_t)tensors[i].n_bytes);
    }
    dw_name_index_release(&names);
    return status;
}

/* Follows the stream as far as it goes: to the newest version that can be rebuilt. */
static dw_status follow_on(dw_follower *f, uint64_t head, const dw_progress *progress,
                           dw_error *err)
{
    uint64_t goal = head;
    dw_status status = dw_follower_sync(f, goal, progress, NULL, err);
    while (dw_follower_may_detour(status) && goal > 0 && head - goal < MAX_BROKEN) {
        dw_error unread; /* the fault of the head is reported */
        goal--;
        dw_status tried = dw_follower_sync(f, goal, progress, NULL, &unread);
        if (tried == DW_OK)
            return DW_OK;
        if (!dw_follower_may_detour(tried)) {
            *err = unread;
            status = tried;
        }
    }
    return status;
}

static dw_status take_newest(source *out, dw_publisher *p, uint64_t head, dw_error *err)
{
    dw_follow_options options = dw_publisher_follow_options(p);
    options.tensors = out->restart.model.tensors;
    options.n_tensors = p->stream->record.n_tensors;
    options.tensors_empty = true;
    dw_follower *f;
    dw_status status = dw_follower_open(&f, p->store, &options, err);
    if (status != DW_OK)
        return status;
    f->fork_store = p->options.fork_store;
    dw_error fault = {0};
    status = follow_on(f, head, &p->options.progress, &fault);
    out->version = dw_follower_version(f);
    dw_follower_close(f);
    if (dw_follower_may_detour(status) && out->version == DW_NO_VERSION)
        return dw_fail(
            err, status, dw_store_url(p->store),
            "no version of this stream can be rebuilt: %.200s: %.300s. To go on, "
            "name a checkpoint: deltawire repair %s CHECKPOINT",
            fault.where, fault.text, dw_store_url(p->store));
    if (status != DW_OK && err)
        *err = fault;
    if (status != DW_OK || out->version != head)
        return status;
    return dw_fail(err, DW_INVALID, dw_store_url(p->store),
                   "there is nothing to repair: version %" PRIu64 ", the newest, can be "
                   "rebuilt. To restart the stream all the same, name a checkpoint",
                   head);
}

/* Takes the weights that follow on version HEAD: TENSORS, or the newest that can be
 * rebuilt. */
static dw_status take_source(source *out, dw_publisher *p, uint64_t head,
                             const dw_tensor *tensors, size_t n_tensors, dw_error *err)
{
    *out = (source){.version = DW_NO_VERSION};
    dw_status status = dw_restart_open(&out->restart, p, err);
    if (status == DW_OK)
        status = tensors ? take_tensors(out, p, tensors, n_tensors, err)
                         : take_newest(out, p, head, err);
    return status == DW_OK ? dw_restart_digest(&out->restart, p, err) : status;
}

/* A derived version keeps its source, so that a mirror goes on after it. */
static dw_status keep_origin(dw_publisher *p, const source *from, dw_error *err)
{
    dw_commit_record commit;
    if (from->version == DW_NO_VERSION)
        return DW_OK;
    dw_status status = dw_stream_read_commit(p->stream, from->version, &commit, err);
    if (status != DW_OK)
        return status;
    p->job.source = commit.source;
    dw_commit_record_release(&commit);
    return DW_OK;
}

/* If the process is killed between the commit and the record of its anchor, the head
 * still cannot be rebuilt. Then the repair is run again. */
static dw_status commit_restart(dw_publisher *p, const source *from, dw_error *err)
{
    char notes[64] = "";
    if (from->version != DW_NO_VERSION)
        snprintf(notes, sizeof notes, "the weights of version %" PRIu64, from->version);
    dw_commit_record commit = {.step = (char *)p->options.first_step,
                               .notes = (char *)p->options.first_notes};
    if (!commit.notes)
        commit.notes = notes;
    dw_status status = dw_restart_commit(&from->restart, p, &commit, err);
    if (status == DW_OK) {
        (void)dw_hint_load(&p->hint, p->stream, p->commits.head.version, NULL);
        (void)dw_hint_put(&p->hint, p->stream, NULL);
    }
    return status;
}

/* Opens the stream for writing, without a baseline. */
static dw_status open_stream(dw_publisher *p, dw_error *err)
{
    dw_status status = dw_stream_open(&p->stream, p->store, &p->options.trust, err);
    if (status == DW_OK)
        status = dw_publisher_check_store(p, err);
    if (status == DW_OK)
        status = dw_publisher_check_key(p, err);
    return status == DW_OK ? dw_stream_check_hint(p->stream, err) : status;
}

static dw_status repair(dw_publisher *p, const dw_tensor *tensors, size_t n_tensors,
                        dw_repair_report *report, dw_error *err)
{
    source from = {0};
    uint64_t seen = DW_NO_VERSION;
    dw_status status = open_stream(p, err);
    if (status == DW_OK)
        status = dw_stream_find_head(p->stream, DW_NO_VERSION, &seen, err);
    /* do everything that can fail before the previous writer is fenced */
    if (status == DW_OK)
        status = take_source(&from, p, seen, tensors, n_tensors, err);
    if (status == DW_OK)
        status = dw_commit_claim(p, err);
    if (status == DW_OK && !tensors && p->commits.head.version != seen) {
        dw_restart_close(&from.restart); /* that writer went on meanwhile */
        status = take_source(&from, p, p->commits.head.version, NULL, 0, err);
    }
    if (status == DW_OK)
        status = keep_origin(p, &from, err);
    if (status == DW_OK)
        status = dw_restart_upload(&from.restart, p, err);
    if (status == DW_OK)
        status = dw_live_confirm(p, err);
    if (status == DW_OK)
        status = commit_restart(p, &from, err);
    if (status == DW_OK && report)
        *report = (dw_repair_report){.version = p->commits.head.version,
                                     .source = from.version,
                                     .state = from.restart.state,
                                     .n_bytes = dw_objects_bytes(&from.restart.objects),
                                     .n_objects = from.restart.objects.n};
    dw_restart_close(&from.restart);
    return status;
}

dw_status dw_stream_repair(dw_store *store, const dw_tensor *tensors, size_t n_tensors,
                           const dw_publish_options *options, dw_repair_report *report,
                           dw_error *err)
{
    dw_publisher *p = dw_publisher_new(store);
    if (!p)
        return dw_fail_memory(err, NULL);
    dw_status status = DW_OPTIONS_TAKE(dw_publish_options, &p->options, options, err);
    p->options.rank = 0;
    if (status == DW_OK && p->options.has_files)
        status =
            dw_file_set_copy(&p->files.wanted, p->options.files, p->options.n_files, err);
    p->files.renew = true;
    if (status == DW_OK)
        status = dw_tensors_need_host(tensors, n_tensors, "repair a stream with it", err);
    if (status == DW_OK)
        status = dw_random_id(p->ranks.process, err);
    if (status == DW_OK)
        status = repair(p, tensors, n_tensors, report, err);
    dw_ranks_leave(p, status == DW_OK ? NULL : err);
    dw_publisher_free(p);
    return status;
}
