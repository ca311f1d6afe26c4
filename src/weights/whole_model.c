#include "weights/whole_model.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/progress.h"
#include "stream/anchor.h"
#include "tensor/device.h"

static dw_status fill_object(dw_store *store, const dw_object *object,
                             const dw_tensor *tensors, size_t n_tensors,
                             const dw_progress *progress, dw_error *err)
{
    dw_slices slices = {0};
    dw_anchor anchor = {0};
    dw_status status = dw_slices_of_covers(&slices, object->covers, object->n_covers,
                                           tensors, n_tensors, err);
    if (status == DW_OK)
        status = dw_anchor_open(&anchor, tensors, n_tensors, &slices, object->key, err);
    if (status == DW_OK && anchor.n_bytes != object->n_bytes)
        status = dw_fail(err, DW_CORRUPT, object->key,
                         "an anchor of these tensors has %" PRIu64 " bytes, not %" PRIu64,
                         anchor.n_bytes, object->n_bytes);
    if (status == DW_OK)
        status =
            dw_object_fetch_pieces(store, object, dw_anchor_take, &anchor, progress, err);
    dw_anchor_release(&anchor);
    dw_slices_free(&slices);
    return status;
}

dw_status dw_fill_from_anchor(void *context, const dw_tensor *tensors, size_t n_tensors,
                              dw_error *err)
{
    const dw_anchor_fill *f = context;
    dw_share share = {f->progress, 0, dw_objects_bytes(f->objects)};
    const dw_progress hook = dw_share_hook(&share);
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < f->objects->n; i++) {
        status =
            fill_object(f->store, &f->objects->items[i], tensors, n_tensors, &hook, err);
        share.before += f->objects->items[i].n_bytes;
    }
    return status;
}

dw_status dw_fill_from_tensors(void *context, const dw_tensor *tensors, size_t n_tensors,
                               dw_error *err)
{
    const dw_tensor *source = context;
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < n_tensors; i++)
        status = dw_place_copy((dw_place){tensors[i].device, tensors[i].data},
                               (dw_place){source[i].device, source[i].data},
                               tensors[i].n_bytes, err);
    return status;
}

static dw_status add_padded(uint64_t *total, const dw_tensor *table, size_t n_tensors,
                            dw_error *err)
{
    for (size_t i = 0; i < n_tensors; i++)
        if (table[i].n_bytes > UINT64_MAX - 63 ||
            __builtin_add_overflow(*total, dw_padded(table[i].n_bytes), total))
            return dw_fail_tensor(err, DW_INVALID, NULL, table[i].name,
                                  "makes the model larger than 2^64 bytes; its shapes "
                                  "cannot be right");
    return DW_OK;
}

dw_status dw_scratch_model_make(dw_scratch_model *out, const dw_tensor *table,
                                size_t n_tensors, const char *spool_dir, dw_error *err)
{
    *out = (dw_scratch_model){.tensors = dw_alloc_array(n_tensors, sizeof *table)};
    if (!out->tensors)
        return dw_fail_memory(err, NULL);
    uint64_t total = 0;
    dw_status status = add_padded(&total, table, n_tensors, err);
    if (status == DW_OK)
        status = dw_blob_make(&out->blob, total, spool_dir, err);
    if (status != DW_OK) {
        dw_scratch_model_release(out);
        return status;
    }
    uint8_t *at = out->blob.bytes;
    for (size_t i = 0; i < n_tensors; i++) {
        out->tensors[i] = table[i];
        out->tensors[i].data = at;
        out->tensors[i].device = NULL;
        at += dw_padded(table[i].n_bytes);
    }
    return DW_OK;
}

void dw_scratch_model_release(dw_scratch_model *model)
{
    dw_blob_release(&model->blob);
    dw_free(model->tensors);
    *model = (dw_scratch_model){0};
}
