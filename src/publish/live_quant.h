/* Quantised publish: turns the caller's weights into those that the stream holds.
 *
 * The stream's table is that of a plan (quant/quant.h). A quantised tensor is
 * published as two: the weight and its scales. Both are made together, a group of pieces
 * at a time, in memory for one group. The scales of a version are kept: the name of a
 * scale sorts after that of its weight, so they are known when their piece is read.
 *
 * Owner: the owner of the baseline, as for all of the live weights.
 */
#ifndef DW_PUBLISH_LIVE_QUANT_H
#define DW_PUBLISH_LIVE_QUANT_H

#include "base/map.h"
#include "deltawire/publish.h"
#include "publish/pieces.h"
#include "quant/quant.h"

/* Whole units of rows, or a part of one, which one thread quantises. */
typedef struct dw_quant_task {
    size_t tensor;
    bool is_part;   /* its scales are known */
    uint64_t first; /* elements */
    uint64_t n;
    const void *from; /* the caller's */
    uint8_t *into;
} dw_quant_task;

typedef struct dw_live_quant {
    dw_quant_plan *plan; /* NULL: nothing is quantised. Its entries are the table's */
    dw_grain *grains;    /* for each entry */
    float **scales;      /* for each entry; a WEIGHT and its SCALE have the same array */
    float *scale_room;
    uint8_t *scratch; /* the pieces of one group */
    unsigned n_workers;
    dw_loan *loans; /* [n_workers] */
    dw_quant_task *tasks;
    size_t n_tasks;
    size_t n_task_room;
} dw_live_quant;

/* Makes the plan for the caller's tensors, if OPTIONS has one. Close OUT in any case. */
dw_status dw_live_quant_plan(dw_live_quant *out, const dw_tensor *tensors,
                             size_t n_tensors, const dw_publish_options *options,
                             dw_error *err);
/* DW_NOT_FINITE, with tensor and element, if TENSORS, for which the plan was made, have
 * weights without a quantised value. Reads all that are quantised. */
dw_status dw_live_quant_check(dw_live_quant *quant, const dw_tensor *tensors,
                              dw_error *err);
/* Makes room for the largest group. Once the pieces are cut. */
dw_status dw_live_quant_open(dw_live_quant *quant, const dw_pieces *pieces,
                             dw_error *err);
void dw_live_quant_close(dw_live_quant *quant);

/* The scales that are published with SLICE, a part of a quantised weight: those of the
 * blocks or rows that begin in it. There may be none. */
dw_slice dw_live_quant_scales(const dw_live_quant *quant, const dw_slice *slice);

/* Where the whole units in SLICE begin and end. Before HEAD and from TAIL on it has parts
 * of units; if it is inside of one unit, HEAD is its end, and so is TAIL. */
typedef struct dw_unit_ends {
    uint64_t head;
    uint64_t tail;
} dw_unit_ends;
void dw_live_quant_ends(dw_unit_ends *out, const dw_live_quant *quant,
                        const dw_slice *slice);

/* Whether tensor T of the table is made here, and not read as it is. */
bool dw_live_quant_makes(const dw_live_quant *quant, size_t t);

/* How a stream's record describes it. */
dw_quantized dw_live_quant_describe(const dw_quant_options *options);

/* Making slices: first all are added, those of a weight before those of its scale; then
 * they are made, on several threads. FROM is the caller's data of the slice, NULL for a
 * scale. INTO takes it as it is published. */
dw_status dw_live_quant_add(dw_live_quant *quant, const dw_slice *slice, const void *from,
                            void *into, dw_error *err);
dw_status dw_live_quant_make(dw_live_quant *quant, dw_error *err);

#endif
