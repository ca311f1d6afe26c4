#include "weights/staging.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"

struct dw_staged_part {
    dw_delta *delta;
    dw_slices slices;
    dw_digest *before; /* [slices] */
    dw_digest *after;
};

static dw_status make_room(dw_staging *out, size_t n, dw_error *err)
{
    *out = (dw_staging){.parts = dw_alloc_zeroed(n, sizeof *out->parts),
                        .own = dw_alloc_zeroed(n, sizeof *out->own)};
    if (!out->parts || !out->own)
        return dw_fail_memory(err, NULL);
    out->n = n;
    return DW_OK;
}

void dw_staging_close(dw_staging *s)
{
    for (size_t i = 0; i < s->n; i++) {
        dw_delta_close(s->own[i].delta);
        dw_slices_free(&s->own[i].slices);
        dw_free(s->own[i].before);
        dw_free(s->own[i].after);
    }
    dw_free(s->parts);
    dw_free(s->own);
    *s = (dw_staging){0};
}

static dw_status make_digests(struct dw_staged_part *p, dw_error *err)
{
    p->before = dw_alloc_zeroed(p->slices.n, sizeof *p->before);
    p->after = dw_alloc_zeroed(p->slices.n, sizeof *p->after);
    return p->before && p->after ? DW_OK : dw_fail_memory(err, NULL);
}

static void connect(dw_staging *s, size_t i, const dw_delta *delta)
{
    struct dw_staged_part *p = &s->own[i];
    s->parts[i] = (dw_part){.delta = delta,
                            .slices = p->slices.items,
                            .n_slices = p->slices.n,
                            .base_digests = p->before,
                            .new_digests = p->after};
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    s->n_changed += info.n_changed;
}

/* Part I of a version: DELTA, over the slices that OBJECT covers. */
static dw_status add_part(dw_staging *out, size_t i, const dw_object *object,
                          const dw_delta *delta, const dw_tensor *tensors,
                          size_t n_tensors, const dw_digest *digests, unsigned n_threads,
                          dw_error *err)
{
    struct dw_staged_part *p = &out->own[i];
    dw_status status = dw_slices_of_covers(&p->slices, object->covers, object->n_covers,
                                           tensors, n_tensors, err);
    if (status == DW_OK)
        status = make_digests(p, err);
    if (status == DW_OK)
        status = dw_slices_digest(p->before, &p->slices, tensors, n_tensors, digests,
                                  n_threads, err);
    if (status == DW_OK)
        connect(out, i, delta);
    return status;
}

dw_status dw_staging_open(dw_staging *out, const dw_objects *objects,
                          const dw_blob *blobs, const dw_tensor *tensors,
                          size_t n_tensors, const dw_digest *digests, unsigned n_threads,
                          dw_error *err)
{
    dw_status status = make_room(out, objects->n, err);
    for (size_t i = 0; status == DW_OK && i < objects->n; i++) {
        const dw_object *o = &objects->items[i];
        struct dw_staged_part *p = &out->own[i];
        status =
            dw_delta_open_bytes(&p->delta, blobs[i].bytes, blobs[i].n_bytes, o->key, err);
        if (status == DW_OK)
            status = add_part(out, i, o, p->delta, tensors, n_tensors, digests, n_threads,
                              err);
    }
    return status;
}

dw_status dw_staging_open_deltas(dw_staging *out, const dw_objects *objects,
                                 dw_delta *const *deltas, const dw_tensor *tensors,
                                 size_t n_tensors, const dw_digest *digests,
                                 unsigned n_threads, dw_error *err)
{
    dw_status status = make_room(out, objects->n, err);
    for (size_t i = 0; status == DW_OK && i < objects->n; i++)
        status = add_part(out, i, &objects->items[i], deltas[i], tensors, n_tensors,
                          digests, n_threads, err);
    return status;
}

dw_status dw_staging_open_one(dw_staging *out, dw_delta *delta, const dw_tensor *tensors,
                              size_t n_tensors, const dw_digest *digests, dw_error *err)
{
    dw_status status = make_room(out, 1, err);
    if (status != DW_OK) {
        dw_delta_close(delta);
        return status;
    }
    struct dw_staged_part *p = &out->own[0];
    p->delta = delta;
    const dw_object all = {0};
    status = add_part(out, 0, &all, delta, tensors, n_tensors, digests, 1, err);
    return status;
}

void dw_staging_digests(const dw_staging *s, size_t n_tensors, const dw_digest *before,
                        dw_digest *after)
{
    if (n_tensors > 0)
        memcpy(after, before, n_tensors * sizeof *after);
    for (size_t i = 0; i < s->n; i++) {
        const struct dw_staged_part *p = &s->own[i];
        for (size_t k = 0; k < p->slices.n; k++) {
            dw_digest *d = &after[p->slices.items[k].tensor];
            dw_digest gone = p->before[k] == 0 ? 0 : DW_DIGEST_PRIME - p->before[k];
            *d = dw_digest_plus(dw_digest_plus(*d, gone), p->after[k]);
        }
    }
}
