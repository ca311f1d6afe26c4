/* deltawire._core: the module. */
#include "core.h"

static PyMethodDef functions[] = {
    {"digest", DWPY_KEYWORDS(dwpy_digest_tensors), METH_VARARGS | METH_KEYWORDS,
     "The digests of a model and of its tensors."},
    {"cast", DWPY_KEYWORDS(dwpy_cast), METH_VARARGS | METH_KEYWORDS,
     "Copies tensors; rounds F32 to BF16 if the other side has BF16."},
    {"diff", DWPY_KEYWORDS(dwpy_diff), METH_VARARGS | METH_KEYWORDS,
     "The delta that leads from one version to another."},
    {"write_checkpoint", DWPY_KEYWORDS(dwpy_write_checkpoint),
     METH_VARARGS | METH_KEYWORDS, "Writes a safetensors file, or shards."},
    {"keygen", dwpy_keygen, METH_VARARGS,
     "Writes a new secret key and returns the public one."},
    {"device_fault", dwpy_device_fault, METH_VARARGS,
     "Why a device such as 'cuda:0' cannot be used; None if it can."},
    {"_end", dwpy_live_end, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_core",
                                        .m_size = -1, .m_methods = functions};

/* Runs before modules are cleared, and after the threads that the interpreter waits for.
 */
static bool end_at_exit(PyObject *module)
{
    PyObject *end = PyObject_GetAttrString(module, "_end");
    PyObject *atexit = PyImport_ImportModule("atexit");
    PyObject *result =
        end && atexit ? PyObject_CallMethod(atexit, "register", "O", end) : NULL;
    Py_XDECREF(end);
    Py_XDECREF(atexit);
    Py_XDECREF(result);
    return result != NULL;
}

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    if (PyModule_AddStringConstant(module, "__version__", dw_version()) == 0 &&
        dwpy_errors_add(module) && dwpy_tensor_add(module) &&
        dwpy_checkpoint_add(module) && dwpy_sets_add(module) && dwpy_delta_add(module) &&
        dwpy_store_add(module) && dwpy_stream_add(module) && dwpy_publisher_add(module) &&
        dwpy_follower_add(module) && dwpy_snapshot_add(module) &&
        dwpy_layout_add(module) && end_at_exit(module))
        return module;
    Py_DECREF(module);
    return NULL;
}
