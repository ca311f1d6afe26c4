/* Exports tensors as DLPack capsules without a copy: the capsule keeps the owner alive.
 */
#include "tensors.h"

#include <string.h>

typedef struct export
{
    dl_managed_versioned versioned;
    dl_managed plain;
    PyObject *owner;
    int64_t shape[2 * DW_MAX_DIMS]; /* shape and strides */
}
export;

/* Consumers may call it at any time, also while the interpreter ends. */
static void release(export *e)
{
    if (!Py_IsInitialized())
        return; /* the owner is gone with the interpreter */
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(e->owner);
    PyMem_Free(e);
    PyGILState_Release(state);
}

static void delete_plain(dl_managed *managed)
{
    release(managed->context);
}

static void delete_versioned(dl_managed_versioned *managed)
{
    release(managed->context);
}

/* Frees a capsule that nobody consumed. */
static void drop_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, DL_NAME))
        delete_plain(PyCapsule_GetPointer(capsule, DL_NAME));
    else if (PyCapsule_IsValid(capsule, DL_VERSIONED_NAME))
        delete_versioned(PyCapsule_GetPointer(capsule, DL_VERSIONED_NAME));
}

static bool code_of_dtype(dl_tensor *t, dw_dtype dtype)
{
    static const uint8_t codes[DW_DTYPE_COUNT] = {
        [DW_BOOL] = DL_BOOL,
        [DW_U8] = DL_UINT,
        [DW_I8] = DL_INT,
        [DW_U16] = DL_UINT,
        [DW_I16] = DL_INT,
        [DW_U32] = DL_UINT,
        [DW_I32] = DL_INT,
        [DW_U64] = DL_UINT,
        [DW_I64] = DL_INT,
        [DW_F16] = DL_FLOAT,
        [DW_BF16] = DL_BFLOAT,
        [DW_F32] = DL_FLOAT,
        [DW_F64] = DL_FLOAT,
        [DW_F8_E4M3] = DL_F8_E4M3FN,
        [DW_F8_E5M2] = DL_F8_E5M2,
        [DW_F8_E8M0] = DL_F8_E8M0FNU,
        [DW_F8_E4M3FNUZ] = DL_F8_E4M3FNUZ,
        [DW_F8_E5M2FNUZ] = DL_F8_E5M2FNUZ,
        [DW_C64] = DL_COMPLEX,
    };
    t->bits = (uint8_t)dw_dtype_bits(dtype);
    t->code = codes[dtype];
    t->lanes = 1;
    return t->bits >= 8; /* DLPack does not define a layout for packed types */
}

static export *make_export(PyObject *owner, const dw_tensor *tensor, bool readonly)
{
    export *e = PyMem_Calloc(1, sizeof *e);
    if (!e) {
        PyErr_NoMemory();
        return NULL;
    }
    dl_tensor *t = &e->versioned.tensor;
    if (!code_of_dtype(t, tensor->dtype)) {
        PyErr_Format(PyExc_BufferError, "DLPack has no %s", dw_dtype_name(tensor->dtype));
        PyMem_Free(e);
        return NULL;
    }
    t->data = tensor->data;
    t->device_type = DL_CPU;
    t->n_dims = (int32_t)tensor->n_dims;
    t->shape = e->shape;
    t->strides = e->shape + DW_MAX_DIMS;
    int64_t step = 1;
    for (uint32_t i = tensor->n_dims; i-- > 0;) {
        t->shape[i] = (int64_t)tensor->dims[i];
        t->strides[i] = step;
        step *= t->shape[i] ? t->shape[i] : 1;
    }
    e->owner = Py_NewRef(owner);
    e->versioned.major = 1;
    e->versioned.context = e;
    e->versioned.deleter = delete_versioned;
    e->versioned.flags = readonly ? DL_READ_ONLY : 0;
    e->plain = (dl_managed){*t, e, delete_plain};
    return e;
}

PyObject *dwpy_dlpack_give(PyObject *owner, const dw_tensor *tensor, bool readonly,
                           PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = NULL, *max_version = NULL, *device = NULL, *copy = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__", names, &stream,
                                     &max_version, &device, &copy))
        return NULL;
    int major = 0, minor, type = DL_CPU, id;
    if (max_version && max_version != Py_None &&
        !PyArg_ParseTuple(max_version, "ii", &major, &minor))
        return NULL;
    if (device && device != Py_None && !PyArg_ParseTuple(device, "ii", &type, &id))
        return NULL;
    if (type != DL_CPU || copy == Py_True) {
        PyErr_SetString(PyExc_BufferError,
                        "it is in the CPU's memory, and is not copied");
        return NULL;
    }
    if (readonly && major < 1) {
        PyErr_SetString(
            PyExc_BufferError,
            "it is read-only, which DLPack can express only since version 1.0");
        return NULL;
    }
    export *e = make_export(owner, tensor, readonly);
    if (!e)
        return NULL;
    PyObject *capsule =
        major >= 1 ? PyCapsule_New(&e->versioned, DL_VERSIONED_NAME, drop_capsule)
                   : PyCapsule_New(&e->plain, DL_NAME, drop_capsule);
    if (!capsule)
        release(e);
    return capsule;
}
