/* Companion files as an argument: a directory, or a mapping from names to bytes or paths.
 */
#include "publisher_type.h"

#include <string.h>
#include <sys/stat.h>

#define READ_BYTES (64 << 20) /* one more is over the limit */

void dwpy_files_release(dwpy_files *f)
{
    dw_companions_close(f->companions);
    PyMem_Free(f->list);
    Py_CLEAR(f->kept);
    *f = (dwpy_files){0};
}

static bool load_directory(dwpy_files *f, PyObject *files)
{
    PyObject *path = NULL;
    dw_error err = {0};
    if (!PyUnicode_FSConverter(files, &path))
        return false;
    const char *dir = PyBytes_AsString(path);
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_companions_load(&f->companions, dir, NULL, &err);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    if (status != DW_OK) {
        dwpy_raise(status, &err);
        return false;
    }
    f->files = dw_companions_files(f->companions, &f->n);
    return true;
}

/* Reading a pipe would wait for somebody who writes to it. */
static bool refuse_pipe(PyObject *value)
{
    PyObject *path = NULL;
    struct stat s;
    if (!PyUnicode_FSConverter(value, &path))
        return false;
    const char *text = PyBytes_AsString(path);
    const bool good =
        stat(text, &s) != 0 || S_ISREG(s.st_mode) || S_ISDIR(s.st_mode); /* open fails */
    if (!good)
        dwpy_raise_text(DW_INVALID, text,
                        "this is not a regular file, so it cannot be published");
    Py_DECREF(path);
    return good;
}

/* The bytes of VALUE, which has them, or names a file that does. A new reference. */
static PyObject *bytes_of(PyObject *value)
{
    if (PyObject_CheckBuffer(value))
        return PyBytes_FromObject(value);
    PyObject *path = PyOS_FSPath(value); /* an integer would be an open file */
    if (!path) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "files: bytes or a path, not %R", value);
        return NULL;
    }
    if (!refuse_pipe(path)) {
        Py_DECREF(path);
        return NULL;
    }
    PyObject *io = PyImport_ImportModule("io");
    PyObject *file = io ? PyObject_CallMethod(io, "open", "Os", path, "rb") : NULL;
    Py_DECREF(path);
    PyObject *bytes =
        file ? PyObject_CallMethod(file, "read", "i", READ_BYTES + 1) : NULL;
    PyObject *closed = bytes ? PyObject_CallMethod(file, "close", NULL) : NULL;
    if (!closed)
        Py_CLEAR(bytes);
    Py_XDECREF(closed);
    Py_XDECREF(file);
    Py_XDECREF(io);
    return bytes;
}

/* Adds one pair of a mapping. `kept` owns what the list points to. */
static bool add(dwpy_files *f, PyObject *name, PyObject *value)
{
    Py_ssize_t n_text = 0;
    const char *text =
        PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &n_text) : NULL;
    if (!text) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "files: the names are strings");
        return false;
    }
    if (strlen(text) != (size_t)n_text) {
        dwpy_raise_text(DW_INVALID, text,
                        "this cannot be the name of a companion file: a NUL follows. "
                        "Give a name without one");
        return false;
    }
    PyObject *bytes = bytes_of(value);
    const bool good =
        bytes && PyList_Append(f->kept, name) == 0 && PyList_Append(f->kept, bytes) == 0;
    if (good)
        f->list[f->n++] =
            (dw_file){text, PyBytes_AsString(bytes), (uint64_t)PyBytes_Size(bytes)};
    Py_XDECREF(bytes);
    return good;
}

static bool load_mapping(dwpy_files *f, PyObject *files)
{
    PyObject *items = PyMapping_Items(files);
    if (!items)
        return false;
    const Py_ssize_t n = PyList_Size(items);
    f->list = PyMem_Calloc(n > 0 ? (size_t)n : 1, sizeof *f->list);
    f->kept = PyList_New(0);
    bool good = f->list && f->kept;
    if (!f->list)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; good && i < n; i++) {
        PyObject *pair = PyList_GetItem(items, i);
        good = PyTuple_Check(pair) && PyTuple_Size(pair) == 2;
        if (!good)
            PyErr_SetString(PyExc_TypeError, "files: items() gives something else than "
                                             "pairs of name and content");
        good = good && add(f, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1));
    }
    f->files = f->list;
    Py_DECREF(items);
    return good;
}

static bool is_path(PyObject *files)
{
    return PyUnicode_Check(files) || PyBytes_Check(files) ||
           PyObject_HasAttrString(files, "__fspath__");
}

bool dwpy_files_read(dwpy_files *f, PyObject *files)
{
    *f = (dwpy_files){0};
    if (!files || files == Py_None)
        return true;
    f->is_given = true;
    if (is_path(files))
        return load_directory(f, files);
    if (PyMapping_Check(files) && PyObject_HasAttrString(files, "items"))
        return load_mapping(f, files);
    PyErr_Format(PyExc_TypeError,
                 "files: a directory, or a mapping from names to bytes or paths, not %R",
                 (PyObject *)Py_TYPE(files));
    return false;
}
