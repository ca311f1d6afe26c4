#include "cuda/cuda_device.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "cuda/cuda_capture.h"
#include "cuda/cuda_context.h"
#include "cuda/cuda_digest.h"
#include "cuda/cuda_encode.h"
#include "cuda/cuda_stage.h"
#include "cuda/cuda_stores.h"

#define PREFIX "cuda:"

typedef struct cuda_device {
    dw_device base;
    pthread_mutex_t lock; /* guards the handle */
    dw_cuda *cuda;
    uint32_t index;
    const dw_cuda_image *image;
} cuda_device;

struct dw_device_stage {
    cuda_device *device;
    dw_cuda_stage *stage;
};

struct dw_device_stores {
    cuda_device *device;
    dw_cuda_stores *stores;
};

static cuda_device *lock(dw_device *device)
{
    cuda_device *d = (cuda_device *)(void *)device;
    pthread_mutex_lock(&d->lock);
    return d;
}

static dw_status unlock(cuda_device *d, dw_status status)
{
    pthread_mutex_unlock(&d->lock);
    return status;
}

static cu_pointer pointer_of(const void *data)
{
    return (cu_pointer)(uintptr_t)data;
}

/* ---- memory ---- */

static dw_status alloc(void **out, dw_device *device, uint64_t n_bytes, const char *what,
                       dw_error *err)
{
    cuda_device *d = lock(device);
    cu_pointer pointer = 0;
    dw_status status = dw_cuda_enter(d->cuda, err);
    if (status == DW_OK) {
        status = dw_cuda_alloc(&pointer, d->cuda, n_bytes, what, err);
        dw_cuda_leave(d->cuda);
    }
    *out = dw_cuda_address(pointer);
    return unlock(d, status);
}

static void release(dw_device *device, void *data)
{
    cuda_device *d = lock(device);
    cu_pointer pointer = pointer_of(data);
    if (dw_cuda_enter(d->cuda, NULL) == DW_OK) {
        dw_cuda_free(d->cuda, &pointer);
        dw_cuda_leave(d->cuda);
    }
    (void)unlock(d, DW_OK);
}

static dw_status pin(void **out, dw_device *device, uint64_t n_bytes, const char *what,
                     dw_error *err)
{
    cuda_device *d = lock(device);
    *out = NULL;
    dw_status status = dw_cuda_enter(d->cuda, err);
    if (status == DW_OK) {
        status = dw_cuda_alloc_pinned(out, d->cuda, n_bytes, what, err);
        dw_cuda_leave(d->cuda);
    }
    return unlock(d, status);
}

static void unpin(dw_device *device, void *data)
{
    cuda_device *d = lock(device);
    if (dw_cuda_enter(d->cuda, NULL) == DW_OK) {
        dw_cuda_free_pinned(d->cuda, data);
        dw_cuda_leave(d->cuda);
    }
    (void)unlock(d, DW_OK);
}

/* ---- copies ---- */

typedef struct copy_job {
    void *to;
    const void *from;
    uint64_t n_bytes;
    dw_status (*start)(dw_cuda *c, const struct copy_job *job, dw_error *err);
} copy_job;

static dw_status start_read(dw_cuda *c, const copy_job *job, dw_error *err)
{
    return dw_cuda_down(c, job->to, pointer_of(job->from), job->n_bytes, err);
}

static dw_status start_write(dw_cuda *c, const copy_job *job, dw_error *err)
{
    return dw_cuda_up(c, pointer_of(job->to), job->from, job->n_bytes, err);
}

static dw_status start_copy(dw_cuda *c, const copy_job *job, dw_error *err)
{
    return dw_cuda_move(c, pointer_of(job->to), pointer_of(job->from), job->n_bytes, err);
}

static dw_status run_copy(dw_device *device, const copy_job *job, dw_error *err)
{
    if (job->n_bytes == 0)
        return DW_OK;
    cuda_device *d = lock(device);
    dw_status status = dw_cuda_enter(d->cuda, err);
    if (status == DW_OK) {
        status = job->start(d->cuda, job, err);
        if (status == DW_OK)
            status = dw_cuda_wait(d->cuda, err);
        dw_cuda_drain(d->cuda, status);
        dw_cuda_leave(d->cuda);
    }
    return unlock(d, status);
}

static dw_status read_out(dw_device *device, void *to, const void *from, uint64_t n_bytes,
                          dw_error *err)
{
    return run_copy(device, &(copy_job){to, from, n_bytes, start_read}, err);
}

static dw_status write_in(dw_device *device, void *to, const void *from, uint64_t n_bytes,
                          dw_error *err)
{
    return run_copy(device, &(copy_job){to, from, n_bytes, start_write}, err);
}

static dw_status copy(dw_device *device, void *to, const void *from, uint64_t n_bytes,
                      dw_error *err)
{
    return run_copy(device, &(copy_job){to, from, n_bytes, start_copy}, err);
}

/* ---- weights ---- */

static dw_status digest(dw_device *device, dw_digest *out, const dw_tensor *tensors,
                        size_t n_tensors, dw_error *err)
{
    cuda_device *d = lock(device);
    return unlock(d, dw_cuda_digest_tensors(out, d->cuda, tensors, n_tensors, err));
}

static dw_status encode(dw_device *device, const dw_encode_job *job, dw_class_map *maps,
                        dw_encode_item *items, size_t n_items, dw_error *err)
{
    cuda_device *d = lock(device);
    dw_cuda_encode_call encoder = {.cuda = d->cuda};
    return unlock(d, dw_cuda_encode(&encoder, job, maps, items, n_items, err));
}

static dw_status stage_new(dw_device_stage **out, dw_device *device,
                           const dw_tensor *tensors, dw_error *err)
{
    dw_device_stage *s = dw_alloc_zeroed(1, sizeof *s);
    *out = NULL;
    if (!s)
        return dw_fail_memory(err, device->name);
    s->device = lock(device);
    dw_status status =
        unlock(s->device, dw_cuda_stage_new(&s->stage, s->device->cuda, tensors, err));
    if (status != DW_OK)
        dw_free(s);
    else
        *out = s;
    return status;
}

static dw_status stage_decode(dw_device_stage *s, dw_stage_block *blocks, size_t n_blocks,
                              dw_error *err)
{
    pthread_mutex_lock(&s->device->lock);
    return unlock(s->device, dw_cuda_stage_decode(s->stage, blocks, n_blocks, err));
}

static dw_status stage_store(dw_device_stage *s, dw_error *err)
{
    pthread_mutex_lock(&s->device->lock);
    return unlock(s->device, dw_cuda_stage_store(s->stage, err));
}

static dw_status stage_wait(dw_device_stage *s, uint64_t *n_wrong, size_t *tensor,
                            dw_error *err)
{
    pthread_mutex_lock(&s->device->lock);
    return unlock(s->device, dw_cuda_stage_wait(s->stage, n_wrong, tensor, err));
}

static dw_status stage_undo(dw_device_stage *s, dw_error *err)
{
    pthread_mutex_lock(&s->device->lock);
    return unlock(s->device, dw_cuda_stage_undo(s->stage, err));
}

static void stage_free(dw_device_stage *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->device->lock);
    dw_cuda_stage_close(s->stage);
    (void)unlock(s->device, DW_OK);
    dw_free(s);
}

/* ---- stores ---- */

static dw_status stores_new(dw_device_stores **out, dw_device *device,
                            const dw_stores_counts *counts, dw_error *err)
{
    dw_device_stores *s = dw_alloc_zeroed(1, sizeof *s);
    *out = NULL;
    if (!s)
        return dw_fail_memory(err, device->name);
    s->device = lock(device);
    dw_status status =
        unlock(s->device, dw_cuda_stores_new(&s->stores, s->device->cuda, counts, err));
    if (status != DW_OK)
        dw_free(s);
    else
        *out = s;
    return status;
}

static dw_status stores_add(dw_device_stores *s, const dw_stores_lists *lists,
                            dw_error *err)
{
    pthread_mutex_lock(&s->device->lock);
    return unlock(s->device, dw_cuda_stores_add(s->stores, lists, err));
}

static dw_status stores_apply(dw_device_stores *s, uint64_t *n_wrong, size_t *tensor,
                              dw_error *err)
{
    pthread_mutex_lock(&s->device->lock);
    return unlock(s->device, dw_cuda_stores_apply(s->stores, n_wrong, tensor, err));
}

static dw_status stores_undo(dw_device_stores *s, dw_error *err)
{
    pthread_mutex_lock(&s->device->lock);
    return unlock(s->device, dw_cuda_stores_undo(s->stores, err));
}

static void stores_free(dw_device_stores *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->device->lock);
    dw_cuda_stores_free(s->stores);
    (void)unlock(s->device, DW_OK);
    dw_free(s);
}

/* ---- opening ---- */

static void close_device(dw_device *device)
{
    cuda_device *d = (cuda_device *)(void *)device;
    dw_cuda_close(d->cuda);
    pthread_mutex_destroy(&d->lock);
    dw_free(d);
}

static const dw_device_ops cuda_ops = {
    .close = close_device,
    .alloc = alloc,
    .free = release,
    .pin = pin,
    .unpin = unpin,
    .read = read_out,
    .write = write_in,
    .copy = copy,
    .digest = digest,
    .encode = encode,
    .stage_new = stage_new,
    .stage_decode = stage_decode,
    .stage_store = stage_store,
    .stage_wait = stage_wait,
    .stage_undo = stage_undo,
    .stage_free = stage_free,
    .capture_open = dw_cuda_capture_open,
    .capture_close = dw_cuda_capture_close,
    .capture_hold = dw_cuda_capture_hold,
    .capture_wait = dw_cuda_capture_wait,
    .capture_encode = dw_cuda_capture_encode,
    .capture_fetch = dw_cuda_capture_fetch,
    .capture_end = dw_cuda_capture_end,
    .stores_new = stores_new,
    .stores_add = stores_add,
    .stores_apply = stores_apply,
    .stores_undo = stores_undo,
    .stores_free = stores_free,
};

dw_status dw_cuda_device_handle(dw_cuda **out, const dw_device *device, dw_error *err)
{
    const cuda_device *d = (const cuda_device *)(const void *)device;
    return dw_cuda_open(out, d->index, d->image, err);
}

dw_status dw_cuda_device_open(dw_device **out, uint32_t index, const dw_cuda_image *image,
                              dw_error *err)
{
    *out = NULL;
    cuda_device *d = dw_alloc_zeroed(1, sizeof *d);
    if (!d)
        return dw_fail_memory(err, NULL);
    d->base.ops = &cuda_ops;
    d->index = index;
    d->image = image;
    snprintf(d->base.name, sizeof d->base.name, PREFIX "%" PRIu32, index);
    dw_status status = dw_cuda_open(&d->cuda, index, image, err);
    if (status != DW_OK) {
        dw_free(d);
        return status;
    }
    pthread_mutex_init(&d->lock, NULL);
    *out = &d->base;
    return DW_OK;
}

/* The number after the prefix: at most 4 digits. */
static bool read_index(uint32_t *out, const char *name)
{
    const size_t n_prefix = strlen(PREFIX);
    if (strncmp(name, PREFIX, n_prefix) != 0)
        return false;
    const char *digits = name + n_prefix;
    const size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > 4 || digits[n] != '\0')
        return false;
    *out = 0;
    for (size_t i = 0; i < n; i++)
        *out = *out * 10 + (uint32_t)(digits[i] - '0');
    return true;
}

dw_status dw_device_open(dw_device **out, const char *name, dw_error *err)
{
    uint32_t index;
    *out = NULL;
    if (!name || !read_index(&index, name))
        return dw_fail(err, DW_INVALID, name, "is no name of a device: use cuda:0");
    return dw_cuda_device_open(out, index, NULL, err);
}
