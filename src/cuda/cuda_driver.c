#include "cuda/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define DEFAULT_NAME "libcuda.so.1"

static dw_status status_of(cu_result result)
{
    switch (result) {
    case CU_SUCCESS:
        return DW_OK;
    case CU_INVALID_VALUE:
        return DW_INVALID;
    case CU_OUT_OF_MEMORY:
        return DW_NO_MEMORY;
    case CU_NO_DEVICE:
    case CU_INVALID_DEVICE:
        return DW_NOT_FOUND;
    case CU_NO_BINARY_FOR_GPU:
    case CU_INVALID_PTX:
    case CU_UNSUPPORTED_PTX_VERSION:
        return DW_UNSUPPORTED;
    default:
        return DW_IO;
    }
}

dw_status dw_cuda_check(const dw_cuda_driver *driver, cu_result result, const char *where,
                        const char *doing, dw_error *err)
{
    if (result == CU_SUCCESS)
        return DW_OK;
    const char *name = NULL, *text = NULL;
    /* these two only look up a table, also after the device was lost */
    if (driver->error_name(result, &name) != CU_SUCCESS || !name)
        name = "unknown error";
    if (driver->error_text(result, &text) != CU_SUCCESS || !text)
        text = "the driver has no text for it";
    return dw_fail(err, status_of(result), where ? where : driver->name,
                   "cannot %s: %s (%s, %d)", doing, text, name, result);
}

/* Looks up every function; NAME takes the one that is missing. */
static const char *find_functions(dw_cuda_driver *d)
{
    /* a function's address from dlsym: POSIX allows it, ISO C does not convert it */
#define FIND(member, symbol, arguments)                                                  \
    do {                                                                                 \
        void *found = dlsym(d->library, symbol);                                         \
        if (!found)                                                                      \
            return symbol;                                                               \
        memcpy(&d->member, &found, sizeof found);                                        \
    } while (0);
    DW_CUDA_FUNCTIONS(FIND)
#undef FIND
    return NULL;
}

static void unload(dw_cuda_driver *driver)
{
    if (driver->library)
        dlclose(driver->library);
    *driver = (dw_cuda_driver){0};
}

dw_status dw_cuda_driver_load(dw_cuda_driver *out, const char *name, dw_error *err)
{
    *out = (dw_cuda_driver){0};
    snprintf(out->name, sizeof out->name, "%s", name);
    out->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!out->library) {
        const char *reason = dlerror();
        return dw_fail(err, DW_NOT_FOUND, name, "cannot load the CUDA driver: %s",
                       reason ? reason : "unknown error");
    }
    const char *missing = find_functions(out);
    dw_status status =
        missing ? dw_fail(err, DW_UNSUPPORTED, name,
                          "the CUDA driver is too old: it has no %s; install a later one",
                          missing)
                : dw_cuda_check(out, out->init(0), NULL, "start the CUDA driver", err);
    if (status == DW_OK)
        status = dw_cuda_check(out, out->driver_version(&out->version), NULL,
                               "read the version of the CUDA driver", err);
    if (status != DW_OK)
        unload(out);
    return status;
}

dw_status dw_cuda_driver_get(const dw_cuda_driver **out, dw_error *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static dw_cuda_driver driver;
    const char *wish = getenv("DELTAWIRE_CUDA_DRIVER");
    *out = NULL;
    pthread_mutex_lock(&lock);
    dw_status status =
        driver.library
            ? DW_OK
            : dw_cuda_driver_load(&driver, wish && *wish ? wish : DEFAULT_NAME, err);
    pthread_mutex_unlock(&lock);
    if (status == DW_OK)
        *out = &driver;
    return status;
}
