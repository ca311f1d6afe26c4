/* deltawire.Delta. */
#include "delta_type.h"

#include <string.h>

typedef struct delta_object {
    PyObject_HEAD dw_delta *delta; /* NULL: closed */
    void *bytes;                   /* its bytes, aligned for the library; or NULL */
    unsigned n_users; /* running calls; close does not wait for them, and the last one
                         closes it */
    bool is_closed;
} delta_object;

static PyTypeObject *delta_type;

static dwpy_row_type info_row = {
    "DeltaInfo", "A delta as a whole.",
    "codec trl_layout has_digests base_version new_version base_state new_state "
    "n_model_tensors n_model_elems n_changed n_bytes",
    NULL};
static dwpy_row_type tensor_row = {"DeltaTensor", "A tensor with changes.",
                                   "name dtype shape n_changed n_bytes", NULL};
static dwpy_row_type apply_row = {
    "ApplyReport", "The result of an apply to a checkpoint.",
    "already_applied recovered verified n_changed new_state", NULL};

/* ---- the handle ---- */

static const dw_delta *use(delta_object *self)
{
    if (self->is_closed) {
        dwpy_raise_text(DW_INVALID, NULL, "the delta is closed");
        return NULL;
    }
    self->n_users++;
    return self->delta;
}

static void end_if_unused(delta_object *self)
{
    if (self->n_users > 0 || !self->is_closed)
        return;
    dw_delta_close(self->delta);
    PyMem_Free(self->bytes);
    self->delta = NULL;
    self->bytes = NULL;
}

static void leave(delta_object *self)
{
    self->n_users--;
    end_if_unused(self);
}

PyObject *dwpy_delta_wrap(dw_delta *delta, void *bytes)
{
    delta_object *self = (delta_object *)PyType_GenericAlloc(delta_type, 0);
    if (!self) {
        dw_delta_close(delta);
        PyMem_Free(bytes);
        return NULL;
    }
    self->delta = delta;
    self->bytes = bytes;
    return (PyObject *)self;
}

static PyObject *open_bytes(PyObject *source)
{
    Py_buffer view;
    if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    void *bytes = PyMem_Malloc((size_t)view.len + 8);
    if (bytes)
        memcpy(bytes, view.buf, (size_t)view.len);
    const size_t n_bytes = (size_t)view.len;
    PyBuffer_Release(&view);
    if (!bytes)
        return PyErr_NoMemory();
    dw_delta *delta = NULL;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status =
        dw_delta_open_bytes(&delta, bytes, n_bytes, "delta", &err);
    Py_END_ALLOW_THREADS if (status == DW_OK) return dwpy_delta_wrap(delta, bytes);
    PyMem_Free(bytes);
    return dwpy_raise(status, &err);
}

static PyObject *open_file(PyObject *source)
{
    PyObject *path;
    if (!PyUnicode_FSConverter(source, &path))
        return NULL;
    const char *text = dwpy_path_text(path);
    dw_delta *delta = NULL;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_delta_open(&delta, text, &err);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    return status == DW_OK ? dwpy_delta_wrap(delta, NULL) : dwpy_raise(status, &err);
}

static PyObject *delta_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    (void)type;
    static char *names[] = {"source", NULL};
    PyObject *source;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Delta", names, &source))
        return NULL;
    return PyObject_CheckBuffer(source) ? open_bytes(source) : open_file(source);
}

static PyObject *delta_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    delta_object *self = (delta_object *)object;
    self->is_closed = true;
    end_if_unused(self);
    Py_RETURN_NONE;
}

static void delta_dealloc(PyObject *object)
{
    delta_object *self = (delta_object *)object;
    self->is_closed = true;
    end_if_unused(self);
    dwpy_object_free(object);
}

/* ---- contents ---- */

static PyObject *get_info(PyObject *object, void *unused)
{
    (void)unused;
    const dw_delta *delta = use((delta_object *)object);
    if (!delta)
        return NULL;
    dw_delta_info i;
    dw_delta_get_info(delta, &i);
    leave((delta_object *)object);
    return dwpy_row(
        &info_row,
        Py_BuildValue("sINKKNNKKKK", dw_codec_name(i.codec), i.trl_layout,
                      PyBool_FromLong(i.has_digests), (unsigned long long)i.base_version,
                      (unsigned long long)i.new_version, dwpy_digest(i.base_state),
                      dwpy_digest(i.new_state), (unsigned long long)i.n_model_tensors,
                      (unsigned long long)i.n_model_elems,
                      (unsigned long long)i.n_changed, (unsigned long long)i.n_bytes));
}

static PyObject *tensor_of(const dw_delta *delta, size_t i)
{
    dw_delta_tensor_info t;
    dw_delta_tensor(delta, i, &t);
    return dwpy_row(
        &tensor_row,
        Py_BuildValue("NsNKK", dwpy_string(t.name), dw_dtype_name(t.dtype),
                      t.has_shape ? dwpy_shape(t.n_dims, t.dims) : Py_NewRef(Py_None),
                      (unsigned long long)t.n_changed, (unsigned long long)t.n_bytes));
}

static PyObject *get_tensors(PyObject *object, void *unused)
{
    (void)unused;
    const dw_delta *delta = use((delta_object *)object);
    if (!delta)
        return NULL;
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < info.n_tensors; i++) {
        PyObject *row = tensor_of(delta, i);
        if (!row || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    leave((delta_object *)object);
    return list;
}

static PyObject *delta_save(PyObject *object, PyObject *args)
{
    PyObject *path;
    if (!PyArg_ParseTuple(args, "O&:save", PyUnicode_FSConverter, &path))
        return NULL;
    const dw_delta *delta = use((delta_object *)object);
    if (!delta) {
        Py_DECREF(path);
        return NULL;
    }
    const char *text = dwpy_path_text(path);
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_delta_save(delta, text, &err);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    leave((delta_object *)object);
    return status == DW_OK ? Py_NewRef(Py_None) : dwpy_raise(status, &err);
}

typedef struct sink {
    char *at;
    char *end;
} sink;

static dw_status fill(void *context, const void *bytes, size_t n_bytes, dw_error *err)
{
    (void)err;
    sink *s = context;
    if (n_bytes > (size_t)(s->end - s->at))
        return DW_IO;
    memcpy(s->at, bytes, n_bytes);
    s->at += n_bytes;
    return DW_OK;
}

static PyObject *delta_tobytes(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dw_delta *delta = use((delta_object *)object);
    if (!delta)
        return NULL;
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)info.n_bytes);
    if (bytes) {
        sink s = {PyBytes_AsString(bytes), PyBytes_AsString(bytes) + info.n_bytes};
        dw_error err = {0};
        dw_status status;
        Py_BEGIN_ALLOW_THREADS status = dw_delta_write(delta, fill, &s, &err);
        Py_END_ALLOW_THREADS if (status != DW_OK)
        {
            Py_CLEAR(bytes);
            dwpy_raise(status, &err);
        }
    }
    leave((delta_object *)object);
    return bytes;
}

/* ---- applying ---- */

typedef dw_status (*apply_function)(const dw_delta *, const dw_tensor *, size_t,
                                    const dw_apply_options *, dw_error *);

static PyObject *apply_with(PyObject *object, PyObject *args, PyObject *keywords,
                            apply_function function, bool writes)
{
    static char *names[] = {"tensors", "threads", "progress", NULL};
    PyObject *mapping, *progress = NULL;
    dw_apply_options options;
    dw_apply_options_init(&options);
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$IO", names, &mapping,
                                     &options.n_threads, &progress))
        return NULL;
    const dw_delta *delta = use((delta_object *)object);
    if (!delta)
        return NULL;
    dwpy_tensors tensors = {0};
    dw_error err = {0};
    dwpy_hook hook;
    bool good = dwpy_tensors_take(&tensors, mapping, writes) &&
                dwpy_hook_begin(&hook, progress, NULL);
    if (good) {
        options.progress = hook.progress;
        dw_status status = function(delta, tensors.tensors, tensors.n, &options, &err);
        good = dwpy_hook_end(&hook, status, &err);
    }
    dwpy_tensors_release(&tensors);
    leave((delta_object *)object);
    return good ? Py_NewRef(Py_None) : NULL;
}

static PyObject *delta_apply(PyObject *self, PyObject *args, PyObject *keywords)
{
    return apply_with(self, args, keywords, dw_delta_apply, true);
}

static PyObject *delta_verify(PyObject *self, PyObject *args, PyObject *keywords)
{
    return apply_with(self, args, keywords, dw_delta_verify, false);
}

static PyObject *delta_apply_to(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path", "threads", "progress", NULL};
    PyObject *path, *progress = NULL;
    dw_apply_options options;
    dw_apply_options_init(&options);
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|$IO:apply_to_checkpoint", names,
                                     PyUnicode_FSConverter, &path, &options.n_threads,
                                     &progress))
        return NULL;
    const dw_delta *delta = use((delta_object *)object);
    const char *text = dwpy_path_text(path);
    dw_apply_report r = {0};
    dw_error err = {0};
    dwpy_hook hook;
    bool good = false;
    if (delta && dwpy_hook_begin(&hook, progress, NULL)) {
        options.progress = hook.progress;
        dw_status status = dw_checkpoint_apply(text, delta, &options, &r, &err);
        good = dwpy_hook_end(&hook, status, &err);
    }
    if (delta)
        leave((delta_object *)object);
    Py_DECREF(path);
    return good ? dwpy_row(&apply_row,
                           Py_BuildValue(
                               "NNNKN", PyBool_FromLong(r.already_applied),
                               PyBool_FromLong(r.recovered), PyBool_FromLong(r.verified),
                               (unsigned long long)r.n_changed, dwpy_digest(r.new_state)))
                : NULL;
}

/* ---- the type ---- */

static PyMethodDef methods[] = {
    {"apply", DWPY_KEYWORDS(delta_apply), METH_VARARGS | METH_KEYWORDS,
     "Proves the result, then writes it to the tensors."},
    {"verify", DWPY_KEYWORDS(delta_verify), METH_VARARGS | METH_KEYWORDS,
     "Like apply(), but writes nothing."},
    {"apply_to_checkpoint", DWPY_KEYWORDS(delta_apply_to), METH_VARARGS | METH_KEYWORDS,
     "Brings a checkpoint on disk to the new version, in place."},
    {"save", delta_save, METH_VARARGS, "Writes a file: whole, or not at all."},
    {"tobytes", delta_tobytes, METH_NOARGS, "The file as bytes."},
    {"close", delta_close, METH_NOARGS, NULL},
    DWPY_CONTEXT,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"info", get_info, NULL, NULL, NULL},
    {"tensors", get_tensors, NULL, "the tensors with changes", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The changes between two versions of a model."},
    {Py_tp_new, delta_new},
    {Py_tp_dealloc, delta_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deltawire.Delta", sizeof(delta_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

bool dwpy_delta_add(PyObject *module)
{
    delta_type = dwpy_type_add(module, &spec);
    return delta_type && dwpy_row_type_add(module, &info_row) &&
           dwpy_row_type_add(module, &tensor_row) &&
           dwpy_row_type_add(module, &apply_row);
}
