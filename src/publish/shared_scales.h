/* Quantised publish of shards: units of rows (quant/quant.h) of which this process has a
 * part, so that others may have the rest.
 *
 * Before each version, all parts of such a unit are measured, the ranks agree on the
 * maxima (ranks_agree.c), and the scales follow from these. Each rank quantises its own
 * parts with them. A scale is published by the rank that has the first element of its
 * block or row.
 *
 * Owner: the owner of the baseline.
 */
#ifndef DW_PUBLISH_SHARED_SCALES_H
#define DW_PUBLISH_SHARED_SCALES_H

#include "deltawire/publish.h"

/* Elements of one owned slice that are in one unit. */
typedef struct dw_unit_part {
    size_t owned; /* the slice, in pieces.owned */
    uint64_t first;
    uint64_t n;
} dw_unit_part;

typedef struct dw_shared_unit {
    size_t weight;        /* in the table */
    uint64_t first_scale; /* of this unit, in the tensor of scales */
    size_t at;            /* its maxima, in `own` and `agreed` */
    size_t n_scales;
    size_t first_part; /* its parts */
    size_t n_parts;
} dw_shared_unit;

typedef struct dw_shared_scales {
    dw_unit_part *parts; /* ascending */
    size_t n_parts;
    dw_shared_unit *units; /* ascending */
    size_t n_units;
    uint32_t *own;    /* [n] the maxima of the parts, as bits of F32 */
    uint32_t *agreed; /* [n] those of all ranks */
    size_t n;
    uint32_t *given; /* [n] what this rank brought to that agreement */
    bool is_agreed;  /* `agreed` is what `given` led to, on all ranks */
    bool is_needed;  /* ranks must agree before they quantise: the same on all of them */
} dw_shared_scales;

/* Finds the shared units. Once the pieces are cut. */
dw_status dw_shared_open(dw_publisher *p, dw_error *err);
void dw_shared_close(dw_shared_scales *shared);

/* Fills `own`. A tensor that is known keeps what was measured before, unless WITH_KNOWN.
 * Weights that are not finite have maxima of 0x7f800000 or more. */
dw_status dw_shared_measure(dw_publisher *p, bool with_known, dw_error *err);
/* Makes the scales of `agreed`, and uses them from now on. A tensor with another scale
 * than before is not known. DW_NOT_FINITE if there is none, naming a tensor. */
dw_status dw_shared_use(dw_publisher *p, dw_error *err);
/* Measures again. *IS_SAME if the scales that were agreed on last are still right, as far
 * as this rank can see; then they are used. */
dw_status dw_shared_look(dw_publisher *p, bool *is_same, dw_error *err);

#endif
