/* Converts names of tensors and devices to the library's lists (masters, unchanged
 * tensors, shards, CUDA streams), and handles receipts that the caller carries between
 * ranks. */
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

/* ---- receipts by the caller; the guard is held ---- */

/* Waits until the upload is over; a signal may interrupt it. */
static bool wait_uploaded(publisher_object *self)
{
    const int idle = dwpy_publisher_wait_idle(self, UINT_MAX);
    if (idle == 0)
        dwpy_raise_text(DW_CANCELLED, NULL, "another thread closes the publisher");
    return idle > 0;
}

static PyObject *receipt_now(publisher_object *self, uint64_t ticket)
{
    const void *bytes;
    size_t n_bytes;
    dw_error err = {0};
    if (!wait_uploaded(self))
        return NULL;
    dw_status status =
        dw_publisher_receipt(self->publisher, ticket, &bytes, &n_bytes, &err);
    return status == DW_OK ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)n_bytes)
                           : dwpy_raise(status, &err);
}

PyObject *dwpy_publisher_receipt(PyObject *object, PyObject *args)
{
    publisher_object *self = (publisher_object *)object;
    unsigned long long ticket;
    if (!PyArg_ParseTuple(args, "K:receipt", &ticket) || !dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *out = receipt_now(self, ticket);
    dwpy_guard_leave(&self->guard);
    return out;
}

/* A commit that failed also returns bytes, because the other ranks need them. */
static PyObject *commit_now(publisher_object *self, uint64_t ticket, PyObject *list)
{
    const size_t n = (size_t)PyList_Size(list);
    const void **bytes = PyMem_Calloc(n + 1, sizeof *bytes);
    size_t *n_bytes = PyMem_Calloc(n + 1, sizeof *n_bytes);
    bool good = bytes && n_bytes;
    if (!good)
        PyErr_NoMemory();
    for (size_t i = 0; good && i < n; i++) {
        char *text;
        Py_ssize_t length;
        good = PyBytes_AsStringAndSize(PyList_GetItem(list, (Py_ssize_t)i), &text,
                                       &length) == 0;
        bytes[i] = text;
        n_bytes[i] = good ? (size_t)length : 0;
    }
    PyObject *out = NULL;
    if (good && wait_uploaded(self)) {
        const void *outcome = NULL;
        size_t n_outcome = 0;
        dw_error err = {0};
        dw_status status;
        Py_BEGIN_ALLOW_THREADS status = dw_publisher_commit(
            self->publisher, ticket, bytes, n_bytes, n, &outcome, &n_outcome, &err);
        Py_END_ALLOW_THREADS out =
            status == DW_INVALID
                ? dwpy_raise(status, &err)
                : PyBytes_FromStringAndSize(outcome, (Py_ssize_t)n_outcome);
    }
    PyMem_Free(bytes);
    PyMem_Free(n_bytes);
    return out;
}

PyObject *dwpy_publisher_commit(PyObject *object, PyObject *args)
{
    publisher_object *self = (publisher_object *)object;
    unsigned long long ticket;
    PyObject *receipts;
    if (!PyArg_ParseTuple(args, "KO:commit", &ticket, &receipts))
        return NULL;
    PyObject *list = PySequence_List(receipts);
    if (!list)
        return NULL;
    PyObject *out = NULL;
    if (dwpy_guard_enter(&self->guard)) {
        out = commit_now(self, ticket, list);
        dwpy_guard_leave(&self->guard);
    }
    Py_DECREF(list);
    return out;
}

static PyObject *accept_now(publisher_object *self, uint64_t ticket, const char *outcome,
                            Py_ssize_t n_outcome)
{
    dw_error err = {0};
    dw_status status;
    if (!wait_uploaded(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status =
        dw_publisher_accept(self->publisher, ticket, outcome, (size_t)n_outcome, &err);
    Py_END_ALLOW_THREADS return status == DW_OK ? Py_NewRef(Py_None)
                                                : dwpy_raise(status, &err);
}

PyObject *dwpy_publisher_accept(PyObject *object, PyObject *args)
{
    publisher_object *self = (publisher_object *)object;
    unsigned long long ticket;
    const char *outcome;
    Py_ssize_t n_outcome;
    if (!PyArg_ParseTuple(args, "Ky#:accept", &ticket, &outcome, &n_outcome) ||
        !dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *out = accept_now(self, ticket, outcome, n_outcome);
    dwpy_guard_leave(&self->guard);
    return out;
}
