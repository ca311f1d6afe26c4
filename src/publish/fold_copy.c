#include "publish/fold_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "tensor/tensor_list.h"
#include "weights/own_dir.h"
#include "weights/target.h"

#define DELTAS_NAME "deltas"
#define WRITE_BYTES (4u << 20) /* at a time */

/* ---- directories ---- */

/* A link could lead to other weights, so it is removed. */
static dw_status make_dir(const char *path, dw_error *err)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && unlink(path) != 0)
        return dw_fail_errno(err, path, "remove the link");
    return mkdir(path, 0777) == 0 || errno == EEXIST
               ? DW_OK
               : dw_fail_errno(err, path, "make the directory");
}

static void remove_made(const char *dir, const char *name)
{
    char *path = dw_join_path(dir, name);
    if (path) {
        dw_remove_leftovers(path);
        (void)dw_remove_file(path, NULL);
    }
    dw_free(path);
}

void dw_fold_dir_remove(const char *dir)
{
    struct stat st;
    if (lstat(dir, &st) != 0)
        return;
    if (!S_ISDIR(st.st_mode)) {
        (void)unlink(dir);
        return;
    }
    (void)dw_target_empty_dir(dir, NULL);
    dw_own_dir_remove(dir);
    remove_made(dir, DELTAS_NAME);
    (void)rmdir(dir);
}

/* From now on the directory records no version. */
static dw_status remove_record(const char *dir, dw_error *err)
{
    char *path = dw_join_path(dir, DW_POSITION_NAME);
    if (path) /* the baseline is locked: no other process writes here */
        dw_remove_leftovers(path);
    dw_status status = path ? dw_remove_file(path, err) : dw_fail_memory(err, dir);
    dw_free(path);
    return status;
}

/* ---- the copy ---- */

/* The number of each tensor of the file in the table of the model. */
static dw_status find_tensors(size_t *out, const dw_anchor *file, const dw_pieces *pieces,
                              dw_error *err)
{
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, pieces->table, pieces->n_table, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; i < file->list.n; i++)
        out[i] = dw_name_index_find(&names, file->list.tensors[i].name);
    dw_name_index_release(&names);
    return DW_OK;
}

static dw_status write_bytes(const char *path, const dw_source *source, dw_error *err)
{
    dw_new_file file;
    char *via;
    dw_status status = dw_own_via(&via, path, err);
    if (status == DW_OK)
        status = dw_new_file_open_via(&file, path, via, err);
    dw_free(via);
    if (status != DW_OK)
        return status;
    uint8_t *buffer = dw_alloc(WRITE_BYTES);
    status = buffer ? dw_new_file_reserve(&file, source->n_bytes, err)
                    : dw_fail_memory(err, path);
    for (uint64_t at = 0; status == DW_OK && at < source->n_bytes;) {
        const uint64_t left = source->n_bytes - at;
        const size_t n = left < WRITE_BYTES ? (size_t)left : WRITE_BYTES;
        status = source->read(source->context, at, buffer, n, err);
        if (status == DW_OK)
            status = dw_new_file_write(&file, buffer, n, err);
        at += n;
    }
    dw_free(buffer);
    if (status == DW_OK)
        return dw_new_file_commit(&file, err);
    dw_new_file_abort(&file);
    return status;
}

/* Writes the held weights to one file. */
static dw_status write_model(const char *dir, dw_held_version *held, dw_error *err)
{
    const dw_pieces *pieces = held->pieces;
    dw_anchor anchor;
    char *path = dw_join_path(dir, "model.safetensors");
    if (!path)
        return dw_fail_memory(err, dir);
    dw_status status = dw_anchor_open(&anchor, pieces->table, pieces->n_table,
                                      &pieces->owned, path, err);
    if (status != DW_OK) {
        dw_free(path);
        return status;
    }
    size_t *tensors = dw_alloc_array(anchor.list.n, sizeof *tensors);
    dw_held_file file = {held, &anchor, tensors};
    const dw_source source = dw_held_file_source(&file);
    status =
        tensors ? find_tensors(tensors, &anchor, pieces, err) : dw_fail_memory(err, path);
    if (status == DW_OK)
        status = write_bytes(path, &source, err);
    dw_free(tensors);
    dw_anchor_release(&anchor);
    dw_free(path);
    return status;
}

static dw_status copy_files(dw_fold_copy *copy, const dw_position *at,
                            dw_held_version *held, dw_error *err)
{
    dw_status status = make_dir(copy->dir, err);
    if (status == DW_OK)
        status = remove_record(copy->dir, err);
    dw_own_dir_tidy(copy->dir);
    if (status == DW_OK) /* first, because there may be no room for two copies */
        status = dw_target_empty_dir(copy->dir, err);
    if (status == DW_OK) {
        status = dw_held_clone_files(held, copy->dir, err);
        if (status == DW_UNSUPPORTED)
            status = write_model(copy->dir, held, err);
    }
    if (status == DW_OK)
        status = dw_position_write(at, NULL, copy->dir, err);
    if (status != DW_OK)
        dw_fold_dir_remove(copy->dir);
    return status;
}

static dw_status copy_data(dw_fold_copy *copy, dw_held_version *held, dw_error *err)
{
    const dw_pieces *pieces = copy->pieces;
    dw_status status = copy->blob.bytes ? DW_OK
                                        : dw_blob_map(&copy->blob, dw_pieces_room(pieces),
                                                      copy->spool_dir, err);
    uint8_t *to = copy->blob.bytes;
    for (size_t t = 0; status == DW_OK && t < pieces->n_table; t++) {
        status = dw_held_read(held, t, to, err);
        to += dw_padded(pieces->table[t].n_bytes);
    }
    return status;
}

dw_status dw_fold_copy_make(dw_fold_copy *copy, const dw_position *at,
                            dw_held_version *held, dw_error *err)
{
    copy->at = dw_nowhere;
    dw_status status =
        copy->dir ? copy_files(copy, at, held, err) : copy_data(copy, held, err);
    if (status == DW_OK)
        copy->at = *at;
    return status;
}

/* Finds the tensors of the table in the copy. */
static dw_status find_data(dw_fold_copy *copy, void **data, dw_error *err)
{
    const dw_pieces *pieces = copy->pieces;
    uint8_t *at = copy->blob.bytes;
    if (copy->dir) {
        dw_status status =
            dw_checkpoint_open(&copy->ckpt, copy->dir, DW_CHECKPOINT_READ, err);
        if (status != DW_OK)
            return status;
    }
    for (size_t t = 0; t < pieces->n_table; t++) {
        const dw_tensor *wanted = &pieces->table[t];
        const dw_tensor *found =
            copy->dir ? dw_checkpoint_find(copy->ckpt, wanted->name) : NULL;
        if (copy->dir && (!found || found->n_bytes != wanted->n_bytes))
            return dw_fail_tensor(err, DW_CORRUPT, copy->dir, wanted->name,
                                  "it is missing in the copy for folds");
        data[t] = found ? found->data : at;
        if (!found)
            at += dw_padded(wanted->n_bytes);
    }
    return DW_OK;
}

dw_status dw_fold_copy_open(dw_fold_copy *copy, dw_error *err)
{
    const dw_pieces *pieces = copy->pieces;
    void **data = dw_alloc_array(pieces->n_table, sizeof *data);
    copy->views = dw_alloc_array(pieces->cut.n, sizeof *copy->views);
    copy->digests = dw_alloc_array(pieces->cut.n, sizeof *copy->digests);
    dw_status status = data && copy->views && copy->digests
                           ? find_data(copy, data, err)
                           : dw_fail_memory(err, copy->dir);
    if (status == DW_OK) {
        dw_pieces_view(pieces, copy->views, data);
        status = dw_digest_tensors(copy->digests, NULL, copy->views, pieces->cut.n,
                                   copy->n_threads, NULL, err);
    }
    if (status == DW_OK && dw_pieces_state(pieces, copy->digests) != copy->at.state)
        status = dw_fail(err, DW_CORRUPT, copy->dir, "the copy for folds is damaged");
    dw_free(data);
    if (status != DW_OK)
        dw_fold_copy_close(copy);
    return status;
}

void dw_fold_copy_close(dw_fold_copy *copy)
{
    dw_checkpoint_close(copy->ckpt);
    dw_free(copy->views);
    dw_free(copy->digests);
    copy->ckpt = NULL;
    copy->views = NULL;
    copy->digests = NULL;
}

void dw_fold_copy_release(dw_fold_copy *copy)
{
    dw_fold_copy_close(copy);
    dw_blob_release(&copy->blob);
    dw_free(copy->dir);
    copy->dir = NULL;
}

/* ---- levels ---- */

static dw_status write_deltas(dw_new_file *file, const dw_fold_copy *copy,
                              const dw_position *at, dw_held_version *held,
                              const dw_progress *stop, dw_error *err)
{
    dw_held_group next;
    dw_digest *digests = dw_alloc_zeroed(copy->pieces->cut.n, sizeof *digests);
    dw_status status = dw_held_group_open(&next, held, err);
    if (status == DW_OK && !digests)
        status = dw_fail_memory(err, copy->dir);
    const dw_group_diff diff = {
        .pieces = copy->pieces,
        .base = copy->views,
        .next = next.views,
        .load = dw_held_group_load,
        .load_context = &next,
        .base_digests = copy->digests,
        .next_digests = digests,
        .from = copy->at.version,
        .to = at->version,
        .n_threads = copy->n_threads,
        .stop = stop,
    };
    if (status == DW_OK)
        status = dw_group_deltas_write(file, &diff, err);
    if (status == DW_OK && dw_pieces_state(copy->pieces, digests) != at->state)
        status = dw_fail(err, DW_CORRUPT, copy->dir,
                         "the baseline no longer holds version %" PRIu64, at->version);
    dw_held_group_close(&next);
    dw_free(digests);
    return status;
}

/* FILE, which is complete, becomes the deltas of the first level. The others get links to
 * it. */
static dw_status replace_deltas(dw_fold_level *const *levels, size_t n, dw_new_file *file,
                                const dw_position *at, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        status = make_dir(levels[i]->dir, err);
        if (status == DW_OK)
            status = remove_record(levels[i]->dir, err);
    }
    char *first = dw_copy_string(file->path);
    if (status == DW_OK && first) {
        status = dw_new_file_commit(file, err);
    } else {
        dw_new_file_abort(file);
        status = status == DW_OK ? dw_fail_memory(err, NULL) : status;
    }
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        char *path = i > 0 ? dw_join_path(levels[i]->dir, DELTAS_NAME) : NULL;
        if (i > 0)
            status = path ? dw_remove_file(path, err) : dw_fail_memory(err, NULL);
        if (i > 0 && status == DW_OK)
            status = dw_link_file(first, path, err);
        if (status == DW_OK)
            status = dw_position_write(at, NULL, levels[i]->dir, err);
        dw_free(path);
    }
    dw_free(first);
    return status;
}

static dw_status move_named(dw_fold_level *const *levels, size_t n,
                            const dw_fold_copy *copy, const dw_position *at,
                            dw_held_version *held, const dw_progress *stop, dw_error *err)
{
    dw_new_file file = {.fd = -1};
    dw_status status = make_dir(levels[0]->dir, err);
    char *path = dw_join_path(levels[0]->dir, DELTAS_NAME);
    if (path) /* the baseline is locked: no other process writes here */
        dw_remove_leftovers(path);
    if (status == DW_OK)
        status = path ? dw_new_file_open(&file, path, err) : dw_fail_memory(err, NULL);
    dw_free(path);
    if (status != DW_OK)
        return status;
    status = write_deltas(&file, copy, at, held, stop, err);
    if (status != DW_OK) {
        dw_new_file_abort(&file);
        return status;
    }
    status = replace_deltas(levels, n, &file, at, err);
    for (size_t i = 0; i < n; i++)
        levels[i]->at = status == DW_OK ? *at : copy->at;
    return status;
}

static void close_nameless(dw_fold_level *level)
{
    if (level->fd >= 0)
        close(level->fd);
    level->fd = -1;
}

static dw_status move_nameless(dw_fold_level *const *levels, size_t n,
                               const dw_fold_copy *copy, const dw_position *at,
                               dw_held_version *held, const dw_progress *stop,
                               dw_error *err)
{
    dw_new_file file = {.path = (char *)"a spool file"};
    dw_status status = dw_spool_open(&file.fd, copy->spool_dir, err);
    if (status == DW_OK)
        status = write_deltas(&file, copy, at, held, stop, err);
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        const int fd = fcntl(file.fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            status = dw_fail_errno(err, file.path, "open");
            break;
        }
        close_nameless(levels[i]);
        levels[i]->fd = fd;
        levels[i]->at = *at;
    }
    if (file.fd >= 0)
        close(file.fd);
    return status;
}

dw_status dw_fold_levels_move(dw_fold_level *const *levels, size_t n,
                              const dw_fold_copy *copy, const dw_position *at,
                              dw_held_version *held, const dw_progress *stop,
                              dw_error *err)
{
    if (n == 0)
        return DW_OK;
    return copy->dir ? move_named(levels, n, copy, at, held, stop, err)
                     : move_nameless(levels, n, copy, at, held, stop, err);
}

void dw_fold_level_drop(dw_fold_level *level, const dw_fold_copy *copy)
{
    level->at = copy->at;
    close_nameless(level);
    if (level->dir)
        dw_fold_dir_remove(level->dir);
}

/* ---- the weights that a level starts from ---- */

static dw_status open_deltas(dw_fold_source *s, const dw_fold_level *level, dw_error *err)
{
    if (level->dir) {
        char *path = dw_join_path(level->dir, DELTAS_NAME);
        if (!path)
            return dw_fail_memory(err, level->dir);
        s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        dw_free(path);
    } else {
        s->fd = fcntl(level->fd, F_DUPFD_CLOEXEC, 0);
    }
    if (s->fd < 0)
        return dw_fail_errno(err, level->dir, "open the deltas of");
    return dw_group_deltas_open(&s->deltas, s->fd, s->copy->pieces, level->dir, err);
}

dw_status dw_fold_source_open(dw_fold_source *out, const dw_fold_level *level,
                              const dw_fold_copy *copy, dw_error *err)
{
    const size_t n = copy->pieces->cut.n;
    *out = (dw_fold_source){.copy = copy, .fd = -1, .deltas = {.fd = -1}};
    out->views = dw_alloc_array(n, sizeof *out->views);
    out->digests = dw_alloc_array(n, sizeof *out->digests);
    out->room = dw_alloc((size_t)dw_pieces_group_room(copy->pieces));
    if (!out->views || !out->digests || !out->room)
        return dw_fail_memory(err, copy->dir);
    memcpy(out->views, copy->views, n * sizeof *out->views);
    memcpy(out->digests, copy->digests, n * sizeof *out->digests);
    dw_status status = open_deltas(out, level, err);
    out->is_bad = status != DW_OK && status != DW_NO_MEMORY;
    return status;
}

void dw_fold_source_close(dw_fold_source *s)
{
    dw_group_deltas_close(&s->deltas);
    if (s->fd >= 0)
        close(s->fd);
    dw_free(s->views);
    dw_free(s->digests);
    dw_free(s->room);
}

dw_status dw_fold_source_load(void *context, const dw_piece_group *group, dw_error *err)
{
    dw_fold_source *s = context;
    const size_t g = (size_t)(group - s->copy->pieces->groups);
    if (!dw_group_deltas_has(&s->deltas, g))
        return DW_OK; /* as in the copy */
    dw_status status = DW_OK;
    uint8_t *at = s->room;
    for (size_t i = group->first; status == DW_OK && i < group->first + group->n; i++) {
        const dw_tensor *from = &s->copy->views[i];
        s->views[i].data = at;
        status = dw_map_copy(at, from->data, (size_t)from->n_bytes, err);
        at += dw_padded(from->n_bytes);
    }
    if (status == DW_OK)
        status = dw_group_deltas_apply(
            &s->deltas, g, s->views + group->first, s->copy->digests + group->first,
            s->digests + group->first, s->copy->n_threads, err);
    s->is_bad = status != DW_OK && status != DW_NO_MEMORY;
    return status;
}
