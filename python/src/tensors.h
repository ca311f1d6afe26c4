/* Converts Python objects (buffers and DLPack exporters) to dw_tensor and back. */
#ifndef DWPY_TENSORS_H
#define DWPY_TENSORS_H

#include "core.h"
#include "dlpack.h"

/* Keeps the memory of one tensor alive. */
typedef struct dwpy_hold {
    uint64_t *dims;
    bool has_view;
    Py_buffer view;
    bool may_move; /* the object has data_ptr() */
    dl_managed *managed;
    dl_managed_versioned *versioned;
} dwpy_hold;

/* The devices that a list of tensors uses, each open once. */
typedef struct dwpy_devices {
    dw_device **items;
    size_t n;
    const struct dwpy_devices *beside; /* those of another list, which are used first */
} dwpy_devices;

/* The tensors of a mapping, in its order, and their references. */
typedef struct dwpy_tensors {
    dw_tensor *tensors;
    dwpy_hold *holds;
    size_t n;
    dwpy_devices devices;
    PyObject *items; /* keys and values */
} dwpy_tensors;

typedef enum dwpy_access {
    DWPY_READ,
    DWPY_WRITE, /* read-only memory is refused */
    DWPY_SHAPE, /* read, but (None, dtype, shape) is enough */
} dwpy_access;
bool dwpy_tensors_take(dwpy_tensors *out, PyObject *mapping, dwpy_access access);
/* The same for a list that the library sees together with BESIDE, which is released after
 * it. */
bool dwpy_tensors_take_beside(dwpy_tensors *out, PyObject *mapping, dwpy_access access,
                              const dwpy_tensors *beside);
/* The same for a list of names and arrays; names may be repeated. */
bool dwpy_tensors_take_list(dwpy_tensors *out, PyObject *pairs, dwpy_access access);
/* Raises Conflict if an object has moved its memory since it was taken: a tensor of
 * PyTorch does so under share_memory(), resize_() and .data. The old memory may be freed
 * then, whatever is held. */
bool dwpy_tensors_check(const dwpy_tensors *tensors);
/* After everything that uses them is closed: it closes their devices, too. */
void dwpy_tensors_release(dwpy_tensors *tensors);

/* ---- devices.c ---- */

/* The handle of CUDA's device INDEX, opened if the list does not have it. NULL with an
 * exception that names the tensor NAME. */
dw_device *dwpy_devices_use(dwpy_devices *devices, long index, const char *name);
/* The handle of a device by its name, or NULL. Raises nothing. */
dw_device *dwpy_devices_find(const dwpy_devices *devices, const char *name);
void dwpy_devices_close(dwpy_devices *devices);

/* ---- tensors_dlpack.c ---- */

/* Fills TENSOR (all but its name) and HOLD from an object with __dlpack__. */
bool dwpy_dlpack_take(dw_tensor *tensor, dwpy_hold *hold, dwpy_devices *devices,
                      PyObject *object, const char *name, bool writable);
void dwpy_dlpack_release(dwpy_hold *hold);

/* ---- tensor_type.c: deltawire.Tensor ---- */

/* A view of TENSOR, whose strings and memory live as long as OWNER. */
PyObject *dwpy_tensor_new(PyObject *owner, const dw_tensor *tensor, bool readonly);
/* The dw_tensor of a deltawire.Tensor, or NULL for any other object. Raises nothing. */
const dw_tensor *dwpy_tensor_get(PyObject *object);

/* ---- dlpack_out.c ---- */

/* __dlpack__ of a tensor that OWNER keeps alive. */
PyObject *dwpy_dlpack_give(PyObject *owner, const dw_tensor *tensor, bool readonly,
                           PyObject *args, PyObject *keywords);

#endif
