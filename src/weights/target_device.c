/* Memory of devices, where stores can fail. */
#include "weights/target_inside.h"

/* What is staged can be applied again, unless somebody changed the weights. */
static dw_status apply(dw_target *r, dw_error *err)
{
    bool torn = false;
    dw_status status = dw_memory_store(r, &torn, err);
    if (status == DW_OK)
        return DW_OK;
    r->is_torn |= torn;
    if (status == DW_STALE && !torn) {
        dw_target_forget_staged(r);
        dw_target_forget(r);
        if (err)
            err->code = DW_CORRUPT;
        return DW_CORRUPT;
    }
    /* the old values were put back: is it so? */
    if (torn || dw_target_compare(r, 0, r->n_tensors, NULL) != DW_OK)
        dw_target_forget(r);
    return status;
}

static dw_status finish(dw_target *r, bool sweep, dw_error *err)
{
    return dw_memory_finish(r, sweep || r->is_torn, err);
}

const dw_target_ops dw_target_device = {
    .stage = dw_memory_stage,
    .prepare = dw_memory_prepare,
    .apply = apply,
    .finish = finish,
    .fill = dw_memory_fill,
    .move = dw_memory_move,
};
