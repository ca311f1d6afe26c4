/* Devices that hold weights in memory of their own. Experimental.
 *
 * A tensor whose `device` is set has its bytes there: `data` is an address of the device,
 * aligned to its elements. The library compares, encodes, decodes and stores such weights
 * on the device. The tensors of one list may be on several devices and in the memory of
 * the host. A function that cannot use tensors of a device returns
 * DW_UNSUPPORTED and changes nothing.
 *
 * Several threads may use a handle at once.
 */
#ifndef DELTAWIRE_DEVICE_H
#define DELTAWIRE_DEVICE_H

#include "deltawire/error.h"
#include "deltawire/export.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the device of that NAME: "cuda:0" is the first one of Nvidia's, in the driver's
 * order. DW_NOT_FOUND if there is no such device or no driver, DW_UNSUPPORTED if this
 * build has no kernels for it. */
DW_API dw_status dw_device_open(dw_device **out, const char *name, dw_error *err);

/* Close everything that uses it first. */
DW_API void dw_device_close(dw_device *device);

/* The name that it was opened with. */
DW_API const char *dw_device_name(const dw_device *device);

#ifdef __cplusplus
}
#endif

#endif
