#include "publish/proof.h"

#include "base/error.h"
#include "base/mem.h"
#include "codec/delta.h"

/* The number of the piece that equals SLICE. */
static size_t find_piece(const dw_pieces *pieces, const dw_slice *slice)
{
    size_t low = 0, high = pieces->cut.n;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        const dw_slice *m = &pieces->cut.items[middle];
        if (m->tensor < slice->tensor ||
            (m->tensor == slice->tensor && m->first <= slice->first))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The pieces that an object covers. */
typedef struct covered {
    size_t n;
    size_t *pieces; /* numbers */
    dw_tensor *views;
    dw_digest *digests;
} covered;

static void release(covered *c)
{
    dw_free(c->pieces);
    dw_free(c->views);
    dw_free(c->digests);
}

static dw_status open_covered(covered *out, const dw_pieces *pieces,
                              const dw_object *object, const dw_tensor *base,
                              const dw_digest *before, dw_error *err)
{
    dw_slices slices;
    *out = (covered){0};
    dw_status status = dw_slices_of_covers(&slices, object->covers, object->n_covers,
                                           pieces->table, pieces->n_table, err);
    if (status != DW_OK)
        return status;
    out->n = slices.n;
    out->pieces = dw_alloc_array(slices.n, sizeof *out->pieces);
    out->views = dw_alloc_array(slices.n, sizeof *out->views);
    out->digests = dw_alloc_array(slices.n, sizeof *out->digests);
    if (!out->pieces || !out->views || !out->digests) {
        release(out);
        status = dw_fail_memory(err, object->key);
    }
    for (size_t i = 0; status == DW_OK && i < slices.n; i++) {
        const size_t piece = find_piece(pieces, &slices.items[i]);
        out->pieces[i] = piece;
        out->views[i] = base[piece];
        out->digests[i] = before[piece];
    }
    dw_slices_free(&slices);
    return status;
}

dw_status dw_delta_prove(const dw_pieces *pieces, const dw_object *object,
                         const dw_delta *delta, const dw_tensor *base,
                         const dw_digest *before, dw_digest *after, unsigned n_threads,
                         dw_error *err)
{
    covered c;
    dw_status status = open_covered(&c, pieces, object, base, before, err);
    if (status != DW_OK)
        return status;
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.n_threads = n_threads;
    options.base_digests = options.new_digests = c.digests;
    status = dw_delta_verify(delta, c.views, c.n, &options, err);
    for (size_t i = 0; status == DW_OK && i < c.n; i++)
        after[c.pieces[i]] = c.digests[i];
    release(&c);
    return status;
}

dw_status dw_delta_move(const dw_pieces *pieces, const dw_object *object,
                        const dw_delta *delta, const dw_tensor *base,
                        const dw_digest *before, unsigned n_threads, dw_error *err)
{
    covered c;
    dw_status status = open_covered(&c, pieces, object, base, before, err);
    if (status != DW_OK)
        return status;
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.n_threads = n_threads;
    options.base_digests = c.digests;
    status = dw_delta_apply_proven(delta, c.views, c.n, &options, err);
    release(&c);
    return status;
}
