/* Layouts: weights that an engine keeps in another layout than the checkpoint's.
 *
 * An engine fuses tensors (q, k and v into one), splits them among ranks, transposes them
 * or packs them for its kernels. A layout knows the position of each element of the
 * checkpoint in the engine's own tensors, the *targets*. So a patch (follow.h) costs no
 * more than its changes. The layout is learnt: the engine loads tensors in which every
 * element spells its own number (dw_layout_spell), and the layout reads the numbers from
 * the targets (dw_layout_learn). Several passes of a few bits each make this work for
 * every element type.
 *
 *     dw_layout_new       from which tensors, into which targets
 *     dw_layout_spell     the values that the engine loads, pass by pass
 *     dw_layout_learn     reads a target
 *     dw_layout_end       ends the learning: now the layout can be used
 *     dw_layout_compare   compares the targets with a checkpoint
 *     dw_layout_write     writes a checkpoint into the targets
 *     dw_layout_apply     applies a patch to the targets
 *     dw_layout_prepare   computes a patch's stores, which dw_layout_store then does
 *     dw_layout_add_sums  if the engine keeps sums of rows in a target
 *
 * Elements are words of 1, 2, 4 or 8 bytes, as in deltas.
 *
 * Targets may be on devices (device.h). Then whole tensors pass through the host, one
 * target at a time, and a patch is one launch on each device.
 */
#ifndef DW_LAYOUT_LAYOUT_H
#define DW_LAYOUT_LAYOUT_H

#include "deltawire/tensor.h"
#include "deltawire/base.h"

typedef struct dw_layout dw_layout;

/* TENSORS are those of the checkpoint; their data is not used. TARGETS are row-major;
 * their data may be NULL if the CPU cannot reach it. Only the targets' data is borrowed.
 */
dw_status dw_layout_new(dw_layout **out, const dw_tensor *tensors, size_t n_tensors,
                        const dw_tensor *targets, size_t n_targets, dw_error *err);
void dw_layout_free(dw_layout *layout);

/* ---- learning ---- */

/* The number of passes that tensors of this type need. */
unsigned dw_layout_passes(const dw_layout *layout, dw_dtype dtype);

/* Fills OUT, which has the n_bytes of tensor T, with the values of PASS. An element that
 * was not loaded must hold only zero bits or only one bits in every pass. */
void dw_layout_spell(const dw_layout *layout, size_t t, unsigned pass, void *out);

/* Learns from the contents of TARGET after each pass. May be called again for a target
 * that holds the values of other tensors. *N_COVERED takes the number of elements that
 * were loaded. DW_UNSUPPORTED if they are no numbers, or are in no order that a layout
 * can keep: the engine computes with the values or shuffles them. Then nothing is learnt.
 */
dw_status dw_layout_learn(dw_layout *layout, size_t target, const void *const *passes,
                          uint64_t *n_covered, dw_error *err);

/* Forgets tensor T: patches do not store its elements, and report it. */
void dw_layout_forget(dw_layout *layout, size_t t);

/* Ends the learning. After this nothing can be learnt; tensors can still be forgotten. */
dw_status dw_layout_end(dw_layout *layout, dw_error *err);

/* The number of positions in targets that hold elements of tensor T. */
uint64_t dw_layout_held(const dw_layout *layout, size_t t);
/* Whether elements of tensor T are in TARGET. Call it after dw_layout_end. */
bool dw_layout_holds(const dw_layout *layout, size_t t, size_t target);
bool dw_layout_is_forgotten(const dw_layout *layout, size_t t);

/* The number of pieces of the layout, a measure of its memory. */
size_t dw_layout_pieces(const dw_layout *layout);

/* ---- whole tensors ---- */

/* Sets the address of a target that has moved; NULL: the CPU cannot reach it. */
void dw_layout_move(dw_layout *layout, size_t target, void *data);
/* The same for an address of DEVICE, which must outlive the layout. */
void dw_layout_move_to(dw_layout *layout, size_t target, dw_device *device, void *data);

/* Compares the targets with TENSORS, which has each tensor of the layout by name, type
 * and shape. DIFFERENT takes, for each tensor of the layout, how many of its elements
 * differ; 0 for tensors that are forgotten or in no target. */
dw_status dw_layout_compare(const dw_layout *layout, const dw_tensor *tensors,
                            size_t n_tensors, unsigned n_threads, uint64_t *different,
                            dw_error *err);

/* Stores all values of TENSORS in the targets, except those of forgotten tensors. */
dw_status dw_layout_write(const dw_layout *layout, const dw_tensor *tensors,
                          size_t n_tensors, unsigned n_threads, dw_error *err);

/* The same for one target. Only the tensors that it holds are needed, and only its data.
 */
dw_status dw_layout_write_target(const dw_layout *layout, size_t target,
                                 const dw_tensor *tensors, size_t n_tensors,
                                 unsigned n_threads, dw_error *err);

/* ---- sums ---- */

/* A kernel for int8 may keep sums of rows among the elements of a target. Such a target
 * is made of blocks of N_BLOCK bytes: elements, of which element i belongs to row
 * i / N_RUN % N_ROWS, and then an int32 for each row, FACTOR times the sum of its
 * elements. N_ROWS and N_RUN are powers of two. */
typedef struct dw_layout_sums {
    uint64_t n_block;
    uint32_t n_rows, n_run;
    int32_t factor;
} dw_layout_sums;

/* From now on dw_layout_apply moves the sums with the elements. dw_layout_write,
 * dw_layout_compare and dw_layout_list leave them alone. The target is of type I8; its
 * data must be aligned for an int32. */
dw_status dw_layout_add_sums(dw_layout *layout, size_t target, const dw_layout_sums *sums,
                             dw_error *err);

/* ---- patches ---- */

typedef struct dw_layout_report {
    uint64_t version;   /* that the patch leads to */
    dw_digest state;    /* its digest, from the patch; 0: the patch has none */
    dw_digest moved;    /* what the stores add to a model's digest (dw_digest_sum) */
    uint64_t n_changed; /* elements in the patch */
    uint64_t n_stored;  /* stores in this layout: an element can have several positions */
    size_t n_forgotten; /* forgotten tensors with changes: load them again */
    uint64_t reserved[4];
} dw_layout_report;

/* Applies the patch file PATH (docs/FORMAT.md, section 12) to the targets and reads the
 * values back, in one pass. DW_STALE if an element does not have the old value of the
 * patch. DW_CORRUPT if the file is damaged, or an element does not have the new value
 * after the store. Before it returns an error, it restores the old values. FORGOTTEN, one
 * for each tensor of the layout, is set for those in n_forgotten; it may be NULL. */
dw_status dw_layout_apply(const dw_layout *layout, const char *path, unsigned n_threads,
                          dw_layout_report *report, bool *forgotten, dw_error *err);

/* The same in two steps, for engines that pause only for the second one. Prepare reads
 * the patch; for targets on devices it computes all positions and copies the stores
 * there, 8 bytes for each of a 2-byte element. It changes no target. Store then does what
 * dw_layout_apply does, at most once; on a device that is one launch. In between the
 * layout may be used, but no target may move and no tensor be forgotten: DW_INVALID. */
typedef struct dw_layout_ready dw_layout_ready;

dw_status dw_layout_prepare(dw_layout_ready **out, const dw_layout *layout,
                            const char *path, unsigned n_threads, dw_error *err);
dw_status dw_layout_store(dw_layout_ready *ready, unsigned n_threads,
                          dw_layout_report *report, bool *forgotten, dw_error *err);
/* Call it before dw_layout_free. */
void dw_layout_ready_free(dw_layout_ready *ready);

/* The stores as a list, for memory that the CPU cannot reach. */
typedef struct dw_layout_stores {
    uint64_t n;
    unsigned width;   /* bytes of an element */
    int64_t *places;  /* [n] elements of the target */
    void *old_values; /* [n] */
    void *values;     /* [n] */
} dw_layout_stores;

/* LISTS has one list for each target; dw_layout_stores_free frees what they point to. */
dw_status dw_layout_list(const dw_layout *layout, const char *path,
                         dw_layout_stores *lists, dw_layout_report *report,
                         bool *forgotten, dw_error *err);
void dw_layout_stores_free(dw_layout_stores *lists, size_t n_targets);

#endif
