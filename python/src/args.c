#include "core.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

int dwpy_path_arg(PyObject *object, void *bytes)
{
    PyObject **out = bytes;
    if (!object) { /* a later argument was wrong: undo */
        Py_CLEAR(*out);
        return 1;
    }
    if (object == Py_None)
        return Py_CLEANUP_SUPPORTED;
    return PyUnicode_FSConverter(object, out);
}

int dwpy_number_arg(PyObject *object, void *number_out)
{
    uint64_t *out = number_out;
    if (object == Py_None)
        return 1;
    const unsigned long long number = PyLong_AsUnsignedLongLong(object);
    if (number == ULLONG_MAX && PyErr_Occurred())
        return 0;
    if (number >= DW_NEWEST) {
        PyErr_SetString(PyExc_OverflowError, "the number is too large");
        return 0;
    }
    *out = number;
    return 1;
}

int dwpy_timeout_arg(PyObject *object, void *timeout_ms)
{
    unsigned *out = timeout_ms;
    *out = UINT_MAX;
    if (object == Py_None)
        return 1;
    double seconds = PyFloat_AsDouble(object);
    if (seconds == -1 && PyErr_Occurred())
        return 0;
    if (!(seconds >= 0)) {
        PyErr_SetString(PyExc_ValueError, "a timeout is seconds, 0 or more");
        return 0;
    }
    if (seconds < 4e6)
        *out = (unsigned)(seconds * 1000 + 0.5);
    return 1;
}

int dwpy_step_arg(PyObject *object, void *text)
{
    PyObject **out = text;
    if (!object) {
        Py_CLEAR(*out);
        return 1;
    }
    if (object == Py_None)
        return Py_CLEANUP_SUPPORTED;
    if (!PyUnicode_Check(object) && !PyLong_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a step is a str or an int");
        return 0;
    }
    PyObject *string = PyObject_Str(object);
    if (!string || !dwpy_text(string)) {
        Py_XDECREF(string);
        return 0;
    }
    *out = string;
    return Py_CLEANUP_SUPPORTED;
}

const char *dwpy_path_text(PyObject *bytes)
{
    return bytes ? PyBytes_AsString(bytes) : NULL;
}

const char *dwpy_text(PyObject *string)
{
    Py_ssize_t n = 0;
    const char *text = string ? PyUnicode_AsUTF8AndSize(string, &n) : NULL;
    if (text && strlen(text) != (size_t)n) {
        PyErr_SetString(PyExc_ValueError, "embedded null character");
        return NULL;
    }
    return text;
}

int dwpy_choice(const char *text, const char *const *names, const char *argument)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], text) == 0)
            return i;
    char line[160];
    int n = snprintf(line, sizeof line, "%s is one of", argument);
    for (size_t i = 0; names[i] && n > 0 && (size_t)n < sizeof line; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, " '%s'", names[i]);
    PyErr_SetString(PyExc_ValueError, line);
    return -1;
}

PyObject *dwpy_version(uint64_t version)
{
    if (version == DW_NO_VERSION)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(version);
}

PyObject *dwpy_times(const dw_times *times, const char *(*name)(unsigned moment))
{
    PyObject *out = PyDict_New();
    for (unsigned i = 0; out && i < DW_N_MOMENTS; i++) {
        if (times->us[i] == 0)
            continue;
        PyObject *ms = PyFloat_FromDouble(1e-3 * (double)times->us[i]);
        if (!ms || PyDict_SetItemString(out, name(i), ms) != 0)
            Py_CLEAR(out);
        Py_XDECREF(ms);
    }
    return out;
}

PyObject *dwpy_digest(dw_digest digest)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
    return PyUnicode_FromString(text);
}

PyObject *dwpy_string(const char *text)
{
    if (!text)
        Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
}

PyObject *dwpy_shape(uint32_t n_dims, const uint64_t *dims)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)n_dims);
    for (uint32_t i = 0; shape && i < n_dims; i++) {
        PyObject *dim = PyLong_FromUnsignedLongLong(dims[i]);
        if (!dim || PyTuple_SetItem(shape, (Py_ssize_t)i, dim) < 0)
            Py_CLEAR(shape);
    }
    return shape;
}

/* ---- trust ---- */

static bool read_key(uint8_t *out, PyObject *item)
{
    const char *text = PyUnicode_Check(item) ? dwpy_text(item) : NULL;
    PyObject *path = NULL;
    if (!text && !PyErr_Occurred() && PyUnicode_FSConverter(item, &path))
        text = PyBytes_AsString(path);
    dw_error err = {0};
    dw_status status = text ? dw_public_key_read(out, text, &err) : DW_OK;
    if (status != DW_OK)
        dwpy_raise(status, &err);
    Py_XDECREF(path);
    return text && status == DW_OK;
}

bool dwpy_trust_read(dwpy_trust *out, PyObject *iterable)
{
    *out = (dwpy_trust){0};
    if (!iterable)
        return true;
    if (PyUnicode_Check(iterable)) {
        PyErr_SetString(PyExc_TypeError, "trust is a list of keys, not one");
        return false;
    }
    PyObject *list = PySequence_List(iterable);
    if (!list)
        return false;
    out->n = (size_t)PyList_Size(list);
    out->keys = PyMem_Calloc(out->n + 1, sizeof *out->keys);
    bool good = out->keys != NULL;
    if (!good)
        PyErr_NoMemory();
    for (size_t i = 0; good && i < out->n; i++)
        good = read_key(out->keys[i], PyList_GetItem(list, (Py_ssize_t)i));
    Py_DECREF(list);
    if (!good)
        dwpy_trust_release(out);
    return good;
}

void dwpy_trust_release(dwpy_trust *trust)
{
    PyMem_Free(trust->keys);
    *trust = (dwpy_trust){0};
}
