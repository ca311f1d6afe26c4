/* Learns a deltawire.Layout. */
#include "layout_type.h"

bool dwpy_layout_find(size_t *out, PyObject *names, PyObject *name)
{
    PyObject *found = PyDict_GetItemWithError(names, name);
    if (found)
        *out = PyLong_AsSize_t(found);
    else if (!PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, name);
    return found != NULL;
}

PyObject *dwpy_layout_passes(PyObject *object, PyObject *unused)
{
    (void)unused;
    layout_object *self = (layout_object *)object;
    unsigned most = 0;
    for (size_t t = 0; t < self->n_tensors; t++) {
        const unsigned n = dw_layout_passes(self->layout, self->sizes[t].dtype);
        most = n > most ? n : most;
    }
    return PyLong_FromUnsignedLong(most);
}

PyObject *dwpy_layout_spell(PyObject *object, PyObject *args)
{
    layout_object *self = (layout_object *)object;
    PyObject *name, *into;
    unsigned pass;
    size_t t;
    if (!PyArg_ParseTuple(args, "UIO:spell", &name, &pass, &into) ||
        !dwpy_layout_find(&t, self->names, name))
        return NULL;
    PyObject *mapping = PyDict_New();
    dwpy_tensors array = {0};
    bool good = mapping && PyDict_SetItem(mapping, name, into) == 0 &&
                dwpy_tensors_take(&array, mapping, true);
    if (good && array.tensors[0].n_bytes != self->sizes[t].n_bytes) {
        dwpy_raise_text(DW_MISMATCH, array.tensors[0].name, "the array has another size");
        good = false;
    }
    if (good) {
        Py_BEGIN_ALLOW_THREADS dw_layout_spell(self->layout, t, pass,
                                               array.tensors[0].data);
        Py_END_ALLOW_THREADS
    }
    dwpy_tensors_release(&array);
    Py_XDECREF(mapping);
    return good ? Py_NewRef(Py_None) : NULL;
}

/* Turns a sequence of arrays into a mapping, from which the tensors are read. */
static PyObject *mapping_of(PyObject *sequence)
{
    const Py_ssize_t n = PySequence_Size(sequence);
    PyObject *out = n < 0 ? NULL : PyDict_New();
    for (Py_ssize_t i = 0; out && i < n; i++) {
        PyObject *key = PyUnicode_FromFormat("pass %zd", i);
        PyObject *value = PySequence_GetItem(sequence, i);
        if (!key || !value || PyDict_SetItem(out, key, value) < 0)
            Py_CLEAR(out);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return out;
}

static PyObject *learn_now(layout_object *self, size_t target, const dwpy_tensors *passes)
{
    const dwpy_size *like = &self->target_sizes[target];
    if (passes->n < dw_layout_passes(self->layout, like->dtype)) {
        dwpy_raise_text(DW_INVALID, NULL, "there were more passes");
        return NULL;
    }
    const void **codes = PyMem_Calloc(passes->n + 1, sizeof *codes);
    if (!codes)
        return PyErr_NoMemory();
    bool same = true;
    for (size_t i = 0; i < passes->n; i++) {
        codes[i] = passes->tensors[i].data;
        same = same && passes->tensors[i].n_bytes == like->n_bytes;
    }
    uint64_t n_covered = 0;
    dw_error err = {0};
    dw_status status = DW_OK;
    if (same) {
        Py_BEGIN_ALLOW_THREADS status =
            dw_layout_learn(self->layout, target, codes, &n_covered, &err);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(codes);
    if (!same)
        return dwpy_raise_text(DW_MISMATCH, NULL,
                               "the arrays have not the target's size");
    return status == DW_OK ? PyLong_FromUnsignedLongLong(n_covered)
                           : dwpy_raise(status, &err);
}

PyObject *dwpy_layout_learn(PyObject *object, PyObject *args)
{
    layout_object *self = (layout_object *)object;
    PyObject *name, *sequence;
    size_t target;
    if (!PyArg_ParseTuple(args, "UO:learn", &name, &sequence) ||
        !dwpy_layout_find(&target, self->target_names, name))
        return NULL;
    PyObject *mapping = mapping_of(sequence);
    dwpy_tensors passes = {0};
    PyObject *out = NULL;
    if (mapping && dwpy_tensors_take(&passes, mapping, false) &&
        dwpy_guard_enter(&self->guard)) {
        out = learn_now(self, target, &passes);
        dwpy_guard_leave(&self->guard);
    }
    dwpy_tensors_release(&passes);
    Py_XDECREF(mapping);
    return out;
}

PyObject *dwpy_layout_forget(PyObject *object, PyObject *name)
{
    layout_object *self = (layout_object *)object;
    size_t t;
    if (!dwpy_layout_find(&t, self->names, name) || !dwpy_guard_enter(&self->guard))
        return NULL;
    dw_layout_forget(self->layout, t);
    dwpy_guard_leave(&self->guard);
    Py_RETURN_NONE;
}

PyObject *dwpy_layout_add_sums(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"", "block", "rows", "run", "factor", NULL};
    layout_object *self = (layout_object *)object;
    PyObject *name;
    unsigned long long block;
    unsigned rows, run;
    int factor;
    size_t target;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "U$KIIi:add_sums", names, &name,
                                     &block, &rows, &run, &factor) ||
        !dwpy_layout_find(&target, self->target_names, name) ||
        !dwpy_guard_enter(&self->guard))
        return NULL;
    dw_error err = {0};
    const dw_layout_sums sums = {block, rows, run, factor};
    dw_status status = dw_layout_add_sums(self->layout, target, &sums, &err);
    dwpy_guard_leave(&self->guard);
    if (status != DW_OK)
        return dwpy_raise(status, &err);
    Py_RETURN_NONE;
}

PyObject *dwpy_layout_end(PyObject *object, PyObject *unused)
{
    (void)unused;
    layout_object *self = (layout_object *)object;
    dw_error err = {0};
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status = dw_layout_end(self->layout, &err);
    Py_END_ALLOW_THREADS dwpy_guard_leave(&self->guard);
    return status == DW_OK ? Py_NewRef(Py_None) : dwpy_raise(status, &err);
}
