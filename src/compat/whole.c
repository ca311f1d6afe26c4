/* A version that is a checkpoint: TRL's anchors, slime's full versions. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/progress.h"
#include "compat/step.h"
#include "store/store.h"
#include "tensor/tensor_list.h"

static dw_status fetch_files(dw_peer_step *s, const dw_peer_settings *settings,
                             const dw_peer_record *r, dw_error *err)
{
    dw_share share = {settings->progress, 0, r->n_bytes};
    const dw_progress hook = dw_share_hook(&share);
    s->files = dw_alloc_zeroed(r->n_files, sizeof *s->files);
    if (!s->files)
        return dw_fail_memory(err, NULL);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < r->n_files; i++) {
        status = dw_peer_fetch(&s->files[i], settings->peer, &r->files[i],
                               settings->spool_dir, &s->n_heap, &hook, err);
        s->n_files += status == DW_OK;
        share.before += r->files[i].n_bytes;
    }
    return status;
}

/* Collects all tensors of all files, names ascending. */
static dw_status gather(dw_peer_step *s, const char *where, dw_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_files; i++)
        n += s->files[i].file.n_tensors;
    s->tensors = dw_alloc_array(n, sizeof *s->tensors);
    if (!s->tensors)
        return dw_fail_memory(err, where);
    for (size_t i = 0; i < s->n_files; i++) {
        const dw_safetensors *file = &s->files[i].file;
        if (file->n_tensors > 0)
            memcpy(s->tensors + s->n_whole, file->tensors,
                   file->n_tensors * sizeof *s->tensors);
        s->n_whole += file->n_tensors;
    }
    if (n > 0)
        qsort(s->tensors, n, sizeof *s->tensors, dw_tensor_compare_names);
    for (size_t i = 1; i < n; i++)
        if (strcmp(s->tensors[i - 1].name, s->tensors[i].name) == 0)
            return dw_fail_tensor(err, DW_CORRUPT, where, s->tensors[i].name,
                                  "two files hold it");
    return n > 0 ? DW_OK : dw_fail(err, DW_CORRUPT, where, "it holds no tensors");
}

/* Checks that each file holds the tensors that the index names for it. */
static dw_status check_index(const dw_peer_step *s, const dw_peer_record *r,
                             const char *where, dw_error *err)
{
    for (size_t f = 0; f < r->n_files; f++) {
        const dw_peer_file *file = &r->files[f];
        const dw_safetensors *there = &s->files[f].file;
        dw_name_index names = {0};
        dw_status status =
            dw_name_index_init(&names, there->tensors, there->n_tensors, err);
        for (size_t i = file->first; status == DW_OK && i < file->end; i++)
            if (dw_name_index_find(&names, r->entries[i].name) == SIZE_MAX)
                status = dw_fail_tensor(
                    err, DW_CORRUPT, where, r->entries[i].name,
                    "the index places it in '%.120s', which does not hold it",
                    r->entries[i].file);
        if (status == DW_OK && there->n_tensors != file->end - file->first)
            status = dw_fail(err, DW_CORRUPT, where,
                             "'%.120s' holds %zu tensors, the index names %zu of them",
                             r->entries[file->first].file, there->n_tensors,
                             file->end - file->first);
        dw_name_index_release(&names);
        if (status != DW_OK)
            return status;
    }
    return DW_OK;
}

/* Checks that it is the same model as the weights. With MAY_LACK, missing tensors are
 * taken from the weights. */
static dw_status complete(dw_peer_step *s, const dw_peer_start *now, bool may_lack,
                          const char *where, dw_error *err)
{
    dw_tensor *all = dw_alloc_array(now->n_tensors, sizeof *all);
    size_t at = 0;
    if (!all)
        return dw_fail_memory(err, where);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < now->n_tensors; i++) {
        all[i] = now->tensors[i];
        if (at == s->n_whole || strcmp(s->tensors[at].name, all[i].name) != 0)
            continue;
        status = dw_tensor_same_shape(&now->tensors[i], &s->tensors[at], where, err);
        all[i].data = s->tensors[at++].data;
    }
    if (status == DW_OK && at < s->n_whole)
        status = dw_fail_tensor(err, DW_MISMATCH, where, s->tensors[at].name,
                                "the version has it, but the weights here do not");
    if (status == DW_OK && !may_lack && s->n_whole < now->n_tensors)
        status = dw_fail(err, DW_MISMATCH, where,
                         "a whole version of %zu tensors, but the weights here have %zu: "
                         "it is another model, or not all of it",
                         s->n_whole, now->n_tensors);
    if (status != DW_OK) {
        dw_free(all);
        return status;
    }
    dw_free(s->tensors);
    s->tensors = all;
    s->n_whole = now->n_tensors;
    return DW_OK;
}

dw_status dw_peer_step_whole(dw_peer_step *s, const dw_peer_settings *settings,
                             const dw_peer_record *r, const dw_peer_start *now,
                             dw_error *err)
{
    char where[DW_STORE_WHERE];
    dw_store_where(settings->peer->store, r->listed.key, where, sizeof where);
    dw_status status = fetch_files(s, settings, r, err);
    if (status == DW_OK && r->n_entries > 0)
        status = check_index(s, r, where, err);
    if (status == DW_OK)
        status = gather(s, where, err);
    s->n_tensors = s->n_whole;
    if (status == DW_OK && now)
        status = complete(s, now, settings->peer->format == DW_PEER_TRL, where, err);
    dw_digest *digests = dw_alloc_array(s->n_whole, sizeof *digests);
    if (status == DW_OK && !digests)
        status = dw_fail_memory(err, where);
    if (status == DW_OK)
        status = dw_digest_tensors(digests, &s->position.state, s->tensors, s->n_whole,
                                   settings->n_threads, NULL, err);
    dw_free(digests);
    return status;
}
