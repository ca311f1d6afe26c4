/* Nvidia's driver API, loaded at run time.
 *
 * The declarations are our own, so that a build needs no headers of CUDA. Names and
 * signatures are those of cuda.h; functions with a suffix _v2 there have it here only in
 * the name that is looked up.
 *
 * Contexts. The library uses a device's primary context, the one that PyTorch uses too.
 * It pushes it before a group of calls and pops it after them (cuda_context.h), so the
 * thread's current context stays what it was. There is no current device.
 */
#ifndef DW_CUDA_CUDA_DRIVER_H
#define DW_CUDA_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "deltawire/base.h"

typedef int cu_result;
typedef int cu_device;
typedef unsigned long long cu_pointer;
typedef struct cu_context_st *cu_context;
typedef struct cu_module_st *cu_module;
typedef struct cu_function_st *cu_function;
typedef struct cu_stream_st *cu_stream;
typedef struct cu_event_st *cu_event;

/* Results that are treated apart from the others. */
enum {
    CU_SUCCESS = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_NO_BINARY_FOR_GPU = 209,
    CU_INVALID_PTX = 218,
    CU_UNSUPPORTED_PTX_VERSION = 222,
    CU_NOT_READY = 600,
};

/* Attributes and flags, with their numbers in cuda.h. */
enum {
    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_MAJOR = 75,
    CU_ATTRIBUTE_MINOR = 76,
    CU_FUNCTION_MOST_THREADS = 0,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_CAPTURE_RELAXED = 2,
};

/* Every function: X(member, symbol, arguments). */
#define DW_CUDA_FUNCTIONS(X)                                                             \
    X(init, "cuInit", (unsigned flags))                                                  \
    X(driver_version, "cuDriverGetVersion", (int *version))                              \
    X(error_name, "cuGetErrorName", (cu_result result, const char **out))                \
    X(error_text, "cuGetErrorString", (cu_result result, const char **out))              \
    X(device_count, "cuDeviceGetCount", (int *out))                                      \
    X(device_get, "cuDeviceGet", (cu_device * out, int index))                           \
    X(device_name, "cuDeviceGetName", (char *out, int size, cu_device device))           \
    X(device_attribute, "cuDeviceGetAttribute",                                          \
      (int *out, int attribute, cu_device device))                                       \
    X(device_memory, "cuDeviceTotalMem_v2", (size_t * out, cu_device device))            \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (cu_context * out, cu_device device))  \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", (cu_device device))               \
    X(context_push, "cuCtxPushCurrent_v2", (cu_context context))                         \
    X(context_pop, "cuCtxPopCurrent_v2", (cu_context * out))                             \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                    \
    X(stream_priorities, "cuCtxGetStreamPriorityRange", (int *least, int *greatest))     \
    X(module_load, "cuModuleLoadData", (cu_module * out, const void *image))             \
    X(module_unload, "cuModuleUnload", (cu_module module))                               \
    X(module_function, "cuModuleGetFunction",                                            \
      (cu_function * out, cu_module module, const char *name))                           \
    X(function_attribute, "cuFuncGetAttribute",                                          \
      (int *out, int attribute, cu_function function))                                   \
    X(memory_alloc, "cuMemAlloc_v2", (cu_pointer * out, size_t n_bytes))                 \
    X(memory_free, "cuMemFree_v2", (cu_pointer pointer))                                 \
    X(host_alloc, "cuMemHostAlloc", (void **out, size_t n_bytes, unsigned flags))        \
    X(host_free, "cuMemFreeHost", (void *pointer))                                       \
    X(copy_up, "cuMemcpyHtoDAsync_v2",                                                   \
      (cu_pointer to, const void *from, size_t n_bytes, cu_stream stream))               \
    X(copy_down, "cuMemcpyDtoHAsync_v2",                                                 \
      (void *to, cu_pointer from, size_t n_bytes, cu_stream stream))                     \
    X(copy_inside, "cuMemcpyDtoDAsync_v2",                                               \
      (cu_pointer to, cu_pointer from, size_t n_bytes, cu_stream stream))                \
    X(fill, "cuMemsetD8Async",                                                           \
      (cu_pointer to, unsigned char value, size_t n_bytes, cu_stream stream))            \
    X(stream_create, "cuStreamCreateWithPriority",                                       \
      (cu_stream * out, unsigned flags, int priority))                                   \
    X(stream_destroy, "cuStreamDestroy_v2", (cu_stream stream))                          \
    X(stream_wait, "cuStreamSynchronize", (cu_stream stream))                            \
    X(stream_wait_event, "cuStreamWaitEvent",                                            \
      (cu_stream stream, cu_event event, unsigned flags))                                \
    X(event_create, "cuEventCreate", (cu_event * out, unsigned flags))                   \
    X(event_destroy, "cuEventDestroy_v2", (cu_event event))                              \
    X(event_record, "cuEventRecord", (cu_event event, cu_stream stream))                 \
    X(event_wait, "cuEventSynchronize", (cu_event event))                                \
    X(launch, "cuLaunchKernel",                                                          \
      (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,          \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,      \
       cu_stream stream, void **arguments, void **extra))

typedef struct dw_cuda_driver {
    char name[256]; /* of the library, for errors */
    int version;
    void *library;
#define DW_CUDA_MEMBER(member, symbol, arguments) cu_result(*member) arguments;
    DW_CUDA_FUNCTIONS(DW_CUDA_MEMBER)
#undef DW_CUDA_MEMBER
} dw_cuda_driver;

/* Loads the driver of that name and starts it. DW_NOT_FOUND if the library or a device is
 * missing, DW_UNSUPPORTED if it is too old and lacks a function. */
dw_status dw_cuda_driver_load(dw_cuda_driver *out, const char *name, dw_error *err);

/* The driver of this process: loaded at the first call that succeeds, and kept. */
dw_status dw_cuda_driver_get(const dw_cuda_driver **out, dw_error *err);

/* DW_OK for CU_SUCCESS; otherwise fills ERR with the driver's own words about what the
 * library was DOING ("copy to the device"). WHERE names the device or NULL. */
dw_status dw_cuda_check(const dw_cuda_driver *driver, cu_result result, const char *where,
                        const char *doing, dw_error *err);

#endif
