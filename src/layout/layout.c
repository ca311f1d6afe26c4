#include "layout/layout_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "tensor/dtype.h"
#include "tensor/tensor_list.h"

/* ---- new ---- */

static void count_text(const dw_tensor *tensors, size_t n, size_t *n_dims, size_t *n_text)
{
    for (size_t i = 0; i < n; i++) {
        *n_dims += tensors[i].n_dims;
        *n_text += strlen(tensors[i].name) + 1;
    }
}

static void copy_tensors(dw_tensor *out, const dw_tensor *tensors, size_t n,
                         uint64_t **dims, char **text)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = tensors[i];
        if (tensors[i].n_dims > 0)
            memcpy(*dims, tensors[i].dims, tensors[i].n_dims * sizeof **dims);
        out[i].dims = *dims;
        *dims += tensors[i].n_dims;
        out[i].name = strcpy(*text, tensors[i].name);
        *text += strlen(*text) + 1;
    }
}

static bool allocate(dw_layout *l, const dw_tensor *tensors, size_t n_tensors,
                     const dw_tensor *targets, size_t n_targets)
{
    size_t n_dims = 0, n_text = 0;
    count_text(tensors, n_tensors, &n_dims, &n_text);
    count_text(targets, n_targets, &n_dims, &n_text);
    l->tensors = dw_alloc_array(n_tensors, sizeof *l->tensors);
    l->targets = dw_alloc_array(n_targets, sizeof *l->targets);
    l->numbers = dw_alloc_array(n_tensors + 1, sizeof *l->numbers);
    l->held = dw_alloc_zeroed(n_tensors, sizeof *l->held);
    l->forgotten = dw_alloc_zeroed(n_tensors, sizeof *l->forgotten);
    l->lane_of = dw_alloc_zeroed(n_tensors + 1, sizeof *l->lane_of);
    l->sums = dw_alloc_zeroed(n_targets, sizeof *l->sums);
    l->arena = dw_alloc(n_dims * sizeof(uint64_t) + n_text);
    if (!l->tensors || !l->targets || !l->numbers || !l->held || !l->forgotten ||
        !l->lane_of || !l->sums || !l->arena)
        return false;
    uint64_t *dims = l->arena;
    char *text = (char *)(dims + n_dims);
    copy_tensors(l->tensors, tensors, n_tensors, &dims, &text);
    copy_tensors(l->targets, targets, n_targets, &dims, &text);
    l->n_tensors = n_tensors;
    l->n_targets = n_targets;
    return true;
}

dw_status dw_layout_new(dw_layout **out, const dw_tensor *tensors, size_t n_tensors,
                        const dw_tensor *targets, size_t n_targets, dw_error *err)
{
    *out = NULL;
    dw_name_index names;
    dw_status status = dw_tensors_check_shapes(tensors, n_tensors, err);
    if (status == DW_OK)
        status = dw_tensors_check_shapes(targets, n_targets, err);
    if (status == DW_OK)
        status = dw_name_index_init(&names, tensors, n_tensors, err);
    if (status != DW_OK)
        return status;
    dw_name_index_release(&names);
    dw_layout *l = dw_alloc_zeroed(1, sizeof *l);
    if (!l || !allocate(l, tensors, n_tensors, targets, n_targets)) {
        dw_layout_free(l);
        return dw_fail_memory(err, NULL);
    }
    uint64_t number = 1;
    for (size_t t = 0; t < n_tensors; t++) {
        l->numbers[t] = number;
        number += dw_tensor_units(&tensors[t]);
    }
    l->numbers[n_tensors] = number;
    *out = l;
    return DW_OK;
}

void dw_layout_free(dw_layout *l)
{
    if (!l)
        return;
    dw_free(l->tensors);
    dw_free(l->targets);
    dw_free(l->numbers);
    dw_free(l->held);
    dw_free(l->forgotten);
    dw_free(l->pieces);
    dw_free(l->lanes);
    dw_free(l->lane_of);
    dw_free(l->sums);
    dw_free(l->arena);
    dw_free(l);
}

/* ---- what is held ---- */

static uint64_t count_elems(const dw_layout_piece *piece)
{
    uint64_t n = 1;
    for (unsigned k = 0; k < piece->n_dims; k++)
        n *= piece->dims[k].n;
    return n;
}

void dw_layout_forget(dw_layout *l, size_t t)
{
    if (l->forgotten[t])
        return;
    l->forgotten[t] = true;
    l->n_changes++;
    l->held[t] = 0;
    if (l->ended)
        return; /* its pieces are no longer used */
    size_t kept = 0;
    for (size_t i = 0; i < l->n_pieces; i++)
        if (l->pieces[i].tensor != t)
            l->pieces[kept++] = l->pieces[i];
    l->n_pieces = kept;
}

uint64_t dw_layout_held(const dw_layout *l, size_t t)
{
    return l->held[t];
}

bool dw_layout_holds(const dw_layout *l, size_t t, size_t target)
{
    if (l->forgotten[t])
        return false;
    for (size_t lane = l->lane_of[t]; lane < l->lane_of[t + 1]; lane++)
        for (size_t k = 0; k < l->lanes[lane].n; k++)
            if (l->pieces[l->lanes[lane].first + k].target == target)
                return true;
    return false;
}

bool dw_layout_is_forgotten(const dw_layout *l, size_t t)
{
    return l->forgotten[t];
}

size_t dw_layout_pieces(const dw_layout *l)
{
    return l->n_pieces;
}

void dw_layout_move(dw_layout *l, size_t target, void *data)
{
    dw_layout_move_to(l, target, NULL, data);
}

void dw_layout_move_to(dw_layout *l, size_t target, dw_device *device, void *data)
{
    l->targets[target].data = data;
    l->targets[target].device = device;
    l->n_changes++;
}

/* ---- lanes ---- */

static int compare_places(const void *a_, const void *b_)
{
    const dw_layout_piece *a = a_, *b = b_;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    return a->from < b->from ? -1 : a->from > b->from;
}

static int compare_lanes(const void *a_, const void *b_)
{
    const dw_layout_piece *a = a_, *b = b_;
    if (a->tensor == b->tensor && a->lane != b->lane)
        return a->lane < b->lane ? -1 : 1;
    return compare_places(a_, b_);
}

/* Pieces [FIRST, END) of one tensor, in order of place. False if there are too many
 * lanes. */
static bool assign_lanes(dw_layout_piece *pieces, size_t first, size_t end)
{
    uint64_t last[DW_LAYOUT_LANES]; /* the last element of each lane so far */
    unsigned n_lanes = 0;
    for (size_t i = first; i < end; i++) {
        unsigned lane = 0;
        while (lane < n_lanes && last[lane] >= pieces[i].from)
            lane++;
        if (lane == DW_LAYOUT_LANES)
            return false;
        n_lanes = lane == n_lanes ? lane + 1 : n_lanes;
        last[lane] = pieces[i].last;
        pieces[i].lane = lane;
    }
    return true;
}

static void sort_pieces(dw_layout *l, int (*compare)(const void *, const void *))
{
    if (l->n_pieces > 0)
        qsort(l->pieces, l->n_pieces, sizeof *l->pieces, compare);
}

static bool make_lanes(dw_layout *l)
{
    size_t n_lanes = 0;
    l->lanes = dw_alloc_array(l->n_pieces, sizeof *l->lanes); /* an upper bound */
    if (!l->lanes)
        return false;
    size_t i = 0;
    for (size_t t = 0; t < l->n_tensors; t++) {
        l->lane_of[t] = n_lanes;
        while (i < l->n_pieces && l->pieces[i].tensor == t) {
            dw_layout_lane *lane = &l->lanes[n_lanes++];
            *lane = (dw_layout_lane){i, 0};
            while (i < l->n_pieces && l->pieces[i].tensor == t &&
                   l->pieces[i].lane == l->pieces[lane->first].lane) {
                lane->n++;
                i++;
            }
        }
    }
    l->lane_of[l->n_tensors] = n_lanes;
    return true;
}

dw_status dw_layout_end(dw_layout *l, dw_error *err)
{
    if (l->ended)
        return dw_fail(err, DW_INVALID, NULL, "the layout was ended before");
    sort_pieces(l, compare_places);
    for (size_t i = 0; i < l->n_pieces;) {
        size_t end = i, t = l->pieces[i].tensor;
        while (end < l->n_pieces && l->pieces[end].tensor == t)
            end++;
        if (assign_lanes(l->pieces, i, end))
            i = end;
        else
            dw_layout_forget(l, t); /* removes the pieces at I */
    }
    sort_pieces(l, compare_lanes);
    if (!make_lanes(l))
        return dw_fail_memory(err, NULL);
    for (size_t i = 0; i < l->n_pieces; i++)
        l->held[l->pieces[i].tensor] += count_elems(&l->pieces[i]);
    l->ended = true;
    return DW_OK;
}

dw_status dw_layout_check_ended(const dw_layout *l, dw_error *err)
{
    return l->ended ? DW_OK
                    : dw_fail(err, DW_INVALID, NULL,
                              "the layout is still being learnt: dw_layout_end");
}
