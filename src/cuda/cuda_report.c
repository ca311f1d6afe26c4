#include "cuda/cuda.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "cuda/cuda_context.h"
#include "cuda/cuda_image.h"

void dw_cuda_look(dw_cuda_report *out)
{
    const dw_cuda_image *image = dw_cuda_image_get();
    const dw_cuda_driver *driver;
    dw_error err;
    memset(out, 0, sizeof *out);
    out->kernels = image ? image->targets : NULL;
    dw_status status = dw_cuda_driver_get(&driver, &err);
    if (status == DW_OK) {
        int n = 0;
        out->has_driver = true;
        out->driver_version = (uint32_t)driver->version;
        status =
            dw_cuda_check(driver, driver->device_count(&n), NULL, "count devices", &err);
        out->n_devices = status == DW_OK && n > 0 ? (uint32_t)n : 0;
        if (status == DW_OK && n <= 0)
            status = dw_fail(&err, DW_NOT_FOUND, NULL, "the driver sees no device");
    }
    if (status != DW_OK)
        dw_text_clean(out->fault, sizeof out->fault, err.text);
}

dw_status dw_cuda_describe(dw_cuda_device *out, uint32_t index, dw_error *err)
{
    const dw_cuda_driver *d;
    cu_device device;
    int major = 0, minor = 0, n = 0;
    size_t n_bytes = 0;
    memset(out, 0, sizeof *out);
    dw_status status = dw_cuda_driver_get(&d, err);
    if (status == DW_OK)
        status = dw_cuda_device_find(&device, d, index, err);
    if (status != DW_OK)
        return status;
    cu_result r = d->device_name(out->name, sizeof out->name, device);
    if (r == CU_SUCCESS)
        r = d->device_memory(&n_bytes, device);
    if (r == CU_SUCCESS)
        r = d->device_attribute(&major, CU_ATTRIBUTE_MAJOR, device);
    if (r == CU_SUCCESS)
        r = d->device_attribute(&minor, CU_ATTRIBUTE_MINOR, device);
    if (r == CU_SUCCESS)
        r = d->device_attribute(&n, CU_ATTRIBUTE_MULTIPROCESSORS, device);
    out->n_bytes = n_bytes;
    out->major = (uint32_t)major;
    out->minor = (uint32_t)minor;
    out->n_multiprocessors = (uint32_t)n;
    return dw_cuda_check(d, r, NULL, "describe a device", err);
}
