#include "cuda/cuda_context.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "codec/ans.h"
#include "codec/digest.h"

/* The most blocks of a launch in one dimension. */
#define MAX_GRID 0x7fffffffu

static const struct {
    const char *name;
    unsigned n_threads;
} kernels[] = {
#define ROW(constant, name, threads, argument) {#name, threads},
    DW_CUDA_EACH_KERNEL(ROW)
#undef ROW
};

dw_status dw_cuda_device_find(cu_device *out, const dw_cuda_driver *driver,
                              uint32_t index, dw_error *err)
{
    int n = 0;
    dw_status status =
        dw_cuda_check(driver, driver->device_count(&n), NULL, "count devices", err);
    if (status == DW_OK && (n < 0 || index >= (uint32_t)n))
        return dw_fail(err, DW_NOT_FOUND, NULL,
                       "no CUDA device %" PRIu32 ": the driver sees %d", index, n);
    return status == DW_OK ? dw_cuda_check(driver, driver->device_get(out, (int)index),
                                           NULL, "find a device", err)
                           : status;
}

static dw_status check(const dw_cuda *c, cu_result result, const char *doing,
                       dw_error *err)
{
    return dw_cuda_check(c->driver, result, c->where, doing, err);
}

static _Thread_local unsigned n_entered;
static _Thread_local int capture_mode; /* of the thread, before it entered */

dw_status dw_cuda_enter(dw_cuda *c, dw_error *err)
{
    dw_status status =
        check(c, c->driver->context_push(c->context), "enter the device's context", err);
    if (status == DW_OK && n_entered++ == 0) {
        capture_mode = CU_CAPTURE_RELAXED;
        (void)c->driver->capture_mode(&capture_mode);
    }
    return status;
}

void dw_cuda_leave(dw_cuda *c)
{
    cu_context popped;
    if (--n_entered == 0)
        (void)c->driver->capture_mode(&capture_mode);
    (void)c->driver->context_pop(&popped);
}

static dw_status load_constants(dw_cuda *c, dw_error *err)
{
    dw_cuda_constants *constants = dw_alloc(sizeof *constants);
    if (!constants)
        return dw_fail_memory(err, c->where);
    memcpy(constants->coefficients, dw_digest_coefficients(),
           sizeof constants->coefficients);
    for (unsigned k = 0; k < DW_CUDA_POWERS; k++)
        constants->powers[k] = dw_digest_power(k);
    for (unsigned t = 0; t < DW_ANS_TABLES; t++) {
        const dw_ans_table *table = &dw_ans_tables()[t];
        memcpy(constants->symbols[t], table->symbol, sizeof constants->symbols[t]);
        memcpy(constants->costs[t], table->cost, sizeof constants->costs[t]);
    }
    memcpy(constants->stays, dw_ans_stays(), sizeof constants->stays);
    dw_status status = dw_cuda_alloc(&c->constants, c, sizeof *constants, "tables", err);
    if (status == DW_OK)
        status = dw_cuda_up(c, c->constants, constants, sizeof *constants, err);
    if (status == DW_OK)
        status = dw_cuda_wait(c, err);
    dw_cuda_drain(c, status);
    dw_free(constants);
    return status;
}

static dw_status load_kernels(dw_cuda *c, const dw_cuda_image *image, dw_error *err)
{
    dw_status status =
        check(c, c->driver->module_load(&c->module, image->bytes), "load kernels", err);
    if (status != DW_OK)
        c->module = NULL;
    for (unsigned k = 0; status == DW_OK && k < DW_CUDA_KERNELS; k++)
        status = check(
            c, c->driver->module_function(&c->functions[k], c->module, kernels[k].name),
            "find a kernel", err);
    /* a driver may load a kernel only when it is needed, and then waits for the device;
     * asking about it loads it now */
    for (unsigned k = 0; status == DW_OK && k < DW_CUDA_KERNELS; k++) {
        int n_threads;
        status = check(c,
                       c->driver->function_attribute(&n_threads, CU_FUNCTION_MOST_THREADS,
                                                     c->functions[k]),
                       "load a kernel", err);
    }
    if (status == DW_OK)
        status = dw_cuda_make_stream(&c->stream, c, err);
    if (status == DW_OK)
        status = load_constants(c, err);
    return status;
}

dw_status dw_cuda_open(dw_cuda **out, uint32_t index, const dw_cuda_image *image,
                       dw_error *err)
{
    *out = NULL;
    if (!image)
        image = dw_cuda_image_get();
    if (!image)
        return dw_fail(err, DW_UNSUPPORTED, NULL,
                       "this build of deltawire has no CUDA kernels: build it with nvcc");
    dw_cuda *c = dw_alloc_zeroed(1, sizeof *c);
    if (!c)
        return dw_fail_memory(err, NULL);
    snprintf(c->where, sizeof c->where, "cuda:%" PRIu32, index);
    dw_status status = dw_cuda_driver_get(&c->driver, err);
    if (status == DW_OK)
        status = dw_cuda_device_find(&c->device, c->driver, index, err);
    if (status == DW_OK) {
        status = check(c, c->driver->primary_retain(&c->context, c->device),
                       "use the device's primary context", err);
        c->is_retained = status == DW_OK;
    }
    if (status == DW_OK)
        status = dw_cuda_enter(c, err);
    if (status == DW_OK) {
        status = load_kernels(c, image, err);
        dw_cuda_leave(c);
    }
    if (status != DW_OK)
        dw_cuda_close(c);
    else
        *out = c;
    return status;
}

static void free_kept(dw_cuda *c)
{
    if (c->kept)
        c->free_kept(c, c->kept);
    c->kept = NULL;
}

void dw_cuda_trim(dw_cuda *c)
{
    if (dw_cuda_enter(c, NULL) == DW_OK) {
        free_kept(c);
        dw_cuda_leave(c);
    }
}

void dw_cuda_close(dw_cuda *c)
{
    if (!c)
        return;
    if (c->is_retained) {
        /* what fails here went with the device */
        if (dw_cuda_enter(c, NULL) == DW_OK) {
            free_kept(c);
            dw_cuda_free(c, &c->constants);
            if (c->stream)
                (void)c->driver->stream_destroy(c->stream);
            if (c->module)
                (void)c->driver->module_unload(c->module);
            dw_cuda_leave(c);
        }
        (void)c->driver->primary_release(c->device);
    }
    dw_free(c);
}

dw_status dw_cuda_alloc(cu_pointer *out, dw_cuda *c, uint64_t n_bytes, const char *what,
                        dw_error *err)
{
    *out = 0;
    if (n_bytes == 0)
        return DW_OK;
    cu_result result = c->driver->memory_alloc(out, n_bytes);
    if (result == CU_SUCCESS)
        return DW_OK;
    *out = 0;
    char doing[128];
    snprintf(doing, sizeof doing, "get %" PRIu64 " bytes of the device's memory for %s",
             n_bytes, what);
    return check(c, result, doing, err);
}

void dw_cuda_free(dw_cuda *c, cu_pointer *pointer)
{
    if (*pointer)
        (void)c->driver->memory_free(*pointer);
    *pointer = 0;
}

dw_status dw_cuda_alloc_pinned(void **out, dw_cuda *c, uint64_t n_bytes, const char *what,
                               dw_error *err)
{
    *out = NULL;
    const cu_result result = c->driver->host_alloc(out, n_bytes ? n_bytes : 1, 0);
    if (result == CU_SUCCESS)
        return DW_OK;
    *out = NULL;
    char doing[128];
    snprintf(doing, sizeof doing,
             "get %" PRIu64 " bytes of pinned memory of the host for %s", n_bytes, what);
    return check(c, result, doing, err);
}

void dw_cuda_free_pinned(dw_cuda *c, void *memory)
{
    if (memory)
        (void)c->driver->host_free(memory);
}

dw_status dw_cuda_make_stream(cu_stream *out, dw_cuda *c, dw_error *err)
{
    int least = 0, greatest = 0;
    *out = NULL;
    dw_status status = check(c, c->driver->stream_priorities(&least, &greatest),
                             "read the priorities of streams", err);
    if (status == DW_OK)
        status = check(c, c->driver->stream_create(out, CU_STREAM_NON_BLOCKING, least),
                       "create a stream", err);
    if (status != DW_OK)
        *out = NULL;
    return status;
}

dw_status dw_cuda_up(dw_cuda *c, cu_pointer to, const void *from, uint64_t n_bytes,
                     dw_error *err)
{
    return n_bytes == 0 ? DW_OK
                        : check(c, c->driver->copy_up(to, from, n_bytes, c->stream),
                                "copy to the device", err);
}

dw_status dw_cuda_down(dw_cuda *c, void *to, cu_pointer from, uint64_t n_bytes,
                       dw_error *err)
{
    return n_bytes == 0 ? DW_OK
                        : check(c, c->driver->copy_down(to, from, n_bytes, c->stream),
                                "copy from the device", err);
}

dw_status dw_cuda_move(dw_cuda *c, cu_pointer to, cu_pointer from, uint64_t n_bytes,
                       dw_error *err)
{
    return n_bytes == 0 ? DW_OK
                        : check(c, c->driver->copy_inside(to, from, n_bytes, c->stream),
                                "copy on the device", err);
}

dw_status dw_cuda_zero(dw_cuda *c, cu_pointer to, uint64_t n_bytes, dw_error *err)
{
    return n_bytes == 0 ? DW_OK
                        : check(c, c->driver->fill(to, 0, n_bytes, c->stream),
                                "clear the device's memory", err);
}

dw_status dw_cuda_launch(dw_cuda *c, dw_cuda_kernel kernel, uint64_t n_blocks,
                         const void *argument, dw_error *err)
{
    void *arguments[] = {(void *)(uintptr_t)argument};
    char doing[96];
    snprintf(doing, sizeof doing, "start the kernel %s", kernels[kernel].name);
    if (n_blocks > MAX_GRID)
        return dw_fail(err, DW_UNSUPPORTED, c->where, "cannot %s: too many blocks",
                       doing);
    return n_blocks == 0
               ? DW_OK
               : check(c,
                       c->driver->launch(c->functions[kernel], (unsigned)n_blocks, 1, 1,
                                         kernels[kernel].n_threads, 1, 1, 0, c->stream,
                                         arguments, NULL),
                       doing, err);
}

dw_status dw_cuda_wait(dw_cuda *c, dw_error *err)
{
    return check(c, c->driver->stream_wait(c->stream), "wait for the device", err);
}

void dw_cuda_drain(dw_cuda *c, dw_status status)
{
    if (status != DW_OK)
        (void)c->driver->stream_wait(c->stream);
}
