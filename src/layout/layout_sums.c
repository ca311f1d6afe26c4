/* Sums of rows that a kernel keeps among the elements of a target. */
#include "layout/layout_sums.h"

#include <stdatomic.h>

#include "base/error.h"

static bool is_power_of_2(uint32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

dw_status dw_layout_add_sums(dw_layout *l, size_t target, const dw_layout_sums *sums,
                             dw_error *err)
{
    const dw_tensor *t = &l->targets[target];
    const uint64_t of_sums = 4ull * sums->n_rows;
    if (t->dtype != DW_I8)
        return dw_fail_tensor(err, DW_UNSUPPORTED, NULL, t->name,
                              "has sums, but its elements are not I8");
    if (!is_power_of_2(sums->n_rows) || !is_power_of_2(sums->n_run) ||
        sums->n_block > UINT32_MAX || sums->n_block % 4 != 0 ||
        sums->n_block <= of_sums || t->n_bytes % sums->n_block != 0 ||
        (sums->n_block - of_sums) % ((uint64_t)sums->n_rows * sums->n_run) != 0)
        return dw_fail_tensor(err, DW_INVALID, NULL, t->name,
                              "is not made of such blocks with sums");
    l->sums[target] = *sums;
    return DW_OK;
}

bool dw_layout_sums_aligned(const dw_layout *l, size_t target)
{
    return l->sums[target].n_rows == 0 || (uintptr_t)l->targets[target].data % 4 == 0;
}

/* Segments of one tensor are applied at the same time and can share a row. Sums wrap, as
 * the kernel's do. */
void dw_layout_move_sums(const dw_layout_batch *b, const void *from, const void *to,
                         size_t n)
{
    const dw_layout_sums *s = &b->job->layout->sums[b->target];
    if (s->n_rows == 0)
        return;
    uint8_t *data = b->job->layout->targets[b->target].data;
    const int8_t *was = from, *is = to;
    unsigned shift = 0;
    while (s->n_run >> shift > 1)
        shift++;
    uint64_t start = 0, end = 0; /* of the block */
    for (size_t i = 0; i < n; i++) {
        if (b->places[i] < start || b->places[i] >= end) {
            start = b->places[i] / s->n_block * s->n_block;
            end = start + s->n_block;
        }
        const uint32_t at = (uint32_t)(b->places[i] - start), k = b->changes[i];
        const uint32_t row = at >> shift & (s->n_rows - 1);
        void *sum = data + end - 4 * (size_t)(s->n_rows - row);
        atomic_fetch_add_explicit((_Atomic uint32_t *)sum,
                                  (uint32_t)s->factor * (uint32_t)(is[k] - was[k]),
                                  memory_order_relaxed);
    }
}
