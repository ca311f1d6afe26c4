/* Memory from DLPack exporters. */
#include "tensors.h"

#include <stdio.h>
#include <string.h>

static bool dtype_of_dlpack(dw_dtype *out, const dl_tensor *t)
{
    static const struct {
        uint8_t code, bits;
        dw_dtype dtype;
    } table[] = {
        {DL_BOOL, 8, DW_BOOL},
        {DL_INT, 8, DW_I8},
        {DL_INT, 16, DW_I16},
        {DL_INT, 32, DW_I32},
        {DL_INT, 64, DW_I64},
        {DL_UINT, 8, DW_U8},
        {DL_UINT, 16, DW_U16},
        {DL_UINT, 32, DW_U32},
        {DL_UINT, 64, DW_U64},
        {DL_FLOAT, 16, DW_F16},
        {DL_FLOAT, 32, DW_F32},
        {DL_FLOAT, 64, DW_F64},
        {DL_BFLOAT, 16, DW_BF16},
        {DL_COMPLEX, 64, DW_C64},
        {DL_F8_E4M3FN, 8, DW_F8_E4M3},
        {DL_F8_E5M2, 8, DW_F8_E5M2},
        {DL_F8_E8M0FNU, 8, DW_F8_E8M0},
        {DL_F8_E4M3FNUZ, 8, DW_F8_E4M3FNUZ},
        {DL_F8_E5M2FNUZ, 8, DW_F8_E5M2FNUZ},
    };
    for (size_t i = 0; t->lanes == 1 && i < sizeof table / sizeof *table; i++)
        if (table[i].code == t->code && table[i].bits == t->bits) {
            *out = table[i].dtype;
            return true;
        }
    return false;
}

static bool is_contiguous(const dl_tensor *t)
{
    int64_t step = 1;
    bool dense = true;
    for (int32_t i = t->n_dims; i-- > 0;) {
        if (t->shape[i] == 0)
            return true;
        if (t->strides && t->shape[i] != 1 && t->strides[i] != step)
            dense = false;
        if (__builtin_mul_overflow(step, t->shape[i], &step))
            return false;
    }
    return dense;
}

static const char *device_name(long type)
{
    static const char *const names[] = {
        [4] = "OpenCL", [7] = "Vulkan",        [8] = "Metal",
        [10] = "ROCm",  [13] = "CUDA managed", [14] = "oneAPI",
    };
    const size_t n = sizeof names / sizeof *names;
    return type > 0 && (size_t)type < n && names[type] ? names[type] : "another";
}

/* Where an exporter says that its memory is. */
typedef struct place {
    long type;
    long index;
} place;

static bool get_place(place *out, PyObject *object)
{
    PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    long values[2] = {-1, -1};
    for (Py_ssize_t i = 0; device && i < 2; i++) {
        PyObject *number = PySequence_GetItem(device, i);
        PyObject *plain =
            number ? PyNumber_Long(number) : NULL; /* some exporters return an enum */
        values[i] = plain ? PyLong_AsLong(plain) : -1;
        Py_XDECREF(plain);
        Py_XDECREF(number);
        if (PyErr_Occurred())
            break;
    }
    Py_XDECREF(device);
    *out = (place){values[0], values[1]};
    return !PyErr_Occurred();
}

/* Pinned memory is the host's, too: some exporters name it in one place and not in the
 * other. */
static bool is_host(long type)
{
    return type == DL_CPU || type == DL_CUDA_HOST;
}

/* Opens the device of a tensor, or refuses it, before the capsule is made. */
static bool take_device(dw_tensor *tensor, dwpy_devices *devices, const place *at,
                        const char *name)
{
    if (is_host(at->type))
        return true;
    if (at->type == DL_CUDA) {
        tensor->device = dwpy_devices_use(devices, at->index, name);
        return tensor->device != NULL;
    }
    char text[128];
    snprintf(text, sizeof text, "is on %s device (DLPack %ld): copy it to the CPU first",
             device_name(at->type), at->type);
    dwpy_raise_text(DW_UNSUPPORTED, name, text);
    return false;
}

/* PyTorch exports only tensors without a gradient. A detached tensor has the same memory.
 */
static PyObject *detach(PyObject *object)
{
    PyObject *flag = PyObject_GetAttrString(object, "requires_grad");
    if (!flag)
        PyErr_Clear();
    const int takes_gradient = flag ? PyObject_IsTrue(flag) : 0;
    Py_XDECREF(flag);
    if (takes_gradient < 0)
        return NULL;
    return takes_gradient ? PyObject_CallMethod(object, "detach", NULL)
                          : Py_NewRef(object);
}

/* Asks for a versioned capsule, if the exporter supports it. The exporter makes no stream
 * of a device wait (-1): what the caller does says when the memory is read. */
static PyObject *get_capsule(PyObject *object, bool on_device)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *none = PyTuple_New(0);
    PyObject *keywords = on_device ? Py_BuildValue("{si}", "stream", -1) : PyDict_New();
    PyObject *version = Py_BuildValue("(ii)", 1, 0);
    PyObject *capsule = NULL;
    if (method && none && keywords && version &&
        PyDict_SetItemString(keywords, "max_version", version) == 0) {
        capsule = PyObject_Call(method, none, keywords);
        if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            if (PyDict_DelItemString(keywords, "max_version") == 0)
                capsule = PyObject_Call(method, none, keywords);
        }
    }
    Py_XDECREF(version);
    Py_XDECREF(keywords);
    Py_XDECREF(none);
    Py_XDECREF(method);
    return capsule;
}

/* Consumes the capsule. */
static const dl_tensor *consume(dwpy_hold *hold, PyObject *capsule, bool *readonly)
{
    if (PyCapsule_IsValid(capsule, DL_VERSIONED_NAME)) {
        dl_managed_versioned *m = PyCapsule_GetPointer(capsule, DL_VERSIONED_NAME);
        if (m->major != 1) {
            PyErr_SetString(PyExc_BufferError, "a version of DLPack that is not 1");
            return NULL;
        }
        if (PyCapsule_SetName(capsule, DL_USED_VERSIONED_NAME) < 0)
            return NULL;
        hold->versioned = m;
        *readonly = (m->flags & DL_READ_ONLY) != 0;
        return &m->tensor;
    }
    dl_managed *m = PyCapsule_GetPointer(capsule, DL_NAME); /* raises for others */
    if (!m || PyCapsule_SetName(capsule, DL_USED_NAME) < 0)
        return NULL;
    hold->managed = m;
    *readonly = false;
    return &m->tensor;
}

static const char *fault_of(const dl_tensor *t, const place *at, dw_dtype *dtype)
{
    if (is_host(at->type) ? !is_host(t->device_type)
                          : t->device_type != at->type || t->device_id != at->index)
        return "is not on the device that __dlpack_device__ names";
    if (t->n_dims < 0 || t->n_dims > DW_MAX_DIMS)
        return "has more than 64 dimensions";
    if (!dtype_of_dlpack(dtype, t))
        return "has an element type that safetensors does not know";
    for (int32_t i = 0; i < t->n_dims; i++)
        if (t->shape[i] < 0)
            return "has a negative dimension";
    if (!is_contiguous(t))
        return "is not C-contiguous: pass a contiguous copy";
    return NULL;
}

bool dwpy_dlpack_take(dw_tensor *tensor, dwpy_hold *hold, dwpy_devices *devices,
                      PyObject *object, const char *name, bool writable)
{
    place at;
    if (!get_place(&at, object) || !take_device(tensor, devices, &at, name))
        return false;
    PyObject *exporter = detach(object);
    PyObject *capsule = exporter ? get_capsule(exporter, tensor->device) : NULL;
    Py_XDECREF(exporter);
    bool readonly = false;
    const dl_tensor *t = capsule ? consume(hold, capsule, &readonly) : NULL;
    Py_XDECREF(capsule);
    if (!t)
        return false;
    const char *fault = readonly && writable ? "is read-only, and would be written"
                                             : fault_of(t, &at, &tensor->dtype);
    if (fault) {
        dwpy_raise_text(DW_INVALID, name, fault);
        return false;
    }
    hold->dims = PyMem_Calloc((size_t)t->n_dims + 1, sizeof *hold->dims);
    if (!hold->dims) {
        PyErr_NoMemory();
        return false;
    }
    for (int32_t i = 0; i < t->n_dims; i++)
        hold->dims[i] = (uint64_t)t->shape[i];
    tensor->dims = hold->dims;
    tensor->n_dims = (uint32_t)t->n_dims;
    tensor->data = t->data ? (uint8_t *)t->data + t->byte_offset : NULL;
    if (!dw_shape_size(tensor->dtype, tensor->n_dims, tensor->dims, NULL,
                       &tensor->n_bytes)) {
        dwpy_raise_text(DW_INVALID, name, "has a shape that no memory can hold");
        return false;
    }
    return true;
}

void dwpy_dlpack_release(dwpy_hold *hold)
{
    if (hold->managed && hold->managed->deleter)
        hold->managed->deleter(hold->managed);
    if (hold->versioned && hold->versioned->deleter)
        hold->versioned->deleter(hold->versioned);
    hold->managed = NULL;
    hold->versioned = NULL;
}
