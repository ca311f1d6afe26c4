/* Layouts: weights that lie in memory otherwise than in their checkpoint.
 *
 * An engine fuses tensors (q, k and v into one), cuts them among ranks, turns them or
 * packs them for its kernels. A layout knows for each element of the checkpoint where it
 * lies in the engine's own tensors, the *targets*, so that a patch (follow.h) is stored
 * at the price of its changes. It is learnt by looking: the engine loads tensors in which
 * every element spells its own number (dw_layout_spell), and where the numbers come to
 * lie is read off (dw_layout_learn). Any number of passes of a few bits each will do, so
 * it works for every element type.
 *
 *     dw_layout_new       of which tensors, into which targets
 *     dw_layout_spell     what the engine is to load, pass by pass
 *     dw_layout_learn     what came to lie in a target
 *     dw_layout_end       all is learnt: from here on it can be used
 *     dw_layout_compare   targets with a checkpoint
 *     dw_layout_write     a checkpoint into the targets
 *     dw_layout_apply     a patch into the targets
 *
 * Elements are what deltas take for such: words of 1, 2, 4 or 8 bytes. A handle belongs
 * to one thread at a time.
 */
#ifndef DELTAWIRE_LAYOUT_H
#define DELTAWIRE_LAYOUT_H

#include "deltawire/digest.h"
#include "deltawire/error.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_layout dw_layout;

/* TENSORS are those of the checkpoint; their data is not looked at. TARGETS are in
 * row-major order of their memory; data may be NULL where it is not the CPU's. Nothing is
 * borrowed but the targets' data. */
DW_API dw_status dw_layout_new(dw_layout **out, const dw_tensor *tensors,
                               size_t n_tensors, const dw_tensor *targets,
                               size_t n_targets, dw_error *err);
DW_API void dw_layout_free(dw_layout *layout);

/* ---- learning ---- */

/* How many passes it takes until tensors of this type have spelled their numbers. */
DW_API unsigned dw_layout_passes(const dw_layout *layout, dw_dtype dtype);

/* Fills OUT, n_bytes of tensor T, with what its elements spell in PASS. An element that
 * was not loaded at all must hold zeros, or ones, in every pass. */
DW_API void dw_layout_spell(const dw_layout *layout, size_t t, unsigned pass, void *out);

/* Reads off what lay in TARGET after each pass. May be called again for a target with
 * what other tensors left there. *N_COVERED takes the elements that were loaded.
 * DW_UNSUPPORTED where they are no numbers, or in no order that can be kept: the engine
 * computes with what it loads, or shuffles it. Nothing is learnt then. */
DW_API dw_status dw_layout_learn(dw_layout *layout, size_t target,
                                 const void *const *passes, uint64_t *n_covered,
                                 dw_error *err);

/* Takes out what was learnt of tensor T: patches leave it alone, and say so. */
DW_API void dw_layout_forget(dw_layout *layout, size_t t);

/* Brings it into the form that is used. Nothing can be learnt after that; tensors can
 * still be forgotten. */
DW_API dw_status dw_layout_end(dw_layout *layout, dw_error *err);

/* Elements of tensor T that lie in targets, in each place they do. */
DW_API uint64_t dw_layout_held(const dw_layout *layout, size_t t);
DW_API bool dw_layout_is_forgotten(const dw_layout *layout, size_t t);

/* Pieces it is kept in: what it costs in memory. */
DW_API size_t dw_layout_pieces(const dw_layout *layout);

/* ---- whole tensors ---- */

/* The target's memory is elsewhere now; NULL: out of the CPU's reach. */
DW_API void dw_layout_move(dw_layout *layout, size_t target, void *data);

/* For each tensor of the layout, TENSORS has one of that name, type and shape.
 * DIFFERENT, one for each tensor of the layout, takes how many of its elements are others
 * in the targets; tensors that are forgotten or in no target have none. */
DW_API dw_status dw_layout_compare(const dw_layout *layout, const dw_tensor *tensors,
                                   size_t n_tensors, unsigned n_threads,
                                   uint64_t *different, dw_error *err);

/* Stores what TENSORS hold, all that is not forgotten. */
DW_API dw_status dw_layout_write(const dw_layout *layout, const dw_tensor *tensors,
                                 size_t n_tensors, unsigned n_threads, dw_error *err);

/* ---- patches ---- */

typedef struct dw_layout_report {
    uint64_t version;   /* that the patch leads to */
    dw_digest state;    /* the digest of it, as the patch says; 0: it does not */
    dw_digest moved;    /* what the stores add to a model's digest */
    uint64_t n_changed; /* elements in the patch */
    uint64_t n_stored; /* of them, in this layout: an element may lie in several places */
    size_t n_forgotten; /* tensors with changes that are forgotten: load them anew */
} dw_layout_report;

/* The sum of two digests: STATE + MOVED is the state after a patch. */
DW_API dw_digest dw_digest_plus(dw_digest a, dw_digest b);

/* Does the stores of the patch file PATH (docs/FORMAT.md, section 12) in the targets and
 * reads them back, in one pass. DW_STALE where an element does not hold what the patch
 * replaces, DW_CORRUPT where the file was altered or an element does not hold what was
 * stored: stores that were done by then are taken back before it returns. FORGOTTEN, one
 * for each tensor of the layout, may be NULL; true for those among n_forgotten. */
DW_API dw_status dw_layout_apply(const dw_layout *layout, const char *path,
                                 unsigned n_threads, dw_layout_report *report,
                                 bool *forgotten, dw_error *err);

/* The stores as a list, for memory that is not the CPU's. */
typedef struct dw_layout_stores {
    uint64_t n;
    unsigned width;   /* bytes of an element */
    int64_t *places;  /* [n] elements of the target */
    void *old_values; /* [n] */
    void *values;     /* [n] */
} dw_layout_stores;

/* LISTS has one for each target; dw_layout_stores_free frees what they point to. */
DW_API dw_status dw_layout_list(const dw_layout *layout, const char *path,
                                dw_layout_stores *lists, dw_layout_report *report,
                                bool *forgotten, dw_error *err);
DW_API void dw_layout_stores_free(dw_layout_stores *lists, size_t n_targets);

#ifdef __cplusplus
}
#endif

#endif
