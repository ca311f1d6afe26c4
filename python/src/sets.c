/* Functions over whole sets of tensors: writing a checkpoint, digests, casts. */
#include "tensors.h"

/* Borrows from METADATA; the array is the caller's. */
static bool read_pairs(dw_pair **out, size_t *n, PyObject *items)
{
    *n = (size_t)PyList_Size(items);
    *out = PyMem_Calloc(*n + 1, sizeof **out);
    if (!*out) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t i = 0; i < *n; i++) {
        PyObject *key, *value;
        if (!PyArg_ParseTuple(PyList_GetItem(items, (Py_ssize_t)i),
                              "UU;metadata are strings", &key, &value) ||
            !((*out)[i].key = dwpy_text(key)) || !((*out)[i].value = dwpy_text(value)))
            return false;
    }
    return true;
}

static bool write_now(const char *path, const dwpy_tensors *tensors,
                      const dw_checkpoint_write_options *options)
{
    dw_error err = {0};
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status =
        dw_checkpoint_write(path, tensors->tensors, tensors->n, options, &err);
    Py_END_ALLOW_THREADS if (status != DW_OK) dwpy_raise(status, &err);
    return status == DW_OK;
}

PyObject *dwpy_write_checkpoint(PyObject *self, PyObject *args, PyObject *keywords)
{
    (void)self;
    static char *names[] = {"path", "tensors", "metadata", "max_shard_bytes", NULL};
    PyObject *path = NULL, *mapping, *metadata = Py_None, *items = NULL;
    unsigned long long max_shard_bytes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O|$OK:write_checkpoint", names,
                                     PyUnicode_FSConverter, &path, &mapping, &metadata,
                                     &max_shard_bytes))
        return NULL;
    dw_checkpoint_write_options options = {.struct_bytes = sizeof options,
                                           .max_shard_bytes = max_shard_bytes};
    dw_pair *pairs = NULL;
    bool good = true;
    if (metadata != Py_None) {
        items = PyMapping_Items(metadata);
        good = items && read_pairs(&pairs, &options.n_metadata, items);
        options.metadata = pairs;
    }
    dwpy_tensors tensors = {0};
    good = good && dwpy_tensors_take(&tensors, mapping, DWPY_READ) &&
           write_now(dwpy_path_text(path), &tensors, &options);
    dwpy_tensors_release(&tensors);
    PyMem_Free(pairs);
    Py_XDECREF(items);
    Py_DECREF(path);
    return good ? Py_NewRef(Py_None) : NULL;
}

/* ---- digests ---- */

static dwpy_row_type digests = {"Digests", "Of a model, and of each tensor.",
                                "state tensors", NULL};

static PyObject *digests_of(const dwpy_tensors *tensors, const dw_digest *each,
                            dw_digest state)
{
    PyObject *table = PyDict_New();
    for (size_t i = 0; table && i < tensors->n; i++) {
        PyObject *digest = dwpy_digest(each[i]);
        if (!digest || PyDict_SetItemString(table, tensors->tensors[i].name, digest) < 0)
            Py_CLEAR(table);
        Py_XDECREF(digest);
    }
    return table ? dwpy_row(&digests, Py_BuildValue("NN", dwpy_digest(state), table))
                 : NULL;
}

PyObject *dwpy_digest_tensors(PyObject *self, PyObject *args, PyObject *keywords)
{
    (void)self;
    static char *names[] = {"tensors", "threads", "progress", NULL};
    PyObject *mapping, *progress = NULL;
    unsigned n_threads = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$IO:digest", names, &mapping,
                                     &n_threads, &progress))
        return NULL;
    dwpy_tensors tensors;
    if (!dwpy_tensors_take(&tensors, mapping, DWPY_READ))
        return NULL;
    PyObject *out = NULL;
    dw_digest state = 0, *each = PyMem_Calloc(tensors.n + 1, sizeof *each);
    dw_error err = {0};
    dwpy_hook hook;
    if (!each) {
        PyErr_NoMemory();
    } else if (dwpy_hook_begin(&hook, progress, NULL)) {
        dw_status status = dw_digest_tensors(each, &state, tensors.tensors, tensors.n,
                                             n_threads, &hook.progress, &err);
        if (dwpy_hook_end(&hook, status, &err))
            out = digests_of(&tensors, each, state);
    }
    PyMem_Free(each);
    dwpy_tensors_release(&tensors);
    return out;
}

bool dwpy_sets_add(PyObject *module)
{
    return dwpy_row_type_add(module, &digests);
}

/* ---- casts ---- */

PyObject *dwpy_cast(PyObject *self, PyObject *args, PyObject *keywords)
{
    (void)self;
    static char *names[] = {"source", "into", "threads", NULL};
    PyObject *source, *into;
    unsigned n_threads = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|$I:cast", names, &source, &into,
                                     &n_threads))
        return NULL;
    dwpy_tensors from, to = {0};
    if (!dwpy_tensors_take(&from, source, DWPY_READ))
        return NULL;
    bool good = dwpy_tensors_take_beside(&to, into, DWPY_WRITE, &from);
    if (good && to.n != from.n) {
        dwpy_raise_text(DW_MISMATCH, NULL, "the two sides have not the same tensors");
        good = false;
    }
    if (good) {
        dw_error err = {0};
        dw_status status;
        Py_BEGIN_ALLOW_THREADS status =
            dw_cast_tensors(to.tensors, from.tensors, from.n, n_threads, &err);
        Py_END_ALLOW_THREADS good = status == DW_OK;
        if (!good)
            dwpy_raise(status, &err);
    }
    dwpy_tensors_release(&to);
    dwpy_tensors_release(&from);
    return good ? Py_NewRef(Py_None) : NULL;
}

/* ---- keys ---- */

PyObject *dwpy_keygen(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *path;
    if (!PyArg_ParseTuple(args, "O&:keygen", PyUnicode_FSConverter, &path))
        return NULL;
    char text[DW_PUBLIC_KEY_TEXT];
    dw_error err = {0};
    dw_status status = dw_sign_key_create(dwpy_path_text(path), text, &err);
    Py_DECREF(path);
    return status == DW_OK ? PyUnicode_FromString(text) : dwpy_raise(status, &err);
}
