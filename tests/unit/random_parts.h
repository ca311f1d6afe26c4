/* A new version of a model as parts: a delta for each piece of a random cut. Include
 * after cmocka.h. */
#ifndef DW_TEST_RANDOM_PARTS_H
#define DW_TEST_RANDOM_PARTS_H

#include "codec/parts.h"
#include "random_cut.h"
#include "inner.h"

typedef struct parts {
    cut cut;
    dw_delta *deltas[CUT_PARTS];
    dw_digest *base_digests[CUT_PARTS], *new_digests[CUT_PARTS];
    dw_part list[CUT_PARTS];
} parts;

/* The trainer's side: new_digests takes the digests of the ranks. */
static inline parts parts_make(const model *base, const model *next, dw_codec codec)
{
    parts p = {.cut = cut_random(base)};
    for (size_t i = 0; i < CUT_PARTS; i++) {
        dw_slice_list from, to;
        const size_t n = p.cut.n[i];
        assert_int_equal(
            dw_slices_open(&from, base->tensors, base->n, p.cut.slices[i], n, NULL),
            DW_OK);
        assert_int_equal(
            dw_slices_open(&to, next->tensors, next->n, p.cut.slices[i], n, NULL), DW_OK);
        p.base_digests[i] = calloc(n + 1, sizeof(dw_digest));
        p.new_digests[i] = calloc(n + 1, sizeof(dw_digest));
        assert_int_equal(
            dw_digest_tensors(p.base_digests[i], NULL, from.tensors, n, 1, NULL, NULL),
            DW_OK);
        dw_diff_options options;
        dw_diff_options_init(&options);
        options.codec = codec;
        options.new_digests = p.new_digests[i];
        assert_int_equal(
            dw_delta_diff(&p.deltas[i], from.tensors, to.tensors, n, &options, NULL),
            DW_OK);
        dw_slices_release(&from);
        dw_slices_release(&to);
        p.list[i] =
            (dw_part){.delta = p.deltas[i], .slices = p.cut.slices[i], .n_slices = n};
    }
    return p;
}

static inline void parts_free(parts *p)
{
    for (size_t i = 0; i < CUT_PARTS; i++) {
        dw_delta_close(p->deltas[i]);
        free(p->base_digests[i]);
        free(p->new_digests[i]);
    }
    cut_free(&p->cut);
}

/* The state that the stream's commit would have for the new version. */
static inline dw_patch_goal parts_goal(const parts *p, const model *next)
{
    dw_digest shares[CUT_PARTS + 1] = {dw_state_floor(next->tensors, next->n)};
    for (size_t i = 0; i < CUT_PARTS; i++)
        shares[i + 1] = dw_slices_share(next->tensors, p->cut.slices[i],
                                        p->new_digests[i], p->cut.n[i]);
    return (dw_patch_goal){true, dw_digest_sum(shares, CUT_PARTS + 1), 42};
}

#endif
