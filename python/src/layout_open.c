/* The arguments of deltawire.Layout, and the memory of its targets. */
#include "layout_type.h"

/* Of a mapping name -> (dtype, shape). */
typedef struct shapes {
    dw_tensor *tensors;
    uint64_t *dims;
    size_t n;
    PyObject *items;
} shapes;

static void shapes_release(shapes *s)
{
    PyMem_Free(s->tensors);
    PyMem_Free(s->dims);
    Py_XDECREF(s->items);
    *s = (shapes){0};
}

static bool read_shape(dw_tensor *t, uint64_t *dims, PyObject *value)
{
    PyObject *dtype, *shape;
    if (!PyTuple_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "a shape is (dtype, dims)");
        return false;
    }
    if (!PyArg_ParseTuple(value, "UO;a shape is (dtype, dims)", &dtype, &shape))
        return false;
    const char *name = dwpy_text(dtype);
    if (!name)
        return false;
    if (!dw_dtype_from_name(&t->dtype, name)) {
        dwpy_raise_text(DW_INVALID, t->name, "the element type is none of safetensors'");
        return false;
    }
    const Py_ssize_t n = PySequence_Size(shape);
    if (n < 0)
        return false;
    if (n > DW_MAX_DIMS) {
        dwpy_raise_text(DW_INVALID, t->name, "has more than 64 dimensions");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PySequence_GetItem(shape, i);
        dims[i] = item ? PyLong_AsUnsignedLongLong(item) : 0;
        Py_XDECREF(item);
        if (PyErr_Occurred())
            return false;
    }
    t->n_dims = (uint32_t)n;
    t->dims = dims;
    if (!dw_shape_size(t->dtype, t->n_dims, dims, NULL, &t->n_bytes)) {
        dwpy_raise_text(DW_INVALID, t->name, "is too large");
        return false;
    }
    return true;
}

static bool shapes_read(shapes *out, PyObject *mapping)
{
    *out = (shapes){0};
    out->items = PyMapping_Items(mapping);
    if (!out->items)
        return false;
    const size_t n = (size_t)PyList_Size(out->items);
    out->tensors = PyMem_Calloc(n + 1, sizeof *out->tensors);
    out->dims = PyMem_Calloc(n * DW_MAX_DIMS + 1, sizeof *out->dims);
    if (!out->tensors || !out->dims) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        PyObject *key, *value;
        if (!PyArg_ParseTuple(PyList_GetItem(out->items, (Py_ssize_t)i),
                              "UO;names of tensors are strings", &key, &value) ||
            !(out->tensors[i].name = dwpy_text(key)) ||
            !read_shape(&out->tensors[i], &out->dims[i * DW_MAX_DIMS], value))
            return false;
    }
    out->n = n;
    return true;
}

static PyObject *numbers_of(const dw_tensor *tensors, size_t n)
{
    PyObject *out = PyDict_New();
    for (size_t i = 0; out && i < n; i++) {
        PyObject *value = PyLong_FromSize_t(i);
        if (!value || PyDict_SetItemString(out, tensors[i].name, value) < 0)
            Py_CLEAR(out);
        Py_XDECREF(value);
    }
    return out;
}

static dwpy_size *sizes_of(const dw_tensor *tensors, size_t n)
{
    dwpy_size *out = PyMem_Calloc(n + 1, sizeof *out);
    for (size_t i = 0; out && i < n; i++)
        out[i] = (dwpy_size){tensors[i].dtype, tensors[i].n_bytes};
    if (!out)
        PyErr_NoMemory();
    return out;
}

static bool make_layout(layout_object *self, const shapes *tensors, const shapes *targets)
{
    dw_error err = {0};
    dw_status status = dw_layout_new(&self->layout, tensors->tensors, tensors->n,
                                     targets->tensors, targets->n, &err);
    if (status != DW_OK) {
        dwpy_raise(status, &err);
        return false;
    }
    self->n_tensors = tensors->n;
    self->n_targets = targets->n;
    return (self->names = numbers_of(tensors->tensors, tensors->n)) &&
           (self->target_names = numbers_of(targets->tensors, targets->n)) &&
           (self->sizes = sizes_of(tensors->tensors, tensors->n)) &&
           (self->target_sizes = sizes_of(targets->tensors, targets->n));
}

PyObject *dwpy_layout_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"tensors", "targets", NULL};
    PyObject *tensors, *targets;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO:Layout", names, &tensors,
                                     &targets))
        return NULL;
    layout_object *self = (layout_object *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    dwpy_guard_init(&self->guard);
    shapes from = {0}, to = {0};
    if (!shapes_read(&from, tensors) || !shapes_read(&to, targets) ||
        !make_layout(self, &from, &to))
        Py_CLEAR(self);
    shapes_release(&from);
    shapes_release(&to);
    return (PyObject *)self;
}

/* ---- memory of the targets ---- */

static bool check_bound(const layout_object *self, const dwpy_tensors *bound,
                        size_t *targets)
{
    for (size_t i = 0; i < bound->n; i++) {
        const dw_tensor *t = &bound->tensors[i];
        PyObject *name = dwpy_string(t->name);
        const bool found =
            name && dwpy_layout_find(&targets[i], self->target_names, name);
        Py_XDECREF(name);
        if (!found)
            return false;
        const dwpy_size *size = &self->target_sizes[targets[i]];
        if (t->n_bytes != size->n_bytes) {
            dwpy_raise_text(DW_MISMATCH, t->name, "the memory has another size");
            return false;
        }
    }
    return true;
}

PyObject *dwpy_layout_bind(PyObject *object, PyObject *mapping)
{
    layout_object *self = (layout_object *)object;
    dwpy_tensors bound = {0};
    if (!dwpy_tensors_take(&bound, mapping, true))
        return NULL;
    size_t *targets = PyMem_Calloc(bound.n + 1, sizeof *targets);
    bool good = targets && check_bound(self, &bound, targets);
    if (!targets)
        PyErr_NoMemory();
    if (good && (good = dwpy_guard_enter(&self->guard))) {
        dw_layout_ready_free(self->ready); /* it uses the devices of the old ones */
        self->ready = NULL;
        for (size_t i = 0; i < self->n_targets; i++)
            dw_layout_move(self->layout, i, NULL);
        for (size_t i = 0; i < bound.n; i++)
            dw_layout_move_to(self->layout, targets[i], bound.tensors[i].device,
                              bound.tensors[i].data);
        dwpy_tensors before = self->targets;
        self->targets = bound;
        bound = before;
        dwpy_guard_leave(&self->guard);
    }
    PyMem_Free(targets);
    dwpy_tensors_release(&bound);
    return good ? Py_NewRef(Py_None) : NULL;
}
