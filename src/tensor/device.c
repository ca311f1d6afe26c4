#include "tensor/device.h"

#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "tensor/tensor_list.h"

/* Bytes that pass through the host at a time. */
#define PASS_BYTES (4u << 20)

const char *dw_device_name(const dw_device *device)
{
    return device->name;
}

void dw_device_close(dw_device *device)
{
    if (device)
        device->ops->close(device);
}

/* ---- lists ---- */

bool dw_tensors_on_device(const dw_tensor *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tensors[i].device)
            return true;
    return false;
}

dw_status dw_tensors_need_host(const dw_tensor *tensors, size_t n, const char *doing,
                               dw_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (tensors[i].device)
            return dw_fail_tensor(err, DW_UNSUPPORTED, tensors[i].device->name,
                                  tensors[i].name,
                                  "cannot %s: its data is on the device. Copy it to the "
                                  "host first",
                                  doing);
    return DW_OK;
}

dw_status dw_devices_of(dw_device_list *out, const dw_tensor *tensors, size_t n,
                        dw_error *err)
{
    size_t n_room = 0;
    *out = (dw_device_list){0};
    for (size_t i = 0; i < n; i++) {
        dw_device *device = tensors[i].device;
        size_t k = 0;
        if (!device) {
            out->has_host = true;
            continue;
        }
        while (k < out->n && out->items[k] != device)
            k++;
        if (k < out->n)
            continue;
        if (!dw_grow_array((void **)&out->items, &n_room, out->n, sizeof *out->items)) {
            dw_device_list_release(out);
            return dw_fail_memory(err, NULL);
        }
        out->items[out->n++] = device;
    }
    return DW_OK;
}

void dw_device_list_release(dw_device_list *list)
{
    dw_free(list->items);
    *list = (dw_device_list){0};
}

/* ---- copies ---- */

/* One pass: reads N_BYTES into ROOM, or lends them. */
static dw_status fetch(const void **out, dw_loan *room, dw_loan *loan, dw_place from,
                       uint64_t at, size_t n_bytes, dw_error *err)
{
    const uint8_t *data = (const uint8_t *)from.data + at;
    if (!from.device)
        return dw_map_read(out, loan, data, n_bytes, err);
    *out = room->bytes;
    return from.device->ops->read(from.device, room->bytes, data, n_bytes, err);
}

static dw_status store(dw_place to, uint64_t at, const void *bytes, size_t n_bytes,
                       dw_error *err)
{
    uint8_t *data = (uint8_t *)to.data + at;
    if (to.device)
        return to.device->ops->write(to.device, data, bytes, n_bytes, err);
    memcpy(data, bytes, n_bytes);
    return DW_OK;
}

/* Through the host. ROUND: FROM has F32, TO takes BF16. */
static dw_status pass(dw_place to, dw_place from, uint64_t n_bytes, bool round,
                      dw_error *err)
{
    dw_loan room = {0}, rounded = {0}, loan = {0};
    dw_status status = dw_loan_reserve(&room, PASS_BYTES, err);
    if (status == DW_OK && round)
        status = dw_loan_reserve(&rounded, PASS_BYTES / 2, err);
    for (uint64_t at = 0, n; status == DW_OK && at < n_bytes; at += n) {
        const void *bytes;
        n = n_bytes - at < PASS_BYTES ? n_bytes - at : PASS_BYTES;
        status = fetch(&bytes, &room, &loan, from, at, (size_t)n, err);
        if (status == DW_OK && round) {
            dw_cast_bf16((uint16_t *)(void *)rounded.bytes, bytes, n / sizeof(float));
            status = store(to, at / 2, rounded.bytes, (size_t)n / 2, err);
        } else if (status == DW_OK) {
            status = store(to, at, bytes, (size_t)n, err);
        }
    }
    dw_loan_release(&room);
    dw_loan_release(&rounded);
    dw_loan_release(&loan);
    return status;
}

dw_status dw_place_copy(dw_place to, dw_place from, uint64_t n_bytes, dw_error *err)
{
    if (n_bytes == 0)
        return DW_OK;
    if (!to.device && !from.device)
        return dw_map_copy(to.data, from.data, (size_t)n_bytes, err);
    if (to.device == from.device)
        return to.device->ops->copy(to.device, to.data, from.data, n_bytes, err);
    return pass(to, from, n_bytes, false, err);
}

dw_status dw_place_round(dw_place to, dw_place from, uint64_t n_elems, dw_error *err)
{
    if (!to.device && !from.device)
        return dw_cast_copy(to.data, from.data, n_elems, err);
    return pass(to, from, n_elems * sizeof(float), true, err);
}
