/* The arguments of deltawire.Publisher that are about quantising. */
#include "publisher_type.h"

/* The UTF-8 texts of a sequence of strings. *KEPT, a new reference, keeps them alive. */
static bool read_patterns(PyObject *given, const char *what, PyObject **kept,
                          const char *const **out, size_t *n)
{
    if (!given || given == Py_None)
        return true;
    if (PyUnicode_Check(given)) {
        PyErr_Format(PyExc_TypeError, "%s: a list of patterns, not one pattern", what);
        return false;
    }
    *kept = PySequence_Tuple(given);
    if (!*kept && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Format(PyExc_TypeError, "%s: a list of patterns, not %R", what, given);
        return false;
    }
    const Py_ssize_t n_items = *kept ? PyTuple_Size(*kept) : 0;
    const char **texts = *kept ? PyMem_Calloc((size_t)n_items + 1, sizeof *texts) : NULL;
    if (*kept && !texts)
        PyErr_NoMemory();
    if (!texts)
        return false;
    *out = texts;
    for (Py_ssize_t i = 0; i < n_items; i++) {
        PyObject *item = PyTuple_GetItem(*kept, i);
        if (!PyUnicode_Check(item)) {
            PyErr_Format(PyExc_TypeError, "%s: %R is not a string", what, item);
            return false;
        }
        texts[i] = PyUnicode_AsUTF8AndSize(item, NULL);
        if (!texts[i])
            return false;
    }
    *n = (size_t)n_items;
    return true;
}

bool dwpy_quantize_read(dwpy_quantize *q)
{
    dw_quant_options *o = &q->options;
    dw_quant_options_init(o);
    if (!q->scheme) {
        if ((q->keep && q->keep != Py_None) || (q->also && q->also != Py_None) ||
            q->from_f32) {
            PyErr_SetString(PyExc_ValueError,
                            "quantize_keep, quantize_also and quantize_from_f32 go only "
                            "with quantize");
            return false;
        }
        return true;
    }
    if (!dw_quant_scheme_from_name(&o->scheme, q->scheme) || o->scheme == DW_QUANT_NONE) {
        PyErr_Format(PyExc_ValueError, "quantize: '%s' is none of %s, %s, %s", q->scheme,
                     dw_quant_scheme_name(DW_QUANT_FP8_BLOCK),
                     dw_quant_scheme_name(DW_QUANT_FP8_ROW),
                     dw_quant_scheme_name(DW_QUANT_INT8_ROW));
        return false;
    }
    o->from_f32 = q->from_f32 != 0;
    return read_patterns(q->keep, "quantize_keep", &q->kept[0], &o->keep, &o->n_keep) &&
           read_patterns(q->also, "quantize_also", &q->kept[1], &o->convert,
                         &o->n_convert);
}

void dwpy_quantize_release(dwpy_quantize *q)
{
    PyMem_Free((void *)q->options.keep);
    PyMem_Free((void *)q->options.convert);
    Py_XDECREF(q->kept[0]);
    Py_XDECREF(q->kept[1]);
}
