#include "core.h"

#include <string.h>

enum { MAX_FIELDS = 24 };

bool dwpy_row_type_add(PyObject *module, dwpy_row_type *row)
{
    char name[64] = "deltawire.";
    PyStructSequence_Field fields[MAX_FIELDS + 1] = {{NULL, NULL}};
    size_t n = 0;
    char *text = PyMem_Malloc(strlen(row->fields) + 1); /* the type keeps it */
    if (!text) {
        PyErr_NoMemory();
        return false;
    }
    strcpy(text, row->fields);
    char *rest = NULL;
    for (char *field = strtok_r(text, " ", &rest); field && n < MAX_FIELDS;
         field = strtok_r(NULL, " ", &rest))
        fields[n++].name = field;
    strncat(name, row->name, sizeof name - strlen(name) - 1);
    PyStructSequence_Desc desc = {name, row->doc, fields, (int)n};
    row->type = PyStructSequence_NewType(&desc);
    return row->type &&
           PyModule_AddObjectRef(module, row->name, (PyObject *)row->type) == 0;
}

PyObject *dwpy_row(const dwpy_row_type *row, PyObject *values)
{
    if (!values)
        return NULL;
    PyObject *out = PyStructSequence_New(row->type);
    for (Py_ssize_t i = 0; out && i < PyTuple_Size(values); i++)
        PyStructSequence_SetItem(out, i, Py_NewRef(PyTuple_GetItem(values, i)));
    Py_DECREF(values);
    return out;
}
