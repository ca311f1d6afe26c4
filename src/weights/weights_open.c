/* Opening the weights of a follower: the directory and its lock, copies and links. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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
#include "weights/replica.h"
#include "weights/widen.h"

/* Weights without copies yet. */
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
                       "this is hugetlbfs, where files can only be mapped: name it "
                       "only for the weights, with `weights_dir`");
    return dw_weights_take_lock(w->lock, w->into, err);
}

/* INTO, or the path of a copy in it; dw_free. NULL when out of memory. */
static char *copy_path(const dw_weights *w, unsigned n_copies, unsigned copy)
{
    char name[sizeof DW_COPY_NAME + 1];
    snprintf(name, sizeof name, DW_COPY_NAME "%u", copy & 1);
    return n_copies == 1 ? dw_copy_string(w->into) : dw_join_path(w->into, name);
}

/* A directory with another number of copies is not converted: its readers would not find
 * the weights. */
static dw_status check_copies(const dw_weights *w, unsigned n_copies, dw_error *err)
{
    for (unsigned i = 0; n_copies == 1 && i < 2; i++) {
        char *path = copy_path(w, 2, i);
        bool other = path && dw_dir_has_weights(path);
        dw_free(path);
        if (other)
            return dw_fail(err, DW_CONFLICT, w->into,
                           "it holds two copies of the weights. Ask for two with "
                           "`copies`, or name another directory");
    }
    if (n_copies == 2 && dw_dir_has_weights(w->into))
        return dw_fail(err, DW_CONFLICT, w->into,
                       "it holds one copy of the weights, not two. Ask for one, or name "
                       "another directory");
    return DW_OK;
}

/* Marks a copy that the open will finish writing, before readers can see the writer. */
static void mark_pending(dw_weights *w, unsigned copy, const char *dir)
{
    bool pending = false;
    if (dw_checkpoint_pending(dir, &pending, NULL) == DW_OK && pending)
        dw_control_mark_written(w->control, copy);
}

static dw_status open_copies(dw_weights *w, const dw_tensor *table, size_t n_tensors,
                             unsigned n_copies, unsigned n_threads, bool is_own,
                             dw_error *err)
{
    char *paths[2] = {copy_path(w, n_copies, 0), copy_path(w, n_copies, 1)};
    dw_replica **replicas[2] = {&w->now, &w->twin};
    dw_status status = paths[0] && paths[1] ? DW_OK : dw_fail_memory(err, w->into);
    for (unsigned i = 0; status == DW_OK && i < n_copies; i++) {
        status = make_dir(paths[i], err);
        if (status == DW_OK)
            mark_pending(w, i, paths[i]);
    }
    if (status == DW_OK)
        status = dw_control_writer_lock(w->control, err);
    for (unsigned i = 0; status == DW_OK && i < n_copies; i++) {
        const dw_replica_dir dir = {paths[i], w->weights_dir, w->control, i, is_own};
        status = dw_replica_open_dir(replicas[i], table, n_tensors, &dir, n_threads, NULL,
                                     err);
    }
    dw_free(paths[0]);
    dw_free(paths[1]);
    return status;
}

/* How good a copy is: 3 if it is a version of the stream, 0 if it has no weights. */
static unsigned rank_of(const dw_replica *r, const char *stream)
{
    if (r->at.version == DW_NO_VERSION)
        return r->has_weights;
    return strcmp(r->at.stream, stream) == 0 ? 3 : 2;
}

static bool is_to_be_read(const dw_replica *r, const dw_replica *other,
                          const char *stream)
{
    if (r->at.version != DW_NO_VERSION && dw_position_same(&r->at, &other->was_next))
        return true;
    if (other->at.version != DW_NO_VERSION && dw_position_same(&other->at, &r->was_next))
        return false;
    unsigned rank = rank_of(r, stream), other_rank = rank_of(other, stream);
    if (rank != other_rank || rank < 2)
        return rank > other_rank;
    return r->at.version > other->at.version;
}

static void choose_copy(dw_weights *w, const char *stream)
{
    if (!w->twin)
        return;
    dw_replica *copies[2] = {w->now, w->twin};
    unsigned current = w->control ? dw_control_current(w->control) : 0;
    if (is_to_be_read(copies[1 - current], copies[current], stream))
        current = 1 - current;
    w->now = copies[current];
    w->twin = copies[1 - current];
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
    if (status == DW_OK && w->twin)
        status = dw_replica_check_files(w->twin, err);
    return status;
}

dw_status dw_weights_drop_shrunk(const dw_weights *w, dw_error *err)
{
    dw_status status = dw_replica_drop_shrunk(w->now, err);
    return status == DW_OK && w->twin ? dw_replica_drop_shrunk(w->twin, err) : status;
}

dw_status dw_weights_accept(dw_weights *w, dw_error *err)
{
    if (!w->into)
        return DW_OK;
    dw_replica *copies[2] = {w->now, w->twin};
    dw_status status = DW_OK;
    for (unsigned i = 0; status == DW_OK && i < 2; i++)
        if (copies[i])
            status = dw_replica_make_own(copies[i], &w->n_private, err);
    if (status == DW_OK && !w->control) {
        status = dw_control_writer_make(&w->control, w->into, w->twin ? 2 : 1,
                                        w->reader_wait_ms, err);
        if (status == DW_OK)
            status = dw_control_writer_lock(w->control, err);
        for (unsigned i = 0; status == DW_OK && i < 2; i++)
            if (copies[i]) {
                copies[i]->control = w->control;
                dw_replica_update_control(copies[i]);
            }
    }
    if (status != DW_OK || !w->twin)
        return status;
    dw_control_flip(w->control, w->now->copy);
    return w->now->has_weights ? dw_weights_link(w, err) : DW_OK;
}

dw_status dw_weights_open_dir(dw_weights **out, const dw_tensor *table, size_t n_tensors,
                              const char *stream, const dw_follow_options *options,
                              bool is_own, dw_error *err)
{
    const unsigned n_copies = options->n_copies == 2 ? 2 : 1;
    dw_weights *w;
    dw_status status = new_weights(&w, err);
    if (status != DW_OK)
        return give(out, w, status);
    w->reader_wait_ms = options->reader_wait_ms;
    w->into = dw_copy_string(options->into);
    w->weights_dir = options->weights_dir ? dw_copy_string(options->weights_dir) : NULL;
    status = w->into && !w->weights_dir == !options->weights_dir
                 ? lock_dir(w, err)
                 : dw_fail_memory(err, options->into);
    if (status == DW_OK)
        status = check_copies(w, n_copies, err);
    if (status == DW_OK)
        status = dw_control_writer_open(&w->control, w->into, n_copies,
                                        options->reader_wait_ms, err);
    if (status == DW_OK)
        status =
            open_copies(w, table, n_tensors, n_copies, options->n_threads, is_own, err);
    if (status == DW_OK)
        choose_copy(w, stream);
    return give(out, w, status);
}

/* ---- links ---- */

/* Whether a file of INTO belongs to the checkpoint and is not of the weights. */
static bool is_other_file(int dir, const char *name)
{
    struct stat st;
    return name[0] != '.' && !dw_name_ends(name, ".safetensors") &&
           !dw_name_ends(name, ".safetensors.index.json") && !strstr(name, ".tmp-") &&
           fstatat(dir, name, &st, 0) == 0 && S_ISREG(st.st_mode);
}

/* Configuration and tokenizer are once in INTO; each copy has links to them. */
static dw_status link_other_files(const dw_weights *w, dw_error *err)
{
    DIR *dir = opendir(w->into);
    if (!dir)
        return dw_fail_errno(err, w->into, "read the directory");
    dw_status status = DW_OK;
    for (struct dirent *e; status == DW_OK && (e = readdir(dir)) != NULL;) {
        char target[sizeof e->d_name + 3];
        if (!is_other_file(dirfd(dir), e->d_name))
            continue;
        snprintf(target, sizeof target, "../%s", e->d_name);
        const dw_replica *copies[2] = {w->now, w->twin};
        for (unsigned i = 0; status == DW_OK && i < 2; i++) {
            char *path = dw_join_path(copies[i]->dir, e->d_name);
            if (!path)
                status = dw_fail_memory(err, w->into);
            else if (symlink(target, path) != 0 && errno != EEXIST)
                status = dw_fail_errno(err, path, "link");
            dw_free(path);
        }
    }
    closedir(dir);
    return status;
}

/* Whether NAME in a copy is a link of ours to a file that INTO no longer has. */
static bool is_dead_link(int copy, const char *name)
{
    char target[NAME_MAX + 8];
    struct stat st;
    const ssize_t n = readlinkat(copy, name, target, sizeof target - 1);
    if (n < 0)
        return false;
    target[n] = '\0';
    return strncmp(target, "../", 3) == 0 && strcmp(target + 3, name) == 0 &&
           fstatat(copy, target, &st, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
}

static dw_status drop_dead_links(const char *copy, dw_error *err)
{
    DIR *dir = opendir(copy);
    if (!dir)
        return dw_fail_errno(err, copy, "read the directory");
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (is_dead_link(dirfd(dir), e->d_name))
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    return DW_OK;
}

dw_status dw_weights_link_files(const dw_weights *w, dw_error *err)
{
    if (!w->twin)
        return DW_OK;
    dw_status status = drop_dead_links(w->now->dir, err);
    if (status == DW_OK)
        status = drop_dead_links(w->twin->dir, err);
    return status == DW_OK ? link_other_files(w, err) : status;
}

const char *dw_weights_copy_dir(const dw_weights *w, unsigned i)
{
    const dw_replica *copies[2] = {w->now, w->twin};
    return i < 2 && copies[i] ? copies[i]->dir : NULL;
}

dw_status dw_weights_link(const dw_weights *w, dw_error *err)
{
    if (!w->twin)
        return DW_OK;
    dw_status status = link_other_files(w, err);
    char *path = dw_join_path(w->into, DW_CURRENT_NAME);
    if (status == DW_OK)
        status = path ? dw_symlink_file(strrchr(w->now->dir, '/') + 1, path, err)
                      : dw_fail_memory(err, w->into);
    dw_free(path);
    return status;
}
