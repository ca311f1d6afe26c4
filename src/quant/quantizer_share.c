/* Scales of units of rows that a shard has only in part. Ranks that have the rest agree
 * on the maxima by the caller's collective function. Beside the maxima it carries how
 * each rank fares, so that no rank waits for one that has given up. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "quant/quantizer.h"

#define NOT_FINITE 0x7f800000u
#define TURN_BITS  0x3fffffffu

/* What follows the maxima. */
enum { FAILED, TURN, TURN_LEFT, N_CONTROL };

/* ---- finding the units ---- */

typedef struct part_room {
    size_t parts, units;
} part_room;

/* Elements [FIRST, END) of SHARD are a part of one unit. */
static dw_status add_part(dw_quantizer *q, part_room *room, const dw_shard *shard,
                          uint64_t first, uint64_t end, dw_error *err)
{
    const size_t t = shard->tensor;
    const dw_quant_entry *e = &q->plan->entries[t];
    if (!dw_grow_array((void **)&q->parts, &room->parts, q->n_parts, sizeof *q->parts) ||
        !dw_grow_array((void **)&q->units, &room->units, q->n_units, sizeof *q->units))
        return dw_fail_memory(err, NULL);
    const uint64_t unit_end = dw_quant_unit_end(q->plan, t, first / e->n_columns);
    const size_t n_scales = (size_t)dw_quant_unit_scales(q->plan, t);
    const size_t first_scale = (size_t)(q->scales[t] - q->scale_room) +
                               (size_t)dw_quant_scales_before(q->plan, t, unit_end) -
                               n_scales;
    if (q->n_units == 0 || q->units[q->n_units - 1].first_scale != first_scale) {
        q->units[q->n_units++] = (dw_shared_unit){.weight = t,
                                                  .first_scale = first_scale,
                                                  .n_scales = n_scales,
                                                  .own = q->n_own,
                                                  .at = q->n_own,
                                                  .first_part = q->n_parts};
        q->n_own += n_scales;
    }
    q->units[q->n_units - 1].n_parts++;
    const unsigned width = dw_dtype_bits(e->source_dtype) / 8;
    q->parts[q->n_parts++] =
        (dw_unit_part){first, end - first,
                       (const uint8_t *)shard->data + (first - shard->first) * width};
    return DW_OK;
}

dw_status dw_quantizer_find_units(dw_quantizer *q, dw_error *err)
{
    dw_status status = DW_OK;
    part_room room = {0};
    for (size_t k = 0; status == DW_OK && k < q->n_shards; k++) {
        const dw_shard *s = &q->shards[k];
        const dw_grain *grain = &q->grains[s->tensor];
        if (grain->unit == 0)
            continue;
        const uint64_t end = s->first + s->n_elems;
        const uint64_t tail = dw_grain_edge(grain, end, false);
        uint64_t head = s->first;
        if (dw_grain_edge(grain, head, false) != head)
            head = dw_grain_edge(grain, head, true);
        if (head > s->first)
            status = add_part(q, &room, s, s->first, head < end ? head : end, err);
        if (status == DW_OK && tail >= head && tail < end)
            status = add_part(q, &room, s, tail, end, err);
    }
    if (status == DW_OK && q->n_ranks > 1 && !q->agree && q->n_units > 0)
        status = dw_fail_tensor(
            err, DW_INVALID, NULL, q->tensors[q->units[0].weight].name,
            "ranks share a block or row of it, and must agree on its scale: set `agree`, "
            "or split it between rows, and for fp8-block between blocks of 128 rows");
    q->n_agreed = q->n_own;
    q->own = dw_alloc_zeroed(q->n_own + 1, sizeof *q->own);
    if (status == DW_OK && !q->own)
        status = dw_fail_memory(err, NULL);
    return status;
}

/* ---- agreeing ---- */

/* VALUES, N of them and room for the control, become the maxima over all ranks. *AGAIN if
 * another rank was at an earlier turn, and gave it up: it comes again. */
static dw_status agree(const dw_quantizer *q, uint32_t *values, size_t n, uint64_t turn,
                       bool has_failed, bool *again, dw_error *err)
{
    uint32_t *control = values + n;
    const uint32_t number = (uint32_t)(turn & TURN_BITS);
    *again = false;
    control[FAILED] = has_failed;
    control[TURN] = has_failed ? 0 : number;
    control[TURN_LEFT] = has_failed ? 0 : TURN_BITS - number;
    dw_error cause = {0};
    dw_status status = q->agree(q->agree_context, values, n + N_CONTROL, &cause);
    if (status != DW_OK)
        return dw_fail(err, status, NULL,
                       "ranks could not agree on the scales that they share: %s. If a "
                       "rank has ended, start the job again",
                       cause.text[0] ? cause.text : dw_status_name(status));
    if (control[TURN] > number)
        return dw_fail(err, DW_UNAVAILABLE, NULL,
                       "another rank is at a later step. The version was not committed; "
                       "publish the same steps on all ranks");
    *again = !has_failed && control[TURN_LEFT] > TURN_BITS - number;
    return *again || control[FAILED] == 0
               ? DW_OK
               : dw_fail(
                     err, DW_UNAVAILABLE, NULL,
                     "another rank failed before its weights were read, and its error "
                     "says why. The version was not committed; the next one covers it");
}

dw_status dw_quantizer_meet(dw_quantizer *q, bool has_failed, bool *is_needed,
                            dw_error *err)
{
    dw_status status = DW_OK;
    bool again;
    if (q->n_ranks > 1 && q->agree) {
        /* a number for each scale of the model: 1 if a rank has only a part */
        uint32_t *marks = dw_alloc_zeroed(q->n_scales + N_CONTROL, sizeof *marks);
        if (!marks)
            return dw_fail_memory(err, NULL);
        for (size_t u = 0; u < q->n_units; u++)
            for (size_t i = 0; i < q->units[u].n_scales; i++)
                marks[q->units[u].first_scale + i] = 1;
        status = agree(q, marks, q->n_scales, 0, has_failed, &again, err);
        q->n_agreed = 0;
        for (size_t i = 0, u = 0; status == DW_OK && i < q->n_scales; i++) {
            if (u < q->n_units && q->units[u].first_scale == i)
                q->units[u++].at = q->n_agreed;
            q->n_agreed += marks[i] != 0;
        }
        dw_free(marks);
    }
    q->agreed = dw_alloc_zeroed(q->n_agreed + N_CONTROL, sizeof *q->agreed);
    *is_needed = q->n_agreed > 0;
    return status == DW_OK && !q->agreed ? dw_fail_memory(err, NULL) : status;
}

/* ---- measuring ---- */

/* Weights that are not finite have maxima of NOT_FINITE or more. */
static dw_status measure_unit(dw_quantizer *q, const dw_shared_unit *unit,
                              unsigned worker, dw_error *err)
{
    const unsigned width = dw_dtype_bits(q->plan->entries[unit->weight].source_dtype) / 8;
    uint32_t *own = q->own + unit->own;
    dw_status status = DW_OK;
    memset(own, 0, unit->n_scales * sizeof *own);
    for (size_t i = unit->first_part; i < unit->first_part + unit->n_parts; i++) {
        const dw_unit_part *part = &q->parts[i];
        const void *from;
        dw_status read = dw_map_read(&from, &q->loans[worker], part->from,
                                     (size_t)part->n * width, err);
        if (read != DW_OK)
            return read;
        read = dw_quant_part_maxima(q->plan, unit->weight, from, part->first, part->n,
                                    own, status == DW_OK ? err : NULL);
        status = status == DW_OK ? read : status;
    }
    return status;
}

typedef struct measuring {
    dw_quantizer *q;
    const dw_weight_turn *turn;
} measuring;

static dw_status measure_item(void *context, size_t i, unsigned worker, dw_error *err)
{
    const measuring *m = context;
    const dw_shared_unit *unit = &m->q->units[i];
    if (!m->turn->reads_all && m->turn->is_known[unit->weight])
        return DW_OK; /* what was measured before is right */
    dw_status status = measure_unit(m->q, unit, worker, err);
    return status == DW_NOT_FINITE ? DW_OK : status; /* the other ranks hear it */
}

/* The weight and its scales must be read again. */
static void forget(const dw_quantizer *q, const dw_weight_turn *turn, size_t weight)
{
    turn->is_known[weight] = false;
    turn->is_known[q->plan->entries[weight].partner] = false;
}

static dw_status measure(dw_quantizer *q, const dw_weight_turn *turn, dw_error *err)
{
    measuring m = {q, turn};
    dw_status status = turn->has_failed || q->n_units == 0
                           ? DW_OK
                           : dw_parallel(dw_worker_count(q->n_workers, q->n_units),
                                         q->n_units, measure_item, &m, NULL, err);
    memset(q->agreed, 0, (q->n_agreed + N_CONTROL) * sizeof *q->agreed);
    for (size_t u = 0; status != DW_OK && u < q->n_units; u++)
        forget(q, turn, q->units[u].weight); /* what was measured before is lost */
    for (size_t u = 0; u < q->n_units; u++)
        memcpy(q->agreed + q->units[u].at, q->own + q->units[u].own,
               q->units[u].n_scales * sizeof *q->own);
    return status;
}

/* ---- using what was agreed on ---- */

static bool is_finite(const uint32_t *maxima, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (maxima[i] >= NOT_FINITE)
            return false;
    return true;
}

/* Names the weight if this rank has it, or else the tensor if it shares the scale. */
static dw_status fail_not_finite(dw_quantizer *q, dw_error *err)
{
    const char *name = NULL;
    for (size_t u = 0; u < q->n_units; u++) {
        const dw_shared_unit *unit = &q->units[u];
        if (is_finite(q->agreed + unit->at, unit->n_scales))
            continue;
        if (measure_unit(q, unit, 0, err) == DW_NOT_FINITE)
            return DW_NOT_FINITE;
        name = q->tensors[unit->weight].name;
    }
    static const char fault[] =
        "another rank has NaN or infinity in a block or row that ranks share: publish "
        "weights that are finite";
    return name ? dw_fail_tensor(err, DW_NOT_FINITE, NULL, name, "%s", fault)
                : dw_fail(err, DW_NOT_FINITE, NULL, "%s", fault);
}

dw_status dw_quantizer_begin(void *quantizer, const dw_weight_turn *turn, dw_error *err)
{
    dw_quantizer *q = quantizer;
    bool again;
    do {
        again = false;
        dw_status status = measure(q, turn, err);
        const bool has_failed = turn->has_failed || status != DW_OK;
        if (q->n_ranks > 1) {
            dw_status agreed = agree(q, q->agreed, q->n_agreed, turn->number, has_failed,
                                     &again, has_failed ? NULL : err);
            status = status == DW_OK ? agreed : status;
        }
        if (status != DW_OK || turn->has_failed)
            return status;
    } while (again);
    if (!is_finite(q->agreed, q->n_agreed))
        return fail_not_finite(q, err);
    for (size_t u = 0; u < q->n_units; u++) {
        const dw_shared_unit *unit = &q->units[u];
        float *scales = q->scale_room + unit->first_scale;
        for (size_t i = 0; i < unit->n_scales; i++) {
            const float scale = dw_quant_scale(q->plan, q->agreed[unit->at + i]);
            if (scale == scales[i])
                continue;
            scales[i] = scale;
            forget(q, turn, unit->weight);
        }
    }
    return DW_OK;
}
