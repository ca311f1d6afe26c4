/* A device as the rest of the library sees it (tensor/device.h). */
#ifndef DW_CUDA_CUDA_DEVICE_H
#define DW_CUDA_CUDA_DEVICE_H

#include "cuda/cuda_image.h"
#include "tensor/device.h"

/* dw_device_open for device INDEX with the kernels of IMAGE; NULL: those of this build.
 */
dw_status dw_cuda_device_open(dw_device **out, uint32_t index, const dw_cuda_image *image,
                              dw_error *err);

/* A handle of the same device, with a stream of its own. */
struct dw_cuda;
dw_status dw_cuda_device_handle(struct dw_cuda **out, const dw_device *device,
                                dw_error *err);

#endif
