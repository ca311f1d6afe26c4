#include "publish/shared_scales.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "publish/publisher.h"

#define NOT_FINITE 0x7f800000u

/* ---- finding them ---- */

typedef struct part_room {
    size_t parts, units;
} part_room;

/* Elements [FIRST, END) of owned slice K are a part of one unit. */
static dw_status add_part(dw_publisher *p, part_room *room, size_t k, uint64_t first,
                          uint64_t end, dw_error *err)
{
    dw_shared_scales *s = &p->live.shared;
    const dw_quant_plan *plan = p->live.quant.plan;
    const size_t t = p->pieces.owned.items[k].tensor;
    const uint64_t n_columns = plan->entries[t].n_columns;
    const uint64_t unit_end = dw_quant_unit_end(plan, t, first / n_columns);
    const size_t n_scales = (size_t)dw_quant_unit_scales(plan, t);
    const uint64_t first_scale = dw_quant_scales_before(plan, t, unit_end) - n_scales;
    if (!dw_grow_array((void **)&s->parts, &room->parts, s->n_parts, sizeof *s->parts) ||
        !dw_grow_array((void **)&s->units, &room->units, s->n_units, sizeof *s->units))
        return dw_fail_memory(err, NULL);
    const size_t n = s->n_units;
    if (n == 0 || s->units[n - 1].weight != t ||
        s->units[n - 1].first_scale != first_scale) {
        s->units[s->n_units++] = (dw_shared_unit){.weight = t,
                                                  .first_scale = first_scale,
                                                  .at = s->n,
                                                  .n_scales = n_scales,
                                                  .first_part = s->n_parts};
        s->n += n_scales;
    }
    s->units[s->n_units - 1].n_parts++;
    s->parts[s->n_parts++] = (dw_unit_part){k, first, end - first};
    return DW_OK;
}

/* The parts of units at both ends of owned slice K. */
static dw_status add_ends(dw_publisher *p, part_room *room, size_t k, dw_error *err)
{
    const dw_slice *slice = &p->pieces.owned.items[k];
    dw_unit_ends ends;
    dw_live_quant_ends(&ends, &p->live.quant, slice);
    dw_status status = DW_OK;
    if (ends.head > slice->first)
        status = add_part(p, room, k, slice->first, ends.head, err);
    if (status == DW_OK && ends.tail < slice->first + slice->n)
        status = add_part(p, room, k, ends.tail, slice->first + slice->n, err);
    return status;
}

dw_status dw_shared_open(dw_publisher *p, dw_error *err)
{
    dw_shared_scales *s = &p->live.shared;
    dw_status status = DW_OK;
    part_room room = {0};
    if (!p->sharded || !p->live.quant.plan)
        return DW_OK;
    for (size_t k = 0; status == DW_OK && k < p->pieces.owned.n; k++) {
        const size_t t = p->pieces.owned.items[k].tensor;
        if (p->live.quant.plan->entries[t].role == DW_QUANT_WEIGHT)
            status = add_ends(p, &room, k, err);
    }
    s->own = dw_alloc_zeroed(s->n + 1, sizeof *s->own);
    s->agreed = dw_alloc_zeroed(s->n + 1, sizeof *s->agreed);
    s->given = dw_alloc_zeroed(s->n + 1, sizeof *s->given);
    if (status == DW_OK && (!s->own || !s->agreed || !s->given))
        status = dw_fail_memory(err, NULL);
    return status;
}

void dw_shared_close(dw_shared_scales *s)
{
    dw_free(s->parts);
    dw_free(s->units);
    dw_free(s->own);
    dw_free(s->agreed);
    dw_free(s->given);
    *s = (dw_shared_scales){0};
}

/* ---- measuring ---- */

typedef struct measure {
    dw_publisher *p;
    bool with_known;
} measure;

static dw_status measure_unit(dw_publisher *p, const dw_shared_unit *unit, uint32_t *own,
                              unsigned worker, dw_error *err)
{
    dw_live_quant *q = &p->live.quant;
    const dw_dtype dtype = q->plan->entries[unit->weight].source_dtype;
    const unsigned width = dw_dtype_bits(dtype) / 8;
    dw_status status = DW_OK;
    memset(own, 0, unit->n_scales * sizeof *own);
    for (size_t i = unit->first_part; i < unit->first_part + unit->n_parts; i++) {
        const dw_unit_part *part = &p->live.shared.parts[i];
        const uint64_t before = part->first - p->pieces.owned.items[part->owned].first;
        const void *from = (const uint8_t *)p->live.data[part->owned] + before * width;
        dw_status read =
            dw_map_read(&from, &q->loans[worker], from, (size_t)part->n * width, err);
        if (read != DW_OK)
            return read;
        read = dw_quant_part_maxima(q->plan, unit->weight, from, part->first, part->n,
                                    own, status == DW_OK ? err : NULL);
        status = status == DW_OK ? read : status;
    }
    return status;
}

static dw_status measure_item(void *context, size_t i, unsigned worker, dw_error *err)
{
    const measure *m = context;
    dw_shared_scales *s = &m->p->live.shared;
    const dw_shared_unit *unit = &s->units[i];
    if (m->p->live.is_known[unit->weight] && !m->with_known)
        return DW_OK;
    dw_status status = measure_unit(m->p, unit, s->own + unit->at, worker, err);
    return status == DW_NOT_FINITE ? DW_OK : status; /* dw_shared_use reports it */
}

dw_status dw_shared_measure(dw_publisher *p, bool with_known, dw_error *err)
{
    measure m = {p, with_known};
    const size_t n = p->live.shared.n_units;
    const unsigned n_most = p->live.quant.n_workers;
    return n == 0 ? DW_OK
                  : dw_parallel(n < n_most ? (unsigned)n : n_most, n, measure_item, &m,
                                NULL, err);
}

/* ---- using them ---- */

static dw_status fail_unit(dw_publisher *p, const dw_shared_unit *unit, dw_error *err)
{
    dw_shared_scales *s = &p->live.shared;
    dw_status status = measure_unit(p, unit, s->own + unit->at, 0, err);
    return status != DW_OK
               ? status
               : dw_fail_tensor(err, DW_NOT_FINITE, NULL,
                                p->pieces.table[unit->weight].name,
                                "another rank has NaN or infinity in a block or row that "
                                "this one shares: publish weights that are finite");
}

dw_status dw_shared_use(dw_publisher *p, dw_error *err)
{
    const dw_shared_scales *s = &p->live.shared;
    const dw_live_quant *q = &p->live.quant;
    for (size_t i = 0; i < s->n; i++)
        if (s->agreed[i] >= NOT_FINITE) {
            size_t u = 0;
            while (s->units[u].at + s->units[u].n_scales <= i)
                u++;
            return fail_unit(p, &s->units[u], err);
        }
    for (size_t u = 0; u < s->n_units; u++) {
        const dw_shared_unit *unit = &s->units[u];
        float *scales = q->scales[unit->weight] + unit->first_scale;
        for (size_t i = 0; i < unit->n_scales; i++) {
            const float scale = dw_quant_scale(q->plan, s->agreed[unit->at + i]);
            if (memcmp(&scale, &scales[i], sizeof scale) == 0)
                continue;
            scales[i] = scale;
            p->live.is_known[unit->weight] = false;
            p->live.is_known[q->plan->entries[unit->weight].partner] = false;
        }
    }
    return DW_OK;
}

dw_status dw_shared_look(dw_publisher *p, bool *is_same, dw_error *err)
{
    dw_shared_scales *s = &p->live.shared;
    *is_same = true;
    if (!s->is_needed)
        return DW_OK;
    dw_status status = dw_shared_measure(p, true, err);
    *is_same = s->is_agreed && memcmp(s->own, s->given, s->n * sizeof *s->own) == 0;
    return status == DW_OK && *is_same ? dw_shared_use(p, err) : status;
}
