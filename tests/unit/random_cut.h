/* A model cut at random into parts that cover every element once. */
#ifndef DW_TEST_RANDOM_CUT_H
#define DW_TEST_RANDOM_CUT_H

#include "codec/slice.h"
#include "random_model.h"

enum { CUT_PARTS = 3 };

typedef struct cut {
    dw_slice *slices[CUT_PARTS]; /* in random order */
    size_t n[CUT_PARTS];
} cut;

static inline void cut_add(cut *c, dw_slice s)
{
    size_t p = random_below(CUT_PARTS);
    c->slices[p] = realloc(c->slices[p], (c->n[p] + 1) * sizeof *c->slices[p]);
    size_t at = random_below(c->n[p] + 1);
    c->slices[p][c->n[p]++] = c->slices[p][at];
    c->slices[p][at] = s;
}

/* Some tensors stay whole. In others, pieces begin at any element, or at any byte if
 * elements are smaller. */
static inline cut cut_random(const model *m)
{
    cut c = {0};
    for (size_t p = 0; p < CUT_PARTS; p++)
        c.slices[p] = malloc(sizeof *c.slices[p]);
    for (size_t t = 0; t < m->n; t++) {
        const unsigned bits = dw_dtype_bits(m->tensors[t].dtype);
        const uint64_t step = bits == 4 ? 2 : bits == 6 ? 4 : 1;
        const uint64_t n = m->tensors[t].n_bytes * 8 / bits;
        uint64_t at = 0;
        do {
            uint64_t left = n - at;
            uint64_t take = random_below(4) == 0 ? left : (random_below(left + 1));
            take = take < step ? (left < step ? left : step) : take / step * step;
            cut_add(&c, (dw_slice){t, at, take});
            at += take;
        } while (at < n);
    }
    return c;
}

static inline void cut_free(cut *c)
{
    for (size_t p = 0; p < CUT_PARTS; p++)
        free(c->slices[p]);
}

#endif
