/* deltawire.Checkpoint: a mapping of names to views of mapped files. */
#include "tensors.h"

typedef struct checkpoint_object {
    PyObject_HEAD PyObject
        *mapped; /* a capsule around dw_checkpoint, which views also keep; NULL: closed */
    bool writable;
} checkpoint_object;

static void unmap(PyObject *capsule)
{
    dw_checkpoint_close(PyCapsule_GetPointer(capsule, NULL));
}

static dw_checkpoint *handle(PyObject *object)
{
    checkpoint_object *self = (checkpoint_object *)object;
    if (self->mapped)
        return PyCapsule_GetPointer(self->mapped, NULL);
    dwpy_raise_text(DW_INVALID, NULL, "the checkpoint is closed");
    return NULL;
}

static PyObject *checkpoint_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path", "writable", NULL};
    PyObject *path = NULL;
    int writable = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|p:Checkpoint", names,
                                     PyUnicode_FSConverter, &path, &writable))
        return NULL;
    dw_checkpoint *opened = NULL;
    dw_error err = {0};
    dw_status status;
    const char *text = dwpy_path_text(path);
    Py_BEGIN_ALLOW_THREADS status = dw_checkpoint_open(
        &opened, text, writable ? DW_CHECKPOINT_WRITE : DW_CHECKPOINT_READ, &err);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    if (status != DW_OK)
        return dwpy_raise(status, &err);
    checkpoint_object *self = (checkpoint_object *)PyType_GenericAlloc(type, 0);
    PyObject *capsule = self ? PyCapsule_New(opened, NULL, unmap) : NULL;
    if (!capsule) {
        dw_checkpoint_close(opened);
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    self->mapped = capsule;
    self->writable = writable != 0;
    return (PyObject *)self;
}

static void checkpoint_dealloc(PyObject *object)
{
    Py_XDECREF(((checkpoint_object *)object)->mapped);
    dwpy_object_free(object);
}

static PyObject *checkpoint_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    Py_CLEAR(((checkpoint_object *)object)->mapped);
    Py_RETURN_NONE;
}

/* ---- a mapping ---- */

static Py_ssize_t checkpoint_length(PyObject *object)
{
    size_t n = 0;
    const dw_checkpoint *opened = handle(object);
    if (!opened)
        return -1;
    dw_checkpoint_tensors(opened, &n);
    return (Py_ssize_t)n;
}

static PyObject *view_of(PyObject *object, const dw_tensor *tensor)
{
    checkpoint_object *self = (checkpoint_object *)object;
    return dwpy_tensor_new(self->mapped, tensor, !self->writable);
}

static const dw_tensor *find(PyObject *object, PyObject *key)
{
    const dw_checkpoint *opened = handle(object);
    const char *name = opened && PyUnicode_Check(key) ? dwpy_text(key) : NULL;
    return name ? dw_checkpoint_find(opened, name) : NULL;
}

static PyObject *checkpoint_item(PyObject *object, PyObject *key)
{
    const dw_tensor *tensor = find(object, key);
    if (tensor)
        return view_of(object, tensor);
    if (!PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, key);
    return NULL;
}

static int checkpoint_contains(PyObject *object, PyObject *key)
{
    const dw_tensor *tensor = find(object, key);
    return PyErr_Occurred() ? -1 : tensor != NULL;
}

static PyObject *list_of(PyObject *object, bool keys, bool values)
{
    const dw_checkpoint *opened = handle(object);
    size_t n = 0;
    const dw_tensor *tensors = opened ? dw_checkpoint_tensors(opened, &n) : NULL;
    PyObject *list = opened ? PyList_New(0) : NULL;
    for (size_t i = 0; list && i < n; i++) {
        PyObject *key = keys ? dwpy_string(tensors[i].name) : NULL;
        PyObject *value = values ? view_of(object, &tensors[i]) : NULL;
        PyObject *item = !keys ? Py_XNewRef(value) : Py_XNewRef(key);
        if (keys && values) {
            Py_XDECREF(item);
            item = key && value ? PyTuple_Pack(2, key, value) : NULL;
        }
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
        Py_XDECREF(value);
        Py_XDECREF(key);
    }
    return list;
}

static PyObject *checkpoint_keys(PyObject *self, PyObject *unused)
{
    (void)unused;
    return list_of(self, true, false);
}

static PyObject *checkpoint_values(PyObject *self, PyObject *unused)
{
    (void)unused;
    return list_of(self, false, true);
}

static PyObject *checkpoint_items(PyObject *self, PyObject *unused)
{
    (void)unused;
    return list_of(self, true, true);
}

static PyObject *checkpoint_get(PyObject *self, PyObject *args)
{
    PyObject *key, *otherwise = Py_None;
    if (!PyArg_ParseTuple(args, "O|O:get", &key, &otherwise))
        return NULL;
    const dw_tensor *tensor = find(self, key);
    if (tensor)
        return view_of(self, tensor);
    return PyErr_Occurred() ? NULL : Py_NewRef(otherwise);
}

static PyObject *checkpoint_iter(PyObject *self)
{
    PyObject *keys = list_of(self, true, false);
    PyObject *iterator = keys ? PyObject_GetIter(keys) : NULL;
    Py_XDECREF(keys);
    return iterator;
}

/* ---- the rest ---- */

static PyObject *checkpoint_metadata(PyObject *object, PyObject *args)
{
    const char *key;
    const dw_checkpoint *opened = handle(object);
    if (!opened || !PyArg_ParseTuple(args, "s:metadata", &key))
        return NULL;
    return dwpy_string(dw_checkpoint_metadata(opened, key));
}

static PyObject *checkpoint_sync(PyObject *object, PyObject *unused)
{
    (void)unused;
    dw_checkpoint *opened = handle(object);
    if (!opened)
        return NULL;
    PyObject *mapped = Py_NewRef(((checkpoint_object *)object)->mapped);
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_checkpoint_sync(opened, &err);
    Py_END_ALLOW_THREADS Py_DECREF(mapped);
    if (status != DW_OK)
        return dwpy_raise(status, &err);
    Py_RETURN_NONE;
}

static PyObject *get_files(PyObject *object, void *unused)
{
    (void)unused;
    const dw_checkpoint *opened = handle(object);
    PyObject *list = opened ? PyList_New(0) : NULL;
    for (size_t i = 0; list && i < dw_checkpoint_file_count(opened); i++) {
        PyObject *name = PyUnicode_DecodeFSDefault(dw_checkpoint_file(opened, i));
        if (!name || PyList_Append(list, name) < 0)
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyMethodDef methods[] = {
    {"keys", checkpoint_keys, METH_NOARGS, NULL},
    {"values", checkpoint_values, METH_NOARGS, NULL},
    {"items", checkpoint_items, METH_NOARGS, NULL},
    {"get", checkpoint_get, METH_VARARGS, NULL},
    {"metadata", checkpoint_metadata, METH_VARARGS, "A value of __metadata__, or None."},
    {"sync", checkpoint_sync, METH_NOARGS, "Syncs what was written."},
    {"close", checkpoint_close, METH_NOARGS, "Unmapped once no view of it is left."},
    DWPY_CONTEXT,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"files", get_files, NULL, "the files behind it", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A safetensors file, an index of shards, or a directory, mapped."},
    {Py_tp_new, checkpoint_new},
    {Py_tp_dealloc, checkpoint_dealloc},
    {Py_tp_iter, checkpoint_iter},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {Py_mp_length, checkpoint_length},
    {Py_mp_subscript, checkpoint_item},
    {Py_sq_contains, checkpoint_contains},
    {0, NULL},
};

static PyType_Spec spec = {"deltawire.Checkpoint", sizeof(checkpoint_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

bool dwpy_checkpoint_add(PyObject *module)
{
    PyTypeObject *type = dwpy_type_add(module, &spec);
    if (!type)
        return false;
    /* makes isinstance(checkpoint, Mapping) true */
    PyObject *abc = PyImport_ImportModule("collections.abc");
    PyObject *mapping = abc ? PyObject_GetAttrString(abc, "Mapping") : NULL;
    PyObject *result =
        mapping ? PyObject_CallMethod(mapping, "register", "O", (PyObject *)type) : NULL;
    Py_XDECREF(mapping);
    Py_XDECREF(abc);
    Py_XDECREF(result);
    return result != NULL;
}
