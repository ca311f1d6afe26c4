/* The companion files that a commit names. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/progress.h"
#include "store/store.h"
#include "stream/transfer.h"
#include "stream/verify.h"

static const char advice[] =
    "Remove what is there of it and restore it from a copy with `deltawire cp`; if "
    "there "
    "is no copy, `deltawire repair URL CHECKPOINT` stores the checkpoint's files again";

static bool names(const dw_commit_record *commit, const char *key)
{
    for (size_t i = 0; i < commit->files.n; i++)
        if (strcmp(commit->files.items[i].key, key) == 0)
            return true;
    return false;
}

static dw_status check_object(dw_sweep *w, const dw_file_entry *file, dw_error *found)
{
    const dw_listed *listed = dw_listing_find(&w->files, file->key);
    uint64_t n_bytes = 0;
    dw_status status = DW_OK;
    if (listed)
        n_bytes = listed->n_bytes;
    else
        status = dw_store_stat(w->stream->store, file->key, &n_bytes, NULL, found);
    if (status == DW_NOT_FOUND)
        return dw_fail(found, status, NULL, "companion file '%s' is missing", file->name);
    if (status != DW_OK)
        return status;
    if (n_bytes != file->n_bytes)
        return dw_fail(found, DW_CORRUPT, NULL,
                       "companion file '%s' has %" PRIu64 " bytes, its record says "
                       "%" PRIu64,
                       file->name, n_bytes, file->n_bytes);
    dw_share share = {w->progress, w->n_done, w->n_total};
    const dw_progress hook = dw_share_hook(&share);
    dw_blob blob;
    status = dw_file_fetch(&blob, w->stream->store, file, NULL, &hook, found);
    if (status == DW_OK)
        dw_blob_release(&blob);
    return status;
}

/* An object that the commit before named too was checked with that one, unless faults of
 * versions below a restart do not count. */
static bool is_checked(const dw_sweep *w, const dw_commit_record *parent,
                       const dw_file_entry *file)
{
    return parent && names(parent, file->key) &&
           !(parent->version < w->restart && parent->version + 1 >= w->restart);
}

static dw_status check_file(dw_sweep *w, const dw_commit_record *commit,
                            const dw_commit_record *parent, const dw_file_entry *file,
                            const char *key, dw_error *err)
{
    dw_error found = {0};
    uint64_t version = 0;
    dw_key_is_file(file->key, &version);
    if (parent && version != commit->version && !names(parent, file->key)) {
        dw_fail(&found, DW_CORRUPT, NULL,
                "it names %s, which the version before does not name", file->key);
        return dw_sweep_note_record(w, DW_CORRUPT, key, &found, err);
    }
    dw_listed *listed = dw_listing_find(&w->files, file->key);
    if (listed)
        listed->mark = 1;
    if (is_checked(w, parent, file))
        return DW_OK;
    w->report.n_objects++;
    w->report.n_bytes += file->n_bytes;
    dw_status checked = check_object(w, file, &found);
    w->n_done += listed ? listed->n_bytes : 0;
    if (checked == DW_NOT_FOUND) {
        bool collected;
        const dw_edge edge = {.from = DW_NO_VERSION, .to = commit->version};
        dw_status status = dw_sweep_look_at_floor(w, &edge, &collected, err);
        if (status != DW_OK || collected)
            return status;
    }
    return dw_sweep_note(w, checked, file->key, advice, &found, err);
}

dw_status dw_sweep_files(dw_sweep *w, const dw_commit_record *commit,
                         const dw_commit_record *parent, const char *key, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < commit->files.n; i++)
        status = check_file(w, commit, parent, &commit->files.items[i], key, err);
    return status;
}

void dw_sweep_count_files(dw_sweep *w)
{
    for (size_t i = 0; i < w->files.n; i++) {
        uint64_t version;
        const dw_listed *listed = &w->files.items[i];
        if (listed->mark != 0 || !dw_key_is_file(listed->key, &version))
            continue;
        if (version >= w->floor && version >= w->restart && version < w->end &&
            !dw_sweep_find(w, version))
            w->report.n_orphans++;
        else
            w->report.n_unnamed++;
    }
}
