#include "stream/verify_object.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/digest.h"
#include "deltawire/delta.h"
#include "store/store.h"
#include "stream/anchor.h"
#include "tensor/dtype.h"
#include "tensor/tensor_list.h"

/* ---- deltas ---- */

/* Checks that the delta was made from exactly the slices in the record. */
static dw_status check_tensors(const dw_delta *delta, const dw_delta_info *info,
                               const dw_slice_list *list, const char *where,
                               dw_error *err)
{
    dw_name_index names;
    dw_status status = dw_name_index_init(&names, list->tensors, list->n, err);
    if (status != DW_OK)
        return status;
    for (size_t i = 0; status == DW_OK && i < info->n_tensors; i++) {
        dw_delta_tensor_info t;
        dw_delta_tensor(delta, i, &t);
        const dw_tensor shape = {
            .name = t.name, .dtype = t.dtype, .n_dims = t.n_dims, .dims = t.dims};
        size_t found = dw_name_index_find(&names, t.name);
        status =
            found == SIZE_MAX
                ? dw_fail_tensor(err, DW_CORRUPT, where, t.name,
                                 "the delta changes it, but the record does not say so")
                : dw_tensor_same_shape(&list->tensors[found], &shape, where, err);
    }
    dw_name_index_release(&names);
    uint64_t n_elems = 0;
    for (size_t i = 0; i < list->n; i++)
        n_elems += dw_tensor_units(&list->tensors[i]);
    if (status == DW_OK &&
        (info->n_model_tensors != list->n || info->n_model_elems != n_elems))
        status = dw_fail(err, DW_CORRUPT, where,
                         "the delta was made over %" PRIu64 " tensors and %" PRIu64
                         " elements, but the record says %zu and %" PRIu64,
                         info->n_model_tensors, info->n_model_elems, list->n, n_elems);
    return status;
}

static dw_status check_delta(const dw_expected *x, const dw_object *object,
                             const dw_delta *delta, const char *where, dw_error *err)
{
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    if (!info.has_digests)
        return dw_fail(err, DW_CORRUPT, where, "the delta has no digests to verify by");
    if (info.base_version != x->from || info.new_version != x->to)
        return dw_fail(err, DW_CORRUPT, where,
                       "the delta leads from version %" PRIu64 " to %" PRIu64
                       ", but its record says from %" PRIu64 " to %" PRIu64,
                       info.base_version, info.new_version, x->from, x->to);
    /* over the whole model, what it names are states of versions */
    if (!object->covers && (info.new_state != x->state ||
                            (x->has_from_state && info.base_state != x->from_state)))
        return dw_fail(err, DW_CORRUPT, where,
                       "the delta leads from the state %016" PRIx64 " to %016" PRIx64
                       ", which is not what the commits say",
                       info.base_state, info.new_state);
    dw_slices slices = {0};
    dw_slice_list list = {0};
    dw_status status = dw_slices_of_covers(&slices, object->covers, object->n_covers,
                                           x->tensors, x->n_tensors, err);
    if (status == DW_OK)
        status =
            dw_slices_open(&list, x->tensors, x->n_tensors, slices.items, slices.n, err);
    if (status == DW_OK)
        status = check_tensors(delta, &info, &list, where, err);
    dw_slices_release(&list);
    dw_slices_free(&slices);
    return status;
}

dw_status dw_verify_delta(const dw_expected *expected, dw_store *store,
                          const dw_object *object, const dw_progress *progress,
                          dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    dw_store_where(store, object->key, where, sizeof where);
    dw_blob blob;
    dw_status status = dw_object_fetch(&blob, store, object, NULL, progress, err);
    if (status != DW_OK)
        return status;
    dw_delta *delta = NULL;
    status = dw_delta_open_bytes(&delta, blob.bytes, blob.n_bytes, where, err);
    if (status == DW_OK)
        status = check_delta(expected, object, delta, where, err);
    dw_delta_close(delta);
    dw_blob_release(&blob);
    return status;
}

/* ---- anchors ---- */

/* Adds the shares of the file's slices to those of the tensors they are of. */
static dw_status add_shares(const dw_expected *x, const dw_anchor *anchor,
                            const dw_slices *slices, const dw_digest *shares,
                            dw_error *err)
{
    dw_slice_list list; /* the same tensors, in the order of the slices */
    dw_name_index names;
    dw_status status =
        dw_slices_open(&list, x->tensors, x->n_tensors, slices->items, slices->n, err);
    if (status != DW_OK)
        return status;
    status = dw_name_index_init(&names, list.tensors, list.n, err);
    if (status == DW_OK) {
        for (size_t i = 0; i < anchor->list.n; i++) {
            size_t k = dw_name_index_find(&names, anchor->list.tensors[i].name);
            dw_digest *sum = &x->shares[slices->items[k].tensor];
            *sum = dw_digest_plus(*sum, shares[i]);
        }
        dw_name_index_release(&names);
    }
    dw_slices_release(&list);
    return status;
}

dw_status dw_verify_anchor(const dw_expected *x, dw_store *store, const dw_object *object,
                           const dw_progress *progress, dw_error *err)
{
    char where[DW_ERROR_WHERE_SIZE];
    dw_store_where(store, object->key, where, sizeof where);
    dw_slices slices = {0};
    dw_anchor anchor = {0};
    dw_anchor_check check = {0};
    dw_status status = dw_slices_of_covers(&slices, object->covers, object->n_covers,
                                           x->tensors, x->n_tensors, err);
    if (status == DW_OK)
        status = dw_anchor_open(&anchor, x->tensors, x->n_tensors, &slices, where, err);
    if (status == DW_OK && anchor.n_bytes != object->n_bytes)
        status =
            dw_fail(err, DW_CORRUPT, where,
                    "the record says %" PRIu64 " bytes, but an anchor of these tensors "
                    "has %" PRIu64,
                    object->n_bytes, anchor.n_bytes);
    if (status == DW_OK)
        status = dw_anchor_check_open(&check, &anchor, err);
    if (status == DW_OK)
        status = dw_object_fetch_pieces(store, object, dw_anchor_check_take, &check,
                                        progress, err);
    if (status == DW_OK)
        status = add_shares(x, &anchor, &slices, check.shares, err);
    dw_anchor_check_release(&check);
    dw_anchor_release(&anchor);
    dw_slices_free(&slices);
    return status;
}

dw_status dw_verify_shares(const dw_expected *x, const char *where, dw_error *err)
{
    dw_digest found = dw_digest_state(x->tensors, x->shares, x->n_tensors);
    if (found == x->state)
        return DW_OK;
    return dw_fail(err, DW_CORRUPT, where,
                   "the anchor's weights have the state %016" PRIx64
                   ", but version %" PRIu64 " has %016" PRIx64,
                   found, x->to, x->state);
}
