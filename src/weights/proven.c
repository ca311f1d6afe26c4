#include "weights/proven.h"

#include <stdatomic.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/delta.h"
#include "codec/element.h"
#include "codec/stage.h"
#include "tensor/device.h"

/* The number of the piece that equals SLICE. */
static size_t find_piece(const dw_slices *cut, const dw_slice *slice)
{
    size_t low = 0, high = cut->n;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        const dw_slice *m = &cut->items[middle];
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

static dw_status open_covered(covered *out, const dw_proven *p, const dw_object *object,
                              const dw_tensor *table, size_t n_table, dw_error *err)
{
    dw_slices slices;
    *out = (covered){0};
    dw_status status = dw_slices_of_covers(&slices, object->covers, object->n_covers,
                                           table, n_table, err);
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
        const size_t piece = find_piece(p->cut, &slices.items[i]);
        out->pieces[i] = piece;
        out->views[i] = p->views[piece];
        out->digests[i] = p->before[piece];
    }
    dw_slices_free(&slices);
    return status;
}

typedef struct counter {
    const dw_tensor *views;
    atomic_uint_fast64_t n;
} counter;

/* All bits of the exponent; 0: the type is not looked at. */
static uint64_t exponent_of(dw_dtype dtype)
{
    const dw_element e = dw_dtype_element(dtype);
    if (dtype != DW_BF16 && dtype != DW_F16 && dtype != DW_F32 && dtype != DW_F64)
        return 0;
    return (1ull << (8 * e.width - 1)) - (1ull << e.exponent_shift);
}

/* Counts new values that are infinite or no number. */
static dw_status count_wild(void *context, size_t t, uint64_t first,
                            const dw_decoded *changes, dw_error *err)
{
    counter *c = context;
    const dw_dtype dtype = c->views[t].dtype;
    const unsigned width = dw_dtype_element(dtype).width;
    const uint64_t exponent = exponent_of(dtype);
    uint64_t n = 0;
    (void)first, (void)err;
    for (size_t i = 0; exponent != 0 && i < changes->n_changes; i++)
        n += (dw_element_load(changes->values, i, width) & exponent) == exponent;
    if (n > 0)
        atomic_fetch_add(&c->n, n);
    return DW_OK;
}

dw_status dw_delta_prove(const dw_proven *p, const dw_object *object,
                         const dw_delta *delta, const dw_tensor *table, size_t n_table,
                         unsigned n_threads, uint64_t *n_wild, dw_error *err)
{
    covered c;
    dw_status status = open_covered(&c, p, object, table, n_table, err);
    if (status != DW_OK)
        return status;
    dw_apply_options options;
    dw_apply_options_init(&options);
    options.n_threads = n_threads;
    options.base_digests = options.new_digests = c.digests;
    counter found = {.views = c.views};
    dw_stage *stage;
    dw_stage_result result;
    status = dw_stage_open(&stage, delta, c.views, c.n, n_threads, err);
    if (status == DW_OK)
        status = dw_stage_verify(&result, stage, &options,
                                 dw_tensors_on_device(c.views, c.n) ? NULL : count_wild,
                                 &found, err);
    dw_stage_close(stage);
    *n_wild += found.n;
    for (size_t i = 0; status == DW_OK && i < c.n; i++)
        p->after[c.pieces[i]] = c.digests[i];
    release(&c);
    return status;
}

dw_status dw_proven_apply(const dw_proven *p, const dw_tensor *table, size_t n_table,
                          unsigned n_threads, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < p->objects->n; i++) {
        covered c;
        status = open_covered(&c, p, &p->objects->items[i], table, n_table, err);
        if (status != DW_OK)
            break;
        dw_apply_options options;
        dw_apply_options_init(&options);
        options.n_threads = n_threads;
        options.base_digests = c.digests;
        status = dw_delta_apply_proven(p->deltas[i], c.views, c.n, &options, err);
        release(&c);
    }
    return status;
}
