/* deltawire.Layout: weights that an engine keeps in another layout than the checkpoint's.
 */
#include "layout_type.h"
#include "inner.h"

#include <stdlib.h>

static dwpy_row_type report_row = {
    "LayoutReport", "The result of applying a patch to the targets.",
    "version state reached n_changed n_stored forgotten", NULL};

static void layout_dealloc(PyObject *object)
{
    layout_object *self = (layout_object *)object;
    dw_layout_ready_free(self->ready);
    dw_layout_free(self->layout);
    dwpy_tensors_release(&self->targets);
    PyMem_Free(self->sizes);
    PyMem_Free(self->target_sizes);
    Py_XDECREF(self->names);
    Py_XDECREF(self->target_names);
    dwpy_object_free(object);
}

/* ---- attributes ---- */

/* Name -> number. If SPARSE, zeros are left out. */
static PyObject *table_of(const layout_object *self, const uint64_t *numbers, bool sparse)
{
    PyObject *out = PyDict_New(), *name, *index;
    Py_ssize_t at = 0;
    while (out && PyDict_Next(self->names, &at, &name, &index)) {
        const size_t t = PyLong_AsSize_t(index);
        const uint64_t n = numbers ? numbers[t] : dw_layout_held(self->layout, t);
        if (n == 0 && sparse)
            continue;
        PyObject *value = PyLong_FromUnsignedLongLong(n);
        if (!value || PyDict_SetItem(out, name, value) < 0)
            Py_CLEAR(out);
        Py_XDECREF(value);
    }
    return out;
}

static PyObject *get_held(PyObject *object, void *unused)
{
    (void)unused;
    layout_object *self = (layout_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *out = table_of(self, NULL, false);
    dwpy_guard_leave(&self->guard);
    return out;
}

static PyObject *names_where(const layout_object *self, const bool *chosen)
{
    PyObject *out = PyList_New(0), *name, *index;
    Py_ssize_t at = 0;
    while (out && PyDict_Next(self->names, &at, &name, &index)) {
        const size_t t = PyLong_AsSize_t(index);
        const bool is_in = chosen ? chosen[t] : dw_layout_is_forgotten(self->layout, t);
        if (is_in && PyList_Append(out, name) < 0)
            Py_CLEAR(out);
    }
    return out;
}

static PyObject *get_forgotten(PyObject *object, void *unused)
{
    (void)unused;
    layout_object *self = (layout_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    PyObject *out = names_where(self, NULL);
    dwpy_guard_leave(&self->guard);
    return out;
}

static PyObject *get_pieces(PyObject *object, void *unused)
{
    (void)unused;
    layout_object *self = (layout_object *)object;
    if (!dwpy_guard_enter(&self->guard))
        return NULL;
    const size_t n = dw_layout_pieces(self->layout);
    dwpy_guard_leave(&self->guard);
    return PyLong_FromSize_t(n);
}

/* ---- whole tensors ---- */

static PyObject *whole(PyObject *object, PyObject *args, PyObject *keywords, bool write)
{
    static char *names[] = {"tensors", "threads", NULL};
    layout_object *self = (layout_object *)object;
    PyObject *mapping, *out = NULL;
    unsigned n_threads = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$I", names, &mapping, &n_threads))
        return NULL;
    uint64_t *different = PyMem_Calloc(self->n_tensors + 1, sizeof *different);
    if (!different)
        return PyErr_NoMemory();
    dwpy_tensors tensors = {0};
    if (dwpy_tensors_take(&tensors, mapping, false) && dwpy_guard_enter(&self->guard)) {
        dw_error err = {0};
        dw_status status;
        Py_BEGIN_ALLOW_THREADS status =
            write ? dw_layout_write(self->layout, tensors.tensors, tensors.n, n_threads,
                                    &err)
                  : dw_layout_compare(self->layout, tensors.tensors, tensors.n, n_threads,
                                      different, &err);
        Py_END_ALLOW_THREADS dwpy_guard_leave(&self->guard);
        if (status != DW_OK)
            dwpy_raise(status, &err);
        else
            out = write ? Py_NewRef(Py_None) : table_of(self, different, true);
    }
    dwpy_tensors_release(&tensors);
    PyMem_Free(different);
    return out;
}

static PyObject *layout_compare(PyObject *self, PyObject *args, PyObject *keywords)
{
    return whole(self, args, keywords, false);
}

static PyObject *layout_write(PyObject *self, PyObject *args, PyObject *keywords)
{
    return whole(self, args, keywords, true);
}

/* The number of the target NAME. */
static bool find_target(const layout_object *self, PyObject *name, size_t *target)
{
    PyObject *index = PyDict_GetItemWithError(self->target_names, name);
    if (!index && !PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, name);
    *target = index ? PyLong_AsSize_t(index) : 0;
    return index != NULL;
}

static PyObject *layout_sources(PyObject *object, PyObject *name)
{
    layout_object *self = (layout_object *)object;
    size_t target;
    if (!find_target(self, name, &target))
        return NULL;
    bool *chosen = PyMem_Calloc(self->n_tensors + 1, sizeof *chosen);
    if (!chosen)
        return PyErr_NoMemory();
    PyObject *out = NULL;
    if (dwpy_guard_enter(&self->guard)) {
        for (size_t t = 0; t < self->n_tensors; t++)
            chosen[t] = dw_layout_holds(self->layout, t, target);
        dwpy_guard_leave(&self->guard);
        out = names_where(self, chosen);
    }
    PyMem_Free(chosen);
    return out;
}

static PyObject *layout_write_target(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"target", "tensors", "threads", NULL};
    layout_object *self = (layout_object *)object;
    PyObject *name, *mapping, *out = NULL;
    unsigned n_threads = 0;
    size_t target;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|$I", names, &name, &mapping,
                                     &n_threads) ||
        !find_target(self, name, &target))
        return NULL;
    dwpy_tensors tensors = {0};
    if (dwpy_tensors_take(&tensors, mapping, false) && dwpy_guard_enter(&self->guard)) {
        dw_error err = {0};
        dw_status status;
        Py_BEGIN_ALLOW_THREADS status = dw_layout_write_target(
            self->layout, target, tensors.tensors, tensors.n, n_threads, &err);
        Py_END_ALLOW_THREADS dwpy_guard_leave(&self->guard);
        out = status == DW_OK ? Py_NewRef(Py_None) : dwpy_raise(status, &err);
    }
    dwpy_tensors_release(&tensors);
    return out;
}

/* ---- patches ---- */

/* Parses the digest BASE; 0 for None. */
static bool read_base(dw_digest *out, PyObject *base)
{
    *out = 0;
    if (base == Py_None)
        return true;
    const char *text = dwpy_text(base);
    char *end = NULL;
    *out = text ? strtoull(text, &end, 16) : 0;
    if (text && (*end != '\0' || end == text))
        dwpy_raise_text(DW_INVALID, text, "is no digest");
    return text && *end == '\0' && end != text;
}

/* BASE may be NULL: not known. */
static PyObject *row_of(const layout_object *self, const dw_layout_report *r,
                        const bool *forgotten, const dw_digest *base)
{
    PyObject *reached =
        base ? dwpy_digest(dw_digest_sum((dw_digest[]){*base, r->moved}, 2))
             : Py_NewRef(Py_None);
    if (!reached)
        return NULL;
    return dwpy_row(&report_row,
                    Py_BuildValue("NNNKKN", dwpy_version(r->version),
                                  r->state ? dwpy_digest(r->state) : Py_NewRef(Py_None),
                                  reached, (unsigned long long)r->n_changed,
                                  (unsigned long long)r->n_stored,
                                  names_where(self, forgotten)));
}

/* Stores of the targets that have any: (places, old values, values). */
static PyObject *lists_of(const layout_object *self, const dw_layout_stores *lists)
{
    PyObject *out = PyDict_New(), *name, *index;
    Py_ssize_t at = 0;
    while (out && PyDict_Next(self->target_names, &at, &name, &index)) {
        const dw_layout_stores *list = &lists[PyLong_AsSize_t(index)];
        if (list->n == 0)
            continue;
        const Py_ssize_t n = (Py_ssize_t)list->n;
        const Py_ssize_t n_bytes = n * (Py_ssize_t)list->width;
        PyObject *value = Py_BuildValue(
            "NNN", PyByteArray_FromStringAndSize((const char *)list->places, n * 8),
            PyByteArray_FromStringAndSize(list->old_values, n_bytes),
            PyByteArray_FromStringAndSize(list->values, n_bytes));
        if (!value || PyDict_SetItem(out, name, value) < 0)
            Py_CLEAR(out);
        Py_XDECREF(value);
    }
    return out;
}

static PyObject *patch(PyObject *object, PyObject *args, PyObject *keywords, bool list)
{
    static char *names[] = {"path", "base", "threads", NULL};
    layout_object *self = (layout_object *)object;
    PyObject *path, *base = Py_None, *out = NULL;
    unsigned n_threads = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|$OI", names,
                                     PyUnicode_FSConverter, &path, &base, &n_threads))
        return NULL;
    dw_digest before;
    if (!read_base(&before, base)) { /* before anything is stored */
        Py_DECREF(path);
        return NULL;
    }
    bool *forgotten = PyMem_Calloc(self->n_tensors + 1, sizeof *forgotten);
    dw_layout_stores *lists = PyMem_Calloc(self->n_targets + 1, sizeof *lists);
    if (!forgotten || !lists) {
        PyErr_NoMemory();
    } else if (dwpy_guard_enter(&self->guard)) {
        dw_layout_report report;
        dw_error err = {0};
        dw_status status;
        const char *file = dwpy_path_text(path);
        Py_BEGIN_ALLOW_THREADS status =
            list ? dw_layout_list(self->layout, file, lists, &report, forgotten, &err)
                 : dw_layout_apply(self->layout, file, n_threads, &report, forgotten,
                                   &err);
        Py_END_ALLOW_THREADS dwpy_guard_leave(&self->guard);
        out = status == DW_OK
                  ? row_of(self, &report, forgotten, base == Py_None ? NULL : &before)
                  : dwpy_raise(status, &err);
        if (out && list)
            out = Py_BuildValue("NN", out, lists_of(self, lists));
        dw_layout_stores_free(lists, self->n_targets);
    }
    PyMem_Free(forgotten);
    PyMem_Free(lists);
    Py_DECREF(path);
    return out;
}

static PyObject *layout_apply(PyObject *self, PyObject *args, PyObject *keywords)
{
    return patch(self, args, keywords, false);
}

static PyObject *layout_list(PyObject *self, PyObject *args, PyObject *keywords)
{
    return patch(self, args, keywords, true);
}

static PyObject *layout_prepare(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path", "threads", NULL};
    layout_object *self = (layout_object *)object;
    PyObject *path;
    unsigned n_threads = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|$I:prepare", names,
                                     PyUnicode_FSConverter, &path, &n_threads))
        return NULL;
    dw_status status = DW_INVALID;
    dw_error err = {0};
    const bool is_entered = dwpy_guard_enter(&self->guard);
    if (is_entered) {
        const char *file = dwpy_path_text(path);
        Py_BEGIN_ALLOW_THREADS dw_layout_ready_free(self->ready);
        status = dw_layout_prepare(&self->ready, self->layout, file, n_threads, &err);
        Py_END_ALLOW_THREADS dwpy_guard_leave(&self->guard);
    }
    Py_DECREF(path);
    if (!is_entered)
        return NULL;
    return status == DW_OK ? Py_NewRef(Py_None) : dwpy_raise(status, &err);
}

/* Does not free the patch: that takes a device as long as storing it, and engines pause
 * for this. */
static dw_status store_ready(layout_object *self, unsigned n_threads,
                             dw_layout_report *report, bool *forgotten, dw_error *err)
{
    dw_status status;
    Py_BEGIN_ALLOW_THREADS status =
        dw_layout_store(self->ready, n_threads, report, forgotten, err);
    Py_END_ALLOW_THREADS return status;
}

static PyObject *layout_store(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"base", "threads", NULL};
    layout_object *self = (layout_object *)object;
    PyObject *base = Py_None, *out = NULL;
    unsigned n_threads = 0;
    dw_digest before;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OI:store", names, &base,
                                     &n_threads) ||
        !read_base(&before, base))
        return NULL;
    bool *forgotten = PyMem_Calloc(self->n_tensors + 1, sizeof *forgotten);
    if (!forgotten)
        return PyErr_NoMemory();
    if (dwpy_guard_enter(&self->guard)) {
        dw_layout_report report;
        dw_error err = {0};
        const bool is_ready = self->ready != NULL;
        const dw_status status =
            is_ready ? store_ready(self, n_threads, &report, forgotten, &err)
                     : DW_INVALID;
        dwpy_guard_leave(&self->guard);
        if (status == DW_OK)
            out = row_of(self, &report, forgotten, base == Py_None ? NULL : &before);
        else
            out = is_ready ? dwpy_raise(status, &err)
                           : dwpy_raise_text(DW_INVALID, NULL, "no patch is prepared");
    }
    PyMem_Free(forgotten);
    return out;
}

static PyMethodDef methods[] = {
    {"passes", dwpy_layout_passes, METH_NOARGS, "The number of passes."},
    {"spell", dwpy_layout_spell, METH_VARARGS,
     "Fills an array with what a tensor spells."},
    {"learn", dwpy_layout_learn, METH_VARARGS,
     "Learns from the contents of a target after each pass."},
    {"bind", dwpy_layout_bind, METH_O,
     "Sets the memory of targets, and releases the memory set before."},
    {"forget", dwpy_layout_forget, METH_O, "Forgets a tensor."},
    {"add_sums", DWPY_KEYWORDS(dwpy_layout_add_sums), METH_VARARGS | METH_KEYWORDS,
     "Sums of rows that patches move too."},
    {"end", dwpy_layout_end, METH_NOARGS, "Ends the learning."},
    {"compare", DWPY_KEYWORDS(layout_compare), METH_VARARGS | METH_KEYWORDS,
     "How many elements of each tensor differ in the targets."},
    {"write", DWPY_KEYWORDS(layout_write), METH_VARARGS | METH_KEYWORDS,
     "Stores whole tensors in the targets."},
    {"write_target", DWPY_KEYWORDS(layout_write_target), METH_VARARGS | METH_KEYWORDS,
     "Stores the tensors of one target in it."},
    {"sources", layout_sources, METH_O, "The tensors that have elements in a target."},
    {"apply", DWPY_KEYWORDS(layout_apply), METH_VARARGS | METH_KEYWORDS,
     "Applies a patch file to the targets, and reads the values back."},
    {"prepare", DWPY_KEYWORDS(layout_prepare), METH_VARARGS | METH_KEYWORDS,
     "Does all of apply() that changes nothing; the rest is store()."},
    {"store", DWPY_KEYWORDS(layout_store), METH_VARARGS | METH_KEYWORDS,
     "Stores the prepared patch, and reads the values back."},
    {"stores", DWPY_KEYWORDS(layout_list), METH_VARARGS | METH_KEYWORDS,
     "The stores as lists, for memory that the CPU cannot reach."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"held", get_held, NULL, "how many elements of each tensor are in targets", NULL},
    {"forgotten", get_forgotten, NULL, "the forgotten tensors", NULL},
    {"pieces", get_pieces, NULL, "the number of pieces", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The positions of a checkpoint's elements in an engine's own tensors."},
    {Py_tp_new, dwpy_layout_new},
    {Py_tp_dealloc, layout_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deltawire.Layout", sizeof(layout_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

bool dwpy_layout_add(PyObject *module)
{
    return dwpy_type_add(module, &spec) && dwpy_row_type_add(module, &report_row);
}
