/* One device: its primary context, the kernels, and a stream of low priority.
 *
 * Calls that need the context stand between dw_cuda_enter and dw_cuda_leave. A handle
 * belongs to one thread at a time. Handles of several devices, or several of one device,
 * do not know of each other.
 */
#ifndef DW_CUDA_CUDA_CONTEXT_H
#define DW_CUDA_CUDA_CONTEXT_H

#include <stdbool.h>

#include "cuda/cuda_driver.h"
#include "cuda/cuda_image.h"
#include "cuda/kernels.h"

typedef struct dw_cuda {
    const dw_cuda_driver *driver;
    char where[32]; /* "cuda:0", for errors */
    cu_device device;
    bool is_retained;
    cu_context context;
    cu_module module;
    cu_function functions[DW_CUDA_KERNELS];
    cu_stream stream;
    cu_pointer constants; /* dw_cuda_constants */

    /* memory of work that is done, for the next: cuda_stage_memory.h */
    void *kept;
    void (*free_kept)(struct dw_cuda *c, void *kept);
} dw_cuda;

/* An address of the device as a pointer, for the arguments of kernels. */
static inline void *dw_cuda_address(cu_pointer pointer)
{
    return (void *)(uintptr_t)pointer;
}

dw_status dw_cuda_device_find(cu_device *out, const dw_cuda_driver *driver,
                              uint32_t index, dw_error *err);

/* Opens device INDEX with the kernels of IMAGE; NULL: those of this build.
 * DW_UNSUPPORTED if the build has none. */
dw_status dw_cuda_open(dw_cuda **out, uint32_t index, const dw_cuda_image *image,
                       dw_error *err);
void dw_cuda_close(dw_cuda *c);

/* Another thread of the program may capture a CUDA graph. Then calls that are no part of
 * it would fail and end it, so between these two the thread's mode is relaxed. */
dw_status dw_cuda_enter(dw_cuda *c, dw_error *err);
void dw_cuda_leave(dw_cuda *c);

/* Frees memory that is only kept for later use. */
void dw_cuda_trim(dw_cuda *c);

/* ---- between enter and leave ---- */

/* Memory of the device. A size of 0 gives 0. */
dw_status dw_cuda_alloc(cu_pointer *out, dw_cuda *c, uint64_t n_bytes, const char *what,
                        dw_error *err);
/* Frees *POINTER if it is not 0, and sets it to 0. */
void dw_cuda_free(dw_cuda *c, cu_pointer *pointer);

/* Pinned memory of the host: the device copies it by itself, and kernels can read it.
 * *OUT is NULL after a failure. Freeing accepts NULL. */
dw_status dw_cuda_alloc_pinned(void **out, dw_cuda *c, uint64_t n_bytes, const char *what,
                               dw_error *err);
void dw_cuda_free_pinned(dw_cuda *c, void *memory);

/* A stream of the lowest priority that does not wait for the default one. NULL after a
 * failure. */
dw_status dw_cuda_make_stream(cu_stream *out, dw_cuda *c, dw_error *err);

/* Copies on the handle's stream. The host's memory must stay until dw_cuda_wait. */
dw_status dw_cuda_up(dw_cuda *c, cu_pointer to, const void *from, uint64_t n_bytes,
                     dw_error *err);
dw_status dw_cuda_down(dw_cuda *c, void *to, cu_pointer from, uint64_t n_bytes,
                       dw_error *err);
dw_status dw_cuda_move(dw_cuda *c, cu_pointer to, cu_pointer from, uint64_t n_bytes,
                       dw_error *err);
dw_status dw_cuda_zero(dw_cuda *c, cu_pointer to, uint64_t n_bytes, dw_error *err);

/* Starts N_BLOCKS blocks of a kernel with one argument. Nothing if N_BLOCKS is 0. */
dw_status dw_cuda_launch(dw_cuda *c, dw_cuda_kernel kernel, uint64_t n_blocks,
                         const void *argument, dw_error *err);

/* Waits until everything on the handle's stream is done. */
dw_status dw_cuda_wait(dw_cuda *c, dw_error *err);

/* The same after a failure with STATUS: copies may still use memory of the host that the
 * caller is about to free. Nothing if STATUS is DW_OK. */
void dw_cuda_drain(dw_cuda *c, dw_status status);

#endif
