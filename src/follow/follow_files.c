#include "follow/follow_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "store/store.h"
#include "stream/record_files.h"
#include "stream/transfer.h"
#include "follow/follower.h"
#include "weights/own_dir.h"
#include "inner.h"

/* A directory of a publisher's own, and one that another follower keeps, get none. */
static bool installs(const dw_follower *f)
{
    return f->options.into && !f->options.no_files && !f->is_own && f->depth == 0;
}

static void forget_kept(dw_follow_files *files)
{
    for (size_t i = 0; i < files->n_kept; i++)
        dw_free(files->kept[i]);
    dw_free(files->kept);
    files->kept = NULL;
    files->n_kept = 0;
}

/* The temporary file of the I-th file; dw_free. dw_own_dir_tidy knows such names. */
static char *temporary_path(const dw_follower *f, size_t i)
{
    char name[32];
    snprintf(name, sizeof name, "file" DW_TEMPORARY "%zu", i);
    return dw_own_path(f->options.into, name);
}

static void forget_fetched(dw_follower *f)
{
    dw_follow_files *files = &f->files;
    for (size_t i = 0; files->fetched && i < files->list.n; i++) {
        char *path = files->fetched[i] ? temporary_path(f, i) : NULL;
        if (path)
            (void)unlink(path);
        dw_free(path);
    }
    dw_free(files->fetched);
    dw_free(files->looks);
    files->fetched = NULL;
    files->looks = NULL;
    dw_installed_release(&files->ours);
}

static void forget_version(dw_follower *f)
{
    dw_follow_files *files = &f->files;
    forget_fetched(f);
    dw_file_list_release(&files->list);
    if (files->commit)
        dw_commit_record_release(files->commit);
    dw_free(files->commit);
    files->commit = NULL;
    files->state = DW_FILES_UNKNOWN;
}

void dw_follower_forget_files(dw_follower *f)
{
    forget_version(f);
    forget_kept(&f->files);
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
    forget_version(f);
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

static bool is_needed(const dw_look *look)
{
    return !look->exists || (look->is_ours && !look->is_wanted);
}

/* Fetches the I-th file into a temporary one, if the directory lacks it. */
static dw_status fetch_one(dw_follower *f, size_t i, const dw_progress *progress,
                           dw_error *err)
{
    dw_follow_files *files = &f->files;
    const dw_file_entry *entry = &files->list.items[i];
    dw_status status = dw_look_at(&files->looks[i], f->options.into, entry->name,
                                  &files->ours, entry, err);
    if (status != DW_OK || !is_needed(&files->looks[i]))
        return status;
    dw_blob blob = {0};
    dw_error fault = {0};
    status = dw_file_fetch(&blob, f->stream->store, entry, f->options.spool_dir, progress,
                           &fault);
    if (status != DW_OK)
        return fail_fetch(f, &fault, err);
    files->fetched[i] = true; /* also if it fails: something may have to be removed */
    char *path = temporary_path(f, i);
    status = path ? dw_write_file(path, blob.bytes, (size_t)entry->n_bytes, err)
                  : dw_fail_memory(err, NULL);
    dw_free(path);
    dw_blob_release(&blob);
    f->tally.n_objects++;
    f->tally.n_bytes += entry->n_bytes;
    return status;
}

static dw_status fetch_all(dw_follower *f, const dw_progress *progress, dw_error *err)
{
    dw_follow_files *files = &f->files;
    forget_fetched(f);
    files->looks = dw_alloc_zeroed(files->list.n, sizeof *files->looks);
    files->fetched = dw_alloc_zeroed(files->list.n, sizeof *files->fetched);
    dw_status status = files->looks && files->fetched
                           ? dw_own_dir_make(f->options.into, err)
                           : dw_fail_memory(err, NULL);
    if (status == DW_OK)
        status = dw_position_read_files(&files->ours, f->options.into, err);
    for (size_t i = 0; status == DW_OK && i < files->list.n; i++)
        status = fetch_one(f, i, progress, err);
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
    if (status == DW_OK)
        status = fetch_all(f, progress, err);
    if (status == DW_OK)
        files->state = DW_FILES_FETCHED;
    f->tally.fetch_ms += dw_clock_ms() - start;
    return status;
}

/* ---- installing ---- */

/* Gives FROM its name TO, unless there is a file of that name. */
static dw_status name_new(const char *from, const char *to, bool *is_taken, dw_error *err)
{
    if (link(from, to) == 0)
        return unlink(from) == 0 ? DW_OK : dw_fail_errno(err, from, "remove");
    *is_taken = errno == EEXIST;
    if (*is_taken)
        return DW_OK;
    if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK)
        return dw_rename_file(from, to, err); /* there are no hard links here */
    return dw_fail_errno(err, to, "link into place");
}

static dw_status install_one(dw_follower *f, size_t i, bool *changed, dw_error *err)
{
    const dw_file_entry *entry = &f->files.list.items[i];
    dw_look *look = &f->files.looks[i];
    char *from = temporary_path(f, i), *to = dw_join_path(f->options.into, entry->name);
    bool is_taken = false;
    dw_status status = from && to ? DW_OK : dw_fail_memory(err, NULL);
    /* the user may have done something since it was fetched */
    if (status == DW_OK)
        status =
            dw_look_at(look, f->options.into, entry->name, &f->files.ours, entry, err);
    if (status == DW_OK && is_needed(look)) {
        status = look->exists ? dw_rename_file(from, to, err)
                              : name_new(from, to, &is_taken, err);
        *look = (dw_look){true, !is_taken, !is_taken};
        if (status == DW_OK && !is_taken) {
            *changed = true;
            f->tally.n_files_installed++;
        }
    }
    dw_free(from);
    dw_free(to);
    return status;
}

/* Removes what is ours under NAME if the version has no such file. */
static dw_status remove_dropped(dw_follower *f, const char *name, bool *changed,
                                dw_error *err)
{
    dw_look look;
    if (dw_file_list_find(&f->files.list, name))
        return DW_OK;
    dw_status status =
        dw_look_at(&look, f->options.into, name, &f->files.ours, NULL, err);
    if (status != DW_OK || !look.is_ours)
        return status;
    char *path = dw_join_path(f->options.into, name);
    if (!path)
        return dw_fail_memory(err, NULL);
    if (unlink(path) == 0) {
        *changed = true;
        f->tally.n_files_removed++;
    } else if (errno != ENOENT) {
        status = dw_fail_errno(err, path, "remove");
    }
    dw_free(path);
    return status;
}

/* Writes to the record what is ours: also what is fetched, or only what is there. */
static dw_status note_ours(dw_follower *f, bool installing, dw_error *err)
{
    dw_follow_files *files = &f->files;
    dw_installed ours = {.installing = installing};
    dw_status status = DW_OK;
    for (size_t i = 0; installing && status == DW_OK && i < files->ours.list.n; i++)
        status = dw_installed_add(&ours, &files->ours.list.items[i], err);
    for (size_t i = 0; status == DW_OK && i < files->list.n; i++) {
        const dw_look *look = &files->looks[i];
        if (installing ? files->fetched[i] : look->is_ours && look->is_wanted)
            status = dw_installed_add(&ours, &files->list.items[i], err);
    }
    if (status == DW_OK && !dw_installed_same(&ours, &files->ours))
        status = dw_position_write_files(&ours, f->options.into, err);
    const dw_installed old = files->ours;
    if (status == DW_OK) {
        files->ours = ours;
        ours = old;
    }
    dw_installed_release(&ours);
    return status;
}

static dw_status sync_names(const dw_follower *f, dw_error *err)
{
    char *path = dw_join_path(f->options.into, DW_OWN_DIR);
    dw_status status = path ? dw_sync_parent(path, err) : dw_fail_memory(err, NULL);
    dw_free(path);
    return status;
}

static dw_status install_all(dw_follower *f, dw_error *err)
{
    dw_follow_files *files = &f->files;
    bool any = false, changed = false;
    for (size_t i = 0; i < files->list.n; i++)
        any = any || files->fetched[i];
    dw_status status = any ? note_ours(f, true, err) : DW_OK;
    for (size_t i = 0; status == DW_OK && i < files->list.n; i++)
        if (files->fetched[i])
            status = install_one(f, i, &changed, err);
    for (size_t i = 0; status == DW_OK && i < files->ours.list.n; i++)
        status = remove_dropped(f, files->ours.list.items[i].name, &changed, err);
    if (status == DW_OK && changed)
        status = sync_names(f, err);
    return status == DW_OK ? note_ours(f, false, err) : status;
}

static dw_status list_kept(dw_follower *f, dw_error *err)
{
    dw_follow_files *files = &f->files;
    forget_kept(files);
    files->kept = dw_alloc_zeroed(files->list.n, sizeof *files->kept);
    dw_status status = files->kept ? DW_OK : dw_fail_memory(err, NULL);
    for (size_t i = 0; status == DW_OK && i < files->list.n; i++) {
        const dw_look *look = &files->looks[i];
        if (!look->exists || look->is_ours || look->is_wanted)
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
    dw_status status = install_all(f, err);
    if (status == DW_OK)
        status = list_kept(f, err);
    forget_fetched(f);
    files->state = status == DW_OK ? DW_FILES_INSTALLED : DW_FILES_KNOWN;
    return status;
}

dw_status dw_follower_complete_files(dw_follower *f, const dw_progress *progress,
                                     dw_error *err)
{
    const uint64_t at = dw_follower_version(f);
    if (at == DW_NO_VERSION || dw_target_update(f->weights) >= DW_UPDATE_STAGED)
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
