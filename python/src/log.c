#include "core.h"

void dwpy_log(const char *where, const char *text)
{
    PyObject *error[3];
    PyErr_Fetch(&error[0], &error[1], &error[2]);
    PyObject *logging = PyImport_ImportModule("logging");
    PyObject *logger =
        logging ? PyObject_CallMethod(logging, "getLogger", "s", "deltawire") : NULL;
    PyObject *place = dwpy_string(where), *line = dwpy_string(text);
    PyObject *done =
        logger && place && line
            ? PyObject_CallMethod(logger, "warning", "sOO", "%s: %s", place, line)
            : NULL;
    Py_XDECREF(done);
    Py_XDECREF(line);
    Py_XDECREF(place);
    Py_XDECREF(logger);
    Py_XDECREF(logging);
    PyErr_Clear(); /* a failure to log must not fail the call */
    PyErr_Restore(error[0], error[1], error[2]);
}
