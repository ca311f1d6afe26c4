/* All weights of a version at once: room for them, and the sources they come from. */
#ifndef DW_WEIGHTS_WHOLE_MODEL_H
#define DW_WEIGHTS_WHOLE_MODEL_H

#include "stream/stream.h"
#include "stream/transfer.h"

/* Room for all weights of a model in a mapped file without a name. */
typedef struct dw_scratch_model {
    dw_tensor *tensors; /* names ascending */
    dw_blob blob;
} dw_scratch_model;

dw_status dw_scratch_model_make(dw_scratch_model *out, const dw_tensor *table,
                                size_t n_tensors, const char *spool_dir, dw_error *err);
void dw_scratch_model_release(dw_scratch_model *model);

/* A source: stores every weight of a version into TENSORS, names ascending. */
typedef dw_status (*dw_fill_fn)(void *context, const dw_tensor *tensors, size_t n_tensors,
                                dw_error *err);

/* The objects of an anchor. CONTEXT is a dw_anchor_fill. */
typedef struct dw_anchor_fill {
    dw_store *store;
    const dw_objects *objects;
    const dw_progress *progress;
} dw_anchor_fill;
dw_status dw_fill_from_anchor(void *context, const dw_tensor *tensors, size_t n_tensors,
                              dw_error *err);

/* Other tensors, names ascending. CONTEXT is a const dw_tensor array. */
dw_status dw_fill_from_tensors(void *context, const dw_tensor *tensors, size_t n_tensors,
                               dw_error *err);

#endif
