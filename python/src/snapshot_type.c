/* deltawire.Snapshot: weights that a follower keeps in a directory, read in place. */
#include <limits.h>

#include "tensors.h"

enum { SLICE_MS = 100 }; /* between two checks for signals */

typedef struct snapshot_object {
    PyObject_HEAD PyObject
        *mapped;   /* a capsule around dw_snapshot, which views also keep; NULL: closed */
    PyObject *dir; /* bytes */
    dwpy_guard guard;
    dw_snapshot_view looked; /* the view that unchanged() checks */
} snapshot_object;

static dwpy_row_type view_row = {"SnapshotView", "A version that can be read in place.",
                                 "version state tensors", NULL};

static void unmap(PyObject *capsule)
{
    dw_snapshot_close(PyCapsule_GetPointer(capsule, NULL));
}

static dw_snapshot *handle(const snapshot_object *self)
{
    return PyCapsule_GetPointer(self->mapped, NULL);
}

static bool map(snapshot_object *self)
{
    dw_snapshot *opened = NULL;
    dw_error err = {0};
    dw_status status;
    const char *dir = dwpy_path_text(self->dir);
    Py_BEGIN_ALLOW_THREADS status = dw_snapshot_open(&opened, dir, &err);
    Py_END_ALLOW_THREADS if (status != DW_OK)
    {
        dwpy_raise(status, &err);
        return false;
    }
    PyObject *capsule = PyCapsule_New(opened, NULL, unmap);
    if (!capsule) {
        dw_snapshot_close(opened);
        return false;
    }
    Py_XDECREF(self->mapped);
    self->mapped = capsule;
    return true;
}

static PyObject *snapshot_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"dir", NULL};
    PyObject *dir = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&:Snapshot", names,
                                     PyUnicode_FSConverter, &dir))
        return NULL;
    snapshot_object *self = (snapshot_object *)PyType_GenericAlloc(type, 0);
    if (!self) {
        Py_DECREF(dir);
        return NULL;
    }
    dwpy_guard_init(&self->guard);
    self->dir = dir;
    if (!map(self))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void snapshot_dealloc(PyObject *object)
{
    snapshot_object *self = (snapshot_object *)object;
    Py_XDECREF(self->mapped);
    Py_XDECREF(self->dir);
    dwpy_object_free(object);
}

static PyObject *snapshot_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    snapshot_object *self = (snapshot_object *)object;
    if (self->guard.is_closed)
        Py_RETURN_NONE;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    self->guard.is_closed = true;
    dw_snapshot_release(handle(self));
    Py_CLEAR(self->mapped);
    dwpy_guard_leave(&self->guard);
    Py_RETURN_NONE;
}

/* ---- reading ---- */

static PyObject *row_of(const snapshot_object *self, const dw_snapshot_view *view)
{
    PyObject *table = PyDict_New();
    for (size_t i = 0; table && i < view->n_tensors; i++) {
        PyObject *tensor = dwpy_tensor_new(self->mapped, &view->tensors[i], true);
        if (!tensor || PyDict_SetItemString(table, view->tensors[i].name, tensor) < 0)
            Py_CLEAR(table);
        Py_XDECREF(tensor);
    }
    return table ? dwpy_row(&view_row, Py_BuildValue("NNN", dwpy_version(view->version),
                                                     dwpy_digest(view->state), table))
                 : NULL;
}

typedef dw_status (*read_function)(dw_snapshot *, unsigned, dw_snapshot_view *,
                                   dw_error *);

/* The guard is held. */
static PyObject *read_now(snapshot_object *self, unsigned timeout_ms,
                          read_function function)
{
    /* The files may have been replaced. If views are left, they keep the old mapping, and
     * a new one is made. */
    dw_snapshot_pin(handle(self), Py_REFCNT(self->mapped) > 1);
    dw_error err;
    dw_status status;
    unsigned left_ms = timeout_ms;
    do {
        const unsigned slice = left_ms < SLICE_MS ? left_ms : SLICE_MS;
        dw_snapshot *snapshot = handle(self);
        if (left_ms != UINT_MAX)
            left_ms -= slice;
        err = (dw_error){0};
        Py_BEGIN_ALLOW_THREADS status = function(snapshot, slice, &self->looked, &err);
        Py_END_ALLOW_THREADS if (PyErr_CheckSignals() != 0 ||
                                 (status == DW_STALE && !map(self))) return NULL;
    } while (status == DW_STALE ||
             (status == DW_UNAVAILABLE && left_ms > 0 && !dwpy_is_ending()));
    return status == DW_OK ? row_of(self, &self->looked) : dwpy_raise(status, &err);
}

static PyObject *read_with(PyObject *object, PyObject *args, PyObject *keywords,
                           read_function function)
{
    static char *names[] = {"timeout", NULL};
    snapshot_object *self = (snapshot_object *)object;
    unsigned timeout_ms = 10000;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&", names, dwpy_timeout_arg,
                                     &timeout_ms) ||
        !dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *view = read_now(self, timeout_ms, function);
    dwpy_guard_leave(&self->guard);
    return view;
}

static PyObject *snapshot_hold(PyObject *self, PyObject *args, PyObject *keywords)
{
    return read_with(self, args, keywords, dw_snapshot_hold);
}

static PyObject *snapshot_look(PyObject *self, PyObject *args, PyObject *keywords)
{
    return read_with(self, args, keywords, dw_snapshot_look);
}

static PyObject *snapshot_release(PyObject *object, PyObject *unused)
{
    (void)unused;
    snapshot_object *self = (snapshot_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    dw_snapshot_release(handle(self));
    dwpy_guard_leave(&self->guard);
    Py_RETURN_NONE;
}

static PyObject *snapshot_unchanged(PyObject *object, PyObject *unused)
{
    (void)unused;
    snapshot_object *self = (snapshot_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    const bool same =
        self->looked.tensors && dw_snapshot_unchanged(handle(self), &self->looked);
    dwpy_guard_leave(&self->guard);
    return PyBool_FromLong(same);
}

static PyObject *get_version(PyObject *object, void *unused)
{
    (void)unused;
    snapshot_object *self = (snapshot_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *version = dwpy_version(dw_snapshot_version(handle(self)));
    dwpy_guard_leave(&self->guard);
    return version;
}

static PyMethodDef methods[] = {
    {"hold", DWPY_KEYWORDS(snapshot_hold), METH_VARARGS | METH_KEYWORDS,
     "The newest version, which stays as it is until release()."},
    {"release", snapshot_release, METH_NOARGS, NULL},
    {"look", DWPY_KEYWORDS(snapshot_look), METH_VARARGS | METH_KEYWORDS,
     "The newest version: read it, then ask unchanged()."},
    {"unchanged", snapshot_unchanged, METH_NOARGS,
     "Whether the data of look() was one whole version all the time."},
    {"close", snapshot_close, METH_NOARGS, "Unmapped once no view of it is left."},
    DWPY_CONTEXT,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"version", get_version, NULL, "the version that would be read now", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Weights that a follower keeps in a directory, read in place."},
    {Py_tp_new, snapshot_new},
    {Py_tp_dealloc, snapshot_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deltawire.Snapshot", sizeof(snapshot_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

bool dwpy_snapshot_add(PyObject *module)
{
    return dwpy_type_add(module, &spec) && dwpy_row_type_add(module, &view_row);
}
