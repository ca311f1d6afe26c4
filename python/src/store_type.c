/* deltawire.Store: objects by key. */
#include "store_type.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct store_object {
    PyObject_HEAD dw_store *store;
    unsigned n_users; /* handles and calls; after close() the last of them closes it */
    bool is_closed;
    pid_t pid;
    PyObject *credentials; /* a function or a botocore session; NULL: none */
} store_object;

static PyTypeObject *store_type;

static dwpy_row_type counts_row = {"StoreCounts", "Since the store was opened.",
                                   "n_requests n_retries bytes_read bytes_written", NULL};
static dwpy_row_type entry_row = {"StoreEntry", "An object of a store.",
                                  "key n_bytes modified_ms", NULL};

/* ---- the handle ---- */

static void end_if_unused(store_object *self)
{
    dw_store *store = self->store;
    if (self->n_users > 0 || !self->is_closed || !store)
        return;
    self->store = NULL;
    if (self->pid != getpid())
        return; /* its threads belong to another process */
    Py_BEGIN_ALLOW_THREADS dw_store_close(store);
    Py_END_ALLOW_THREADS
}

static dw_store *use(PyObject *object)
{
    store_object *self = (store_object *)object;
    const dwpy_guard state = {.pid = self->pid, .is_closed = self->is_closed};
    if (!dwpy_guard_check(&state))
        return NULL;
    self->n_users++;
    return self->store;
}

static void leave(PyObject *object)
{
    store_object *self = (store_object *)object;
    self->n_users--;
    end_if_unused(self);
}

dw_store *dwpy_store_use(PyObject *store_or_url, PyObject **kept)
{
    *kept = NULL;
    PyObject *object = NULL;
    if (Py_TYPE(store_or_url) == store_type)
        object = Py_NewRef(store_or_url);
    else if (PyUnicode_Check(store_or_url))
        object = PyObject_CallFunctionObjArgs((PyObject *)store_type, store_or_url, NULL);
    else
        PyErr_SetString(PyExc_TypeError, "a store is a Store or a URL");
    dw_store *store = object ? use(object) : NULL;
    if (store)
        *kept = object;
    else
        Py_XDECREF(object);
    return store;
}

void dwpy_store_leave(PyObject *kept)
{
    if (!kept)
        return;
    leave(kept);
    Py_DECREF(kept);
}

/* ---- credentials ---- */

static void release_credentials(dw_credentials *credentials)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)credentials->owner);
    PyGILState_Release(state);
}

/* A botocore session's keys: (key, secret, token). It renews them itself. */
static PyObject *ask_session(PyObject *session)
{
    PyObject *all = PyObject_CallMethod(session, "get_credentials", NULL);
    PyObject *now = all && all != Py_None
                        ? PyObject_CallMethod(all, "get_frozen_credentials", NULL)
                        : NULL;
    if (all == Py_None)
        PyErr_SetString(PyExc_ValueError, "the botocore session has no credentials");
    Py_XDECREF(all);
    PyObject *out = now ? PySequence_GetSlice(now, 0, 3) : NULL;
    Py_XDECREF(now);
    return out;
}

/* A number of seconds since 1970, a datetime, or None. */
static bool read_expiry(PyObject *expiry, int64_t *expires_ms)
{
    *expires_ms = 0;
    if (expiry == Py_None)
        return true;
    PyObject *number = PyObject_HasAttrString(expiry, "timestamp")
                           ? PyObject_CallMethod(expiry, "timestamp", NULL)
                           : Py_NewRef(expiry);
    const double seconds = number ? PyFloat_AsDouble(number) : -1;
    Py_XDECREF(number);
    if (PyErr_Occurred())
        return false;
    if (!(seconds > 0 && seconds < 1e11)) {
        PyErr_SetString(PyExc_ValueError, "the expiry is not a time");
        return false;
    }
    *expires_ms = (int64_t)(seconds * 1000);
    return true;
}

/* (key, secret, token, expiry), or of Google (token, expiry). */
static bool read_keys(PyObject *keys, dw_credentials *out)
{
    const char *token = NULL;
    PyObject *expiry = Py_None;
    if (!PyTuple_Check(keys)) {
        PyErr_SetString(PyExc_TypeError,
                        "credentials are a tuple (key, secret, token, expiry), or for "
                        "gs:// (token, expiry)");
        return false;
    }
    if (PyTuple_Size(keys) == 2 && !PyUnicode_Check(PyTuple_GetItem(keys, 1)))
        return PyArg_ParseTuple(keys, "sO", &out->session_token, &expiry) &&
               read_expiry(expiry, &out->expires_ms);
    return PyArg_ParseTuple(keys, "ss|zO", &out->access_key, &out->secret_key, &token,
                            &expiry) &&
           (out->session_token = token, read_expiry(expiry, &out->expires_ms));
}

/* Takes Python's exception. What the network does may pass; the rest does not. */
static dw_status take_exception(dw_error *err)
{
    PyObject *type, *value, *trace;
    const dw_status code =
        PyErr_ExceptionMatches(PyExc_OSError) ? DW_UNAVAILABLE : DW_DENIED;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *bytes = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    *err = (dw_error){.code = code};
    snprintf(err->where, sizeof err->where, "Store(credentials=...)");
    snprintf(err->text, sizeof err->text, "no credentials: %s", bytes ? bytes : "failed");
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return code;
}

static dw_status ask_credentials(void *context, dw_credentials *out, dw_error *err)
{
    PyObject *source = context;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *keys = PyObject_HasAttrString(source, "get_credentials")
                         ? ask_session(source)
                         : PyObject_CallNoArgs(source);
    dw_status status = DW_OK;
    if (keys && read_keys(keys, out)) {
        out->release = release_credentials;
        out->owner = keys;
    } else {
        status = take_exception(err);
        Py_XDECREF(keys);
    }
    PyGILState_Release(state);
    return status;
}

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"url",        "endpoint",    "region",     "profile",
                            "addressing", "connections", "part_bytes", "tries",
                            "deadline",   "credentials", "anonymous",  NULL};
    dw_store_options options = {.struct_bytes = sizeof options};
    const char *url;
    unsigned long long part_bytes = 0;
    unsigned deadline_ms = 0;
    PyObject *credentials = Py_None;
    int anonymous = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|$zzzzIKIO&Op:Store", names, &url,
                                     &options.endpoint, &options.region, &options.profile,
                                     &options.addressing, &options.n_connections,
                                     &part_bytes, &options.n_tries, dwpy_timeout_arg,
                                     &deadline_ms, &credentials, &anonymous))
        return NULL;
    if (credentials != Py_None) {
        if (!PyCallable_Check(credentials) &&
            !PyObject_HasAttrString(credentials, "get_credentials")) {
            PyErr_SetString(PyExc_TypeError,
                            "credentials is a function or a botocore session");
            return NULL;
        }
        options.credentials = ask_credentials;
        options.credentials_context = credentials;
    }
    options.anonymous = anonymous;
    options.part_bytes = part_bytes;
    options.deadline_ms = deadline_ms == UINT_MAX ? 0 : deadline_ms;
    dw_store *store = NULL;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_store_open(&store, url, &options, &err);
    Py_END_ALLOW_THREADS if (status != DW_OK) return dwpy_raise(status, &err);
    store_object *self = (store_object *)PyType_GenericAlloc(type, 0);
    if (!self) {
        dw_store_close(store);
        return NULL;
    }
    self->store = store;
    self->credentials = credentials != Py_None ? Py_NewRef(credentials) : NULL;
    self->pid = getpid();
    return (PyObject *)self;
}

static PyObject *store_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    store_object *self = (store_object *)object;
    self->is_closed = true;
    end_if_unused(self);
    Py_RETURN_NONE;
}

static void store_dealloc(PyObject *object)
{
    store_object *self = (store_object *)object;
    self->is_closed = true;
    end_if_unused(self);
    Py_CLEAR(self->credentials);
    dwpy_object_free(object);
}

/* ---- objects ---- */

static PyObject *read_object(dw_store *store, const char *key, uint64_t offset,
                             size_t n_bytes, PyObject *progress)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n_bytes);
    if (!bytes)
        return NULL;
    char *into = PyBytes_AsString(bytes);
    size_t n_read = 0;
    dw_error err = {0};
    dwpy_hook hook;
    bool good = dwpy_hook_begin(&hook, progress, NULL);
    if (good) {
        dw_status status = dw_store_get(store, key, offset, into, n_bytes, &n_read,
                                        &hook.progress, &err);
        good = dwpy_hook_end(&hook, status, &err);
    }
    PyObject *out = NULL;
    if (good)
        out = n_read == n_bytes ? Py_NewRef(bytes)
                                : PyBytes_FromStringAndSize(into, (Py_ssize_t)n_read);
    Py_DECREF(bytes);
    return out;
}

static bool size_of(dw_store *store, const char *key, uint64_t *n_bytes)
{
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_store_stat(store, key, n_bytes, NULL, &err);
    Py_END_ALLOW_THREADS if (status != DW_OK) dwpy_raise(status, &err);
    return status == DW_OK;
}

static PyObject *store_get(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"key", "offset", "size", "progress", NULL};
    const char *key;
    unsigned long long offset = 0;
    uint64_t n_bytes = UINT64_MAX;
    PyObject *progress = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|KO&$O:get", names, &key, &offset,
                                     dwpy_number_arg, &n_bytes, &progress))
        return NULL;
    dw_store *store = use(object);
    if (!store)
        return NULL;
    PyObject *out = NULL;
    uint64_t n_all = 0;
    if (size_of(store, key, &n_all)) {
        const uint64_t n_left = offset < n_all ? n_all - offset : 0;
        n_bytes = n_bytes < n_left ? n_bytes : n_left;
        if (n_bytes > PY_SSIZE_T_MAX - 64)
            PyErr_NoMemory();
        else
            out = read_object(store, key, offset, (size_t)n_bytes, progress);
    }
    leave(object);
    return out;
}

static PyObject *store_put(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"key", "data", "create", "progress", NULL};
    const char *key;
    Py_buffer data;
    int create = 0;
    PyObject *progress = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "sy*|$pO:put", names, &key, &data,
                                     &create, &progress))
        return NULL;
    dw_store *store = use(object);
    dw_error err = {0};
    dwpy_hook hook;
    bool good = store && dwpy_hook_begin(&hook, progress, NULL);
    if (good) {
        const dw_source source = {.n_bytes = (uint64_t)data.len,
                                  .bytes = data.len ? data.buf : ""};
        dw_status status =
            dw_store_put(store, key, &source, create ? DW_PUT_CREATE : DW_PUT_REPLACE,
                         &hook.progress, &err);
        good = dwpy_hook_end(&hook, status, &err);
    }
    if (store)
        leave(object);
    PyBuffer_Release(&data);
    return good ? Py_NewRef(Py_None) : NULL;
}

/* Entries are collected without the GIL and turned into objects afterwards. */
typedef struct gathered {
    dw_store_entry
        *entries; /* keys are copies; from malloc, because the GIL is not held */
    size_t n, room;
} gathered;

static dw_status gather(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    gathered *g = context;
    if (g->n == g->room) {
        size_t room = g->room ? 2 * g->room : 64;
        dw_store_entry *more = realloc(g->entries, room * sizeof *more);
        if (!more)
            return DW_NO_MEMORY;
        g->entries = more;
        g->room = room;
    }
    const size_t n = strlen(entry->key) + 1;
    char *key = malloc(n);
    if (!key)
        return DW_NO_MEMORY;
    memcpy(key, entry->key, n);
    g->entries[g->n] = *entry;
    g->entries[g->n++].key = key;
    return DW_OK;
}

static PyObject *list_of(const gathered *g)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < g->n; i++) {
        PyObject *row =
            dwpy_row(&entry_row, Py_BuildValue("sKL", g->entries[i].key,
                                               (unsigned long long)g->entries[i].n_bytes,
                                               (long long)g->entries[i].modified_ms));
        if (!row || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *store_list(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"prefix", "after", NULL};
    const char *prefix = "", *after = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|sz:list", names, &prefix, &after))
        return NULL;
    dw_store *store = use(object);
    if (!store)
        return NULL;
    gathered g = {0};
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_store_list(store, prefix, after, gather, &g, &err);
    Py_END_ALLOW_THREADS leave(object);
    PyObject *list = status == DW_OK ? list_of(&g) : dwpy_raise(status, &err);
    for (size_t i = 0; i < g.n; i++)
        free((char *)g.entries[i].key);
    free(g.entries);
    return list;
}

static PyObject *store_remove(PyObject *object, PyObject *args)
{
    const char *key;
    if (!PyArg_ParseTuple(args, "s:remove", &key))
        return NULL;
    dw_store *store = use(object);
    if (!store)
        return NULL;
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_store_remove(store, key, &err);
    Py_END_ALLOW_THREADS leave(object);
    return status == DW_OK ? Py_NewRef(Py_None) : dwpy_raise(status, &err);
}

static PyObject *get_url(PyObject *object, void *unused)
{
    (void)unused;
    dw_store *store = use(object);
    if (!store)
        return NULL;
    PyObject *url = dwpy_string(dw_store_url(store));
    leave(object);
    return url;
}

static PyObject *get_counts(PyObject *object, void *unused)
{
    (void)unused;
    dw_store *store = use(object);
    if (!store)
        return NULL;
    dw_store_counts c;
    dw_store_get_counts(store, &c);
    leave(object);
    return dwpy_row(&counts_row, Py_BuildValue("KKKK", (unsigned long long)c.n_requests,
                                               (unsigned long long)c.n_retries,
                                               (unsigned long long)c.bytes_read,
                                               (unsigned long long)c.bytes_written));
}

static PyMethodDef methods[] = {
    {"get", DWPY_KEYWORDS(store_get), METH_VARARGS | METH_KEYWORDS, "An object's bytes."},
    {"put", DWPY_KEYWORDS(store_put), METH_VARARGS | METH_KEYWORDS,
     "Writes an object; with create=True it raises Conflict if the object exists."},
    {"list", DWPY_KEYWORDS(store_list), METH_VARARGS | METH_KEYWORDS,
     "Objects in order of their keys."},
    {"remove", store_remove, METH_VARARGS, NULL},
    {"close", store_close, METH_NOARGS, "Handles that use it keep it open until closed."},
    DWPY_CONTEXT,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"url", get_url, NULL, NULL, NULL},
    {"counts", get_counts, NULL, "requests and bytes since it was opened", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "A store: file:///DIR, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, hf://..., mem:NAME, "
     "or a path."},
    {Py_tp_new, store_new},
    {Py_tp_dealloc, store_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deltawire.Store", sizeof(store_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

bool dwpy_store_add(PyObject *module)
{
    store_type = dwpy_type_add(module, &spec);
    return store_type && dwpy_row_type_add(module, &counts_row) &&
           dwpy_row_type_add(module, &entry_row);
}
