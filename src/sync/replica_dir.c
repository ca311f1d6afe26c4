/* A replica in a directory: opening it, filling it, and telling readers about it. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "deltawire/checkpoint.h"
#include "sync/anchor.h"
#include "sync/replica.h"
#include "tensor/shard_index.h"
#include "tensor/tensor_list.h"

#define WEIGHTS_NAME "model.safetensors"

void dw_replica_tell(const dw_replica *r)
{
    if (!r->control)
        return;
    const dw_position *p = r->applied ? &r->next : &r->at;
    dw_control_set(r->control, r->copy,
                   &(dw_control_label){.stream = p->stream,
                                       .version = p->version,
                                       .state = p->state,
                                       .files = r->place ? dw_place_files(r->place) : 0});
}

/* ---- opening ---- */

/* Finds out which version the weights of the directory are. */
static dw_status find_position(dw_replica *r, const dw_progress *progress, dw_error *err)
{
    dw_position at;
    dw_status status =
        dw_replica_state_read(&at, &r->was_next, &r->has_record, r->dir, err);
    if (status == DW_OK)
        status = dw_replica_digest(r, progress, err);
    if (status != DW_OK)
        return status;
    r->has_weights = true;
    if (r->was_next.version != DW_NO_VERSION && r->was_next.state == r->state)
        r->at = r->was_next;
    else if (at.version != DW_NO_VERSION && at.state == r->state)
        r->at = at;
    else if (at.version != DW_NO_VERSION)
        return dw_fail(err, DW_CORRUPT, r->dir,
                       "the weights were changed by somebody else: their digest is "
                       "%016" PRIx64 ", that of version %" PRIu64 " is %016" PRIx64
                       ". Remove the directory and pull anew",
                       r->state, at.version, at.state);
    return DW_OK;
}

dw_status dw_replica_forget_next(dw_replica *r, dw_error *err)
{
    if (r->at.version == DW_NO_VERSION || r->was_next.version == DW_NO_VERSION)
        return DW_OK;
    dw_status status = dw_replica_state_write(&r->at, NULL, r->dir, err);
    if (status == DW_OK)
        r->was_next = dw_nowhere;
    return status;
}

static dw_status open_place(dw_replica *r, dw_error *err)
{
    bool recovered;
    dw_status status = dw_place_open(&r->place, r->dir, r->n_threads, &recovered, err);
    if (status != DW_OK)
        return status;
    size_t n_found;
    const dw_tensor *found = dw_place_tensors(r->place, &n_found);
    return dw_replica_take_data(r, found, n_found, r->dir, err);
}

/* An interrupted apply is finished when the place is opened: readers are to wait. */
static dw_status make_way(dw_replica *r, dw_error *err)
{
    bool pending = false;
    dw_error fault = {0};
    dw_status status = dw_checkpoint_pending(r->dir, &pending, &fault);
    if (status != DW_OK || !pending)
        return DW_OK; /* what is wrong is found again */
    status = dw_control_begin_write(r->control, r->copy, err);
    return status == DW_OK ? dw_control_sync(r->control, err) : status;
}

bool dw_dir_has_weights(const char *path)
{
    DIR *dir = opendir(path);
    bool found = false;
    for (struct dirent *e; dir && !found && (e = readdir(dir)) != NULL;) {
        const size_t n = strlen(e->d_name), n_end = strlen(".safetensors");
        found = strcmp(e->d_name, DW_SHARD_INDEX_NAME) == 0 ||
                (n > n_end && strcmp(e->d_name + n - n_end, ".safetensors") == 0);
    }
    if (dir)
        closedir(dir);
    return found;
}

static dw_status open_dir(dw_replica *r, const dw_progress *progress, dw_error *err)
{
    char *path = dw_join_path(r->dir, WEIGHTS_NAME);
    if (!path)
        return dw_fail_memory(err, r->dir);
    dw_remove_leftovers(path); /* the lock says that nobody is writing */
    dw_free(path);
    dw_status status = make_way(r, err);
    if (status == DW_OK)
        status = open_place(r, err);
    if (status == DW_OK)
        status = find_position(r, progress, err);
    else if (status == DW_NOT_FOUND && !dw_dir_has_weights(r->dir))
        status = DW_OK; /* empty: to be filled */
    if (status == DW_OK)
        dw_replica_tell(r);
    return status;
}

dw_status dw_replica_open_dir(dw_replica **out, const dw_tensor *table, size_t n_tensors,
                              const dw_replica_dir *dir, unsigned n_threads,
                              const dw_progress *progress, dw_error *err)
{
    dw_replica *r;
    *out = NULL;
    dw_status status = dw_replica_new(&r, table, n_tensors, n_threads, err);
    if (status != DW_OK)
        return status;
    r->dir = dw_copy_string(dir->path);
    r->weights_dir = dir->weights_dir;
    r->control = dir->control;
    r->copy = dir->copy;
    status = r->dir ? open_dir(r, progress, err) : dw_fail_memory(err, dir->path);
    if (status == DW_OK)
        *out = r;
    else
        dw_replica_close(r);
    return status;
}

/* ---- filling ---- */

/* Fills a file that is mapped and has no name yet, digests it, and names it. */
static dw_status fill_file(dw_replica *r, dw_new_file *file, dw_anchor *layout,
                           const dw_position *position, dw_fill_fn source, void *context,
                           dw_error *err)
{
    dw_status status =
        dw_new_file_write(file, layout->header.bytes, layout->header.n_bytes, err);
    int failed =
        status == DW_OK ? posix_fallocate(file->fd, 0, (off_t)layout->n_bytes) : 0;
    if (failed)
        status = dw_fail(err, DW_IO, r->dir,
                         "there is no room for the model's %" PRIu64 " bytes: %s",
                         layout->n_bytes, strerror(failed));
    if (status != DW_OK)
        return status;
    uint8_t *bytes = mmap(NULL, (size_t)layout->n_bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED, file->fd, 0);
    if (bytes == MAP_FAILED)
        return dw_fail_errno(err, file->path, "map");
    for (size_t i = 0; i < layout->list.n; i++) {
        const dw_tensor *key = &layout->list.tensors[i];
        dw_tensor *t =
            bsearch(key, r->tensors, r->n_tensors, sizeof *t, dw_tensor_compare_names);
        t->data = bytes + layout->offsets[i];
    }
    status = source(context, r->tensors, r->n_tensors, err);
    if (status == DW_OK)
        status = dw_replica_digest(r, NULL, err);
    if (status == DW_OK)
        status = dw_replica_check(r, position, err);
    if (status == DW_OK && msync(bytes, (size_t)layout->n_bytes, MS_SYNC) != 0)
        status = dw_fail_errno(err, file->path, "sync");
    munmap(bytes, (size_t)layout->n_bytes);
    for (size_t i = 0; i < r->n_tensors; i++)
        r->tensors[i].data = NULL;
    return status;
}

dw_status dw_replica_fill_dir(dw_replica *r, const dw_position *position,
                              dw_fill_fn source, void *context, dw_error *err)
{
    char *path = dw_join_path(r->dir, WEIGHTS_NAME);
    dw_new_file file = {.fd = -1};
    dw_anchor layout = {0};
    dw_slices all = {0};
    dw_status status = path ? DW_OK : dw_fail_memory(err, r->dir);
    if (status == DW_OK)
        status = dw_slices_of_covers(&all, NULL, 0, r->tensors, r->n_tensors, err);
    if (status == DW_OK)
        status = dw_anchor_open(&layout, r->tensors, r->n_tensors, &all, r->dir, err);
    if (status == DW_OK)
        status = dw_new_file_open(&file, path, err);
    if (status == DW_OK)
        status = fill_file(r, &file, &layout, position, source, context, err);
    if (status == DW_OK)
        status = dw_replica_state_write(&dw_nowhere, position, r->dir, err);
    if (status == DW_OK)
        status = dw_new_file_commit(&file, err);
    else
        dw_new_file_abort(&file);
    if (status == DW_OK)
        status = open_place(r, err);
    dw_anchor_release(&layout);
    dw_slices_free(&all);
    dw_free(path);
    return status;
}
