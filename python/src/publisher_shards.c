/* Converts names of tensors and devices to the library's lists (masters, unchanged
 * tensors, shards, CUDA streams). */
#include "publisher_type.h"

#include <limits.h>

/* ---- names ---- */

bool dwpy_publisher_number(publisher_object *self)
{
    self->numbers = PyDict_New();
    bool good = self->numbers != NULL;
    for (size_t i = 0; good && i < self->tensors.n; i++) {
        PyObject *number = PyLong_FromSize_t(i);
        good = number && PyDict_SetItemString(self->numbers,
                                              self->tensors.tensors[i].name, number) == 0;
        Py_XDECREF(number);
    }
    return good;
}

/* The index of a tensor, or SIZE_MAX with an exception. */
static size_t find(const publisher_object *self, PyObject *name, const char *what)
{
    PyObject *number = PyDict_GetItemWithError(self->numbers, name);
    if (number)
        return PyLong_AsSize_t(number);
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%s: %R is none of the tensors", what, name);
    return SIZE_MAX;
}

bool dwpy_publisher_flags(const publisher_object *self, PyObject *names, const char *what,
                          bool **out)
{
    *out = NULL;
    if (!names || names == Py_None)
        return true;
    if (PyUnicode_Check(names)) {
        PyErr_Format(PyExc_TypeError, "%s: names of tensors, not one name", what);
        return false;
    }
    PyObject *each = PyObject_GetIter(names);
    bool *flags = each ? PyMem_Calloc(self->tensors.n + 1, sizeof *flags) : NULL;
    if (each && !flags)
        PyErr_NoMemory();
    bool good = flags != NULL;
    for (PyObject *name; good && (name = PyIter_Next(each));) {
        const size_t i = find(self, name, what);
        Py_DECREF(name);
        good = i != SIZE_MAX;
        if (good)
            flags[i] = true;
    }
    good = good && !PyErr_Occurred();
    Py_XDECREF(each);
    if (good)
        *out = flags;
    else
        PyMem_Free(flags);
    return good;
}

/* ---- shards ---- */

/* Reads one `(name, first, array)`: the name and the array go to ITEMS, the rest to OUT.
 */
static bool read_shard(const publisher_object *self, PyObject *item, PyObject *items,
                       dw_shard *out)
{
    PyObject *name, *array;
    unsigned long long first;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a shard is (name, first element, array)");
        return false;
    }
    if (!PyArg_ParseTuple(item, "UKO;a shard is (name, first element, array)", &name,
                          &first, &array))
        return false;
    out->tensor = find(self, name, "shards");
    out->first = first;
    PyObject *pair = out->tensor != SIZE_MAX ? PyTuple_Pack(2, name, array) : NULL;
    const bool good = pair && PyList_Append(items, pair) == 0;
    Py_XDECREF(pair);
    return good;
}

static bool fill_shard(const publisher_object *self, const dw_tensor *array,
                       dw_shard *out)
{
    if (array->dtype != self->tensors.tensors[out->tensor].dtype) {
        dwpy_raise_text(DW_INVALID, array->name,
                        "the shard has another element type than the tensor");
        return false;
    }
    if (array->device != self->tensors.tensors[out->tensor].device) {
        dwpy_raise_text(DW_INVALID, array->name,
                        "the shards of a tensor are not all on the same device");
        return false;
    }
    out->data = array->data;
    return dw_shape_size(array->dtype, array->n_dims, array->dims, &out->n_elems, NULL);
}

bool dwpy_publisher_shards(publisher_object *self, PyObject *shards, dw_shard **out,
                           size_t *n)
{
    PyObject *list = PySequence_List(shards), *items = PyList_New(0);
    *n = list ? (size_t)PyList_Size(list) : 0;
    *out = list && items ? PyMem_Calloc(*n + 1, sizeof **out) : NULL;
    if (list && items && !*out)
        PyErr_NoMemory();
    bool good = *out != NULL;
    for (size_t i = 0; good && i < *n; i++)
        good = read_shard(self, PyList_GetItem(list, (Py_ssize_t)i), items, &(*out)[i]);
    good = good && dwpy_tensors_take_list(&self->shards, items, DWPY_READ);
    for (size_t i = 0; good && i < *n; i++)
        if (self->shards.tensors[i].device)
            self->tensors.tensors[(*out)[i].tensor].device =
                self->shards.tensors[i].device;
    for (size_t i = 0; good && i < *n; i++)
        good = fill_shard(self, &self->shards.tensors[i], &(*out)[i]);
    Py_XDECREF(items);
    Py_XDECREF(list);
    return good;
}

/* ---- CUDA streams ---- */

/* Devices without a tensor of the publisher are left out. */
static bool read_stream(const publisher_object *self, PyObject *item,
                        dw_device_stream *out, size_t *n)
{
    PyObject *name, *number;
    if (!PyArg_ParseTuple(item, "UO;cuda_streams: names of devices and numbers", &name,
                          &number))
        return false;
    const char *text = dwpy_text(name);
    dw_device *device = text ? dwpy_devices_find(&self->tensors.devices, text) : NULL;
    if (text && !device)
        device = dwpy_devices_find(&self->shards.devices, text);
    void *stream = PyLong_AsVoidPtr(number);
    if (PyErr_Occurred())
        return false;
    if (device)
        out[(*n)++] = (dw_device_stream){device, stream};
    return true;
}

bool dwpy_publisher_streams(const publisher_object *self, PyObject *mapping,
                            dw_device_stream **out, size_t *n)
{
    *out = NULL;
    *n = 0;
    if (!mapping || mapping == Py_None)
        return true;
    PyObject *items = PyMapping_Items(mapping);
    const size_t n_items = items ? (size_t)PyList_Size(items) : 0;
    *out = items ? PyMem_Calloc(n_items + 1, sizeof **out) : NULL;
    if (items && !*out)
        PyErr_NoMemory();
    bool good = *out != NULL;
    for (size_t i = 0; good && i < n_items; i++)
        good = read_stream(self, PyList_GetItem(items, (Py_ssize_t)i), *out, n);
    Py_XDECREF(items);
    return good;
}
