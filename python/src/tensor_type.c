/* deltawire.Tensor: a view of a tensor that another object owns. */
#include "tensors.h"

typedef struct tensor_object {
    PyObject_HEAD PyObject *owner;
    dw_tensor tensor;
    bool readonly;
    Py_ssize_t *shape; /* of the buffer: in numbers, or in bytes for packed types */
    Py_ssize_t *strides;
    Py_ssize_t item_bytes;
    int n_dims;
} tensor_object;

static PyTypeObject *tensor_type;

const dw_tensor *dwpy_tensor_get(PyObject *object)
{
    return Py_TYPE(object) == tensor_type ? &((tensor_object *)object)->tensor : NULL;
}

PyObject *dwpy_tensor_new(PyObject *owner, const dw_tensor *tensor, bool readonly)
{
    tensor_object *self = (tensor_object *)PyType_GenericAlloc(tensor_type, 0);
    if (!self)
        return NULL;
    self->owner = Py_NewRef(owner);
    self->tensor = *tensor;
    self->readonly = readonly;
    const unsigned bits = dw_dtype_bits(tensor->dtype);
    const bool packed = bits < 8;
    self->item_bytes = packed ? 1 : (Py_ssize_t)(bits / 8);
    self->n_dims = packed ? 1 : (int)tensor->n_dims;
    self->shape = PyMem_Calloc(2 * ((size_t)self->n_dims + 1), sizeof *self->shape);
    if (!self->shape) {
        Py_DECREF((PyObject *)self);
        return PyErr_NoMemory();
    }
    self->strides = self->shape + self->n_dims + 1;
    Py_ssize_t step = self->item_bytes;
    for (int i = self->n_dims; i-- > 0;) {
        self->shape[i] =
            packed ? (Py_ssize_t)tensor->n_bytes : (Py_ssize_t)tensor->dims[i];
        self->strides[i] = step;
        step *= self->shape[i] ? self->shape[i] : 1;
    }
    return (PyObject *)self;
}

static void tensor_dealloc(PyObject *object)
{
    tensor_object *self = (tensor_object *)object;
    PyMem_Free(self->shape);
    Py_XDECREF(self->owner);
    dwpy_object_free(object);
}

static const char *format_of(dw_dtype dtype)
{
    static const char *const formats[DW_DTYPE_COUNT] = {
        [DW_BOOL] = "?", [DW_I8] = "b",  [DW_U16] = "H",  [DW_I16] = "h", [DW_U32] = "I",
        [DW_I32] = "i",  [DW_U64] = "Q", [DW_I64] = "q",  [DW_F16] = "e", [DW_BF16] = "H",
        [DW_F32] = "f",  [DW_F64] = "d", [DW_C64] = "Zf",
    };
    return formats[dtype] ? formats[dtype] : "B";
}

static int tensor_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    static char nothing; /* memory of a tensor with no elements */
    tensor_object *self = (tensor_object *)object;
    if (self->readonly && (flags & PyBUF_WRITABLE)) {
        PyErr_SetString(PyExc_BufferError, "the tensor is read-only");
        return -1;
    }
    *view = (Py_buffer){
        .buf = self->tensor.data ? self->tensor.data : &nothing,
        .obj = Py_NewRef(object),
        .len = (Py_ssize_t)self->tensor.n_bytes,
        .itemsize = self->item_bytes,
        .readonly = self->readonly,
        .ndim = self->n_dims,
        .format = (flags & PyBUF_FORMAT) ? (char *)format_of(self->tensor.dtype) : NULL,
        .shape = (flags & PyBUF_ND) ? self->shape : NULL,
        .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL,
    };
    return 0;
}

static PyObject *get_name(PyObject *self, void *unused)
{
    (void)unused;
    return dwpy_string(((tensor_object *)self)->tensor.name);
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(dw_dtype_name(((tensor_object *)self)->tensor.dtype));
}

static PyObject *get_shape(PyObject *self, void *unused)
{
    (void)unused;
    const dw_tensor *t = &((tensor_object *)self)->tensor;
    return dwpy_shape(t->n_dims, t->dims);
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((tensor_object *)self)->tensor.n_bytes);
}

static PyObject *get_readonly(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((tensor_object *)self)->readonly);
}

static PyObject *tensor_repr(PyObject *object)
{
    tensor_object *self = (tensor_object *)object;
    PyObject *shape = get_shape(object, NULL);
    if (!shape)
        return NULL;
    PyObject *out =
        PyUnicode_FromFormat("<deltawire.Tensor '%s' %s %R>", self->tensor.name,
                             dw_dtype_name(self->tensor.dtype), shape);
    Py_DECREF(shape);
    return out;
}

static PyObject *tensor_dlpack(PyObject *object, PyObject *args, PyObject *keywords)
{
    tensor_object *self = (tensor_object *)object;
    return dwpy_dlpack_give(self->owner, &self->tensor, self->readonly, args, keywords);
}

static PyObject *tensor_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return Py_BuildValue("ii", DL_CPU, 0);
}

static PyMethodDef methods[] = {
    {"__dlpack__", DWPY_KEYWORDS(tensor_dlpack), METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"name", get_name, NULL, NULL, NULL},
    {"dtype", get_dtype, NULL, "the safetensors spelling", NULL},
    {"shape", get_shape, NULL, NULL, NULL},
    {"nbytes", get_nbytes, NULL, NULL, NULL},
    {"readonly", get_readonly, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A tensor in memory of another object, which it keeps alive."},
    {Py_tp_dealloc, tensor_dealloc},
    {Py_tp_repr, tensor_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {Py_bf_getbuffer, tensor_getbuffer},
    {0, NULL},
};

static PyType_Spec spec = {"deltawire.Tensor", sizeof(tensor_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
                               Py_TPFLAGS_IMMUTABLETYPE,
                           slots};

bool dwpy_tensor_add(PyObject *module)
{
    tensor_type = dwpy_type_add(module, &spec);
    return tensor_type != NULL;
}
