/* The devices of tensors. Each list of tensors opens its own: a handle has its own queue
 * of work, so a publisher and a follower of one process do not wait for each other. */
#include "tensors.h"

#include <stdio.h>
#include <string.h>

static dw_status open_device(dw_device **out, const char *device, dw_error *err)
{
    dw_status status;
    *out = NULL;
    Py_BEGIN_ALLOW_THREADS status = dw_device_open(out, device, err);
    Py_END_ALLOW_THREADS return status;
}

dw_device *dwpy_devices_find(const dwpy_devices *devices, const char *name)
{
    for (; devices; devices = devices->beside)
        for (size_t i = 0; i < devices->n; i++)
            if (strcmp(dw_device_name(devices->items[i]), name) == 0)
                return devices->items[i];
    return NULL;
}

dw_device *dwpy_devices_use(dwpy_devices *devices, long index, const char *name)
{
    char device[32];
    snprintf(device, sizeof device, "cuda:%ld", index);
    dw_device *found = dwpy_devices_find(devices, device);
    if (found)
        return found;
    dw_device **items =
        PyMem_Realloc(devices->items, (devices->n + 1) * sizeof *devices->items);
    if (!items) {
        PyErr_NoMemory();
        return NULL;
    }
    devices->items = items;
    dw_error err = {0};
    const dw_status status = open_device(&items[devices->n], device, &err);
    if (status == DW_OK)
        return items[devices->n++];
    char text[DW_ERROR_TEXT_SIZE + 96];
    snprintf(text, sizeof text, "is on CUDA's device %ld, which cannot be used: %s",
             index, err.text);
    dwpy_raise_text(status == DW_NOT_FOUND ? DW_UNSUPPORTED : status, name, text);
    return NULL;
}

void dwpy_devices_close(dwpy_devices *devices)
{
    Py_BEGIN_ALLOW_THREADS for (size_t i = 0; i < devices->n; i++)
        dw_device_close(devices->items[i]);
    Py_END_ALLOW_THREADS PyMem_Free(devices->items);
    *devices = (dwpy_devices){0};
}

PyObject *dwpy_device_fault(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name;
    if (!PyArg_ParseTuple(args, "s:device_fault", &name))
        return NULL;
    dw_device *device;
    dw_error err = {0};
    const dw_status status = open_device(&device, name, &err);
    if (status == DW_INVALID)
        return dwpy_raise(status, &err);
    Py_BEGIN_ALLOW_THREADS dw_device_close(device);
    Py_END_ALLOW_THREADS return dwpy_string(status == DW_OK ? NULL : err.text);
}
