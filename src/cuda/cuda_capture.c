/* Captures: a trainer's stream waits until its weights were read, and no longer.
 *
 *     the trainer's stream    ... step | ready |        wait for compared        | step
 * ... the capture's stream               wait for ready | choose, compare | compared
 *
 * Only the device is involved in that. A flag that the host sets would not do: if another
 * thread of the program waits in the driver for the trainer's stream, calls of this one
 * may wait too.
 *
 * If there are more changes than the list has room for, further rounds are needed, but
 * the trainer's stream has gone on: the version fails. The next one is careful: `hold`
 * itself waits until the weights were read, in as many rounds as it takes. So is the
 * first one, and each one after a version that took more than half of the room.
 */
#include "cuda/cuda_capture.h"

#include <inttypes.h>

#include "base/error.h"
#include "base/mem.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_encode.h"
#include "cuda/encoder.h"

struct dw_device_capture {
    dw_cuda *cuda;
    dw_cuda_encoder *encoder;
    cu_event ready;  /* the trainer's stream wrote the weights */
    bool is_careful; /* the next hold is */
    bool is_read;    /* the weights were read by `hold` */
};

static dw_status check(const dw_device_capture *c, cu_result result, const char *doing,
                       dw_error *err)
{
    return dw_cuda_check(c->cuda->driver, result, c->cuda->where, doing, err);
}

/* ---- opening ---- */

void dw_cuda_capture_close(dw_device_capture *c)
{
    if (!c)
        return;
    dw_cuda_encoder_close(c->encoder);
    if (c->ready && dw_cuda_enter(c->cuda, NULL) == DW_OK) {
        (void)c->cuda->driver->event_destroy(c->ready);
        dw_cuda_leave(c->cuda);
    }
    dw_cuda_close(c->cuda);
    dw_free(c);
}

static dw_status make_event(dw_device_capture *c, dw_error *err)
{
    dw_status status = dw_cuda_enter(c->cuda, err);
    if (status != DW_OK)
        return status;
    status = check(c, c->cuda->driver->event_create(&c->ready, CU_EVENT_DISABLE_TIMING),
                   "create an event", err);
    if (status != DW_OK)
        c->ready = NULL;
    dw_cuda_leave(c->cuda);
    return status;
}

dw_status dw_cuda_capture_open(dw_device_capture **out, dw_device *device,
                               const dw_tensor *base, const dw_tensor *next,
                               size_t n_tensors, dw_error *err)
{
    *out = NULL;
    dw_device_capture *c = dw_alloc_zeroed(1, sizeof *c);
    dw_encode_pair *pairs = dw_alloc_zeroed(n_tensors, sizeof *pairs);
    dw_status status = c && pairs ? dw_cuda_device_handle(&c->cuda, device, err)
                                  : dw_fail_memory(err, device->name);
    for (size_t i = 0; status == DW_OK && i < n_tensors; i++)
        pairs[i] = (dw_encode_pair){.base = base[i], .next = next[i]};
    if (status == DW_OK)
        status = make_event(c, err);
    if (status == DW_OK)
        status = dw_cuda_encoder_open(&c->encoder, c->cuda, pairs, n_tensors, 0,
                                      n_tensors > 0 && !base[0].device, err);
    dw_free(pairs);
    if (status == DW_OK) {
        c->is_careful = true;
        *out = c;
    } else {
        dw_cuda_capture_close(c);
    }
    return status;
}

/* ---- a version ---- */

/* Between enter and leave: waits for the first round. */
static dw_status wait_compared(dw_device_capture *c, dw_error *err)
{
    dw_status status = check(c, c->cuda->driver->event_wait(c->encoder->compared),
                             "wait for the device", err);
    if (status == DW_OK)
        c->is_careful =
            c->encoder->counters[DW_CUDA_ENTRIES] > c->encoder->room.n_entries / 2;
    return status;
}

/* Between enter and leave. */
static dw_status hold(dw_device_capture *c, cu_stream stream, bool is_careful,
                      dw_error *err)
{
    const dw_cuda_driver *driver = c->cuda->driver;
    dw_status status =
        check(c, driver->event_record(c->ready, stream), "record an event", err);
    if (status == DW_OK)
        status = check(c, driver->stream_wait_event(c->cuda->stream, c->ready, 0),
                       "wait for an event", err);
    if (status == DW_OK)
        status = dw_cuda_encoder_begin(c->encoder, NULL, err);
    if (status == DW_OK && !is_careful)
        return check(c, driver->stream_wait_event(stream, c->encoder->compared, 0),
                     "let a stream wait", err);
    if (status == DW_OK)
        status = wait_compared(c, err);
    if (status == DW_OK)
        status = dw_cuda_encoder_wait(c->encoder, err);
    c->is_read = status == DW_OK;
    return status;
}

dw_status dw_cuda_capture_hold(dw_device_capture *c, void *stream, bool is_careful,
                               dw_error *err)
{
    c->is_read = false;
    dw_status status = dw_cuda_enter(c->cuda, err);
    if (status == DW_OK) {
        status = hold(c, stream, is_careful || c->is_careful, err);
        dw_cuda_drain(c->cuda, status);
        dw_cuda_leave(c->cuda);
    }
    return status;
}

dw_status dw_cuda_capture_wait(dw_device_capture *c, dw_error *err)
{
    if (c->is_read)
        return DW_OK;
    dw_status status = dw_cuda_enter(c->cuda, err);
    if (status != DW_OK)
        return status;
    status = wait_compared(c, err);
    dw_cuda_leave(c->cuda);
    const uint64_t n = status == DW_OK ? c->encoder->counters[DW_CUDA_ENTRIES] : 0;
    if (n > c->encoder->room.n_entries)
        status = dw_fail(err, DW_UNAVAILABLE, c->cuda->where,
                         "%" PRIu64 " elements changed, many more than in the version "
                         "before, and there was room for %" PRIu64 ". Publish again: the "
                         "next version takes as long as it needs",
                         n, c->encoder->room.n_entries);
    return status == DW_OK ? dw_cuda_encoder_wait(c->encoder, err) : status;
}

dw_status dw_cuda_capture_encode(dw_device_capture *c, dw_error *err)
{
    return dw_cuda_encoder_finish(c->encoder, err);
}

dw_status dw_cuda_capture_fetch(dw_device_capture *c, size_t t, dw_class_map *map,
                                dw_encode_item *items, size_t n_items, dw_error *err)
{
    const size_t pair = n_items > 0 ? items[0].pair : 0;
    for (size_t i = 0; i < n_items; i++)
        items[i].pair = 0;
    dw_status status = dw_cuda_encoder_fetch(c->encoder, t, map, 1, items, n_items, err);
    for (size_t i = 0; i < n_items; i++)
        items[i].pair = pair;
    return status;
}

void dw_cuda_capture_end(dw_device_capture *c)
{
    dw_cuda_encoder_end(c->encoder);
}
