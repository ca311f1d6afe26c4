#include "stream/cut.h"

#include "base/error.h"
#include "base/mem.h"

/* Elements that a cut falls on a multiple of: a codec block of any type, and whole bytes
 * of types below a byte. */
#define CUT_ELEMS (1u << 20)

void dw_slices_free(dw_slices *slices)
{
    dw_free(slices->items);
    *slices = (dw_slices){0};
}

dw_status dw_slices_append(dw_slices *slices, dw_slice slice, dw_error *err)
{
    if (!dw_grow_array((void **)&slices->items, &slices->n_room, slices->n, sizeof slice))
        return dw_fail_memory(err, NULL);
    slices->items[slices->n++] = slice;
    return DW_OK;
}

dw_status dw_slices_of_covers(dw_slices *out, const dw_cover *covers, size_t n_covers,
                              const dw_tensor *tensors, size_t n_tensors, dw_error *err)
{
    const dw_cover all = {SIZE_MAX, 0, n_tensors};
    if (!covers) {
        covers = &all;
        n_covers = 1;
    }
    *out = (dw_slices){0};
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < n_covers; i++) {
        const dw_cover *c = &covers[i];
        if (c->tensor != SIZE_MAX) {
            status = dw_slices_append(
                out, (dw_slice){c->tensor, c->first, c->end - c->first}, err);
            continue;
        }
        for (uint64_t t = c->first; status == DW_OK && t < c->end; t++)
            status = dw_slices_append(out, dw_slice_whole(tensors, (size_t)t), err);
    }
    if (status != DW_OK)
        dw_slices_free(out);
    return status;
}

dw_status dw_covers_of_slices(dw_cover **out, size_t *n, const dw_slices *slices,
                              const dw_tensor *tensors, size_t n_tensors, dw_error *err)
{
    dw_cover *covers = dw_alloc_array(slices->n, sizeof *covers);
    if (!covers)
        return dw_fail_memory(err, NULL);
    size_t n_covers = 0;
    for (size_t i = 0; i < slices->n; i++) {
        const dw_slice *s = &slices->items[i];
        dw_cover *last = n_covers > 0 ? &covers[n_covers - 1] : NULL;
        if (!dw_slice_is_whole(tensors, s))
            covers[n_covers++] = (dw_cover){s->tensor, s->first, s->first + s->n};
        else if (last && last->tensor == SIZE_MAX && last->end == s->tensor)
            last->end++;
        else
            covers[n_covers++] = (dw_cover){SIZE_MAX, s->tensor, s->tensor + 1};
    }
    if (n_covers == 1 && covers[0].tensor == SIZE_MAX && covers[0].first == 0 &&
        covers[0].end == n_tensors) {
        dw_free(covers);
        covers = NULL;
        n_covers = 0;
    }
    *out = covers;
    *n = n_covers;
    return DW_OK;
}

/* How many of N elements fit into so many bytes; 0: none. */
static uint64_t fitting(const dw_tensor *t, uint64_t n, uint64_t room)
{
    unsigned bits = dw_dtype_bits(t->dtype);
    uint64_t fit = room / bits * 8; /* a whole number of bytes for any type */
    if (fit >= n)
        return n;
    return fit >= CUT_ELEMS ? fit / CUT_ELEMS * CUT_ELEMS : fit / 8 * 8;
}

/* How many elements of NEXT to take, of which N fit. 0: none fit. */
static uint64_t whole_units(const dw_grain *grain, const dw_slice *next, uint64_t n)
{
    const uint64_t edge = dw_grain_edge(grain, next->first + n, false);
    return edge > next->first ? edge - next->first : 0;
}

/* The least number of elements that can be taken of NEXT. */
static uint64_t least(const dw_grain *grain, const dw_slice *next)
{
    const uint64_t n = grain ? dw_grain_edge(grain, next->first, true) - next->first
                             : 8; /* whole bytes */
    return n < next->n ? n : next->n;
}

dw_status dw_cut_next(dw_slices *out, dw_cut *cut, const dw_slices *slices,
                      const dw_tensor *tensors, const dw_grain *grains,
                      uint64_t max_bytes, dw_error *err)
{
    out->n = 0;
    uint64_t room = max_bytes;
    while (cut->item < slices->n) {
        const dw_slice *s = &slices->items[cut->item];
        dw_slice next = {s->tensor, s->first + cut->done, s->n - cut->done};
        const bool first = out->n == 0;
        const dw_grain *grain =
            grains && grains[s->tensor].unit > 0 ? &grains[s->tensor] : NULL;
        uint64_t n = fitting(&tensors[s->tensor], next.n, room);
        if (grain && n < next.n)
            n = whole_units(grain, &next, n);
        if (n < next.n) {
            /* rather whole tensors than the first part of one that fits by itself */
            if (!first && (n < CUT_ELEMS || dw_slice_bytes(tensors, &next) <= max_bytes))
                break;
            next.n = n > 0 ? n : least(grain, &next);
        }
        dw_status status = dw_slices_append(out, next, err);
        if (status != DW_OK)
            return status;
        cut->done += next.n;
        if (cut->done == s->n) {
            cut->item++;
            cut->done = 0;
        }
        uint64_t n_bytes = dw_slice_bytes(tensors, &next);
        room = room > n_bytes ? room - n_bytes : 0;
        if (room == 0)
            break;
    }
    return DW_OK;
}

dw_status dw_slices_digest(dw_digest *out, const dw_slices *slices,
                           const dw_tensor *tensors, size_t n_tensors,
                           const dw_digest *known, unsigned n_threads, dw_error *err)
{
    const size_t n = slices->n;
    size_t n_cut = 0;
    dw_slice *cut = dw_alloc_array(n, sizeof *cut);
    size_t *place = dw_alloc_array(n, sizeof *place);
    dw_digest *read = dw_alloc_array(n, sizeof *read);
    dw_status status = cut && place && read ? DW_OK : dw_fail_memory(err, NULL);
    for (size_t i = 0; status == DW_OK && i < n; i++) {
        const dw_slice *s = &slices->items[i];
        if (dw_slice_is_whole(tensors, s)) {
            out[i] = known[s->tensor];
        } else {
            place[n_cut] = i;
            cut[n_cut++] = *s;
        }
    }
    if (status == DW_OK && n_cut > 0) {
        dw_slice_list list;
        status = dw_slices_open(&list, tensors, n_tensors, cut, n_cut, err);
        if (status == DW_OK)
            status =
                dw_digest_tensors(read, NULL, list.tensors, list.n, n_threads, NULL, err);
        for (size_t i = 0; status == DW_OK && i < n_cut; i++)
            out[place[i]] = read[i];
        dw_slices_release(&list);
    }
    dw_free(cut);
    dw_free(place);
    dw_free(read);
    return status;
}
