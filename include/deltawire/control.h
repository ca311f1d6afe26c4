/* The control block of a snapshot: the version of the weights in a directory, and whether
 * they are being written. Stable.
 *
 * For readers that map the weights themselves. This header needs nothing of the library,
 * and may be copied into a C or C++ program.
 *
 * `deltawire follow --into DIR` keeps the block in DIR/.deltawire-control, a file of
 * DW_CONTROL_BYTES that is mapped shared. All numbers are little-endian and 64 bits wide.
 *
 * There is one copy of the weights, in DIR itself, or there are two, in DIR/copy-0 and
 * DIR/copy-1; then `current` is the one to read. Each copy has a sequence number that is
 * odd while it is being written. There are two ways to read:
 *
 *     look twice    begin; read; end. If end returns false, the data may be a mix of two
 *                   versions: discard it and begin again. Needs read access to the block.
 *     hold          hold; read; drop. While a copy is held nobody writes it: with one
 *                   copy the writer waits for the reader, with two it writes the other
 *                   one. Needs write access to the block, and a slot.
 *
 * A slot belongs to the process that has locked its bytes (with a lock of the open file
 * description, which ends with the process). The writer runs while the bytes of the
 * block's head are locked in the same way. dw_snapshot_open (snapshot.h) maps and locks.
 *
 * After a power loss the block may be older than the weights. Then there is a patch file
 * beside them until the writer is back. So a reader that finds no writer must look for a
 * patch file: see docs/FORMAT.md, section 13.
 */
#ifndef DELTAWIRE_CONTROL_H
#define DELTAWIRE_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DW_CONTROL_NAME  ".deltawire-control"
#define DW_CONTROL_MAGIC "DWCTRL1" /* 8 bytes with its NUL */
#define DW_CONTROL_BYTES 4096
#define DW_CONTROL_SLOTS 56

typedef struct dw_control_copy {
    uint64_t sequence; /* odd: being written */
    uint64_t version;  /* UINT64_MAX: none yet */
    uint64_t state;    /* the model's digest */
    uint64_t files;    /* changes if the files were replaced: map them again */
} dw_control_copy;

typedef struct dw_control_slot {
    uint64_t holds;   /* 0: nothing; else the number of the copy plus 1 */
    uint64_t process; /* its process id, for messages */
    uint64_t reserved[6];
} dw_control_slot;

typedef struct dw_control {
    char magic[8];
    uint64_t n_copies; /* 1 or 2 */
    uint64_t current;  /* 0 or 1: the copy to read */
    uint64_t reserved[5];
    char stream[64]; /* the stream's id, ended by a NUL */
    dw_control_copy copies[2];
    uint64_t reserved2[40];
    dw_control_slot slots[DW_CONTROL_SLOTS];
} dw_control; /* head 128 bytes, copies at 128, slots at 512 */

/* The copy and the version that a reader reads. */
typedef struct dw_control_mark {
    uint64_t copy;
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

/* Returns true if the copy in MARK is complete now. Returns false if it is being written
 * or there is no version yet: try again later. With two copies the current one is never
 * being written, so it is false only before the first version. */
static inline bool dw_control_begin(const dw_control *control, dw_control_mark *mark)
{
    /* with two the writer may switch in between: then the other one is complete */
    for (unsigned i = 0; i < (control->n_copies == 2 ? 1000 : 1); i++) {
        mark->copy = __atomic_load_n(&control->current, __ATOMIC_SEQ_CST) & 1;
        const dw_control_copy *copy = &control->copies[mark->copy];
        mark->sequence = __atomic_load_n(&copy->sequence, __ATOMIC_SEQ_CST);
        mark->version = __atomic_load_n(&copy->version, __ATOMIC_RELAXED);
        mark->state = __atomic_load_n(&copy->state, __ATOMIC_RELAXED);
        mark->files = __atomic_load_n(&copy->files, __ATOMIC_RELAXED);
        dw_control_fence();
        if ((mark->sequence & 1) == 0 &&
            __atomic_load_n(&copy->sequence, __ATOMIC_RELAXED) == mark->sequence)
            return mark->version != UINT64_MAX;
    }
    return false;
}

/* Returns true if all data that was read since begin is of MARK's version. */
static inline bool dw_control_end(const dw_control *control, const dw_control_mark *mark)
{
    dw_control_fence();
    return __atomic_load_n(&control->copies[mark->copy].sequence, __ATOMIC_RELAXED) ==
           mark->sequence;
}

/* Ends the hold of a slot. */
static inline void dw_control_drop(dw_control *control, unsigned slot)
{
    __atomic_store_n(&control->slots[slot].holds, 0, __ATOMIC_SEQ_CST);
}

/* Returns true if the copy in MARK is complete; it then stays as it is until
 * dw_control_drop. The caller has locked the bytes of SLOT. The writer makes the sequence
 * odd and then reads the slots; this takes the slot and then reads the sequence: one of
 * the two sees the other. */
static inline bool dw_control_hold(dw_control *control, unsigned slot,
                                   dw_control_mark *mark)
{
    bool whole = true;
    for (unsigned i = 0; whole && i < 1000; i++) {
        uint64_t copy = __atomic_load_n(&control->current, __ATOMIC_SEQ_CST) & 1;
        __atomic_store_n(&control->slots[slot].holds, copy + 1, __ATOMIC_SEQ_CST);
        dw_control_fence();
        whole = dw_control_begin(control, mark);
        if (whole && mark->copy == copy)
            return true;
    }
    dw_control_drop(control, slot);
    return false;
}

#ifdef __cplusplus
}
#endif

#endif
