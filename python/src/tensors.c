#include "tensors.h"

#include <string.h>

/* ---- element types of buffers ---- */

static bool dtype_of_format(dw_dtype *out, const char *format, Py_ssize_t n_bytes)
{
    if (!format)
        format = "B";
    const bool swapped = *format == '>' || *format == '!';
    if (strchr("@=<|>!", *format) && *format)
        format++;
    if (swapped && n_bytes > 1)
        return false;
    if (strcmp(format, "Zf") == 0) {
        *out = DW_C64;
        return true;
    }
    if (strlen(format) != 1)
        return false;
    static const dw_dtype of_int[] = {DW_I8, DW_I16, DW_I32, DW_I64};
    static const dw_dtype of_uint[] = {DW_U8, DW_U16, DW_U32, DW_U64};
    int width = n_bytes == 1 ? 0 : n_bytes == 2 ? 1 : n_bytes == 4 ? 2 : 3;
    if (strchr("bhilqn", *format))
        *out = of_int[width];
    else if (strchr("BHILQNc", *format))
        *out = of_uint[width];
    else if (*format == '?')
        *out = DW_BOOL;
    else if (*format == 'e')
        *out = DW_F16;
    else if (*format == 'f')
        *out = DW_F32;
    else if (*format == 'd')
        *out = DW_F64;
    else
        return false;
    return dw_dtype_bits(*out) == 8 * (unsigned)n_bytes;
}

/* ---- one tensor ---- */

static bool set_dims(dw_tensor *tensor, dwpy_hold *hold, size_t n_dims)
{
    if (n_dims > DW_MAX_DIMS) {
        dwpy_raise_text(DW_INVALID, tensor->name, "has more than 64 dimensions");
        return false;
    }
    hold->dims = PyMem_Calloc(n_dims + 1, sizeof *hold->dims);
    if (!hold->dims) {
        PyErr_NoMemory();
        return false;
    }
    tensor->n_dims = (uint32_t)n_dims;
    tensor->dims = hold->dims;
    return true;
}

static bool dims_of_sequence(dw_tensor *tensor, dwpy_hold *hold, PyObject *shape)
{
    PyObject *list = PySequence_List(shape);
    bool good = list && set_dims(tensor, hold, (size_t)PyList_Size(list));
    for (uint32_t i = 0; good && i < tensor->n_dims; i++) {
        hold->dims[i] = PyLong_AsUnsignedLongLong(PyList_GetItem(list, (Py_ssize_t)i));
        good = hold->dims[i] != UINT64_MAX || !PyErr_Occurred();
    }
    Py_XDECREF(list);
    return good;
}

static bool dims_of_view(dw_tensor *tensor, dwpy_hold *hold)
{
    const Py_buffer *view = &hold->view;
    if (!set_dims(tensor, hold, (size_t)view->ndim))
        return false;
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        hold->dims[i] = view->shape ? (uint64_t)view->shape[i] : (uint64_t)view->len;
    return true;
}

/* Reads the element type that is given beside a buffer. */
static bool take_dtype(dw_tensor *tensor, dwpy_hold *hold, const char *dtype,
                       PyObject *shape)
{
    if (!dw_dtype_from_name(&tensor->dtype, dtype)) {
        dwpy_raise_text(DW_INVALID, tensor->name,
                        "the element type beside the buffer is none of safetensors' "
                        "('BF16', 'F8_E4M3', ...)");
        return false;
    }
    if (shape)
        return dims_of_sequence(tensor, hold, shape);
    const unsigned bits = dw_dtype_bits(tensor->dtype);
    if (bits == 8 * (unsigned)hold->view.itemsize)
        return dims_of_view(tensor, hold);
    if (hold->view.itemsize == 1 && hold->view.ndim == 1) {
        if (!set_dims(tensor, hold, 1))
            return false;
        hold->dims[0] = (uint64_t)hold->view.len * 8 / bits;
        return true;
    }
    dwpy_raise_text(DW_INVALID, tensor->name,
                    "the element type beside the buffer has another width; give a shape "
                    "too, or a flat buffer of bytes");
    return false;
}

static bool take_buffer(dw_tensor *tensor, dwpy_hold *hold, PyObject *object,
                        bool writable)
{
    if (PyObject_GetBuffer(object, &hold->view, writable ? PyBUF_FULL : PyBUF_FULL_RO) <
        0)
        return false;
    hold->has_view = true;
    if (!PyBuffer_IsContiguous(&hold->view, 'C')) {
        dwpy_raise_text(DW_INVALID, tensor->name,
                        "is not C-contiguous: pass a contiguous copy");
        return false;
    }
    tensor->data = hold->view.buf;
    tensor->n_bytes = (uint64_t)hold->view.len;
    return true;
}

static bool take_plain(dw_tensor *tensor, dwpy_hold *hold, PyObject *object,
                       bool writable)
{
    if (!take_buffer(tensor, hold, object, writable))
        return false;
    const dw_tensor *own = dwpy_tensor_get(object);
    if (own) {
        tensor->dtype = own->dtype;
        if (!set_dims(tensor, hold, own->n_dims))
            return false;
        memcpy(hold->dims, own->dims, own->n_dims * sizeof *hold->dims);
        return true;
    }
    if (!dtype_of_format(&tensor->dtype, hold->view.format, hold->view.itemsize)) {
        dwpy_raise_text(DW_UNSUPPORTED, tensor->name,
                        "the buffer's format is no element type; pass (buffer, dtype)");
        return false;
    }
    return dims_of_view(tensor, hold);
}

/* A tensor without data. */
static bool take_shape(dw_tensor *tensor, dwpy_hold *hold, const char *dtype,
                       PyObject *shape)
{
    if (!take_dtype(tensor, hold, dtype, shape))
        return false;
    return dw_shape_size(tensor->dtype, tensor->n_dims, tensor->dims, NULL,
                         &tensor->n_bytes) ||
           dwpy_raise_text(DW_INVALID, tensor->name,
                           "has a shape that no memory can hold") != NULL;
}

static bool take_pair(dw_tensor *tensor, dwpy_hold *hold, PyObject *tuple,
                      dwpy_access access)
{
    PyObject *object, *dtype, *shape = NULL;
    if (!PyArg_ParseTuple(tuple,
                          "OU|O;a tensor is (buffer, dtype) or (buffer, dtype, "
                          "shape)",
                          &object, &dtype, &shape))
        return false;
    const char *name = dwpy_text(dtype);
    if (name && object == Py_None && shape && access == DWPY_SHAPE)
        return take_shape(tensor, hold, name, shape);
    return name && take_buffer(tensor, hold, object, access == DWPY_WRITE) &&
           take_dtype(tensor, hold, name, shape);
}

static bool has_method(PyObject *object, const char *name)
{
    PyObject *method = PyObject_GetAttrString(object, name);
    PyErr_Clear();
    Py_XDECREF(method);
    return method != NULL;
}

static bool take_one(dw_tensor *tensor, dwpy_hold *hold, dwpy_devices *devices,
                     PyObject *value, dwpy_access access)
{
    const bool writable = access == DWPY_WRITE;
    bool good;
    if (PyTuple_Check(value)) {
        good = take_pair(tensor, hold, value, access);
    } else if (PyObject_CheckBuffer(value)) {
        good = take_plain(tensor, hold, value, writable);
    } else if (has_method(value, "__dlpack__")) {
        good = dwpy_dlpack_take(tensor, hold, devices, value, tensor->name, writable);
        hold->may_move = good && has_method(value, "data_ptr");
    } else {
        PyErr_Format(PyExc_TypeError,
                     "tensor '%s': neither a buffer nor a DLPack exporter", tensor->name);
        return false;
    }
    uint64_t n_bytes;
    if (!good) {
        dwpy_name_error(tensor->name);
        return false;
    }
    if (!dw_shape_size(tensor->dtype, tensor->n_dims, tensor->dims, NULL, &n_bytes) ||
        n_bytes != tensor->n_bytes) {
        dwpy_raise_text(DW_INVALID, tensor->name,
                        "the buffer's size does not fit its type and shape");
        return false;
    }
    return true;
}

/* ---- all of them ---- */

static bool take_pairs(dwpy_tensors *out, PyObject *pairs, dwpy_access access,
                       const dwpy_devices *beside)
{
    *out = (dwpy_tensors){.items = Py_NewRef(pairs), .devices.beside = beside};
    const size_t n = (size_t)PyList_Size(pairs);
    out->tensors = PyMem_Calloc(n + 1, sizeof *out->tensors);
    out->holds = PyMem_Calloc(n + 1, sizeof *out->holds);
    bool good = out->tensors && out->holds;
    if (!good)
        PyErr_NoMemory();
    for (size_t i = 0; good && i < n; i++) {
        PyObject *key, *value;
        good = PyArg_ParseTuple(PyList_GetItem(pairs, (Py_ssize_t)i),
                                "UO;names of tensors are strings", &key, &value) &&
               (out->tensors[i].name = dwpy_text(key)) != NULL;
        if (!good)
            break;
        out->n = i + 1;
        good = take_one(&out->tensors[i], &out->holds[i], &out->devices, value, access);
    }
    if (!good)
        dwpy_tensors_release(out);
    return good;
}

bool dwpy_tensors_take_list(dwpy_tensors *out, PyObject *pairs, dwpy_access access)
{
    return take_pairs(out, pairs, access, NULL);
}

static bool take_mapping(dwpy_tensors *out, PyObject *mapping, dwpy_access access,
                         const dwpy_devices *beside)
{
    *out = (dwpy_tensors){0};
    PyObject *items = PyMapping_Check(mapping) ? PyMapping_Items(mapping) : NULL;
    if (!items) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_SetString(PyExc_TypeError, "tensors are a mapping of names to arrays");
        return false;
    }
    const bool good = take_pairs(out, items, access, beside);
    Py_DECREF(items);
    return good;
}

bool dwpy_tensors_take(dwpy_tensors *out, PyObject *mapping, dwpy_access access)
{
    return take_mapping(out, mapping, access, NULL);
}

bool dwpy_tensors_take_beside(dwpy_tensors *out, PyObject *mapping, dwpy_access access,
                              const dwpy_tensors *beside)
{
    return take_mapping(out, mapping, access, &beside->devices);
}

bool dwpy_tensors_check(const dwpy_tensors *tensors)
{
    for (size_t i = 0; i < tensors->n; i++) {
        if (!tensors->holds[i].may_move)
            continue;
        PyObject *pair = PyList_GetItem(tensors->items, (Py_ssize_t)i);
        PyObject *at = PyObject_CallMethod(PyTuple_GetItem(pair, 1), "data_ptr", NULL);
        const void *data = at ? PyLong_AsVoidPtr(at) : NULL;
        Py_XDECREF(at);
        if (PyErr_Occurred())
            return false;
        if (data != tensors->tensors[i].data && tensors->tensors[i].n_bytes > 0) {
            dwpy_raise_text(DW_CONFLICT, tensors->tensors[i].name,
                            "its memory was moved since it was given (share_memory(), "
                            "resize_(), .data): close this, and open it again");
            return false;
        }
    }
    return true;
}

void dwpy_tensors_release(dwpy_tensors *tensors)
{
    dwpy_devices_close(&tensors->devices);
    for (size_t i = 0; i < tensors->n; i++) {
        dwpy_hold *hold = &tensors->holds[i];
        if (hold->has_view)
            PyBuffer_Release(&hold->view);
        dwpy_dlpack_release(hold);
        PyMem_Free(hold->dims);
    }
    PyMem_Free(tensors->tensors);
    PyMem_Free(tensors->holds);
    Py_XDECREF(tensors->items);
    *tensors = (dwpy_tensors){0};
}
