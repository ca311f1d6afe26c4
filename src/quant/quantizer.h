/* The quantiser: a source of weights (tensor/weight_source.h) in front of a publisher.
 *
 *     quantizer.c         the table, the shards, reading pieces
 *     quantizer_share.c   scales that shards of several ranks share
 *
 * The stream's table is that of a plan (quant.h): a quantised tensor becomes two, the
 * weight and its scales. The scales of a version are kept: the name of a scale sorts
 * after that of its weight, so they are known when their piece is read.
 *
 * If a shard has only a part of a unit of rows, others may have the rest. At the begin of
 * each version all parts of such units are measured, the ranks agree on the maxima, and
 * the scales follow from these. A scale is published by the rank that has the first
 * element of its block or row.
 *
 * One thread at a time uses a quantiser.
 */
#ifndef DW_QUANT_QUANTIZER_H
#define DW_QUANT_QUANTIZER_H

#include "base/map.h"
#include "deltawire/publish.h"
#include "quant/quant.h"
#include "tensor/weight_source.h"

/* Whole units of rows, a part of one, or elements that are copied: for one thread. */
typedef struct dw_quant_task {
    size_t tensor;
    bool is_part;   /* its scales are known */
    uint64_t first; /* elements */
    uint64_t n;
    const uint8_t *from; /* the caller's */
    uint8_t *into;
} dw_quant_task;

/* Elements of one shard that are in one unit. */
typedef struct dw_unit_part {
    uint64_t first;
    uint64_t n;
    const uint8_t *from;
} dw_unit_part;

typedef struct dw_shared_unit {
    size_t weight;      /* in the table */
    size_t first_scale; /* of this unit, among those of the model */
    size_t n_scales;
    size_t own; /* its maxima in `own` ... */
    size_t at;  /* ... and in `agreed` */
    size_t first_part;
    size_t n_parts;
} dw_shared_unit;

typedef struct dw_quantizer {
    dw_quant_plan *plan; /* its entries are the table's */
    dw_tensor *tensors;  /* [plan->n_entries] the table, without data */
    dw_grain *grains;    /* [plan->n_entries] */
    dw_shard *shards;    /* of the table, ascending, with the caller's data; scales have
                            none */
    size_t n_shards;
    float **scales; /* for each entry; a WEIGHT and its SCALE have the same array */
    float *scale_room;
    size_t n_scales;
    unsigned n_workers;
    dw_loan *loans; /* [n_workers] */
    dw_quant_task *tasks;
    size_t n_tasks;
    size_t n_task_room;

    dw_unit_part *parts;   /* ascending */
    dw_shared_unit *units; /* ascending */
    size_t n_parts, n_units;
    uint32_t *own; /* [n_own] the maxima of the units, as bits of F32 */
    size_t n_own;
    uint32_t *agreed; /* [n_agreed] those of all ranks, and room for their turn */
    size_t n_agreed;
    uint32_t n_ranks;
    dw_agree_fn agree;
    void *agree_context;
} dw_quantizer;

/* Plans the quantised model of the caller's tensors, or of the shards in OPTIONS.
 * DW_INVALID if shards share blocks or rows with other ranks, and OPTIONS has no `agree`.
 * Close OUT in any case. */
dw_status dw_quantizer_open(dw_quantizer *out, const dw_tensor *tensors, size_t n_tensors,
                            const dw_publish_options *options, dw_error *err);
void dw_quantizer_close(dw_quantizer *q);

/* DW_NOT_FINITE, with tensor and element, if weights have no quantised value. Reads all
 * that are quantised. */
dw_status dw_quantizer_check(dw_quantizer *q, dw_error *err);

dw_status dw_quantizer_read(void *quantizer, const dw_weight_piece *pieces, size_t n,
                            dw_error *err);

/* ---- quantizer_share.c ---- */

/* Finds the units of which shards have only parts. Once the shards are known. */
dw_status dw_quantizer_find_units(dw_quantizer *q, dw_error *err);
/* Finds out which scales ranks share. All ranks call it, once. *IS_NEEDED if there are
 * any: then dw_quantizer_begin comes before each version. */
dw_status dw_quantizer_meet(dw_quantizer *q, bool has_failed, bool *is_needed,
                            dw_error *err);
dw_status dw_quantizer_begin(void *quantizer, const dw_weight_turn *turn, dw_error *err);

#endif
