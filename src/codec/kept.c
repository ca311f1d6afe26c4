#include "codec/kept.h"

#include <inttypes.h>

#include "base/error.h"

/* Waits for the first N stores. Sets *N_WRONG to the number of weights that are not what
 * they should be, and *NAME to a tensor with one. */
static dw_status wait_for(const dw_kept *kept, size_t n, const dw_tensor *tensors,
                          uint64_t *n_wrong, const char **name, dw_status status,
                          dw_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const dw_kept *k = &kept[i];
        uint64_t n_here = 0;
        size_t t = 0;
        dw_status waited = k->device->ops->stage_wait(k->changes, &n_here, &t,
                                                      status == DW_OK ? err : NULL);
        if (status == DW_OK)
            status = waited;
        if (waited == DW_OK && n_here > 0)
            *name = tensors[k->tensor_of ? k->tensor_of[t] : t].name;
        *n_wrong += n_here;
    }
    return status;
}

dw_status dw_kept_store(const dw_kept *kept, size_t n, const dw_tensor *tensors,
                        bool *torn, dw_error *err)
{
    size_t n_begun = 0;
    uint64_t n_wrong = 0;
    const char *name = NULL;
    dw_status status = DW_OK;
    *torn = false;
    while (status == DW_OK && n_begun < n) {
        status = kept[n_begun].device->ops->stage_store(kept[n_begun].changes, err);
        n_begun += status == DW_OK;
    }
    status = wait_for(kept, n_begun, tensors, &n_wrong, &name, status, err);
    if (status == DW_OK && n_wrong == 0)
        return DW_OK;
    for (size_t i = 0; i < n_begun; i++)
        if (kept[i].device->ops->stage_undo(kept[i].changes, NULL) != DW_OK)
            *torn = true;
    if (status != DW_OK)
        return status;
    return dw_fail_tensor(err, DW_STALE, "memory", name,
                          "%" PRIu64 " weights on devices are not what they were when "
                          "the step was staged; %s",
                          n_wrong,
                          *torn ? "and it cannot be taken back"
                                : "it was taken back: stage it again");
}

void dw_kept_drop(dw_kept *kept, size_t n)
{
    for (size_t i = 0; i < n; i++)
        kept[i].device->ops->stage_free(kept[i].changes);
}
