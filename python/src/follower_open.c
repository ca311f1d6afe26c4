/* The many arguments of deltawire.Follower. */
#include "follower.h"

typedef struct arguments {
    PyObject *store, *tensors, *trust;
    PyObject *into, *base, *spool_dir, *weights_dir; /* new */
    const char *stream;
    unsigned long long max_ahead_bytes;
    int empty;
    dw_follow_options options;
    dwpy_trust keys;
} arguments;

static bool parse(arguments *a, PyObject *args, PyObject *keywords)
{
    static char *names[] = {
        "store",       "into",        "tensors",         "at",    "base",   "spool_dir",
        "copies",      "weights_dir", "reader_wait",     "trust", "stream", "id",
        "sweep_every", "threads",     "max_ahead_bytes", "empty", NULL};
    dw_follow_options *o = &a->options;
    return PyArg_ParseTupleAndKeywords(
               args, keywords, "O|$O&OO&O&O&IO&O&OzzIIKp:Follower", names, &a->store,
               dwpy_path_arg, &a->into, &a->tensors, dwpy_version_arg, &o->at,
               dwpy_path_arg, &a->base, dwpy_path_arg, &a->spool_dir, &o->n_copies,
               dwpy_path_arg, &a->weights_dir, dwpy_timeout_arg, &o->reader_wait_ms,
               &a->trust, &a->stream, &o->id, &o->sweep_every, &o->n_threads,
               &a->max_ahead_bytes, &a->empty) != 0;
}

static bool open_now(follower_object *self, arguments *a)
{
    dw_follow_options *o = &a->options;
    if (a->tensors == Py_None)
        a->tensors = NULL;
    if (!a->into == !a->tensors) {
        PyErr_SetString(PyExc_TypeError, "a follower has either into= or tensors=");
        return false;
    }
    if (a->empty && !a->tensors) {
        PyErr_SetString(PyExc_TypeError, "empty= goes with tensors=");
        return false;
    }
    dw_store *store = dwpy_store_use(a->store, &self->store);
    if (!store || !dwpy_trust_read(&a->keys, a->trust) ||
        (a->tensors && !dwpy_tensors_take(&self->tensors, a->tensors, DWPY_WRITE)))
        return false;
    o->into = dwpy_path_text(a->into);
    o->tensors = self->tensors.tensors;
    o->n_tensors = self->tensors.n;
    o->tensors_empty = a->empty != 0;
    o->base = dwpy_path_text(a->base);
    o->spool_dir = dwpy_path_text(a->spool_dir);
    o->weights_dir = dwpy_path_text(a->weights_dir);
    o->trust = (dw_trust){(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])a->keys.keys, a->keys.n,
                          a->stream};
    if (a->max_ahead_bytes)
        o->max_ahead_bytes = a->max_ahead_bytes;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_follower_open(&self->follower, store, o, &err);
    Py_END_ALLOW_THREADS if (status != DW_OK) dwpy_raise(status, &err);
    return status == DW_OK;
}

PyObject *dwpy_follower_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    arguments a = {0};
    dw_follow_options_init(&a.options);
    if (!parse(&a, args, keywords))
        return NULL;
    follower_object *self = (follower_object *)PyType_GenericAlloc(type, 0);
    if (self) {
        dwpy_guard_init(&self->guard);
        if (open_now(self, &a)) {
            self->version = dw_follower_version(self->follower);
            dwpy_live_add(&self->live, dwpy_follower_end);
        } else {
            Py_CLEAR(self);
        }
    }
    dwpy_trust_release(&a.keys);
    Py_XDECREF(a.into);
    Py_XDECREF(a.base);
    Py_XDECREF(a.spool_dir);
    Py_XDECREF(a.weights_dir);
    return (PyObject *)self;
}
