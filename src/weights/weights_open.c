/* Opening the weights of a follower: memory, or the directory and its lock. */
#include <errno.h>
#include <fcntl.h>
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
#include "weights/own_dir.h"
#include "weights/replica.h"
#include "weights/widen.h"

/* Weights without a replica yet. */
static dw_status new_weights(dw_weights **out, dw_error *err)
{
    *out = dw_alloc_zeroed(1, sizeof **out);
    if (!*out)
        return dw_fail_memory(err, NULL);
    (*out)->lock = -1;
    return DW_OK;
}

/* Ends an open. */
static dw_status give(dw_weights **out, dw_weights *w, dw_status status)
{
    *out = status == DW_OK ? w : NULL;
    if (status != DW_OK)
        dw_weights_close(w);
    return status;
}

dw_status dw_weights_open_memory(dw_weights **out, const dw_tensor *table,
                                 size_t n_tensors, const dw_tensor *memory, bool empty,
                                 unsigned n_threads, dw_error *err)
{
    dw_weights *w;
    dw_status status = new_weights(&w, err);
    if (status == DW_OK)
        status = dw_replica_open_memory(&w->now, table, n_tensors, memory, empty,
                                        n_threads, err);
    return give(out, w, status);
}

dw_status dw_weights_open_widened(dw_weights **out, const dw_tensor *table,
                                  size_t n_tensors, const dw_follow_options *options,
                                  dw_error *err)
{
    dw_weights *w;
    dw_status status = new_weights(&w, err);
    if (status == DW_OK)
        status = dw_replica_open_widened(&w->now, table, n_tensors, options->tensors,
                                         options->tensors_empty, options->spool_dir,
                                         options->n_threads, err);
    return give(out, w, status);
}

/* ---- a directory ---- */

static dw_status make_dir(const char *path, dw_error *err)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST
               ? DW_OK
               : dw_fail_errno(err, path, "make the directory");
}

dw_status dw_weights_make_dir(const char *into, dw_error *err)
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

dw_status dw_weights_take_lock(int fd, const char *into, dw_error *err)
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

static dw_status lock_dir(dw_weights *w, dw_error *err)
{
    dw_status status = make_dir(w->into, err);
    if (status != DW_OK)
        return status;
    w->lock = open(w->into, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->lock < 0)
        return dw_fail_errno(err, w->into, "open the directory");
    struct statfs fs;
    if (fstatfs(w->lock, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC)
        return dw_fail(err, DW_INVALID, w->into,
                       "this is hugetlbfs, where files can only be mapped. Name a "
                       "directory on a disk or on tmpfs");
    status = dw_weights_take_lock(w->lock, w->into, err);
    if (status == DW_OK)
        status = dw_own_dir_make(w->into, err);
    /* a process that was killed may have made it without a sync */
    return status == DW_OK && fsync(w->lock) != 0 && errno != EINVAL
               ? dw_fail_errno(err, w->into, "sync the directory")
               : status;
}

/* Marks weights that the open will finish writing, before readers can see the writer. */
static void mark_pending(dw_weights *w)
{
    bool pending = false;
    if (dw_checkpoint_pending(w->into, &pending, NULL) == DW_OK && pending)
        dw_control_mark_written(w->control);
}

dw_status dw_weights_open_none(dw_weights **out, const dw_tensor *table, size_t n_tensors,
                               const char *into, dw_error *err)
{
    dw_weights *w;
    dw_status status = new_weights(&w, err);
    if (status == DW_OK)
        status = dw_replica_new(&w->now, table, n_tensors, 1, err);
    if (status == DW_OK && !(w->now->dir = dw_copy_string(into)))
        status = dw_fail_memory(err, into);
    for (size_t i = 0; status == DW_OK && i < n_tensors; i++) {
        w->now->tensors[i].data = NULL;
        w->now->tensors[i].device = NULL;
    }
    return give(out, w, status);
}

dw_status dw_weights_check_files(const dw_weights *w, dw_error *err)
{
    struct stat held, named;
    if (!w->into)
        return DW_OK;
    if (fstat(w->lock, &held) != 0 || stat(w->into, &named) != 0 ||
        held.st_dev != named.st_dev || held.st_ino != named.st_ino)
        return dw_fail(err, DW_CONFLICT, w->into,
                       "the directory was replaced or removed while its weights were "
                       "kept up to date");
    dw_status status = dw_control_writer_check(w->control, err);
    if (status == DW_OK)
        status = dw_control_check(w->control, err);
    if (status == DW_OK)
        status = dw_replica_check_files(w->now, err);
    return status;
}

dw_status dw_weights_drop_shrunk(const dw_weights *w, dw_error *err)
{
    return dw_replica_drop_shrunk(w->now, err);
}

dw_status dw_weights_accept(dw_weights *w, dw_error *err)
{
    if (!w->into)
        return DW_OK;
    dw_status status = dw_replica_make_own(w->now, &w->n_private, err);
    if (status != DW_OK || w->control)
        return status;
    status = dw_control_writer_make(&w->control, w->into, w->reader_wait_ms, err);
    if (status == DW_OK)
        status = dw_control_writer_lock(w->control, err);
    if (status == DW_OK) {
        w->now->control = w->control;
        dw_replica_update_control(w->now);
    }
    return status;
}

dw_status dw_weights_open_dir(dw_weights **out, const dw_tensor *table, size_t n_tensors,
                              const char *stream, const dw_follow_options *options,
                              bool is_own, dw_error *err)
{
    dw_weights *w;
    dw_status status = new_weights(&w, err);
    if (status != DW_OK)
        return give(out, w, status);
    w->reader_wait_ms = options->reader_wait_ms;
    w->into = dw_copy_string(options->into);
    status = w->into ? lock_dir(w, err) : dw_fail_memory(err, options->into);
    if (status == DW_OK)
        status =
            dw_control_writer_open(&w->control, w->into, options->reader_wait_ms, err);
    if (status == DW_OK) {
        mark_pending(w);
        status = dw_control_writer_lock(w->control, err);
    }
    if (status == DW_OK)
        status = dw_replica_open_dir(&w->now, table, n_tensors,
                                     &(dw_replica_dir){.path = w->into,
                                                       .control = w->control,
                                                       .stream = stream,
                                                       .is_own = is_own},
                                     options->n_threads, NULL, err);
    return give(out, w, status);
}
