/* A patch in two steps: prepare and store. */
#include <inttypes.h>

#include "base/error.h"
#include "base/mem.h"
#include "layout/layout_patch.h"
#include "layout/layout_send.h"

struct dw_layout_ready {
    dw_layout_job job;
    dw_layout_report report;
    uint64_t n_changes; /* of the layout */
    dw_device_list devices;
    dw_device_stores **stores; /* [devices] */
    uint64_t n_sent;
    bool is_used;
    char *path;
};

void dw_layout_ready_free(dw_layout_ready *r)
{
    if (!r)
        return;
    for (size_t d = 0; r->stores && d < r->devices.n; d++)
        r->devices.items[d]->ops->stores_free(r->stores[d]);
    dw_free(r->stores);
    dw_device_list_release(&r->devices);
    dw_layout_job_release(&r->job);
    dw_free(r->path);
    dw_free(r);
}

static dw_status send_all(dw_layout_ready *r, unsigned n_threads, dw_error *err)
{
    const dw_layout *l = r->job.layout;
    dw_status status = dw_devices_of(&r->devices, l->targets, l->n_targets, err);
    if (status != DW_OK)
        return status;
    r->stores = dw_alloc_zeroed(r->devices.n, sizeof *r->stores);
    if (!r->stores)
        return dw_fail_memory(err, r->path);
    for (size_t d = 0; status == DW_OK && d < r->devices.n; d++) {
        uint64_t n;
        status = dw_layout_send(&r->stores[d], &n, &r->job, r->devices.items[d],
                                n_threads, err);
        r->n_sent += n;
    }
    r->job.no_host = !r->devices.has_host;
    if (status == DW_OK && r->devices.n > 0) { /* not in the pause */
        status = dw_layout_for_segments(&r->job, n_threads, dw_layout_move_digest, err);
        r->job.is_moved = true;
    }
    return status;
}

dw_status dw_layout_prepare(dw_layout_ready **out, const dw_layout *l, const char *path,
                            unsigned n_threads, dw_error *err)
{
    *out = NULL;
    dw_layout_ready *r = dw_alloc_zeroed(1, sizeof *r);
    if (!r || !(r->path = dw_copy_string(path))) {
        dw_free(r);
        return dw_fail_memory(err, path);
    }
    r->n_changes = l->n_changes;
    dw_status status = dw_layout_job_open(&r->job, l, r->path, &r->report, err);
    if (status == DW_OK)
        status = dw_layout_check_memory(l, err);
    if (status == DW_OK)
        status = send_all(r, n_threads, err);
    if (status != DW_OK)
        dw_layout_ready_free(r);
    else
        *out = r;
    return status;
}

/* ---- storing ---- */

/* Devices [0, N) restore their old values. False if one failed. */
static bool undo_devices(const dw_layout_ready *r, size_t n)
{
    bool is_good = true;
    for (size_t d = 0; d < n; d++)
        if (r->stores[d] &&
            r->devices.items[d]->ops->stores_undo(r->stores[d], &(dw_error){0}) != DW_OK)
            is_good = false;
    return is_good;
}

static dw_status store_on(const dw_layout_ready *r, size_t d, dw_error *err)
{
    uint64_t n_wrong;
    size_t target;
    const dw_device *device = r->devices.items[d];
    if (!r->stores[d])
        return DW_OK;
    dw_status status = device->ops->stores_apply(r->stores[d], &n_wrong, &target, err);
    if (status != DW_OK || n_wrong == 0)
        return status;
    return dw_fail_tensor(
        err, DW_STALE, r->path, r->job.layout->targets[target].name,
        "%" PRIu64 " elements on %s are not what the patch replaces, or did not take "
        "what it stores: these are not the weights that it was made for. Load them whole",
        n_wrong, device->name);
}

static dw_status store_on_devices(const dw_layout_ready *r, dw_error *err)
{
    for (size_t d = 0; d < r->devices.n; d++) {
        dw_status status = store_on(r, d, err);
        if (status != DW_OK) {
            if (!undo_devices(r, d + 1))
                return dw_fail(err, DW_IO, r->path,
                               "the patch failed, and a device could not restore the "
                               "old values: load the weights whole");
            return status;
        }
    }
    return DW_OK;
}

dw_status dw_layout_store(dw_layout_ready *r, unsigned n_threads,
                          dw_layout_report *report, bool *forgotten, dw_error *err)
{
    if (r->is_used || r->n_changes != r->job.layout->n_changes)
        return dw_fail(err, DW_INVALID, r->path,
                       r->is_used ? "the patch was stored before: prepare it again"
                                  : "a target has moved or a tensor was forgotten since "
                                    "the patch was prepared: prepare it again");
    r->is_used = true;
    dw_status status = dw_layout_patch_host(&r->job, n_threads, err);
    if (status != DW_OK)
        return status;
    status = store_on_devices(r, err);
    if (status != DW_OK) {
        dw_layout_unpatch_host(&r->job);
        return status;
    }
    *report = r->report;
    report->n_stored = r->n_sent;
    dw_layout_job_sum(&r->job, report, forgotten);
    return DW_OK;
}

dw_status dw_layout_apply(const dw_layout *l, const char *path, unsigned n_threads,
                          dw_layout_report *report, bool *forgotten, dw_error *err)
{
    dw_layout_ready *r;
    *report = (dw_layout_report){0};
    dw_status status = dw_layout_prepare(&r, l, path, n_threads, err);
    if (status == DW_OK)
        status = dw_layout_store(r, n_threads, report, forgotten, err);
    dw_layout_ready_free(r);
    return status;
}
