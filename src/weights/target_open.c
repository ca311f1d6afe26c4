/* Opening a directory: its lock, which version its weights are, and whether its files are
 * its own. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "tensor/shard_index.h"
#include "weights/own_dir.h"
#include "weights/target_inside.h"

void dw_target_update_control(const dw_target *r)
{
    /* if its files are no checkpoint, the block still tells whose they are */
    if (!r->control || (r->was_damaged && !r->files.ckpt))
        return;
    const dw_position *p = r->update >= DW_UPDATE_APPLIED ? &r->next : &r->at;
    dw_control_set(
        r->control,
        &(dw_control_label){.stream = p->stream,
                            .version = p->version,
                            .state = p->state,
                            .files = r->files.ckpt ? dw_checkpoint_identity(r->files.ckpt)
                                                   : 0});
}

/* ---- opening ---- */

/* Whether the weights were written for the stream, going by their record and by what the
 * block knows of their files. Without either nobody can tell. */
static bool were_ours(const dw_target *r, dw_control_files known)
{
    const dw_position *p = r->was.version != DW_NO_VERSION ? &r->was : &r->was_next;
    if (!r->stream || known == DW_CONTROL_OTHER)
        return false; /* somebody put other files there */
    if (r->record == DW_RECORD_NONE)
        return known == DW_CONTROL_SAME && dw_control_is_of(r->control, r->stream);
    if (r->record == DW_RECORD_DAMAGED)
        return known == DW_CONTROL_UNKNOWN || dw_control_is_of(r->control, r->stream);
    return p->version == DW_NO_VERSION || strcmp(p->stream, r->stream) == 0 ||
           strcmp(p->follows, r->stream) == 0;
}

/* The weights are not the version that their record names. */
static dw_status refuse_changed(dw_target *r, dw_error *err)
{
    /* nor the one in the block: stop readers */
    dw_control_mark_written(r->control);
    r->was_damaged = r->is_ours;
    const bool is_shared = dw_files_judge(r->files.ckpt, NULL) == DW_FILES_SHARED;
    if (r->is_ours || r->is_own || is_shared)
        return DW_OK; /* the stream knows which version they are, if they are one */
    const bool is_other = r->stream && strcmp(r->was.stream, r->stream) != 0;
    return dw_fail(err, DW_CORRUPT, r->dir,
                   "the weights are not version %" PRIu64 " of stream %s, which their "
                   "record names: %s. Move them away: the next run fetches the newest "
                   "version",
                   r->was.version, r->was.stream,
                   is_other ? "they are damaged" : "somebody else put them there");
}

/* Finds out which version the weights of the directory are. */
static dw_status find_position(dw_target *r, dw_error *err)
{
    dw_status status = dw_position_read(&r->was, &r->was_next, &r->record, r->dir, err);
    if (status == DW_OK)
        status = dw_target_digest(r, err);
    if (status != DW_OK)
        return status;
    r->has_weights = true;
    r->is_ours =
        were_ours(r, dw_control_knows(r->control, dw_checkpoint_identity(r->files.ckpt)));
    if (r->was_next.version != DW_NO_VERSION && r->was_next.state == r->state)
        r->at = r->was_next;
    else if (r->was.version != DW_NO_VERSION && r->was.state == r->state)
        r->at = r->was;
    else if (r->was.version != DW_NO_VERSION)
        return refuse_changed(r, err);
    if (r->record == DW_RECORD_DAMAGED)
        dw_control_mark_written(r->control);
    return DW_OK;
}

dw_status dw_target_map_dir(dw_target *r, dw_error *err)
{
    dw_status status = dw_target_open_files(r, r->dir, false, NULL, err);
    if (status != DW_OK)
        return status;
    size_t n_found;
    const dw_tensor *found = dw_checkpoint_tensors(r->files.ckpt, &n_found);
    status = dw_target_take_data(r, found, n_found, r->dir, err);
    if (status != DW_OK)
        dw_target_close_files(r);
    else
        r->frame = dw_checkpoint_frame(r->files.ckpt);
    return status;
}

/* DW_CONFLICT if the directory is not the one that is open. */
static dw_status check_dir(const dw_target *r, dw_error *err)
{
    struct stat held, named;
    if (fstat(r->lock, &held) == 0 && stat(r->dir, &named) == 0 &&
        held.st_dev == named.st_dev && held.st_ino == named.st_ino)
        return DW_OK;
    return dw_fail(err, DW_CONFLICT, r->dir,
                   "the directory was replaced or removed while its weights were kept "
                   "up to date");
}

dw_status dw_target_check_files(const dw_target *r, dw_error *err)
{
    if (r->lock < 0)
        return DW_OK; /* memory */
    dw_status status = check_dir(r, err);
    if (status == DW_OK)
        status = dw_control_writer_check(r->control, err);
    if (status == DW_OK)
        status = dw_control_check(r->control, err);
    if (status != DW_OK || !r->files.ckpt)
        return status;
    if (dw_files_judge(r->files.ckpt, err) != DW_FILES_OWN)
        return DW_CONFLICT;
    status = dw_checkpoint_check(r->files.ckpt, err);
    if (status == DW_OK && r->update > DW_UPDATE_STAGED && r->patch)
        status = dw_map_check(&r->patch->map, err);
    return status != DW_OK || dw_checkpoint_frame(r->files.ckpt) == r->frame
               ? status
               : dw_fail(err, DW_CORRUPT, r->files.path,
                         "the header of the file, or its size, was changed while its "
                         "weights were kept up to date");
}

/* An interrupted update is finished when the files are opened. Stops readers first. */
static dw_status stop_readers(dw_target *r, dw_error *err)
{
    bool pending = false;
    dw_error fault = {0};
    dw_status status = dw_checkpoint_pending(r->dir, &pending, &fault);
    if (status != DW_OK || !pending)
        return DW_OK; /* the open reports it */
    status = dw_control_begin_write(r->control, err);
    return status == DW_OK ? dw_control_sync(r->control, err) : status;
}

/* Whether it holds a file of a checkpoint, whole or not. */
static bool has_files(const char *path)
{
    DIR *dir = opendir(path);
    bool found = false;
    for (struct dirent *e; dir && !found && (e = readdir(dir)) != NULL;)
        found = strcmp(e->d_name, DW_SHARD_INDEX_NAME) == 0 ||
                dw_name_ends(e->d_name, ".safetensors");
    if (dir)
        closedir(dir);
    return found;
}

/* Whether STATUS means that the files are no good checkpoint of the model. */
static bool is_damage(dw_status status)
{
    return status == DW_CORRUPT || status == DW_MISMATCH || status == DW_STALE ||
           status == DW_UNSUPPORTED || status == DW_INVALID || status == DW_NOT_FOUND;
}

static dw_status remove_in(const char *dir, const char *name, dw_error *err)
{
    char *path = dw_join_path(dir, name);
    dw_status status = path ? dw_remove_file(path, err) : dw_fail_memory(err, dir);
    dw_free(path);
    return status;
}

/* Removes the weights, their patch and their record. The control block and every other
 * file stay. The patch goes first and the record last. After a kill there is no patch
 * without its weights, and no weights without their record. */
static dw_status empty_dir(const char *path, dw_error *err)
{
    DIR *dir = opendir(path);
    if (!dir)
        return dw_fail_errno(err, path, "read the directory");
    dw_status status = dw_target_remove_patch(path, err);
    for (struct dirent *e; status == DW_OK && (e = readdir(dir)) != NULL;)
        if (dw_name_ends(e->d_name, ".safetensors") ||
            strcmp(e->d_name, DW_SHARD_INDEX_NAME) == 0)
            status = remove_in(path, e->d_name, err);
    closedir(dir);
    return status == DW_OK ? remove_in(path, DW_POSITION_NAME, err) : status;
}

/* The files are no checkpoint: the directory counts as empty. */
static void lose_files(dw_target *r)
{
    dw_target_close_files(r);
    for (size_t i = 0; i < r->n_tensors; i++)
        r->tensors[i].data = NULL;
    r->at = r->was_next = dw_nowhere;
    r->has_weights = false;
    r->was_damaged = true;
    dw_control_mark_written(r->control);
}

/* The same for the caller's own files, which are removed. */
static dw_status start_over(dw_target *r, dw_error *err)
{
    lose_files(r);
    r->record = DW_RECORD_NONE;
    return empty_dir(r->dir, err);
}

/* Whether files that are no checkpoint were written for the stream. */
static bool find_owner(dw_target *r)
{
    char *file = dw_join_path(r->dir, DW_WEIGHTS_NAME);
    char *index = dw_join_path(r->dir, DW_SHARD_INDEX_NAME);
    bool has_index = true;
    dw_control_files known = DW_CONTROL_OTHER;
    if (file && index &&
        dw_position_read(&r->was, &r->was_next, &r->record, r->dir, NULL) == DW_OK &&
        dw_file_exists(index, &has_index, NULL) == DW_OK)
        known = dw_control_knows(r->control, dw_file_identity(AT_FDCWD, file));
    if (has_index) /* of our shards, unless it came after a single file of ours */
        known = known == DW_CONTROL_SAME ? DW_CONTROL_OTHER : DW_CONTROL_UNKNOWN;
    r->is_ours = file && index && were_ours(r, known);
    dw_free(file);
    dw_free(index);
    return r->is_ours;
}

/* The files, or the patch beside them, are damaged: STATUS and ERR say how. If they are
 * the stream's, goes on without the patch, or without the files. */
static dw_status do_without(dw_target *r, dw_status status, dw_error *err)
{
    if (!find_owner(r))
        return status;
    status = dw_target_remove_patch(r->dir, err);
    if (status == DW_OK)
        status = dw_target_map_dir(r, err);
    if (status == DW_OK)
        return find_position(r, err);
    if (!is_damage(status))
        return status;
    lose_files(r);
    return DW_OK;
}

static dw_status find_weights(dw_target *r, dw_error *err)
{
    dw_own_dir_tidy(r->dir); /* we have the lock: nobody is writing there */
    dw_status status = stop_readers(r, err);
    if (status == DW_OK)
        status = dw_target_map_dir(r, err);
    if (status == DW_OK)
        status = find_position(r, err);
    else if (status == DW_NOT_FOUND && !has_files(r->dir))
        status = DW_OK; /* empty: it will be filled */
    if (is_damage(status) && !r->has_weights && !r->is_own)
        status = do_without(r, status, err);
    if (r->is_own && is_damage(status))
        status = start_over(r, err);
    if (status == DW_OK)
        dw_target_update_control(r);
    return status;
}

/* ---- the directory ---- */

static dw_status make_dir(const char *path, dw_error *err)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST
               ? DW_OK
               : dw_fail_errno(err, path, "make the directory");
}

dw_status dw_target_make_dir(const char *into, dw_error *err)
{
    struct stat st;
    if ((stat(into, &st) == 0 && S_ISDIR(st.st_mode)) || dw_make_dirs(into, 0777))
        return DW_OK;
    if (errno == ENOMEM)
        return dw_fail_memory(err, into);
    if (errno == EEXIST)
        return dw_fail(err, DW_IO, into,
                       "cannot make the directory: a part of its path is there, but is "
                       "no directory. Name another one");
    dw_status status = dw_fail_errno(err, into, "make the directory");
    if (status == DW_NOT_FOUND && err)
        err->code = DW_IO;
    return DW_IO;
}

dw_status dw_target_take_lock(int fd, const char *into, dw_error *err)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return DW_OK;
    if (errno != EWOULDBLOCK)
        return dw_fail_errno(err, into, "lock");
    char id[24] = "";
    const long holder = dw_lock_holder(fd);
    if (holder == (long)getpid())
        return dw_fail(err, DW_CONFLICT, into,
                       "this process keeps the directory up to date already. Close that "
                       "follower, or name another directory");
    if (holder > 0)
        snprintf(id, sizeof id, " (%ld)", holder);
    return dw_fail(err, DW_CONFLICT, into,
                   "another process%s keeps this directory up to date. Stop it, or name "
                   "another directory",
                   id);
}

static dw_status lock_dir(dw_target *r, dw_error *err)
{
    dw_status status = make_dir(r->dir, err);
    if (status != DW_OK)
        return status;
    r->lock = open(r->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->lock < 0)
        return dw_fail_errno(err, r->dir, "open the directory");
    struct statfs fs;
    if (fstatfs(r->lock, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC)
        return dw_fail(err, DW_INVALID, r->dir,
                       "this is hugetlbfs, where files can only be mapped. Name a "
                       "directory on a disk or on tmpfs");
    status = dw_target_take_lock(r->lock, r->dir, err);
    if (status == DW_OK)
        status = dw_own_dir_make(r->dir, err);
    /* a process that was killed may have made it without a sync */
    return status == DW_OK && fsync(r->lock) != 0 && errno != EINVAL
               ? dw_fail_errno(err, r->dir, "sync the directory")
               : status;
}

/* Marks weights that the open will finish writing, before readers can see the writer. */
static void mark_pending(dw_target *r)
{
    bool pending = false;
    if (dw_checkpoint_pending(r->dir, &pending, NULL) == DW_OK && pending)
        dw_control_mark_written(r->control);
}

/* Replaces links and files with several names with private copies. The weights stay the
 * same. */
static dw_status make_own(dw_target *r, dw_error *err)
{
    const dw_digest state = r->state;
    if (!r->files.ckpt || dw_files_judge(r->files.ckpt, NULL) != DW_FILES_SHARED)
        return DW_OK;
    dw_status status = dw_files_make_own(r->files.ckpt, &r->n_private, err);
    if (status != DW_OK)
        return status;
    dw_target_close_files(r);
    status = dw_target_map_dir(r, err);
    if (status == DW_OK)
        status = dw_target_digest(r, err);
    if (status == DW_OK && r->state != state)
        status = dw_fail(err, DW_CONFLICT, r->dir,
                         "the weights changed while they were copied: somebody else "
                         "writes to the files that its links lead to. Try again");
    if (status == DW_OK)
        dw_target_update_control(r);
    return status;
}

dw_status dw_target_accept(dw_target *r, dw_error *err)
{
    if (r->lock < 0)
        return DW_OK; /* memory */
    dw_status status = make_own(r, err);
    if (status != DW_OK || r->control)
        return status;
    status = dw_control_writer_make(&r->control, r->dir, r->reader_wait_ms, err);
    if (status == DW_OK)
        status = dw_control_writer_lock(r->control, err);
    if (status == DW_OK)
        dw_target_update_control(r);
    return status;
}

dw_status dw_target_open_dir(dw_target **out, const dw_tensor *table, size_t n_tensors,
                             const char *stream, const dw_follow_options *options,
                             bool is_own, dw_error *err)
{
    dw_target *r;
    dw_status status =
        dw_target_new(&r, &dw_target_in_files, table, n_tensors, options->n_threads, err);
    if (status == DW_OK && !(r->dir = dw_copy_string(options->into)))
        status = dw_fail_memory(err, options->into);
    if (status == DW_OK) {
        r->reader_wait_ms = options->reader_wait_ms;
        r->stream = stream;
        r->is_own = is_own;
        status = lock_dir(r, err);
    }
    if (status == DW_OK)
        status = dw_control_writer_open(&r->control, r->dir, r->reader_wait_ms, err);
    if (status == DW_OK) {
        mark_pending(r);
        status = dw_control_writer_lock(r->control, err);
    }
    if (status == DW_OK)
        status = find_weights(r, err);
    return dw_target_give(out, r, status);
}
