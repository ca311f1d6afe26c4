/* A driver for machines without a device: its memory is the host's, and its kernels are
 * emulated. Like a device, it works late: what a stream is given to do happens only when
 * somebody waits for it. So a host that forgets to wait reads old bytes. Memory starts
 * poisoned. Several threads may call it; one works at a time.
 */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_driver.h"
#include "emulated_kernels.h"

enum { N_DEVICES = 2 };

struct cu_context_st {
    int device;
    int n_retained;
};

struct cu_module_st {
    int unused;
};

struct cu_event_st {
    struct cu_stream_st *stream;
    uint64_t at; /* the work of the stream that it waits for */
};

typedef struct work {
    struct work *next;
    enum { COPY, FILL, LAUNCH, WAIT } kind;
    void *to;
    const void *from; /* copied at once, as a driver does with pageable memory */
    size_t n_bytes;
    unsigned char value;
    const emulated_kernel *kernel;
    unsigned n_blocks, n_threads;
    void *argument;
    struct cu_event_st event;
} work;

struct cu_stream_st {
    work *first, **end;
    uint64_t n_given, n_done;
    unsigned n_losses; /* of the device, when it was last used */
    struct cu_stream_st *next;
};

typedef struct block {
    struct block *next;
    size_t n_bytes;
} __attribute__((aligned(256))) block;

static struct cu_context_st contexts[N_DEVICES] = {{0, 0}, {1, 0}};
static struct cu_stream_st defaults[N_DEVICES]; /* the stream 0 of each device */
static struct cu_stream_st *destroyed; /* others may still have an event of them ahead */
static _Thread_local cu_context current[16];
static _Thread_local unsigned n_current;
static _Thread_local int capture_mode; /* 0: as if another thread captured a graph */
static int64_t n_pushed;               /* by all threads */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t n_calls, fail_at = -1, n_held;
static int fail_result;
static bool fail_lost, failed, is_eager;
static unsigned n_losses;
static uint64_t n_memory, peak_memory;

void fake_cuda_fail(int64_t at, int result, int lost)
{
    pthread_mutex_lock(&lock);
    fail_at = at;
    fail_result = result;
    fail_lost = lost;
    failed = false;
    n_calls = 0;
    peak_memory = n_memory;
    pthread_mutex_unlock(&lock);
}

int64_t fake_cuda_calls(void)
{
    return n_calls;
}

int64_t fake_cuda_held(void)
{
    pthread_mutex_lock(&lock);
    const int64_t n = n_held + n_pushed;
    pthread_mutex_unlock(&lock);
    return n;
}

void fake_cuda_eager(int wish)
{
    pthread_mutex_lock(&lock);
    is_eager = wish;
    pthread_mutex_unlock(&lock);
}

uint64_t fake_cuda_peak(void)
{
    return peak_memory;
}

static cu_result next_result(void)
{
    if (failed && fail_lost)
        return fail_result;
    if (n_calls++ != fail_at)
        return CU_SUCCESS;
    failed = true;
    n_losses += fail_lost;
    return fail_result;
}

static void unlock(const int *unused)
{
    (void)unused;
    pthread_mutex_unlock(&lock);
}

/* To the end of the function. */
#define LOCKED                                                                           \
    pthread_mutex_lock(&lock);                                                           \
    __attribute__((cleanup(unlock), unused)) const int locked_ = 0

#define MAY_FAIL                                                                         \
    do {                                                                                 \
        cu_result may_fail_ = next_result();                                             \
        if (may_fail_ != CU_SUCCESS)                                                     \
            return may_fail_;                                                            \
    } while (0)

static cu_result need_context(void)
{
    if (capture_mode != CU_CAPTURE_RELAXED)
        return 900; /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */
    return n_current > 0 ? next_result() : 201;
}

#define NEEDS_CONTEXT                                                                    \
    do {                                                                                 \
        cu_result needs_ = need_context();                                               \
        if (needs_ != CU_SUCCESS)                                                        \
            return needs_;                                                               \
    } while (0)

/* Declares each function with the signature that the library expects. */
#define API(name) __attribute__((visibility("default"))) cu_result name

/* ---- devices ---- */

API(cuInit)(unsigned flags)
{
    LOCKED;
    (void)flags;
    MAY_FAIL;
    return CU_SUCCESS;
}

API(cuDriverGetVersion)(int *version)
{
    LOCKED;
    MAY_FAIL;
    *version = 13000;
    return CU_SUCCESS;
}

API(cuGetErrorName)(cu_result result, const char **out)
{
    *out = result == CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
           : result == CU_SUCCESS     ? "CUDA_SUCCESS"
                                      : "CUDA_ERROR_FAKE";
    return CU_SUCCESS;
}

API(cuGetErrorString)(cu_result result, const char **out)
{
    *out = result == CU_OUT_OF_MEMORY ? "out of memory" : "the device fell off the bus";
    return CU_SUCCESS;
}

API(cuDeviceGetCount)(int *out)
{
    LOCKED;
    MAY_FAIL;
    *out = N_DEVICES;
    return CU_SUCCESS;
}

API(cuDeviceGet)(cu_device *out, int index)
{
    LOCKED;
    MAY_FAIL;
    if (index < 0 || index >= N_DEVICES)
        return CU_INVALID_DEVICE;
    *out = index;
    return CU_SUCCESS;
}

API(cuDeviceGetName)(char *out, int size, cu_device device)
{
    LOCKED;
    MAY_FAIL;
    snprintf(out, (size_t)size, "Fake device %d", device);
    return CU_SUCCESS;
}

API(cuDeviceGetAttribute)(int *out, int attribute, cu_device device)
{
    LOCKED;
    (void)device;
    MAY_FAIL;
    *out = attribute == CU_ATTRIBUTE_MAJOR ? 9 : attribute == CU_ATTRIBUTE_MINOR ? 0 : 4;
    return CU_SUCCESS;
}

API(cuDeviceTotalMem_v2)(size_t *out, cu_device device)
{
    LOCKED;
    (void)device;
    MAY_FAIL;
    *out = (size_t)1 << 30;
    return CU_SUCCESS;
}

/* ---- contexts ---- */

API(cuDevicePrimaryCtxRetain)(cu_context *out, cu_device device)
{
    LOCKED;
    MAY_FAIL;
    contexts[device].n_retained++;
    n_held++;
    *out = &contexts[device];
    return CU_SUCCESS;
}

API(cuDevicePrimaryCtxRelease_v2)(cu_device device)
{
    LOCKED;
    contexts[device].n_retained--;
    n_held--;
    return next_result();
}

API(cuCtxPushCurrent_v2)(cu_context context)
{
    LOCKED;
    /* it does not touch the device, so a lost one can be entered to clean up */
    if (n_current == sizeof current / sizeof current[0] || context->n_retained == 0)
        return CU_INVALID_VALUE;
    current[n_current++] = context;
    n_pushed++;
    return CU_SUCCESS;
}

API(cuCtxPopCurrent_v2)(cu_context *out)
{
    LOCKED;
    if (n_current == 0)
        return 201;
    *out = current[--n_current];
    n_pushed--;
    return CU_SUCCESS;
}

API(cuThreadExchangeStreamCaptureMode)(int *mode)
{
    const int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    LOCKED;
    n_pushed += (capture_mode != 0) - (before != 0);
    return CU_SUCCESS;
}

API(cuCtxGetStreamPriorityRange)(int *least, int *greatest)
{
    LOCKED;
    NEEDS_CONTEXT;
    *least = 0;
    *greatest = -5;
    return CU_SUCCESS;
}

/* ---- modules ---- */

API(cuModuleLoadData)(cu_module *out, const void *image)
{
    LOCKED;
    (void)image;
    NEEDS_CONTEXT;
    *out = malloc(sizeof **out);
    n_held++;
    return CU_SUCCESS;
}

API(cuModuleUnload)(cu_module module)
{
    LOCKED;
    free(module);
    n_held--;
    return next_result();
}

API(cuModuleGetFunction)(cu_function *out, cu_module module, const char *name)
{
    LOCKED;
    (void)module;
    NEEDS_CONTEXT;
    const emulated_kernel *kernel = emulated_kernel_find(name);
    *out = (cu_function)(uintptr_t)kernel;
    return kernel ? CU_SUCCESS : 500;
}

API(cuFuncGetAttribute)(int *out, int attribute, cu_function function)
{
    (void)function;
    NEEDS_CONTEXT;
    *out = 1024;
    return attribute == CU_FUNCTION_MOST_THREADS ? CU_SUCCESS : CU_INVALID_VALUE;
}

/* ---- memory ---- */

API(cuMemAlloc_v2)(cu_pointer *out, size_t n_bytes)
{
    LOCKED;
    NEEDS_CONTEXT;
    block *b = aligned_alloc(256, (sizeof *b + n_bytes + 255) / 256 * 256);
    if (!b)
        return CU_OUT_OF_MEMORY;
    b->n_bytes = n_bytes;
    memset(b + 1, 0x5a, n_bytes);
    n_memory += n_bytes;
    peak_memory = n_memory > peak_memory ? n_memory : peak_memory;
    n_held++;
    *out = (cu_pointer)(uintptr_t)(b + 1);
    return CU_SUCCESS;
}

API(cuMemFree_v2)(cu_pointer pointer)
{
    LOCKED;
    block *b = (block *)(uintptr_t)pointer - 1;
    n_memory -= b->n_bytes;
    n_held--;
    free(b);
    return next_result();
}

API(cuMemHostAlloc)(void **out, size_t n_bytes, unsigned flags)
{
    LOCKED;
    (void)flags;
    NEEDS_CONTEXT;
    *out = malloc(n_bytes ? n_bytes : 1);
    n_held++;
    return *out ? CU_SUCCESS : CU_OUT_OF_MEMORY;
}

API(cuMemFreeHost)(void *pointer)
{
    LOCKED;
    free(pointer);
    n_held--;
    return next_result();
}

/* ---- streams ---- */

static void drop_work(struct cu_stream_st *s)
{
    while (s->first) {
        work *w = s->first;
        s->first = w->next;
        free(w->argument);
        free(w);
    }
    s->end = &s->first;
    s->n_done = s->n_given;
}

/* What a lost device had to do is lost with it. */
static void notice_loss(struct cu_stream_st *s)
{
    if (s->n_losses != n_losses)
        drop_work(s);
    s->n_losses = n_losses;
}

static void run_until(struct cu_stream_st *s, uint64_t n)
{
    notice_loss(s);
    while (s->n_done < n && s->first) {
        work *w = s->first;
        if (w->kind == WAIT) {
            run_until(w->event.stream, w->event.at);
            if (s->first != w)
                continue; /* the device was lost meanwhile */
        }
        s->first = w->next;
        if (!s->first)
            s->end = &s->first;
        s->n_done++;
        if (w->kind == COPY)
            memcpy(w->to, w->from, w->n_bytes);
        else if (w->kind == FILL)
            memset(w->to, w->value, w->n_bytes);
        else if (w->kind == LAUNCH)
            emulate_run(w->kernel->run, w->argument, w->n_blocks, w->n_threads);
        free(w->argument);
        free(w);
    }
}

/* What may happen already now. */
static void run_copies(struct cu_stream_st *s)
{
    while (s->first && (s->first->kind == COPY || s->first->kind == FILL ||
                        (s->first->kind == WAIT &&
                         s->first->event.stream->n_done >= s->first->event.at)))
        run_until(s, s->n_done + 1);
}

static cu_result give(struct cu_stream_st *s, work w)
{
    work *kept = malloc(sizeof *kept);
    if (!kept)
        return CU_OUT_OF_MEMORY;
    notice_loss(s);
    w.next = NULL;
    *kept = w;
    *s->end = kept;
    s->end = &kept->next;
    s->n_given++;
    if (is_eager)
        run_copies(s);
    return CU_SUCCESS;
}

/* The stream that a caller means: 0 is the default one of the context. */
static struct cu_stream_st *stream_of(cu_stream stream)
{
    if (stream)
        return stream;
    struct cu_stream_st *s = &defaults[current[n_current - 1]->device];
    if (!s->end)
        s->end = &s->first;
    return s;
}

API(cuStreamCreateWithPriority)(cu_stream *out, unsigned flags, int priority)
{
    LOCKED;
    (void)flags;
    NEEDS_CONTEXT;
    if (priority > 0 || priority < -5)
        return CU_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return CU_OUT_OF_MEMORY;
    (*out)->end = &(*out)->first;
    n_held++;
    return CU_SUCCESS;
}

API(cuStreamDestroy_v2)(cu_stream stream)
{
    LOCKED;
    drop_work(stream); /* what nobody waited for */
    stream->next = destroyed;
    destroyed = stream;
    n_held--;
    return next_result();
}

API(cuStreamSynchronize)(cu_stream stream)
{
    LOCKED;
    NEEDS_CONTEXT;
    stream = stream_of(stream);
    run_until(stream, stream->n_given);
    return CU_SUCCESS;
}

API(cuStreamWaitEvent)(cu_stream stream, cu_event event, unsigned flags)
{
    LOCKED;
    (void)flags;
    NEEDS_CONTEXT;
    stream = stream_of(stream);
    return event->stream ? give(stream, (work){.kind = WAIT, .event = *event})
                         : CU_SUCCESS;
}

API(cuMemcpyHtoDAsync_v2)(cu_pointer to, const void *from, size_t n, cu_stream stream)
{
    LOCKED;
    NEEDS_CONTEXT;
    stream = stream_of(stream);
    return give(
        stream,
        (work){.kind = COPY, .to = (void *)(uintptr_t)to, .from = from, .n_bytes = n});
}

API(cuMemcpyDtoHAsync_v2)(void *to, cu_pointer from, size_t n, cu_stream stream)
{
    LOCKED;
    NEEDS_CONTEXT;
    stream = stream_of(stream);
    return give(stream, (work){.kind = COPY,
                               .to = to,
                               .from = (const void *)(uintptr_t)from,
                               .n_bytes = n});
}

API(cuMemcpyDtoDAsync_v2)(cu_pointer to, cu_pointer from, size_t n, cu_stream stream)
{
    LOCKED;
    NEEDS_CONTEXT;
    stream = stream_of(stream);
    return give(stream, (work){.kind = COPY,
                               .to = (void *)(uintptr_t)to,
                               .from = (const void *)(uintptr_t)from,
                               .n_bytes = n});
}

API(cuMemsetD8Async)(cu_pointer to, unsigned char value, size_t n, cu_stream stream)
{
    LOCKED;
    NEEDS_CONTEXT;
    stream = stream_of(stream);
    return give(
        stream,
        (work){.kind = FILL, .to = (void *)(uintptr_t)to, .value = value, .n_bytes = n});
}

API(cuLaunchKernel)
(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
 cu_stream stream, void **arguments, void **extra)
{
    LOCKED;
    NEEDS_CONTEXT;
    const emulated_kernel *kernel = (const emulated_kernel *)(uintptr_t)function;
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x > 1024 || block_y != 1 ||
        block_z != 1 || shared_bytes != 0 || extra)
        return CU_INVALID_VALUE;
    void *argument = malloc(kernel->argument_bytes);
    if (!argument)
        return CU_OUT_OF_MEMORY;
    memcpy(argument, arguments[0], kernel->argument_bytes);
    return give(stream, (work){.kind = LAUNCH,
                               .kernel = kernel,
                               .n_blocks = grid_x,
                               .n_threads = block_x,
                               .argument = argument});
}

/* ---- events ---- */

API(cuEventCreate)(cu_event *out, unsigned flags)
{
    LOCKED;
    (void)flags;
    NEEDS_CONTEXT;
    *out = calloc(1, sizeof **out);
    n_held++;
    return *out ? CU_SUCCESS : CU_OUT_OF_MEMORY;
}

API(cuEventDestroy_v2)(cu_event event)
{
    LOCKED;
    free(event);
    n_held--;
    return next_result();
}

API(cuEventRecord)(cu_event event, cu_stream stream)
{
    LOCKED;
    NEEDS_CONTEXT;
    stream = stream_of(stream);
    event->stream = stream;
    event->at = stream->n_given;
    return CU_SUCCESS;
}

API(cuEventSynchronize)(cu_event event)
{
    LOCKED;
    NEEDS_CONTEXT;
    if (event->stream)
        run_until(event->stream, event->at);
    return CU_SUCCESS;
}
