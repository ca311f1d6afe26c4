#include "sync/replica.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "sync/anchor.h"
#include "sync/stage.h"
#include "tensor/shard_index.h"
#include "tensor/tensor_list.h"

#define WEIGHTS_NAME "model.safetensors"

static const dw_position nowhere = {.version = DW_NO_VERSION};

dw_position dw_position_of(const dw_commit_record *commit)
{
    dw_position p = {.version = commit->version, .state = commit->state};
    memcpy(p.stream, commit->stream, sizeof p.stream);
    memcpy(p.commit_sha256, commit->seal.sha256, sizeof p.commit_sha256);
    return p;
}

/* ---- opening ---- */

static dw_status make_replica(dw_replica **out, const dw_tensor *table, size_t n_tensors,
                              unsigned n_threads, dw_error *err)
{
    dw_replica *r = dw_alloc_zeroed(1, sizeof *r);
    if (!r)
        return dw_fail_memory(err, NULL);
    r->n_tensors = n_tensors;
    r->n_threads = n_threads;
    r->at = r->next = r->was_next = nowhere;
    r->lock = -1;
    r->tensors = dw_alloc_array(n_tensors, sizeof *r->tensors);
    r->digests = dw_alloc_array(n_tensors, sizeof *r->digests);
    r->next_digests = dw_alloc_array(n_tensors, sizeof *r->next_digests);
    if (!r->tensors || !r->digests || !r->next_digests) {
        dw_replica_close(r);
        return dw_fail_memory(err, NULL);
    }
    if (n_tensors > 0)
        memcpy(r->tensors, table, n_tensors * sizeof *r->tensors);
    *out = r;
    return DW_OK;
}

void dw_replica_close(dw_replica *r)
{
    if (!r)
        return;
    dw_patch_free(r->patch);
    dw_place_close(r->place);
    if (r->lock >= 0)
        close(r->lock);
    dw_free(r->tensors);
    dw_free(r->digests);
    dw_free(r->next_digests);
    dw_free(r->dir);
    dw_free(r);
}

/* Points the replica's tensors at the data of FOUND, which must be the same model. */
static dw_status take_data(dw_replica *r, const dw_tensor *found, size_t n_found,
                           const char *where, dw_error *err)
{
    if (n_found != r->n_tensors)
        return dw_fail(err, DW_MISMATCH, where,
                       "there are weights of another model: %zu tensors, but the stream "
                       "has %zu",
                       n_found, r->n_tensors);
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, found, n_found, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; status == DW_OK && i < r->n_tensors; i++) {
        size_t f = dw_name_index_find(&names, r->tensors[i].name);
        status = f == SIZE_MAX
                     ? dw_fail_tensor(err, DW_MISMATCH, where, r->tensors[i].name,
                                      "the stream has it, but the weights there do not")
                     : dw_tensor_same_shape(&r->tensors[i], &found[f], where, err);
        if (status == DW_OK)
            r->tensors[i].data = found[f].data;
    }
    dw_name_index_release(&names);
    return status;
}

static dw_status digest_weights(dw_replica *r, const dw_progress *progress, dw_error *err)
{
    return dw_digest_tensors(r->digests, &r->state, r->tensors, r->n_tensors,
                             r->n_threads, progress, err);
}

dw_status dw_replica_open_memory(dw_replica **out, const dw_tensor *table,
                                 size_t n_tensors, const dw_tensor *memory,
                                 unsigned n_threads, dw_error *err)
{
    dw_replica *r;
    *out = NULL;
    dw_status status = make_replica(&r, table, n_tensors, n_threads, err);
    if (status != DW_OK)
        return status;
    status = take_data(r, memory, n_tensors, "memory", err);
    if (status == DW_OK)
        status = digest_weights(r, NULL, err);
    r->has_weights = true;
    if (status == DW_OK)
        *out = r;
    else
        dw_replica_close(r);
    return status;
}

static dw_status lock_dir(dw_replica *r, dw_error *err)
{
    if (mkdir(r->dir, 0777) != 0 && errno != EEXIST)
        return dw_fail_errno(err, r->dir, "make the directory");
    r->lock = open(r->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->lock < 0)
        return dw_fail_errno(err, r->dir, "open the directory");
    if (flock(r->lock, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK
                   ? dw_fail(err, DW_CONFLICT, r->dir,
                             "another process keeps this directory up to date")
                   : dw_fail_errno(err, r->dir, "lock");
    return DW_OK;
}

/* Finds out which version the weights of the directory are. */
static dw_status find_position(dw_replica *r, const dw_progress *progress, dw_error *err)
{
    dw_position at;
    dw_status status =
        dw_replica_state_read(&at, &r->was_next, &r->has_record, r->dir, err);
    if (status == DW_OK)
        status = digest_weights(r, progress, err);
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
    if (r->at.version != DW_NO_VERSION && r->was_next.version != DW_NO_VERSION)
        status = dw_replica_state_write(&r->at, NULL, r->dir, err);
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
    return take_data(r, found, n_found, r->dir, err);
}

/* Whether there is anything that a checkpoint is made of, whole or not. */
static bool has_weight_files(const char *path)
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

dw_status dw_replica_open_dir(dw_replica **out, const dw_tensor *table, size_t n_tensors,
                              const char *dir, unsigned n_threads,
                              const dw_progress *progress, dw_error *err)
{
    dw_replica *r;
    *out = NULL;
    dw_status status = make_replica(&r, table, n_tensors, n_threads, err);
    if (status != DW_OK)
        return status;
    r->dir = dw_copy_string(dir);
    status = r->dir ? lock_dir(r, err) : dw_fail_memory(err, dir);
    if (status == DW_OK) {
        char *path = dw_join_path(dir, WEIGHTS_NAME);
        if (path)
            dw_remove_leftovers(path); /* the lock says that nobody is writing */
        dw_free(path);
        status = open_place(r, err);
        if (status == DW_OK)
            status = find_position(r, progress, err);
        else if (status == DW_NOT_FOUND && !has_weight_files(dir))
            status = DW_OK; /* empty: to be filled */
    }
    if (status == DW_OK)
        *out = r;
    else
        dw_replica_close(r);
    return status;
}

dw_status dw_replica_adopt(dw_replica *r, const dw_position *position, dw_error *err)
{
    r->at = *position;
    return r->dir ? dw_replica_state_write(&r->at, NULL, r->dir, err) : DW_OK;
}

/* ---- filling ---- */

static dw_status check_filled(const dw_replica *r, const dw_position *position,
                              dw_error *err)
{
    if (r->state == position->state)
        return DW_OK;
    return dw_fail(err, DW_MISMATCH, r->dir,
                   "the weights have the digest %016" PRIx64 ", but version %" PRIu64
                   " is %016" PRIx64 ": they are not that version",
                   r->state, position->version, position->state);
}

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
        status = digest_weights(r, NULL, err);
    if (status == DW_OK)
        status = check_filled(r, position, err);
    if (status == DW_OK && msync(bytes, (size_t)layout->n_bytes, MS_SYNC) != 0)
        status = dw_fail_errno(err, file->path, "sync");
    munmap(bytes, (size_t)layout->n_bytes);
    for (size_t i = 0; i < r->n_tensors; i++)
        r->tensors[i].data = NULL;
    return status;
}

static dw_status fill_dir(dw_replica *r, const dw_position *position, dw_fill_fn source,
                          void *context, dw_error *err)
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
        status = dw_replica_state_write(&nowhere, position, r->dir, err);
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

dw_status dw_replica_fill(dw_replica *r, const dw_position *position, dw_fill_fn source,
                          void *context, dw_error *err)
{
    dw_status status;
    if (r->dir) {
        status = fill_dir(r, position, source, context, err);
    } else {
        r->at = nowhere;
        status = source(context, r->tensors, r->n_tensors, err);
        if (status == DW_OK)
            status = digest_weights(r, NULL, err);
        if (status == DW_OK)
            status = check_filled(r, position, err);
    }
    if (status != DW_OK)
        return status;
    r->has_weights = true;
    return dw_replica_adopt(r, position, err);
}

/* ---- staging ---- */

/* Keeps what stage found out, or takes it back. */
static dw_status finish_stage(dw_replica *r, const dw_position *position,
                              const dw_staging *staging, dw_error *err)
{
    dw_digest state = dw_digest_state(r->tensors, r->next_digests, r->n_tensors);
    if (state != position->state) {
        dw_replica_discard(r, NULL);
        return dw_fail(err, DW_CORRUPT, r->dir,
                       "the objects of version %" PRIu64
                       " lead to weights with the digest "
                       "%016" PRIx64 ", but its commit says %016" PRIx64,
                       position->version, state, position->state);
    }
    r->next = *position;
    r->n_changed = staging->n_changed;
    r->staged = true;
    return DW_OK;
}

static dw_status stage_parts(dw_replica *r, const dw_position *position,
                             dw_staging *staging, const dw_progress *progress,
                             dw_error *err)
{
    const dw_patch_goal goal = {true, position->state, position->version};
    dw_status status =
        r->place
            ? dw_place_stage(r->place, staging->parts, staging->n, &goal, progress, err)
            : dw_parts_stage_memory(&r->patch, r->tensors, r->n_tensors, staging->parts,
                                    staging->n, r->n_threads, progress, err);
    if (status != DW_OK)
        return status;
    r->has_patch = true;
    dw_staging_digests(staging, r->n_tensors, r->digests, r->next_digests);
    return finish_stage(r, position, staging, err);
}

dw_status dw_replica_stage(dw_replica *r, const dw_position *position,
                           const dw_objects *objects, const dw_blob *blobs,
                           const dw_progress *progress, dw_error *err)
{
    dw_staging staging;
    dw_replica_discard(r, NULL);
    dw_status status = dw_staging_open(&staging, objects, blobs, r->tensors, r->n_tensors,
                                       r->digests, r->n_threads, err);
    if (status == DW_OK)
        status = stage_parts(r, position, &staging, progress, err);
    dw_staging_close(&staging);
    return status;
}

dw_status dw_replica_stage_deltas(dw_replica *r, const dw_position *position,
                                  const dw_objects *objects, dw_delta *const *deltas,
                                  dw_error *err)
{
    dw_staging staging;
    dw_replica_discard(r, NULL);
    dw_status status =
        dw_staging_open_deltas(&staging, objects, deltas, r->tensors, r->n_tensors,
                               r->digests, r->n_threads, err);
    if (status == DW_OK)
        status = stage_parts(r, position, &staging, NULL, err);
    dw_staging_close(&staging);
    return status;
}

dw_status dw_replica_stage_copy(dw_replica *r, const dw_position *position,
                                const dw_tensor *source, const dw_progress *progress,
                                dw_error *err)
{
    dw_replica_discard(r, NULL);
    dw_diff_options options;
    dw_diff_options_init(&options);
    options.n_threads = r->n_threads;
    options.new_version = position->version;
    options.base_digests = r->digests;
    dw_delta *delta;
    dw_status status =
        dw_delta_diff(&delta, r->tensors, source, r->n_tensors, &options, err);
    if (status != DW_OK)
        return status;
    dw_staging staging;
    status =
        dw_staging_open_one(&staging, delta, r->tensors, r->n_tensors, r->digests, err);
    if (status == DW_OK)
        status = stage_parts(r, position, &staging, progress, err);
    dw_staging_close(&staging);
    return status;
}

static void forget_staged(dw_replica *r)
{
    dw_patch_free(r->patch);
    r->patch = NULL;
    r->has_patch = r->staged = r->committed = r->applied = false;
}

dw_status dw_replica_discard(dw_replica *r, dw_error *err)
{
    dw_status status = DW_OK;
    if (r->committed)
        return dw_fail(err, DW_INVALID, r->dir,
                       "version %" PRIu64 " is committed, and to be settled first",
                       r->next.version);
    if (r->has_patch && r->place)
        status = dw_place_discard(r->place, err);
    forget_staged(r);
    return status;
}

/* ---- applying ---- */

dw_status dw_replica_commit(dw_replica *r, dw_error *err)
{
    dw_status status = DW_OK;
    if (r->place) {
        if (!r->committed)
            status = dw_replica_state_write(&r->at, &r->next, r->dir, err);
        if (status == DW_OK)
            status = dw_place_commit(r->place, err);
        /* whatever failed after the rename */
        r->committed = dw_place_is_committed(r->place);
    } else {
        r->committed = true;
    }
    return status;
}

dw_status dw_replica_apply(dw_replica *r, dw_error *err)
{
    dw_status status = dw_replica_commit(r, err);
    if (status != DW_OK || r->applied)
        return status;
    status = r->place
                 ? dw_place_store(r->place, err)
                 : dw_patch_apply(r->patch, r->tensors, r->n_tensors, r->n_threads, err);
    r->applied = status == DW_OK;
    return status;
}

dw_status dw_replica_settle(dw_replica *r, bool sweep, dw_error *err)
{
    dw_status status = DW_OK;
    if (r->place) {
        status = dw_place_settle(r->place, sweep, err);
    } else if (sweep) {
        status = digest_weights(r, NULL, err);
        if (status == DW_OK)
            status = check_filled(r, &r->next, err);
        if (status == DW_MISMATCH) { /* memory went bad: it is filled anew */
            forget_staged(r);
            r->at = nowhere;
            r->has_weights = false;
        }
    }
    if (status != DW_OK)
        return status;
    r->at = r->next;
    r->state = r->next.state;
    memcpy(r->digests, r->next_digests, r->n_tensors * sizeof *r->digests);
    forget_staged(r);
    return r->dir ? dw_replica_state_write(&r->at, NULL, r->dir, err) : DW_OK;
}
