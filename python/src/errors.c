/* The exceptions: deltawire.Error and a subclass for each status. */
#include "core.h"

#include <string.h>

static PyObject *base;
static PyObject *kinds[DW_NOT_FINITE + 1]; /* NULL: the base */

static const struct {
    dw_status status;
    const char *name;
    PyObject **other_base; /* a built-in exception that is also a base */
} table[] = {
    {DW_IO, "IoError", &PyExc_OSError},
    {DW_NOT_FOUND, "NotFound", NULL},
    {DW_CORRUPT, "Corrupt", NULL},
    {DW_STALE, "Stale", NULL},
    {DW_MISMATCH, "Mismatch", NULL},
    {DW_UNSUPPORTED, "Unsupported", NULL},
    {DW_INVALID, "Invalid", &PyExc_ValueError},
    {DW_CONFLICT, "Conflict", NULL},
    {DW_CANCELLED, "Cancelled", NULL},
    {DW_UNAVAILABLE, "Unavailable", NULL},
    {DW_DENIED, "Denied", NULL},
    {DW_UNTRUSTED, "Untrusted", NULL},
};

static PyObject *make(const char *name, PyObject *bases)
{
    char full[64] = "deltawire.";
    strncat(full, name, sizeof full - strlen(full) - 1);
    return PyErr_NewException(full, bases, NULL);
}

bool dwpy_errors_add(PyObject *module)
{
    base = make("Error", PyExc_Exception);
    if (!base || PyModule_AddObjectRef(module, "Error", base) < 0)
        return false;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        PyObject *bases = table[i].other_base
                              ? PyTuple_Pack(2, base, *table[i].other_base)
                              : PyTuple_Pack(1, base);
        PyObject *kind = bases ? make(table[i].name, bases) : NULL;
        Py_XDECREF(bases);
        kinds[table[i].status] = kind;
        if (!kind || PyModule_AddObjectRef(module, table[i].name, kind) < 0)
            return false;
    }
    kinds[DW_NOT_FINITE] = Py_XNewRef(kinds[DW_INVALID]);
    return true;
}

static bool set_text(PyObject *error, const char *attribute, const char *text)
{
    PyObject *value = dwpy_string(text);
    bool good = value && PyObject_SetAttrString(error, attribute, value) == 0;
    Py_XDECREF(value);
    return good;
}

PyObject *dwpy_raise_text(dw_status status, const char *where, const char *text)
{
    if (status == DW_NO_MEMORY)
        return PyErr_NoMemory();
    PyObject *kind = kinds[status] ? kinds[status] : base;
    where = where ? where : "";
    PyObject *place = dwpy_string(where), *line = dwpy_string(text);
    PyObject *message =
        place && line ? PyUnicode_FromFormat("%U%s%U", place, *where ? ": " : "", line)
                      : NULL;
    PyObject *error = message ? PyObject_CallFunctionObjArgs(kind, message, NULL) : NULL;
    if (error && set_text(error, "code", dw_status_name(status)) &&
        set_text(error, "where", where) && set_text(error, "text", text))
        PyErr_SetObject(kind, error);
    Py_XDECREF(error);
    Py_XDECREF(message);
    Py_XDECREF(line);
    Py_XDECREF(place);
    return NULL;
}

PyObject *dwpy_raise(dw_status status, const dw_error *err)
{
    return dwpy_raise_text(status, err->where,
                           *err->text ? err->text : dw_status_name(status));
}

void dwpy_name_error(const char *name)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *place = dwpy_string(name);
    if (place && value &&
        (type == PyExc_BufferError || type == PyExc_RuntimeError ||
         type == PyExc_TypeError || type == PyExc_ValueError)) {
        PyErr_Format(type, "tensor '%U': %S", place, value);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else {
        PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(place);
}
