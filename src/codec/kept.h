/* Changes that were decoded on devices and stay there until they are stored. */
#ifndef DW_CODEC_KEPT_H
#define DW_CODEC_KEPT_H

#include "tensor/device.h"

typedef struct dw_kept {
    dw_device *device;
    dw_device_stage *changes;
    uint64_t n_changed;
    const size_t *tensor_of; /* for errors: the tensor of each that was decoded; NULL: its
                                own number */
} dw_kept;

/* Stores all changes, on all devices at the same time, and reads them back. DW_STALE,
 * with the name from TENSORS, if a weight held neither the old value nor the new one.
 * After a failure the old values are back, unless *TORN: then a device did not even do
 * that, and the weights may be a mix. May be called again. */
dw_status dw_kept_store(const dw_kept *kept, size_t n, const dw_tensor *tensors,
                        bool *torn, dw_error *err);

/* Frees what the devices keep. */
void dw_kept_drop(dw_kept *kept, size_t n);

#endif
