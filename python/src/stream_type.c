/* deltawire.Stream: the log of a stream. */
#include "store_type.h"

#include <stdio.h>

#include <deltawire/stream.h>

typedef struct stream_object {
    PyObject_HEAD dw_stream *stream;
    PyObject *store;
    dwpy_guard guard;
} stream_object;

static dwpy_row_type version_row = {
    "VersionInfo", "A version of a stream.",
    "version content epoch created step notes state n_changed n_objects n_bytes key base "
    "fork_url fork_version suspect_from library host source",
    NULL};
static dwpy_row_type source_row = {"VersionSource",
                                   "The version of another stream that one was made of.",
                                   "stream version commit_sha256", NULL};
static dwpy_row_type shortcut_row = {"Shortcut",
                                     "A fold or an anchor that leads to a version.",
                                     "start to n_bytes n_objects", NULL};
static dwpy_row_type follower_row = {"FollowerInfo", "A follower that reports.",
                                     "id version host status message time", NULL};
static dwpy_row_type file_row = {"FileInfo", "A companion file of a version.",
                                 "n_bytes sha256 version", NULL};
static dwpy_row_type tensor_row = {"StreamTensor", "Type and shape.", "dtype shape",
                                   NULL};

/* ---- the handle ---- */

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"store", "trust", "stream", NULL};
    PyObject *where, *trusted = NULL;
    const char *id = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$Oz:Stream", names, &where,
                                     &trusted, &id))
        return NULL;
    dwpy_trust trust;
    PyObject *kept;
    if (!dwpy_trust_read(&trust, trusted))
        return NULL;
    dw_store *store = dwpy_store_use(where, &kept);
    stream_object *self = store ? (stream_object *)PyType_GenericAlloc(type, 0) : NULL;
    if (self) {
        dwpy_guard_init(&self->guard);
        self->store = kept;
        const dw_trust keys = {(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])trust.keys, trust.n,
                               id};
        dw_error err = {0};
        dw_status status;
        Py_BEGIN_ALLOW_THREADS status = dw_stream_open(&self->stream, store, &keys, &err);
        Py_END_ALLOW_THREADS if (status != DW_OK)
        {
            dwpy_raise(status, &err);
            Py_CLEAR(self);
        }
    } else {
        dwpy_store_leave(kept);
    }
    dwpy_trust_release(&trust);
    return (PyObject *)self;
}

/* No call is running. */
static void end(stream_object *self)
{
    self->guard.is_closed = true;
    if (dwpy_guard_is_ours(&self->guard))
        dw_stream_close(self->stream);
    self->stream = NULL;
    PyObject *kept = self->store;
    self->store = NULL;
    dwpy_store_leave(kept);
}

static PyObject *stream_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    stream_object *self = (stream_object *)object;
    if (self->guard.is_closed)
        Py_RETURN_NONE;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    end(self);
    dwpy_guard_leave(&self->guard);
    Py_RETURN_NONE;
}

static void stream_dealloc(PyObject *object)
{
    end((stream_object *)object);
    dwpy_object_free(object);
}

/* ---- reading ---- */

static PyObject *get_id(PyObject *object, void *unused)
{
    (void)unused;
    stream_object *self = (stream_object *)object;
    return dwpy_guard_check(&self->guard) ? dwpy_string(dw_stream_id(self->stream))
                                          : NULL;
}

static PyObject *get_single_writer(PyObject *object, void *unused)
{
    (void)unused;
    stream_object *self = (stream_object *)object;
    dw_stream_info info;
    if (!dwpy_guard_check(&self->guard))
        return NULL;
    dw_stream_get_info(self->stream, &info);
    return PyBool_FromLong(info.single_writer);
}

static PyObject *get_quantized(PyObject *object, void *unused)
{
    (void)unused;
    stream_object *self = (stream_object *)object;
    dw_stream_info info;
    if (!dwpy_guard_check(&self->guard))
        return NULL;
    dw_stream_get_info(self->stream, &info);
    if (!info.quantization)
        Py_RETURN_NONE;
    return Py_BuildValue("(ss)", info.quantization, info.rounded);
}

static PyObject *get_tensors(PyObject *object, void *unused)
{
    (void)unused;
    stream_object *self = (stream_object *)object;
    if (!dwpy_guard_check(&self->guard))
        return NULL;
    size_t n;
    const dw_tensor *t = dw_stream_tensors(self->stream, &n);
    PyObject *table = PyDict_New();
    for (size_t i = 0; table && i < n; i++) {
        PyObject *row =
            dwpy_row(&tensor_row, Py_BuildValue("sN", dw_dtype_name(t[i].dtype),
                                                dwpy_shape(t[i].n_dims, t[i].dims)));
        if (!row || PyDict_SetItemString(table, t[i].name, row) < 0)
            Py_CLEAR(table);
        Py_XDECREF(row);
    }
    return table;
}

typedef dw_status (*ask_function)(dw_stream *, uint64_t *, dw_error *);

static PyObject *ask(PyObject *object, ask_function function)
{
    stream_object *self = (stream_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    uint64_t version = DW_NO_VERSION;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = function(self->stream, &version, &err);
    Py_END_ALLOW_THREADS dwpy_guard_leave(&self->guard);
    if (status == DW_NOT_FOUND)
        Py_RETURN_NONE;
    return status == DW_OK ? dwpy_version(version) : dwpy_raise(status, &err);
}

static PyObject *get_head(PyObject *self, void *unused)
{
    (void)unused;
    return ask(self, dw_stream_head);
}

static PyObject *get_floor(PyObject *self, void *unused)
{
    (void)unused;
    return ask(self, dw_stream_floor);
}

static PyObject *source_of(const dw_version_source *source)
{
    char sha256[65];
    if (!source->stream)
        Py_RETURN_NONE;
    for (int i = 0; i < 32; i++)
        snprintf(sha256 + 2 * i, 3, "%02x", source->commit_sha256[i]);
    return dwpy_row(&source_row,
                    Py_BuildValue("NKs", dwpy_string(source->stream),
                                  (unsigned long long)source->version, sha256));
}

static PyObject *row_of(const dw_version_info *v)
{
    static const char *const contents[] = {"delta", "anchor", "base", "fork"};
    char key[DW_PUBLIC_KEY_TEXT];
    dw_public_key_format(key, v->key);
    return dwpy_row(
        &version_row,
        Py_BuildValue(
            "KsKNNNNKKKNNNNNNNN", (unsigned long long)v->version, contents[v->content],
            (unsigned long long)v->epoch, dwpy_string(v->created), dwpy_string(v->step),
            dwpy_string(v->notes), dwpy_digest(v->state),
            (unsigned long long)v->n_changed, (unsigned long long)v->n_objects,
            (unsigned long long)v->n_bytes, dwpy_string(v->is_signed ? key : NULL),
            dwpy_string(v->base), dwpy_string(v->fork_url),
            dwpy_version(v->fork_url ? v->fork_version : DW_NO_VERSION),
            dwpy_version(v->suspect_from ? v->suspect_from : DW_NO_VERSION),
            dwpy_string(v->library[0] ? v->library : NULL),
            dwpy_string(v->host[0] ? v->host : NULL), source_of(&v->source)));
}

/* With the guard held. */
static PyObject *read_version(stream_object *self, uint64_t version)
{
    dw_version_info info = {0};
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_stream_version(self->stream, version, &info, &err);
    Py_END_ALLOW_THREADS return status == DW_OK ? row_of(&info)
                                                : dwpy_raise(status, &err);
}

static PyObject *stream_version(PyObject *object, PyObject *args)
{
    stream_object *self = (stream_object *)object;
    unsigned long long version;
    if (!PyArg_ParseTuple(args, "K:version", &version) || !dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *row = read_version(self, version);
    dwpy_guard_leave(&self->guard);
    return row;
}

static PyObject *read_versions(stream_object *self, uint64_t start)
{
    uint64_t head = 0, floor = 0;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_stream_head(self->stream, &head, &err);
    if (status == DW_OK)
        status = dw_stream_floor(self->stream, &floor, &err);
    Py_END_ALLOW_THREADS if (status == DW_NOT_FOUND) return PyList_New(0);
    if (status != DW_OK)
        return dwpy_raise(status, &err);
    PyObject *list = PyList_New(0);
    for (uint64_t v = start == DW_NO_VERSION ? floor : start; list && v <= head; v++) {
        PyObject *row = PyErr_CheckSignals() == 0 ? read_version(self, v) : NULL;
        if (!row || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *stream_versions(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"start", NULL};
    stream_object *self = (stream_object *)object;
    uint64_t start = DW_NO_VERSION;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&:versions", names,
                                     dwpy_number_arg, &start) ||
        !dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *list = read_versions(self, start);
    dwpy_guard_leave(&self->guard);
    return list;
}

static PyObject *stream_shortcuts(PyObject *object, PyObject *unused)
{
    (void)unused;
    stream_object *self = (stream_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    const dw_edge *shortcuts = NULL;
    size_t n = 0;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status =
        dw_stream_shortcuts(self->stream, &shortcuts, &n, &err);
    Py_END_ALLOW_THREADS PyObject *list =
        status == DW_OK ? PyList_New(0) : dwpy_raise(status, &err);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *row = dwpy_row(
            &shortcut_row, Py_BuildValue("NKKK", dwpy_version(shortcuts[i].from),
                                         (unsigned long long)shortcuts[i].to,
                                         (unsigned long long)shortcuts[i].n_bytes,
                                         (unsigned long long)shortcuts[i].n_objects));
        if (!row || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    dwpy_guard_leave(&self->guard);
    return list;
}

/* ---- companion files ---- */

static PyObject *file_row_of(const dw_file_info *file)
{
    char sha256[2 * sizeof file->sha256 + 1];
    for (size_t i = 0; i < sizeof file->sha256; i++)
        snprintf(sha256 + 2 * i, 3, "%02x", file->sha256[i]);
    return dwpy_row(&file_row, Py_BuildValue("KsK", (unsigned long long)file->n_bytes,
                                             sha256, (unsigned long long)file->version));
}

static PyObject *stream_files(PyObject *object, PyObject *args)
{
    stream_object *self = (stream_object *)object;
    uint64_t version = DW_NEWEST;
    if (!PyArg_ParseTuple(args, "|O&:files", dwpy_number_arg, &version) ||
        !dwpy_guard_enter(&self->guard))
        return NULL;
    const dw_file_info *files = NULL;
    size_t n = 0;
    bool is_given = false;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status =
        dw_stream_files(self->stream, version, &files, &n, &is_given, &err);
    Py_END_ALLOW_THREADS PyObject *table = NULL;
    if (status != DW_OK)
        dwpy_raise(status, &err);
    else
        table = is_given ? PyDict_New() : Py_NewRef(Py_None);
    for (size_t i = 0; table && i < n; i++) {
        PyObject *row = file_row_of(&files[i]);
        if (!row || PyDict_SetItemString(table, files[i].name, row) < 0)
            Py_CLEAR(table);
        Py_XDECREF(row);
    }
    dwpy_guard_leave(&self->guard);
    return table;
}

static PyObject *stream_read_file(PyObject *object, PyObject *args)
{
    stream_object *self = (stream_object *)object;
    uint64_t version = DW_NEWEST, n_bytes = 0;
    const char *name;
    if (!PyArg_ParseTuple(args, "O&s:read_file", dwpy_number_arg, &version, &name) ||
        !dwpy_guard_enter(&self->guard))
        return NULL;
    const void *bytes = NULL;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status =
        dw_stream_read_file(self->stream, version, name, &bytes, &n_bytes, &err);
    Py_END_ALLOW_THREADS PyObject *out =
        status == DW_OK ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)n_bytes)
                        : dwpy_raise(status, &err);
    dwpy_guard_leave(&self->guard);
    return out;
}

/* The library calls it between requests, on the calling thread. */
typedef struct roll_call {
    PyObject *list; /* NULL after a failure, with its exception set */
    PyThreadState *thread;
} roll_call;

static void note_follower(void *context, const dw_follower_info *f)
{
    roll_call *roll = context;
    PyEval_RestoreThread(roll->thread);
    PyObject *row =
        roll->list
            ? dwpy_row(&follower_row,
                       Py_BuildValue("NNNNNN", dwpy_string(f->id),
                                     dwpy_version(f->version), dwpy_string(f->host),
                                     dwpy_string(f->status), dwpy_string(f->message),
                                     dwpy_string(f->time)))
            : NULL;
    if (roll->list && (!row || PyList_Append(roll->list, row) < 0))
        Py_CLEAR(roll->list);
    Py_XDECREF(row);
    roll->thread = PyEval_SaveThread();
}

static PyObject *stream_followers(PyObject *object, PyObject *unused)
{
    (void)unused;
    stream_object *self = (stream_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    roll_call roll = {.list = PyList_New(0)};
    if (roll.list) {
        dw_error err = {0};
        roll.thread = PyEval_SaveThread();
        dw_status status = dw_stream_followers(self->stream, note_follower, &roll, &err);
        PyEval_RestoreThread(roll.thread);
        if (status != DW_OK && roll.list) {
            Py_CLEAR(roll.list);
            dwpy_raise(status, &err);
        }
    }
    dwpy_guard_leave(&self->guard);
    return roll.list;
}

static PyMethodDef methods[] = {
    {"version", stream_version, METH_VARARGS, "The record of a version."},
    {"versions", DWPY_KEYWORDS(stream_versions), METH_VARARGS | METH_KEYWORDS,
     "The versions from a version, or the floor, to the head."},
    {"shortcuts", stream_shortcuts, METH_NOARGS, "Folded deltas and anchors."},
    {"files", stream_files, METH_VARARGS,
     "The companion files of a version, or of the newest; None if it says nothing."},
    {"read_file", stream_read_file, METH_VARARGS,
     "The bytes of a companion file of a version."},
    {"followers", stream_followers, METH_NOARGS, "The followers that report."},
    {"close", stream_close, METH_NOARGS, NULL},
    DWPY_CONTEXT,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"id", get_id, NULL, NULL, NULL},
    {"tensors", get_tensors, NULL, "types and shapes by name", NULL},
    {"quantized", get_quantized, NULL, NULL, NULL},
    {"single_writer", get_single_writer, NULL, NULL, NULL},
    {"head", get_head, NULL, "the newest version; asks the store", NULL},
    {"floor", get_floor, NULL, "the lowest version that is kept; asks the store", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The log of a stream."},
    {Py_tp_new, stream_new},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deltawire.Stream", sizeof(stream_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

bool dwpy_stream_add(PyObject *module)
{
    return dwpy_type_add(module, &spec) && dwpy_row_type_add(module, &version_row) &&
           dwpy_row_type_add(module, &source_row) &&
           dwpy_row_type_add(module, &shortcut_row) &&
           dwpy_row_type_add(module, &follower_row) &&
           dwpy_row_type_add(module, &file_row) && dwpy_row_type_add(module, &tensor_row);
}
