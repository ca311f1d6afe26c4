/* Folded deltas: every so many versions one delta over all of them, so that who is behind
 * needs few. Each span keeps a copy of the model as it was when it last folded; the
 * baseline is diffed against it. The deltas are decoded against the copy, which proves
 * them, and then make it a copy of the head.
 *
 * Beside a baseline in a directory the copies lie in DIR/.deltawire-fold-SPAN and outlive
 * the process: `weights`, the tensors one after the other, and the record of a replica.
 * The record names no version while the weights are being written, so that a copy which
 * was torn is made anew; its digest is compared before it is folded from. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "sync/proof.h"
#include "sync/publisher.h"

static const dw_position nowhere = {.version = DW_NO_VERSION};

/* ---- the copy of a level ---- */

static uint64_t copy_bytes(const dw_publisher *p)
{
    uint64_t n = 64; /* a model without elements is a file all the same */
    for (size_t t = 0; t < p->pieces.n_table; t++)
        n += dw_padded(p->pieces.table[t].n_bytes);
    return n;
}

static char *weights_path(const dw_fold_level *level)
{
    return dw_join_path(level->dir, "weights");
}

static uint8_t *bytes_of(const dw_fold_level *level)
{
    return level->dir ? level->map.bytes : level->blob.bytes;
}

static void unmap_copy(dw_fold_level *level)
{
    if (level->dir)
        dw_map_close(&level->map);
    level->map = (dw_map){.fd = -1};
}

static dw_status map_copy(dw_fold_level *level, dw_error *err)
{
    if (!level->dir || level->map.bytes)
        return DW_OK;
    char *path = weights_path(level);
    if (!path)
        return dw_fail_memory(err, level->dir);
    dw_status status = dw_map_open(&level->map, path, true, err);
    if (status == DW_OK && !dw_file_is_own(level->map.fd, path)) {
        unmap_copy(level);
        status = dw_fail(err, DW_CORRUPT, path,
                         "it is a link, or has a second name: a new copy is made");
    }
    dw_free(path);
    return status;
}

/* Room for the copy: a nameless file, or a file of the right size. */
static dw_status make_room(const dw_publisher *p, dw_fold_level *level, dw_error *err)
{
    const uint64_t n_bytes = copy_bytes(p);
    if (!level->dir)
        return level->blob.bytes
                   ? DW_OK
                   : dw_blob_map(&level->blob, n_bytes, p->options.spool_dir, err);
    char *path = weights_path(level);
    if (!path)
        return dw_fail_memory(err, level->dir);
    unmap_copy(level);
    dw_status status = DW_OK;
    int fd = -1;
    if (mkdir(level->dir, 0777) != 0 && errno != EEXIST)
        status = dw_fail_errno(err, level->dir, "make the directory");
    if (status == DW_OK)
        status = dw_remove_file(path, err); /* a link may lead to a file of others */
    if (status == DW_OK) {
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0)
            status = dw_fail_errno(err, path, "open");
    }
    int failed = 0;
    if (status == DW_OK && ftruncate(fd, (off_t)n_bytes) != 0)
        status = dw_fail_errno(err, path, "size");
    if (status == DW_OK)
        failed = posix_fallocate(fd, 0, (off_t)n_bytes);
    if (failed)
        status = dw_fail(err, DW_IO, level->dir,
                         "there is no room for a copy of the model, %" PRIu64
                         " bytes, to fold from: %s. Free some, or fold less (--fold)",
                         n_bytes, strerror(failed));
    if (fd >= 0)
        close(fd);
    dw_free(path);
    return status == DW_OK ? map_copy(level, err) : status;
}

/* Says which version the copy is; AT none: that it is being written. */
static dw_status note_position(dw_fold_level *level, const dw_position *at, dw_error *err)
{
    level->at = nowhere;
    dw_status status = DW_OK;
    if (level->dir && at->version != DW_NO_VERSION) {
        char *path = weights_path(level);
        status = path ? dw_map_sync(&level->map, path, err) : dw_fail_memory(err, NULL);
        dw_free(path);
    }
    if (status == DW_OK && level->dir)
        status = dw_replica_state_write(at, NULL, level->dir, err);
    if (status == DW_OK)
        level->at = *at;
    return status;
}

/* Makes the copy the baseline as it is. */
static dw_status reset_level(dw_publisher *p, dw_fold_level *level, dw_error *err)
{
    dw_status status = make_room(p, level, err);
    if (status == DW_OK)
        status = note_position(level, &nowhere, err);
    if (status != DW_OK)
        return status;
    uint8_t *at = bytes_of(level);
    for (size_t t = 0; t < p->pieces.n_table; t++) {
        const uint64_t n = p->pieces.table[t].n_bytes;
        if (status == DW_OK)
            status = dw_map_copy(at, p->base_data[t], (size_t)n, err);
        at += dw_padded(n);
    }
    if (status == DW_OK)
        status = note_position(level, &p->head, err);
    unmap_copy(level);
    return status;
}

/* ---- folding ---- */

/* Views of the pieces in the copy, and their digests; DW_CORRUPT where it is not what its
 * record says. */
static dw_status open_copy(dw_publisher *p, dw_fold_level *level, dw_tensor *views,
                           dw_digest *digests, dw_error *err)
{
    dw_status status = map_copy(level, err);
    if (status != DW_OK)
        return status;
    if (level->dir && level->map.n_bytes != copy_bytes(p))
        return dw_fail(err, DW_CORRUPT, level->dir, "the copy has another size");
    void **data = dw_alloc_array(p->pieces.n_table, sizeof *data);
    if (!data)
        return dw_fail_memory(err, NULL);
    uint8_t *at = bytes_of(level);
    for (size_t t = 0; t < p->pieces.n_table; t++) {
        data[t] = at;
        at += dw_padded(p->pieces.table[t].n_bytes);
    }
    dw_pieces_view(&p->pieces, views, data);
    dw_free(data);
    status = dw_digest_tensors(digests, NULL, views, p->pieces.cut.n,
                               p->options.n_threads, NULL, err);
    if (status == DW_OK && level->at.state != dw_pieces_state(&p->pieces, digests))
        status = dw_fail(err, DW_CORRUPT, level->dir, "the copy was changed");
    return status;
}

static dw_status fold_from(dw_publisher *p, dw_fold_level *level, const dw_tensor *views,
                           const dw_digest *digests, dw_error *err)
{
    char write_id[DW_ID_TEXT];
    const dw_position from = level->at;
    const dw_progress stop = {dw_publisher_stop, p};
    dw_status status = dw_random_id(write_id, err);
    if (status == DW_OK)
        status = note_position(level, &nowhere, err);
    if (status != DW_OK)
        return status;
    dw_uploaded uploaded;
    const dw_encode_version version = {
        .pieces = &p->pieces,
        .base = views,
        .next = p->base,
        .base_digests = digests,
        .next_digests = p->pieces.next,
        .from = from.version,
        .to = p->head.version,
        .store = p->store,
        .purpose = "fold",
        .write_id = write_id,
        .max_object_bytes = p->options.max_object_bytes,
        .spool_dir = p->options.spool_dir,
        .n_threads = p->options.n_threads,
        .stop = &stop,
    };
    status = dw_encode_upload(&uploaded, &version, err);
    if (status == DW_OK && dw_pieces_state(&p->pieces, p->pieces.next) != p->head.state)
        status = dw_fail(err, DW_CORRUPT, p->options.baseline_dir,
                         "no fold was made of version %" PRIu64
                         ": the baseline is not that version any more",
                         p->head.version);
    for (size_t i = 0; status == DW_OK && i < uploaded.objects.n; i++)
        status = dw_delta_move(&p->pieces, &uploaded.objects.items[i], uploaded.deltas[i],
                               views, digests, p->options.n_threads, err);
    if (status == DW_OK)
        status = dw_publisher_add_way(p, &from, &uploaded.objects, err);
    dw_uploaded_release(&uploaded);
    return status == DW_OK ? note_position(level, &p->head, err) : status;
}

/* Folds the versions since the level's into one delta; the level moves to the head, by
 * way of a fresh copy where anything failed. */
static dw_status fold(dw_publisher *p, dw_fold_level *level, bool *made, dw_error *err)
{
    dw_tensor *views = dw_alloc_array(p->pieces.cut.n, sizeof *views);
    dw_digest *digests = dw_alloc_array(p->pieces.cut.n, sizeof *digests);
    dw_status status = views && digests ? open_copy(p, level, views, digests, err)
                                        : dw_fail_memory(err, NULL);
    const bool is_damaged = status == DW_CORRUPT || status == DW_NOT_FOUND;
    if (status == DW_OK)
        status = fold_from(p, level, views, digests, err);
    *made = *made || status == DW_OK;
    unmap_copy(level);
    dw_free(views);
    dw_free(digests);
    if (is_damaged) /* this fold is not made; the next one is made from a new copy */
        return reset_level(p, level, err);
    if (status != DW_OK && status != DW_CORRUPT) /* else the baseline is repaired first */
        (void)reset_level(p, level, NULL);
    return status;
}

dw_status dw_folds_make(dw_publisher *p, bool *made, dw_error *err)
{
    dw_status first = DW_OK;
    for (size_t i = 0; i < DW_MAX_FOLDS; i++) {
        dw_fold_level *level = &p->folds[i];
        if (level->span == 0)
            continue;
        dw_status status = DW_OK;
        dw_error *out = first == DW_OK ? err : NULL;
        if (level->at.version == DW_NO_VERSION) {
            status = reset_level(p, level, out);
        } else if (p->head.version - level->at.version >= level->span) {
            status = fold(p, level, made, out);
        }
        first = first == DW_OK ? status : first;
    }
    return first;
}

/* ---- opening and closing ---- */

/* Whether the stream has that very version: a way must not name another. */
static bool is_of_stream(const dw_publisher *p, const dw_position *at)
{
    dw_commit_record c;
    if (dw_stream_read_commit(p->stream, at->version, &c, NULL) != DW_OK)
        return false;
    const dw_position there = dw_position_of(&c);
    dw_commit_record_release(&c);
    return dw_position_same(at, &there);
}

/* Whether the copy in the directory is of a version of this stream that can be folded. */
static bool find_copy(const dw_publisher *p, dw_fold_level *level)
{
    dw_position next;
    dw_record_kind kind;
    struct stat st;
    char *path = weights_path(level);
    bool found =
        path && stat(path, &st) == 0 &&
        dw_replica_state_read(&level->at, &next, &kind, level->dir, NULL) == DW_OK &&
        level->at.version != DW_NO_VERSION && level->at.version <= p->head.version &&
        is_of_stream(p, &level->at);
    dw_free(path);
    if (!found)
        level->at = nowhere;
    return found;
}

static dw_status open_level(dw_publisher *p, dw_fold_level *level, dw_error *err)
{
    level->map.fd = -1;
    level->at = nowhere;
    if (p->options.baseline_dir) {
        char name[48];
        snprintf(name, sizeof name, DW_FOLD_NAME "%u", level->span);
        level->dir = dw_join_path(p->options.baseline_dir, name);
        if (!level->dir)
            return dw_fail_memory(err, NULL);
        if (find_copy(p, level))
            return DW_OK;
    }
    if (p->baseline_lost) /* a copy is made once there is a baseline */
        return DW_OK;
    return reset_level(p, level, err);
}

dw_status dw_folds_open(dw_publisher *p, dw_error *err)
{
    dw_status status = DW_OK;
    if (p->sharded || (!p->options.spool_dir && !p->options.baseline_dir))
        return DW_OK;
    for (size_t i = 0; status == DW_OK && i < DW_MAX_FOLDS; i++) {
        p->folds[i].span = p->options.folds[i];
        if (p->folds[i].span > 0)
            status = open_level(p, &p->folds[i], err);
    }
    return status;
}

void dw_folds_close(dw_publisher *p)
{
    for (size_t i = 0; i < DW_MAX_FOLDS; i++) {
        if (p->folds[i].span > 0)
            unmap_copy(&p->folds[i]);
        dw_blob_release(&p->folds[i].blob);
        dw_free(p->folds[i].dir);
    }
}
