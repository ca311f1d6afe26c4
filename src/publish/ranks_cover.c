/* Which rank owns which elements of the model, and what is wrong with that. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/mem.h"
#include "publish/publisher.h"
#include "publish/ranks.h"
#include "stream/cut.h"

typedef struct share {
    dw_slice slice;
    uint32_t rank;
} share;

static int compare_shares(const void *a, const void *b)
{
    const share *x = a, *y = b;
    if (x->slice.tensor != y->slice.tensor)
        return x->slice.tensor < y->slice.tensor ? -1 : 1;
    if (x->slice.first != y->slice.first)
        return x->slice.first < y->slice.first ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

typedef struct shares {
    share *items;
    size_t n;
    size_t n_room;
} shares;

static dw_status add_rank(shares *all, const dw_publisher *p, const dw_receipt_record *r,
                          dw_error *err)
{
    dw_slices slices = {0};
    dw_status status = r->n_covers == 0
                           ? DW_OK
                           : dw_slices_of_covers(&slices, r->covers, r->n_covers,
                                                 p->pieces.table, p->pieces.n_table, err);
    for (size_t i = 0; status == DW_OK && i < slices.n; i++) {
        if (!dw_grow_array((void **)&all->items, &all->n_room, all->n,
                           sizeof *all->items))
            status = dw_fail_memory(err, NULL);
        else
            all->items[all->n++] = (share){slices.items[i], r->rank};
    }
    dw_slices_free(&slices);
    return status;
}

static dw_status fail_missing(const dw_publisher *p, size_t t, uint64_t first,
                              uint64_t end, dw_error *err)
{
    return dw_fail_tensor(err, DW_INVALID, dw_store_url(p->store),
                          p->pieces.table[t].name,
                          "no rank has its elements %" PRIu64 " to %" PRIu64
                          ": each must be in the shards of one rank",
                          first, end);
}

/* SHARES are sorted. */
static dw_status check_shares(const dw_publisher *p, const shares *all, dw_error *err)
{
    const share *s = all->items, *end = all->items + all->n;
    for (size_t t = 0; t < p->pieces.n_table; t++) {
        const uint64_t n = dw_slice_whole(p->pieces.table, t).n;
        uint64_t at = 0;
        const share *before = NULL;
        for (; s < end && s->slice.tensor == t; before = s++) {
            if (s->slice.first > at)
                return fail_missing(p, t, at, s->slice.first, err);
            if (before && (s->slice.first < at || n == 0))
                return dw_fail_tensor(
                    err, DW_INVALID, dw_store_url(p->store), p->pieces.table[t].name,
                    "ranks %" PRIu32 " and %" PRIu32 " both have its elements from "
                    "%" PRIu64
                    " on: each must be in the shards of one rank. Leave a tied "
                    "tensor out on all ranks but one",
                    before->rank, s->rank, s->slice.first);
            at = s->slice.first + s->slice.n;
        }
        if (at < n || (n == 0 && !before))
            return fail_missing(p, t, at, n, err);
    }
    return DW_OK;
}

dw_status dw_ranks_check_cover(const dw_publisher *p, const dw_receipt_record *receipts,
                               dw_error *err)
{
    shares all = {0};
    dw_status status = DW_OK;
    for (uint32_t i = 0; status == DW_OK && i < p->options.n_ranks; i++)
        status = add_rank(&all, p, &receipts[i], err);
    if (all.n > 0)
        qsort(all.items, all.n, sizeof *all.items, compare_shares);
    if (status == DW_OK)
        status = check_shares(p, &all, err);
    dw_free(all.items);
    return status;
}
