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
    dl_managed *managed;
    dl_managed_versioned *versioned;
} dwpy_hold;

/* The tensors of a mapping, in its order, and their references. */
typedef struct dwpy_tensors {
    dw_tensor *tensors;
    dwpy_hold *holds;
    size_t n;
    PyObject *items; /* keys and values */
} dwpy_tensors;

typedef enum dwpy_access {
    DWPY_READ,
    DWPY_WRITE, /* read-only memory is refused */
    DWPY_SHAPE, /* read, but (None, dtype, shape) is enough */
} dwpy_access;
bool dwpy_tensors_take(dwpy_tensors *out, PyObject *mapping, dwpy_access access);
/* The same for a list of names and arrays; names may be repeated. */
bool dwpy_tensors_take_list(dwpy_tensors *out, PyObject *pairs, dwpy_access access);
void dwpy_tensors_release(dwpy_tensors *tensors);

/* ---- tensors_dlpack.c ---- */

/* Fills TENSOR (all but its name) and HOLD from an object with __dlpack__. */
bool dwpy_dlpack_take(dw_tensor *tensor, dwpy_hold *hold, PyObject *object,
                      const char *name, bool writable);
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
