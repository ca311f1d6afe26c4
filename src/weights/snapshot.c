/* The reader of a snapshot: maps, slots, waits. deltawire/control.h has the protocol. */
#include "deltawire/follow.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "deltawire/checkpoint.h"
#include "deltawire/delta.h"
#include "weights/own_dir.h"
#include "weights/target_inside.h"

#define YIELDS 50 /* before it sleeps: most writes are short */

struct dw_snapshot {
    char *dir;
    char *path; /* of the block */
    int fd;
    dw_map map;
    dw_control *control; /* touched only after check_block */
    bool writable;       /* the block is */
    bool has_slot;
    bool is_pinned;
    unsigned slot;
    dw_checkpoint *ckpt;
    uint64_t files; /* as in the block when they were mapped */
};

/* ---- files that shrink ---- */

static dw_status check_block(const dw_snapshot *s, dw_error *err)
{
    return dw_map_check(&s->map, err);
}

/* Whether the weights that were mapped are still there. */
static dw_status check_files(const dw_snapshot *s, dw_error *err)
{
    return s->ckpt ? dw_checkpoint_check(s->ckpt, err) : DW_OK;
}

/* ---- opening ---- */

static dw_status open_block(dw_snapshot *s, dw_error *err)
{
    struct stat st;
    s->fd = open(s->path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    s->writable = s->fd >= 0;
    if (s->fd < 0 && (errno == EACCES || errno == EROFS || errno == EPERM))
        s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? dw_fail(
                         err, DW_NOT_FOUND, s->dir,
                         "no follower keeps weights here: there is no " DW_CONTROL_NAME)
                   : dw_fail_errno(err, s->path, "open");
    if (fstat(s->fd, &st) != 0)
        return dw_fail_errno(err, s->path, "look at");
    if (!S_ISREG(st.st_mode) || st.st_size != DW_CONTROL_BYTES)
        return dw_fail(err, DW_CORRUPT, s->path, "this is no control block");
    dw_status status =
        dw_map_open_fd(&s->map, s->fd, DW_CONTROL_BYTES, s->writable, s->path, err);
    s->control = (dw_control *)(void *)s->map.bytes;
    if (status == DW_OK)
        status = check_block(s, err);
    if (status != DW_OK)
        return status;
    return dw_control_is_sane(s->control)
               ? DW_OK
               : dw_fail(err, DW_CORRUPT, s->path, "this is no control block");
}

static bool has_writer(const dw_snapshot *s)
{
    return dw_control_bytes_locked(s->fd, 0, DW_CONTROL_HEAD_BYTES);
}

static dw_status fail_interrupted(const dw_snapshot *s, dw_error *err)
{
    return dw_fail(err, DW_UNAVAILABLE, s->dir,
                   "the weights were being written when the follower ended: start it "
                   "again, it finishes that first");
}

static dw_status fail_empty(const dw_snapshot *s, dw_error *err)
{
    return dw_fail(err, DW_NOT_FOUND, s->dir, "there is no version of the weights yet");
}

/* While a writer is there, the block is true. Without one, after a power loss, it may be
 * older than the weights; but then there is a patch file. */
static dw_status check_whole(const dw_snapshot *s, dw_error *err)
{
    const dw_control_weights *c = &s->control->weights;
    bool pending = false;
    dw_status status = DW_OK;
    if (!has_writer(s)) {
        status = dw_checkpoint_pending(s->dir, &pending, err);
        if (status == DW_OK)
            pending = pending || __atomic_load_n(&c->sequence, __ATOMIC_SEQ_CST) % 2 == 1;
    }
    if (status == DW_NOT_FOUND ||
        (status == DW_OK && __atomic_load_n(&c->version, __ATOMIC_RELAXED) == UINT64_MAX))
        return fail_empty(s, err);
    return status == DW_OK && pending ? fail_interrupted(s, err) : status;
}

static dw_status take_slot(dw_snapshot *s, dw_error *err)
{
    bool taken = false;
    for (unsigned i = 0; i < DW_CONTROL_SLOTS; i++) {
        dw_status status =
            dw_control_lock_bytes(s->fd, DW_CONTROL_SLOT_OFFSET(i),
                                  sizeof *s->control->slots, &taken, s->path, err);
        if (status != DW_OK)
            return status;
        if (taken) {
            dw_control_drop(s->control, i); /* a killed reader may have left it held */
            s->control->slots[i].process = (uint64_t)getpid();
            s->slot = i;
            s->has_slot = true;
            return DW_OK;
        }
    }
    return dw_fail(err, DW_CONFLICT, s->path, "all %u slots for readers are taken",
                   DW_CONTROL_SLOTS);
}

/* Maps the files, unless they are mapped and still the same. */
static dw_status map_files(dw_snapshot *s, uint64_t files, dw_error *err)
{
    if (s->ckpt && s->files == files)
        return DW_OK;
    if (s->ckpt && s->is_pinned)
        return dw_fail(err, DW_STALE, s->dir,
                       "its files were made again, and the old ones are in use: open "
                       "another snapshot");
    dw_checkpoint *ckpt;
    dw_status status = dw_checkpoint_open(&ckpt, s->dir, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    dw_checkpoint_close(s->ckpt);
    s->ckpt = ckpt;
    s->files = files;
    return DW_OK;
}

dw_status dw_snapshot_open(dw_snapshot **out, const char *dir, dw_error *err)
{
    *out = NULL;
    dw_snapshot *s = dw_alloc_zeroed(1, sizeof *s);
    if (!s)
        return dw_fail_memory(err, dir);
    s->fd = s->map.fd = -1;
    s->dir = dw_copy_string(dir);
    s->path = dw_join_path(dir, DW_CONTROL_NAME);
    dw_status status =
        s->dir && s->path ? dw_own_dir_check(dir, err) : dw_fail_memory(err, dir);
    if (status == DW_OK)
        status = open_block(s, err);
    if (status == DW_OK)
        status = check_whole(s, err);
    if (status == DW_OK && s->writable)
        status = take_slot(s, err);
    if (status ==
        DW_OK) /* faults of the files are reported here, not at the first read */
        status = map_files(
            s, __atomic_load_n(&s->control->weights.files, __ATOMIC_ACQUIRE), err);
    if (status == DW_OK)
        *out = s;
    else
        dw_snapshot_close(s);
    return status;
}

void dw_snapshot_close(dw_snapshot *s)
{
    if (!s)
        return;
    dw_snapshot_release(s);
    dw_checkpoint_close(s->ckpt);
    dw_map_close(&s->map);
    if (s->fd >= 0)
        close(s->fd); /* and with it the slot is free */
    dw_free(s->dir);
    dw_free(s->path);
    dw_free(s);
}

/* ---- reading ---- */

void dw_snapshot_pin(dw_snapshot *s, bool pinned)
{
    s->is_pinned = pinned;
}

uint64_t dw_snapshot_version(const dw_snapshot *s)
{
    if (check_block(s, NULL) != DW_OK)
        return UINT64_MAX;
    return __atomic_load_n(&s->control->weights.version, __ATOMIC_ACQUIRE);
}

static dw_status fail_wait(const dw_snapshot *s, unsigned timeout_ms, dw_error *err)
{
    if (!dw_file_is_own(s->fd, s->path))
        return dw_fail(err, DW_STALE, s->dir,
                       "the directory was replaced or removed: open another snapshot");
    if (dw_snapshot_version(s) == UINT64_MAX)
        return fail_empty(s, err);
    if (!has_writer(s))
        return fail_interrupted(s, err);
    return dw_fail(err, DW_UNAVAILABLE, s->dir,
                   "the weights are still being written after %u ms", timeout_ms);
}

static dw_status wait_for(dw_snapshot *s, bool hold, unsigned timeout_ms,
                          dw_snapshot_view *view, dw_error *err)
{
    const uint64_t end = dw_clock_ms() + timeout_ms;
    dw_control_mark *mark = &view->mark;
    dw_status status = check_block(s, err);
    if (status != DW_OK)
        return status;
    for (unsigned i = 0; !(hold ? dw_control_hold(s->control, s->slot, mark)
                                : dw_control_begin(s->control, mark));
         i++) {
        if (dw_clock_ms() >= end)
            return fail_wait(s, timeout_ms, err);
        if (i < YIELDS)
            sched_yield();
        else
            dw_sleep_ms(1);
        status = check_block(s, err);
        if (status != DW_OK)
            return status;
    }
    status = map_files(s, mark->files, err);
    if (status == DW_OK)
        status = check_files(s, err);
    if (status != DW_OK) {
        dw_snapshot_release(s);
        return status;
    }
    view->version = mark->version;
    view->state = mark->state;
    view->tensors = dw_checkpoint_tensors(s->ckpt, &view->n_tensors);
    return DW_OK;
}

dw_status dw_snapshot_hold(dw_snapshot *s, unsigned timeout_ms, dw_snapshot_view *view,
                           dw_error *err)
{
    if (!s->has_slot)
        return dw_fail(err, DW_UNSUPPORTED, s->path,
                       "it may not be written, so nothing can be held: look twice");
    return wait_for(s, true, timeout_ms, view, err);
}

void dw_snapshot_release(dw_snapshot *s)
{
    if (s->has_slot && check_block(s, NULL) == DW_OK)
        dw_control_drop(s->control, s->slot);
}

dw_status dw_snapshot_look(dw_snapshot *s, unsigned timeout_ms, dw_snapshot_view *view,
                           dw_error *err)
{
    return wait_for(s, false, timeout_ms, view, err);
}

bool dw_snapshot_unchanged(const dw_snapshot *s, const dw_snapshot_view *view)
{
    return check_block(s, NULL) == DW_OK && check_files(s, NULL) == DW_OK &&
           dw_control_end(s->control, &view->mark);
}
