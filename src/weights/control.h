/* The writer's side of a control block (deltawire/control.h, docs/FORMAT.md 13).
 *
 *     open, make     the block of a directory, whose lock the caller has
 *     mark           odd, if a write was interrupted
 *     lock           shows readers that the writer is there
 *     begin_write    odd; waits until no reader holds the weights
 *     end_write      the version; even
 *
 * Readers trust the block while the writer is there, and without a writer if there is no
 * patch file. So weights with one are marked before the lock is taken, and the block is
 * synced before a patch file is removed. One thread at a time uses it.
 */
#ifndef DW_WEIGHTS_CONTROL_H
#define DW_WEIGHTS_CONTROL_H

#include "deltawire/control.h"
#include "deltawire/base.h"

typedef struct dw_control_writer dw_control_writer;

/* The version of the weights. */
typedef struct dw_control_label {
    const char *stream;
    uint64_t version; /* UINT64_MAX: none */
    uint64_t state;
    uint64_t files;
} dw_control_label;

/* Maps the block in DIR. *OUT is NULL if there is none. WAIT_MS: how long begin_write
 * waits for readers. */
dw_status dw_control_writer_open(dw_control_writer **out, const char *dir,
                                 unsigned wait_ms, dw_error *err);

/* Makes one, of no version, in place of whatever is there. */
dw_status dw_control_writer_make(dw_control_writer **out, const char *dir,
                                 unsigned wait_ms, dw_error *err);

/* Releases the lock; the block stays. Accepts NULL, as do all below. */
void dw_control_writer_close(dw_control_writer *writer);

dw_status dw_control_writer_lock(dw_control_writer *writer, dw_error *err);

/* DW_CONFLICT if the block is not the file of that name any more, DW_CORRUPT if somebody
 * else wrote to it. */
dw_status dw_control_writer_check(const dw_control_writer *writer, dw_error *err);

/* Whether the block was written for the files of that identity (dw_checkpoint_identity).
 * A block that came with a copy of the directory does not know. */
typedef enum dw_control_files {
    DW_CONTROL_UNKNOWN,
    DW_CONTROL_SAME,
    DW_CONTROL_OTHER,
} dw_control_files;

dw_control_files dw_control_knows(const dw_control_writer *writer, uint64_t files);

/* Whether it was written for STREAM last. */
bool dw_control_is_of(const dw_control_writer *writer, const char *stream);

/* Stops all readers: the weights are being written, or are not those that the block
 * describes. */
void dw_control_mark_written(dw_control_writer *writer);

/* DW_UNAVAILABLE if a reader still holds the weights after the wait: then the block is as
 * before. */
dw_status dw_control_begin_write(dw_control_writer *writer, dw_error *err);
void dw_control_end_write(dw_control_writer *writer, const dw_control_label *label);

/* Sets the label of weights that are not being written. Does nothing if it is right
 * already. */
void dw_control_set(dw_control_writer *writer, const dw_control_label *label);

/* Makes the block durable. */
dw_status dw_control_sync(dw_control_writer *writer, dw_error *err);

/* DW_IO if the file of the block shrank. */
dw_status dw_control_check(const dw_control_writer *writer, dw_error *err);

/* ---- for both sides ---- */

/* Whether BYTES may be a block. */
bool dw_control_is_sane(const dw_control *block);

/* Locks bytes of FD. *TAKEN is false if somebody else has the lock. */
dw_status dw_control_lock_bytes(int fd, size_t offset, size_t n_bytes, bool *taken,
                                const char *path, dw_error *err);

/* Whether somebody has locked them through another descriptor. */
bool dw_control_bytes_locked(int fd, size_t offset, size_t n_bytes);

#define DW_CONTROL_HEAD_BYTES        offsetof(dw_control, weights)
#define DW_CONTROL_SLOT_OFFSET(slot) offsetof(dw_control, slots[slot])

#endif
