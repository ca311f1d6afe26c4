#include "follow/follow_files.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "store/store.h"
#include "stream/file_transfer.h"
#include "follow/follower.h"

/* A directory of a publisher's own, and one that another follower keeps, get none. */
static bool installs(const dw_follower *f)
{
    return f->options.into && !f->options.no_files && !f->is_own && f->depth == 0;
}

void dw_follower_tidy_files(const dw_follower *f)
{
    if (f->options.into && f->options.no_files && !f->is_own && f->depth == 0)
        dw_companion_tidy(f->options.into);
}

static void forget_kept(dw_follow_files *files)
{
    for (size_t i = 0; i < files->n_kept; i++)
        dw_free(files->kept[i]);
    dw_free(files->kept);
    files->kept = NULL;
    files->n_kept = 0;
}

static void forget_version(dw_follow_files *files)
{
    dw_file_list_release(&files->list);
    files->list = (dw_file_list){0};
    if (files->commit)
        dw_commit_record_release(files->commit);
    dw_free(files->commit);
    files->commit = NULL;
    files->state = DW_FILES_UNKNOWN;
}

void dw_follower_forget_files(dw_follower *f)
{
    dw_follow_files *files = &f->files;
    forget_version(files);
    forget_kept(files);
    dw_companion_dir_close(files->dir);
    files->dir = NULL;
}

dw_status dw_follower_note_files(dw_follower *f, const dw_commit_record *commit,
                                 dw_error *err)
{
    dw_follow_files *files = &f->files;
    if (!installs(f) || files->state != DW_FILES_UNKNOWN)
        return DW_OK;
    dw_status status = dw_file_list_copy(&files->list, &commit->files, err);
    if (status == DW_OK) {
        files->version = commit->version;
        files->state = DW_FILES_KNOWN;
    }
    return status;
}

/* Reads the commit of VERSION, and keeps it for the step to that version. */
static dw_status learn(dw_follower *f, uint64_t version, dw_error *err)
{
    dw_follow_files *files = &f->files;
    forget_version(files);
    dw_commit_record *commit = dw_alloc_zeroed(1, sizeof *commit);
    if (!commit)
        return dw_fail_memory(err, NULL);
    dw_status status = dw_stream_read_commit(f->stream, version, commit, err);
    if (status != DW_OK) {
        dw_free(commit);
        return status;
    }
    files->list = commit->files;
    commit->files = (dw_file_list){0};
    files->commit = commit;
    files->version = version;
    files->state = DW_FILES_KNOWN;
    return DW_OK;
}

dw_commit_record *dw_follower_take_commit(dw_follower *f, uint64_t version)
{
    dw_follow_files *files = &f->files;
    if (!files->commit || files->version != version)
        return NULL;
    dw_commit_record *commit = files->commit;
    files->commit = NULL;
    return commit;
}

/* ---- fetching ---- */

static dw_status fail_fetch(const dw_follower *f, const dw_error *fault, dw_error *err)
{
    if (fault->code != DW_NOT_FOUND && fault->code != DW_CORRUPT) {
        if (err)
            *err = *fault;
        return fault->code;
    }
    return dw_fail(err, fault->code, fault->where,
                   "version %" PRIu64
                   ", %.500s. Restore it from a copy of the stream, or "
                   "follow without companion files (`no_files`)",
                   f->files.version, fault->text);
}

/* Fetches and stages the I-th file, if the directory lacks it. */
static dw_status fetch_one(dw_follower *f, size_t i, const dw_progress *progress,
                           dw_error *err)
{
    dw_follow_files *files = &f->files;
    const dw_file_entry *entry = &files->list.items[i];
    if (!dw_companion_needs(files->dir, i))
        return DW_OK;
    dw_blob blob = {0};
    dw_error fault = {0};
    dw_status status = dw_file_get(&blob, f->stream->store, entry, f->options.spool_dir,
                                   progress, &fault);
    if (status != DW_OK)
        return fail_fetch(f, &fault, err);
    status = dw_companion_stage(files->dir, i, blob.bytes, err);
    dw_blob_release(&blob);
    f->tally.n_objects++;
    f->tally.n_bytes += entry->n_bytes;
    return status;
}

dw_status dw_follower_fetch_files(dw_follower *f, uint64_t goal,
                                  const dw_progress *progress, dw_error *err)
{
    dw_follow_files *files = &f->files;
    if (!installs(f) || f->lost ||
        (files->state >= DW_FILES_FETCHED && files->version == goal))
        return DW_OK;
    const uint64_t start = dw_clock_ms();
    dw_status status = DW_OK;
    if (files->state == DW_FILES_UNKNOWN || files->version != goal) {
        dw_error fault;
        status = learn(f, goal, &fault);
        /* the step to the goal reads its commit too, and knows better what to do */
        if (status != DW_OK && dw_follower_version(f) != goal)
            return DW_OK;
        if (status != DW_OK && err)
            *err = fault;
    }
    if (status == DW_OK && !files->list.is_given) {
        files->state = DW_FILES_INSTALLED;
        forget_kept(files);
        return DW_OK;
    }
    if (status == DW_OK && !files->dir)
        status = dw_companion_dir_open(&files->dir, f->options.into, err);
    if (status == DW_OK)
        status = dw_companion_plan(files->dir, &files->list, err);
    for (size_t i = 0; status == DW_OK && i < files->list.n; i++)
        status = fetch_one(f, i, progress, err);
    if (status == DW_OK)
        files->state = DW_FILES_FETCHED;
    f->tally.fetch_ms += dw_clock_ms() - start;
    return status;
}

/* ---- installing ---- */

static dw_status list_kept(dw_follower *f, dw_error *err)
{
    dw_follow_files *files = &f->files;
    forget_kept(files);
    files->kept = dw_alloc_zeroed(files->list.n, sizeof *files->kept);
    dw_status status = files->kept ? DW_OK : dw_fail_memory(err, NULL);
    for (size_t i = 0; status == DW_OK && i < files->list.n; i++) {
        if (!dw_companion_kept(files->dir, i))
            continue;
        char *path = dw_join_path(f->options.into, files->list.items[i].name);
        if (path)
            files->kept[files->n_kept++] = path;
        else
            status = dw_fail_memory(err, NULL);
    }
    return status;
}

dw_status dw_follower_install_files(dw_follower *f, dw_error *err)
{
    dw_follow_files *files = &f->files;
    if (files->state != DW_FILES_FETCHED)
        return DW_OK;
    dw_companion_counts counts = {0};
    dw_status status = dw_companion_install(files->dir, &counts, err);
    f->tally.n_files_installed += counts.n_installed;
    f->tally.n_files_removed += counts.n_removed;
    if (status == DW_OK)
        status = list_kept(f, err);
    files->state = status == DW_OK ? DW_FILES_INSTALLED : DW_FILES_KNOWN;
    return status;
}

dw_status dw_follower_complete_files(dw_follower *f, const dw_progress *progress,
                                     dw_error *err)
{
    const uint64_t at = dw_follower_version(f);
    if (at == DW_NO_VERSION || dw_weights_update(f->weights) != DW_UPDATE_NONE)
        return DW_OK;
    dw_status status = dw_follower_fetch_files(f, at, progress, err);
    return status == DW_OK ? dw_follower_install_files(f, err) : status;
}

/* ---- for callers ---- */

bool dw_follower_files_due(const dw_follower *f)
{
    const dw_follow_files *files = &f->files;
    return !f->lost && files->version == dw_follower_version(f) &&
           (files->state == DW_FILES_FETCHED ||
            (files->state == DW_FILES_KNOWN && files->list.is_given));
}

const char *const *dw_follower_files_kept(const dw_follower *f, size_t *n_files)
{
    *n_files = f->files.n_kept;
    return (const char *const *)f->files.kept;
}
