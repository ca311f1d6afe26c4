/* CUDA: what this build and this machine have of it.
 *
 * The library links nothing of CUDA. It loads the driver, libcuda.so.1, when it is first
 * asked about devices, so the same binary runs with and without one. The environment
 * variable DELTAWIRE_CUDA_DRIVER names another library in its place. No function here
 * changes the calling thread's context or the state of other users of a device.
 */
#ifndef DW_CUDA_CUDA_H
#define DW_CUDA_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "deltawire/base.h"

typedef struct dw_cuda_report {
    const char *kernels;     /* what this build has kernels for, e.g. "sm_90 PTX"; NULL if
                                it was built without them */
    bool has_driver;         /* the driver was loaded and works */
    uint32_t driver_version; /* 13000 for CUDA 13.0 */
    uint32_t n_devices;
    char fault[256]; /* why there is no driver or no device; else empty */
    uint64_t reserved[8];
} dw_cuda_report;

/* What this build and this machine have. It does not fail: a machine without a driver is
 * a report too. */
void dw_cuda_look(dw_cuda_report *out);

typedef struct dw_cuda_device {
    char name[128];
    uint64_t n_bytes; /* its memory */
    uint32_t major;   /* compute capability */
    uint32_t minor;
    uint32_t n_multiprocessors;
    uint32_t unused;
    uint64_t reserved[8];
} dw_cuda_device;

/* Describes device INDEX, counted from 0 in the driver's order. DW_NOT_FOUND if there is
 * no such device or no driver. */
dw_status dw_cuda_describe(dw_cuda_device *out, uint32_t index, dw_error *err);

#endif
