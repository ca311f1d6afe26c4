#include "core.h"

bool dwpy_warn_renamed(const char *old, const char *new_name)
{
    return PyErr_WarnFormat(PyExc_DeprecationWarning, 1, "%s is deprecated: use %s", old,
                            new_name) == 0;
}

PyObject *dwpy_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

PyObject *dwpy_exit(PyObject *self, PyObject *args)
{
    (void)args;
    return PyObject_CallMethod(self, "close", NULL);
}

void dwpy_object_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

PyTypeObject *dwpy_type_add(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type && PyModule_AddType(module, (PyTypeObject *)type) < 0)
        Py_CLEAR(type);
    return (PyTypeObject *)type;
}
