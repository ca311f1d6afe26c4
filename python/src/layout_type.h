/* The internals of deltawire.Layout. */
#ifndef DWPY_LAYOUT_TYPE_H
#define DWPY_LAYOUT_TYPE_H

#include "layout/layout.h"
#include "tensors.h"

typedef struct dwpy_size {
    dw_dtype dtype;
    uint64_t n_bytes;
} dwpy_size;

typedef struct layout_object {
    PyObject_HEAD dw_layout *layout;
    dw_layout_ready *ready; /* NULL: no patch is prepared */
    dwpy_tensors targets;   /* the memory that is held */
    dwpy_size *sizes, *target_sizes;
    PyObject *names, *target_names; /* dicts: name -> number */
    size_t n_tensors, n_targets;
    dwpy_guard guard;
} layout_object;

/* The arguments of the type (layout_open.c). */
PyObject *dwpy_layout_new(PyTypeObject *type, PyObject *args, PyObject *keywords);

PyObject *dwpy_layout_bind(PyObject *object, PyObject *mapping);

/* The number of NAME; KeyError. */
bool dwpy_layout_find(size_t *out, PyObject *names, PyObject *name);

/* ---- layout_type_learn.c: methods ---- */
PyObject *dwpy_layout_passes(PyObject *object, PyObject *unused);
PyObject *dwpy_layout_spell(PyObject *object, PyObject *args);
PyObject *dwpy_layout_learn(PyObject *object, PyObject *args);
PyObject *dwpy_layout_forget(PyObject *object, PyObject *name);
PyObject *dwpy_layout_add_sums(PyObject *object, PyObject *args, PyObject *keywords);
PyObject *dwpy_layout_end(PyObject *object, PyObject *unused);

#endif
