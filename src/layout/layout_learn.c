/* Learns a layout: elements spell numbers, which are read from where they were loaded. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/element.h"
#include "layout/layout_int.h"

/* ---- spelling ---- */

static unsigned passes_of_width(const dw_layout *l, unsigned width)
{
    unsigned bits = 1; /* of the highest number + 1, so that no number is all ones */
    while (bits < 64 && l->numbers[l->n_tensors] >> bits)
        bits++;
    return (bits + 8 * width - 1) / (8 * width);
}

unsigned dw_layout_passes(const dw_layout *l, dw_dtype dtype)
{
    return passes_of_width(l, dw_dtype_element(dtype).width);
}

void dw_layout_spell(const dw_layout *l, size_t t, unsigned pass, void *out)
{
    const unsigned width = dw_dtype_element(l->tensors[t].dtype).width;
    const uint64_t n = dw_tensor_units(&l->tensors[t]);
    const bool is_over = pass >= passes_of_width(l, width);
    const unsigned shift = is_over ? 0 : 8 * width * pass;
    for (uint64_t i = 0; i < n; i++)
        dw_element_store(out, i, width, is_over ? 0 : (l->numbers[t] + i) >> shift);
}

typedef struct codes {
    const void *const *passes;
    unsigned n_passes, width;
    uint64_t none; /* all ones */
} codes;

/* The number that element I of a target holds; 0: none. */
static inline uint64_t number_at(const codes *c, uint64_t i)
{
    uint64_t number = 0;
    for (unsigned k = 0; k < c->n_passes; k++)
        number |= dw_element_load(c->passes[k], i, c->width) << (8 * c->width * k);
    return number == c->none ? 0 : number;
}

/* The tensor that has NUMBER, which is at least 1; n_tensors: none. */
static size_t tensor_of(const dw_layout *l, uint64_t number)
{
    size_t low = 0, high = l->n_tensors;
    if (number >= l->numbers[high])
        return l->n_tensors;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (l->numbers[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- folding: runs become rows, rows become blocks ---- */

typedef struct fold {
    dw_layout *layout;
    size_t n_before; /* pieces before this target */
    struct level {
        dw_layout_piece first;
        uint64_t n; /* pieces of the same shape, at equal distances */
        int64_t from, to;
    } levels[DW_LAYOUT_DIMS];
    bool no_memory, no_order;
} fold;

static bool same_shape(const dw_layout_piece *a, const dw_layout_piece *b)
{
    if (a->tensor != b->tensor || a->n_dims != b->n_dims)
        return false;
    for (unsigned k = 0; k < a->n_dims; k++)
        if (a->dims[k].n != b->dims[k].n || a->dims[k].from != b->dims[k].from ||
            a->dims[k].to != b->dims[k].to)
            return false;
    return true;
}

static int compare_strides(const void *a_, const void *b_)
{
    const dw_layout_dim *a = a_, *b = b_;
    return a->from > b->from ? -1 : a->from < b->from;
}

/* Makes the strides of the tensor positive and sorts them. False if an element's position
 * in the piece could not be found by division. */
static bool straighten(dw_layout_piece *p)
{
    for (unsigned k = 0; k < p->n_dims; k++) {
        dw_layout_dim *d = &p->dims[k];
        if (d->from < 0) {
            p->from += (uint64_t)((int64_t)(d->n - 1) * d->from);
            p->to += (uint64_t)((int64_t)(d->n - 1) * d->to);
            d->from = -d->from;
            d->to = -d->to;
        }
    }
    qsort(p->dims, p->n_dims, sizeof *p->dims, compare_strides);
    uint64_t reach = 0;
    for (unsigned k = p->n_dims; k-- > 0;) {
        if ((uint64_t)p->dims[k].from <= reach)
            return false;
        reach += (p->dims[k].n - 1) * (uint64_t)p->dims[k].from;
    }
    p->last = p->from + reach;
    return true;
}

static void keep(fold *f, dw_layout_piece *piece)
{
    dw_layout *l = f->layout;
    if (!straighten(piece) || l->n_pieces - f->n_before >= DW_LAYOUT_PIECES)
        f->no_order = true;
    else if (!dw_grow_array((void **)&l->pieces, &l->n_room, l->n_pieces,
                            sizeof *l->pieces))
        f->no_memory = true;
    else
        l->pieces[l->n_pieces++] = *piece;
}

static void push(fold *f, unsigned level, const dw_layout_piece *piece);

static void flush(fold *f, unsigned level)
{
    struct level *at = &f->levels[level];
    if (at->n == 0)
        return;
    dw_layout_piece piece = at->first;
    if (at->n > 1)
        piece.dims[piece.n_dims++] = (dw_layout_dim){at->n, at->from, at->to};
    at->n = 0;
    if (level + 1 < DW_LAYOUT_DIMS)
        push(f, level + 1, &piece);
    else
        keep(f, &piece);
}

static void push(fold *f, unsigned level, const dw_layout_piece *piece)
{
    struct level *at = &f->levels[level];
    if (at->n > 0 && same_shape(&at->first, piece)) {
        const int64_t from = (int64_t)(piece->from - at->first.from);
        const int64_t to = (int64_t)(piece->to - at->first.to);
        if (at->n == 1 && from != 0) {
            at->from = from;
            at->to = to;
            at->n = 2;
            return;
        }
        if (at->n > 1 && from == (int64_t)at->n * at->from &&
            to == (int64_t)at->n * at->to) {
            at->n++;
            return;
        }
    }
    flush(f, level);
    at->first = *piece;
    at->n = 1;
}

/* ---- a target ---- */

/* The number of elements from I on that are at equal distances in tensor T. */
static uint64_t run_at(const codes *c, uint64_t i, uint64_t n, uint64_t low,
                       uint64_t high, int64_t *distance)
{
    uint64_t before = number_at(c, i), length = 1;
    *distance = 0;
    for (; i + length < n; length++) {
        const uint64_t number = number_at(c, i + length);
        const int64_t step = (int64_t)(number - before);
        if (number < low || number >= high || step == 0 ||
            (length > 1 && step != *distance))
            break;
        *distance = step;
        before = number;
    }
    return length;
}

static bool read_target(fold *f, size_t target, const codes *c, uint64_t *n_covered)
{
    const dw_layout *l = f->layout;
    const uint64_t n = dw_tensor_units(&l->targets[target]);
    for (uint64_t i = 0; i < n && !f->no_memory && !f->no_order;) {
        const uint64_t number = number_at(c, i);
        if (number == 0) {
            i++;
            continue;
        }
        const size_t t = tensor_of(l, number);
        if (t == l->n_tensors || l->tensors[t].dtype != l->targets[target].dtype)
            return false;
        dw_layout_piece run = {
            .tensor = t, .target = target, .from = number - l->numbers[t], .to = i};
        int64_t distance;
        const uint64_t length =
            run_at(c, i, n, l->numbers[t], l->numbers[t + 1], &distance);
        if (length > 1)
            run.dims[run.n_dims++] = (dw_layout_dim){length, distance, 1};
        push(f, 1, &run); /* a run is the lowest level */
        i += length;
        *n_covered += length;
    }
    for (unsigned level = 1; level < DW_LAYOUT_DIMS; level++)
        flush(f, level);
    return !f->no_order;
}

dw_status dw_layout_learn(dw_layout *l, size_t target, const void *const *passes,
                          uint64_t *n_covered, dw_error *err)
{
    *n_covered = 0;
    const dw_tensor *t = &l->targets[target];
    const unsigned width = dw_dtype_element(t->dtype).width;
    codes c = {passes, passes_of_width(l, width), width, 0};
    c.none = ~0ull >> (64 - 8 * width * c.n_passes);
    fold *f = dw_alloc_zeroed(1, sizeof *f);
    if (!f || l->ended) {
        dw_free(f);
        return l->ended ? dw_fail(err, DW_INVALID, t->name, "the layout was ended before")
                        : dw_fail_memory(err, t->name);
    }
    const size_t n_before = l->n_pieces;
    f->layout = l;
    f->n_before = n_before;
    const bool in_order = read_target(f, target, &c, n_covered);
    const bool no_memory = f->no_memory;
    dw_free(f);
    if (in_order && !no_memory)
        return DW_OK;
    l->n_pieces = n_before;
    *n_covered = 0;
    return no_memory
               ? dw_fail_memory(err, t->name)
               : dw_fail(err, DW_UNSUPPORTED, t->name,
                         "the engine does not keep what it loads element by element, "
                         "or in no order that can be described");
}
