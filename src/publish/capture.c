#include "publish/capture.h"

#include "base/error.h"
#include "base/mem.h"
#include "publish/publisher.h"
#include "store/store.h"

void dw_captures_close(dw_captures *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->items[i].capture)
            c->items[i].device->ops->capture_close(c->items[i].capture);
    dw_free(c->items);
    dw_free(c->owner);
    dw_free(c->number);
    *c = (dw_captures){0};
}

/* Opens item I for its pieces: views of the baseline and of the caller's weights. */
static dw_status open_one(dw_publisher *p, size_t i, dw_tensor *base, dw_tensor *next,
                          dw_error *err)
{
    dw_captured_device *item = &p->captures.items[i];
    size_t n = 0;
    for (size_t k = 0; k < p->pieces.cut.n; k++) {
        if (p->live.views[k].device != item->device)
            continue;
        p->captures.owner[k] = i;
        p->captures.number[k] = n;
        base[n] = p->baseline.views[k];
        next[n++] = p->live.views[k];
    }
    return item->device->ops->capture_open(&item->capture, item->device, base, next, n,
                                           err);
}

dw_status dw_captures_open(dw_publisher *p, dw_error *err)
{
    dw_captures *c = &p->captures;
    const size_t n = p->pieces.cut.n;
    dw_device_list devices;
    dw_status status = dw_devices_of(&devices, p->live.views, n, err);
    if (status != DW_OK || devices.n == 0)
        return status;
    c->has_host = devices.has_host;
    c->items = dw_alloc_zeroed(devices.n, sizeof *c->items);
    c->owner = dw_alloc_zeroed(n, sizeof *c->owner);
    c->number = dw_alloc_zeroed(n, sizeof *c->number);
    dw_tensor *base = dw_alloc_array(n, sizeof *base);
    dw_tensor *next = dw_alloc_array(n, sizeof *next);
    if (!c->items || !c->owner || !c->number || !base || !next)
        status = dw_fail_memory(err, NULL);
    for (size_t i = 0; status == DW_OK && i < devices.n; i++) {
        c->items[c->n++].device = devices.items[i];
        status = open_one(p, i, base, next, err);
    }
    dw_free(base);
    dw_free(next);
    dw_device_list_release(&devices);
    return status;
}

static void *stream_of(const dw_publish_note *note, const dw_device *device)
{
    for (size_t i = 0; i < note->n_streams; i++)
        if (note->streams[i].device == device)
            return note->streams[i].stream;
    return NULL;
}

dw_status dw_captures_hold(dw_publisher *p, const dw_publish_note *note, dw_error *err)
{
    dw_captures *c = &p->captures;
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < c->n; i++) {
        const dw_captured_device *item = &c->items[i];
        status =
            item->device->ops->capture_hold(item->capture, stream_of(note, item->device),
                                            p->baseline.state == DW_BASE_BROKEN, err);
    }
    c->is_held = status == DW_OK;
    c->moves = p->baseline.n_moves;
    return status;
}

dw_status dw_captures_wait(dw_publisher *p, dw_error *err)
{
    const dw_captures *c = &p->captures;
    dw_status status = DW_OK;
    for (size_t i = 0; c->is_held && i < c->n; i++) {
        /* all of them, also after a failure */
        const dw_captured_device *item = &c->items[i];
        const dw_status one =
            item->device->ops->capture_wait(item->capture, status == DW_OK ? err : NULL);
        status = status == DW_OK ? one : status;
    }
    return status;
}

bool dw_captures_are_current(const dw_publisher *p)
{
    return p->captures.is_held && p->captures.moves == p->baseline.n_moves;
}

dw_status dw_captures_check(const dw_publisher *p, dw_error *err)
{
    if (p->captures.n == 0 || dw_captures_are_current(p))
        return DW_OK;
    return dw_fail(
        err, DW_STALE, dw_store_url(p->store),
        "the baseline was lost when the weights on devices were to be read, and "
        "is there again now. Publish again");
}

dw_status dw_captures_encode(dw_publisher *p, dw_error *err)
{
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < p->captures.n; i++) {
        const dw_captured_device *item = &p->captures.items[i];
        status = item->device->ops->capture_encode(item->capture, err);
    }
    return status;
}

static dw_status fetch(void *context, const dw_encode_pair *pair, dw_class_map *map,
                       dw_encode_item *items, size_t n_items, dw_error *err)
{
    const dw_captures *c = context;
    const size_t piece = c->group_first + pair->number;
    const dw_captured_device *item = &c->items[c->owner[piece]];
    return item->device->ops->capture_fetch(item->capture, c->number[piece], map, items,
                                            n_items, err);
}

dw_encode_capture dw_captures_of_group(dw_captures *c, size_t first)
{
    c->group_first = first;
    return (dw_encode_capture){fetch, c};
}

void dw_captures_end(dw_publisher *p)
{
    dw_captures *c = &p->captures;
    for (size_t i = 0; c->is_held && i < c->n; i++)
        c->items[i].device->ops->capture_end(c->items[i].capture);
    c->is_held = false;
}
