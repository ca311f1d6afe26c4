/* The functions `capture_` of a device's table (tensor/device.h). */
#ifndef DW_CUDA_CUDA_CAPTURE_H
#define DW_CUDA_CUDA_CAPTURE_H

#include "codec/encode.h"
#include "tensor/device.h"

dw_status dw_cuda_capture_open(dw_device_capture **out, dw_device *device,
                               const dw_tensor *base, const dw_tensor *next,
                               size_t n_tensors, dw_error *err);
void dw_cuda_capture_close(dw_device_capture *c);
dw_status dw_cuda_capture_hold(dw_device_capture *c, void *stream, bool is_careful,
                               dw_error *err);
dw_status dw_cuda_capture_wait(dw_device_capture *c, dw_error *err);
dw_status dw_cuda_capture_encode(dw_device_capture *c, dw_error *err);
dw_status dw_cuda_capture_fetch(dw_device_capture *c, size_t t, dw_class_map *map,
                                dw_encode_item *items, size_t n_items, dw_error *err);
void dw_cuda_capture_end(dw_device_capture *c);

#endif
