/* The control block of a snapshot: the version of the weights in a directory, and whether
 * they are being written.
 *
 * For readers that map the weights themselves. This header needs nothing of the library,
 * and may be copied into a C or C++ program.
 *
 * `deltawire follow --into DIR` keeps the block in DIR/.deltawire/control, a file of
 * DW_CONTROL_BYTES that is mapped shared. All numbers are little-endian and 64 bits wide.
 *
 * The weights have a sequence number that is odd while they are being written. There are
 * two ways to read:
 *
 *     look twice    begin; read; end. If end returns false, the data may be a mix of two
 *                   versions: discard it and begin again. Needs read access to the block.
 *     hold          hold; read; drop. While the weights are held nobody writes them: the
 *                   writer waits for the reader. Needs write access to the block, and a
 *                   slot.
 *
 * A slot belongs to the process that has locked its bytes (with a lock of the open file
 * description, which ends with the process). The writer runs while the bytes of the
 * block's head are locked in the same way. dw_snapshot_open (follow.h) maps and locks.
 *
 * After a power loss the block may be older than the weights. Then there is a patch file
 * in DIR/.deltawire until the writer is back. So a reader that finds no writer must look
 * for a patch file: see docs/FORMAT.md, section 13.
 */
#ifndef DELTAWIRE_CONTROL_H
#define DELTAWIRE_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DW_CONTROL_NAME  ".deltawire/control"
#define DW_CONTROL_MAGIC "DWCTRL1" /* 8 bytes with its NUL */
#define DW_CONTROL_BYTES 4096
#define DW_CONTROL_SLOTS 56

typedef struct dw_control_weights {
    uint64_t sequence; /* odd: being written */
    uint64_t version;  /* UINT64_MAX: none yet */
    uint64_t state;    /* the model's digest */
    uint64_t files;    /* changes if the files were replaced: map them again */
} dw_control_weights;

typedef struct dw_control_slot {
    uint64_t holds;   /* 1: its reader holds the weights; else 0 */
    uint64_t process; /* its process id, for messages */
    uint64_t reserved[6];
} dw_control_slot;

typedef struct dw_control {
    char magic[8];
    uint64_t one;  /* the format: always 1 */
    uint64_t self; /* for the writer: differs in a copy of this file; 0: not known */
    uint64_t reserved[5];
    char stream[64]; /* the stream's id, ended by a NUL */
    dw_control_weights weights;
    uint64_t reserved2[44];
    dw_control_slot slots[DW_CONTROL_SLOTS];
} dw_control; /* head 128 bytes, weights at 128, slots at 512 */

/* The version that a reader reads. */
typedef struct dw_control_mark {
    uint64_t sequence;
    uint64_t version;
    uint64_t state;
    uint64_t files;
} dw_control_mark;

static inline void dw_control_fence(void)
{
#if defined(__SANITIZE_THREAD__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#if defined(__SANITIZE_THREAD__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
}

/* Returns true if all data that was read since begin is of MARK's version. */
static inline bool dw_control_end(const dw_control *control, const dw_control_mark *mark)
{
    dw_control_fence();
    return __atomic_load_n(&control->weights.sequence, __ATOMIC_RELAXED) ==
           mark->sequence;
}

/* Returns true if the weights are complete now, with their version in MARK. Returns false
 * if they are being written or there is no version yet: try again later. */
static inline bool dw_control_begin(const dw_control *control, dw_control_mark *mark)
{
    const dw_control_weights *weights = &control->weights;
    mark->sequence = __atomic_load_n(&weights->sequence, __ATOMIC_SEQ_CST);
    mark->version = __atomic_load_n(&weights->version, __ATOMIC_RELAXED);
    mark->state = __atomic_load_n(&weights->state, __ATOMIC_RELAXED);
    mark->files = __atomic_load_n(&weights->files, __ATOMIC_RELAXED);
    return (mark->sequence & 1) == 0 && dw_control_end(control, mark) &&
           mark->version != UINT64_MAX;
}

/* Ends the hold of a slot. */
static inline void dw_control_drop(dw_control *control, unsigned slot)
{
    __atomic_store_n(&control->slots[slot].holds, 0, __ATOMIC_SEQ_CST);
}

/* Returns true if the weights are complete; they then stay as they are until
 * dw_control_drop. The caller has locked the bytes of SLOT. The writer makes the sequence
 * odd and then reads the slots; this takes the slot and then reads the sequence: one of
 * the two sees the other. */
static inline bool dw_control_hold(dw_control *control, unsigned slot,
                                   dw_control_mark *mark)
{
    __atomic_store_n(&control->slots[slot].holds, 1, __ATOMIC_SEQ_CST);
    dw_control_fence();
    if (dw_control_begin(control, mark))
        return true;
    dw_control_drop(control, slot);
    return false;
}

#ifdef __cplusplus
}
#endif

#endif
