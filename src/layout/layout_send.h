/* The stores of a patch in targets on a device. */
#ifndef DW_LAYOUT_LAYOUT_SEND_H
#define DW_LAYOUT_LAYOUT_SEND_H

#include "layout/layout_walk.h"
#include "tensor/device.h"

/* Computes the positions of all stores of JOB on DEVICE and copies them there. *N_STORED
 * takes their number. *OUT is NULL after a failure, and if there are none. */
dw_status dw_layout_send(dw_device_stores **out, uint64_t *n_stored, dw_layout_job *job,
                         dw_device *device, unsigned n_threads, dw_error *err);

#endif
