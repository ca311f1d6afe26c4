#include "core.h"

bool dwpy_row_type_add(PyObject *module, dwpy_row_type *row)
{
    PyObject *collections = PyImport_ImportModule("collections");
    row->type = collections ? PyObject_CallMethod(collections, "namedtuple", "ss",
                                                  row->name, row->fields)
                            : NULL;
    Py_XDECREF(collections);
    PyObject *doc = row->type ? PyUnicode_FromString(row->doc) : NULL;
    PyObject *home = doc ? PyUnicode_FromString("deltawire") : NULL;
    const bool good = home && PyObject_SetAttrString(row->type, "__doc__", doc) == 0 &&
                      PyObject_SetAttrString(row->type, "__module__", home) == 0 &&
                      PyModule_AddObjectRef(module, row->name, row->type) == 0;
    Py_XDECREF(home);
    Py_XDECREF(doc);
    return good;
}

PyObject *dwpy_row(const dwpy_row_type *row, PyObject *values)
{
    if (!values)
        return NULL;
    PyObject *out = PyObject_Call(row->type, values, NULL);
    Py_DECREF(values);
    return out;
}
