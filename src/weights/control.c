#define _GNU_SOURCE /* locks of open file descriptions */
#include "weights/control.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "weights/own_dir.h"

_Static_assert(sizeof(dw_control) == DW_CONTROL_BYTES, "a page");
_Static_assert(offsetof(dw_control, weights) == 128, "as documented");
_Static_assert(offsetof(dw_control, slots) == 512, "as documented");

struct dw_control_writer {
    dw_control *block; /* touched only after is_whole */
    dw_map map;
    int fd;
    char *path;
    unsigned wait_ms;
    bool is_written; /* by this process: then the block is `written` */
    dw_control_weights written;
};

bool dw_control_is_sane(const dw_control *block)
{
    return memcmp(block->magic, DW_CONTROL_MAGIC, sizeof block->magic) == 0 &&
           block->one == 1;
}

/* ---- locks ---- */

static struct flock bytes_of(size_t offset, size_t n_bytes)
{
    return (struct flock){.l_type = F_WRLCK,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)offset,
                          .l_len = (off_t)n_bytes};
}

dw_status dw_control_lock_bytes(int fd, size_t offset, size_t n_bytes, bool *taken,
                                const char *path, dw_error *err)
{
    struct flock lock = bytes_of(offset, n_bytes);
    *taken = fcntl(fd, F_OFD_SETLK, &lock) == 0;
    return *taken || errno == EAGAIN || errno == EACCES
               ? DW_OK
               : dw_fail_errno(err, path, "lock");
}

bool dw_control_bytes_locked(int fd, size_t offset, size_t n_bytes)
{
    struct flock lock = bytes_of(offset, n_bytes);
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* ---- opening ---- */

/* Opens the block. *FD is -1 if there is no file, or one that cannot be a block. Such a
 * file may be replaced: no reader takes it for a block. */
static dw_status open_block(int *fd, const char *path, dw_error *err)
{
    struct stat st;
    *fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (*fd < 0)
        return errno == ENOENT || errno == ELOOP || errno == ENXIO
                   ? DW_OK
                   : dw_fail_errno(err, path, "open");
    if (fstat(*fd, &st) != 0) {
        dw_status status = dw_fail_errno(err, path, "look at");
        close(*fd);
        *fd = -1;
        return status;
    }
    if (!S_ISREG(st.st_mode) || st.st_size != DW_CONTROL_BYTES || st.st_nlink != 1) {
        close(*fd);
        *fd = -1;
    }
    return DW_OK;
}

static dw_status map_block(dw_control_writer *w, dw_error *err)
{
    dw_status status =
        dw_map_open_fd(&w->map, w->fd, DW_CONTROL_BYTES, true, w->path, err);
    w->block = (dw_control *)(void *)w->map.bytes;
    return status;
}

/* Whether the block can be touched. If its file shrank, no reader goes by it any more, so
 * there is nothing to write. begin_write and sync report the fault. */
static bool is_whole(const dw_control_writer *w)
{
    return dw_map_check(&w->map, NULL) == DW_OK;
}

static void unmap_block(dw_control_writer *w)
{
    dw_map_close(&w->map);
    if (w->fd >= 0)
        close(w->fd);
    w->block = NULL;
    w->fd = -1;
}

static dw_status new_writer(dw_control_writer **out, const char *dir, unsigned wait_ms,
                            dw_error *err)
{
    *out = dw_alloc_zeroed(1, sizeof **out);
    if (!*out)
        return dw_fail_memory(err, dir);
    (*out)->fd = (*out)->map.fd = -1;
    (*out)->wait_ms = wait_ms;
    (*out)->path = dw_join_path(dir, DW_CONTROL_NAME);
    dw_status status =
        (*out)->path ? dw_own_dir_check(dir, err) : dw_fail_memory(err, dir);
    if (status == DW_OK)
        status = open_block(&(*out)->fd, (*out)->path, err);
    return status == DW_OK && (*out)->fd >= 0 ? map_block(*out, err) : status;
}

dw_status dw_control_writer_open(dw_control_writer **out, const char *dir,
                                 unsigned wait_ms, dw_error *err)
{
    *out = NULL;
    dw_control_writer *w;
    dw_status status = new_writer(&w, dir, wait_ms, err);
    if (status == DW_OK && w->block && is_whole(w) && dw_control_is_sane(w->block))
        *out = w;
    else
        dw_control_writer_close(w);
    return status;
}

static dw_status write_block(const char *path, dw_error *err)
{
    const dw_control block = {
        .magic = DW_CONTROL_MAGIC, .one = 1, .weights.version = UINT64_MAX};
    dw_status status = dw_remove_file(path, err); /* a link, a pipe, whatever it is */
    return status == DW_OK ? dw_write_file(path, &block, sizeof block, err) : status;
}

dw_status dw_control_writer_make(dw_control_writer **out, const char *dir,
                                 unsigned wait_ms, dw_error *err)
{
    *out = NULL;
    dw_control_writer *w;
    dw_status status = new_writer(&w, dir, wait_ms, err);
    /* readers that have the old block mapped must not go by it any more */
    if (status == DW_OK && w->block && is_whole(w) && dw_control_is_sane(w->block))
        dw_control_mark_written(w);
    if (status == DW_OK)
        status = dw_own_dir_make(dir, err);
    if (status == DW_OK)
        status = write_block(w->path, err);
    dw_control_writer_close(w);
    if (status == DW_OK)
        status = dw_control_writer_open(out, dir, wait_ms, err);
    if (status == DW_OK && !*out)
        status =
            dw_fail(err, DW_CONFLICT, dir, "somebody else replaced its " DW_CONTROL_NAME);
    return status;
}

void dw_control_writer_close(dw_control_writer *w)
{
    if (!w)
        return;
    unmap_block(w); /* this releases the lock */
    dw_free(w->path);
    dw_free(w);
}

dw_status dw_control_writer_lock(dw_control_writer *w, dw_error *err)
{
    if (!w)
        return DW_OK;
    bool taken;
    dw_status status =
        dw_control_lock_bytes(w->fd, 0, DW_CONTROL_HEAD_BYTES, &taken, w->path, err);
    if (status == DW_OK && !taken)
        status = dw_fail(err, DW_CONFLICT, w->path,
                         "another process says that it keeps these weights up to date");
    return status;
}

dw_status dw_control_writer_check(const dw_control_writer *w, dw_error *err)
{
    if (!w)
        return DW_OK;
    if (!dw_file_is_own(w->fd, w->path))
        return dw_fail(err, DW_CONFLICT, w->path,
                       "the control block was replaced or removed while its weights "
                       "were kept up to date");
    if (w->is_written && is_whole(w) &&
        (!dw_control_is_sane(w->block) ||
         memcmp(&w->block->weights, &w->written, sizeof w->written) != 0))
        return dw_fail(err, DW_CORRUPT, w->path,
                       "somebody changed the control block, or a bit flipped");
    return DW_OK;
}

dw_control_files dw_control_knows(const dw_control_writer *w, uint64_t files)
{
    if (!w || !is_whole(w) || w->block->self == 0 ||
        w->block->self != dw_file_identity(w->fd, ""))
        return DW_CONTROL_UNKNOWN;
    return files != 0 && w->block->weights.files == files ? DW_CONTROL_SAME
                                                          : DW_CONTROL_OTHER;
}

bool dw_control_is_of(const dw_control_writer *w, const char *stream)
{
    return w && is_whole(w) &&
           strncmp(w->block->stream, stream, sizeof w->block->stream) == 0;
}

/* ---- writing ---- */

void dw_control_mark_written(dw_control_writer *w)
{
    if (!w || !is_whole(w))
        return;
    uint64_t *sequence = &w->block->weights.sequence;
    __atomic_store_n(sequence, __atomic_load_n(sequence, __ATOMIC_RELAXED) | 1,
                     __ATOMIC_SEQ_CST);
    w->written.sequence |= 1;
    dw_control_fence(); /* before any store to the weights, any look at the slots */
}

/* The number of a slot that holds the weights, or DW_CONTROL_SLOTS. A slot that nobody
 * has locked was left by a killed reader: it is cleared. A reader that locks it at this
 * moment cannot hold the weights, because their sequence is odd. */
static unsigned find_holder(const dw_control_writer *w)
{
    unsigned slot = 0;
    for (; slot < DW_CONTROL_SLOTS; slot++) {
        uint64_t *holds = &w->block->slots[slot].holds, held = 1;
        if (__atomic_load_n(holds, __ATOMIC_SEQ_CST) != held)
            continue;
        if (dw_control_bytes_locked(w->fd, DW_CONTROL_SLOT_OFFSET(slot),
                                    sizeof *w->block->slots))
            break;
        __atomic_compare_exchange_n(holds, &held, 0, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
    }
    return slot;
}

static dw_status fail_held(const dw_control_writer *w, unsigned slot, dw_error *err)
{
    char process_text[40] = "";
    const uint64_t process = w->block->slots[slot].process;
    if (process > 0) /* readers write it, if they like */
        snprintf(process_text, sizeof process_text, ", process %" PRIu64 ",", process);
    return dw_fail(
        err, DW_UNAVAILABLE, w->path,
        "a reader%s has held the weights for %u ms, in slot %u. Let it release "
        "them, or end it",
        process_text, w->wait_ms, slot);
}

dw_status dw_control_begin_write(dw_control_writer *w, dw_error *err)
{
    dw_status status = w ? dw_map_check(&w->map, err) : DW_OK;
    if (!w || status != DW_OK)
        return status;
    uint64_t *sequence = &w->block->weights.sequence;
    const uint64_t before = __atomic_load_n(sequence, __ATOMIC_RELAXED);
    const uint64_t end = dw_clock_ms() + w->wait_ms;
    dw_control_mark_written(w);
    for (unsigned slot; (slot = find_holder(w)) < DW_CONTROL_SLOTS;) {
        if (dw_clock_ms() >= end) {
            __atomic_store_n(sequence, before,
                             __ATOMIC_SEQ_CST); /* nothing was written */
            w->written.sequence = before;
            return fail_held(w, slot, err);
        }
        dw_sleep_ms(1);
        status = dw_map_check(&w->map, err);
        if (status != DW_OK)
            return status;
    }
    return dw_map_check(&w->map, err); /* a lost block cannot stop any reader */
}

void dw_control_end_write(dw_control_writer *w, const dw_control_label *label)
{
    if (!w || !is_whole(w))
        return;
    dw_control_weights *c = &w->block->weights;
    const size_t n = strnlen(label->stream, sizeof w->block->stream - 1);
    if (n > 0) { /* weights that are no version are still this stream's */
        memset(w->block->stream, 0, sizeof w->block->stream);
        memcpy(w->block->stream, label->stream, n);
    }
    w->block->self = dw_file_identity(w->fd, "");
    __atomic_store_n(&c->version, label->version, __ATOMIC_RELAXED);
    __atomic_store_n(&c->state, label->state, __ATOMIC_RELAXED);
    __atomic_store_n(&c->files, label->files, __ATOMIC_RELAXED);
    __atomic_store_n(&c->sequence, (c->sequence | 1) + 1, __ATOMIC_SEQ_CST);
    w->written = *c;
    w->is_written = true;
}

void dw_control_set(dw_control_writer *w, const dw_control_label *label)
{
    if (!w || !is_whole(w))
        return;
    const dw_control_weights *c = &w->block->weights;
    if (c->sequence % 2 == 0 && c->version == label->version &&
        c->state == label->state && c->files == label->files &&
        (!*label->stream || dw_control_is_of(w, label->stream)) &&
        w->block->self == dw_file_identity(w->fd, "")) {
        w->written = *c;
        w->is_written = true;
        return;
    }
    dw_control_mark_written(w);
    dw_control_end_write(w, label);
}

dw_status dw_control_sync(dw_control_writer *w, dw_error *err)
{
    return w ? dw_map_sync(&w->map, w->path, err) : DW_OK;
}

dw_status dw_control_check(const dw_control_writer *w, dw_error *err)
{
    return w ? dw_map_check(&w->map, err) : DW_OK;
}
