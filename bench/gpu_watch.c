#include "gpu_watch.h"

#include <dlfcn.h>
#include <string.h>

enum { MAX_LAUNCHES = 4096, MAX_BLOCKS = 4096 };

static struct {
    dw_cuda *c;
    const dw_cuda_driver *real;
    dw_cuda_driver driver;
    cu_result (*elapsed)(float *ms, cu_event start, cu_event end);

    struct {
        uint64_t address, n_bytes;
        bool is_pinned;
    } blocks[MAX_BLOCKS];
    gpu_memory memory;

    bool on;
    unsigned n_launches;
    cu_event events[MAX_LAUNCHES][2];
    dw_cuda_kernel kernels[MAX_LAUNCHES];
} watch;

/* ---- memory ---- */

static void count(uint64_t address, int64_t n_bytes, bool is_pinned)
{
    gpu_memory *m = &watch.memory;
    for (unsigned i = 0; i < MAX_BLOCKS; i++) {
        const bool is_free = watch.blocks[i].n_bytes == 0;
        if (n_bytes > 0 ? !is_free : is_free || watch.blocks[i].address != address)
            continue;
        if (n_bytes == 0)
            n_bytes = -(int64_t)watch.blocks[i].n_bytes;
        watch.blocks[i].address = address;
        watch.blocks[i].n_bytes = n_bytes > 0 ? (uint64_t)n_bytes : 0;
        watch.blocks[i].is_pinned = is_pinned;
        break;
    }
    *(is_pinned ? &m->pinned : &m->device) += n_bytes;
    m->pinned_peak = m->pinned > m->pinned_peak ? m->pinned : m->pinned_peak;
    m->device_peak = m->device > m->device_peak ? m->device : m->device_peak;
}

static cu_result memory_alloc(cu_pointer *out, size_t n_bytes)
{
    cu_result result = watch.real->memory_alloc(out, n_bytes);
    if (result == CU_SUCCESS)
        count(*out, (int64_t)n_bytes, false);
    return result;
}

static cu_result memory_free(cu_pointer pointer)
{
    count(pointer, 0, false);
    return watch.real->memory_free(pointer);
}

static cu_result host_alloc(void **out, size_t n_bytes, unsigned flags)
{
    cu_result result = watch.real->host_alloc(out, n_bytes, flags);
    if (result == CU_SUCCESS)
        count((uintptr_t)*out, (int64_t)n_bytes, true);
    return result;
}

static cu_result host_free(void *pointer)
{
    count((uintptr_t)pointer, 0, true);
    return watch.real->host_free(pointer);
}

gpu_memory gpu_watch_memory(void)
{
    return watch.memory;
}

void gpu_watch_reset(void)
{
    watch.memory.pinned_peak = watch.memory.pinned;
    watch.memory.device_peak = watch.memory.device;
}

/* ---- kernels ---- */

static cu_result launch(cu_function function, unsigned grid_x, unsigned grid_y,
                        unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes, cu_stream stream,
                        void **arguments, void **extra)
{
    const bool on = watch.on && watch.n_launches < MAX_LAUNCHES;
    const unsigned i = watch.n_launches;
    for (unsigned k = 0; on && k < DW_CUDA_KERNELS; k++)
        if (watch.c->functions[k] == function)
            watch.kernels[i] = (dw_cuda_kernel)k;
    if (on)
        (void)watch.real->event_record(watch.events[i][0], stream);
    cu_result result =
        watch.real->launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                           shared_bytes, stream, arguments, extra);
    if (on) {
        (void)watch.real->event_record(watch.events[i][1], stream);
        watch.n_launches++;
    }
    return result;
}

void gpu_watch_kernels(void)
{
    for (unsigned i = 0; i < MAX_LAUNCHES; i++)
        for (unsigned k = 0; k < 2; k++)
            if (!watch.events[i][k])
                (void)watch.real->event_create(&watch.events[i][k], 0);
    watch.n_launches = 0;
    watch.on = true;
}

void gpu_watch_times(gpu_kernel_time out[DW_CUDA_KERNELS])
{
    memset(out, 0, DW_CUDA_KERNELS * sizeof *out);
    for (unsigned i = 0; i < watch.n_launches; i++) {
        gpu_kernel_time *to = &out[watch.kernels[i]];
        float ms = -1;
        if (!watch.elapsed ||
            watch.elapsed(&ms, watch.events[i][0], watch.events[i][1]) != CU_SUCCESS)
            ms = -1;
        to->n_launches++;
        to->ms = ms < 0 ? -1 : to->ms + (double)ms;
    }
    watch.on = false;
}

void gpu_watch_start(dw_cuda *c)
{
    memset(&watch, 0, sizeof watch);
    watch.c = c;
    watch.real = c->driver;
    watch.driver = *c->driver;
    watch.driver.memory_alloc = memory_alloc;
    watch.driver.memory_free = memory_free;
    watch.driver.host_alloc = host_alloc;
    watch.driver.host_free = host_free;
    watch.driver.launch = launch;
    void *found = dlsym(c->driver->library, "cuEventElapsedTime");
    memcpy(&watch.elapsed, &found, sizeof found);
    c->driver = &watch.driver;
}

void gpu_watch_stop(void)
{
    if (dw_cuda_enter(watch.c, NULL) == DW_OK) {
        for (unsigned i = 0; i < MAX_LAUNCHES; i++)
            for (unsigned k = 0; k < 2; k++)
                if (watch.events[i][k])
                    (void)watch.real->event_destroy(watch.events[i][k]);
        dw_cuda_leave(watch.c);
    }
    watch.c->driver = watch.real;
}
